//! Journals on a device of their own.

use extant_engine::{
    Errno, Error, Falloc, File, Follow, Fs, NodeKind, OpenFlags, OpenOptions, Result,
};
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::kernel::{Loop, Mount, Shutdown};
use extant_testkit::tree::Manifest;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where the log's superblock is on a device with blocks of 4 KiB.
const LOG_AT: u64 = 4096;

/// Where in it the number of users is, and the UUID of the first.
const NUMBER_OF_USERS_AT: u64 = 0x40;
const USERS_AT: u64 = 0x100;

/// A journal and the file system that uses it.
struct Pair {
    journal: Image,
    image: Image,
}

impl Pair {
    fn make(block_size: &str) -> Pair {
        Pair::with(block_size, &[])
    }

    fn with(block_size: &str, further: &[&str]) -> Pair {
        let args = [&["-b", block_size, "-O", "journal_dev"], further].concat();
        let journal = Image::mke2fs(8 << 20, &args);
        let on = Loop::attach(journal.path(), false);
        let named = format!("device={}", on.device().display());
        let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", block_size, "-J", &named]);
        Pair::of(journal, image)
    }

    /// A file system so small that no block is kept for maps.
    fn tiny(kind: &str) -> Pair {
        let journal = Image::mke2fs(2 << 20, &["-b", "1024", "-O", "journal_dev"]);
        let on = Loop::attach(journal.path(), false);
        let named = format!("device={}", on.device().display());
        let args = ["-t", kind, "-b", "1024", "-N", "32", "-m", "0", "-J", &named];
        let image =
            Image::mke2fs(96 << 10, &[&args[..], &["-O", "^resize_inode,has_journal"]].concat());
        Pair::of(journal, image)
    }

    fn copy(&self) -> Pair {
        Pair::of(self.journal.copy(), self.image.copy())
    }

    fn of(journal: Image, image: Image) -> Pair {
        image.leave_unjudged("its log is on another device, with which `check` has it checked");
        Pair { journal, image }
    }

    /// Runs `change` on the kernel's mount.
    fn mounted<T>(&self, end: Option<Shutdown>, change: impl FnOnce(&Path) -> T) -> T {
        let on = Loop::attach(self.journal.path(), false);
        let mount =
            Mount::new(self.image.path(), &format!("journal_path={}", on.device().display()));
        let result = change(mount.path());
        match end {
            Some(how) => mount.crash(how),
            None => mount.unmount(),
        }
        result
    }

    fn open(&self, read_only: bool) -> Result<Fs> {
        Fs::open(
            self.image.path(),
            &OpenOptions::new().read_only(read_only).journal(self.journal.path()),
        )
    }

    fn check(&self) {
        let on = Loop::attach(self.journal.path(), false);
        let verdict =
            e2fsck::check_with(self.image.path(), &["-j", &on.device().display().to_string()]);
        if let e2fsck::Verdict::Complaints(lines) = verdict {
            // The number of the loop device that the journal was on last, which the kernel notes.
            let other: Vec<_> = lines
                .iter()
                .filter(|line| !line.starts_with("Superblock hint for external"))
                .collect();
            assert!(other.is_empty(), "{other:?}");
        }
    }
}

fn fill(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    (0..200)
        .for_each(|n| fs::write(root.join(format!("dir/{n}")), vec![n as u8; 100 * n]).unwrap());
}

fn read(fs: &Fs, path: &str) -> Vec<u8> {
    let node = fs.resolve(path, Follow::Yes).unwrap();
    let file = fs.open_file(&node, OpenFlags::default()).unwrap();
    let mut data = vec![0; file.len() as usize];
    file.read_at(0, &mut data).unwrap();
    data
}

#[test]
fn a_log_of_the_kernel_is_replayed() {
    for size in ["4096", "1024"] {
        let pair = Pair::make(size);
        pair.mounted(Some(Shutdown::FlushLog), fill);
        let (theirs, before) = (pair.copy(), pair.image.bytes());
        let fs = pair.open(true).unwrap();
        assert!(
            fs.recovery().in_memory
                && fs.recovery().journal.is_some_and(|found| found.transactions > 0)
        );
        let names = fs.read_dir(&fs.resolve("/dir", Follow::Yes).unwrap()).unwrap().len();
        fs.unmount().unwrap();
        assert!(pair.image.bytes() == before);
        let fs = pair.open(false).unwrap();
        assert!(fs.journal_superblock().unwrap().is_some());
        assert_eq!(fs.read_dir(&fs.resolve("/dir", Follow::Yes).unwrap()).unwrap().len(), names);
        fs.unmount().unwrap();
        pair.check();
        let expected = theirs.mounted(None, Manifest::walk);
        pair.mounted(None, Manifest::walk).assert_same(&expected);
    }
}

#[test]
fn the_kernel_and_e2fsck_replay_our_log() {
    for size in ["4096", "1024"] {
        let pair = Pair::make(size);
        let fs = pair.open(false).unwrap();
        let root = fs.root().unwrap();
        for n in 0..100u8 {
            let node =
                fs.create(&root, format!("file{n}").as_bytes(), 0o644, NodeKind::File).unwrap();
            let file =
                fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
            file.write_at(0, &[n; 2000]).unwrap();
            file.sync().unwrap();
        }
        fs.crash();
        let other = pair.copy();
        let seen = pair.mounted(None, |root| {
            (0..100u8).all(|n| fs::read(root.join(format!("file{n}"))).unwrap() == [n; 2000])
        });
        assert!(seen);
        pair.check();
        let on = Loop::attach(other.journal.path(), false);
        let name = on.device().display().to_string();
        let printed = extant_testkit::tool::run(
            "e2fsck",
            &["-fy", "-j", &name, &other.image.path().display().to_string()],
        );
        assert!(printed.code <= 1, "{printed}");
        drop(on);
        other.check();
        let fs = other.open(true).unwrap();
        assert_eq!(read(&fs, "/file99"), [99; 2000]);
    }
}

#[test]
fn only_the_own_journal_is_taken() {
    let pair = Pair::make("4096");
    let stranger = Pair::with("4096", &["-U", "11111111-2222-3333-4444-555555555555"]);
    let error = Fs::open(pair.image.path(), &OpenOptions::new()).unwrap_err();
    assert!(
        matches!(error, Error::Unsupported(_)) && error.to_string().contains("external journal"),
        "{error}"
    );
    // Nothing is to be replayed, so readers need none.
    Fs::open(pair.image.path(), &OpenOptions::new().read_only(true)).unwrap().unmount().unwrap();
    let error = Fs::open(pair.image.path(), &OpenOptions::new().journal(stranger.journal.path()))
        .unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let error = Fs::open(pair.image.path(), &OpenOptions::new().journal(stranger.image.path()))
        .unwrap_err();
    assert!(error.to_string().contains("file system"), "{error}");
    // Its users are in it: another one, and two of them.
    for (at, byte, said) in
        [(USERS_AT, 0x55, "another file system"), (NUMBER_OF_USERS_AT + 3, 2, "more than one")]
    {
        let other = pair.copy();
        let device = fs::File::options().write(true).open(other.journal.path()).unwrap();
        device.write_all_at(&[byte], LOG_AT + at).unwrap();
        let error = other.open(false).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(said), "{error}");
    }
    let blank = Image::blank(1 << 20);
    assert!(Fs::open(pair.image.path(), &OpenOptions::new().journal(blank.path())).is_err());
    pair.check();
}

fn create(fs: &Fs, name: &str) -> File {
    let made = fs.create(&fs.root().unwrap(), name.as_bytes(), 0o644, NodeKind::File).unwrap();
    fs.open_file(&made, OpenFlags { write: true, ..OpenFlags::default() }).unwrap()
}

/// Returns whether the operation succeeded. It may fail only for lack of space.
fn had_space<T>(done: Result<T>) -> bool {
    done.inspect_err(|e| assert!(e.is(Errno::NoSpc), "{e}")).is_ok()
}

/// Fills the disk except for `left` blocks, then makes a file need blocks for data and for its map.
/// It gets all of them, or only the write fails. Returns whether there was space.
fn map_blocks_are_scarce(kind: &str, left: u64) -> bool {
    let pair = Pair::tiny(kind);
    let options = OpenOptions::new().journal(pair.journal.path()).log_data(true);
    let fs = Fs::open(pair.image.path(), &options).unwrap();
    let [sparse, pieces, ballast] = ["sparse", "pieces", "ballast"].map(|name| create(&fs, name));
    let rests = ["1", "2", "3", "4", "5", "6", "7"].map(|name| create(&fs, name));
    // As many extents as the root of a tree holds.
    for piece in 0..4 {
        assert_eq!(sparse.write_at(piece * 2048, &[1; 1024]).unwrap(), 1024);
        assert_eq!(pieces.write_at(piece * 8192, &[2; 4096]).unwrap(), 4096);
    }
    // The last blocks go to files that need none for their maps.
    let rest = rests.iter().map(|file| (file, 1024));
    for (file, len) in [(&ballast, 8192), (&ballast, 1024)].into_iter().chain(rest) {
        while had_space(file.write_at(file.len(), &vec![4; len])) {}
    }
    assert!(rests.last().is_some_and(File::is_empty), "{kind}");
    ballast.set_len(ballast.len() - left * 1024).unwrap();
    fs.sync().unwrap();
    // On ext3 three pointer blocks lie above it.
    let far = 70 << 20;
    let written = had_space(sparse.write_at(far, b"late"));
    // The middle of an extent goes: two are left of it.
    if kind == "ext4" {
        had_space(pieces.allocate(Falloc::Collapse, 1024, 1024));
    }
    assert!(!fs.is_read_only(), "{kind}, {left} blocks left");
    ballast.set_len(0).unwrap();
    assert_eq!(sparse.write_at(far, b"late").unwrap(), 4);
    let mut bytes = [0; 5];
    assert_eq!((sparse.read_at(far, &mut bytes).unwrap(), &bytes[..4]), (4, &b"late"[..]));
    drop((sparse, pieces, ballast, rests));
    fs.unmount().unwrap();
    pair.check();
    written
}

#[test]
fn logged_data_whose_map_lacks_space_leave_the_journal_alone() {
    for kind in ["ext3", "ext4"] {
        let had: Vec<bool> = (0..8).map(|left| map_blocks_are_scarce(kind, left)).collect();
        assert!(!had[0] && had[7], "{kind}: {had:?}");
    }
}
