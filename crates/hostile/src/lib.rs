//! Inputs made to do harm, and a watch that sees whether they do: no panic, no hang, no write of a
//! reader.
//!
//! - [`seeds`] makes good images of every feature set, [`atlas`] finds the structures in them and
//!   seals them again after a change;
//! - [`mutate`](mod@mutate) damages structures by their fields, [`records`] those of fast commits;
//! - [`deep`] gives images maps and indexes of several levels;
//! - [`drive`] does with an image whatever a program could do;
//! - [`parsers`], [`log`] and [`image`] take bytes that somebody else made, such as a fuzzer that
//!   watches which code they reach. Each panics if its input did harm: those are the [`TARGETS`].
//!
//! Like the testkit, this panics with a message instead of returning errors.
#![forbid(unsafe_code)]

pub mod atlas;
pub mod bombs;
pub mod deep;
pub mod drive;
pub mod image;
pub mod log;
pub mod mutate;
pub mod parsers;
pub mod records;
pub mod seeds;

/// What takes bytes, and panics if they did harm: its name and itself.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of fuzzing.
pub const TARGETS: [Target; 3] =
    [("parsers", parsers::run), ("journal", log::run), ("image", image::run)];
