//! Measures of fragmentation: pieces of files, runs of free space.

use crate::target::pieces;
use extant_engine::{FileType, Follow, Fs, OpenFlags, OpenOptions};
use extant_format::Geometry;
use extant_format::group_desc::GroupDesc;
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use extant_format::types::GroupNr;
use extant_space::free_runs;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct State {
    /// Files of more than one block, and their pieces: parts that follow each other on the device.
    pub files: u64,
    pub pieces: u64,
    /// Files of one piece among them.
    pub whole: u64,
    /// Runs of free blocks, within groups; free blocks.
    pub runs: u64,
    pub free: u64,
    /// Free blocks in runs of at least 2 MiB.
    pub long: u64,
}

/// Blocks of a long run.
pub const LONG: u32 = 512;

impl State {
    /// Returns the mean number of pieces of a file.
    pub fn pieces_per_file(&self) -> f64 {
        self.pieces as f64 / self.files.max(1) as f64
    }

    /// Returns the mean length of a free run, in blocks.
    pub fn mean_run(&self) -> f64 {
        self.free as f64 / self.runs.max(1) as f64
    }

    /// Counts a free run.
    pub fn add_run(&mut self, len: u32) {
        self.runs += 1;
        self.free += u64::from(len);
        self.long += if len >= LONG { u64::from(len) } else { 0 };
    }

    /// Counts a file.
    pub fn add_file(&mut self, blocks: u64, pieces: u64) {
        if blocks > 1 {
            self.files += 1;
            self.pieces += pieces;
            self.whole += u64::from(pieces == 1);
        }
    }
}

/// Returns the free bytes of an image; no process may have it open.
pub fn free(image: &Path) -> io::Result<u64> {
    let mut free = 0;
    free_space(image, |_, len| free += u64::from(len))?;
    Ok(free * super::trace::BLOCK)
}

/// Cells of a map.
const CELLS: u64 = 1024;

/// Measures an image, and draws a map of its free space: a hexadecimal digit for each of [`CELLS`]
/// parts of the disk, `f` if all of it is free. No process may have the image open.
pub fn look(image: &Path) -> io::Result<(State, String)> {
    let mut state = State::default();
    let cell = File::open(image)?.metadata()?.len() / super::trace::BLOCK / CELLS;
    let mut cells = vec![0; CELLS as usize];
    free_space(image, |start, len| {
        state.add_run(len);
        let parts = (start..start + u64::from(len)).map(|block| block / cell.max(1));
        parts.for_each(|at| cells.get_mut(at as usize).into_iter().for_each(|free| *free += 1));
    })?;
    let digit = |free: u64| char::from_digit((free * 15 / cell.max(1)) as u32, 16).unwrap_or('f');
    let fs = Fs::open(image, &OpenOptions::new().read_only(true))?;
    for dir in 0..super::trace::DIRS {
        files(&fs, &format!("d{dir}"), &mut state)?;
    }
    Ok((state, cells.into_iter().map(digit).collect()))
}

fn files(fs: &Fs, dir: &str, state: &mut State) -> extant_engine::Result<()> {
    let node = fs.resolve(dir.as_bytes(), Follow::No)?;
    let mut names = Vec::new();
    fs.read_dir_from(&node, 0, |entry| {
        if entry.ftype == FileType::Regular {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    for name in names {
        let path = [dir.as_bytes(), b"/", &name].concat();
        let file = fs.open(&path, Follow::No, OpenFlags::default())?;
        let size = fs.stat(&path, Follow::No)?.size;
        state.add_file(size.div_ceil(super::trace::BLOCK), pieces(&file, size)?);
    }
    Ok(())
}

/// Calls `each` with the first block and the length of each free run, as the bitmaps say.
fn free_space(image: &Path, mut each: impl FnMut(u64, u32)) -> io::Result<()> {
    let file = File::open(image)?;
    let mut sb = [0; SUPERBLOCK_SIZE];
    file.read_exact_at(&mut sb, SUPERBLOCK_OFFSET)?;
    let geo = Superblock::parse(&sb).and_then(|sb| Geometry::new(&sb)).map_err(io::Error::other)?;
    let mut bits = vec![0; geo.block_size as usize];
    let mut slots = bits.clone();
    for block in 0..geo.desc_blocks {
        file.read_exact_at(&mut slots, geo.gdt_block(block).0 << geo.block_bits)?;
        let first = block * geo.descs_per_block();
        let groups = (first..first + geo.descs_in_block(block)).map(GroupNr);
        for (g, slot) in groups.zip(slots.chunks_exact(usize::from(geo.desc_size))) {
            let desc = GroupDesc::decode(slot, &geo, g).map_err(io::Error::other)?;
            if desc.has_flag(&geo, extant_format::group_desc::GroupFlags::BLOCK_UNINIT) {
                // Free from behind its metadata to its end.
                let end = geo.first_block_of_group(g).0 + u64::from(geo.clusters_in_group(g));
                each(end - u64::from(desc.free_clusters), desc.free_clusters);
                continue;
            }
            file.read_exact_at(&mut bits, desc.block_bitmap << geo.block_bits)?;
            let first = geo.first_block_of_group(g).0;
            free_runs(&bits, geo.clusters_in_group(g), |run| {
                each(first + u64::from(run.start), run.len);
            });
        }
    }
    Ok(())
}
