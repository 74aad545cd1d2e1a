//! Another spelling for a name of a directory that folds case.

use super::blocks::Dir;
use super::{EntryPos, Found, fold, inline, locate, remove_from};
use crate::error::{Errno, Result};
use crate::inode::{Inode, Step};
use crate::xattr::AttrEnv;
use extant_format::dir::entries;
use extant_format::error::Corrupt;
use std::sync::Arc;

/// Whether two names are spellings of one name in this directory. Equal ones are, where names fold.
pub fn are_spellings(env: &AttrEnv, dir: &Inode, one: &[u8], other: &[u8]) -> bool {
    super::folds(env, dir.vitals().flags) && fold::or_raw(one) == fold::or_raw(other)
}

/// Spells the name that `name` leads to as `new`, which is a spelling of it. The new entry is made
/// before the old one goes, so that a lack of space changes nothing. Costs as much as an insertion
/// and a removal.
///
/// # Errors
/// `Corrupt`, `Io`, ENOENT, ENOSPC.
pub fn respell(
    env: &AttrEnv,
    step: &mut Step<'_>,
    dir: &Arc<Inode>,
    name: &[u8],
    new: &[u8],
) -> Result<()> {
    super::check_key(dir)?;
    let (old, Found { ino, ftype }) = {
        let d = Dir::open(env, dir)?;
        let spot = locate(&d, name)?.ok_or(Errno::NoEnt)?;
        (stored_name(&d, &spot)?, spot.hit.found)
    };
    if old == new {
        return Ok(());
    }
    super::insert(env, step, dir, new, ino, ftype)?;
    let d = Dir { exact: true, ..Dir::open_for_change(env, dir)? };
    let spot = locate(&d, &old)?.ok_or(Errno::NoEnt)?;
    remove_from(&d, step, dir, &spot)
}

/// The name of an entry as it is stored.
fn stored_name(d: &Dir<'_>, spot: &EntryPos) -> Result<Vec<u8>> {
    let at = |area: &[u8]| -> Result<Vec<u8>, Corrupt> {
        for entry in entries(area, &d.format) {
            let entry = entry?;
            if entry.offset == spot.hit.offset {
                return Ok(entry.name.to_vec());
            }
        }
        Err(d.corrupt("directory entry", spot.lblk))
    };
    Ok(match &spot.buf {
        Some(buf) => at(d.format.area(&buf.read()))?,
        None => {
            let areas = inline::Areas::read(d)?;
            let area =
                areas.each().find(|(nr, _, _)| *nr == spot.lblk).map(|(_, _, area)| at(area));
            area.ok_or_else(|| d.corrupt("inline directory", spot.lblk))??
        }
    })
}
