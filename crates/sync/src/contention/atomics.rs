//! The atomic types, counting their writes.
//!
//! # Invariants
//! Each type has the operations, orderings and memory layout of the type of the same name in
//! `core`.

use super::log::written;
use core::fmt;
use core::panic::Location;
use core::sync::atomic::{self as real, Ordering};

/// Operations that every atomic type has.
macro_rules! exchanges {
    ($value:ty) => {
        /// Stores `value`.
        #[track_caller]
        #[inline]
        pub fn store(&self, value: $value, order: Ordering) {
            self.note(1, 0);
            self.0.store(value, order);
        }

        /// Stores `value` and returns the previous value.
        #[track_caller]
        #[inline]
        pub fn swap(&self, value: $value, order: Ordering) -> $value {
            self.note(1, 0);
            self.0.swap(value, order)
        }

        /// Stores `new` if the value is `current`. Returns the previous value in either case.
        #[track_caller]
        #[inline]
        pub fn compare_exchange(
            &self,
            current: $value,
            new: $value,
            success: Ordering,
            failure: Ordering,
        ) -> Result<$value, $value> {
            let outcome = self.0.compare_exchange(current, new, success, failure);
            self.note(1, u64::from(outcome.is_err()));
            outcome
        }

        /// As [`Self::compare_exchange`], but may fail spuriously.
        #[track_caller]
        #[inline]
        pub fn compare_exchange_weak(
            &self,
            current: $value,
            new: $value,
            success: Ordering,
            failure: Ordering,
        ) -> Result<$value, $value> {
            let outcome = self.0.compare_exchange_weak(current, new, success, failure);
            self.note(1, u64::from(outcome.is_err()));
            outcome
        }

        /// Applies `change` until its result is stored, or until it returns `None`.
        #[track_caller]
        pub fn fetch_update(
            &self,
            success: Ordering,
            failure: Ordering,
            mut change: impl FnMut($value) -> Option<$value>,
        ) -> Result<$value, $value> {
            let mut seen = self.0.load(failure);
            while let Some(new) = change(seen) {
                match self.compare_exchange_weak(seen, new, success, failure) {
                    Ok(before) => return Ok(before),
                    Err(now) => seen = now,
                }
            }
            Err(seen)
        }

        /// Loads the value. Loads are not counted.
        #[inline]
        pub fn load(&self, order: Ordering) -> $value {
            self.0.load(order)
        }

        /// Returns exclusive access to the value.
        #[inline]
        pub fn get_mut(&mut self) -> &mut $value {
            self.0.get_mut()
        }

        /// Returns the value.
        #[inline]
        pub fn into_inner(self) -> $value {
            self.0.into_inner()
        }

        #[track_caller]
        #[inline]
        fn note(&self, writes: u64, failed: u64) {
            written(core::ptr::from_ref(self) as usize, None, Location::caller(), writes, failed);
        }
    };
}

/// Read-modify-write operations that return the previous value.
macro_rules! changes {
    ($value:ty, $($name:ident)*) => {$(
        #[doc = concat!("As `core`'s `", stringify!($name), "`.")]
        #[track_caller]
        #[inline]
        pub fn $name(&self, value: $value, order: Ordering) -> $value {
            self.note(1, 0);
            self.0.$name(value, order)
        }
    )*};
}

macro_rules! atomic {
    ($name:ident, $value:ty, $($change:ident)*) => {
        #[doc = concat!("`", stringify!($name), "`, counting.")]
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name(real::$name);

        impl $name {
            /// Makes an atomic with this value.
            pub const fn new(value: $value) -> Self {
                $name(real::$name::new(value))
            }

            exchanges!($value);
            changes!($value, $($change)*);
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! integers {
    ($($name:ident $value:ty;)*) => {$(
        atomic!(
            $name,
            $value,
            fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_nand fetch_max fetch_min
        );
    )*};
}

integers! {
    AtomicI32 i32;
    AtomicI64 i64;
    AtomicIsize isize;
    AtomicU8 u8;
    AtomicU16 u16;
    AtomicU32 u32;
    AtomicU64 u64;
    AtomicUsize usize;
}

atomic!(AtomicBool, bool, fetch_and fetch_or fetch_xor fetch_nand);

/// `AtomicPtr`, counting.
#[repr(transparent)]
pub struct AtomicPtr<T>(real::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    /// Makes an atomic with this pointer.
    pub const fn new(value: *mut T) -> Self {
        AtomicPtr(real::AtomicPtr::new(value))
    }

    exchanges!(*mut T);
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        AtomicPtr::new(core::ptr::null_mut())
    }
}

impl<T> fmt::Debug for AtomicPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
