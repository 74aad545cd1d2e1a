//! A value that is replaced as a whole and read without a lock or a shared write.

use arc_swap::{ArcSwapOption, Guard};
use std::sync::Arc;

/// A place for a shared value, or none.
#[derive(Debug)]
pub struct Swap<T>(ArcSwapOption<T>);

/// Keeps a value alive while it is read. Not to be kept for long: a thread has a few cheap ones
/// only.
pub struct SwapRead<T>(Guard<Option<Arc<T>>>);

impl<T> Default for Swap<T> {
    fn default() -> Self {
        Swap(ArcSwapOption::empty())
    }
}

impl<T> Swap<T> {
    /// What is there now.
    #[inline]
    pub fn load(&self) -> SwapRead<T> {
        SwapRead(self.0.load())
    }

    /// Puts another value there. Who reads the old one goes on reading it.
    pub fn store(&self, value: Option<Arc<T>>) {
        self.0.store(value);
    }
}

impl<T> SwapRead<T> {
    /// The value, if there was one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_what_they_found() {
        let place = Swap::default();
        assert!(place.load().get().is_none());
        place.store(Some(Arc::new(1)));
        let old = place.load();
        place.store(None);
        assert_eq!((old.get(), place.load().get()), (Some(&1), None));
    }
}
