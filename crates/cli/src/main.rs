//! The program `extant`.
#![forbid(unsafe_code)]

fn main() {}
