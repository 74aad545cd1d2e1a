//! Features of the device and of the protocol, and the configuration that a guest reads.

use crate::wire::{put_le16, put_le32, put_le64};
use extant_sync::atomic::{AtomicBool, Ordering};

/// Bytes of a sector, the unit of all places.
pub const SECTOR: u64 = 512;

/// Features of the device.
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Of vhost-user: there are features of the protocol, and rings begin disabled.
    pub const PROTOCOL: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Features of the protocol.
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const CONFIG: u64 = 1 << 9;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const ALL: u64 = MQ | REPLY_ACK | CONFIG | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

/// Bytes of the configuration, with those of features that are not offered.
pub const CONFIG_LEN: usize = 256;

/// The place of the byte that turns the cache on and off.
pub const WRITEBACK: usize = 32;

/// Pieces of memory of a request, as far as the guest is asked. With header and status they fit
/// the usual ring of 128 descriptors.
const MAX_SEGMENTS: u32 = 126;

/// Bytes of such a piece.
const MAX_SEGMENT: u32 = 1 << 20;

/// Ranges of a request to discard or to zero, and sectors of a range.
pub const MAX_RANGES: u64 = 32;
pub const MAX_RANGE: u32 = 1 << 22;

/// Blocks of 4096 bytes are read and written best, as 2 to this power of 512 bytes.
const BLOCK_EXPONENT: u8 = 3;

/// The disk as the guest sees it.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub sectors: u64,
    pub read_only: bool,
    pub queues: u16,
}

impl Offer {
    /// Returns the features of the device.
    pub fn features(&self) -> u64 {
        use feature::*;
        let common = SIZE_MAX | SEG_MAX | BLK_SIZE | TOPOLOGY | FLUSH | MQ;
        let rings = INDIRECT_DESC | EVENT_IDX | PROTOCOL | VERSION_1;
        let writes = if self.read_only { RO } else { CONFIG_WCE | DISCARD | WRITE_ZEROES };
        common | rings | writes
    }

    /// Returns the configuration, with the state of the cache.
    pub fn config(&self, writeback: bool) -> [u8; CONFIG_LEN] {
        let mut space = [0; CONFIG_LEN];
        put_le64(&mut space, 0, self.sectors);
        put_le32(&mut space, 8, MAX_SEGMENT);
        put_le32(&mut space, 12, MAX_SEGMENTS);
        put_le32(&mut space, 20, SECTOR as u32);
        space[24] = BLOCK_EXPONENT;
        put_le16(&mut space, 26, 1 << BLOCK_EXPONENT);
        space[WRITEBACK] = u8::from(writeback);
        put_le16(&mut space, 34, self.queues);
        // Ranges to discard, and their alignment in sectors; ranges to zero.
        put_le32(&mut space, 36, MAX_RANGE);
        put_le32(&mut space, 40, MAX_RANGES as u32);
        put_le32(&mut space, 44, 1 << BLOCK_EXPONENT);
        put_le32(&mut space, 48, MAX_RANGE);
        put_le32(&mut space, 52, MAX_RANGES as u32);
        // Zeroed ranges may lose their space.
        space[56] = 1;
        space
    }
}

/// The choices of a guest, which its requests follow at once.
#[derive(Debug)]
pub struct Choices {
    /// The guest knows flushes.
    flushes: AtomicBool,
    /// The guest wants a cache.
    writeback: AtomicBool,
}

impl Choices {
    /// Returns those of a guest that has chosen nothing.
    pub fn new() -> Choices {
        Choices { flushes: AtomicBool::new(false), writeback: AtomicBool::new(true) }
    }

    /// Takes the features that the guest has chosen.
    pub fn take_features(&self, features: u64) {
        self.flushes.store(features & feature::FLUSH != 0, Ordering::Release);
    }

    /// Turns the cache on or off.
    pub fn set_writeback(&self, on: bool) {
        self.writeback.store(on, Ordering::Release);
    }

    /// Returns whether the cache is on.
    pub fn writeback(&self) -> bool {
        self.writeback.load(Ordering::Acquire)
    }

    /// Returns whether a write must be durable when it is answered.
    pub fn writes_are_durable(&self) -> bool {
        !(self.flushes.load(Ordering::Acquire) && self.writeback())
    }
}
