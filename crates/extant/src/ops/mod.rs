//! ops.
