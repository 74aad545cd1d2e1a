//! Bytes of files: holes, fallocate, seeking, limits.

use crate::oracle::{Notes, as_user, same_as_kernel};
use crate::served::Served;
use crate::watchdog::await_that;
use extant_testkit::image::FeatureSet;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

fn file(path: &Path) -> File {
    File::options().create(true).truncate(true).read(true).write(true).open(path).expect("create")
}

#[test]
pub fn allocation_and_holes() {
    same_as_kernel("default", |dir, notes| {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zero = FallocateFlags::ZERO_RANGE;
        let calls = [
            ("allocate", FallocateFlags::empty(), 0, 20_000),
            ("allocate in the middle", FallocateFlags::empty(), 5000, 100),
            ("keep the size", FallocateFlags::KEEP_SIZE, 100_000, 50_000),
            ("punch blocks", punch, 4096, 8192),
            ("punch parts", punch, 100, 5000),
            ("punch behind the end", punch, 1 << 30, 4096),
            ("punch without keeping", FallocateFlags::PUNCH_HOLE, 0, 4096),
            ("grow", FallocateFlags::empty(), 200_000, 10_000),
            ("no bytes", FallocateFlags::empty(), 0, 0),
        ];
        let path = dir.join("f");
        for (what, mode, offset, len) in calls {
            let f = file(&path);
            f.write_all_at(&[7; 30_000], 0).expect("write");
            f.sync_all().expect("fsync");
            notes.call(what, fallocate(&f, mode, offset, len));
            f.sync_all().expect("fsync");
            notes.call("stat", f.metadata().map(|m| (m.len(), m.blocks())));
            let content = fs::read(&path).expect("read");
            notes.value("zeros", content.iter().filter(|b| **b == 0).count());
        }
        // Delayed allocation of zeroed edges differs, so only content and size are compared.
        for (mode, offset, len) in [
            (zero, 0, 4096),
            (zero, 100, 20_000),
            (zero, 20_000, 20_000),
            (zero | FallocateFlags::KEEP_SIZE, 20_000, 20_000),
        ] {
            let f = file(&path);
            f.write_all_at(&[7; 30_000], 0).expect("write");
            notes.call(format!("zero {mode:?} {offset} {len}"), fallocate(&f, mode, offset, len));
            let content = fs::read(&path).expect("read");
            notes.value("content", (content.len(), content.iter().filter(|b| **b == 0).count()));
        }
    });
}

/// The kernel's FUSE refuses to collapse and insert ranges with `EOPNOTSUPP`, so that programs fall
/// back.
#[test]
pub fn collapse_and_insert_are_not_supported() {
    let mut served = Served::new("default");
    let f = file(&served.path("f"));
    f.write_all_at(&[1; 65536], 0).expect("write");
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&f, mode, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
    }
    drop(f);
    served.unmount();
}

#[test]
pub fn data_and_holes_are_found() {
    for set in ["default", "ext2", "bigalloc"] {
        same_as_kernel(set, |dir, notes| {
            let f = file(&dir.join("f"));
            for at in [0, 200_000, 1_000_000] {
                f.write_all_at(&[3; 65536], at).expect("write");
            }
            f.set_len(3_000_000).expect("truncate");
            f.sync_all().expect("fsync");
            for from in [
                0, 1, 4095, 65_536, 131_072, 199_000, 265_000, 999_999, 1_065_536, 2_000_000,
                2_999_999, 3_000_000, 5_000_000,
            ] {
                notes.call(format!("data from {from}"), seek(&f, SeekFrom::Data(from)));
                notes.call(format!("hole from {from}"), seek(&f, SeekFrom::Hole(from)));
            }
            notes.call("end", seek(&f, SeekFrom::End(5)));
            let empty = file(&dir.join("empty"));
            notes.call("data of nothing", seek(&empty, SeekFrom::Data(0)));
            notes.call("hole of nothing", seek(&empty, SeekFrom::Hole(0)));
        });
    }
}

/// Unwritten data in the kernel's cache count as data.
#[test]
pub fn data_not_yet_written_are_found() {
    let mut served = Served::new("default");
    let f = file(&served.path("f"));
    f.set_len(10 << 20).expect("truncate");
    f.write_all_at(b"x", 5 << 20).expect("write");
    assert_eq!(seek(&f, SeekFrom::Data(0)), Ok(5 << 20));
    assert_eq!(seek(&f, SeekFrom::Hole(0)), Ok(0));
    drop(f);
    served.unmount();
}

/// Returns the number of bytes of a file in the kernel's page cache.
fn cached(path: &Path) -> u64 {
    let args =
        ["--bytes", "--noheadings", "--output", "RES", path.to_str().expect("a name of text")];
    extant_testkit::tool::run("fincore", &args)
        .must_succeed()
        .text()
        .trim()
        .parse()
        .expect("a number")
}

/// A search by a reader, while another descriptor is open for writing, leaves the kernel's pages in
/// memory.
#[test]
pub fn a_search_leaves_the_pages_of_others() {
    const DATA: u64 = 4 << 20;
    let mut served = Served::new("default");
    let path = served.path("f");
    let writer = file(&path);
    for at in [0, 4 * DATA] {
        writer.write_at(&vec![7; DATA as usize], at).expect("write");
    }
    writer.sync_all().expect("fsync");
    writer.set_permissions(fs::Permissions::from_mode(0o644)).expect("chmod");
    assert!(cached(&path) >= 2 * DATA, "the written data is in memory");
    as_user(1000, 1000, || {
        let reader = File::open(&path).expect("open");
        for from in [0, 5000, DATA - 1, DATA, 2 * DATA, 4 * DATA, 5 * DATA - 1] {
            let in_hole = (DATA..4 * DATA).contains(&from);
            assert_eq!(
                seek(&reader, SeekFrom::Data(from)),
                Ok(if in_hole { 4 * DATA } else { from })
            );
            let end = if from < DATA { DATA } else { 5 * DATA };
            assert_eq!(seek(&reader, SeekFrom::Hole(from)), Ok(if in_hole { from } else { end }));
        }
    });
    assert!(cached(&path) >= 2 * DATA, "{} bytes are left in memory", cached(&path));
    drop(writer);
    served.unmount();
}

/// Searches distinguish data and holes, whatever part of the data is still unwritten.
#[test]
pub fn searches_meet_data_not_yet_written() {
    for set in ["default", "1k", "ext2"] {
        same_as_kernel(set, |dir, notes| {
            let f = file(&dir.join("f"));
            f.set_len(3 << 20).expect("truncate");
            for at in (0..20).map(|n| n * 131_072) {
                f.write_at(&[3; 65536], at).expect("write");
            }
            f.sync_all().expect("fsync");
            let look = |notes: &mut Notes, what: &str| {
                for from in [
                    0,
                    4096,
                    65_536,
                    70_000,
                    131_072,
                    400_000,
                    1 << 20,
                    2_000_000,
                    2_700_000,
                    3 << 20,
                    4 << 20,
                ] {
                    notes.call(format!("{what}: data from {from}"), seek(&f, SeekFrom::Data(from)));
                    notes.call(format!("{what}: hole from {from}"), seek(&f, SeekFrom::Hole(from)));
                }
            };
            for n in 0..18 {
                f.write_at(&[4; 65536], n * 131_072 + 65_536).expect("write");
            }
            notes.call("hole after unwritten data", seek(&f, SeekFrom::Hole(0)));
            look(notes, "filled");
            f.write_at(&[5; 65536], 2_900_000 / 65536 * 65536).expect("write");
            look(notes, "behind");
            f.write_at(&[6; 65536], 4 << 20).expect("write");
            look(notes, "longer");
            notes.call("data in a longer file", seek(&f, SeekFrom::Data((4 << 20) + 4096)));
            notes.call("hole in a longer file", seek(&f, SeekFrom::Hole(4 << 20)));
        });
    }
}

#[test]
pub fn limits_of_sizes() {
    for set in ["default", "ext2_1k", "1k"] {
        same_as_kernel(set, |dir, notes| {
            let f = file(&dir.join("f"));
            for bits in [31, 32, 33, 34, 35, 41, 42, 43, 44, 45, 62] {
                for off in [-4096i64, -1, 0, 1] {
                    let size = (1i64 << bits) + off;
                    notes.call(
                        format!("truncate to 2^{bits} {off:+}"),
                        rustix::fs::ftruncate(&f, size as u64),
                    );
                    notes.call("size", f.metadata().map(|m| m.len()));
                    // FUSE's kernel side takes any offset; the error comes when it writes back.
                    let written = f.write_at(b"x", size as u64).and_then(|_| f.sync_all());
                    notes.call(format!("write at 2^{bits} {off:+}"), written);
                    f.set_len(0).expect("truncate");
                }
            }
            // Consume the second report of the lost bytes.
            let _ = nix::unistd::syncfs(&f);
        });
    }
}

#[test]
pub fn ranges_are_copied() {
    same_as_kernel("default", |dir, notes| {
        let (from, to) = (file(&dir.join("from")), file(&dir.join("to")));
        let data: Vec<_> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        from.write_all_at(&data, 0).expect("write");
        for (offset, target, len) in [
            (0, 0, 100_000),
            (99_000, 5, 70_000),
            (290_000, 400_000, 70_000),
            (300_000, 0, 10),
            (0, 1 << 20, 300_000),
        ] {
            let (mut offset, mut target) = (offset, target);
            notes.call(
                "copy",
                rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut target), len),
            );
            notes.value("offsets", (offset, target));
            let content = fs::read(dir.join("to")).expect("read");
            notes.value(
                "content",
                (
                    content.len(),
                    content
                        .iter()
                        .fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(*b))),
                ),
            );
        }
        let (mut a, mut b) = (0, 1000);
        notes.call(
            "overlapping",
            rustix::fs::copy_file_range(&from, Some(&mut a), &from, Some(&mut b), 5000),
        );
    });
}

#[test]
pub fn usage_equals_the_kernels() {
    for set in ["default", "orphan_file", "1k", "bigalloc", "ext2", "no_journal"] {
        same_as_kernel(set, |dir, notes| {
            // The engine reserves blocks for maps of pointers, too; the kernel only for maps of
            // extents.
            let available = |s: &rustix::fs::StatVfs| if set == "ext2" { 0 } else { s.f_bavail };
            let usage = || {
                let s = rustix::fs::statvfs(dir)?;
                std::io::Result::Ok((
                    s.f_blocks,
                    s.f_bfree,
                    available(&s),
                    s.f_files,
                    s.f_ffree,
                    s.f_bsize,
                    s.f_frsize,
                    s.f_namemax,
                ))
            };
            notes.call("empty", usage());
            let f = file(&dir.join("f"));
            f.write_all_at(&vec![1; 3 << 20], 0).expect("write");
            f.sync_all().expect("fsync");
            notes.call("file", f.metadata().map(|m| (m.blocks(), m.blksize())));
            notes.call("with a file", usage().map(|u| (u.0, u.3, u.4)));
        });
    }
}

/// After fsync(2) the number of blocks shows at once, however short ago another fsync was.
#[test]
pub fn blocks_show_when_fsync_returns() {
    let mut served = Served::new("default");
    let f = file(&served.path("f"));
    for block in 0..8 {
        f.write_all_at(&[7; 4096], block * 4096).expect("write");
        f.sync_all().expect("fsync");
        assert_eq!(f.metadata().expect("stat").blocks(), (block + 1) * 8);
    }
    drop(f);
    served.unmount();
}

/// The number of blocks of a closed file shows soon, also if a caller set its times.
#[test]
pub fn blocks_of_closed_files_show() {
    let mut served = Served::new("default");
    let dir = served.dir().to_path_buf();
    let shows = |path: &Path, blocks: u64| {
        await_that(&format!("{} shows {blocks} blocks", path.display()), || {
            fs::metadata(path).expect("stat").blocks() == blocks
        });
    };
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    for (name, time, again) in [
        ("plain", None, false),
        ("now", Some(SystemTime::now()), false),
        ("old", Some(long_ago), false),
        ("old, then longer", Some(long_ago), true),
    ] {
        let path = dir.join(name);
        let f = file(&path);
        f.write_all_at(&[7; 5000], 0).expect("write");
        if let Some(time) = time {
            f.set_modified(time).expect("futimens");
            // The reply to the change of an old time carried the number.
            assert!(time != long_ago || f.metadata().expect("stat").blocks() == 16, "{name}");
        }
        if again {
            f.write_all_at(&[7; 9000], 5000).expect("write");
            f.set_permissions(fs::Permissions::from_mode(0o600)).expect("chmod");
        }
        drop(f);
        shows(&path, if again { 32 } else { 16 });
    }
    served.unmount();
}

/// Writes up to `most` bytes. Returns the end of the accepted writes, and the first error. `None`
/// means that the kernel accepted all writes.
pub fn write_until_refused(f: &File, from: u64, most: u64) -> (u64, Option<i32>) {
    let piece = vec![7; 1 << 20];
    let mut at = from;
    while at < from + most {
        if let Err(e) = f.write_at(&piece, at) {
            return (at, e.raw_os_error());
        }
        at += piece.len() as u64;
        // Consume the kernel's report of failed writeback; the test is about the error of new
        // writes.
        let _ = f.sync_data();
    }
    (at, None)
}

#[test]
pub fn writers_of_a_full_disk_are_stopped() {
    const BYTES: u64 = 32 << 20;
    let mut served = Served::of(FeatureSet::named("default").make_sized(BYTES));
    let first = served.path("first");
    fs::write(&first, vec![1; 4 << 20]).expect("write");
    File::open(&first).expect("open").sync_all().expect("fsync");
    let f = file(&served.path("second"));
    let (at, errno) = write_until_refused(&f, 0, 20 * BYTES);
    assert_eq!(errno, Some(nix::libc::ENOSPC), "{at} bytes were accepted");
    // Reads continue, and writes succeed as soon as space is free again.
    assert_eq!(
        f.metadata().expect("fstat").len(),
        fs::metadata(served.path("second")).expect("stat").len()
    );
    let mut piece = [0; 4096];
    assert_eq!(f.read_at(&mut piece, 0).expect("read"), 4096);
    fs::remove_file(&first).expect("unlink");
    f.write_all_at(&[9; 4096], 0).expect("space is free again");
    f.sync_all().expect("fsync");
    drop(f);
    // The file system also reports the loss once: consume that error.
    let _ = nix::unistd::syncfs(File::open(served.dir()).expect("open"));
    served.unmount();
}
