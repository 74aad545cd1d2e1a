//! A value that is replaced as a whole and read without a lock or a shared write.

use arc_swap::{ArcSwapOption, Guard};
use std::sync::Arc;

/// An optional shared value that can be replaced.
#[derive(Debug)]
pub struct Swap<T>(ArcSwapOption<T>);

/// A read of the value, which keeps it alive. Must be short: each thread has only a few cheap ones.
pub struct SwapRead<T>(Guard<Option<Arc<T>>>);

impl<T> Default for Swap<T> {
    fn default() -> Self {
        Swap(ArcSwapOption::empty())
    }
}

impl<T> Swap<T> {
    /// Returns the present value.
    #[inline]
    pub fn load(&self) -> SwapRead<T> {
        SwapRead(self.0.load())
    }

    /// Replaces the value. Readers of the old value keep it.
    pub fn store(&self, value: Option<Arc<T>>) {
        self.0.store(value);
    }
}

impl<T> SwapRead<T> {
    /// Returns the value, if there was one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_the_old_value() {
        let place = Swap::default();
        assert!(place.load().get().is_none());
        place.store(Some(Arc::new(1)));
        let old = place.load();
        place.store(None);
        assert_eq!((old.get(), place.load().get()), (Some(&1), None));
    }
}
