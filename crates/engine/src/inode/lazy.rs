//! Parts of an inode that most never need.

use once_cell::race::OnceBox;
use std::fmt;
use std::ops::Deref;

/// One word until it is first looked at; then a box.
pub struct Lazy<T>(OnceBox<T>);

/// How a lazy part begins.
pub trait Make {
    /// Makes it.
    fn make() -> Self;
}

impl<T> Lazy<T> {
    /// Not made yet.
    pub const fn new() -> Self {
        Lazy(OnceBox::new())
    }

    /// The part, made by `make` unless that was done before. Where several make it at once, one of
    /// theirs stays.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_try_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        self.0.get_or_try_init(|| make().map(Box::new))
    }

    /// The part if it was made.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }
}

impl<T: Make> Deref for Lazy<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.0.get_or_init(|| Box::new(T::make()))
    }
}

impl<T: fmt::Debug> fmt::Debug for Lazy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
