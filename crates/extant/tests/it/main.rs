//! Integration tests of the engine.

mod crash;
mod devices;
mod dir;
mod extents;
mod features;
mod file;
mod fuzz;
mod hostile;
mod freeze;
mod life;
mod mkfs;
mod xattr;
mod space;
mod stress;
