//! The FUSE protocol: decodes the bytes of a request, calls the handler, encodes the reply.
//!
//! [`abi`] has the layouts of `linux/fuse.h`, [`types`](crate::types) the types that handlers see.
//! The module does no I/O and keeps no state.

pub mod abi;
mod listing;
mod reply;
mod request;

pub use request::{Call, answer, content_len, is_written_first, write_back_for, writes_past_pages};
