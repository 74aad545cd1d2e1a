//! Files and directories that get the form which features allow: extents in place of pointers, and
//! indexes.
//!
//! For example, an ext3 file of blocks 100 to 115 has a block of pointers. With extents it has one
//! extent in its inode, and that block is free. Data do not move.

use crate::claims::ClaimMap;
use crate::passes::inodes::has_map;
use crate::repair::{Directory, RepairError, Round};
use extant_format::dir::DirFormat;
use extant_format::extent::NodeMut;
use extant_format::htree::RootInfo;
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::{Inode, InodeFlags, InodeNr};

/// Levels of an index below its root from which on a directory stays as it is.
const MAX_LEVELS: u8 = 2;

/// The directory whose free space a repair needs.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Returns whether the map of an inode may change: those of the journal and of reserved blocks are
/// read by programs in a form of their own.
fn is_file(round: &Round<'_>, ino: InodeNr) -> bool {
    ino == InodeNr::ROOT || ino.0 >= round.geometry().first_ino
}

/// Gives all files and directories extents.
pub fn to_extents(round: &Round<'_>) -> Result<(), RepairError> {
    let (volume, geometry) = (&round.survey.volume, round.geometry());
    let nodes = ClaimMap::of_blocks(geometry, volume.groups.len());
    for group in volume.reader.groups() {
        let mut inodes = Vec::new();
        volume.each_slot(group, &mut |ino, slot| {
            let inode = Inode::decode_unverified(slot, geometry, ino).ok();
            let wanted = |inode: &Inode| {
                let has_pointers = !inode.flags.contains(InodeFlags::EXTENTS);
                inode.links > 0 && has_pointers && is_file(round, ino) && has_map(volume, inode)
            };
            inodes.extend(inode.filter(wanted).map(|inode| (ino, inode)));
        });
        for (ino, inode) in inodes {
            // Those of neighboring blocks of pointers follow each other.
            let mut runs = Vec::new();
            for run in round.valid_runs(ino, &inode, &nodes) {
                run.add_to(&mut runs);
            }
            round.edit_inode(ino, |inode| {
                inode.flags.insert(InodeFlags::EXTENTS);
                inode.i_block = [0; I_BLOCK_SIZE];
                NodeMut::init(&mut inode.i_block, 0);
            })?;
            round.write_map(ino, &runs)?;
        }
    }
    Ok(())
}

/// Writes directories of several blocks anew, with indexes: those that have none, or with `all`
/// also the others, which then have as few blocks as their entries need. The directory for lost
/// files keeps its space.
pub fn index_directories(round: &Round<'_>, all: bool) -> Result<(), RepairError> {
    let root = round.directory(InodeNr::ROOT)?;
    let lost = root.entries.iter().find(|named| named.name == LOST_AND_FOUND);
    let lost = lost.map_or(InodeNr::NONE, |named| named.ino);
    for dir in round.survey.dirs.iter().filter(|dir| dir.ino != lost) {
        let inode = round.inode(dir.ino)?;
        if let Some(directory) = rewritable(round, (dir.ino, &inode), all)? {
            round.write_directory(directory)?;
        }
    }
    Ok(())
}

/// Returns a directory that is to be written anew. One that ignores case stays as it is, since its
/// hashes need tables of Unicode.
fn rewritable(
    round: &Round<'_>,
    (ino, inode): (InodeNr, &Inode),
    all: bool,
) -> Result<Option<Directory>, RepairError> {
    let kept = InodeFlags::INLINE_DATA | InodeFlags::CASEFOLD;
    let has_index = inode.flags.contains(InodeFlags::INDEX);
    let is_small = inode.size <= u64::from(round.geometry().block_size);
    if inode.flags.intersects(kept) || is_small || has_index && !all {
        return Ok(None);
    }
    let directory = round.directory(ino)?;
    if has_index {
        let format = DirFormat::new(round.geometry());
        let first = directory.first_block().map(|nr| round.block(nr)).transpose()?;
        let root = first.map(|bytes| RootInfo::parse(&bytes, &format)).transpose()?;
        if root.is_none_or(|root| root.levels >= MAX_LEVELS) {
            return Ok(None);
        }
    }
    Ok(Some(directory))
}
