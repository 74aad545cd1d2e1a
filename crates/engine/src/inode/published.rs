//! The fields of a body that stat(2) needs, published so that they are read without the body's
//! lock.
//!
//! # Invariants
//! Each change of a body ends with a publication, before the body's lock is released. A reader of
//! the published fields therefore sees the body of one moment, which is not older than the end of
//! the last change.

use super::Body;
use extant_format::inode::InodeFlags;
use extant_format::types::Timestamp;
use extant_sync::seqcell::SeqCell;

const WORDS: usize = 8;

/// Bit of the word of blocks: the slot keeps a time of creation.
const HAS_CRTIME: u64 = 1 << 63;

/// Bit of the word of blocks: there may be extended attributes.
const HAS_ATTRIBUTES: u64 = 1 << 62;

/// Seconds of the earliest time that a slot can hold; a packed time counts from there, in 34 bits.
const FIRST_SECOND: i64 = i32::MIN as i64;
const LAST_SECOND: i64 = i32::MAX as i64 + (3 << 32);
const NSEC_BITS: u32 = 30;

/// The fields, as the body has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatSnapshot {
    /// Type and permissions.
    pub mode: u16,
    /// Links.
    pub links: u16,
    /// Flags.
    pub flags: InodeFlags,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size on disk.
    pub size: u64,
    /// Sectors.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub crtime: Option<Timestamp>,
    /// There may be extended attributes.
    pub has_attributes: bool,
}

/// The fields that permissions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// Type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// There may be extended attributes.
    pub has_attributes: bool,
}

impl From<&Body> for Ownership {
    fn from(body: &Body) -> Ownership {
        Ownership {
            mode: body.mode,
            uid: body.uid,
            gid: body.gid,
            has_attributes: body.has_attributes(),
        }
    }
}

/// The published copy.
#[derive(Debug)]
pub struct Published(SeqCell<WORDS>);

fn pack_time(time: Timestamp) -> u64 {
    let sec = time.sec.clamp(FIRST_SECOND, LAST_SECOND) - FIRST_SECOND;
    (sec as u64) << NSEC_BITS | u64::from(time.nsec)
}

fn unpack_time(word: u64) -> Timestamp {
    let nsec = (word & ((1 << NSEC_BITS) - 1)) as u32;
    Timestamp { sec: (word >> NSEC_BITS) as i64 + FIRST_SECOND, nsec }
}

impl From<&Body> for StatSnapshot {
    fn from(body: &Body) -> StatSnapshot {
        StatSnapshot {
            mode: body.mode,
            links: body.links,
            flags: body.flags,
            uid: body.uid,
            gid: body.gid,
            size: body.size,
            blocks: body.blocks,
            atime: body.atime,
            mtime: body.mtime,
            ctime: body.ctime,
            crtime: body.crtime,
            has_attributes: body.has_attributes(),
        }
    }
}

/// Mode, links and flags.
#[inline]
fn of_kind(kind: u64) -> (u16, u16, InodeFlags) {
    (kind as u16, (kind >> 16) as u16, InodeFlags::from_bits_retain((kind >> 32) as u32))
}

impl StatSnapshot {
    fn words(&self) -> [u64; WORDS] {
        let kind =
            u64::from(self.mode) | u64::from(self.links) << 16 | u64::from(self.flags.bits()) << 32;
        let owner = u64::from(self.uid) | u64::from(self.gid) << 32;
        let bit = |set, bit| if set { bit } else { 0 };
        let bits =
            bit(self.crtime.is_some(), HAS_CRTIME) | bit(self.has_attributes, HAS_ATTRIBUTES);
        let blocks = self.blocks & !(HAS_CRTIME | HAS_ATTRIBUTES) | bits;
        let times =
            [self.atime, self.mtime, self.ctime, self.crtime.unwrap_or_default()].map(pack_time);
        [kind, owner, self.size, blocks, times[0], times[1], times[2], times[3]]
    }

    fn of(words: [u64; WORDS]) -> StatSnapshot {
        let [kind, owner, size, blocks, atime, mtime, ctime, crtime] = words;
        let (mode, links, flags) = of_kind(kind);
        StatSnapshot {
            mode,
            links,
            flags,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            size,
            blocks: blocks & !(HAS_CRTIME | HAS_ATTRIBUTES),
            atime: unpack_time(atime),
            mtime: unpack_time(mtime),
            ctime: unpack_time(ctime),
            crtime: (blocks & HAS_CRTIME != 0).then(|| unpack_time(crtime)),
            has_attributes: blocks & HAS_ATTRIBUTES != 0,
        }
    }
}

impl Published {
    /// Makes the fields of a body that no other thread knows yet.
    pub fn new(body: &Body) -> Self {
        Published(SeqCell::new(StatSnapshot::from(body).words()))
    }

    /// The last publication; None if a publisher is at it for long.
    #[inline]
    pub fn read(&self) -> Option<StatSnapshot> {
        self.0.read().map(StatSnapshot::of)
    }

    /// The fields of the last publication that permissions depend on; None as for
    /// [`Published::read`].
    #[inline]
    pub fn ownership(&self) -> Option<Ownership> {
        let [kind, owner, _, blocks] = self.0.read_first()?;
        Some(Ownership {
            mode: of_kind(kind).0,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            has_attributes: blocks & HAS_ATTRIBUTES != 0,
        })
    }

    /// Mode, links and flags of the last publication.
    #[inline]
    pub fn kind(&self) -> (u16, u16, InodeFlags) {
        of_kind(self.0.first())
    }

    /// Publishes the present body, whose lock the caller must hold.
    pub fn publish(&self, body: &Body) {
        self.0.write(StatSnapshot::from(body).words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_every_field() {
        let times = [(FIRST_SECOND, 0), (-1, 999_999_999), (0, 1), (LAST_SECOND, 999_999_999)];
        let times = times.map(|(sec, nsec)| Timestamp { sec, nsec });
        for (crtime, has_attributes) in
            [(None, true), (Some(times[0]), false), (Some(times[3]), true)]
        {
            let stat = StatSnapshot {
                mode: 0o170_777,
                links: u16::MAX,
                flags: InodeFlags::from_bits_retain(u32::MAX),
                uid: u32::MAX,
                gid: u32::MAX - 1,
                size: u64::MAX,
                blocks: u64::MAX >> 2,
                atime: times[1],
                mtime: times[2],
                ctime: times[3],
                crtime,
                has_attributes,
            };
            assert_eq!(StatSnapshot::of(stat.words()), stat);
        }
    }
}
