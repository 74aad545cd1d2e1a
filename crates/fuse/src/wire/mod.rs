//! The protocol itself, for transports that have no crate to speak it: a request's bytes in, a
//! reply's bytes out.

mod list;
mod reply;
mod request;
pub mod structs;

pub use request::{Call, answer, is_written_first, write_back_for, writes_past_pages};
