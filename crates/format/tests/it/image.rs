//! Reading an image block by block.

use extant_format::group_desc::GroupDesc;
use extant_format::inode::Inode;
use extant_format::types::{BlockNr, GroupNr, InodeNr};
use extant_format::{Geometry, Superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub struct Image {
    file: File,
    pub sb: Superblock,
    pub geo: Geometry,
}

impl Image {
    pub fn open(path: &Path) -> Image {
        let file = File::open(path).expect("the image");
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, 1024).expect("a superblock");
        let sb = Superblock::parse(&bytes).expect("a good superblock");
        let geo = Geometry::new(&sb).expect("a good geometry");
        Image { file, sb, geo }
    }

    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).expect("bytes of the image");
        bytes
    }

    pub fn block(&self, nr: u64) -> Vec<u8> {
        self.bytes(nr * u64::from(self.geo.block_size), self.geo.block_size as usize)
    }

    pub fn desc_bytes(&self, group: GroupNr) -> Vec<u8> {
        let (index, offset) = self.geo.desc_location(group);
        let BlockNr(block) = self.geo.gdt_block(index);
        self.block(block)[offset..offset + usize::from(self.geo.desc_size)].to_vec()
    }

    pub fn desc(&self, group: GroupNr) -> GroupDesc {
        GroupDesc::decode(&self.desc_bytes(group), &self.geo, group).expect("a good descriptor")
    }

    pub fn slot(&self, ino: InodeNr) -> Vec<u8> {
        let (group, index) = self.geo.inode_location(ino).expect("an inode of the file system");
        let (block, offset) = self.geo.inode_slot(index);
        let table = self.desc(group).inode_table + u64::from(block);
        self.block(table)[offset..offset + usize::from(self.geo.inode_size)].to_vec()
    }

    pub fn inode(&self, ino: InodeNr) -> Inode {
        Inode::decode(&self.slot(ino), &self.geo, ino).expect("a good inode")
    }
}
