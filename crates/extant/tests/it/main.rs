//! Integration tests of the engine.

mod crash;
mod dir;
mod file;
mod life;
mod mkfs;
mod xattr;
