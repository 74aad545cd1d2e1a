//! Integration tests of the engine.

mod crash;
mod file;
mod life;
mod mkfs;
