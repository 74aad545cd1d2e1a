//! The engine on the large disk.

use super::disk::{Disk, Profile, waited};
use super::{Row, WRITES, Write};
use crate::target::io_error;
use extant::{Caller, File, Fs, FsStats, New, OpenFlags, OpenOptions};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long all groups are waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Rows: at once after the mount, when all groups are known, and on a slow disk with nobody reading in the background.
pub fn rows(profile: &Profile, disk: &Arc<Disk>) -> io::Result<Vec<Row>> {
    Ok(vec![
        row(profile, disk, "Extant, at once after the mount", false, false)?,
        row(profile, disk, "Extant, all known", false, true)?,
        row(profile, disk, "Extant, at once, slow disk", true, false)?,
    ])
}

fn row(profile: &Profile, disk: &Arc<Disk>, name: &str, slow: bool, wait: bool) -> io::Result<Row> {
    disk.restart(slow);
    let start = Instant::now();
    let fs = Fs::open_device(disk.clone(), &OpenOptions::new()).map_err(io_error)?;
    let mount = start.elapsed().as_secs_f64();
    if slow {
        // Background threads would be far behind the first writes; virtual time of theirs is not the request's.
        fs.set_tunable("prefetch_block_bitmaps", 0).map_err(io_error)?;
    }
    let known = if wait { Some(all_known(&fs)?) } else { None };
    let mut writes = [Write::default(); 2];
    for (write, bytes) in writes.iter_mut().zip(WRITES) {
        *write = self::write(&fs, disk, bytes)?;
    }
    if slow {
        // The file system is left as it is found: nothing that was written counts for the next row.
        fs.set_tunable("prefetch_block_bitmaps", 1).map_err(io_error)?;
    }
    fs.unmount().map_err(io_error)?;
    Ok(Row { profile: profile.name, name: name.into(), mount: Some(mount), known, writes })
}

fn all_known(fs: &Fs) -> io::Result<f64> {
    let start = Instant::now();
    while FsStats::of(fs).space.trees_unknown > 0 {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("the background does not get to know all groups"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(start.elapsed().as_secs_f64())
}

fn write(fs: &Fs, disk: &Disk, bytes: u64) -> io::Result<Write> {
    let mut data = vec![1; bytes as usize];
    // In memory, and zeroes that the sparse device need not keep.
    data.fill(0);
    let root = fs.root().map_err(io_error)?;
    let name = format!("{bytes}-{:?}", Instant::now());
    let (start, before) = (Instant::now(), waited());
    let node = fs.create(&Caller::default(), &root, name.as_bytes(), 0o644, New::File).map_err(io_error)?;
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).map_err(io_error)?;
    let mut done = 0;
    while done < data.len() {
        done += file.write_at(done as u64, &data[done..]).map_err(io_error)?;
    }
    file.sync().map_err(io_error)?;
    let waited = waited() - before;
    let seconds = start.elapsed().as_secs_f64() + waited;
    let space = FsStats::of(fs).space;
    Ok(Write {
        seconds,
        waited,
        pieces: pieces(&file, bytes)?,
        tree_bytes: space.frsp_tree_usage,
        index_bytes: space.index_bytes,
        trees: space.trees_active + space.trees_inactive,
        claims: space.claims,
        bitmaps: disk.bitmaps_read.load(extant_sync::atomic::Ordering::Relaxed),
    })
}

fn pieces(file: &File, bytes: u64) -> io::Result<u64> {
    let (mut pieces, mut end) = (0, None);
    let each = |extent: &extant::Extent| {
        pieces += u64::from(end != Some(extent.physical));
        end = Some(extent.physical + extent.len);
        true
    };
    file.extents(0, bytes, each).map_err(io_error)?;
    Ok(pieces)
}
