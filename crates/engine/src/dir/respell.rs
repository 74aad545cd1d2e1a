//! Change of the spelling of a name in a directory with case folding.

use super::blocks::Dir;
use super::{EntryPos, Found, NewName, fold, inline, locate, remove_from};
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step, Tx};
use crate::xattr::AttrEnv;
use extant_format::dir::entries;
use extant_format::error::Corrupt;
use std::sync::Arc;

/// Returns whether two names are spellings of one name in this directory. In a directory with
/// folding equal names are spellings of each other.
pub fn are_spellings(env: &AttrEnv, dir: &Inode, one: &[u8], other: &[u8]) -> bool {
    super::folds(env, dir.stat().flags) && fold::or_raw(one) == fold::or_raw(other)
}

/// Changes the spelling of the entry `name` to `new`, which must be a spelling of it, and calls
/// `rest` in the same step. The new entry is inserted before the old one is removed, so that a lack
/// of space changes nothing. Costs the credits of an insertion and a removal.
///
/// # Errors
/// `Corrupt`, `Io`, ENOENT, ENOSPC; those of `rest`.
pub fn respell<'a>(
    env: &AttrEnv,
    tx: &mut Tx<'a>,
    dir: &Arc<Inode>,
    (name, new): (&[u8], &[u8]),
    rest: impl FnOnce(&mut Step<'a>) -> Result<()>,
) -> Result<()> {
    super::check_key(dir)?;
    let (old, Found { ino, ftype }) = {
        let d = Dir::open(env, dir)?;
        let pos = locate(&d, name)?.ok_or(Errno::NoEnt)?;
        (stored_name(&d, &pos)?, pos.hit.found)
    };
    if old == new {
        return tx.step(rest);
    }
    super::insert(env, tx, dir, NewName { name: new, ino, ftype, slot: None }, |step| {
        // The insertion may move entries: the old one is searched for again, byte by byte.
        let d = Dir { exact: true, ..Dir::open_for_change(env, dir)? };
        let pos = locate(&d, &old)?.ok_or(Errno::NoEnt)?;
        remove_from(&d, step, dir, &pos)?;
        rest(step)
    })
}

/// Returns the stored name of an entry.
fn stored_name(d: &Dir<'_>, pos: &EntryPos) -> Result<Vec<u8>> {
    let at = |area: &[u8]| -> Result<Vec<u8>, Corrupt> {
        for entry in entries(area, &d.format) {
            let entry = entry?;
            if entry.offset == pos.hit.offset {
                return Ok(entry.name.to_vec());
            }
        }
        Err(d.corrupt("directory entry", pos.lblk))
    };
    Ok(match &pos.buf {
        Some(buf) => at(d.format.area(&buf.read()))?,
        None => {
            let areas = inline::Areas::read(d)?;
            let area = areas.each().find(|(nr, _, _)| *nr == pos.lblk).map(|(_, _, area)| at(area));
            area.ok_or_else(|| d.corrupt("inline directory", pos.lblk))??
        }
    })
}
