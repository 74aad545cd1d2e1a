//! The layout of a tree: a pure function of the tree, the options and the size.

pub(crate) mod directory;
pub(crate) mod numbers;
pub(crate) mod placement;
pub(crate) mod shapes;
pub(crate) mod space;
pub(crate) mod xattrs;
