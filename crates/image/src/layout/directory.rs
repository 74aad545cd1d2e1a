//! Blocks of directories: one block, a list of blocks, or a hash tree.
//!
//! A hash tree has full leaves, sorted by hash. Its blocks are the root, the interior nodes if
//! there are any, and the leaves.

use extant_format::dir::{DirFormat, Dots, NAME_MAX, entry_len, fill, seal_dir_leaf};
use extant_format::htree::{self, HashVersion, Kind, NodeMut, RootInfo, dirhash};
use extant_format::inline::{self, INLINE_DIR_FIRST};
use extant_format::inode::I_BLOCK_SIZE;
use extant_format::{Compat, FileType, Geometry, InodeNr};
use std::ops::Range;

/// A directory as it is written.
#[derive(Debug)]
pub(crate) struct Directory<'a> {
    pub own: InodeNr,
    pub parent: InodeNr,
    /// Entries but `.` and `..`, sorted by name.
    pub names: Vec<DirName<'a>>,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirName<'a> {
    pub ino: InodeNr,
    pub file_type: FileType,
    pub name: &'a [u8],
}

/// Bytes of `.` and `..` together.
const DOTS: usize = 2 * entry_len(1);

/// Form of a directory with blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// Blocks with these names, in order.
    Linear(Vec<Range<usize>>),
    /// Leaves with these names in the order of hashes, and the number of interior nodes by level,
    /// from the leaves upward.
    Tree { leaves: Vec<Range<usize>>, interior: Vec<usize> },
}

/// Splits names, by the length of their entries, into blocks of `room` bytes. The first block has
/// `used` bytes less.
fn split(lengths: impl Iterator<Item = usize>, used: usize, room: usize) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let (mut start, mut end, mut filled) = (0, 0, used);
    for len in lengths {
        if filled + len > room {
            blocks.push(start..end);
            (start, filled) = (end, 0);
        }
        filled += len;
        end += 1;
    }
    blocks.push(start..end);
    blocks
}

impl Directory<'_> {
    /// Returns the number of bytes that the entries take in the inode after those in `i_block`;
    /// `None` if they exceed `room`.
    pub(crate) fn inline_rest(&self, room: usize) -> Option<usize> {
        let len = names_len(self.names.get(self.inline_first()..).unwrap_or_default());
        (len <= room).then_some(len)
    }

    /// Returns the number of entries that lie in `i_block`.
    fn inline_first(&self) -> usize {
        let lengths = self.names.iter().map(|name| entry_len(name.name.len()));
        split(lengths, 0, INLINE_DIR_FIRST).first().map_or(0, |first| first.end)
    }

    /// Returns `i_block` and the attribute value of the directory in its inode, whose value has
    /// `rest` bytes.
    pub(crate) fn inline(&self, geo: &Geometry, rest: usize) -> ([u8; I_BLOCK_SIZE], Vec<u8>) {
        let format = DirFormat::new(geo);
        let (mut i_block, mut value) = ([0; I_BLOCK_SIZE], vec![0; rest]);
        inline::set_parent(&mut i_block, self.parent);
        let (first, second) = self.names.split_at(self.inline_first());
        let filled = fill(inline::dir_area_mut(&mut i_block), &format, triples(first))
            && (rest == 0 || fill(&mut value, &format, triples(second)));
        debug_assert!(filled, "the lengths were added before");
        (i_block, value)
    }

    /// Returns the number of blocks. `Err` has the cause.
    pub(crate) fn blocks(&self, geo: &Geometry) -> Result<u64, String> {
        Ok(match self.form(geo, &self.hashes(geo))? {
            Form::Linear(blocks) => blocks.len() as u64,
            Form::Tree { leaves, interior } => {
                1 + interior.iter().sum::<usize>() as u64 + leaves.len() as u64
            }
        })
    }

    /// Returns the most blocks that another name needs: none if each block has room for it, or one
    /// more of each level of a hash tree, and a new level if the root has no room.
    pub(crate) fn growth(&self, geo: &Geometry) -> u64 {
        let format = DirFormat::new(geo);
        match self.form(geo, &self.hashes(geo)) {
            Ok(Form::Linear(blocks)) => {
                let last = blocks.last().and_then(|part| self.names.get(part.clone()));
                let dots = if blocks.len() == 1 { DOTS } else { 0 };
                let used = dots + names_len(last.unwrap_or_default());
                u64::from(used + entry_len(NAME_MAX) > format.usable())
            }
            Ok(Form::Tree { leaves, interior }) => {
                let top = interior.last().unwrap_or(&leaves.len()).to_owned();
                let full = top >= usize::from(Kind::Root.limit(&format));
                1 + interior.len() as u64 + u64::from(full)
            }
            Err(_) => 0,
        }
    }

    /// Returns whether blocks of this number are a hash tree.
    pub(crate) fn is_tree(geo: &Geometry, blocks: u64) -> bool {
        blocks > 1 && geo.compat(Compat::DIR_INDEX)
    }

    /// Returns the hashes of names, sorted, with the positions of the names; nothing for a
    /// directory that needs no tree.
    fn hashes(&self, geo: &Geometry) -> Vec<(u32, u32, u32)> {
        let lengths = self.names.iter().map(|name| entry_len(name.name.len()));
        let one = lengths.sum::<usize>() + DOTS <= DirFormat::new(geo).usable();
        if one || !geo.compat(Compat::DIR_INDEX) {
            return Vec::new();
        }
        let version = HashVersion::from_raw(geo.hash_version).unwrap_or_default();
        let hash = |(index, name): (u32, &DirName<'_>)| {
            let (major, minor) = dirhash(version, geo.hash_unsigned, &geo.hash_seed, name.name);
            (major, minor, index)
        };
        let mut hashes: Vec<_> = (0..).zip(&self.names).map(hash).collect();
        hashes.sort_unstable();
        hashes
    }

    fn form(&self, geo: &Geometry, hashes: &[(u32, u32, u32)]) -> Result<Form, String> {
        let format = DirFormat::new(geo);
        let len = |name: &DirName<'_>| entry_len(name.name.len());
        if hashes.is_empty() {
            let lengths = self.names.iter().map(len);
            return Ok(Form::Linear(split(lengths, DOTS, format.usable())));
        }
        let lengths = hashes.iter().filter_map(|hash| self.name(hash)).map(|name| len(&name));
        let leaves = split(lengths, 0, format.usable());
        let limits = [Kind::Root, Kind::Interior].map(|kind| usize::from(kind.limit(&format)));
        let mut interior = Vec::new();
        let mut below = leaves.len();
        while below > limits[0] {
            below = below.div_ceil(limits[1]);
            interior.push(below);
        }
        if interior.len() > htree::max_levels(&format).into() {
            return Err(format!(
                "{} names are too many for a directory; the feature large_dir gives it more room",
                self.names.len()
            ));
        }
        Ok(Form::Tree { leaves, interior })
    }

    fn name(&self, hash: &(u32, u32, u32)) -> Option<DirName<'_>> {
        self.names.get(hash.2 as usize).copied()
    }

    /// Returns a block without names. `seed` is that of the inode's checksums.
    pub(crate) fn empty_block(geo: &Geometry, seed: u32) -> Vec<u8> {
        block(geo, seed, None, std::iter::empty())
    }

    /// Returns all blocks with names. `seed` is that of the inode's checksums. `Err` has the cause.
    pub(crate) fn encode(&self, geo: &Geometry, seed: u32) -> Result<Vec<Vec<u8>>, String> {
        let hashes = self.hashes(geo);
        let format = DirFormat::new(geo);
        let dots = Dots { own: self.own, parent: self.parent };
        match self.form(geo, &hashes)? {
            Form::Linear(blocks) => {
                let parts = blocks.iter().map(|part| self.names.get(part.clone()));
                let parts = parts.map(|names| names.unwrap_or_default().iter().copied());
                Ok(parts
                    .enumerate()
                    .map(|(n, names)| block(geo, seed, (n == 0).then_some(dots), names))
                    .collect())
            }
            Form::Tree { leaves, interior } => {
                let mut keys = Vec::with_capacity(leaves.len());
                let mut blocks = vec![vec![0; geo.block_size as usize]];
                let first_leaf = 1 + interior.iter().sum::<usize>();
                blocks.resize_with(first_leaf, || vec![0; geo.block_size as usize]);
                for (n, leaf) in (first_leaf as u32..).zip(&leaves) {
                    keys.push((key(&hashes, leaf.start), n));
                    let part = hashes.get(leaf.clone()).unwrap_or_default();
                    let names = part.iter().filter_map(|hash| self.name(hash));
                    blocks.push(block(geo, seed, None, names));
                }
                let index = TreeIndex { geo, format, seed, blocks: &mut blocks };
                index.write(dots, keys, &interior);
                Ok(blocks)
            }
        }
    }
}

/// Returns the bytes of the entries of names.
fn names_len(names: &[DirName<'_>]) -> usize {
    names.iter().map(|name| entry_len(name.name.len())).sum()
}

/// Returns names in the form that [`fill`] takes.
fn triples<'n>(names: &'n [DirName<'n>]) -> impl Iterator<Item = (InodeNr, FileType, &'n [u8])> {
    names.iter().map(|name| (name.ino, name.file_type, name.name))
}

/// Returns the key of a leaf that begins with name `start`: its hash, marked if names of the leaf
/// before have the same.
fn key(hashes: &[(u32, u32, u32)], start: usize) -> u32 {
    let hash = |n: usize| hashes.get(n).map_or(0, |hash| hash.0);
    let continued = start > 0 && hash(start - 1) == hash(start);
    hash(start) | u32::from(continued)
}

/// Returns a block with these names.
fn block<'n>(
    geo: &Geometry,
    seed: u32,
    dots: Option<Dots>,
    names: impl Iterator<Item = DirName<'n>>,
) -> Vec<u8> {
    let format = DirFormat::new(geo);
    let mut block = vec![0; geo.block_size as usize];
    format.init_block(&mut block);
    let area = format.area_mut(&mut block);
    let dots = dots.map(|dots| {
        [(dots.own, &b"."[..]), (dots.parent, b"..")]
            .map(|(ino, name)| (ino, FileType::Directory, name))
    });
    let names = names.map(|name| (name.ino, name.file_type, name.name));
    let filled = fill(area, &format, dots.into_iter().flatten().chain(names));
    debug_assert!(filled, "names were split by the room of blocks");
    if geo.metadata_csum {
        seal_dir_leaf(&mut block, 0, seed);
    }
    block
}

/// The nodes of a hash tree above its leaves.
struct TreeIndex<'a> {
    geo: &'a Geometry,
    format: DirFormat,
    seed: u32,
    /// Root and interior nodes, to be filled, and the leaves.
    blocks: &'a mut [Vec<u8>],
}

impl TreeIndex<'_> {
    /// Fills the nodes, from the leaves upward. The nodes next to the leaves are the last ones.
    fn write(mut self, dots: Dots, mut keys: Vec<(u32, u32)>, interior: &[usize]) {
        let limit = usize::from(Kind::Interior.limit(&self.format));
        let mut next = 1 + interior.iter().sum::<usize>();
        for count in interior {
            next -= count;
            let mut above = Vec::with_capacity(*count);
            for (place, part) in (next..).zip(keys.chunks(limit)) {
                above.push((part.first().map_or(0, |key| key.0), place as u32));
                self.node(place, part, None);
            }
            keys = above;
        }
        let hash_version = HashVersion::from_raw(self.geo.hash_version).unwrap_or_default();
        let info = RootInfo { hash_version, levels: interior.len() as u8 };
        self.node(0, &keys, Some((info, dots)));
    }

    fn node(&mut self, place: usize, keys: &[(u32, u32)], root: Option<(RootInfo, Dots)>) {
        let Some(block) = self.blocks.get_mut(place) else { return };
        let mut node = match root {
            Some((info, dots)) => NodeMut::init_root(block, &self.format, info, dots, 0),
            None => NodeMut::init_interior(block, &self.format, 0),
        };
        let fits = node.set_entries(keys);
        debug_assert!(fits, "keys were counted before");
        if self.geo.metadata_csum {
            htree::seal_htree(block, 0, self.seed);
        }
    }
}
