//! The locks under the model checker. They have the same interface but no levels: all threads of a
//! model are one thread of the process, for which levels are recorded.

use crate::Level;
use core::ops::{Deref, DerefMut};

/// The model's replacement of the mutex with a level.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// Access to the value of a [`Mutex`], until dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    /// `None` only during a wait on a condition.
    inner: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("no wait on a condition is in progress")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("no wait on a condition is in progress")
    }
}

impl<T> Mutex<T> {
    /// A new unlocked mutex.
    pub fn new(_level: Level, value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { inner: Some(self.0.lock().expect("a model that panics ends")) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard { inner: Some(guard) })
    }
}

/// The model's replacement of the condition variable.
#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Makes a condition variable without waiters.
    pub fn new() -> Self {
        Condvar(loom::sync::Condvar::new())
    }

    /// Releases the lock, waits for a notification and takes the lock again, while `condition`
    /// holds.
    pub fn wait_while<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            let own = guard.inner.take().expect("no wait on a condition is in progress");
            guard.inner = Some(self.0.wait(own).expect("a model that panics ends"));
        }
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The model's replacement of the reader-writer lock.
#[derive(Debug)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

/// Shared access.
pub type RwLockReadGuard<'a, T> = loom::sync::RwLockReadGuard<'a, T>;

/// Exclusive access.
pub type RwLockWriteGuard<'a, T> = loom::sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// A new unlocked lock.
    pub fn new(_level: Level, value: T) -> Self {
        RwLock(loom::sync::RwLock::new(value))
    }

    /// Waits for shared access.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect("a model that panics ends")
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect("a model that panics ends")
    }
}

/// The model's replacement of a value that is set once and whose waiters get copies.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: loom::sync::Mutex<Option<T>>,
    is_set: loom::sync::Condvar,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        OnceLock { value: loom::sync::Mutex::new(None), is_set: loom::sync::Condvar::new() }
    }
}

impl<T> OnceLock<T> {
    /// Sets the value and wakes all waiters.
    ///
    /// # Errors
    /// Returns `value` if one was set before.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut own = self.value.lock().expect("a model that panics ends");
        if own.is_some() {
            return Err(value);
        }
        *own = Some(value);
        self.is_set.notify_all();
        Ok(())
    }

    /// Waits until the value is set, and returns a copy.
    pub fn wait(&self) -> T
    where
        T: Clone,
    {
        let mut own = self.value.lock().expect("a model that panics ends");
        loop {
            match &*own {
                Some(value) => return value.clone(),
                None => own = self.is_set.wait(own).expect("a model that panics ends"),
            }
        }
    }
}
