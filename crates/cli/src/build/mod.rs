//! Images made of other sources.

pub mod identity;
pub mod size;
pub mod source;
