//! The C interface of the crate `extant`. `docs/c.md` describes it, with the owner of each object;
//! `make header` writes `include/extant.h` from these sources.
//!
//! Each function is a border: pointers are looked at before they are used, text is copied, panics
//! end here, and an error becomes a negative errno with a message that the thread keeps.
#![deny(missing_docs)]

mod call;
mod device;
mod dir;
mod file;
mod fs;
mod make;
mod options;
mod path;
mod types;
