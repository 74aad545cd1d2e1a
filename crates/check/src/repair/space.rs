//! Free blocks for new structures.
//!
//! # Invariants
//! A block is taken in the claims of the survey at once, so that it is given out once. The next
//! survey finds it through the structure that has it, or it is free again.

use super::RepairError;
use super::draft::Round;
use crate::claims::ClaimMap;
use crate::finding::Finding;
use crate::maps::{MapVisitor, Run, walk};
use crate::passes::inodes::has_map;
use extant_format::{GroupNr, Inode, InodeNr, bitmap};

/// Maximum number of places where blocks have several owners.
const MAX_CONTESTED: usize = 1 << 16;

/// A visitor that claims all blocks of a map.
struct ClaimEach<'c> {
    claims: &'c ClaimMap,
    nodes: &'c ClaimMap,
}

impl MapVisitor for ClaimEach<'_> {
    fn enter(&mut self, block: u64) -> bool {
        let range = block..block.saturating_add(1);
        self.claims.claim_all(range.clone());
        self.nodes.claim(range).is_none()
    }

    fn run(&mut self, run: Run) {
        self.claims.claim_all(run.blocks());
    }

    fn bad(&mut self, _: Finding) {}
}

impl Round<'_> {
    /// Claims all blocks that have several owners. The survey's claims stop at the first one of a
    /// run, and the rest of the run must not be taken for free.
    pub fn complete_claims(&self) -> Result<(), RepairError> {
        let (volume, geometry) = (&self.survey.volume, self.geometry());
        match self.survey.inodes.contested.len() {
            0 => return Ok(()),
            MAX_CONTESTED.. => {
                return Err(RepairError::Unsupported("so many blocks with several owners"));
            }
            _ => {}
        }
        let nodes = ClaimMap::of_blocks(geometry, volume.groups.len());
        for group in volume.reader.groups() {
            volume.each_slot(group, &mut |ino, slot| {
                let inode = Inode::decode_unverified(slot, geometry, ino);
                let used = |inode: &Inode| inode.links > 0 || ino == InodeNr::BAD_BLOCKS;
                let Some(inode) = inode.ok().filter(used) else { return };
                self.survey.claims.claim_all(inode.file_acl..inode.file_acl.saturating_add(1));
                if ino != InodeNr::RESIZE && has_map(volume, &inode) {
                    let mut visitor = ClaimEach { claims: &self.survey.claims, nodes: &nodes };
                    walk(&volume.reader, ino, &inode, &mut visitor);
                }
            });
        }
        Ok(())
    }

    /// Takes a free block, zeroed: with clusters, the first one of a free cluster.
    pub fn allocate(&self) -> Result<u64, RepairError> {
        let groups = self.survey.volume.groups.len();
        let first = self.geometry().group_of_block(extant_format::BlockNr(self.next.get()));
        let first = first.map_or(0, GroupNr::index).min(groups);
        for group in (first..groups).chain(0..first) {
            if let Some(block) = self.allocate_in(GroupNr(group as u32)) {
                self.next.set(block.saturating_add(self.geometry().cluster_ratio().into()));
                self.put(block, &vec![0; self.block_size()])?;
                return Ok(block);
            }
        }
        Err(RepairError::NoSpace)
    }

    fn allocate_in(&self, group: GroupNr) -> Option<u64> {
        let geometry = self.geometry();
        let clusters = geometry.clusters_in_group(group) as usize;
        let start = geometry.first_block_of_group(group).0;
        let from = self.next.get().saturating_sub(start) >> geometry.cluster_bits;
        let from = usize::try_from(from).ok().filter(|from| *from < clusters).unwrap_or(0);
        let mut used = vec![0; self.block_size()];
        self.survey.claims.copy_group(group, &mut used);
        let bit = bitmap::find_next_zero(&used, from, clusters)
            .or_else(|| bitmap::find_next_zero(&used, 0, clusters))?;
        let block = geometry.block_of_bit(group, bit as u32).0;
        let free = self.survey.claims.claim(block..block.saturating_add(1)).is_none();
        (free && block < self.survey.volume.reader.device_blocks()).then_some(block)
    }

    /// Takes a run of free blocks, zeroed, in a group or in a later one.
    pub fn allocate_run(&self, group: GroupNr, blocks: u64) -> Result<u64, RepairError> {
        let geometry = self.geometry();
        let count = blocks.div_ceil(geometry.cluster_ratio().max(1).into()) as usize;
        for group in (group.0..self.survey.volume.groups.len() as u32).map(GroupNr) {
            let mut used = vec![0; self.block_size()];
            self.survey.claims.copy_group(group, &mut used);
            let end = geometry.clusters_in_group(group) as usize;
            let mut from = 0;
            while let Some(run) = bitmap::next_zero_run(&used, from, end) {
                if run.len() >= count {
                    let first = geometry.block_of_bit(group, run.start as u32).0;
                    let blocks = first..first.saturating_add(blocks);
                    self.survey.claims.claim_all(blocks.clone());
                    let zeroes = vec![0; self.block_size()];
                    blocks.into_iter().try_for_each(|nr| self.put(nr, &zeroes))?;
                    return Ok(first);
                }
                from = run.end;
            }
        }
        Err(RepairError::NoSpace)
    }

    /// Takes a free inode number whose slot is read by the passes.
    pub fn allocate_inode(&self) -> Result<InodeNr, RepairError> {
        let geometry = self.geometry();
        for group in self.survey.volume.reader.groups() {
            let Some(state) = self.survey.volume.groups.get(group.index()) else { continue };
            let facts = self.survey.inodes.facts.group(group);
            for index in 0..state.inodes(&self.survey.volume.reader) {
                let ino = geometry.inode_at(group, index);
                let used = facts.get(index as usize).is_some_and(|fact| fact.is_used());
                if !used && ino.0 >= geometry.first_ino && self.inode(ino)?.links == 0 {
                    return Ok(ino);
                }
            }
        }
        Err(RepairError::NoSpace)
    }
}
