//! The superblock, the group descriptors and their counts. No other module writes them.
//!
//! # Invariants
//! - Memory is authoritative; descriptor blocks and the superblock are made from it at freeze.
//! - Counts never go below zero: an underflow is corruption and names its group.
//! - A group that is dirty in a transaction is on its dirty list, and its descriptor block has
//!   joined that transaction.
//! - A bitmap's checksum in a descriptor is that of the newest frozen bitmap. A bitmap that is
//!   newer than its checksum is in a transaction and so stays cached; hence every bitmap read from
//!   the device agrees with its descriptor.
//!
//! # Locking
//! A descriptor's lock (GroupDesc) and the superblock's are innermost: nothing is taken while they
//! are held. Bitmaps are guarded by their user's group locks; the flags that say whether a bitmap
//! is initialised change only under these.

mod bitmaps;
mod counts;
mod freeze;
mod grow;
mod load;
mod sb;
mod zone;

pub use bitmaps::Bitmap;
pub use counts::{Flex, less, more};
pub use zone::Zone;

use crate::error::{Error, Result};
use crate::volume::Volume;
use counts::Totals;
use extant_blocks::Buffer;
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::group_desc::GroupDesc;
use extant_format::superblock::Superblock;
use extant_format::types::GroupNr;
use extant_journal::Handle;
use extant_sync::atomic::{AtomicU64, Ordering};
use extant_sync::{CachePadded, GrowingTable, Level, Mutex, Sharded};
use sb::SuperState;
use std::ops::Range;
use std::sync::Arc;

/// All groups of a file system.
#[derive(Debug)]
pub struct Groups {
    vol: Arc<Volume>,
    slots: GrowingTable<CachePadded<Group>>,
    /// First block of each group's inode table, which does not move. Read by all threads, so kept
    /// apart from written memory.
    tables: GrowingTable<u64>,
    /// All bitmaps and inode tables of each flexible group lie within these blocks.
    metadata: GrowingTable<Hull>,
    zone: Zone,
    totals: Totals,
    /// Groups that are dirty in the running transaction.
    dirty: Sharded<Mutex<Vec<GroupNr>>>,
    sb: SuperState,
    /// KiB that were written to the file system before it was opened.
    written_before: u64,
}

/// A group in memory.
#[derive(Debug)]
struct Group {
    slot: Mutex<Slot>,
    /// Transaction in which the group was last dirty.
    tid: AtomicU64,
}

impl Group {
    fn new(desc: GroupDesc) -> CachePadded<Group> {
        let slot = Mutex::new(Level::GroupDesc, Slot { desc, changed: Changed::default() });
        CachePadded::new(Group { slot, tid: AtomicU64::new(0) })
    }
}

/// Blocks from `start` to `end`. The end of the last flexible group moves when it gets groups.
#[derive(Debug)]
struct Hull {
    start: u64,
    end: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    desc: GroupDesc,
    changed: Changed,
}

/// Which bitmaps are newer than their checksums.
#[derive(Clone, Copy, Debug, Default)]
struct Changed {
    blocks: bool,
    inodes: bool,
}

impl Changed {
    fn note(&mut self, kind: Kind) {
        match kind {
            Kind::Blocks => self.blocks = true,
            Kind::Inodes => self.inodes = true,
        }
    }
}

/// The two bitmaps of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Clusters in use.
    Blocks,
    /// Inodes in use.
    Inodes,
}

impl Groups {
    /// Reads and verifies every descriptor. `sb` is the superblock as it stands after recovery; its
    /// counts are computed again from the descriptors.
    ///
    /// # Errors
    /// `Corrupt` naming the first bad group; `Io`.
    pub fn open(vol: Arc<Volume>, sb: Superblock) -> Result<Groups> {
        let descs = load::descriptors(&vol)?;
        let totals = Totals::new(&vol.geo, &descs);
        let metadata = hulls(&vol.geo, &descs);
        let zone = Zone::new(&vol.geo, &descs);
        let tables = descs.iter().map(|desc| desc.inode_table).collect();
        let slots = descs.into_iter().map(Group::new).collect();
        let dirty = Sharded::new(|_| Mutex::new(Level::Leaf, Vec::new()));
        let written_before = sb.kbytes_written();
        Ok(Groups {
            vol,
            slots,
            tables,
            metadata,
            zone,
            totals,
            dirty,
            sb: SuperState::new(sb),
            written_before,
        })
    }

    /// Adds the blocks of a log inside of the file system: ranges in order and apart from each
    /// other.
    pub fn with_log(mut self, blocks: Vec<(u64, u64)>) -> Groups {
        self.zone.log = blocks.into_iter().map(|(start, end)| start..end).collect();
        self
    }

    /// Blocks of the file system's own.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Number of groups.
    pub fn count(&self) -> u32 {
        self.vol.geo.groups_count
    }

    fn group(&self, g: GroupNr) -> Result<&Group> {
        let none = || Corrupt::new("group number").found(g.0).expected(self.count());
        self.slots.get(g.index()).map(|group| &**group).ok_or_else(|| none().into())
    }

    fn slot(&self, g: GroupNr) -> Result<&Mutex<Slot>> {
        self.group(g).map(|group| &group.slot)
    }

    /// First block of a group's inode table; 0 for a group that does not exist.
    #[inline]
    pub fn inode_table(&self, g: GroupNr) -> u64 {
        self.tables.get(g.index()).copied().unwrap_or(0)
    }

    /// Whether bitmaps or inode tables of the group's flexible group may lie in these blocks. Looks
    /// at two words that change by growth only.
    #[inline]
    pub fn near_metadata(&self, g: GroupNr, start: u64, end: u64) -> bool {
        let hull = self.metadata.get(self.vol.geo.flex_group_of(g) as usize);
        // Relaxed: a thread that knows blocks of a new group has read a geometry with the group.
        hull.is_none_or(|hull| start < hull.end.load(Ordering::Relaxed) && hull.start < end)
    }

    /// Runs `f` on the group's descriptor under its lock. A group that does not exist has an
    /// all-zero descriptor.
    pub fn with<R>(&self, g: GroupNr, f: impl FnOnce(&GroupDesc) -> R) -> R {
        match self.slots.get(g.index()) {
            Some(group) => f(&group.slot.lock().desc),
            None => f(&GroupDesc::default()),
        }
    }

    /// A copy of the group's descriptor.
    ///
    /// # Errors
    /// `Corrupt` if there is no such group.
    pub fn desc(&self, g: GroupNr) -> Result<GroupDesc> {
        Ok(self.slot(g)?.lock().desc)
    }

    /// Changes a descriptor within `h`. Costs up to two credits, for its block and for the
    /// superblock where an error has to be recorded there. (Its counts are written when the file
    /// system is closed; an opening sums the descriptors.) If `f` fails, nothing has changed.
    ///
    /// # Errors
    /// Those of `f`, of the journal, and `Io` if the descriptor's block cannot be read.
    pub fn edit<R>(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        f: impl FnOnce(&mut GroupDesc) -> Result<R>,
    ) -> Result<R> {
        self.edit_slot(h, g, |slot| f(&mut slot.desc))
    }

    /// As [`Self::edit`], for callers that also change a bitmap: see [`Self::bitmap_changed`].
    ///
    /// # Errors
    /// As [`Self::edit`].
    pub fn edit_with_bitmap(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        kind: Kind,
        f: impl FnOnce(&mut GroupDesc) -> Result<()>,
    ) -> Result<()> {
        self.edit_slot(h, g, |slot| {
            f(&mut slot.desc)?;
            slot.changed.note(kind);
            Ok(())
        })
    }

    fn edit_slot<R>(
        &self,
        h: &mut Handle<'_>,
        g: GroupNr,
        f: impl FnOnce(&mut Slot) -> Result<R>,
    ) -> Result<R> {
        self.join(h, g)?;
        let mut slot = self.slot(g)?.lock();
        let before = slot.desc;
        let result = f(&mut slot);
        match result {
            Ok(_) => self.totals.moved(&self.vol.geo, g, &before, &slot.desc),
            Err(_) => slot.desc = before,
        }
        result
    }

    /// Counts an inode that was taken or freed in memory, in a group that has joined the
    /// transaction: its descriptor learns of it at freeze.
    #[inline]
    pub fn count_inode(&self, taken: bool) {
        self.totals.count_inode(taken);
    }

    /// Books in a descriptor of the transaction that is being frozen how many more inodes are free,
    /// and that so many slots at the end of the table may be unused. Gives how many are free.
    pub fn book_inodes(&self, g: GroupNr, freed: i64, behind: u32) -> u32 {
        let Ok(slot) = self.slot(g) else { return 0 };
        let desc = &mut slot.lock().desc;
        let free = i64::from(desc.free_inodes)
            .saturating_add(freed)
            .clamp(0, self.vol.geo.inodes_per_group.into());
        self.totals.booked_inodes(&self.vol.geo, g, free - i64::from(desc.free_inodes));
        desc.free_inodes = free as u32;
        desc.itable_unused = desc.itable_unused.min(behind);
        desc.free_inodes
    }

    /// Books that so many clusters of a group are free which were used, along with its bitmap. The
    /// group has joined the transaction that runs or is being frozen.
    ///
    /// # Errors
    /// `Corrupt` naming the group, if it has not so many.
    pub fn book_clusters(&self, g: GroupNr, freed: u32) -> Result<()> {
        let most = self.vol.geo.clusters_in_group(g);
        let mut slot = self.slot(g)?.lock();
        let before = slot.desc;
        more(&mut slot.desc.free_clusters, freed, most, g)?;
        slot.changed.note(Kind::Blocks);
        self.totals.moved(&self.vol.geo, g, &before, &slot.desc);
        Ok(())
    }

    /// Tells that a bitmap was changed in `h`, so that its checksum in the descriptor is renewed at
    /// freeze.
    ///
    /// # Errors
    /// As [`Self::edit`].
    pub fn bitmap_changed(&self, h: &mut Handle<'_>, g: GroupNr, kind: Kind) -> Result<()> {
        self.join(h, g)?;
        self.slot(g)?.lock().changed.note(kind);
        Ok(())
    }

    /// Makes the group dirty in the handle's transaction.
    ///
    /// # Errors
    /// As [`Self::edit`].
    pub fn join(&self, h: &mut Handle<'_>, g: GroupNr) -> Result<()> {
        let tid = h.tid().0;
        let group = self.group(g)?;
        if group.tid.load(Ordering::Acquire) == tid {
            h.note_change();
            return Ok(());
        }
        h.join(&self.desc_block(g)?)?;
        if self.sb.noted.load(Ordering::Acquire) {
            self.join_superblock(h)?;
        }
        // Of two that race to here both hold a handle of `tid`, so freeze waits for the push.
        if group.tid.swap(tid, Ordering::AcqRel) != tid {
            self.dirty.local().lock().push(g);
        }
        Ok(())
    }

    /// The block that holds the group's descriptor. Its content was verified when the file system
    /// was opened.
    pub fn desc_block(&self, g: GroupNr) -> Result<Arc<Buffer>> {
        let (index, _) = self.vol.geo.desc_location(g);
        self.vol.cache.read::<Error>(self.vol.geo.gdt_block(index).0, |_| Ok(()))
    }

    /// Free clusters of the whole file system (exact when nothing changes); clusters freed by a
    /// transaction that is not durable yet are among them.
    pub fn free_clusters(&self) -> u64 {
        self.totals.free_clusters()
    }

    /// Free inodes of the whole file system.
    pub fn free_inodes(&self) -> u64 {
        self.totals.free_inodes()
    }

    /// Directories of the whole file system.
    pub fn directories(&self) -> u64 {
        self.totals.directories()
    }

    /// Counts of a flexible group.
    pub fn flex(&self, flex: u32) -> Flex {
        self.totals.flex(flex)
    }

    /// Number of flexible groups.
    pub fn flex_count(&self) -> u32 {
        self.totals.flex_count()
    }
}

/// From the first to the last block of bitmaps and inode tables, for each flexible group.
fn hulls(geo: &Geometry, descs: &[GroupDesc]) -> GrowingTable<Hull> {
    let size = 1usize.checked_shl(geo.flex_bits).unwrap_or(usize::MAX);
    let of_flex = |descs: &[GroupDesc]| {
        let Range { start, end } = hull(geo, descs);
        Hull { start, end: AtomicU64::new(end) }
    };
    descs.chunks(size).map(of_flex).collect()
}

/// From the first to the last block of the groups' bitmaps and inode tables.
fn hull(geo: &Geometry, descs: &[GroupDesc]) -> Range<u64> {
    let table = u64::from(geo.inode_table_blocks());
    let of = |d: &GroupDesc| [(d.block_bitmap, 1), (d.inode_bitmap, 1), (d.inode_table, table)];
    let (start, end) =
        descs.iter().flat_map(of).fold((u64::MAX, 0), |(first, end), (start, len)| {
            (start.min(first), end.max(start.saturating_add(len)))
        });
    start..end
}

#[cfg(test)]
mod tests;
