//! Disks of virtual machines: a server of block devices by vhost-user.
//!
//! [`VhostServer`] offers any [`BlockDevice`](extant_blocks::BlockDevice) to a virtual machine
//! monitor, such as QEMU or cloud-hypervisor, as a virtio block device. Monitor and server share
//! the memory of the guest, so a request crosses no socket: the guest puts it into a ring in its
//! memory, and the server executes it and writes the result there.
//!
//! # Words
//! The *front-end* is the monitor, at the other end of a socket. It sends descriptors of the
//! guest's memory and of the events that announce requests (*kick*) and results (*call*). A *ring*
//! is a queue of the guest: a table of descriptors, each of which names a piece of memory, a list
//! of chains that are available, and a list of those that are used. A *chain* of descriptors is a
//! request.
//!
//! # Example
//! The guest reads sector 8. It puts the chain of a header (16 bytes: read, sector 8), a buffer of
//! 4096 bytes and a byte for the status into the list, and kicks. A thread of the ring wakes, takes
//! the chain, reads 4096 bytes at 4096 of the device into its own buffer, copies them to the
//! guest's, writes the status 0, adds the chain to the used ones, and calls.
//!
//! # Durability
//! A flush is answered after [`BlockDevice::flush`](extant_blocks::BlockDevice::flush) has
//! returned. A guest that cannot flush, or has turned the cache off, gets a flush with each write.
//!
//! # Hostile guests and front-ends
//! - Memory that the guest can change is never a reference: it is copied by volatile accesses of
//!   `vm-memory`, at once, and judged after that.
//! - A wrong request costs an error of this request, a wrong ring stops the ring, and a wrong
//!   message ends the connection.
//! - Memory and threads are bounded: [`VhostServer`] has the numbers.
#![forbid(unsafe_code)]

mod disk;
mod memory;
mod request;
mod ring;
mod server;
mod session;
mod settings;
mod wire;

pub use server::VhostServer;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
