//! The treatment of each feature bit, as `COMPAT.md` states it. [`crate::life`] exercises the sets
//! that are read and written.

use extant_blocks::{FaultDevice, Op, OverlayDevice};
use extant_engine::{Errno, Error, Follow, Fs, Node, NodeKind, OpenFlags, OpenOptions, XattrMode};
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::types::Timestamp;
use extant_hostile::atlas::{Atlas, change_superblock, superblock};
use extant_journal::{Log, LogExtent, LogPlace, recovery};
use extant_testkit::Memory;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::{Mount, Shutdown};
use extant_testkit::tool::run;
use extant_testkit::{dumpe2fs, e2fsck};
use std::fs::OpenOptions as OpenFile;
use std::sync::Arc;

type Device = Arc<FaultDevice<Arc<Memory>>>;

fn device(bytes: &[u8]) -> Device {
    Arc::new(FaultDevice::new(Arc::new(Memory::from_bytes(bytes))))
}

fn open(bytes: &[u8], read_only: bool) -> (Device, extant_engine::Result<Fs>) {
    let device = device(bytes);
    let options = OpenOptions::new().memory(64 << 20).read_only(read_only);
    (device.clone(), Fs::open_device(device, &options))
}

fn changed(device: &Device) -> bool {
    [Op::Write, Op::Zero, Op::Discard, Op::SetLen].iter().any(|op| device.count(*op) > 0)
}

fn small(set: &str) -> Vec<u8> {
    FeatureSet::named(set).make_sized(12 << 20).bytes()
}

fn create(fs: &Fs, name: &str) -> extant_engine::Result<Node> {
    fs.create(&fs.root()?, name.as_bytes(), 0o644, NodeKind::File)
}

fn write_file(fs: &Fs, name: &str, data: &[u8]) {
    let node = create(fs, name).expect(name);
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(name);
    assert_eq!(file.write_at(0, data).expect(name), data.len());
}

fn read_file(fs: &Fs, path: &str) -> Vec<u8> {
    let node = fs.resolve(path, Follow::Yes).expect(path);
    let file = fs.open_file(&node, OpenFlags::default()).expect(path);
    let mut data = vec![0; file.len() as usize];
    assert_eq!(file.read_at(0, &mut data).expect(path), data.len(), "{path}");
    data
}

/// A file system of revision 0 has no features. The first one comes with revision 1.
#[test]
fn revision_0_is_upgraded_by_the_first_feature() {
    for feature in ["ext_attr", "large_file"] {
        let image = Image::mke2fs(16 << 20, &["-t", "ext2", "-b", "1024", "-r", "0"]);
        assert_eq!(dumpe2fs::header(image.path()).value("Filesystem revision #"), "0 (original)");
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        write_file(&fs, "file", b"text");
        fs.unmount().unwrap();
        e2fsck::check(image.path()).assert_clean();
        assert_eq!(dumpe2fs::header(image.path()).value("Filesystem revision #"), "0 (original)");
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let node = fs.resolve("/file", Follow::Yes).unwrap();
        match feature {
            "ext_attr" => {
                fs.set_xattr(&node, b"user.name", b"value", XattrMode::Any).unwrap();
            }
            _ => {
                let flags = OpenFlags { write: true, ..Default::default() };
                fs.open_file(&node, flags).unwrap().write_at(3 << 30, b"end").unwrap();
            }
        }
        fs.unmount().unwrap();
        e2fsck::check(image.path()).assert_clean();
        let header = dumpe2fs::header(image.path());
        assert_eq!(header.value("Filesystem revision #"), "1 (dynamic)");
        assert_eq!(header.features().into_iter().collect::<Vec<_>>(), [feature]);
        assert_eq!((header.number("First inode"), header.number("Inode size")), (11, 128));
        let mount = Mount::new(image.path(), "");
        assert_eq!(&std::fs::read(mount.join("file")).unwrap()[..4], b"text");
        std::fs::write(mount.join("other"), "text").unwrap();
        mount.unmount();
        e2fsck::check(image.path()).assert_clean();
    }
}

/// The bits that Extant reads, and no others. [`names_in_unknown_encodings_are_refused`] has the
/// condition for `casefold`.
const READ: [Incompat; 13] = [
    Incompat::FILETYPE,
    Incompat::RECOVER,
    Incompat::META_BG,
    Incompat::EXTENTS,
    Incompat::BIT64,
    Incompat::MMP,
    Incompat::FLEX_BG,
    Incompat::EA_INODE,
    Incompat::CSUM_SEED,
    Incompat::LARGEDIR,
    Incompat::INLINE_DATA,
    Incompat::CASEFOLD,
    Incompat::ENCRYPT,
];

#[test]
fn incompatible_bits_are_refused_by_name() {
    let image = small("default");
    let known: u32 = READ.iter().map(|bit| bit.bits()).sum();
    for bit in (0..32).map(|n| 1 << n).filter(|bit| known & bit == 0) {
        let mut bytes = image.clone();
        change_superblock(&mut bytes, |sb| {
            let mut features = sb.features();
            features.incompat |= Incompat::from_bits_retain(bit);
            sb.set_features(features);
        });
        let name = Incompat::from_bits_retain(bit).names().remove(0);
        for read_only in [false, true] {
            let (device, opened) = open(&bytes, read_only);
            let error = opened.expect_err(&name);
            assert!(matches!(error, Error::Unsupported(_)), "{name}: {error:?}");
            assert!(error.to_string().contains(&name), "{name}: {error}");
            assert_eq!(error.errno(), Errno::OpNotSupp as i32);
            assert!(!changed(&device));
        }
    }
}

#[test]
fn names_in_unknown_encodings_are_refused() {
    let image = small("default");
    for encoding in [0, 2, u16::MAX] {
        let mut bytes = image.clone();
        change_superblock(&mut bytes, |sb| {
            let mut features = sb.features();
            features.incompat |= Incompat::CASEFOLD;
            sb.set_features(features);
            sb.set_encoding(encoding);
        });
        for read_only in [false, true] {
            let (device, opened) = open(&bytes, read_only);
            let error = opened.expect_err("an unknown encoding");
            assert!(matches!(error, Error::Unsupported(_)), "{encoding}: {error:?}");
            let cause = format!("casefold with names in encoding {encoding}");
            assert!(error.to_string().contains(&cause), "{error}");
            assert!(!changed(&device));
        }
    }
}

fn assert_reads_only(bytes: &[u8], name: &str) {
    let (device, opened) = open(bytes, false);
    let fs = opened.unwrap_or_else(|e| panic!("{name}: {e}"));
    let why = fs.recovery().read_only.clone().unwrap_or_else(|| panic!("{name} has no reason"));
    assert!(why.contains(name), "{name}: {why}");
    assert!(fs.is_read_only());
    assert!(create(&fs, "file").unwrap_err().is(Errno::RoFs));
    assert!(
        fs.read_dir(&fs.root().unwrap()).unwrap().iter().any(|entry| entry.name == b"lost+found")
    );
    fs.unmount().unwrap();
    assert!(!changed(&device), "{name}: a change");
    assert!(device.inner().to_vec() == bytes, "{name}");
}

#[test]
fn unwritable_bits_are_opened_for_reading_with_the_reason() {
    let image = small("default");
    let written = RoCompat::SPARSE_SUPER
        | RoCompat::LARGE_FILE
        | RoCompat::BTREE_DIR
        | RoCompat::HUGE_FILE
        | RoCompat::GDT_CSUM
        | RoCompat::DIR_NLINK
        | RoCompat::EXTRA_ISIZE
        | RoCompat::BIGALLOC
        | RoCompat::METADATA_CSUM
        | RoCompat::ORPHAN_PRESENT
        | RoCompat::QUOTA
        | RoCompat::PROJECT
        | RoCompat::VERITY;
    for bit in (0..32).map(|n| 1 << n).filter(|bit| written.bits() & bit == 0) {
        let mut bytes = image.clone();
        change_superblock(&mut bytes, |sb| {
            let mut features = sb.features();
            features.ro_compat |= RoCompat::from_bits_retain(bit);
            sb.set_features(features);
        });
        assert_reads_only(&bytes, &RoCompat::from_bits_retain(bit).names().remove(0));
    }
}

/// Compatible bits may be ignored by implementations that do not know them, and are preserved.
#[test]
fn compatible_bits_are_kept() {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    let mut bytes = image.bytes();
    let ignored = Compat::DIR_PREALLOC.bits()
        | Compat::IMAGIC_INODES.bits()
        | Compat::STABLE_INODES.bits()
        | 1 << 20
        | 1 << 31;
    change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.compat |= Compat::from_bits_retain(ignored);
        sb.set_features(features);
    });
    let (device, opened) = open(&bytes, false);
    device.inner().leave_unjudged("e2fsck does not know all bits; without them it judges below");
    let fs = opened.unwrap();
    write_file(&fs, "file", b"written");
    fs.unmount().unwrap();
    let mut bytes = device.inner().to_vec();
    assert_eq!(superblock(&bytes).compat().bits() & ignored, ignored);
    change_superblock(&mut bytes, |sb| {
        let mut features = sb.features();
        features.compat.remove(Compat::from_bits_retain(ignored));
        sb.set_features(features);
    });
    std::fs::write(image.path(), bytes).unwrap();
    image.assert_clean();
}

#[test]
fn a_journal_is_no_file_system() {
    let journal = Image::mke2fs(12 << 20, &["-O", "journal_dev"]);
    let error = open(&journal.bytes(), true).1.unwrap_err();
    assert!(error.to_string().contains("journal_dev"), "{error}");
}

/// An image as after a power cut of Extant.
fn crashed(set: &str) -> Vec<u8> {
    let (device, opened) = open(&small(set), false);
    let fs = opened.unwrap();
    for n in 0..50u8 {
        write_file(&fs, &format!("file{n}"), &[n; 3000]);
    }
    fs.sync().unwrap();
    fs.crash();
    device.inner().to_vec()
}

#[test]
fn a_log_is_replayed_in_memory_for_readers() {
    for set in ["default", "1k", "ext3", "no_csum", "no_64bit", "orphan_file"] {
        let bytes = crashed(set);
        assert!(superblock(&bytes).incompat().contains(Incompat::RECOVER));
        let (device, opened) = open(&bytes, true);
        let fs = opened.unwrap();
        assert!(
            fs.recovery().in_memory && fs.recovery().journal.is_some_and(|found| found.blocks > 0),
            "{set}"
        );
        for n in 0..50u8 {
            assert!(read_file(&fs, &format!("/file{n}")) == [n; 3000], "{set}");
        }
        fs.unmount().unwrap();
        assert!(!changed(&device), "{set}: a change");
        let without = OpenOptions::new().no_recovery(true);
        let fs = Fs::open_device(device.clone(), &without).unwrap();
        assert!(fs.is_read_only() && fs.recovery().journal.is_none());
        fs.unmount().unwrap();
        assert!(device.inner().to_vec() == bytes, "{set}: other bytes");
        let (device, opened) = open(&bytes, false);
        opened.unwrap().unmount().unwrap();
        let image = Image::blank(0);
        std::fs::write(image.path(), device.inner().to_vec()).unwrap();
        image.assert_clean();
    }
}

#[test]
fn a_log_of_the_kernel_is_replayed_in_memory_for_readers() {
    let image = FeatureSet::named("1k").make_sized(16 << 20);
    let mount = Mount::new(image.path(), "commit=300");
    std::fs::write(mount.join("file"), "from the kernel").unwrap();
    std::fs::File::open(mount.join("file")).unwrap().sync_all().unwrap();
    mount.crash(Shutdown::NoFlushLog);
    let bytes = image.bytes();
    let (device, opened) = open(&bytes, true);
    let fs = opened.unwrap();
    assert!(fs.recovery().in_memory);
    assert_eq!(read_file(&fs, "/file"), b"from the kernel");
    fs.unmount().unwrap();
    assert!(!changed(&device));
}

#[test]
fn multiple_mount_protection_is_honoured() {
    let bytes = small("mmp");
    let device = device(&bytes);
    let fs = Fs::open_device(device.clone(), &OpenOptions::new()).unwrap();
    write_file(&fs, "file", b"protected");
    // As another host: this process would refuse to open the device twice.
    let there = Arc::new(OverlayDevice::new(device.clone(), 4096, 16));
    let second = Fs::open_device(there, &OpenOptions::new()).unwrap_err();
    assert!(second.is(Errno::Busy), "{second}");
    fs.unmount().unwrap();
    let image = Image::blank(0);
    std::fs::write(image.path(), device.inner().to_vec()).unwrap();
    image.assert_clean();
}

/// Blocks of 8, 16 and 32 KiB, which no feature set has.
#[test]
fn other_block_sizes() {
    for size in ["8192", "16384", "32768"] {
        let image = Image::mke2fs(256 << 20, &["-t", "ext4", "-b", size]);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        (0..40).for_each(|n: u8| {
            write_file(&fs, &format!("file{n}"), &vec![n; 3000 * usize::from(n)])
        });
        fs.unlink(&fs.root().unwrap(), b"file7").unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
        assert!(read_file(&fs, "/file39") == vec![39; 117_000]);
    }
}

/// Returns a file system of 16 MiB on a device of 64 MiB, with a committed log that holds the
/// result of `resize2fs`.
fn with_log_of_resize() -> Image {
    const LOG_BLOCKS: u32 = 4096;
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=4"]);
    OpenFile::new().write(true).open(image.path()).unwrap().set_len(64 << 20).unwrap();
    let large = image.copy();
    run("resize2fs", &[large.path()]).must_succeed();
    large.assert_clean();
    let [mut before, mut after] = [&image, &large].map(Image::bytes);
    for bytes in [&mut before, &mut after] {
        change_superblock(bytes, |sb| {
            let mut features = sb.features();
            features.incompat |= Incompat::RECOVER;
            sb.set_features(features);
        });
    }
    std::fs::write(image.path(), &before).unwrap();
    let blocks: Vec<(u64, Arc<[u8]>)> = (0..)
        .zip(before.chunks(1024).zip(after.chunks(1024)))
        .filter(|(_, (before, after))| before != after)
        .map(|(nr, (_, after))| (nr, after.into()))
        .collect();
    assert!(blocks.iter().any(|(nr, _)| *nr >= 16 << 10), "something lies behind the old end");
    let atlas = Atlas::of(&before);
    let place = |at: u32| LogExtent {
        logical: at,
        physical: atlas.journal_block(at).start as u64 / 1024,
        len: 1,
    };
    let extents: Vec<LogExtent> = (0..LOG_BLOCKS).map(place).collect();
    let device = OpenOptions::new().device(image.path()).unwrap();
    let log = Log::open(device.clone(), &extents, 1024, LogPlace::Inside).unwrap();
    let empty = recovery::scan(&log, 64 << 10).unwrap();
    empty.apply_full(&*device).unwrap();
    empty.append(&blocks, Timestamp::new(1_700_000_000, 0)).unwrap();
    image
}

/// The superblock on the device has the old size until the log is written home. It therefore must
/// not limit the blocks that the log names.
#[test]
fn a_log_of_an_online_resize_is_replayed() {
    let image = with_log_of_resize();
    image.leave_unjudged("copies are judged");
    let blocks = |image: &Image| dumpe2fs::header(image.path()).number("Block count");
    assert_eq!(blocks(&image), 16 << 10, "the new size is in the log only");

    let by_e2fsck = image.copy();
    e2fsck::recover(by_e2fsck.path()).assert_clean();
    assert_eq!(blocks(&by_e2fsck), 64 << 10);

    let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
    assert_eq!(fs.superblock().blocks_count(), 64 << 10, "readers see it replayed");
    drop(fs);
    let ours = image.copy();
    let fs = Fs::open(ours.path(), &OpenOptions::new()).unwrap();
    assert_eq!(fs.superblock().blocks_count(), 64 << 10);
    write_file(&fs, "file", &[7; 40 << 20]);
    fs.unmount().unwrap();
    ours.assert_clean();
}
