//! The engine on the large disk.

use super::disk::{Disk, Profile, waited};
use super::{Row, Sizes, Write};
use crate::target::{pieces, write_all};
use extant_engine::{Fs, FsStats, NodeKind, OpenFlags, OpenOptions};
use extant_measure::scratch::poll;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long all groups are waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a row is measured.
#[derive(Clone, Copy, Debug)]
struct How {
    name: &'static str,
    slow: bool,
    wait: bool,
    level: u8,
    /// Bytes that trees may take, 0 for any number; None for the default.
    limit: Option<u64>,
}

const fn how(name: &'static str, slow: bool, wait: bool, limit: Option<u64>) -> How {
    How { name, slow, wait, level: 1, limit }
}

/// At the levels and limits of the posting: none, and a gigabyte, which is 1023 MB there.
const fn level(name: &'static str, level: u8, limit: u64) -> How {
    How { level, ..how(name, true, false, Some(limit)) }
}

/// At once after the mount, when all groups are known, and on a slow disk without a scan in the
/// background, where levels have their full effect.
const ROWS: [How; 10] = [
    how("Extant, at once", false, false, None),
    how("Extant, all known", false, true, None),
    how("Extant, at once, least memory", false, false, Some(1)),
    how("Extant, at once, slow disk", true, false, None),
    level("Extant, slow, level 0", 0, 0),
    level("Extant, slow, level 1", 1, 0),
    level("Extant, slow, level 2", 2, 0),
    level("Extant, slow, level 3", 3, 0),
    level("Extant, slow, level 3, 1 GB", 3, 1 << 30),
    how("Extant, slow, least memory", true, false, Some(1)),
];

/// Rows of the engine.
pub fn rows(profile: &Profile, disk: &Arc<Disk>, sizes: Sizes) -> io::Result<Vec<Row>> {
    ROWS.iter().map(|how| median(profile, disk, *how, sizes)).collect()
}

/// Times that each row is measured.
const RUNS: usize = 3;

/// Returns the median mount, and of each write the run with the median time.
fn median(profile: &Profile, disk: &Arc<Disk>, how: How, sizes: Sizes) -> io::Result<Row> {
    let mut rows =
        (0..RUNS).map(|_| row(profile, disk, how, sizes)).collect::<io::Result<Vec<_>>>()?;
    let writes = [0, 1].map(|write| {
        let mut runs: Vec<Write> =
            rows.iter_mut().map(|row| std::mem::take(&mut row.writes[write])).collect();
        let times = runs.iter().map(|run| run.seconds).collect();
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Write { runs: times, ..runs.swap_remove(RUNS / 2) }
    });
    rows.sort_by(|a, b| a.mount.unwrap_or(0.0).total_cmp(&b.mount.unwrap_or(0.0)));
    Ok(Row { writes, ..rows.swap_remove(RUNS / 2) })
}

/// On a slow disk with as little memory for trees as there may be.
pub fn limited(profile: &Profile, disk: &Arc<Disk>, sizes: Sizes) -> io::Result<Row> {
    median(profile, disk, ROWS[ROWS.len() - 1], sizes)
}

fn row(profile: &Profile, disk: &Arc<Disk>, how: How, sizes: Sizes) -> io::Result<Row> {
    disk.restart(how.slow);
    // Background threads would be far behind the first writes; virtual time of theirs is not the
    // request's.
    let usual = OpenOptions::new().prefetch_block_bitmaps(!how.slow);
    let usual = usual.frsp_cache_aggression(how.level);
    let options = how.limit.map_or(usual.clone(), |bytes| usual.mb_frsp_max_mem(bytes));
    let start = Instant::now();
    let fs = Fs::open_device(disk.clone(), &options)?;
    let mount = start.elapsed().as_secs_f64();
    let known = if how.wait { Some(all_known(&fs)?) } else { None };
    let mut writes = <[Write; 2]>::default();
    for (write, bytes) in writes.iter_mut().zip(sizes) {
        *write = self::write(&fs, disk, bytes)?;
    }
    fs.unmount()?;
    Ok(Row {
        profile: profile.name.into(),
        name: how.name.into(),
        plays: false,
        mount: Some(mount),
        known,
        writes,
    })
}

fn all_known(fs: &Fs) -> io::Result<f64> {
    let start = Instant::now();
    let known = || (FsStats::of(fs).space.trees_unknown == 0).then_some(());
    let late = || io::Error::other("the background does not get to know all groups");
    poll(PATIENCE, || Ok(known()))?.ok_or_else(late)?;
    Ok(start.elapsed().as_secs_f64())
}

fn write(fs: &Fs, disk: &Disk, bytes: u64) -> io::Result<Write> {
    let mut data = vec![1; bytes as usize];
    // In memory, and zeroes that the sparse device need not keep.
    data.fill(0);
    let root = fs.root()?;
    let name = format!("{bytes}-{:?}", Instant::now());
    let (start, before) = (Instant::now(), waited());
    let node = fs.create(&root, name.as_bytes(), 0o644, NodeKind::File)?;
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
    write_all(&file, 0, &data)?;
    file.sync()?;
    let waited = waited() - before;
    let seconds = start.elapsed().as_secs_f64() + waited;
    let space = FsStats::of(fs).space;
    Ok(Write {
        seconds,
        runs: Vec::new(),
        waited,
        pieces: pieces(&file, bytes)?,
        tree_bytes: space.frsp_tree_usage,
        index_bytes: space.index_bytes,
        trees: space.trees_active + space.trees_inactive,
        claims: space.claims,
        looked: space.advice,
        bitmaps: disk.bitmaps_read.load(extant_sync::atomic::Ordering::Relaxed),
    })
}
