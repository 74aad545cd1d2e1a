//! Symbolic links: in the inode if short, else in a block.
//!
//! None is made with inline data, as the kernel makes none: e2fsck (1.47) overlooks the attribute
//! block of such a symlink.

use super::{inline, map};
use crate::dir::nokey;
use crate::error::{Errno, Error, Result};
use crate::extent::{self, ExtentState};
use crate::inode::{Inode, Tx};
use crate::store::Store;
use extant_format::error::Corrupt;
use extant_format::inode::{FAST_SYMLINK_MAX, InodeFlags};
use extant_journal::Seal;
use std::sync::Arc;

/// Reads a symlink's target; of an encrypted one, its form without the key.
pub fn read_link(st: &Store, inode: &Arc<Inode>) -> Result<Vec<u8>> {
    if map::is_inline(inode) {
        return inline::content(st, inode);
    }
    if !map::has_map(st, inode) {
        return target(inode, &inode.body().i_block);
    }
    let run = extent::lookup(st, inode, 0, 1)?;
    if run.state != ExtentState::Written {
        return Err(broken(inode));
    }
    let buf = st.cache.read::<Error>(run.pblk.0, |_| Ok(()))?;
    target(inode, &buf.read())
}

fn broken(inode: &Inode) -> Error {
    Corrupt::new("symlink").field("size").at_inode(inode.ino).found(inode.size()).into()
}

/// The target that a symlink has in these bytes.
fn target(inode: &Inode, bytes: &[u8]) -> Result<Vec<u8>> {
    let stored = usize::try_from(inode.size())
        .ok()
        .and_then(|len| bytes.get(..len))
        .ok_or_else(|| broken(inode))?;
    if inode.stat().flags.contains(InodeFlags::ENCRYPT) {
        nokey::show_target(stored).ok_or_else(|| broken(inode))
    } else {
        Ok(stored.to_vec())
    }
}

/// Bytes of a symlink's target, as it is read.
pub fn target_len(inode: &Inode) -> u64 {
    if inode.stat().flags.contains(InodeFlags::ENCRYPT) {
        nokey::shown_target_len(inode.size())
    } else {
        inode.size()
    }
}

/// Stores the target of a new symlink: in the inode if it is shorter than 60 bytes, else in one
/// block. ENAMETOOLONG beyond a block.
pub fn set_link(st: &Store, tx: &mut Tx<'_>, inode: &Arc<Inode>, target: &[u8]) -> Result<()> {
    if target.len() >= st.block_size() {
        return Err(Errno::NameTooLong.into());
    }
    let put = |room: Option<&mut [u8]>| room.into_iter().for_each(|r| r.copy_from_slice(target));
    if target.len() <= FAST_SYMLINK_MAX {
        return tx.step(|step| {
            let mut body = step.edit(inode)?;
            body.flags.remove(InodeFlags::EXTENTS);
            body.i_block.fill(0);
            put(body.i_block.get_mut(..target.len()));
            body.size = target.len() as u64;
            Ok(())
        });
    }
    tx.step(|step| extent::init(st, step, inode))?;
    tx.step(|step| {
        let run = extent::allocate(st, step, inode, 0..1, ExtentState::Written)?;
        let buf = st.cache.fresh(run.pblk.0);
        put(step.write(&buf, Seal::NONE)?.get_mut(..target.len()));
        step.edit(inode)?.size = target.len() as u64;
        Ok(())
    })
}
