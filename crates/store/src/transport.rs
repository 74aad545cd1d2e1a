//! The way to the objects of an image.

use crate::address::StoreObject;
use std::fmt::Debug;
use std::io;

/// A way to the objects of one image and of the others beside it, for many threads at once.
///
/// Errors have the kinds `NotFound`, `PermissionDenied`, `TimedOut`, `AlreadyExists` and others,
/// and do not name the object.
pub trait ObjectTransport: Send + Sync + Debug {
    /// Returns the content of an object, of at most `max` bytes. With `fresh`, nothing that is kept
    /// on this side will do.
    ///
    /// # Errors
    /// `NotFound`; `FileTooLarge` for more than `max` bytes; those of the way.
    fn get(&self, object: StoreObject, max: u64, fresh: bool) -> io::Result<Vec<u8>>;

    /// Returns whether there is an object.
    ///
    /// # Errors
    /// Those of the way.
    fn exists(&self, object: StoreObject) -> io::Result<bool>;

    /// Stores an object, which appears as a whole. With `replace` it may take the place of another.
    ///
    /// # Errors
    /// `AlreadyExists` without `replace`; those of the way.
    fn put(&self, object: StoreObject, data: Vec<u8>, replace: bool) -> io::Result<()>;
}
