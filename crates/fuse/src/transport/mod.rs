//! Transports: the threads that take requests from the kernel and return replies.
//!
//! Reading `/dev/fuse` ([`device`]) works everywhere; io_uring ([`ring`]) takes fewer system calls
//! and switches of threads. Both pass each request to [`protocol::answer`](crate::protocol::answer)
//! and hand requests that wait to other threads ([`workers`]), so that receiving never stops.

mod clone;
pub mod device;
pub mod halt;
mod held_writes;
pub mod ring;
mod workers;
