//! Records that are inodes: all of a slot but the map, which other records tell of.

use super::super::quota::Ownership;
use super::{Operations, bad};
use crate::error::{Error, Result};
use crate::extent;
use crate::inode::{Body, Inode};
use crate::orphan::Orphans;
use crate::quota::Change;
use extant_format::inode::{self as disk, InodeFlags};
use extant_format::types::{FileType, InodeNr};
use std::sync::Arc;

/// How a directory keeps its entries is our affair: the records name entries, not blocks.
const OF_LAYOUT: InodeFlags =
    InodeFlags::EXTENTS.union(InodeFlags::INDEX).union(InodeFlags::INLINE_DATA);

/// Links of a directory without subdirectories.
const NEW_DIR_LINKS: u16 = 2;

/// Where an inode's content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Extents,
    Inline,
    /// A short link's target or a device's number.
    Short,
}

fn content(inode: &disk::Inode) -> Result<Content> {
    let short = inode.size <= disk::FAST_SYMLINK_MAX as u64;
    match (inode.flags & (InodeFlags::EXTENTS | InodeFlags::INLINE_DATA), inode.file_type()) {
        (InodeFlags::EXTENTS, _) => Ok(Content::Extents),
        (InodeFlags::INLINE_DATA, _) => Ok(Content::Inline),
        (_, FileType::Symlink) if short => Ok(Content::Short),
        (_, FileType::Regular | FileType::Directory | FileType::Symlink | FileType::Unknown) => {
            Err(Error::Unsupported("replaying fast commits of files without extents".into()))
        }
        _ => Ok(Content::Short),
    }
}

impl Operations {
    pub(super) fn replay_inode(&self, ino: InodeNr, record: &[u8]) -> Result<()> {
        let (new, tail) = disk::Inode::decode_record(record, &self.st().geo, ino)?;
        if new.file_type() == FileType::Unknown {
            return Err(bad("file type", ino));
        }
        let Some(old) = self.replayed(ino)? else { return self.replay_new(ino, new, tail) };
        if old.generation == new.generation && old.ftype == new.file_type() {
            return self.replay_changed(&old, new, tail);
        }
        // Another inode has had the number since.
        self.free_replayed(&old)?;
        self.replay_new(ino, new, tail)
    }

    /// An inode that the last full commit does not have.
    fn replay_new(&self, ino: InodeNr, mut new: disk::Inode, tail: Option<&[u8]>) -> Result<()> {
        let st = self.st();
        let kept = content(&new)?;
        if new.file_acl != 0 {
            return Err(Error::Unsupported("a fast commit of a new file with attributes".into()));
        }
        (new.blocks, new.dtime) = (0, 0);
        if new.is_dir() {
            new.size = 0;
            new.links = new.links.min(NEW_DIR_LINKS);
            new.flags.remove(OF_LAYOUT);
        }
        let (ftype, is_dir) = (new.file_type(), new.is_dir());
        let owners = self.new_owners((new.uid, new.gid, new.projid))?;
        let mut tx = st.begin(st.alloc.take_inode_credits(ino) + 2 + st.owner_credits())?;
        let one = Change { inodes: 1, ..Change::default() };
        let inode = tx.step(|step| {
            st.alloc.take_inode(step.handle(), ino, ftype)?;
            st.quota.charge_within(step.handle(), owners, one, false)?;
            let inode = Inode::fresh(st, ino, new);
            if is_dir || kept == Content::Extents {
                extent::init(st, step, &inode)?;
            }
            if let (Some(tail), false) = (tail, is_dir) {
                step.edit(&inode)?.tail = tail.into();
            }
            step.touch(&inode)?;
            Ok(inode)
        })?;
        self.vfs.inodes.insert(inode);
        Ok(())
    }

    fn replay_changed(
        &self,
        inode: &Arc<Inode>,
        new: disk::Inode,
        tail: Option<&[u8]>,
    ) -> Result<()> {
        let st = self.st();
        let to = Ownership { uid: Some(new.uid), gid: Some(new.gid), project: Some(new.projid) };
        if self.moves_usage(inode, to) {
            self.change_owner(inode, to)?;
        }
        let mut tx = st.begin(Orphans::CREDITS + 1)?;
        let merged = merged(&inode.body(), new, tail)?;
        tx.touch(inode)?;
        tx.step(|step| {
            if merged.links > 0 && inode.links() == 0 {
                st.orphans.remove(step, inode)?;
            }
            *step.edit(inode)? = merged;
            Ok(())
        })
    }

    /// Frees an inode without a name, with all that it has.
    pub(super) fn free_replayed(&self, inode: &Arc<Inode>) -> Result<()> {
        {
            let st = self.st();
            st.begin(1)?.step(|step| {
                step.edit(inode)?.links = 0;
                Ok(())
            })?;
        }
        if inode.begin_free() { self.free(inode) } else { Err(bad("freed inode", inode.ino)) }
    }
}

/// Merges a record of an inode into its known body.
fn merged(old: &Body, mut new: disk::Inode, tail: Option<&[u8]>) -> Result<Body> {
    let mut kept_tail = old.tail.clone();
    if new.is_dir() {
        new.size = old.size;
        // Subdirectories are counted with their names: no record needs to say how many there are.
        new.links = if new.links > 0 { old.links } else { 0 };
        new.flags = (new.flags - OF_LAYOUT) | (old.flags & OF_LAYOUT);
        new.i_block = old.i_block;
    } else {
        match (content(&old.disk)?, content(&new)?) {
            (Content::Inline, Content::Inline) => kept_tail = tail.map_or(kept_tail, Into::into),
            (was, is) if was == is => new.i_block = old.i_block,
            _ => {
                return Err(Error::Unsupported(
                    "a fast commit of a file that left its inode".into(),
                ));
            }
        }
    }
    // Attributes are changed by full commits alone; blocks and orphan records are counted here.
    (new.blocks, new.file_acl, new.dtime) = (old.blocks, old.file_acl, old.dtime);
    new.extra_isize = old.extra_isize;
    Ok(Body { disk: new, tail: kept_tail })
}
