//! Copying trees into images and out of them.

pub mod acl;
pub mod archive;
pub mod crew;
pub mod dest;
pub mod held;
pub mod job;
pub mod owner;
pub mod place;
pub mod replace;
pub mod source;
