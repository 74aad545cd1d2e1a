//! Places of extended attributes: the inode's slot, a block that nodes with equal attributes share,
//! and inodes of their own for values that fit in neither.

use crate::tree::{Tree, Xattr, XattrSetId};
use extant_format::xattr::{Entry, NameIndex, block_space, value_crc};
use extant_format::{Geometry, Incompat, Inode, InodeNr};
use std::collections::HashMap;

/// Bytes of a region beside its entries and values: the header of the inode's area, and the end
/// mark.
const AREA_OVERHEAD: usize = 8;

/// An attribute of a set, and the position of its value among those with inodes of their own.
type PlacedXattr = (u32, Option<u32>);

/// Places of the attributes of a set.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetPlaces {
    in_inode: Vec<PlacedXattr>,
    in_block: Vec<PlacedXattr>,
    /// Bytes of the inode's slot that are left.
    room: usize,
    /// Blocks of values in inodes of their own, which count for each node of the set.
    pub value_blocks: u64,
}

impl SetPlaces {
    pub(crate) fn has_block(&self) -> bool {
        !self.in_block.is_empty()
    }

    /// Returns the number of bytes of inline data that the inode's slot can hold, those in
    /// `i_block` not counted; `None` if it cannot hold the attribute for them.
    pub(crate) fn inline_room(&self) -> Option<usize> {
        let empty = Entry::new(NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME, b"");
        self.room.checked_sub(empty.space()).map(|room| room & !3)
    }
}

/// A value with an inode of its own.
#[derive(Debug)]
pub(crate) struct EaValue {
    set: XattrSetId,
    index: u32,
    /// Entries that refer to the inode.
    pub references: u64,
}

/// Places of the attributes of all sets.
#[derive(Debug)]
pub(crate) struct XattrPlaces {
    sets: Vec<SetPlaces>,
    pub values: Vec<EaValue>,
}

impl XattrPlaces {
    /// Places the attributes of the sets that `users` nodes have, by set. `Err` has the set without
    /// a place, and the cause.
    pub(crate) fn new(
        tree: &Tree,
        geo: &Geometry,
        users: &[u64],
    ) -> Result<XattrPlaces, (XattrSetId, String)> {
        let area = Inode::new(geo, 0, Default::default()).xattr_area(geo).len() & !3;
        let mut places = XattrPlaces { sets: Vec::new(), values: Vec::new() };
        let mut known = HashMap::new();
        for (number, users) in (0..).zip(users) {
            let set = XattrSetId(number);
            let mut placer = Placer {
                geo,
                room: area.saturating_sub(AREA_OVERHEAD),
                block_room: (geo.block_size as usize).saturating_sub(block_space(&[])),
                places: SetPlaces::default(),
            };
            if *users > 0 {
                let xattrs = tree.xattrs(set);
                placer.place(xattrs).map_err(|cause| (set, cause))?;
                let blocks = users.div_ceil(extant_format::xattr::REFCOUNT_MAX.into());
                places.number(&mut placer.places, (set, xattrs), (*users, blocks), &mut known);
            }
            placer.places.room = placer.room;
            places.sets.push(placer.places);
        }
        Ok(places)
    }

    /// Gives values without a place numbers: equal values share one.
    fn number<'t>(
        &mut self,
        places: &mut SetPlaces,
        (set, xattrs): (XattrSetId, &'t [Xattr]),
        (users, blocks): (u64, u64),
        known: &mut HashMap<&'t [u8], u32>,
    ) {
        let regions = [(&mut places.in_inode, users), (&mut places.in_block, blocks)];
        for (region, references) in regions {
            for (index, value) in region.iter_mut().filter(|(_, value)| value.is_some()) {
                let Some(xattr) = xattrs.get(*index as usize) else { continue };
                let number = *known.entry(&xattr.value).or_insert_with(|| {
                    self.values.push(EaValue { set, index: *index, references: 0 });
                    (self.values.len() - 1) as u32
                });
                self.values[number as usize].references += references;
                *value = Some(number);
            }
        }
    }

    pub(crate) fn set(&self, set: XattrSetId) -> &SetPlaces {
        &self.sets[set.0 as usize]
    }

    /// Returns the bytes of a value with an inode of its own.
    pub(crate) fn value<'t>(&self, tree: &'t Tree, value: &EaValue) -> &'t [u8] {
        tree.xattrs(value.set).get(value.index as usize).map_or(&[], |xattr| &xattr.value)
    }

    /// Returns the attributes of the inode's slot; `first` is the inode of the first value.
    pub(crate) fn in_inode(&self, view: &View<'_>, set: XattrSetId) -> Vec<Entry> {
        view.entries(set, &self.set(set).in_inode)
    }

    /// Returns the attributes of the set's block.
    pub(crate) fn in_block(&self, view: &View<'_>, set: XattrSetId) -> Vec<Entry> {
        view.entries(set, &self.set(set).in_block)
    }
}

/// The facts that entries need, beside their places.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub tree: &'a Tree,
    /// Seed of the file system's checksums.
    pub seed: u32,
    /// Inode of the first value with an inode of its own.
    pub first: InodeNr,
}

impl View<'_> {
    fn entries(&self, set: XattrSetId, placed: &[PlacedXattr]) -> Vec<Entry> {
        let xattrs = self.tree.xattrs(set);
        let entry = |(index, value): &PlacedXattr| {
            let xattr = xattrs.get(*index as usize)?;
            let (index, name, bytes) = (xattr.index, &xattr.name, &xattr.value);
            Some(match value {
                None => Entry::new(index, name, bytes),
                Some(number) => {
                    let crc = value_crc(self.seed, bytes);
                    Entry::in_inode(index, name, self.first.0 + number, bytes.len() as u32, crc)
                }
            })
        };
        placed.iter().filter_map(entry).collect()
    }
}

/// Places the attributes of one set.
struct Placer<'a> {
    geo: &'a Geometry,
    room: usize,
    block_room: usize,
    places: SetPlaces,
}

impl Placer<'_> {
    fn place(&mut self, xattrs: &[Xattr]) -> Result<(), String> {
        for (index, xattr) in (0..).zip(xattrs) {
            let space = Entry::new(xattr.index, &xattr.name, &xattr.value).space();
            let without = Entry::in_inode(xattr.index, &xattr.name, 0, 0, 0).space();
            let own = self.geo.incompat(Incompat::EA_INODE);
            if self.put((index, None), space) {
                continue;
            }
            if !own || !self.put((index, Some(0)), without) {
                let bytes: usize = xattrs.iter().map(|xattr| xattr.value.len()).sum();
                let remedy = if own { "" } else { "; the feature ea_inode gives values more room" };
                return Err(format!("{bytes} bytes of extended attributes have no place{remedy}"));
            }
            let cluster = u64::from(self.geo.block_size) << self.geo.cluster_bits;
            let clusters = (xattr.value.len() as u64).div_ceil(cluster);
            self.places.value_blocks += clusters << self.geo.cluster_bits;
        }
        Ok(())
    }

    /// Puts an attribute of `space` bytes into the inode or else into the block.
    fn put(&mut self, placed: PlacedXattr, space: usize) -> bool {
        if space <= self.room {
            self.room -= space;
            self.places.in_inode.push(placed);
        } else if space <= self.block_room {
            self.block_room -= space;
            self.places.in_block.push(placed);
        } else {
            return false;
        }
        true
    }
}
