//! Integration tests of the engine.

mod crash;
mod life;
mod mkfs;
