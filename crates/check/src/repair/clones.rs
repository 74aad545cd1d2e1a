//! Blocks with several owners: the first owner keeps them, the others get copies.

use super::draft::Round;
use super::{RepairError, listed_blocks};
use crate::claims::ClaimMap;
use crate::maps::Run;
use crate::passes::inodes::has_map;
use extant_format::xattr::seal_xattr_block;
use extant_format::{Inode, InodeNr};
use std::collections::BTreeSet;

/// The owners of blocks so far, in the order of inode numbers.
struct Owners {
    /// Clusters of inodes, and metadata.
    clusters: ClaimMap,
    /// Nodes of maps.
    nodes: ClaimMap,
    /// Blocks that may still be cloned: as many as are free.
    budget: u64,
    /// Blocks that are listed as bad. Others that cannot be read end the repair.
    listed: BTreeSet<u64>,
}

impl Round<'_> {
    /// Gives each owner blocks of its own, but for blocks of attributes with the same content.
    pub fn clone_blocks(&self) -> Result<(), RepairError> {
        let volume = &self.survey.volume;
        let (geometry, groups) = (self.geometry(), volume.groups.len());
        if geometry.has_bigalloc() {
            return Err(RepairError::Unsupported("clusters with several owners (bigalloc)"));
        }
        let clusters = ClaimMap::of_clusters(geometry, groups);
        volume.claim_metadata(&clusters);
        let nodes = ClaimMap::of_blocks(geometry, groups);
        let listed = listed_blocks(&volume.reader).unwrap_or_default();
        let mut owners = Owners { clusters, nodes, budget: self.free_blocks(), listed };
        for group in volume.reader.groups() {
            let mut inodes = Vec::new();
            volume.each_slot(group, &mut |ino, slot| {
                let inode = Inode::decode_unverified(slot, geometry, ino);
                let used = |inode: &Inode| inode.links > 0 || ino == InodeNr::BAD_BLOCKS;
                inodes.extend(inode.ok().filter(used).map(|inode| (ino, inode)));
            });
            for (ino, inode) in inodes {
                self.separate(ino, &inode, &mut owners)?;
            }
        }
        self.separate_attributes(&owners)
    }

    /// Returns the content for the copy of a block: zeroes, if the block is bad and unreadable.
    fn copied(&self, nr: u64, owners: &Owners) -> Result<Vec<u8>, RepairError> {
        match self.block(nr) {
            Err(_) if owners.listed.contains(&nr) => Ok(vec![0; self.block_size()]),
            read => Ok(read?),
        }
    }

    fn free_blocks(&self) -> u64 {
        let geometry = self.geometry();
        let mut bits = vec![0; self.block_size()];
        let free = self.survey.volume.reader.groups().map(|group| {
            self.survey.claims.copy_group(group, &mut bits);
            let clusters = geometry.clusters_in_group(group) as usize;
            extant_format::bitmap::count_zeros(&bits, 0..clusters) as u64
        });
        free.sum()
    }

    /// Gives an inode copies of the blocks that earlier inodes have.
    fn separate(
        &self,
        ino: InodeNr,
        inode: &Inode,
        owners: &mut Owners,
    ) -> Result<(), RepairError> {
        if ino == InodeNr::RESIZE {
            let dind = u64::from(extant_format::indirect::pointer(
                &inode.i_block,
                extant_format::indirect::DIND,
            ));
            owners.clusters.claim(dind..dind.saturating_add(1));
            return Ok(());
        }
        if !has_map(&self.survey.volume, inode) {
            return Ok(());
        }
        let mut visitor = NodeClaims { runs: Vec::new(), shared: false, owners };
        crate::maps::walk(&self.survey.volume.reader, ino, inode, &mut visitor);
        let (runs, mut shared) = (std::mem::take(&mut visitor.runs), visitor.shared);
        let mut own = Vec::new();
        for run in &runs {
            shared |= self.separate_run(*run, &mut own, owners)?;
        }
        if shared { self.write_map(ino, &own) } else { Ok(()) }
    }

    /// Adds the parts of a run to `own`, copied where they have an owner. Returns whether any has.
    fn separate_run(
        &self,
        run: Run,
        own: &mut Vec<Run>,
        owners: &mut Owners,
    ) -> Result<bool, RepairError> {
        let (mut next, mut shared) = (run, false);
        while next.len > 0 {
            // A claim that meets another one may set bits behind it, too.
            let taken = owners.clusters.first_claimed(next.blocks());
            let before = taken.map_or(next.len, |taken| taken.saturating_sub(next.physical));
            owners.clusters.claim_all(next.physical..next.physical.saturating_add(before));
            Run { len: before, ..next }.add_to(own);
            next.logical = next.logical.saturating_add(before);
            next.physical = next.physical.saturating_add(before);
            next.len = next.len.saturating_sub(before);
            if next.len > 0 {
                shared = true;
                owners.budget = owners.budget.checked_sub(1).ok_or(RepairError::NoSpace)?;
                let copy = self.allocate()?;
                self.put(copy, &self.copied(next.physical, owners)?)?;
                Run { physical: copy, len: 1, ..next }.add_to(own);
                next.logical = next.logical.saturating_add(1);
                next.physical = next.physical.saturating_add(1);
                next.len = next.len.saturating_sub(1);
            }
        }
        Ok(shared)
    }

    /// Copies blocks of attributes that files have, too.
    fn separate_attributes(&self, owners: &Owners) -> Result<(), RepairError> {
        for nr in self.survey.inodes.shared.blocks() {
            let taken = owners.clusters.claim(nr..nr.saturating_add(1)).is_some();
            if !taken || !self.survey.volume.is_block(nr) {
                continue;
            }
            let mut bytes = self.copied(nr, owners)?;
            let copy = self.allocate()?;
            if self.geometry().metadata_csum {
                seal_xattr_block(&mut bytes, copy, self.geometry().csum_seed);
            }
            self.put(copy, &bytes)?;
            self.redirect_attributes(nr, copy)?;
        }
        Ok(())
    }

    fn redirect_attributes(&self, from: u64, to: u64) -> Result<(), RepairError> {
        let volume = &self.survey.volume;
        let mut inodes = Vec::new();
        for group in volume.reader.groups() {
            volume.each_slot(group, &mut |ino, slot| {
                let inode = Inode::decode_unverified(slot, self.geometry(), ino);
                if inode.is_ok_and(|inode| inode.file_acl == from && inode.links > 0) {
                    inodes.push(ino);
                }
            });
        }
        inodes.into_iter().try_for_each(|ino| self.edit_inode(ino, |inode| inode.file_acl = to))
    }
}

/// A visitor that gives nodes to the first inode that has them.
struct NodeClaims<'n> {
    runs: Vec<Run>,
    /// A node has an owner already, so that this map loses the part below it.
    shared: bool,
    owners: &'n Owners,
}

impl crate::maps::MapVisitor for NodeClaims<'_> {
    fn enter(&mut self, block: u64) -> bool {
        let range = block..block.saturating_add(1);
        let own = self.owners.nodes.claim(range.clone()).is_none()
            && self.owners.clusters.claim(range).is_none();
        self.shared |= !own;
        own
    }

    fn run(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn bad(&mut self, _: crate::finding::Finding) {}
}
