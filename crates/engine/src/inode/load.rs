//! Loads inodes from their table slots, and makes new ones.

use super::InodeTable;
use super::lazy::Lazy;
use super::published::Published;
use super::{Body, Counts, Hints, Inode, OrphanCell, Pages, Tail};
use crate::error::{Errno, Error, Result};
use extant_blocks::Buffer;
use extant_format::checksum;
use extant_format::inode as disk;
use extant_format::types::InodeNr;
use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use extant_sync::life::HoldState;
use extant_sync::lockref::Lockref;
use extant_sync::{ArcRwLock, Level, Mutex};
use std::sync::Arc;

/// The block of the inode table that holds `ino`, and the byte range of its slot there.
pub(super) fn slot(
    table: &InodeTable,
    ino: InodeNr,
) -> Result<(Arc<Buffer>, std::ops::Range<usize>)> {
    let (group, index) = table.geo.inode_location(ino)?;
    let first = table.groups.inode_table(group);
    let size = table.block_size();
    let offset = u64::from(index) * u64::from(table.geo.inode_size);
    let block = first + offset / size as u64;
    let start = (offset % size as u64) as usize;
    let buf = table.cache.read::<Error>(block, |_| Ok(()))?;
    Ok((buf, start..start + usize::from(table.geo.inode_size)))
}

impl Inode {
    /// Reads an inode from its slot; verifies its checksum. Errors: `Corrupt`, `Io`.
    pub fn load(table: &InodeTable, ino: InodeNr) -> Result<Arc<Inode>> {
        let (buf, range) = slot(table, ino)?;
        let bytes = buf.read();
        let raw = &bytes[range];
        let body = disk::Inode::decode(raw, &table.geo, ino)?;
        let tail = disk::tail(raw, &table.geo, &body).into();
        let inode = Self::assemble(table, ino, Body { disk: body, tail });
        // It may have been in memory before, and written to.
        inode.pages.note_written(table.journal.newest_data_write());
        Ok(Arc::new(inode))
    }

    /// Returns whether the slot of a number is all zeroes: it never held an inode, or one that has
    /// the number now was not written yet.
    pub fn has_empty_slot(table: &InodeTable, ino: InodeNr) -> Result<bool> {
        let (buf, range) = slot(table, ino)?;
        Ok(buf.read()[range].iter().all(|byte| *byte == 0))
    }

    /// A new inode in memory; the caller has booked `ino` and marks it dirty with the first edit.
    pub fn fresh(table: &InodeTable, ino: InodeNr, body: disk::Inode) -> Arc<Inode> {
        let tail = Tail::zeros(disk::tail_len(&table.geo, &body));
        Arc::new(Self::assemble(table, ino, Body { disk: body, tail }))
    }

    /// ESTALE unless the inode has a link and is not being freed.
    pub fn check_live(&self) -> Result<()> {
        if self.links() > 0 && !self.freeing() { Ok(()) } else { Err(Errno::Stale.into()) }
    }

    fn assemble(table: &InodeTable, ino: InodeNr, body: Body) -> Inode {
        let ftype = body.disk.file_type();
        let generation = body.disk.generation;
        let size = body.disk.size;
        Inode {
            ino,
            generation,
            seed: checksum::inode_seed(table.geo.csum_seed, ino, generation),
            ftype,
            rw: ArcRwLock::new(Self::level(ftype), ()),
            map: Lazy::new(),
            #[cfg(not(feature = "designs"))]
            pages: Pages::new(size),
            #[cfg(feature = "designs")]
            pages: Pages::listed(size, &table.all),
            pointer_places: Lazy::new(),
            verity: Lazy::new(),
            dir: Lazy::new(),
            orphan: OrphanCell::default(),
            published: Published::new(&body),
            body: Mutex::new(Level::InodeBody, body),
            promised: AtomicU64::new(0),
            dirty_tid: AtomicU64::new(0),
            made_at: AtomicU32::new(0),
            mounting: table.mounted.id(),
            hints: Hints::default(),
            sync_tid: AtomicU64::new(0),
            datasync_tid: AtomicU64::new(0),
            root_verified: AtomicBool::new(false),
            unlisted: AtomicBool::new(false),
            linkable: AtomicBool::new(false),
            counts: Counts { refs: Lockref::new(0), life: HoldState::default() },
        }
    }
}
