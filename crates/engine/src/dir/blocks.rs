//! A directory as a row of blocks: mapping, reading with verification, growing.
//!
//! # Invariants
//! A block is verified when it is just read: its checksum, its entries or its index. What is read
//! from the cache was verified under the shape that it had then, so whoever uses it still treats it
//! as bytes that may say anything.

use super::Kind;
use crate::bounds::Steps;
use crate::error::{Errno, Error, Result};
use crate::extent::{self, ExtentState};
use crate::inode::{Inode, Step};
use crate::xattr::AttrEnv;
use extant_blocks::{Buffer, BufferWrite};
use extant_format::dir::{DirFormat, entries, seal_dir_leaf, verify_leaf};
use extant_format::error::Corrupt;
use extant_format::features::{Compat, Incompat};
use extant_format::htree::{self, seal_htree};
use extant_format::inode::InodeFlags;
use extant_journal::Seal;
use std::sync::Arc;

/// Blocks that are read ahead when a directory is scanned.
const READ_AHEAD: u32 = 32;

/// Blocks that the index of a directory can name.
const MAX_BLOCKS: u64 = 1 << 28;

/// A directory and the facts that its blocks depend on.
#[derive(Clone, Copy)]
pub(super) struct Dir<'a> {
    pub env: &'a AttrEnv,
    pub inode: &'a Inode,
    /// Its blocks; 0 for inline directories.
    pub count: u32,
    pub kind: Kind,
    pub format: DirFormat,
    /// Names are folded before they are compared and hashed.
    pub folds: bool,
    /// Names are compared as they are spelled, even if they fold.
    pub exact: bool,
    /// Names are encrypted; there is no key.
    pub encrypted: bool,
    /// Names are encrypted as they are spelled, and found by the hash of what they fold to, which
    /// is kept behind each of them. Who has no key cannot hash a name, so the index is of no use.
    pub keeps_hashes: bool,
}

/// Reads many blocks of a directory whose map was verified.
pub(super) struct Scan<'d, 'a> {
    dir: &'d Dir<'a>,
    steps: Steps,
}

impl Scan<'_, '_> {
    /// Reads block `lblk`; what follows will be read too.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, EINTR.
    pub fn load(&mut self, lblk: u32) -> Result<Arc<Buffer>> {
        self.steps.next()?;
        self.dir.load_ahead(lblk, READ_AHEAD)
    }
}

/// What a block of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Entries, and a checksum in an entry-like tail.
    Leaf,
    /// The root of a hash tree or one of its interior nodes.
    Index,
}

impl<'a> Dir<'a> {
    /// Errors: `Corrupt` where size and flags contradict each other.
    pub fn open(env: &'a AttrEnv, inode: &'a Inode) -> Result<Dir<'a>> {
        let (size, flags) = {
            let body = inode.body();
            (body.size, body.flags)
        };
        let kind = Kind::of(env, flags);
        let count = match kind {
            Kind::Inline => 0,
            _ => block_count(env, inode, size)?,
        };
        let encrypted = flags.contains(InodeFlags::ENCRYPT);
        let folding = super::folds(env, flags);
        Ok(Dir {
            env,
            inode,
            count,
            kind,
            format: DirFormat::new(&env.geo),
            folds: folding && !encrypted,
            exact: false,
            encrypted,
            keeps_hashes: folding && encrypted,
        })
    }

    /// Blocks that a directory of this file system may have.
    pub fn max_blocks(&self) -> u64 {
        let bytes: u64 =
            if self.env.geo.incompat(Incompat::LARGEDIR) { 1 << 48 } else { (1 << 31) - 1 };
        (bytes >> self.env.geo.block_bits).min(MAX_BLOCKS)
    }

    /// Index levels that a hash tree may have.
    pub fn max_levels(&self) -> usize {
        1 + usize::from(htree::max_levels(&self.format))
    }

    /// Whether new directories are indexed and cookies follow the hash.
    pub fn hashed(&self) -> bool {
        self.env.geo.compat(Compat::DIR_INDEX)
    }

    /// Whether its only block is a leaf, and not the root of a tree that is ignored.
    pub fn is_one_leaf(&self) -> bool {
        self.kind == Kind::Linear
            && self.count == 1
            && self.hashed()
            && !self.inode.flags().contains(InodeFlags::INDEX)
    }

    /// A corruption of this directory.
    pub fn corrupt(&self, what: &'static str, lblk: u32) -> Corrupt {
        Corrupt::new(what).at_inode(self.inode.ino).found(lblk)
    }

    /// Reads block `lblk`.
    pub fn load(&self, lblk: u32) -> Result<Arc<Buffer>> {
        self.load_ahead(lblk, 1)
    }

    /// A scan of the directory's blocks.
    ///
    /// # Errors
    /// As [`Dir::check_map`].
    pub fn scan(&self) -> Result<Scan<'_, 'a>> {
        self.check_map()?;
        Ok(Scan { dir: self, steps: Steps::default() })
    }

    /// Verifies, once while the inode is in memory, that no block stands in two places of the
    /// directory. Then a scan, whose length the image claims, visits distinct blocks only. Changes
    /// made here keep that true.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, EINTR.
    pub fn check_map(&self) -> Result<()> {
        if self.count <= 1 || self.inode.dir.lock().map_checked {
            return Ok(());
        }
        extent::check_distinct(self.env, self.inode, self.count)?;
        self.inode.dir.lock().map_checked = true;
        Ok(())
    }

    fn load_ahead(&self, lblk: u32, ahead: u32) -> Result<Arc<Buffer>> {
        if lblk >= self.count {
            return Err(self.corrupt("directory block number", lblk).expected(self.count).into());
        }
        let run = extent::lookup(self.env, self.inode, lblk, ahead.min(self.count - lblk))?;
        if run.state != ExtentState::Written || run.len == 0 {
            return Err(self.corrupt("directory", lblk).field("hole").into());
        }
        if run.len > 1 && self.env.cache.peek(run.pblk.0).is_none() {
            self.env.cache.read_ahead(run.pblk.0, u64::from(run.len));
        }
        self.env.cache.read::<Error>(run.pblk.0, |bytes| {
            Ok(self.verify(lblk, bytes).map_err(|e| e.at_block(run.pblk))?)
        })
    }

    /// What the block at `lblk` is by its position and its first entry.
    pub fn shape(&self, lblk: u32, bytes: &[u8]) -> Shape {
        let index =
            self.kind == Kind::Indexed && (lblk == 0 || htree::is_interior(bytes, &self.format));
        if index { Shape::Index } else { Shape::Leaf }
    }

    fn verify(&self, lblk: u32, bytes: &[u8]) -> Result<(), Corrupt> {
        let result = match self.shape(lblk, bytes) {
            // Without checksums a leaf whose names are gone looks the same; who takes it for a node
            // opens it as one.
            Shape::Index if lblk != 0 && !self.format.metadata_csum => Ok(()),
            Shape::Index => self.verify_index(lblk, bytes),
            Shape::Leaf => self.verify_leaf(bytes),
        };
        result.map_err(|e| e.at_inode(self.inode.ino))
    }

    fn verify_leaf(&self, bytes: &[u8]) -> Result<(), Corrupt> {
        if self.format.metadata_csum {
            verify_leaf(bytes, self.inode.seed)?;
        }
        entries(self.format.area(bytes), &self.format).try_for_each(|e| e.map(drop))
    }

    fn verify_index(&self, lblk: u32, bytes: &[u8]) -> Result<(), Corrupt> {
        let kind = if lblk == 0 { htree::Kind::Root } else { htree::Kind::Interior };
        let node = htree::Node::open(bytes, kind, &self.format)?;
        if self.format.metadata_csum {
            htree::verify_htree(bytes, self.inode.seed)?;
        }
        node.check_order()
    }

    /// How a leaf is sealed.
    pub fn leaf_seal(&self) -> Seal {
        self.seal(seal_dir_leaf)
    }

    /// How the root or an interior node is sealed.
    pub fn index_seal(&self) -> Seal {
        self.seal(seal_htree)
    }

    fn seal(&self, f: fn(&mut [u8], u64, u32)) -> Seal {
        if self.format.metadata_csum { Seal { f, seed: self.inode.seed } } else { Seal::NONE }
    }

    /// How the block that holds `..` is sealed.
    pub fn first_seal(&self) -> Seal {
        if self.kind == Kind::Indexed { self.index_seal() } else { self.leaf_seal() }
    }

    /// Adds a zeroed block at the end and counts it. ENOSPC beyond the largest size of a directory.
    pub fn grow(&mut self, step: &mut Step<'_>, owner: &Arc<Inode>) -> Result<(u32, Arc<Buffer>)> {
        let lblk = self.count;
        if u64::from(lblk) >= self.max_blocks() {
            return Err(Errno::NoSpc.into());
        }
        let run = extent::allocate(self.env, step, owner, lblk, 1, ExtentState::Written)?;
        let buf = self.env.cache.fresh(run.pblk.0);
        step.edit(owner)?.size = (u64::from(lblk) + 1) << self.env.geo.block_bits;
        self.count = lblk + 1;
        Ok((lblk, buf))
    }
}

/// Replaces a block's bytes by `image`.
pub(super) fn overwrite(
    step: &mut Step<'_>,
    buf: &Arc<Buffer>,
    seal: Seal,
    image: &[u8],
) -> Result<()> {
    let mut bytes: BufferWrite<'_> = step.write(buf, seal)?;
    let len = bytes.len().min(image.len());
    bytes[..len].copy_from_slice(&image[..len]);
    Ok(())
}

fn block_count(env: &AttrEnv, inode: &Inode, size: u64) -> Result<u32> {
    let bits = env.geo.block_bits;
    let whole = size >> bits << bits == size;
    match u32::try_from(size >> bits) {
        Ok(count) if whole => Ok(count),
        _ => Err(Corrupt::new("directory").field("size").found(size).at_inode(inode.ino).into()),
    }
}
