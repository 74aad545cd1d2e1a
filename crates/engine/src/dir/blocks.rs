//! A directory as a sequence of blocks: mapping, verified reads, growth.
//!
//! # Invariants
//! A block is verified when it is read from the device: its checksum, and its entries or its index.
//! A block from the cache was verified under the shape that it had at that time. Users therefore
//! treat its bytes as untrusted.

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

/// Maximum number of blocks that the index of a directory can name.
const MAX_BLOCKS: u64 = 1 << 28;

/// A directory, with the facts that determine the form of its blocks.
#[derive(Clone, Copy)]
pub(super) struct Dir<'a> {
    pub env: &'a AttrEnv,
    pub inode: &'a Inode,
    /// Number of blocks; 0 for inline directories.
    pub count: u32,
    pub kind: Kind,
    pub format: DirFormat,
    /// Whether names are folded before they are compared and hashed.
    pub folds: bool,
    /// Whether names are compared byte by byte, even in a directory that folds.
    pub exact: bool,
    /// Whether names are encrypted. Keys are not supported.
    pub encrypted: bool,
    /// Whether the hash of each folded name is stored behind the encrypted, unfolded name. Without
    /// a key no name can be hashed, so the index is not usable.
    pub keeps_hashes: bool,
}

/// A scan of many blocks of a directory, whose map was verified.
pub(super) struct Scan<'d, 'a> {
    dir: &'d Dir<'a>,
    steps: Steps,
}

impl Scan<'_, '_> {
    /// Reads block `lblk`, and reads the blocks behind it ahead.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, EINTR.
    pub fn load(&mut self, lblk: u32) -> Result<Arc<Buffer>> {
        self.steps.next()?;
        self.dir.load_ahead(lblk, READ_AHEAD)
    }
}

/// The form of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Entries, and a checksum in a tail that looks like an entry.
    Leaf,
    /// The root of a hash tree, or one of its interior nodes.
    Index,
}

impl<'a> Dir<'a> {
    /// Opens the directory. Errors: `Corrupt` if its size is not a number of whole blocks.
    pub fn open(env: &'a AttrEnv, inode: &'a Inode) -> Result<Dir<'a>> {
        let (size, flags) = {
            let body = inode.body();
            (body.size, body.flags)
        };
        let kind = Kind::of(env, flags);
        let count = match kind {
            // An inline directory has no blocks: its size is that of its areas.
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

    /// Returns the maximum number of blocks of a directory of this file system.
    pub fn max_blocks(&self) -> u64 {
        let bytes: u64 =
            if self.env.geo.incompat(Incompat::LARGEDIR) { 1 << 48 } else { (1 << 31) - 1 };
        (bytes >> self.env.geo.block_bits).min(MAX_BLOCKS)
    }

    /// Returns the maximum number of index levels of a hash tree.
    pub fn max_levels(&self) -> usize {
        1 + usize::from(htree::max_levels(&self.format))
    }

    /// Returns whether new directories are indexed and cookies follow the hash.
    pub fn hashed(&self) -> bool {
        self.env.geo.compat(Compat::DIR_INDEX)
    }

    /// Returns whether the directory's only block is a leaf, and not the root of an ignored tree.
    pub fn is_one_leaf(&self) -> bool {
        self.kind == Kind::Linear
            && self.count == 1
            && self.hashed()
            && !self.inode.flags().contains(InodeFlags::INDEX)
    }

    /// Returns a corruption of this directory at block `lblk`.
    pub fn corrupt(&self, what: &'static str, lblk: u32) -> Corrupt {
        Corrupt::new(what).at_inode(self.inode.ino).found(lblk)
    }

    /// Reads and verifies block `lblk`.
    pub fn load(&self, lblk: u32) -> Result<Arc<Buffer>> {
        self.load_ahead(lblk, 1)
    }

    /// Starts a scan of the directory's blocks.
    ///
    /// # Errors
    /// As [`Dir::check_map`].
    pub fn scan(&self) -> Result<Scan<'_, 'a>> {
        self.check_map()?;
        Ok(Scan { dir: self, steps: Steps::default() })
    }

    /// Verifies, once while the inode is in memory, that no physical block is mapped at two places
    /// of the directory. A scan, whose length comes from the image, then visits distinct blocks
    /// only. Changes by this module keep the blocks distinct.
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

    /// Returns the form of the block at `lblk`, by its position and its first entry.
    pub fn shape(&self, lblk: u32, bytes: &[u8]) -> Shape {
        let index =
            self.kind == Kind::Indexed && (lblk == 0 || htree::is_interior(bytes, &self.format));
        if index { Shape::Index } else { Shape::Leaf }
    }

    fn verify(&self, lblk: u32, bytes: &[u8]) -> Result<(), Corrupt> {
        let result = match self.shape(lblk, bytes) {
            // Without checksums a leaf without names looks like an interior node. Its node is
            // verified when the caller opens it as one.
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

    /// Returns the seal of a leaf.
    pub fn leaf_seal(&self) -> Seal {
        self.seal(seal_dir_leaf)
    }

    /// Returns the seal of the root and of interior nodes.
    pub fn index_seal(&self) -> Seal {
        self.seal(seal_htree)
    }

    fn seal(&self, f: fn(&mut [u8], u64, u32)) -> Seal {
        if self.format.metadata_csum { Seal { f, seed: self.inode.seed } } else { Seal::NONE }
    }

    /// Returns the seal of the block that holds `..`.
    pub fn first_seal(&self) -> Seal {
        if self.kind == Kind::Indexed { self.index_seal() } else { self.leaf_seal() }
    }

    /// Appends a zeroed block and raises the size. Returns ENOSPC at the maximum size of a
    /// directory.
    pub fn grow(&mut self, step: &mut Step<'_>, owner: &Arc<Inode>) -> Result<(u32, Arc<Buffer>)> {
        let lblk = self.count;
        if u64::from(lblk) >= self.max_blocks() {
            return Err(Errno::NoSpc.into());
        }
        let run = extent::allocate(self.env, step, owner, lblk..lblk + 1, ExtentState::Written)?;
        let buf = self.env.cache.fresh(run.pblk.0);
        // The size follows the allocation: without space nothing has changed.
        step.edit(owner)?.size = (u64::from(lblk) + 1) << self.env.geo.block_bits;
        self.count = lblk + 1;
        Ok((lblk, buf))
    }

    /// Replaces a block's bytes by `image`. Only this function moves entries of blocks.
    pub fn overwrite(
        &self,
        step: &mut Step<'_>,
        buf: &Arc<Buffer>,
        seal: Seal,
        image: &[u8],
    ) -> Result<()> {
        let mut bytes: BufferWrite<'_> = step.write(buf, seal)?;
        let len = bytes.len().min(image.len());
        bytes[..len].copy_from_slice(&image[..len]);
        let mut state = self.inode.dir.lock();
        state.layout = state.layout.wrapping_add(1);
        Ok(())
    }
}

fn block_count(env: &AttrEnv, inode: &Inode, size: u64) -> Result<u32> {
    let bits = env.geo.block_bits;
    let whole = size >> bits << bits == size;
    match u32::try_from(size >> bits) {
        Ok(count) if whole => Ok(count),
        _ => Err(Corrupt::new("directory").field("size").found(size).at_inode(inode.ino).into()),
    }
}
