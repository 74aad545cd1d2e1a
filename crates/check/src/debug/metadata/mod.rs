//! Images of the metadata of a file system, without the content of its files.
//!
//! Such an image is as long as the file system, and holes take the place of content. A program
//! that checks it has the same verdict, so that damage can be shown to others. For example, a file
//! system of 4 TiB with a million files may have an image of 500 MiB, half of it inode tables.
//!
//! Two walks find the blocks. The first one takes the blocks of the device as they are. If the
//! journal needs to be replayed, the second one takes those that a recovery would make, of which
//! the image has the copies in the log (module `log`).
//!
//! # Content of an image
//! Superblocks, descriptors and blocks reserved for them, bitmaps, inode tables, nodes and pointer
//! blocks of maps, directories, blocks of attributes and inodes with values of them, targets of
//! symbolic links, quota files, the orphan file, the block of multi-mount protection, and the log.
//! Bitmaps and parts of tables that descriptors with a right checksum declare as unused are holes:
//! nothing reads them, and they may hold old content of files. So are blocks reserved for
//! descriptors in other groups than the first one, and those behind the last fast commit. Data in
//! inodes is zeroed.
//!
//! # Invariants
//! - A block is written once, and read once for each walk.
//! - Nothing that no walk finds is in the image.
//! - Memory grows with the blocks of the device (a bit for each, three in groups with maps) and
//!   with those of the log.

mod content;
mod index;
mod log;
mod map;
mod records;
mod scramble;
mod slots;
mod walk;
mod wide;

use super::{InspectOptions, Inspector};
use crate::claims::ClaimMap;
use crate::reader::Reader;
use content::{Cleaner, Content};
use extant_blocks::BlockDevice;
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{Compat, Geometry, Incompat, InodeNr};
use log::{LogWrite, SavedLog};
use std::io;
use walk::Walk;

/// Bound on the problems that are kept.
const MAX_PROBLEMS: usize = 1000;

/// The result of writing an image of metadata.
#[derive(Clone, Debug, Default)]
pub struct SavedMetadata {
    /// Bytes that are no holes.
    pub bytes: u64,
    /// Damage that may hide metadata, in words.
    pub problems: Vec<String>,
    /// Remarks on parts that the image lacks.
    pub notes: Vec<String>,
}

impl Inspector {
    /// Writes an image of the metadata to a device that is as long, and reads as zeroes. The
    /// inspector should show the blocks as they are ([`InspectOptions::as_is`]). Names and targets
    /// of symbolic links are replaced by others of the same length that follow from `key`, if there
    /// is one. `progress` gets the number of groups that are done, of twice
    /// [`Inspector::group_count`].
    ///
    /// # Errors
    /// Those of the device that is written to.
    pub fn save_metadata(
        &self,
        target: &dyn BlockDevice,
        key: Option<[u8; 16]>,
        progress: &mut dyn FnMut(u32),
    ) -> io::Result<SavedMetadata> {
        let groups = self.group_count();
        let mut saver = Saver {
            raw: Reader::new(&*self.raw, self.geometry),
            target,
            cleaner: Cleaner::new(key),
            settled: ClaimMap::of_blocks(&self.bounded_geometry(), groups as usize),
            log: SavedLog::open(self),
            saved: SavedMetadata::default(),
        };
        saver.save(
            &self.geometry,
            SUPERBLOCK_OFFSET >> self.geometry.block_bits,
            Content::Plain,
        )?;
        Walk::over(self).run(&mut Pass::Present(&mut saver), progress)?;
        if saver.log.as_ref().is_some_and(SavedLog::is_pending) {
            self.save_replayed(&mut saver, &mut |done| progress(groups.saturating_add(done)))?;
        }
        saver.save_log(self)?;
        target.flush()?;
        Ok(saver.finish(self))
    }

    /// Saves the metadata that a recovery would make.
    fn save_replayed(
        &self,
        saver: &mut Saver<'_>,
        progress: &mut dyn FnMut(u32),
    ) -> io::Result<()> {
        let options = InspectOptions { as_is: false, superblock: self.chosen };
        let opened = Inspector::open(self.raw.clone(), self.journal.clone(), options);
        match opened {
            Ok(replayed) if replayed.is_replayed => {
                Walk::over(&replayed).run(&mut Pass::Replayed(saver, &replayed), progress)
            }
            _ => {
                let message = "the journal cannot be replayed: the image has no copies in it";
                saver.problem(message.into());
                Ok(())
            }
        }
    }
}

/// An image under way.
struct Saver<'s> {
    raw: Reader<'s>,
    target: &'s dyn BlockDevice,
    cleaner: Cleaner,
    /// Blocks that are written, or stay holes.
    settled: ClaimMap,
    log: Option<SavedLog<'s>>,
    saved: SavedMetadata,
}

/// The state of the file system whose metadata is saved.
enum Pass<'p, 's> {
    Present(&'p mut Saver<'s>),
    /// The state after a recovery.
    Replayed(&'p mut Saver<'s>, &'p Inspector),
}

impl<'s> Pass<'_, 's> {
    fn saver(&mut self) -> &mut Saver<'s> {
        match self {
            Pass::Present(saver) | Pass::Replayed(saver, _) => saver,
        }
    }

    /// Saves a block of the file system.
    fn save(&mut self, geometry: &Geometry, block: u64, content: Content<'_>) -> io::Result<()> {
        match self {
            Pass::Present(saver) => saver.save(geometry, block, content),
            Pass::Replayed(saver, view) => {
                let replayed = view.reader().block(block);
                let is_copied = match replayed {
                    Some(bytes) => saver.save_copy(geometry, block, content, bytes)?,
                    None => false,
                };
                if is_copied { Ok(()) } else { saver.save(geometry, block, content) }
            }
        }
    }
}

impl Saver<'_> {
    fn problem(&mut self, problem: String) {
        if self.saved.problems.len() < MAX_PROBLEMS {
            self.saved.problems.push(problem);
        }
    }

    fn save(&mut self, geometry: &Geometry, block: u64, content: Content<'_>) -> io::Result<()> {
        if block >= self.raw.device_blocks() || self.settle(block) {
            return Ok(());
        }
        let Some(mut bytes) = self.raw.block(block) else {
            self.problem(format!("block {block} cannot be read: it is a hole"));
            return Ok(());
        };
        self.cleaner.clean(geometry, block, content, &mut bytes);
        self.write(block, &bytes)
    }

    /// Saves the copy of a block in the log, of which `bytes` is the content after a recovery.
    /// Returns whether a recovery writes it home, so that the block need not be saved there.
    fn save_copy(
        &mut self,
        geometry: &Geometry,
        block: u64,
        content: Content<'_>,
        mut bytes: Vec<u8>,
    ) -> io::Result<bool> {
        let Some(log) = &mut self.log else { return Ok(false) };
        let Some(copy) = log.copy_of(block, &bytes) else { return Ok(false) };
        self.cleaner.clean(geometry, block, content, &mut bytes);
        if let Some(LogWrite { place, bytes }) = log.write_copy(&copy, bytes)
            && !self.settle(place)
        {
            self.write(place, &bytes)?;
        }
        Ok(true)
    }

    /// Notes that a block has its content. Returns whether it had it before.
    fn settle(&self, block: u64) -> bool {
        self.settled.claim(block..block.saturating_add(1)).is_some()
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let size = u64::from(self.raw.geometry.block_size);
        self.target.write_all_at(bytes, block.saturating_mul(size))?;
        self.saved.bytes = self.saved.bytes.saturating_add(size);
        Ok(())
    }

    /// Saves the records of the log.
    fn save_log(&mut self, inspector: &Inspector) -> io::Result<()> {
        let Some(log) = self.log.take() else { return Ok(()) };
        // Fast commits hold names, and inodes with the data in them.
        let is_bare = !inspector.geometry.incompat(Incompat::INLINE_DATA);
        let has_fast_commits = is_bare && !self.cleaner.scrambles();
        if log.has_fast_commits() && !has_fast_commits {
            let note = "fast commits are left out: they may have names, or content of files";
            self.saved.notes.push(note.into());
        }
        log.records(has_fast_commits, &mut |LogWrite { place, bytes }| {
            if place >= self.raw.device_blocks() || self.settle(place) {
                return Ok(());
            }
            self.write(place, &bytes)
        })
    }

    fn finish(mut self, inspector: &Inspector) -> SavedMetadata {
        let mismatches = self.cleaner.mismatches;
        if mismatches > 0 {
            self.saved.notes.push(format!(
                "{mismatches} names are too short, or in too large a directory, for one with a \
                 fitting hash: a check finds their directories' indexes wrong"
            ));
        }
        let sb = &inspector.superblock;
        if sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inum() == InodeNr::NONE {
            self.saved.notes.push("the external journal is no part of the image".into());
        }
        self.saved
    }
}
