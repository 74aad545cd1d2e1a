//! Options about the list of bad blocks: blocks that no file gets.

use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::image::ImageArgs;
use crate::text::{count, shown};
use extant_check::repair::{BadBlocks, RepairError, RepairPlan};
use extant_check::{ReadTest, ReadTestResult};
use extant_engine::device::BlockDevice;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The exit code of fsck(8) for a check that was interrupted.
const CANCELED: u8 = 32;

/// Most bytes of a file with numbers.
const MAX_LIST: u64 = 64 << 20;

/// Unlisted blocks that are named one by one.
const MAX_NAMED: usize = 20;

/// Blocks that the list of bad blocks gets.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct BadBlockArgs {
    /// Read every block of the file system first, and list those that cannot be read as bad: no
    /// file gets them
    #[arg(long)]
    read_test: bool,
    /// List the blocks in a file as bad: numbers of blocks, as badblocks(8) prints them
    #[arg(long, value_name = "FILE")]
    bad_blocks: Option<PathBuf>,
}

impl BadBlockArgs {
    /// Returns whether all blocks are read.
    pub fn reads_all(&self) -> bool {
        self.read_test
    }

    /// Returns the file of numbers.
    pub fn file(&self) -> Option<&Path> {
        self.bad_blocks.as_deref()
    }

    /// Returns whether the list gets blocks, or may get some.
    pub fn is_given(&self) -> bool {
        self.read_test || self.bad_blocks.is_some()
    }

    /// Returns the blocks to be listed, in place of those that are listed if `replace` is set;
    /// `None` if the list stays as it is.
    pub fn wanted(
        &self,
        replace: bool,
        (image, context): (&ImageArgs, &Context),
        (device, stop): (&dyn BlockDevice, &AtomicBool),
    ) -> Result<Option<BadBlocks>> {
        let mut wanted = BadBlocks { blocks: Vec::new(), replace };
        if let Some(path) = &self.bad_blocks {
            wanted.blocks = numbers(path)?;
        }
        if self.read_test {
            let found =
                read(device, (context, stop)).map_err(|error| test_failed(image, &error))?;
            let text = count(found.unreadable.len() as u64, "unreadable block");
            context.note(format_args!("{}: {text}", image.name()));
            wanted.blocks.extend(found.unreadable);
        }
        Ok((self.is_given() || replace).then_some(wanted))
    }
}

fn read(
    device: &dyn BlockDevice,
    (context, stop): (&Context, &AtomicBool),
) -> std::result::Result<ReadTestResult, RepairError> {
    let bar = context.parts();
    let test = ReadTest { device, threads: context.thread_count(), stop };
    let found = test.run(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message("parts of 4 MiB read");
    });
    bar.finish_and_clear();
    found
}

fn test_failed(image: &ImageArgs, error: &RepairError) -> Failure {
    let failure = Failure::new(format_args!("{}: read test: {error}", image.name()));
    match error {
        RepairError::Interrupted => failure.with_exit_code(CANCELED),
        _ => failure,
    }
}

/// Reads the numbers in a file, one to a line. A line that begins otherwise is a remark.
fn numbers(path: &Path) -> Result<Vec<u64>> {
    let name = path.as_os_str().as_bytes();
    // A FIFO would be waited for, and a device be read without an end.
    let found = std::fs::metadata(path).at_path(name)?;
    if !found.is_file() || found.len() > MAX_LIST {
        let why = "a list of blocks must be a regular file of at most 64 MiB";
        return Err(Failure::new(format_args!("{}: {why}", shown(name))));
    }
    let text = std::fs::read(path).at_path(name)?;
    let mut numbers = Vec::new();
    for line in String::from_utf8_lossy(&text).lines() {
        match line.split_whitespace().next().map(str::parse) {
            Some(Ok(number)) => numbers.push(number),
            Some(Err(_)) if line.trim_start().starts_with(|first: char| first.is_ascii_digit()) => {
                let message = format!("{}: no number of a block: {line:?}", shown(name));
                return Err(Failure::usage(message));
            }
            _ => {}
        }
    }
    Ok(numbers)
}

/// Tells the bad blocks that a repair does not list. Returns whether structures have some.
pub fn tell_unlisted(plan: &RepairPlan, image: &ImageArgs) -> bool {
    let unlisted = plan.unlisted_blocks();
    for unlisted in unlisted.iter().take(MAX_NAMED) {
        let (name, block) = (image.name(), unlisted.block);
        complain(format_args!("{name}: bad block {block} is not listed: {}", unlisted.reason));
    }
    if let Some(more) = unlisted.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
        complain(format_args!("{}: {more} more are not listed", image.name()));
    }
    unlisted.iter().any(|unlisted| unlisted.is_in_use())
}
