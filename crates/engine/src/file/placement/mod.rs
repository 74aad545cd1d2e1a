//! Places for delayed blocks: space set aside, preallocated windows, and plans that become maps.

pub(super) mod plan;
pub(super) mod space;
pub(super) mod window;
