//! Copying trees into images and out of them.

pub mod acl;
pub mod archive;
pub mod budget;
pub mod compress;
pub mod content;
pub mod crew;
pub mod dest;
pub mod digest;
pub mod held;
pub mod job;
pub mod keeper;
pub mod oci;
pub mod output;
pub mod owner;
pub mod place;
pub mod redo;
pub mod replace;
pub mod source;
pub mod tree;
pub mod undo;
