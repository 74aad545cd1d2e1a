//! Administration of a mount: labels, trimming, shutdown, access times.

use crate::oracle::{Notes, same_as_kernel};
use crate::served::{BYTES, Served};
use crate::watchdog::await_tick_after;
use extant_engine::{AccessTimes, Fs, OpenOptions};
use extant_fuse::control::READ_ONLY;
use extant_testkit::e2fsck;
use extant_testkit::image::Image;
use extant_testkit::tool::run;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Length of a label in the ioctls, in bytes.
const LABEL: usize = 256;

/// Inode flags of the storage of content.
const EXTENTS_AND_INLINE: u32 = 0x0008_0000 | 0x1000_0000;

/// `FS_XFLAG_NOATIME`.
const NO_ACCESS_TIME: u32 = 0x40;

/// `struct fstrim_range`.
#[repr(C)]
pub struct Range {
    pub start: u64,
    pub len: u64,
    pub min: u64,
}

/// `struct fsxattr`: flags and numbers. The tests use the project id only.
#[repr(C)]
#[derive(Default)]
struct Extended {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

mod call {
    nix::ioctl_read!(label, 0x94, 49, [u8; super::LABEL]);
    nix::ioctl_write_ptr!(set_label, 0x94, 50, [u8; super::LABEL]);
    nix::ioctl_read!(shut_down, b'X', 125, u32);
    nix::ioctl_readwrite!(trim, b'X', 121, super::Range);
    nix::ioctl_read!(extended, b'X', 31, super::Extended);
    nix::ioctl_write_ptr!(set_extended, b'X', 32, super::Extended);
    nix::ioctl_write_ptr!(grow, b'f', 16, u64);
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn label(dir: &File) -> io::Result<Vec<u8>> {
    let mut bytes = [0; LABEL];
    // SAFETY: by the ioctl's number the kernel writes LABEL bytes.
    unsafe { call::label(dir.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes.split(|b| *b == 0).next().unwrap_or_default().to_vec())
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn set_label(dir: &File, label: &[u8]) -> io::Result<i32> {
    let mut bytes = [0; LABEL];
    bytes[..label.len()].copy_from_slice(label);
    // SAFETY: by the ioctl's number the kernel reads LABEL bytes.
    Ok(unsafe { call::set_label(dir.as_raw_fd(), &raw const bytes) }?)
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn trim(dir: &File, mut range: Range) -> io::Result<bool> {
    // SAFETY: `range` is laid out as the kernel's structure.
    unsafe { call::trim(dir.as_raw_fd(), &raw mut range) }?;
    Ok(range.len > 0)
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn shut_down(dir: &Path) -> io::Result<i32> {
    // Mode: flush the log first.
    let mut how = 1;
    // SAFETY: the kernel reads and writes this number only.
    Ok(unsafe { call::shut_down(File::open(dir)?.as_raw_fd(), &raw mut how) }?)
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
fn extended(file: &File) -> io::Result<Extended> {
    let mut found = Extended::default();
    // SAFETY: `found` is laid out as the kernel's structure.
    unsafe { call::extended(file.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

fn with_flags(flags: u32) -> Extended {
    Extended { flags, ..Extended::default() }
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
fn set_extended(file: &File, wanted: &Extended) -> io::Result<i32> {
    // SAFETY: `wanted` is laid out as the kernel's structure.
    Ok(unsafe { call::set_extended(file.as_raw_fd(), wanted) }?)
}

/// The flag is one of directories, so the call leaves the project as it is, too.
#[test]
pub fn a_refused_change_of_flags_leaves_the_project() {
    const INHERIT: u32 = 0x0200;
    let mut served = Served::of(Image::mke2fs(64 << 20, &["-t", "ext4", "-O", "quota,project"]));
    let file = File::create(served.path("f")).expect("create");
    let wanted = Extended { project: 7, ..with_flags(INHERIT) };
    let refused = set_extended(&file, &wanted).map_err(|e| e.raw_os_error());
    assert_eq!(refused, Err(Some(nix::libc::EOPNOTSUPP)));
    assert_eq!(extended(&file).expect("the ioctl").project, 0);
    let wanted = Extended { flags: 0, ..wanted };
    set_extended(&file, &wanted).expect("the ioctl");
    assert_eq!(extended(&file).expect("the ioctl").project, 7);
    drop(file);
    served.unmount();
}

#[test]
pub fn labels() {
    same_as_kernel("default", |dir, notes| {
        let root = File::open(dir).expect("open");
        let long = "seventeen bytes!!";
        for text in ["a label", &long[..16], long, ""] {
            notes.call("set", set_label(&root, text.as_bytes()));
            notes.call("get", label(&root));
        }
    });
}

#[test]
pub fn trimming_knows_its_limits() {
    same_as_kernel("default", |dir, notes: &mut Notes| {
        let root = File::open(dir).expect("open");
        let whole = u64::MAX;
        for (start, len, min) in [
            (0, whole, 0),
            (0, 4095, 0),
            (1 << 40, whole, 0),
            (whole, whole, 0),
            (0, whole, whole),
            (4096, whole, 1 << 20),
            (0, whole, 128 << 20),
            (0, whole, (128 << 20) + 4096),
        ] {
            let done = trim(&root, Range { start, len, min });
            // The number of trimmed bytes depends on earlier trims.
            notes.call(format!("trim {start} {len} {min}"), done.map(|_| ()));
        }
    });
}

#[test]
pub fn a_mount_that_is_shut_down_is_recovered() {
    let mut served = Served::new("default");
    fs::write(served.path("kept"), b"kept").expect("write");
    File::open(served.path("kept")).expect("open").sync_all().expect("fsync");
    fs::create_dir(served.path("dir")).expect("mkdir");
    shut_down(served.dir()).expect("shutdown");
    for refused in [fs::create_dir(served.path("late")), fs::remove_file(served.path("kept"))] {
        assert_eq!(refused.expect_err("nothing changes").raw_os_error(), Some(nix::libc::EIO));
    }
    served.let_go();
    e2fsck::recover(served.image()).assert_clean();
    served.mount();
    assert_eq!(fs::read(served.path("kept")).expect("read"), b"kept");
    assert!(fs::metadata(served.path("dir")).expect("the earlier change is there").is_dir());
    served.unmount();
}

fn atime(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).expect("stat").accessed().expect("atime")
}

fn set_atime(path: &Path, time: SystemTime) {
    File::open(path)
        .expect("open")
        .set_times(fs::FileTimes::new().set_accessed(time))
        .expect("utimens");
}

/// Returns whether the first and the second read of a file changed its access time on a mount with
/// this policy.
fn changes(which: Option<AccessTimes>) -> [bool; 2] {
    let mut served = Served::unmounted(crate::served::make("default"));
    served.options.access_times = which;
    served.mount();
    let path = served.path("file");
    fs::write(&path, b"content").expect("write");
    let ctime = || fs::metadata(&path).map(|m| (m.ctime(), m.ctime_nsec())).expect("stat");
    set_atime(&path, SystemTime::now() - Duration::from_secs(90));
    let changed_at = ctime();
    let seen: Vec<SystemTime> = (0..2)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(120));
            fs::read(&path).expect("read");
            atime(&path)
        })
        .collect();
    assert_eq!(ctime(), changed_at, "a read is no change");
    let set = SystemTime::now() - Duration::from_secs(80);
    let found = [seen[0] > set, seen[1] > seen[0]];
    served.unmount();
    let fs = Fs::open(served.image(), &OpenOptions::new().read_only(true)).expect("open");
    let last = fs.resolve("/file", extant_engine::Follow::No).expect("file").attr().atime;
    assert_eq!(
        last.sec as u64,
        seen[1].duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
    );
    found
}

#[test]
pub fn access_times_are_kept_as_the_mount_was_asked_to() {
    assert_eq!(changes(None), [false, false]);
    assert_eq!(changes(Some(AccessTimes::Relative)), [true, false]);
    assert_eq!(changes(Some(AccessTimes::Always)), [true, true]);
}

fn ctime(path: &Path) -> (i64, i64) {
    fs::metadata(path).map(|m| (m.ctime(), m.ctime_nsec())).expect("stat")
}

/// Mounts with access times, so that a notice of an access time may come right before the one under
/// test.
fn mount_noting_accesses(writeback_cache: bool) -> Served {
    let mut served = Served::unmounted(crate::served::make("default"));
    served.options.access_times = Some(AccessTimes::Always);
    served.options.writeback_cache = writeback_cache;
    served.mount();
    served
}

/// The notice is sent even if another one was sent just before. With the writeback cache the kernel
/// keeps the times of files itself, so the test then uses directories.
#[test]
pub fn a_change_of_flags_shows_at_once() {
    for writeback_cache in [false, true] {
        let mut served = mount_noting_accesses(writeback_cache);
        let (file, sub) = (served.path("file"), served.path("sub"));
        File::create(&file).and_then(|_| fs::create_dir(&sub)).expect("new ones");
        let shown: &[&Path] = if writeback_cache { &[&sub] } else { &[&sub, &file] };
        for path in shown {
            let before = ctime(path);
            std::thread::sleep(Duration::from_millis(120));
            let open = File::open(path).expect("open");
            set_extended(&open, &with_flags(NO_ACCESS_TIME)).expect("set");
            let set = ctime(path);
            assert!(set > before, "{path:?} set, writeback cache: {writeback_cache}");
            await_tick_after(set);
            set_extended(&open, &with_flags(0)).expect("clear");
            assert!(ctime(path) > set, "{path:?} cleared, writeback cache: {writeback_cache}");
        }
        served.unmount();
    }
}

/// The kernel must forget the inode as soon as it is closed, before another program requests
/// attributes. On a busy machine that may be too late, but not each time.
#[test]
pub fn a_change_of_flags_shows_to_the_next_program() {
    let mut served = mount_noting_accesses(true);
    let path = served.path("file");
    File::create(&path).expect("a new one");
    let file = path.to_str().expect("a name");
    let shows = |flags: &str| {
        let script = "stat -c %z \"$1\"; sleep 0.02; chattr \"$2\" \"$1\"; stat -c %z \"$1\"";
        let printed = run("sh", &["-c", script, "sh", file, flags]).must_succeed().text();
        printed.lines().collect::<std::collections::HashSet<_>>().len() == 2
    };
    let shown = (0..100).flat_map(|_| ["+A", "-A"]).filter(|flags| shows(flags)).take(10).count();
    assert_eq!(shown, 10, "shown {shown} times of 200");
    served.unmount();
}

/// Flags set by one pair of ioctls show in the other pair, which has other bits for them.
#[test]
pub fn flags_have_two_names() {
    same_as_kernel("default", |dir, notes| {
        for bit in 0..32 {
            let (file, sub) = (dir.join(format!("f{bit}")), dir.join(format!("d{bit}")));
            File::create(&file).and_then(|_| fs::create_dir(&sub)).expect("new ones");
            for (kind, path) in [("file", &file), ("directory", &sub)] {
                let open = File::open(path).expect("open");
                notes.call(
                    format!("set {bit} of a {kind}"),
                    set_extended(&open, &with_flags(1 << bit)),
                );
                notes.call(
                    format!("get {bit} of a {kind}"),
                    extended(&open).map(|found| found.flags),
                );
                // These flags of a new inode depend on its content.
                let flags = rustix::fs::ioctl_getflags(&open).expect("flags");
                notes.value(
                    format!("flags by {bit} of a {kind}"),
                    flags.bits() & !EXTENTS_AND_INLINE,
                );
                notes.call(format!("clear {bit} of a {kind}"), set_extended(&open, &with_flags(0)));
                notes.call(
                    format!("get {bit} cleared of a {kind}"),
                    extended(&open).map(|found| found.flags),
                );
            }
        }
    });
}

#[expect(unsafe_code, reason = "an ioctl is a foreign call")]
pub fn grow(file: &File, blocks: u64) -> io::Result<()> {
    // SAFETY: by the ioctl's number the kernel reads this number only.
    unsafe { call::grow(file.as_raw_fd(), &raw const blocks) }?;
    Ok(())
}

/// The ioctl reaches the server from each inode, and the image file grows with its file system.
#[test]
pub fn the_growth_of_the_kernel_works_on_a_mount() {
    let mut served = Served::new("default");
    let path = served.path("file");
    fs::write(&path, b"content").expect("write");
    let file = File::open(&path).expect("open");
    let before = rustix::fs::statvfs(served.dir()).expect("statvfs");
    let blocks = (BYTES + (300 << 20)) / before.f_frsize;
    for smaller in [0, 1, BYTES / before.f_frsize - 1] {
        let refused = grow(&file, smaller).map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(nix::libc::EINVAL)), "{smaller}");
    }
    grow(&file, BYTES / before.f_frsize).expect("the present size");
    grow(&file, blocks).expect("the ioctl");
    let after = rustix::fs::statvfs(served.dir()).expect("statvfs");
    assert!(after.f_blocks > before.f_blocks + (280 << 20) / before.f_frsize);
    assert_eq!(fs::metadata(served.image()).expect("stat").len(), BYTES + (300 << 20));
    drop(file);
    served.unmount();
}

/// The server is told of a remount, after which it must not change the size.
#[test]
pub fn a_mount_that_became_read_only_keeps_its_size() {
    let mut served = Served::new("default");
    let root = File::open(served.dir()).expect("open");
    let blocks = (BYTES + (64 << 20)) / rustix::fs::statvfs(served.dir()).expect("stat").f_frsize;
    let set = |value| extant_fuse::control::set(served.dir(), READ_ONLY, value).expect("a switch");
    set(1);
    let refused = grow(&root, blocks).map_err(|e| e.raw_os_error());
    assert_eq!(refused, Err(Some(nix::libc::EROFS)));
    set(0);
    grow(&root, blocks).expect("the ioctl");
    drop(root);
    served.unmount();
}
