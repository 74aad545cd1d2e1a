//! Fast commits of the kernel: their replay here gives the same result as the kernel's own.

mod crafted;
mod quota;

use extant_blocks::{BlockDevice, Event, OverlayDevice, RecordingDevice, replay};
use extant_engine::{FileType, Fs, OpenFlags, OpenOptions};
use extant_testkit::Memory;
use extant_testkit::image::Image;
use extant_testkit::kernel::{Mount, Shutdown};
use extant_testkit::rng::Rng;
use extant_testkit::tree::{Kind, Manifest, Node, content_hash};
use extant_testkit::{debugfs, e2fsck};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SETS: [(&str, &[&str]); 3] = [
    (
        "4k",
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "fast_commit,orphan_file",
            "-J",
            "size=16,fast_commit_size=1024",
        ],
    ),
    (
        "1k",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "fast_commit,^orphan_file",
            "-J",
            "size=4,fast_commit_size=512",
        ],
    ),
    (
        "no_csum",
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "fast_commit,^metadata_csum,^64bit",
            "-J",
            "size=16,fast_commit_size=1024",
        ],
    ),
];

fn sync(path: &Path) {
    File::open(path).expect("a file to sync").sync_all().expect("synced");
}

fn write(path: &Path, len: usize, byte: u8) {
    fs::write(path, vec![byte; len]).expect("written");
    sync(path);
}

/// Creates the files that exist before the fast commits.
fn before(root: &Path) {
    for dir in ["old", "old/sub", "gone"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    for n in 0..40 {
        fs::write(root.join(format!("old/{n}")), vec![n as u8; n * 1500]).unwrap();
    }
    symlink("old/3", root.join("link")).unwrap();
    // Free blocks hold garbage: a replay that maps blocks as written by mistake shows it.
    write(&root.join("garbage"), 30 << 20, 0xAA);
    freeing(root, 1, || fs::remove_file(root.join("garbage")).unwrap());
}

/// Frees so many inodes, and waits for that. The kernel may use a removed file for a while. Then
/// the full commit has an orphan, whose number a later file gets: the kernel's recovery cuts and
/// stamps that one.
fn freeing(root: &Path, count: u64, remove: impl FnOnce()) {
    let free = || rustix::fs::statvfs(root).expect("counts").f_ffree;
    let before = free();
    remove();
    let end = Instant::now() + Duration::from_secs(60);
    while free() < before + count {
        assert!(Instant::now() < end, "removed files are in use");
        std::thread::yield_now();
    }
}

type Step = fn(&Path);

/// Steps. Each makes its state durable, by a fast commit if the kernel writes one.
const STEPS: [(&str, Step); 16] = [
    ("create", |r| write(&r.join("new"), 5000, 1)),
    ("append", |r| write(&r.join("old/7"), 90_000, 2)),
    ("mkdir", |r| {
        fs::create_dir(r.join("dir")).unwrap();
        write(&r.join("dir/file"), 300, 3);
    }),
    ("rename", |r| {
        fs::rename(r.join("new"), r.join("dir/renamed")).unwrap();
        sync(&r.join("dir/renamed"));
    }),
    ("link", |r| {
        fs::hard_link(r.join("dir/renamed"), r.join("second")).unwrap();
        sync(&r.join("second"));
    }),
    ("unlink", |r| {
        freeing(r, 2, || {
            ["old/9", "old/30"].iter().for_each(|name| fs::remove_file(r.join(name)).unwrap())
        });
        write(&r.join("after the unlink"), 2000, 4);
    }),
    ("replace", |r| {
        fs::write(r.join("old/5.new"), [5; 7000]).unwrap();
        sync(&r.join("old/5.new"));
        freeing(r, 1, || fs::rename(r.join("old/5.new"), r.join("old/5")).unwrap());
        sync(&r.join("old/5"));
    }),
    ("truncate", |r| {
        let file = File::options().write(true).open(r.join("old/39")).unwrap();
        file.set_len(10_000).unwrap();
        file.sync_all().unwrap();
    }),
    ("holes", |r| {
        let file = File::create(r.join("sparse")).unwrap();
        for n in 0..12 {
            file.write_all_at(&[n; 4096], u64::from(n) * 40_960).unwrap();
        }
        file.sync_all().unwrap();
    }),
    ("many names", |r| {
        (0..120).for_each(|n| {
            fs::write(r.join(format!("dir/a name that is long enough {n}")), [n; 10]).unwrap()
        });
        sync(&r.join("dir/file"));
    }),
    ("modes", |r| {
        let path = r.join("dir/file");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4711)).unwrap();
        std::os::unix::fs::chown(&path, Some(70_000), Some(80_000)).unwrap();
        sync(&path);
    }),
    ("unwritten", |r| {
        let file = File::create(r.join("unwritten")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 200_000).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&[9; 5000], 50_000).unwrap();
        file.sync_all().unwrap();
    }),
    ("numbers again", |r| {
        freeing(r, 10, || {
            (10..20).for_each(|n| fs::remove_file(r.join(format!("old/{n}"))).unwrap())
        });
        (0..10).for_each(|n| write(&r.join(format!("young{n}")), 700 * n, 6));
    }),
    ("rmdir", |r| {
        fs::create_dir_all(r.join("a/b/c")).unwrap();
        freeing(r, 2, || {
            ["gone", "a/b/c"].iter().for_each(|name| fs::remove_dir(r.join(name)).unwrap())
        });
        write(&r.join("a/b/file"), 10, 7);
    }),
    ("special", |r| {
        symlink("a short target", r.join("a/link")).unwrap();
        symlink("long ".repeat(40), r.join("a/long link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            r.join("a/fifo"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        sync(&r.join("a/b/file"));
    }),
    ("nothing new", |r| sync(&r.join("dir/file"))),
];

/// Images as the medium had them after each step.
fn states(args: &[&str]) -> Vec<(&'static str, Image)> {
    states_with(args, |_| Vec::new(), |_, _, _| {})
}

/// Makes states as [`states`] does, with operations before the full commit and after each step.
fn states_with(
    args: &[&str],
    begin: fn(&Path) -> Vec<File>,
    further: fn(&str, &Path, &mut Vec<File>),
) -> Vec<(&'static str, Image)> {
    let image = Image::mke2fs(64 << 20, args);
    let mount = Mount::new(image.path(), "commit=300");
    before(mount.path());
    let mut held = begin(mount.path());
    mount.sync();
    let states = STEPS.iter().map(|(name, step)| {
        step(mount.path());
        further(name, mount.path(), &mut held);
        (*name, image.copy())
    });
    let states = states.collect();
    drop(held);
    mount.crash(Shutdown::NoFlushLog);
    states
}

/// An image with fast commits of most kinds, for others to damage.
pub fn left_by_the_kernel() -> (&'static str, Vec<u8>) {
    let (step, image) = states(SETS[1].1).swap_remove(13);
    (step, image.bytes())
}

/// Open files that the last full commit knows as orphans.
fn nameless(root: &Path) -> Vec<File> {
    let files = (0..4).map(|n| {
        let (mode, flags) = (
            rustix::fs::Mode::from_raw_mode(0o644),
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE,
        );
        let file = File::from(rustix::fs::open(root, flags, mode).expect("a file without a name"));
        file.write_all_at(&[n; 9000], 0).unwrap();
        file.sync_all().unwrap();
        file
    });
    files.collect()
}

fn give_name(file: &File, path: &Path) {
    use std::os::fd::AsRawFd;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let (cwd, follow) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
    rustix::fs::linkat(cwd, own, cwd, path, follow).expect("a name");
    file.sync_all().unwrap();
}

fn kernel_sees(image: &Image, options: &str) -> Result<Manifest, String> {
    let mount = Mount::try_new(image.path(), options)?;
    let seen = Manifest::walk(mount.path());
    mount.unmount();
    // The kernel's replay of an entry is a change of its directory at the time of the replay.
    Ok(seen.without_directory_times())
}

/// Recovers with Extant, and with the kernel on another copy. Returns the number of replayed
/// records.
fn compare(image: &Image, name: &str, wrong: &mut Vec<String>) -> u64 {
    let (ours, theirs) = (image.copy(), image.copy());
    theirs.leave_unjudged("the kernel's replay does not count all links and blocks");
    let fs = match Fs::open(ours.path(), &OpenOptions::new()) {
        Ok(fs) => fs,
        Err(e) => {
            wrong.push(format!("{name}: {e}"));
            return 0;
        }
    };
    assert_eq!(fs.recovery().read_only, None, "{name}");
    let records = fs.recovery().journal.map_or(0, |found| found.fast_records);
    fs.unmount().unwrap_or_else(|e| panic!("{name}: {e}"));
    if let e2fsck::Verdict::Complaints(lines) = e2fsck::check(ours.path()) {
        wrong.push(format!("{name}: {lines:?}"));
    }
    let seen = kernel_sees(&ours, "ro").unwrap_or_else(|e| panic!("{name}: {e}"));
    match kernel_sees(&theirs, "") {
        Ok(theirs) => wrong.extend(theirs.diff(&seen).iter().map(|line| format!("{name}: {line}"))),
        Err(e) => wrong.push(format!("{name}: {e}")),
    }
    records
}

#[test]
fn replay_agrees_with_the_kernel() {
    let mut wrong = Vec::new();
    for (set, args) in SETS {
        let states = states(args);
        let records = states
            .iter()
            .map(|(step, image)| compare(image, &format!("{set}, {step}"), &mut wrong));
        let records: Vec<u64> = records.collect();
        assert!(records.iter().filter(|count| **count > 0).count() > 6, "{set}: {records:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Orphans of the last full commit that get a name, or whose numbers are reused. The kernel's
/// replay loses the first kind, or fails, so the promises serve as the oracle.
#[test]
fn orphans_of_the_full_commit_keep_their_fate() {
    let further = |step: &str, root: &Path, held: &mut Vec<File>| match step {
        "link" => give_name(&held[1], &root.join("was nameless")),
        "holes" => drop(held.remove(0)),
        _ => {}
    };
    for (set, args) in SETS {
        let mut named = 0;
        for (step, image) in states_with(args, nameless, further) {
            let device: Arc<dyn BlockDevice> = Arc::new(Memory::from_bytes(&image.bytes()));
            let (_, read) = recovered(&device, true).unwrap();
            Fs::open(image.path(), &OpenOptions::new()).unwrap().unmount().unwrap();
            image.assert_clean();
            let seen = kernel_sees(&image, "ro").unwrap();
            let names =
                |manifest: &Manifest| manifest.nodes.keys().filter(|path| !path.is_empty()).count();
            assert_eq!(names(&seen), names(&read), "{set}, {step}");
            if let Some(node) = seen.nodes.get(&b"was nameless"[..]) {
                assert_eq!(
                    (node.size, node.nlink, node.hash),
                    (9000, 1, content_hash(&[1; 9000])),
                    "{set}, {step}"
                );
                named += 1;
            }
        }
        assert!(named > 10, "{set}: {named}");
    }
}

/// An area that is full to its last block. The kernel and e2fsck read beyond it and refuse it.
#[test]
fn a_full_area_is_replayed() {
    let args =
        ["-t", "ext4", "-b", "4096", "-O", "fast_commit", "-J", "size=16,fast_commit_size=32"];
    let image = Image::mke2fs(64 << 20, &args);
    let mount = Mount::new(image.path(), "commit=300");
    before(mount.path());
    mount.sync();
    let mut most = (0, image.copy(), Manifest::default());
    for n in 0..40 {
        write(&mount.join(format!("file{n}")), 100 * n, n as u8);
        let (copy, seen) = (image.copy(), Manifest::walk(mount.path()).without_directory_times());
        let fs = Fs::open(copy.path(), &OpenOptions::new().read_only(true)).unwrap();
        let records = fs.recovery().journal.map_or(0, |found| found.fast_records);
        if records > most.0 {
            most = (records, copy, seen);
        }
    }
    mount.crash(Shutdown::NoFlushLog);
    let (records, image, seen) = most;
    assert!(records >= 40, "{records}");
    Fs::open(image.path(), &OpenOptions::new()).unwrap().unmount().unwrap();
    image.assert_clean();
    kernel_sees(&image, "ro").unwrap().assert_same(&seen);
}

fn recovered(
    device: &Arc<dyn BlockDevice>,
    read_only: bool,
) -> extant_engine::Result<(u64, Manifest)> {
    let fs =
        Fs::open_device(device.clone(), &OpenOptions::new().memory(64 << 20).read_only(read_only))?;
    let records = fs.recovery().journal.map_or(0, |found| found.fast_records);
    let seen = seen_by_extant(&fs);
    fs.unmount()?;
    Ok((records, seen))
}

/// Returns names, sizes and contents: the subject of the replay.
fn seen_by_extant(fs: &Fs) -> Manifest {
    let mut manifest = Manifest::default();
    let mut todo = vec![(Vec::new(), fs.root().unwrap())];
    while let Some((path, node)) = todo.pop() {
        let attr = node.attr();
        let kind = match attr.ftype {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            _ => Kind::File,
        };
        let mut seen = Node { mode: attr.mode.into(), ..Node::new(kind) };
        match kind {
            Kind::Directory => {
                for entry in fs.read_dir(&node).unwrap() {
                    if entry.name != b"." && entry.name != b".." {
                        let mut child = path.clone();
                        child.push(b'/');
                        child.extend_from_slice(&entry.name);
                        let node = fs.lookup(&node, &entry.name).unwrap();
                        todo.push((child, node));
                    }
                }
            }
            Kind::Symlink => seen.target = fs.read_link(&node).unwrap(),
            Kind::File => {
                let file = fs.open_file(&node, OpenFlags::default()).unwrap();
                let mut data = vec![0; file.len() as usize];
                file.read_at(0, &mut data).unwrap();
                (seen.size, seen.nlink) = (file.len(), attr.nlink.into());
                seen.hash = content_hash(&data);
            }
            _ => {}
        }
        manifest.nodes.insert(path, seen);
    }
    manifest
}

/// Readers see the same result, and write nothing.
#[test]
fn readers_see_fast_commits_replayed() {
    for (step, image) in states(SETS[0].1) {
        let bytes = image.bytes();
        let device: Arc<dyn BlockDevice> = Arc::new(Memory::from_bytes(&bytes));
        let (records, read) = recovered(&device, true).unwrap();
        assert!(image.bytes() == bytes, "{step}");
        let (again, written) = recovered(&device, false).unwrap();
        assert_eq!(records, again, "{step}");
        read.assert_same(&written);
        let (left, after) = recovered(&device, true).unwrap();
        assert_eq!(left, 0, "{step}");
        after.assert_same(&written);
    }
}

/// Forces a full commit after a step, by a change that the kernel does not record in fast commits.
/// Its blocks are not written home.
fn full_commit(step: &str, root: &Path, _: &mut Vec<File>) {
    if step == "rename" {
        let file = File::open(root.join("old/8")).unwrap();
        rustix::fs::fsetxattr(&file, "user.full", &[1; 50], rustix::fs::XattrFlags::empty())
            .unwrap();
        file.sync_all().unwrap();
    }
}

/// Cuts the power at each write of the recovery, with any part of the writes since the last flush
/// lost.
#[test]
fn recovery_of_fast_commits_can_be_cut_anywhere() {
    for (set, args) in SETS {
        let (_, image) = states_with(args, |_| Vec::new(), full_commit).swap_remove(11);
        let bytes = image.bytes();
        let base = Arc::new(Memory::from_bytes(&bytes));
        let overlay = || OverlayDevice::new(base.clone(), 4096, 64 << 20);
        let device = Arc::new(RecordingDevice::new(overlay()));
        let (records, whole) = recovered(&(device.clone() as Arc<dyn BlockDevice>), false).unwrap();
        assert!(records > 0, "{set}");
        let (log, mut rng) = (device.take_log(), Rng::new(7));
        for cut in 0..=log.len() {
            let flushed = log[..cut]
                .iter()
                .rposition(|event| matches!(event, Event::Flush))
                .map_or(0, |at| at + 1);
            for _ in 0..2 {
                let state = overlay();
                let lost: Vec<&Event> =
                    log[flushed..cut].iter().filter(|_| rng.below(2) == 0).collect();
                replay(log[..flushed].iter().chain(lost), &state).unwrap();
                let state: Arc<dyn BlockDevice> = Arc::new(state);
                let (_, seen) =
                    recovered(&state, false).unwrap_or_else(|e| panic!("{set}, cut at {cut}: {e}"));
                let difference = whole.diff(&seen);
                assert!(difference.is_empty(), "{set}, cut at {cut}: {difference:?}");
            }
        }
    }
}

/// An area that a cut or a decayed medium damaged: the kernel's own replay determines how much of
/// it counts.
#[test]
fn an_area_cut_at_every_block_is_replayed_as_by_the_kernel() {
    let (_, image) = states(SETS[1].1).swap_remove(12);
    let mut wrong = Vec::new();
    let blocks = debugfs::read(image.path(), "blocks <8>");
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let area = &blocks[blocks.len() - 511..];
    let mut counts = Vec::new();
    for at in (0..40).chain([510]) {
        let cut = image.copy();
        let file = File::options().read(true).write(true).open(cut.path()).unwrap();
        let mut block = [0; 1024];
        file.read_exact_at(&mut block, area[at] * 1024).unwrap();
        match at % 3 {
            0 => block.fill(0),
            1 => block[512..].fill(0),
            // Within a record: only the tail's checksum detects it.
            _ => block[100] ^= 0x10,
        }
        file.write_all_at(&block, area[at] * 1024).unwrap();
        drop(file);
        counts.push(compare(&cut, &format!("block {at}"), &mut wrong));
    }
    assert!(counts.windows(2).any(|pair| pair[0] < pair[1]), "{counts:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
