//! Serves an Extant file system through FUSE. The crate has no file-system logic: requests become
//! operations of the engine, results become replies.
//!
//! A request takes this way: a thread of `transport` receives its bytes, `protocol` decodes
//! them and calls the `Handler`, `server` runs the operation of the engine
//! and corrects the kernel's cache (`kernel_cache`), and `protocol` encodes the reply. `mount`
//! opens the connection, and `connection` has its first request, its notices and its end.
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod bare;
mod connection;
pub mod control;
mod guard;
mod handler;
mod inherited;
mod interrupts;
mod kernel_cache;
mod messages;
mod mount;
mod opens;
mod options;
mod protocol;
mod server;
mod stats;
mod transport;
mod types;

pub use inherited::{InheritedDescriptors, keep_descriptors_from_children};
pub use messages::{receive_message, send_message};
pub use mount::{
    Adopted, Claim, HandedOver, Handover, Keep, Keeper, MountIdentity, Mounted, Offer,
    PreparedRings, ServerEnd, SharedMount, TakenOffer, Unmounter, adopt, await_message, mount,
    mount_by, mount_claimed,
};
pub use opens::missing as missing_for_fast_opens;
pub use options::{MountOptions, Transport, View};

/// The examples of the README are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
