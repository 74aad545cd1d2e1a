//! File systems that are checked, repaired and resized, the same in each run. Most of their space
//! is allocated without being written, so that images take the memory of their metadata.

use extant::device::{BlockDevice, FileDeviceOptions};
use extant::mkfs::Options;
use extant::{Dir, ErrorKind, Falloc, File, FileOptions, Fs, NodeKind};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Files in a directory.
const IN_DIRECTORY: u64 = 100;

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Makes a file system in a new image, and lets `fill` fill it.
fn make<T>(
    image: &Path,
    options: &Options,
    fill: impl FnOnce(&Fs) -> extant::Result<T>,
) -> io::Result<T> {
    let size = options.size.unwrap_or_default();
    std::fs::File::create(image)?.set_len(size)?;
    let device: Arc<dyn BlockDevice> = Arc::new(FileDeviceOptions::new(image).open()?);
    let fs = Fs::options().create_on(device, options)?;
    let made = fill(&fs)?;
    fs.unmount()?;
    Ok(made)
}

/// Makes directories with `count` files of one block.
fn files(fs: &Fs, count: u64, each: impl Fn(&File) -> extant::Result<()>) -> extant::Result<()> {
    for number in 0..count.div_ceil(IN_DIRECTORY) {
        let dir = fs.create_dir(format!("/dir{number}"))?;
        for name in 0..IN_DIRECTORY.min(count - number * IN_DIRECTORY) {
            each(&new_file(&dir, &format!("file{name}"))?)?;
        }
    }
    Ok(())
}

fn new_file(dir: &Dir, name: &str) -> extant::Result<File> {
    dir.create(name, NodeKind::File)?.file(&FileOptions::new().write(true))
}

/// Makes `count` files of a block each.
pub fn used(image: &Path, count: u64) -> io::Result<()> {
    let options = Options {
        size: Some((count * BLOCK * 2).max(64 << 20)),
        block_size: Some(BLOCK as u32),
        inode_count: Some(count + count / 50 + 1000),
        ..Options::default()
    };
    make(image, &options, |fs| files(fs, count, |file| file.allocate(Falloc::Allocate, 0, BLOCK)))
}

/// Makes files whose maps have `count` extents of one block, each with a hole behind it.
pub fn fragmented(image: &Path, count: u64) -> io::Result<()> {
    /// Extents of a file.
    const OF_FILE: u64 = 10_000;
    let options = Options {
        size: Some(count * BLOCK * 5 / 2 + (256 << 20)),
        block_size: Some(BLOCK as u32),
        inode_ratio: Some(1 << 20),
        ..Options::default()
    };
    make(image, &options, |fs| {
        let dir = fs.create_dir("/files")?;
        for number in 0..count.div_ceil(OF_FILE) {
            let file = new_file(&dir, &format!("file{number}"))?;
            let extents = OF_FILE.min(count - number * OF_FILE);
            file.allocate(Falloc::Allocate, 0, 2 * extents * BLOCK)?;
            for extent in 0..extents {
                file.allocate(Falloc::Punch, (2 * extent + 1) * BLOCK, BLOCK)?;
            }
        }
        Ok(())
    })
}

/// Makes a file system of `size` bytes, with files of `bytes` in sum, half of them behind its
/// middle. Returns the bytes of their content behind the middle.
pub fn spread(image: &Path, size: u64, bytes: u64) -> io::Result<u64> {
    /// Bytes of a file.
    const FILE: u64 = 1 << 20;
    let options = Options {
        size: Some(size),
        block_size: Some(BLOCK as u32),
        reserved_percent: 0.0,
        journal_size: Some(size / 64),
        ..Options::default()
    };
    let content: Vec<u8> = (0..FILE).map(|n| ((n * n) >> 7) as u8).collect();
    make(image, &options, |fs| {
        // Files take all space; those that are not wanted go before they have content.
        let dir = fs.create_dir("/files")?;
        let mut made: Vec<String> = Vec::new();
        loop {
            let name = format!("file{}", made.len());
            let file = new_file(&dir, &name)?;
            made.push(name);
            match file.allocate(Falloc::Allocate, 0, FILE) {
                Err(error) if error.kind() == ErrorKind::NoSpace => break,
                allocated => allocated?,
            }
        }
        let mut kept = [0, 0];
        for name in made {
            let inode = dir.open(&name)?;
            let file = inode.file(&FileOptions::new().write(true))?;
            let place = file.extents().next().transpose()?.and_then(|extent| extent.place);
            let side = place.map(|place| usize::from(place >= size / 2));
            match side.filter(|side| kept[*side] < bytes / 2) {
                Some(side) => {
                    kept[side] += FILE;
                    file.write_all_at(&content, 0)?;
                }
                None => {
                    drop(file);
                    dir.remove_file(&name)?;
                }
            }
        }
        Ok(kept[1])
    })
}
