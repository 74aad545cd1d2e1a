//! Changes of ranges: truncation, fallocate(2), and shifts of content.

pub(super) mod falloc;
pub(super) mod shift;
pub(super) mod truncate;
