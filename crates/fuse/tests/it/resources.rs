//! Resources of a connection that are bounded: more callers than there are of each. A cycle of waits would end by the watchdog.

use crate::served::Served;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;

/// More than the kernel has requests under way in the background.
const WRITERS: usize = 150;

const ROUNDS: u64 = 3;

/// Pages that are changed in the cache, apart from each other: the kernel writes them one by one.
const CHANGED: u64 = 64;

/// Bytes of a file.
const BYTES: u64 = (2 * CHANGED + 1) * PAGE;

/// Not less than a page.
const PAGE: u64 = 4096;

fn opened(path: &Path, flags: OFlags) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32).open(path)
}

fn change_pages(cached: &File, byte: u8) -> io::Result<()> {
    // The page is read, so that the kernel has pages from now on.
    (1..=CHANGED).try_for_each(|page| cached.write_all_at(&[byte], (2 * page) * PAGE + 1))
}

/// Writes past the cache of a file that has changed pages in it: before the answer, the server has the kernel write those.
fn write_beside_pages(path: &Path, together: &Barrier) -> io::Result<()> {
    let (cached, direct) = (opened(path, OFlags::empty())?, opened(path, OFlags::DIRECT)?);
    let mut failed = cached.set_len(BYTES);
    for round in 1..=ROUNDS {
        let changed = change_pages(&cached, round as u8);
        // A writer that failed goes on meeting the others.
        together.wait();
        failed = failed.and(changed).and_then(|()| direct.write_all_at(&[round as u8; PAGE as usize], 0));
        together.wait();
    }
    failed?;
    let mut back = vec![0; BYTES as usize];
    cached.read_exact_at(&mut back, 0)?;
    assert!(back[..PAGE as usize] == [ROUNDS as u8; PAGE as usize]);
    assert!((1..=CHANGED).all(|page| back[(2 * page * PAGE) as usize + 1] == ROUNDS as u8));
    Ok(())
}

#[test]
pub fn direct_writes_to_files_with_changed_pages_end() {
    let mut served = Served::new("default");
    let together = Barrier::new(WRITERS);
    let failed: Vec<io::Error> = std::thread::scope(|scope| {
        let spawn = |writer| {
            let (path, together) = (served.path(&format!("file {writer}")), &together);
            scope.spawn(move || write_beside_pages(&path, together))
        };
        let writers: Vec<_> = (0..WRITERS).map(spawn).collect();
        writers.into_iter().filter_map(|writer| writer.join().expect("a writer").err()).collect()
    });
    assert!(failed.is_empty(), "{} writers failed: {:?}", failed.len(), failed.first());
    served.unmount();
}
