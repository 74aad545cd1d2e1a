//! Network block devices (NBD): a client as a block device, and a server of block devices.
//!
//! [`NbdDevice`] is a [`BlockDevice`](extant_blocks::BlockDevice) at an [`Address`], such as
//! `nbd://host/export` or `nbd+unix:///export?socket=PATH`. [`NbdServer`] offers any device to
//! clients. Both speak the fixed newstyle handshake with `NBD_OPT_GO`, structured replies and the
//! context `base:allocation`. With the feature `tls`, connections are encrypted where the address
//! says so (`nbds://host/export`).
//!
//! # Writes
//! A write returns when it is sent. The device keeps a copy until a flush covers it, so that many
//! writes are under way at once, and so that a new connection can repeat them:
//! [`NbdDevice`] has the rules.
//!
//! # Reads
//! A small read near an earlier one asks for all around it, of which up to 32 MiB are kept: many
//! small files cost few requests. Writes forget the parts that they touch.
//!
//! # Hostile servers
//! A reply is checked against its request: cookie, length, place, coverage. Any contradiction ends
//! the device with an error. Memory is bounded by the requests of this side.
#![forbid(unsafe_code)]

mod address;
mod ahead;
mod assembly;
mod channel;
mod client;
mod connect;
mod connection;
mod device;
mod handshake;
mod lock;
mod log;
mod near;
mod registry;
mod samples;
mod server;
mod session;
mod trouble;
mod wire;
#[cfg(not(feature = "tls"))]
mod without_tls;

pub use address::Address;
#[cfg(feature = "tls")]
pub use channel::TlsServer;
pub use connect::{Connect, Socket};
pub use device::NbdDevice;
pub use lock::WriteLock;
pub use registry::connect_by;
pub use server::{Listener, NbdServer};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
