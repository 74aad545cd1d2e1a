//! The legacy list: its head is in the superblock, and each inode's `dtime` names the next one.
//!
//! # Invariants
//! - `links` has every inode of the list that is in memory, with its neighbours as they are on the disk. At open the list
//!   is taken off from its head, so at most one inode (the head) is adopted at a time.
//!
//! # Locking
//! The list's lock (Orphan) is held over a whole change, since it touches a neighbour: its `dtime`, in its body.

use crate::error::Result;
use crate::inode::Inode;
use crate::store::Store;
use extant_format::types::InodeNr;
use extant_journal::Handle;
use extant_sync::{Level, Mutex};
use rustc_hash::FxHashMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct OrphanList {
    links: Mutex<FxHashMap<InodeNr, Link>>,
}

/// An inode of the list.
#[derive(Debug)]
struct Link {
    inode: Arc<Inode>,
    /// The inode whose `dtime` names this one; none for the head.
    previous: Option<InodeNr>,
    /// The inode that this one's `dtime` names.
    next: InodeNr,
}

impl Default for OrphanList {
    fn default() -> Self {
        OrphanList { links: Mutex::new(Level::Orphan, FxHashMap::default()) }
    }
}

impl OrphanList {
    /// Makes `inode` the head.
    pub fn add(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let mut links = self.links.lock();
        let next = st.groups.with_superblock(|sb| sb.last_orphan());
        inode.edit(st, h)?.dtime = next.0;
        st.groups.edit_superblock(h, |sb| sb.set_last_orphan(inode.ino))?;
        if let Some(old) = links.get_mut(&next) {
            old.previous = Some(inode.ino);
        }
        links.insert(inode.ino, Link { inode: inode.clone(), previous: None, next });
        Ok(())
    }

    /// Takes `inode` out: whoever names it names its successor then.
    pub fn remove(&self, st: &Store, h: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let mut links = self.links.lock();
        let Some(link) = links.get(&inode.ino) else { return Ok(()) };
        let (previous, next) = (link.previous, link.next);
        match previous.and_then(|ino| links.get(&ino)) {
            Some(link) => link.inode.clone().edit(st, h)?.dtime = next.0,
            None => st.groups.edit_superblock(h, |sb| sb.set_last_orphan(next))?,
        }
        inode.edit(st, h)?.dtime = 0;
        if let Some(link) = previous.and_then(|ino| links.get_mut(&ino)) {
            link.next = next;
        }
        if let Some(link) = links.get_mut(&next) {
            link.previous = previous;
        }
        links.remove(&inode.ino);
        Ok(())
    }

    /// Takes note of the inode that the superblock names, at open.
    pub fn adopt(&self, inode: &Arc<Inode>) {
        let next = InodeNr(inode.body().dtime);
        let link = Link { inode: inode.clone(), previous: None, next };
        self.links.lock().insert(inode.ino, link);
    }
}
