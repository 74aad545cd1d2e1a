//! Space behind inode tables.
//!
//! For example, tables of 100 blocks are to get 200, and begin at blocks 300, 400 and 500. Blocks
//! 600 to 699 are free: the third table stays. The others move to 700 and 900, and blocks 300 to
//! 499 become free.
//!
//! # Invariants
//! A table moves to blocks that are free in the survey, all of them in a row: in its own group, or
//! with `flex_bg` in any one.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

use crate::repair::Round;
use crate::tune::TuneError;
use extant_format::{BlockNr, Geometry, GroupFlags, GroupNr, Incompat, bitmap};

/// Moves all tables, in their present form, that lack free blocks behind them for that of another
/// geometry. Returns whether one did.
pub fn make(round: &Round<'_>, new: &Geometry) -> Result<bool, TuneError> {
    let groups: Vec<GroupNr> = round.survey.volume.reader.groups().collect();
    let mut space = Space { round, len: new.inode_table_blocks().into(), next: 0 };
    // Those that stay keep the blocks behind them.
    let moving: Vec<GroupNr> = groups.into_iter().filter(|group| !space.stays(*group)).collect();
    for group in &moving {
        let place = space.find(*group).ok_or_else(|| space.missing(*group))?;
        move_table(round, *group, place)?;
    }
    Ok(!moving.is_empty())
}

/// The space for tables.
struct Space<'s> {
    round: &'s Round<'s>,
    /// Blocks of a table of the new form.
    len: u64,
    /// The group in which the last table got its place.
    next: u32,
}

impl Space<'_> {
    fn is_flexible(&self) -> bool {
        self.round.geometry().incompat(Incompat::FLEX_BG)
    }

    /// Returns whether the blocks behind a table are free, and claims them.
    fn stays(&self, group: GroupNr) -> bool {
        let (geometry, survey) = (self.round.geometry(), self.round.survey);
        let start = survey.volume.groups.get(group.index()).map_or(0, |g| g.desc.inode_table);
        let (from, to) = (start + u64::from(geometry.inode_table_blocks()), start + self.len);
        let first = geometry.first_block_of_group(group).0;
        let end = if self.is_flexible() {
            geometry.blocks_count
        } else {
            first + u64::from(geometry.blocks_in_group(group))
        };
        if to > end {
            return false;
        }
        // Structures share the clusters at their ends, of which the map of blocks tells.
        let mask = u64::from(geometry.cluster_ratio()) - 1;
        let of_from = geometry.group_of_block(BlockNr(from - 1)).unwrap_or(group);
        let base = geometry.first_block_of_group(of_from).0;
        let shared = from..(base + ((from - base + mask) & !mask)).min(to);
        let (metadata, claims) = (&survey.volume.metadata, &survey.claims);
        let is_free = metadata.first_claimed(shared.clone()).is_none()
            && claims.first_claimed(shared.end..to).is_none();
        if is_free {
            metadata.claim_all(shared.clone());
            claims.claim_all(shared.end..to);
        }
        is_free
    }

    /// Takes the blocks of a table. Returns the first one.
    fn find(&mut self, group: GroupNr) -> Option<u64> {
        let groups = self.round.geometry().groups_count;
        if let Some(place) = self.find_in(group) {
            return Some(place);
        }
        if !self.is_flexible() {
            return None;
        }
        let others = (self.next..groups).chain(0..self.next);
        let (other, place) = others.map(GroupNr).find_map(|g| Some((g, self.find_in(g)?)))?;
        self.next = other.0;
        Some(place)
    }

    fn find_in(&self, group: GroupNr) -> Option<u64> {
        let (geometry, claims) = (self.round.geometry(), &self.round.survey.claims);
        let mut used = vec![0; geometry.block_size as usize];
        claims.copy_group(group, &mut used);
        let end = geometry.clusters_in_group(group) as usize;
        let whole =
            geometry.first_block_of_group(group).0 + u64::from(geometry.blocks_in_group(group));
        let mut from = 0;
        while let Some(run) = bitmap::next_zero_run(&used, from, end) {
            let place = geometry.block_of_bit(group, run.start as u32).0;
            let behind = (place + ((run.len() as u64) << geometry.cluster_bits)).min(whole);
            if behind - place >= self.len {
                claims.claim_all(place..place + self.len);
                return Some(place);
            }
            from = run.end;
        }
        None
    }

    fn missing(&self, group: GroupNr) -> TuneError {
        if self.is_flexible() {
            return TuneError::NoSpace;
        }
        TuneError::Unsupported(format!(
            "the inode table of group {} takes {} blocks, and so many are not free in a row in the \
             group: free some, or copy the files into a new file system (`extant build`)",
            group.0, self.len
        ))
    }
}

/// Copies the inodes of a table that may be in use, and changes the descriptor.
fn move_table(round: &Round<'_>, group: GroupNr, place: u64) -> Result<(), TuneError> {
    let (volume, geometry) = (&round.survey.volume, round.geometry());
    let Some(state) = volume.groups.get(group.index()) else { return Ok(()) };
    let count = state.inodes(&volume.reader);
    for nr in 0..u64::from(count.div_ceil(geometry.inodes_per_block())) {
        round.put(place + nr, &round.block(state.desc.inode_table + nr)?)?;
    }
    round.edit_desc(group, |desc| {
        desc.inode_table = place;
        if count < geometry.inodes_per_group {
            desc.flags.remove(GroupFlags::INODE_ZEROED);
        }
    })?;
    Ok(())
}
