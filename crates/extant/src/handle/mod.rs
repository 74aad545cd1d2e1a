//! Handles: an inode, an open directory, an open file, and iterators over them.

mod dir;
mod file;
mod inode;
mod walk;

pub use dir::{Dir, Entries};
pub use file::{Extents, File};
pub use inode::Inode;
pub use walk::{Walk, WalkEntry};
