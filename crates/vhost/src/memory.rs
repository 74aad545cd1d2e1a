//! The memory of a guest: regions that the front-end shares.

use crate::wire::{Fields, invalid};
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion, mmap::MmapRegionBuilder,
};

/// Regions of a guest at most.
pub const MAX_REGIONS: usize = 32;

/// Protection and flags of a mapping: PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE.
const PROTECTION: i32 = 1 | 2;
const FLAGS: i32 = 1 | 0x4000;

/// A region: its place in the guest, in the front-end, and in the file that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    guest: u64,
    len: u64,
    user: u64,
    offset: u64,
}

impl Place {
    /// Takes a place from a message.
    pub fn take(fields: &mut Fields<'_>) -> Option<Place> {
        let (guest, len) = (fields.native_long()?, fields.native_long()?);
        Some(Place { guest, len, user: fields.native_long()?, offset: fields.native_long()? })
    }

    /// Maps the region.
    ///
    /// # Errors
    /// `InvalidData` if the file does not have it; those of mmap(2).
    fn map(self, file: OwnedFd) -> io::Result<Arc<GuestRegionMmap>> {
        let file = File::from(file);
        // The file keeps its length, where it allows that; others are trusted to.
        let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
        let end = self.offset.checked_add(self.len);
        let found = file.metadata()?;
        // Beyond the end of the file an access would end the process.
        if self.len == 0 || !found.is_file() || end.is_none_or(|end| end > found.len()) {
            return Err(invalid(format!("a region that its file does not have: {self:x?}")));
        }
        if self.user.checked_add(self.len).is_none() {
            return Err(invalid(format!("a region beyond all addresses: {self:x?}")));
        }
        let len =
            usize::try_from(self.len).map_err(|_| invalid("a region beyond all addresses"))?;
        let builder =
            MmapRegionBuilder::new(len).with_file_offset(FileOffset::new(file, self.offset));
        let builder = builder.with_mmap_prot(PROTECTION).with_mmap_flags(FLAGS);
        let mapped: MmapRegion = builder.build().map_err(io::Error::other)?;
        let region = GuestRegionMmap::new(mapped, GuestAddress(self.guest));
        region.map(Arc::new).ok_or_else(|| invalid("a region beyond all addresses"))
    }
}

/// The regions that are shared at this time.
#[derive(Debug, Default)]
pub struct Regions {
    regions: Vec<(Place, Arc<GuestRegionMmap>)>,
}

impl Regions {
    /// Shares one more region.
    ///
    /// # Errors
    /// `InvalidData` if it overlaps another one, or is none; those of mmap(2). Nothing has changed
    /// then.
    pub fn add(&mut self, place: Place, file: OwnedFd) -> io::Result<()> {
        let end = place.guest.checked_add(place.len);
        let overlaps = |other: &Place| {
            end.is_none_or(|end| place.guest < other.guest + other.len && other.guest < end)
        };
        if self.regions.iter().any(|(other, _)| overlaps(other)) {
            return Err(invalid(format!("a region over another one: {place:x?}")));
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(invalid(format!("more than {MAX_REGIONS} regions")));
        }
        self.regions.push((place, place.map(file)?));
        self.regions.sort_by_key(|(place, _)| place.guest);
        Ok(())
    }

    /// Ends the sharing of a region.
    ///
    /// # Errors
    /// `InvalidData` if it is not shared.
    pub fn remove(&mut self, place: Place) -> io::Result<()> {
        // The place in the file is not compared, as the protocol says.
        let is = |other: &Place| Place { offset: place.offset, ..*other } == place;
        let index = self.regions.iter().position(|(other, _)| is(other));
        let index = index.ok_or_else(|| invalid(format!("no such region: {place:x?}")))?;
        self.regions.remove(index);
        Ok(())
    }

    /// Returns the address in the guest for one of the front-end.
    pub fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|(place, _)| {
            let offset = user.checked_sub(place.user)?;
            (offset < place.len).then(|| GuestAddress(place.guest + offset))
        })
    }

    /// Returns the memory with all regions.
    ///
    /// # Errors
    /// `InvalidData` if there is none.
    pub fn memory(&self) -> io::Result<GuestMemoryMmap> {
        let regions = self.regions.iter().map(|(_, region)| region.clone()).collect();
        GuestMemoryMmap::from_arc_regions(regions).map_err(|error| invalid(error.to_string()))
    }
}
