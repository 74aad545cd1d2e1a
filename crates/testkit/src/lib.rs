//! Fixtures, oracles and crash states for tests.
#![forbid(unsafe_code)]
