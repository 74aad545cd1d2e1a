//! Locations of the structures of an image, and their checksums after a change.

use crate::records::{self, Record};
use extant_format::extent::Node;
use extant_format::features::{Compat, Incompat};
use extant_format::group_desc::{GroupDesc, block_bitmap_checksum, inode_bitmap_checksum};
use extant_format::inode::{Inode, InodeFlags, seal_inode};
use extant_format::jbd2::{
    BlockHeader, BlockType, CommitBlock, DescriptorBuilder, JournalFormat, JournalSuperblock, Tag,
    Tags,
};
use extant_format::mmp::Mmp;
use extant_format::seal::{
    SealFn, seal_dir_block, seal_extent_block, seal_none, seal_orphan_block, seal_xattr_block,
};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::types::{GroupNr, InodeNr};
use extant_format::{Geometry, bitmap, indirect};
use std::collections::BTreeMap;
use std::ops::Range;

/// Kind of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The primary superblock.
    Superblock,
    /// A group descriptor.
    Descriptor,
    /// A bitmap of blocks.
    BlockBitmap,
    /// A bitmap of inodes.
    InodeBitmap,
    /// An inode's slot.
    Inode,
    /// A node of an extent tree.
    ExtentBlock,
    /// A block of pointers.
    IndirectBlock,
    /// A block of a directory.
    Directory,
    /// A block of attributes.
    XattrBlock,
    /// A block of the orphan file.
    OrphanBlock,
    /// The block of multiple mount protection.
    Mmp,
    /// The log's superblock.
    JournalSuperblock,
    /// A descriptor in the log.
    JournalDescriptor,
    /// A copy in the log.
    JournalCopy,
    /// A revoke block in the log.
    JournalRevoke,
    /// A commit record.
    JournalCommit,
    /// The area of fast commits, up to its last record; the piece is the first block of the area.
    FastCommits,
}

/// Way to compute the checksum of a structure.
#[derive(Clone, Debug)]
enum Seal {
    Superblock,
    Descriptor(GroupNr),
    BlockBitmap(GroupNr),
    InodeBitmap(GroupNr),
    Inode(InodeNr),
    Block(SealFn, u64, u32),
    Mmp,
    JournalSuperblock,
    JournalTail,
    JournalCommit,
    FastCommits,
    /// A logged copy: its descriptor is at this byte, and its tag has this index.
    JournalCopy(usize, usize),
}

/// A structure in the image.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Its kind.
    pub kind: Kind,
    /// Its bytes in the image.
    pub bytes: Range<usize>,
    seal: Seal,
}

/// All structures of an image.
pub struct Atlas {
    /// The image's geometry.
    pub geo: Geometry,
    /// The structures.
    pub pieces: Vec<Piece>,
    /// Inodes in use.
    pub inodes: Vec<u32>,
    /// Blocks in use.
    pub blocks: Vec<u64>,
    journal: Option<JournalFormat>,
    /// The journal's blocks, in its own order.
    journal_map: BTreeMap<u32, u64>,
    /// Blocks of the area of fast commits.
    area: Vec<Range<usize>>,
}

impl Atlas {
    /// Finds all structures of a valid image.
    pub fn of(image: &[u8]) -> Atlas {
        let sb = superblock(image);
        let geo = Geometry::new(&sb).expect("a good image");
        let mut atlas = Atlas {
            geo,
            pieces: Vec::new(),
            inodes: Vec::new(),
            blocks: Vec::new(),
            journal: None,
            journal_map: BTreeMap::new(),
            area: Vec::new(),
        };
        let at = SUPERBLOCK_OFFSET as usize;
        atlas.add(Kind::Superblock, at..at + SUPERBLOCK_SIZE, Seal::Superblock);
        for group in 0..geo.groups_count {
            atlas.group(image, GroupNr(group));
        }
        if sb.incompat().contains(Incompat::MMP) {
            let bytes = atlas.block(sb.mmp_block().0);
            atlas.add(Kind::Mmp, bytes, Seal::Mmp);
        }
        for ino in atlas.inodes.clone() {
            atlas.inode(image, InodeNr(ino), &sb);
        }
        atlas
    }

    /// Returns the pieces of a kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(move |piece| piece.kind == kind)
    }

    /// Returns the slot of an inode.
    pub fn slot(&self, ino: u32) -> &Piece {
        let is = |piece: &&Piece| matches!(piece.seal, Seal::Inode(own) if own.0 == ino);
        self.pieces.iter().find(is).expect("an inode in use")
    }

    /// Returns the pieces that make an inode's tree: slot excluded.
    pub fn blocks_of(&self, ino: u32, generation: u32) -> Vec<&Piece> {
        let own = self.geo.inode_seed(InodeNr(ino), generation);
        self.pieces
            .iter()
            .filter(|piece| matches!(piece.seal, Seal::Block(_, _, seed) if seed == own))
            .collect()
    }

    fn add(&mut self, kind: Kind, bytes: Range<usize>, seal: Seal) {
        self.blocks.push(bytes.start as u64 / u64::from(self.geo.block_size));
        self.pieces.push(Piece { kind, bytes, seal });
    }

    /// Bytes of a block.
    pub fn block(&self, nr: u64) -> Range<usize> {
        let size = self.geo.block_size as usize;
        nr as usize * size..(nr as usize + 1) * size
    }

    /// Bytes of a block of the journal.
    pub fn journal_block(&self, at: u32) -> Range<usize> {
        self.block(self.journal_map[&at])
    }

    /// Returns the bytes of all blocks of the log.
    pub fn journal_blocks(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.journal_map.keys().map(|at| self.journal_block(*at))
    }

    fn descriptor(&self, group: GroupNr) -> Range<usize> {
        let (index, within) = self.geo.desc_location(group);
        let at = self.block(self.geo.gdt_block(index).0).start + within;
        at..at + usize::from(self.geo.desc_size)
    }

    fn group(&mut self, image: &[u8], group: GroupNr) {
        let geo = self.geo;
        let bytes = self.descriptor(group);
        let desc =
            GroupDesc::decode(&image[bytes.clone()], &geo, group).expect("a good descriptor");
        self.add(Kind::Descriptor, bytes, Seal::Descriptor(group));
        self.add(Kind::BlockBitmap, self.block(desc.block_bitmap), Seal::BlockBitmap(group));
        self.add(Kind::InodeBitmap, self.block(desc.inode_bitmap), Seal::InodeBitmap(group));
        if desc.has_flag(&geo, extant_format::GroupFlags::INODE_UNINIT) {
            return;
        }
        let bits = &image[self.block(desc.inode_bitmap)];
        let table = self.block(desc.inode_table).start;
        for index in (0..geo.inodes_per_group).filter(|index| bitmap::test(bits, *index as usize)) {
            let ino = geo.inode_at(group, index);
            let at = table + index as usize * usize::from(geo.inode_size);
            let slot = at..at + usize::from(geo.inode_size);
            if Inode::decode(&image[slot.clone()], &geo, ino)
                .is_ok_and(|inode| inode.mode != 0 || ino.0 < 11)
            {
                self.inodes.push(ino.0);
                self.add(Kind::Inode, slot, Seal::Inode(ino));
            }
        }
    }

    fn inode(&mut self, image: &[u8], ino: InodeNr, sb: &Superblock) {
        let inode = Inode::decode(&image[self.slot(ino.0).bytes.clone()], &self.geo, ino)
            .expect("a good inode");
        if inode.file_acl != 0 {
            let (nr, seed) = (inode.file_acl, self.geo.csum_seed);
            self.add(
                Kind::XattrBlock,
                self.block(nr),
                Seal::Block(self.sealed(seal_xattr_block), nr, seed),
            );
        }
        let inline = inode.flags.contains(InodeFlags::INLINE_DATA);
        if inline || !(inode.is_dir() || inode.is_regular()) || ino == InodeNr::RESIZE {
            return;
        }
        let map = self.map(image, ino, &inode);
        let seed = inode.seed(&self.geo, ino);
        let is_orphan_file =
            sb.compat().contains(Compat::ORPHAN_FILE) && ino == sb.orphan_file_inum();
        if sb.compat().contains(Compat::HAS_JOURNAL) && ino == sb.journal_inum() {
            self.journal(image, &map);
        } else if inode.is_dir() || is_orphan_file {
            let (kind, seal): (_, SealFn) = if inode.is_dir() {
                (Kind::Directory, seal_dir_block)
            } else {
                (Kind::OrphanBlock, seal_orphan_block)
            };
            for nr in map.values() {
                self.add(kind, self.block(*nr), Seal::Block(self.sealed(seal), *nr, seed));
            }
        }
    }

    fn sealed(&self, seal: SealFn) -> SealFn {
        if self.geo.metadata_csum { seal } else { seal_none }
    }

    fn map(&mut self, image: &[u8], ino: InodeNr, inode: &Inode) -> BTreeMap<u32, u64> {
        let mut map = BTreeMap::new();
        if inode.flags.contains(InodeFlags::EXTENTS) {
            self.extents(image, &inode.i_block, inode.seed(&self.geo, ino), &mut map)
        } else {
            self.pointers(image, &inode.i_block, inode.size, &mut map)
        }
        map
    }

    fn extents(&mut self, image: &[u8], bytes: &[u8], seed: u32, map: &mut BTreeMap<u32, u64>) {
        let node = Node::parse(bytes, None).expect("a good node");
        for leaf in node.leaves() {
            map.extend(
                (leaf.lblk..=leaf.last()).map(|lblk| (lblk, leaf.map(lblk).expect("inside"))),
            );
        }
        for index in node.indexes() {
            let block = self.block(index.child);
            self.add(
                Kind::ExtentBlock,
                block.clone(),
                Seal::Block(self.sealed(seal_extent_block), index.child, seed),
            );
            self.extents(image, &image[block], seed, map);
        }
    }

    fn pointers(&mut self, image: &[u8], i_block: &[u8], size: u64, map: &mut BTreeMap<u32, u64>) {
        let mut known = BTreeMap::new();
        for lblk in 0..size.div_ceil(self.geo.block_size.into()) as u32 {
            let path =
                indirect::Path::new(lblk, self.geo.block_size).expect("a block that a map reaches");
            let (first, rest) = path.offsets().split_first().expect("a level");
            let mut block = u64::from(indirect::pointer(i_block, *first as usize));
            for offset in rest {
                if block != 0 {
                    known.insert(block, ());
                    block = indirect::pointer(&image[self.block(block)], *offset as usize).into();
                }
            }
            if block != 0 {
                map.insert(lblk, block);
            }
        }
        for nr in known.into_keys() {
            self.add(Kind::IndirectBlock, self.block(nr), Seal::Block(seal_none, nr, 0));
        }
    }

    /// The log's superblock, and its blocks from the start of the log on.
    fn journal(&mut self, image: &[u8], map: &BTreeMap<u32, u64>) {
        let superblock = self.block(map[&0]);
        let sb = JournalSuperblock::parse(&image[superblock.clone()]).expect("a good journal");
        self.add(Kind::JournalSuperblock, superblock, Seal::JournalSuperblock);
        let format = sb.format();
        self.journal = Some(format);
        self.journal_map = map.clone();
        if let Some(first) = sb.fast_commit_area().map(|area| self.journal_block(area.start)) {
            let begun = records::read([&image[first.clone()]].into_iter());
            if begun.first().is_some_and(|record| record.kind == records::HEAD) {
                self.area = sb
                    .fast_commit_area()
                    .into_iter()
                    .flatten()
                    .map(|at| self.journal_block(at))
                    .collect();
                self.add(Kind::FastCommits, first, Seal::FastCommits);
            }
        }
        let (mut at, mut sequence) = (sb.start(), sb.sequence());
        let next = |at: u32| if at + 1 >= sb.log_end() { sb.first() } else { at + 1 };
        while at != 0 {
            let bytes = self.block(map[&at]);
            let block = &image[bytes.clone()];
            match BlockHeader::parse(block).filter(|h| h.sequence == sequence).map(|h| h.block_type)
            {
                Some(BlockType::Descriptor) => {
                    let start = bytes.start;
                    self.add(Kind::JournalDescriptor, bytes, Seal::JournalTail);
                    for (n, _) in Tags::new(block, &format).enumerate() {
                        at = next(at);
                        self.add(
                            Kind::JournalCopy,
                            self.block(map[&at]),
                            Seal::JournalCopy(start, n),
                        );
                    }
                }
                Some(BlockType::Revoke) => self.add(Kind::JournalRevoke, bytes, Seal::JournalTail),
                Some(BlockType::Commit) => {
                    self.add(Kind::JournalCommit, bytes, Seal::JournalCommit);
                    sequence = sequence.wrapping_add(1);
                }
                _ => return,
            }
            at = next(at);
        }
    }

    /// Recomputes the checksum of a changed structure, if it has one.
    pub fn seal(&self, image: &mut [u8], piece: &Piece) {
        let bytes = piece.bytes.clone();
        match &piece.seal {
            Seal::Superblock => {
                let sealed =
                    Superblock::parse_unverified(&image[bytes.clone()]).map(|mut sb| sb.seal());
                if let Ok(sealed) = sealed {
                    image[bytes].copy_from_slice(&sealed);
                }
            }
            Seal::Descriptor(group) => self.change_descriptor(image, *group, |_, _| ()),
            Seal::BlockBitmap(group) => {
                let sum = block_bitmap_checksum(&image[bytes], &self.geo);
                self.change_descriptor(image, *group, |desc, _| {
                    desc.block_bitmap_csum = sum.unwrap_or(0)
                });
            }
            Seal::InodeBitmap(group) => {
                let sum = inode_bitmap_checksum(&image[bytes], &self.geo);
                self.change_descriptor(image, *group, |desc, _| {
                    desc.inode_bitmap_csum = sum.unwrap_or(0)
                });
            }
            Seal::Inode(ino) => seal_inode(&mut image[bytes], &self.geo, *ino),
            Seal::Block(seal, nr, seed) => seal(&mut image[bytes], *nr, *seed),
            Seal::Mmp => {
                let seed = self.geo.metadata_csum.then_some(self.geo.csum_seed);
                if let Ok(mmp) = Mmp::parse(&image[bytes.clone()], None) {
                    mmp.encode(&mut image[bytes], seed);
                }
            }
            Seal::JournalSuperblock => {
                if let Ok(mut sb) = JournalSuperblock::parse_unverified(&image[bytes.clone()]) {
                    let sealed = sb.seal();
                    image[bytes.start..bytes.start + sealed.len()].copy_from_slice(&sealed);
                }
            }
            Seal::JournalTail => self.log().seal_tail(&mut image[bytes]),
            Seal::JournalCommit => {
                if let Some(commit) = CommitBlock::parse(&image[bytes.clone()]) {
                    commit.encode(&mut image[bytes], &self.log(), 0);
                }
            }
            Seal::FastCommits => self.change_records(image, |_| ()),
            Seal::JournalCopy(descriptor, index) => {
                self.seal_copy(image, bytes, *descriptor, *index)
            }
        }
    }

    /// Changes the records of fast commits and rewrites them with valid tails.
    pub fn change_records(&self, image: &mut [u8], change: impl FnOnce(&mut Vec<Record>)) {
        let mut found = records::read(self.area.iter().map(|at| &image[at.clone()]));
        let tid = found
            .first()
            .and_then(|head| head.value.get(4..8)?.try_into().ok())
            .map_or(0, u32::from_le_bytes);
        change(&mut found);
        let mut blocks: Vec<Vec<u8>> = self.area.iter().map(|at| vec![0; at.len()]).collect();
        records::write(&found, tid, blocks.iter_mut().map(|block| &mut block[..]));
        self.area
            .iter()
            .zip(&blocks)
            .for_each(|(at, block)| image[at.clone()].copy_from_slice(block));
    }

    fn log(&self) -> JournalFormat {
        self.journal.expect("an image with a journal")
    }

    fn change_descriptor(
        &self,
        image: &mut [u8],
        group: GroupNr,
        change: impl FnOnce(&mut GroupDesc, &Geometry),
    ) {
        let bytes = &mut image[self.descriptor(group)];
        let mut desc = GroupDesc::decode_unverified(bytes, &self.geo);
        change(&mut desc, &self.geo);
        desc.encode(bytes, &self.geo, group);
    }

    fn seal_copy(&self, image: &mut [u8], copy: Range<usize>, descriptor: usize, index: usize) {
        self.change_tags(image, descriptor, |n, tag, sequence, image| {
            if n == index {
                tag.checksum = self.log().tag_checksum(sequence, &image[copy.clone()]);
            }
        });
    }

    /// Rewrites the descriptor at a byte with changed tags.
    pub fn change_tags(
        &self,
        image: &mut [u8],
        descriptor: usize,
        change: impl Fn(usize, &mut Tag, u32, &[u8]),
    ) {
        let bytes = descriptor..descriptor + self.geo.block_size as usize;
        let Some(header) = BlockHeader::parse(&image[bytes.clone()]) else { return };
        let mut tags: Vec<Tag> = Tags::new(&image[bytes.clone()], &self.log()).collect();
        for (n, tag) in tags.iter_mut().enumerate() {
            change(n, tag, header.sequence, image);
        }
        let format = self.log();
        let mut builder = DescriptorBuilder::new(&mut image[bytes], &format, header.sequence);
        let _all = tags.into_iter().all(|tag| builder.push(tag));
        builder.finish();
    }
}

/// Returns the superblock of an image, unverified.
pub fn superblock(image: &[u8]) -> Superblock {
    let at = SUPERBLOCK_OFFSET as usize;
    Superblock::parse_unverified(&image[at..at + SUPERBLOCK_SIZE]).expect("a superblock")
}

/// Changes fields of the superblock and seals it.
pub fn change_superblock(image: &mut [u8], change: impl FnOnce(&mut Superblock)) {
    let mut sb = superblock(image);
    change(&mut sb);
    let at = SUPERBLOCK_OFFSET as usize;
    image[at..at + SUPERBLOCK_SIZE].copy_from_slice(&sb.seal());
}

impl Atlas {
    /// An inode as it is in the image.
    pub fn read_inode(&self, image: &[u8], ino: u32) -> Inode {
        let slot = &image[self.slot(ino).bytes.clone()];
        Inode::decode_unverified(slot, &self.geo, InodeNr(ino)).expect("an inode")
    }

    /// Changes an inode and seals it.
    pub fn change_inode(&self, image: &mut [u8], ino: u32, change: impl FnOnce(&mut Inode)) {
        let slot = self.slot(ino).bytes.clone();
        let mut inode = self.read_inode(image, ino);
        change(&mut inode);
        inode
            .encode(&mut image[slot], &self.geo, InodeNr(ino))
            .expect("an inode that can be written");
    }

    /// Changes a group descriptor and seals it.
    pub fn change_group(&self, image: &mut [u8], group: u32, change: impl FnOnce(&mut GroupDesc)) {
        self.change_descriptor(image, GroupNr(group), |desc, _| change(desc));
    }
}
