//! Reads before the journal is open: the superblock, the journal's inode and the positions of its
//! blocks.

use crate::error::{Error, Result};
use crate::extent::raw;
use extant_blocks::{BlockDevice, SignatureKind, identify};
use extant_format::Geometry;
use extant_format::error::Corrupt;
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::group_desc::GroupDesc;
use extant_format::inode as disk;
use extant_format::quota::QuotaKind;
use extant_format::superblock::{MAGIC_FIELD, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::types::{GroupNr, InodeNr};
use extant_journal::{Log, LogExtent, LogPlace};
use std::sync::Arc;

/// Reads and verifies the primary superblock of a file system that lies on the device as a whole.
pub fn superblock(dev: &dyn BlockDevice) -> Result<(Superblock, Geometry)> {
    let (sb, geo) = superblock_of_part(dev)?;
    if fs_bytes(&geo)? > dev.len() {
        return Err(Corrupt::new("image, shorter than its file system")
            .field("blocks")
            .found(geo.blocks_count)
            .expected(dev.len() / u64::from(geo.block_size))
            .into());
    }
    Ok((sb, geo))
}

/// Returns the bytes of a file system.
fn fs_bytes(geo: &Geometry) -> Result<u64> {
    let bytes = geo.blocks_count.checked_mul(u64::from(geo.block_size));
    Ok(bytes.ok_or_else(|| Corrupt::new("superblock").field("blocks").found(geo.blocks_count))?)
}

/// Reads and verifies the primary superblock, also of a file system whose end is missing.
pub fn superblock_of_part(dev: &dyn BlockDevice) -> Result<(Superblock, Geometry)> {
    if dev.len() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        let short =
            Corrupt::new("image, too short for a superblock").field("bytes").found(dev.len());
        return Err(foreign(dev).unwrap_or_else(|| short.into()));
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    dev.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    let sb = Superblock::parse(&bytes).map_err(|e| name_foreign(dev, e))?;
    super::features::access(&sb.features())?;
    if sb.incompat().contains(Incompat::CASEFOLD) && !crate::dir::can_fold(sb.encoding()) {
        return Err(Error::Unsupported(format!(
            "casefold with names in encoding {}",
            sb.encoding()
        )));
    }
    let geo = Geometry::new(&sb)?;
    fs_bytes(&geo)?;
    Ok((sb, geo))
}

/// Returns the error of a superblock with another magic number. It names the known format of the
/// device's contents.
fn name_foreign(dev: &dyn BlockDevice, error: Corrupt) -> Error {
    let is_magic = error.field_name() == Some(MAGIC_FIELD);
    is_magic.then(|| foreign(dev)).flatten().unwrap_or_else(|| error.into())
}

/// The error that names the contents of a device, if these are known and no ext4 file system.
fn foreign(dev: &dyn BlockDevice) -> Option<Error> {
    identify(dev).filter(|found| found.kind != SignatureKind::Ext).map(Error::Foreign)
}

/// Writes the superblock past all caches, and makes it durable.
pub fn write_superblock(dev: &dyn BlockDevice, sb: &mut Superblock) -> Result<()> {
    dev.write_all_at(&sb.seal(), SUPERBLOCK_OFFSET)?;
    Ok(dev.flush()?)
}

fn descriptor(dev: &dyn BlockDevice, geo: &Geometry, group: GroupNr) -> Result<GroupDesc> {
    let size = usize::from(geo.desc_size);
    let per_block = geo.block_size as usize / size;
    let block = geo.gdt_block(group.0 / per_block as u32);
    let mut bytes = vec![0; size];
    let at = block.0 * u64::from(geo.block_size) + (group.0 as usize % per_block * size) as u64;
    dev.read_exact_at(&mut bytes, at)?;
    let desc = GroupDesc::decode(&bytes, geo, group)?;
    Ok(desc)
}

/// An inode straight from the device.
pub fn inode(dev: &dyn BlockDevice, geo: &Geometry, ino: InodeNr) -> Result<disk::Inode> {
    let (group, index) = geo.inode_location(ino)?;
    let table = descriptor(dev, geo, group)?.inode_table;
    let mut slot = vec![0; usize::from(geo.inode_size)];
    let at = table * u64::from(geo.block_size) + u64::from(index) * u64::from(geo.inode_size);
    dev.read_exact_at(&mut slot, at)?;
    Ok(disk::Inode::decode(&slot, geo, ino)?)
}

/// The journal's blocks: a file of the file system, or all of `journal`, a device of its own. None
/// if it has no journal.
pub fn log(
    dev: &Arc<dyn BlockDevice>,
    journal: Option<&Arc<dyn BlockDevice>>,
    geo: &Geometry,
    sb: &Superblock,
) -> Result<Option<Log>> {
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let ino = sb.journal_inum();
    if ino.0 == 0 {
        let missing = || Error::Unsupported("an external journal whose device is not named".into());
        return external_log(journal.ok_or_else(missing)?, geo, sb).map(Some);
    }
    let body = inode(&**dev, geo, ino)?;
    let runs = raw::map(&**dev, geo, &body, ino)?;
    let extents: Vec<_> = runs
        .into_iter()
        .map(|(logical, physical, len)| LogExtent { logical, physical, len })
        .collect();
    Ok(Some(Log::open(dev.clone(), &extents, geo.block_size, LogPlace::Inside)?))
}

/// A journal on a device of its own, which has to be the one that the file system names.
fn external_log(journal: &Arc<dyn BlockDevice>, geo: &Geometry, sb: &Superblock) -> Result<Log> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    if journal.len() >= SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        journal.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)?;
    }
    let own = Superblock::parse(&bytes)?;
    let invalid = |why: &str| Err(Error::Invalid(format!("{}: {why}", journal.name())));
    if !own.incompat().contains(Incompat::JOURNAL_DEV) {
        return invalid("not a journal, but a file system");
    }
    if own.uuid() != sb.journal_uuid() {
        return invalid("the journal of another file system");
    }
    let blocks = own.blocks_count().min(journal.len() / u64::from(geo.block_size));
    let len = u32::try_from(blocks).unwrap_or(u32::MAX);
    let extents = [LogExtent { logical: 0, physical: 0, len }];
    let log = Log::open(journal.clone(), &extents, geo.block_size, LogPlace::External)?;
    match log.superblock().users() {
        [user] if *user == sb.uuid() => Ok(log),
        [_] => invalid("the journal is used by another file system"),
        [] => invalid("a journal of no file system"),
        _ => invalid("a journal of more than one file system"),
    }
}

/// Physical blocks of the orphan file, in order, with its inode's checksum seed.
pub fn orphan_file(
    dev: &dyn BlockDevice,
    geo: &Geometry,
    sb: &Superblock,
) -> Result<Option<(InodeNr, u32, Vec<u64>)>> {
    if !sb.compat().contains(Compat::ORPHAN_FILE) {
        return Ok(None);
    }
    let ino = sb.orphan_file_inum();
    let (body, blocks) = hidden_file(dev, geo, ino, "orphan file", MAX_ORPHAN_BLOCKS)?;
    Ok(Some((ino, geo.inode_seed(ino, body.generation), blocks)))
}

/// Physical blocks of the quota files, in order, or why they cannot be had.
pub fn quota_files(
    dev: &dyn BlockDevice,
    geo: &Geometry,
    sb: &Superblock,
) -> Vec<(QuotaKind, InodeNr, Result<Vec<u64>>)> {
    if !sb.ro_compat().contains(RoCompat::QUOTA) {
        return Vec::new();
    }
    let numbers = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()];
    let files = QuotaKind::ALL.into_iter().zip(numbers).filter(|(_, ino)| *ino != InodeNr::NONE);
    let blocks =
        |kind: QuotaKind, ino| hidden_file(dev, geo, ino, kind.file_name(), MAX_QUOTA_BLOCKS);
    files.map(|(kind, ino)| (kind, ino, blocks(kind, ino).map(|(_, blocks)| blocks))).collect()
}

/// A file of the file system's own: its inode and all its blocks, without a hole.
fn hidden_file(
    dev: &dyn BlockDevice,
    geo: &Geometry,
    ino: InodeNr,
    what: &'static str,
    most: usize,
) -> Result<(disk::Inode, Vec<u64>)> {
    let bad = |field| Corrupt::new(what).at_inode(ino).field(field);
    let body = inode(dev, geo, ino)?;
    let wanted = body.size / u64::from(geo.block_size);
    let mut blocks = Vec::new();
    for (logical, physical, len) in raw::map(dev, geo, &body, ino)? {
        if u64::from(logical) != blocks.len() as u64 {
            return Err(bad("hole").found(logical).expected(blocks.len() as u64).into());
        }
        if blocks.len().saturating_add(len as usize) > most {
            return Err(bad("blocks").found(len).expected(most as u64).into());
        }
        blocks.extend((0..u64::from(len)).map(|i| physical + i));
    }
    if (blocks.len() as u64) < wanted {
        return Err(bad("blocks").found(blocks.len() as u64).expected(wanted).into());
    }
    Ok((body, blocks))
}

/// More blocks than any tool makes; bounds the reads of a hostile image.
const MAX_ORPHAN_BLOCKS: usize = 1 << 16;

/// Blocks of a quota file that is believed: those of some ten million owners with small blocks.
const MAX_QUOTA_BLOCKS: usize = 1 << 20;
