//! Images made of other sources.

pub mod attributes;
pub mod ext4;
pub mod mode;
pub mod progress;
pub mod size;
pub mod source;
pub mod sources;
pub mod storage;
pub mod target;
pub mod verity;
