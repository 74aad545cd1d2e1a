//! Sides of a comparison: each makes a fresh file system and serves it in its way.
//!
//! All sides that have an ext4 image start from one made by the same `mke2fs` call, on tmpfs, so
//! that no device is waited for.

mod directory;
mod engine;
mod fuse2fs;
mod image;
mod kernel;
mod served;

use crate::target::Target;
use extant_fuse::Transport;
use std::io;

pub use engine::make_device;
pub use image::{Medium, Setup};

/// The sides, in the order in which tables show them.
pub const SIDES: [Side; 9] = [
    Side::Engine,
    Side::EngineMemory,
    Side::Ext4,
    Side::ExtantFuse,
    Side::ExtantRings,
    Side::Fuse2fs,
    Side::Null,
    Side::NullRings,
    Side::Tmpfs,
];

/// Implementation that serves a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The engine in process, over a file on tmpfs.
    Engine,
    /// The engine in process, over memory.
    EngineMemory,
    /// The kernel's ext4, on a loop device over a file on tmpfs.
    Ext4,
    /// The engine behind our FUSE server, over a file on tmpfs.
    ExtantFuse,
    /// The same through io_uring.
    ExtantRings,
    /// e2fsprogs' fuse2fs, over a file on tmpfs.
    Fuse2fs,
    /// A FUSE server on the same transport that keeps names in memory and no data.
    Null,
    /// The same through io_uring.
    NullRings,
    /// The kernel's tmpfs.
    Tmpfs,
}

impl Side {
    /// Returns its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Side::Engine => "engine",
            Side::EngineMemory => "engine-mem",
            Side::Ext4 => "ext4",
            Side::ExtantFuse => "extant-fuse",
            Side::ExtantRings => "extant-rings",
            Side::Fuse2fs => "fuse2fs",
            Side::Null => "null",
            Side::NullRings => "null-rings",
            Side::Tmpfs => "tmpfs",
        }
    }

    /// Returns the side of a name.
    pub fn named(name: &str) -> Option<Side> {
        SIDES.into_iter().find(|side| side.name() == name)
    }

    /// Makes a fresh file system and serves it.
    pub fn start(self) -> io::Result<Box<dyn Running>> {
        self.start_with(&Setup::default())
    }

    /// As [`Side::start`], with a file system of another shape where that is the engine's or the
    /// kernel's.
    pub fn start_with(self, setup: &Setup) -> io::Result<Box<dyn Running>> {
        Ok(match self {
            Side::Engine => Box::new(engine::Running::start(Medium::File, setup)?),
            Side::EngineMemory => Box::new(engine::Running::start(Medium::Memory, setup)?),
            Side::Ext4 => Box::new(kernel::Running::start(setup)?),
            Side::ExtantFuse => served(served::Server::Extant, Transport::Device)?,
            Side::ExtantRings => served(served::Server::Extant, Transport::IoUring)?,
            Side::Null => served(served::Server::Null, Transport::Device)?,
            Side::NullRings => served(served::Server::Null, Transport::IoUring)?,
            Side::Fuse2fs => Box::new(fuse2fs::Running::start()?),
            Side::Tmpfs => Box::new(directory::Running::start()?),
        })
    }
}

fn served(which: served::Server, transport: Transport) -> io::Result<Box<dyn Running>> {
    Ok(Box::new(served::Running::start(which, transport)?))
}

/// A served file system. Dropped, it is gone with everything in it.
pub trait Running {
    /// Returns the target of workloads.
    fn target(&self) -> &dyn Target;

    /// Unmounts and mounts again: nothing is cached afterwards.
    fn cold(&mut self) -> io::Result<()>;

    /// Unmounts; errors of writing the last changes come out.
    fn stop(self: Box<Self>) -> io::Result<()>;
}
