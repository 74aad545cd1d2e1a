//! Malicious inputs, and checks of their effects: no panic, no hang, no write of a reader.
//!
//! - [`seeds`] makes valid images of every feature set, [`atlas`] finds the structures in them and
//!   seals them again after a change;
//! - [`mutate`](mod@mutate) damages structures by their fields, [`records`] those of fast commits;
//! - [`deep`] gives images maps and indexes of several levels;
//! - [`drive`] runs all operations of a program on an image;
//! - [`parsers`], [`log`], [`image`], [`archives`] and [`disks`] take bytes from outside, such as
//!   from a coverage-guided fuzzer, and panic if the input has a forbidden effect: these are the
//!   [`TARGETS`].
//!
//! Like the testkit, this panics with a message instead of returning errors.
#![forbid(unsafe_code)]

pub mod archives;
pub mod atlas;
pub mod bombs;
pub mod deep;
pub mod disks;
pub mod drive;
pub mod image;
pub mod log;
pub mod mutate;
pub mod parsers;
pub mod records;
pub mod seeds;

/// Name and function of a fuzz target, which panics if its input has a forbidden effect.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of fuzzing.
pub const TARGETS: [Target; 5] = [
    ("parsers", parsers::run),
    ("journal", log::run),
    ("image", image::run),
    ("archive", archives::run),
    ("qcow2", disks::run),
];
