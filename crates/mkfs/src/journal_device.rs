//! Devices with a journal and nothing else, for a file system on another device
//! (`mke2fs -O journal_dev`).
//!
//! Block 0 holds a superblock with the feature `journal_dev`, the next one (block 2 with blocks of
//! 1 KiB) the superblock of the journal, and all others the log. The superblock is written last, as
//! that of a file system.

use super::error::{Error, Result};
use super::options::Options;
use super::output::Output;
use super::report::Report;
use super::sizing::block_size_for;
use super::superblock::journal_device;
use extant_blocks::{AlignedDevice, BlockDevice};
use extant_format::jbd2::{JournalSuperblock, MIN_JOURNAL_BLOCKS, external_journal_block};
use extant_format::superblock::SUPERBLOCK_OFFSET;
use extant_format::{Feature, Incompat, Superblock};

/// The feature of such a device.
const JOURNAL_DEV: Feature = Feature::Incompat(Incompat::JOURNAL_DEV);

/// Returns whether the options ask for a device with a journal alone.
pub(super) fn is_asked(options: &Options) -> bool {
    options.asked(JOURNAL_DEV) == Some(true)
}

/// A device with a journal, in memory.
struct JournalDevice {
    superblock: Superblock,
    block_size: u32,
    blocks: u32,
}

impl JournalDevice {
    fn new(options: &Options, device_len: u64) -> Result<JournalDevice> {
        let others = options.features.iter().filter(|(feature, on)| *on && *feature != JOURNAL_DEV);
        if others.count() > 0 {
            return Error::invalid("journal_dev: a device with a journal has no other feature");
        }
        if options.size.is_some_and(|size| size > device_len) {
            return Error::too_small(format!("it has {device_len} bytes"));
        }
        let bytes = options.size.unwrap_or(device_len);
        let block_size = block_size_for(options, bytes)?;
        let blocks = bytes.checked_div(block_size.into()).unwrap_or(0);
        // The kernel knows no longer ones.
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let least =
            u64::from(MIN_JOURNAL_BLOCKS).saturating_add(external_journal_block(block_size));
        if u64::from(blocks) < least {
            return Error::too_small(format!("a journal has {least} blocks of {block_size} bytes"));
        }
        let superblock = journal_device(options, block_size, blocks)?;
        Ok(JournalDevice { superblock, block_size, blocks })
    }

    fn report(&self, written: u64) -> Report {
        Report {
            features: self.superblock.features(),
            block_size: self.block_size,
            blocks: self.blocks.into(),
            free_blocks: 0,
            inodes: 0,
            free_inodes: 0,
            groups: 0,
            copies: Vec::new(),
            journal_blocks: self.blocks,
            uuid: self.superblock.uuid(),
            written,
        }
    }

    fn journal(&self) -> JournalSuperblock {
        let mut journal =
            JournalSuperblock::new(self.block_size, self.blocks, self.superblock.uuid());
        let first = external_journal_block(self.block_size).saturating_add(1);
        journal.raw_mut().first.set(first as u32);
        journal.raw_mut().nr_users.set(0);
        journal
    }

    fn write(mut self, device: &dyn BlockDevice, options: &Options) -> Result<Report> {
        let mut out = Output::new(device, self.block_size, options.zeroing);
        let start = SUPERBLOCK_OFFSET;
        out.zero_bytes(0..start.saturating_mul(2))?;
        out.flush()?;
        out.zero(0..self.blocks.into())?;
        out.blocks(external_journal_block(self.block_size), &self.journal().encode())?;
        out.flush()?;
        out.bytes(start, &self.superblock.seal())?;
        out.flush()?;
        let written = out.written();
        Ok(self.report(written))
    }
}

/// Makes a device with a journal alone.
pub(super) fn make(device: &dyn BlockDevice, options: &Options) -> Result<Report> {
    let new = JournalDevice::new(options, device.len())?;
    let _claim = device.claim(true)?;
    let device = &AlignedDevice::new(device);
    if options.discard {
        match device.discard(0, u64::from(new.blocks).saturating_mul(new.block_size.into())) {
            // The discard is optional, and not all devices support it.
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {}
            done => done?,
        }
    }
    new.write(device, options)
}

/// Returns the description of the device that [`make`] would make.
pub(super) fn preview(device_len: u64, options: &Options) -> Result<Report> {
    Ok(JournalDevice::new(options, device_len)?.report(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_blocks::MemDevice;

    fn asked(list: &str) -> Options {
        let mut options = Options::default();
        options.apply_features(list).unwrap();
        options
    }

    #[test]
    fn a_device_has_a_journal_alone() {
        let device = MemDevice::new(8 << 20);
        let report = make(&device, &asked("journal_dev")).unwrap();
        assert_eq!((report.block_size, report.blocks, report.inodes), (1024, 8192, 0));
        assert_eq!(report.features.names(), ["journal_dev"]);
        let mut bytes = [0; 1024];
        device.read_exact_at(&mut bytes, 2048).unwrap();
        let journal = JournalSuperblock::parse(&bytes).unwrap();
        assert_eq!((journal.first(), journal.max_len(), journal.users().len()), (3, 8192, 0));
    }

    #[test]
    fn impossible_devices_are_refused() {
        let device = MemDevice::new(1 << 20);
        assert!(matches!(make(&device, &asked("journal_dev")), Err(Error::TooSmall(_))));
        let device = MemDevice::new(8 << 20);
        let options = asked("journal_dev,metadata_csum");
        assert!(matches!(make(&device, &options), Err(Error::Invalid(_))));
    }
}
