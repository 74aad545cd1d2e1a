//! Bounded resources of a connection, each used by more callers than it allows. The watchdog ends a
//! cycle of waits.

use crate::served::Served;
use rustix::fs::{IFlags, OFlags, ioctl_getflags, ioctl_setflags};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// More than the kernel's limit of background requests.
const WRITERS: usize = 150;

const ROUNDS: u64 = 3;

/// Pages that are changed in the cache, apart from each other: the kernel writes them one by one.
const CHANGED: u64 = 64;

/// Bytes of a file.
const BYTES: u64 = (2 * CHANGED + 1) * PAGE;

/// Not less than a page.
const PAGE: u64 = 4096;

fn opened(path: &Path, flags: OFlags) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

fn change_pages(cached: &File, byte: u8) -> io::Result<()> {
    // The page is read, so that the kernel has pages from now on.
    (1..=CHANGED).try_for_each(|page| cached.write_all_at(&[byte], (2 * page) * PAGE + 1))
}

/// Writes directly to a file with changed pages in the cache: before the reply, the server makes
/// the kernel write these pages.
fn write_beside_pages(path: &Path, together: &Barrier) -> io::Result<()> {
    let (cached, direct) = (opened(path, OFlags::empty())?, opened(path, OFlags::DIRECT)?);
    let mut failed = cached.set_len(BYTES);
    for round in 1..=ROUNDS {
        let changed = change_pages(&cached, round as u8);
        // A writer that failed must still reach the barrier.
        together.wait();
        failed = failed
            .and(changed)
            .and_then(|()| direct.write_all_at(&[round as u8; PAGE as usize], 0));
        together.wait();
    }
    failed?;
    let mut back = vec![0; BYTES as usize];
    cached.read_exact_at(&mut back, 0)?;
    assert!(back[..PAGE as usize] == [ROUNDS as u8; PAGE as usize]);
    assert!((1..=CHANGED).all(|page| back[(2 * page * PAGE) as usize + 1] == ROUNDS as u8));
    Ok(())
}

/// Runs callers at once, each on its own file; all of them must succeed.
fn at_once(
    served: &Served,
    callers: usize,
    call: impl Fn(&Path, &Barrier) -> io::Result<()> + Sync,
) {
    let together = Barrier::new(callers);
    let failed: Vec<io::Error> = std::thread::scope(|scope| {
        let spawn = |caller| {
            let (path, together, call) = (file_of(served, caller), &together, &call);
            scope.spawn(move || call(&path, together))
        };
        let callers: Vec<_> = (0..callers).map(spawn).collect();
        callers.into_iter().filter_map(|caller| caller.join().expect("a caller").err()).collect()
    });
    assert!(failed.is_empty(), "{} callers failed: {:?}", failed.len(), failed.first());
}

fn file_of(served: &Served, caller: usize) -> PathBuf {
    served.path(&format!("file {caller}"))
}

#[test]
pub fn direct_writes_to_files_with_changed_pages_end() {
    let mut served = Served::new("default");
    at_once(&served, WRITERS, write_beside_pages);
    served.unmount();
}

/// Causes each kind of notice: of blocks (a write), of all attributes (a flag, an access time), a
/// settled one (fsync, open), a request to forget the inode (close after a change of flags), and a
/// late drop of pages (a direct write).
fn cause_notices(path: &Path, together: &Barrier) -> io::Result<()> {
    let (cached, direct) = (opened(path, OFlags::empty())?, opened(path, OFlags::DIRECT)?);
    let round = |round: u64| {
        let page = vec![round as u8 + 1; PAGE as usize];
        cached.write_all_at(&page, 4 * round * PAGE)?;
        direct.write_all_at(&page, (4 * round + 2) * PAGE)?;
        let flags = ioctl_getflags(&cached)?;
        ioctl_setflags(&cached, flags ^ IFlags::NODUMP)?;
        cached.sync_all()?;
        let mut back = vec![0; PAGE as usize];
        File::open(path)?.read_exact_at(&mut back, (4 * round + 2) * PAGE)?;
        assert!(back == page, "round {round} of {}", path.display());
        Ok(())
    };
    let mut done = Ok(());
    for nr in 0..ROUNDS {
        // A caller that failed must still reach the barrier.
        together.wait();
        done = done.and_then(|()| round(nr));
    }
    done
}

/// More callers than notices are sent at once, while the files of others leave the kernel's memory.
#[test]
pub fn notices_of_many_callers_arrive() {
    let mut served = Served::new("default");
    at_once(&served, WRITERS, |path, together| {
        cause_notices(path, together)?;
        together.wait();
        // Each second inode is evicted while the notice thread may be telling of it.
        if path.as_os_str().as_encoded_bytes().last().is_some_and(|digit| digit % 2 == 0) {
            fs::remove_file(path)
        } else {
            Ok(())
        }
    });
    // The result of the notices: the size, and the blocks of two pages in each round and of a leaf
    // of the map.
    let expected = ((4 * ROUNDS - 1) * PAGE, (2 * ROUNDS + 1) * PAGE / 512);
    let begin = Instant::now();
    for path in (1..WRITERS).step_by(2).map(|caller| file_of(&served, caller)) {
        loop {
            let found = fs::metadata(&path).expect("stat");
            if (found.size(), found.blocks()) == expected {
                break;
            }
            let found = (found.size(), found.blocks());
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "{}: {found:?} for {expected:?}",
                path.display()
            );
            std::thread::yield_now();
        }
    }
    served.unmount();
}

/// The kernel's limit of changed pages for the mounts of this test: less than each of its writers
/// changes.
const DIRTY_BYTES: u64 = 1 << 20;

const DIRTY_WRITERS: usize = 24;

/// Lets the kernel keep no more changed pages of a mount than [`DIRTY_BYTES`]; a writer beyond that
/// must wait until others are written.
fn limit_changed_pages(served: &Served) {
    let device = fs::metadata(served.dir()).expect("stat").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let attribute = |name: &str| format!("/sys/class/bdi/{major}:{minor}/{name}");
    for (name, value) in [("strict_limit", 1), ("max_bytes", DIRTY_BYTES)] {
        let path = attribute(name);
        fs::write(&path, value.to_string()).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

/// Changes more pages than the kernel keeps, then some again, and writes past them.
fn change_many_pages(path: &Path, together: &Barrier) -> io::Result<()> {
    let (cached, direct) = (opened(path, OFlags::empty())?, opened(path, OFlags::DIRECT)?);
    let data: Vec<u8> = (0..4 * DIRTY_BYTES).map(|at| (at / PAGE) as u8 ^ at as u8).collect();
    together.wait();
    let written = cached.write_all_at(&data, 0);
    // A writer that failed must still reach the barrier.
    together.wait();
    written.and_then(|()| change_pages(&cached, 7))?;
    // The changed pages must be written before the answer.
    direct.write_all_at(&[1; PAGE as usize], 0)?;
    cached.sync_all()?;
    let mut back = vec![0; data.len()];
    direct.read_exact_at(&mut back, 0)?;
    let mut expected = data;
    expected[..PAGE as usize].fill(1);
    (1..=CHANGED).for_each(|page| expected[(2 * page * PAGE) as usize + 1] = 7);
    assert!(back == expected, "{}", path.display());
    Ok(())
}

/// Writers that wait for the kernel's limit of changed pages wait for requests of the server, which
/// must end.
#[test]
pub fn writers_of_more_pages_than_the_kernel_keeps_end() {
    let mut served = Served::new("default");
    limit_changed_pages(&served);
    at_once(&served, DIRTY_WRITERS, change_many_pages);
    served.unmount();
}
