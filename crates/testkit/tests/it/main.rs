//! The fixtures and oracles against the real tools and the real kernel, and rules over the
//! repository as a whole.

mod images;
mod tidy;
mod trees;
