//! The fixtures and oracles against the real tools and the real kernel.

mod images;
mod trees;
