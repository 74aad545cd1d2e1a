//! Inodes, maps and blocks that move below the new end.
//!
//! For example, a file system of three groups of 8192 blocks gets two of them. Inode 4100 of group
//! 2 becomes inode 31: its slot is written there, with the checksum for the new number. Its blocks
//! 17000 to 17099 are copied to 5000 to 5099, and a new map leads there. The old slot, map and
//! blocks stay as they are.
//!
//! # Invariants
//! Content is only written into blocks and slots that are free in the survey.
#![expect(clippy::arithmetic_side_effects, reason = "numbers of a file system without damage")]

use crate::facts::InodeState;
use crate::maps::{MapVisitor, Run, Runs, walk};
use crate::passes::inodes::has_map;
use crate::repair::{FreeSpace, Round};
use crate::resize::ResizeError;
use crate::volume::Volume;
use extant_format::inode::tail;
use extant_format::xattr::{Entry, Value, decode_inode_area, encode_inode_area, inode_entry_hash};
use extant_format::{Geometry, GroupFlags, GroupNr, Inode, InodeFlags, InodeNr};
use std::collections::BTreeMap;

/// Blocks of a file whose content is copied on the device.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

/// The changes of a smaller size, made in the draft of a round.
pub struct Mover<'m> {
    pub round: &'m Round<'m>,
    /// The first block behind the new end, and the number of groups before it.
    pub end: u64,
    pub groups: u32,
    pub space: FreeSpace<'m>,
    /// The new numbers of inodes that get one.
    pub numbers: BTreeMap<u32, InodeNr>,
    /// The new places of blocks of attributes.
    pub attributes: BTreeMap<u64, u64>,
    /// Contents that are not in the draft.
    pub copies: Vec<Copied>,
    /// Maximum number of inodes that get another number, of blocks of attributes that move, and of
    /// other inodes whose blocks do.
    pub limit: usize,
    /// The number of inodes that have moved.
    pub moved: usize,
}

/// The reason for an inode to move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// A reference to it, or in it, changes.
    Reference,
    /// It has blocks behind the end.
    Blocks,
}

/// A visitor that finds out whether a map has a block behind the end.
struct Beyond {
    end: u64,
    found: bool,
}

impl MapVisitor for Beyond {
    fn enter(&mut self, block: u64) -> bool {
        self.found |= block >= self.end;
        true
    }

    fn run(&mut self, run: Run) {
        self.found |= run.blocks().end > self.end;
    }

    fn bad(&mut self, _: crate::finding::Finding) {}
}

fn no_space() -> ResizeError {
    ResizeError::Full("too few blocks are free below that size".into())
}

impl<'m> Mover<'m> {
    pub fn new(round: &'m Round<'m>, end: u64, groups: u32) -> Mover<'m> {
        let space = FreeSpace::new(&round.survey.claims, *round.geometry());
        let (numbers, attributes) = Default::default();
        let (copies, limit, moved) = (Vec::new(), usize::MAX, 0);
        Mover { round, end, groups, space, numbers, attributes, copies, limit, moved }
    }

    pub fn volume(&self) -> &'m Volume<'m> {
        &self.round.survey.volume
    }

    fn geometry(&self) -> &'m Geometry {
        self.round.geometry()
    }

    /// Takes a cluster. Returns its first block.
    pub fn take(&mut self) -> Result<u64, ResizeError> {
        self.space.take_one().ok_or_else(no_space)
    }

    /// Returns the number that an inode has after the change.
    pub fn number(&self, ino: InodeNr) -> InodeNr {
        self.numbers.get(&ino.0).copied().unwrap_or(ino)
    }

    /// Finds new numbers for the inodes of the groups that go.
    pub fn find_numbers(&mut self) -> Result<(), ResizeError> {
        let (geometry, facts) = (self.geometry(), &self.round.survey.inodes.facts);
        let mut free = (0..self.groups).map(GroupNr).flat_map(|group| {
            let known = facts.group(group);
            let is_free =
                move |index: &u32| known.get(*index as usize).is_none_or(|fact| !fact.is_used());
            let all = (0..geometry.inodes_per_group).filter(is_free);
            let numbers = all.map(move |index| geometry.inode_at(group, index));
            numbers.filter(|ino| ino.0 >= geometry.first_ino)
        });
        for group in (self.groups..geometry.groups_count).map(GroupNr) {
            for (index, fact) in (0..).zip(facts.group(group)) {
                if fact.is_used() && self.numbers.len() < self.limit {
                    let why = "too few inodes are free below that size";
                    let new = free.next().ok_or_else(|| ResizeError::Full(why.into()))?;
                    self.numbers.insert(geometry.inode_at(group, index).0, new);
                }
            }
        }
        let stable = geometry.compat(extant_format::Compat::STABLE_INODES);
        if stable && !self.numbers.is_empty() {
            let why = "its inodes must keep their numbers (stable_inodes), and some are behind \
                       that size";
            return Err(ResizeError::Size(why.into()));
        }
        Ok(())
    }

    /// Moves slots, maps and data.
    pub fn move_inodes(&mut self) -> Result<(), ResizeError> {
        let mut tables = Tables::default();
        for group in self.volume().reader.groups() {
            let mut list = Vec::new();
            self.volume().each_slot(group, &mut |ino, slot| {
                list.extend(self.reason(ino, slot).map(|reason| (ino, reason)));
            });
            // Blocks of those that get another number in a later step move then.
            let mut left = self.limit.saturating_sub(self.moved);
            if group.0 >= self.groups && self.limit < usize::MAX {
                left = 0;
            }
            list.retain(|(_, reason)| {
                let moves = *reason == Reason::Reference || left > 0;
                left -= usize::from(moves && *reason == Reason::Blocks);
                moves
            });
            let list = list.into_iter().map(|(ino, _)| ino);
            let list: Vec<InodeNr> = list.collect();
            self.moved += list.len();
            list.into_iter().try_for_each(|ino| self.move_inode(ino, &mut tables))?;
        }
        Ok(())
    }

    fn reason(&self, ino: InodeNr, slot: &[u8]) -> Option<Reason> {
        let (volume, geometry) = (self.volume(), self.geometry());
        self.round.survey.inodes.facts.get(volume, ino).filter(|_| ino != InodeNr::RESIZE)?;
        let inode = Inode::decode_unverified(slot, geometry, ino).ok()?;
        if self.numbers.contains_key(&ino.0)
            || self.attributes.contains_key(&inode.file_acl)
            || self.has_moved_value(&decode_area(slot, geometry, &inode))
        {
            return Some(Reason::Reference);
        }
        let mut beyond = Beyond { end: self.end, found: false };
        if has_map(volume, &inode) {
            walk(&volume.reader, ino, &inode, &mut beyond);
        }
        beyond.found.then_some(Reason::Blocks)
    }

    /// Clears the slots of inodes that have another number.
    pub fn clear_old_slots(&self) -> Result<(), ResizeError> {
        for ino in self.numbers.keys() {
            self.round.edit_slot(InodeNr(*ino), |slot| {
                slot.fill(0);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn move_inode(&mut self, ino: InodeNr, tables: &mut Tables) -> Result<(), ResizeError> {
        let (round, new) = (self.round, self.number(ino));
        if new != ino {
            tables.prepare(round, new)?;
            let old = round.slot(ino)?;
            round.edit_slot(new, |slot| {
                slot.iter_mut().zip(&old).for_each(|(to, from)| *to = *from);
                Ok(())
            })?;
        }
        let inode = round.inode(new)?;
        if has_map(self.volume(), &inode) {
            self.move_map(ino, &inode)?;
        }
        if let Some(block) = self.attributes.get(&inode.file_acl).copied() {
            round.edit_inode(new, |inode| inode.file_acl = block)?;
        }
        self.change_values(new)
    }

    /// Moves the blocks of a map behind the end, and writes the map anew.
    fn move_map(&mut self, ino: InodeNr, inode: &Inode) -> Result<(), ResizeError> {
        let runs = Runs::of(&self.volume().reader, ino, inode);
        if runs.damaged {
            let why = format!("the map of inode {ino} has too many parts to be moved");
            return Err(ResizeError::Unsupported(why));
        }
        if ino == InodeNr::BAD_BLOCKS {
            let why = "it has a list of bad blocks behind that size";
            return Err(ResizeError::Size(why.into()));
        }
        let is_plain = inode.is_regular()
            && !inode.flags.contains(InodeFlags::EA_INODE)
            && self.is_ordinary(ino);
        let mut moved = Moved { runs: Vec::new(), last: None };
        for run in runs.runs {
            self.move_run(run, &mut moved, is_plain)?;
        }
        Ok(self.round.write_map(self.number(ino), &moved.runs)?)
    }

    /// Returns whether an inode is no file of the file system itself.
    fn is_ordinary(&self, ino: InodeNr) -> bool {
        let fact = self.round.survey.inodes.facts.get(self.volume(), ino);
        fact.is_some_and(|fact| fact.state == InodeState::Used)
    }

    fn move_run(&mut self, run: Run, moved: &mut Moved, is_plain: bool) -> Result<(), ResizeError> {
        let kept = self.end.saturating_sub(run.physical).min(run.len);
        if kept > 0 {
            Run { len: kept, ..run }.add_to(&mut moved.runs);
        }
        let bits = self.geometry().cluster_bits;
        let mask = u64::from(self.geometry().cluster_ratio()) - 1;
        let mut done = kept;
        while done < run.len {
            let (from, left) = (run.physical + done, run.len - done);
            let within = from & mask;
            let blocks = match moved.last {
                // The file has other blocks of this cluster.
                Some((old, new)) if old == from >> bits => new << bits..(new + 1) << bits,
                _ => self.space.take((within + left + mask) >> bits).ok_or_else(no_space)?,
            };
            let to = blocks.start + within;
            let len = (blocks.end - to).min(left);
            moved.last = Some(((from + len - 1) >> bits, (to + len - 1) >> bits));
            Run { logical: run.logical + done, physical: to, len, ..run }.add_to(&mut moved.runs);
            if !run.unwritten {
                self.copy(Copied { from, to, len }, is_plain)?;
            }
            done += len;
        }
        Ok(())
    }

    /// Copies content: that of files on the device, that of structures in the draft.
    fn copy(&mut self, copied: Copied, is_plain: bool) -> Result<(), ResizeError> {
        if is_plain {
            self.copies.push(copied);
            return Ok(());
        }
        for n in 0..copied.len {
            self.round.put(copied.to + n, &self.round.block(copied.from + n)?)?;
        }
        Ok(())
    }

    /// Returns whether the value of an attribute is in an inode with a new number.
    pub fn has_moved_value(&self, entries: &[Entry]) -> bool {
        let is_moved = |entry: &Entry| match entry.value {
            Value::EaInode { ino, .. } => self.numbers.contains_key(&ino),
            Value::Inline(_) => false,
        };
        !self.numbers.is_empty() && entries.iter().any(is_moved)
    }

    /// Changes the numbers of inodes with values in a list of attributes.
    pub fn renumber_values(&self, entries: &mut [Entry]) -> Result<(), ResizeError> {
        for entry in entries {
            let (name, hash) = (&entry.name, entry.hash);
            let Value::EaInode { ino, .. } = &mut entry.value else { continue };
            let new = self.number(InodeNr(*ino));
            if new.0 == *ino {
                continue;
            }
            // The old form names the owner in the time of the last change, and has no hash of the
            // value. The new form has a time there.
            let value = self.round.inode(InodeNr(*ino))?;
            let is_old = hash != inode_entry_hash(name, value.ea_hash());
            if is_old {
                let why = "it has values of attributes in inodes of an old form";
                return Err(ResizeError::Unsupported(why.into()));
            }
            *ino = new.0;
        }
        Ok(())
    }

    /// Changes the numbers of inodes with values in an inode's own attributes.
    fn change_values(&self, ino: InodeNr) -> Result<(), ResizeError> {
        let (inode, slot) = (self.round.inode(ino)?, self.round.slot(ino)?);
        let mut entries = decode_area(&slot, self.geometry(), &inode);
        if !self.has_moved_value(&entries) {
            return Ok(());
        }
        self.renumber_values(&mut entries)?;
        self.write_area(ino, &entries)
    }

    /// Writes the attributes in an inode.
    pub fn write_area(&self, ino: InodeNr, entries: &[Entry]) -> Result<(), ResizeError> {
        let area = self.round.inode(ino)?.xattr_area(self.geometry());
        let mut fits = true;
        self.round.edit_slot(ino, |slot| {
            fits = slot.get_mut(area).is_some_and(|area| encode_inode_area(entries, area));
            Ok(())
        })?;
        let why = || ResizeError::Unsupported(format!("the attributes of inode {ino}"));
        if fits { Ok(()) } else { Err(why()) }
    }
}

/// Returns the attributes in an inode.
pub fn decode_area(slot: &[u8], geometry: &Geometry, inode: &Inode) -> Vec<Entry> {
    decode_inode_area(tail(slot, geometry, inode)).unwrap_or_default()
}

/// The runs of a map that moves.
struct Moved {
    runs: Vec<Run>,
    /// The last cluster that moved, and its new place.
    last: Option<(u64, u64)>,
}

/// The inode tables in which inodes get numbers: the number of slots of each that are zero or in
/// use.
#[derive(Default)]
struct Tables(BTreeMap<u32, u32>);

impl Tables {
    /// Makes a slot one that is read, with zeroes in those that never were.
    fn prepare(&mut self, round: &Round<'_>, ino: InodeNr) -> Result<(), ResizeError> {
        let geometry = round.geometry();
        let (group, index) = geometry.inode_location(ino)?;
        let volume = &round.survey.volume;
        let state = volume.groups.get(group.index()).copied().unwrap_or_default();
        let known = self.0.entry(group.0).or_insert_with(|| state.inodes(&volume.reader));
        if index < *known {
            return Ok(());
        }
        let per_block = geometry.inodes_per_block();
        for block in *known / per_block..=index / per_block {
            let first = (*known).saturating_sub(block * per_block) as usize;
            let nr = state.desc.inode_table + u64::from(block);
            let mut bytes = round.block(nr)?;
            let unused = bytes.iter_mut().skip(first * usize::from(geometry.inode_size));
            unused.for_each(|byte| *byte = 0);
            round.put(nr, &bytes)?;
        }
        *known = geometry.inodes_per_group.min((index / per_block + 1) * per_block);
        let unused = geometry.inodes_per_group - *known;
        round.edit_desc(GroupNr(group.0), |desc| {
            desc.flags.remove(GroupFlags::INODE_UNINIT);
            desc.itable_unused = unused.min(desc.itable_unused);
        })?;
        Ok(())
    }
}
