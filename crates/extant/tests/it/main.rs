//! Integration tests of the engine.

mod mkfs;
