//! New file systems against e2fsck, dumpe2fs, mke2fs itself and the kernel.

use extant_blocks::{BlockDevice, OpenOptions, SparseDevice};
use extant_engine::mkfs::{Error, Length, Options, Preset, Report, Zeroing, make};
use extant_format::{Superblock, Timestamp};
use extant_testkit::Memory;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tree::{Manifest, Plan, Shape};
use extant_testkit::{Image, dumpe2fs, e2fsck};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const TIME: i64 = 1_700_000_000;
const UUID: &str = "6f7ae4d6-9c2f-4f0e-8b1c-2d3a5b7c9e10";
const HASH_SEED: &str = "0b7d6a1e-53c2-4e7a-9a41-c6f0d8e2b394";

fn options(preset: Preset, block_size: u32, features: &str) -> Options {
    let mut options = Options { block_size: Some(block_size), ..Options::preset(preset) };
    options.uuid = Some(extant_engine::mkfs::parse_uuid(UUID).unwrap());
    options.hash_seed = Some(extant_engine::mkfs::parse_uuid(HASH_SEED).unwrap());
    options.time = Some(Timestamp::new(TIME, 0));
    options.apply_features(features).unwrap();
    options
}

fn ext4(block_size: u32, features: &str) -> Options {
    options(Preset::Ext4, block_size, features)
}

/// Makes a file system in a file.
#[track_caller]
fn made(bytes: u64, options: &Options) -> (Image, Report) {
    let image = Image::blank(bytes);
    let device = OpenOptions::new(image.path()).open().unwrap();
    let report = make(&device, options).unwrap();
    (image, report)
}

/// Returns all combinations by name: options, size, whether the kernel mounts the image.
fn every_set() -> Vec<(&'static str, Options, u64, bool)> {
    let with = |mut options: Options, edit: fn(&mut Options)| {
        edit(&mut options);
        options
    };
    vec![
        ("default", ext4(4096, ""), 64 * MIB, true),
        ("1k", ext4(1024, ""), 64 * MIB, true),
        ("2k", ext4(2048, ""), 64 * MIB, true),
        ("64k", ext4(65536, ""), 300 * MIB, false),
        ("64k groups", ext4(65536, "^has_journal"), 9000 * MIB, false),
        ("8k", ext4(8192, ""), 1500 * MIB, false),
        ("mke2fs defaults", ext4(4096, "^orphan_file,^metadata_csum_seed"), 64 * MIB, true),
        ("ext2", options(Preset::Ext2, 4096, ""), 64 * MIB, true),
        (
            "ext2 1k",
            with(options(Preset::Ext2, 1024, ""), |o| o.inode_size = Some(128)),
            64 * MIB,
            true,
        ),
        (
            "revision 0",
            with(options(Preset::Ext2, 1024, ""), |o| (o.revision, o.inode_size) = (0, Some(128))),
            64 * MIB,
            true,
        ),
        ("ext3", options(Preset::Ext3, 4096, ""), 64 * MIB, true),
        ("ext3 1k", options(Preset::Ext3, 1024, ""), 64 * MIB, true),
        (
            "ext3 large journal",
            with(options(Preset::Ext3, 1024, ""), |o| o.journal_size = Some(80 << 20)),
            400 * MIB,
            true,
        ),
        ("no journal", ext4(4096, "^has_journal"), 64 * MIB, true),
        (
            "bigalloc",
            with(ext4(4096, "bigalloc"), |o| o.cluster_size = Some(65536)),
            256 * MIB,
            true,
        ),
        (
            "bigalloc groups",
            with(ext4(1024, "bigalloc"), |o| o.cluster_size = Some(2048)),
            100 * MIB,
            true,
        ),
        (
            "bigalloc 1k",
            with(ext4(1024, "bigalloc"), |o| o.cluster_size = Some(16384)),
            400 * MIB,
            true,
        ),
        ("meta_bg", ext4(1024, "meta_bg"), 256 * MIB, true),
        ("meta_bg short", ext4(1024, "meta_bg,^64bit"), 515 * MIB, true),
        ("sparse_super2", ext4(1024, "sparse_super2"), 64 * MIB, true),
        (
            "one backup",
            with(ext4(1024, "sparse_super2"), |o| o.backup_superblocks = 1),
            64 * MIB,
            true,
        ),
        ("all backups", ext4(1024, "^sparse_super"), 64 * MIB, true),
        ("inline_data", ext4(4096, "inline_data"), 64 * MIB, true),
        ("ea_inode, large_dir", ext4(4096, "ea_inode,large_dir"), 64 * MIB, true),
        ("mmp", ext4(4096, "mmp"), 64 * MIB, false),
        ("uninit_bg", ext4(1024, "uninit_bg,^metadata_csum"), 64 * MIB, true),
        ("uninit_bg short", ext4(1024, "uninit_bg,^metadata_csum,^64bit"), 64 * MIB, true),
        ("no checksums", ext4(1024, "^metadata_csum"), 64 * MIB, true),
        ("no 64bit", ext4(1024, "^64bit"), 64 * MIB, true),
        ("no flex_bg", ext4(1024, "^flex_bg"), 64 * MIB, true),
        ("flex 4", with(ext4(1024, ""), |o| o.flex_bg_size = Some(4)), 100 * MIB, true),
        ("flex huge", with(ext4(1024, ""), |o| o.flex_bg_size = Some(1 << 31)), 200 * MIB, true),
        ("many inodes", with(ext4(1024, ""), |o| o.inode_ratio = Some(1024)), 300 * MIB, true),
        ("few inodes", with(ext4(4096, ""), |o| o.inode_count = Some(1)), 300 * MIB, true),
        (
            "tiny groups of inodes",
            with(ext4(1024, ""), |o| o.inode_count = Some(16)),
            64 * MIB,
            true,
        ),
        ("128-byte inodes", with(ext4(1024, ""), |o| o.inode_size = Some(128)), 64 * MIB, true),
        (
            "1k inodes",
            with(ext4(1024, "inline_data"), |o| o.inode_size = Some(1024)),
            64 * MIB,
            true,
        ),
        (
            "4k inodes",
            with(ext4(4096, "inline_data"), |o| {
                (o.inode_size, o.inode_ratio) = (Some(4096), Some(65536))
            }),
            64 * MIB,
            true,
        ),
        ("fast_commit", ext4(4096, "fast_commit"), 64 * MIB, true),
        ("no dir_index", ext4(4096, "^dir_index"), 64 * MIB, true),
        ("no filetype", ext4(4096, "^filetype"), 64 * MIB, true),
        ("stride", with(ext4(4096, ""), |o| (o.stride, o.stripe_width) = (16, 64)), 64 * MIB, true),
        (
            "large journal",
            with(ext4(1024, ""), |o| o.journal_size = Some(200 << 20)),
            800 * MIB,
            true,
        ),
        ("small", ext4(1024, ""), 8 * MIB, true),
        ("tiny", ext4(1024, ""), MIB, true),
        ("odd size", ext4(1024, ""), 100 * MIB + 12345, true),
        ("reserved", with(ext4(4096, ""), |o| o.reserved_percent = 50.0), 64 * MIB, true),
    ]
}

#[test]
fn e2fsck_finds_nothing() {
    for (name, options, bytes, _) in every_set() {
        println!("{name}");
        let (image, report) = made(bytes, &options);
        image.assert_clean();
        let dump = dumpe2fs::header(image.path());
        assert_eq!(dump.number("Block count"), report.blocks, "{name}");
        assert_eq!(dump.number("Free blocks"), report.free_blocks, "{name}");
        assert_eq!(dump.number("Inode count"), u64::from(report.inodes), "{name}");
        assert_eq!(dump.number("Free inodes"), u64::from(report.free_inodes), "{name}");
        assert!(report.blocks * u64::from(report.block_size) <= bytes);
    }
}

#[test]
fn stale_bytes_do_not_matter() {
    const SETS: [&str; 9] = [
        "1k",
        "ext2 1k",
        "ext3",
        "bigalloc groups",
        "meta_bg short",
        "mmp",
        "uninit_bg",
        "no checksums",
        "small",
    ];
    for (name, mut options, bytes, _) in every_set() {
        if !SETS.contains(&name) {
            continue;
        }
        println!("{name}");
        let bytes = bytes.min(100 * MIB);
        for zeroing in [Zeroing::Lazy, Zeroing::Full] {
            options.zeroing = zeroing;
            let image = Image::blank(bytes);
            let device = OpenOptions::new(image.path()).open().unwrap();
            let dirt: Vec<u8> = (0..MIB as usize).map(|n| (n % 251) as u8 | 1).collect();
            for offset in (0..bytes - MIB).step_by(MIB as usize) {
                device.write_all_at(&dirt, offset).unwrap();
            }
            make(&device, &options).unwrap();
            drop(device);
            image.assert_clean();
        }
    }
}

#[test]
fn kernel_mounts_and_writes() {
    let plan = Plan::random(
        11,
        &Shape { wide: 300, privileged: true, largest: 200_000, files: 60, ..Shape::default() },
    );
    for (name, options, bytes, mountable) in every_set() {
        if !mountable || bytes < 8 * MIB {
            continue;
        }
        println!("{name}");
        let (image, _) = made(bytes, &options);
        let mount = Mount::new(image.path(), "");
        let small = options.inode_count.is_some();
        if !small {
            plan.apply(mount.path());
        }
        std::fs::write(mount.join("file"), name).unwrap();
        mount.unmount();
        image.assert_clean();
        let mount = Mount::new(image.path(), "ro");
        assert_eq!(std::fs::read(mount.join("file")).unwrap(), name.as_bytes());
        if options.inode_size == Some(128) || small {
            continue;
        }
        let walked =
            Manifest::walk(mount.path()).without("lost+found").without("file").without_root();
        plan.manifest().assert_same(&walked);
    }
}

/// Arguments of `mke2fs` for options of the same meaning.
fn mke2fs_image(bytes: u64, args: &str) -> Image {
    let image = Image::blank(bytes);
    let mut all: Vec<std::ffi::OsString> = vec!["-q".into(), "-F".into(), "-U".into(), UUID.into()];
    // The last `-E` counts alone.
    let (args, extended) = args.split_once(" -E ").unwrap_or((args, "root_owner=0:0"));
    all.extend(["-E".into(), format!("hash_seed={HASH_SEED},{extended}").into()]);
    all.extend(args.split_whitespace().map(Into::into));
    all.push(image.path().as_os_str().to_owned());
    let time = TIME.to_string();
    extant_testkit::tool::run_with_env("mke2fs", &all, &[("E2FSPROGS_FAKE_TIME", &time)])
        .must_succeed();
    image
}

/// Images of several groups, for which the layout is to be that of `mke2fs`: arguments, options,
/// size.
fn twins() -> Vec<(&'static str, Options, u64)> {
    let clusters = |size| {
        let mut options = ext4(4096, "bigalloc,^orphan_file,^metadata_csum_seed");
        options.cluster_size = Some(size);
        options
    };
    let with = |mut options: Options, edit: fn(&mut Options)| {
        edit(&mut options);
        options
    };
    let plain = "^orphan_file,^metadata_csum_seed";
    vec![
        ("-t ext4 -b 1024 -O orphan_file,metadata_csum_seed", ext4(1024, ""), 64 * MIB),
        ("-t ext4 -b 4096 -O orphan_file,metadata_csum_seed", ext4(4096, ""), 1024 * MIB),
        (
            "-t ext4 -b 1024 -O orphan_file,metadata_csum_seed -E orphan_file_size=40",
            with(ext4(1024, ""), |o| o.apply_extended("orphan_file_size=40").unwrap()),
            64 * MIB,
        ),
        (
            "-t ext4 -b 1024 -O orphan_file,metadata_csum_seed -E orphan_file_size=96k",
            with(ext4(1024, ""), |o| o.apply_extended("orphan_file_size=96k").unwrap()),
            64 * MIB,
        ),
        ("-t ext4 -b 1024", ext4(1024, plain), 100 * MIB),
        (
            "-t ext4 -b 1024 -E resize=1G",
            with(ext4(1024, plain), |o| o.apply_extended("resize=1G").unwrap()),
            100 * MIB,
        ),
        (
            "-t ext4 -b 1024 -E resize=4000000",
            with(ext4(1024, plain), |o| o.apply_extended("resize=4000000").unwrap()),
            100 * MIB,
        ),
        ("-t ext4 -b 4096", ext4(4096, plain), 20_000 * MIB),
        (
            "-t ext4 -b 2048 -O ^64bit",
            ext4(2048, "^64bit,^orphan_file,^metadata_csum_seed"),
            300 * MIB,
        ),
        (
            "-t ext4 -b 1024 -O ^flex_bg",
            ext4(1024, "^flex_bg,^orphan_file,^metadata_csum_seed"),
            64 * MIB,
        ),
        (
            "-t ext4 -b 1024 -O meta_bg,^resize_inode",
            ext4(1024, "meta_bg,^orphan_file,^metadata_csum_seed"),
            200 * MIB,
        ),
        (
            "-t ext4 -b 1024 -O sparse_super2,^resize_inode",
            ext4(1024, "sparse_super2,^resize_inode,^orphan_file,^metadata_csum_seed"),
            64 * MIB,
        ),
        (
            "-t ext4 -b 1024 -O uninit_bg,^metadata_csum",
            ext4(1024, "uninit_bg,^metadata_csum,^orphan_file"),
            64 * MIB,
        ),
        (
            "-t ext4 -b 1024 -O ^has_journal",
            ext4(1024, "^has_journal,^metadata_csum_seed"),
            64 * MIB,
        ),
        ("-t ext4 -b 1024 -I 128", with(ext4(1024, plain), |o| o.inode_size = Some(128)), 64 * MIB),
        ("-t ext4 -b 1024 -G 4", with(ext4(1024, plain), |o| o.flex_bg_size = Some(4)), 112 * MIB),
        ("-t ext2 -b 1024", options(Preset::Ext2, 1024, ""), 64 * MIB),
        (
            "-t ext2 -b 1024 -r 0",
            with(options(Preset::Ext2, 1024, ""), |o| o.revision = 0),
            64 * MIB,
        ),
        (
            "-t ext2 -b 4096 -r 0",
            with(options(Preset::Ext2, 4096, ""), |o| o.revision = 0),
            300 * MIB,
        ),
        ("-t ext3 -b 1024", options(Preset::Ext3, 1024, ""), 64 * MIB),
        ("-t ext4 -b 4096 -O bigalloc -C 8192", clusters(8192), 2048 * MIB),
        ("-t ext4 -b 4096 -O bigalloc -C 4096", clusters(4096), 2048 * MIB),
        (
            "-t ext4 -b 1024 -O fast_commit",
            ext4(1024, "fast_commit,^orphan_file,^metadata_csum_seed"),
            600 * MIB,
        ),
    ]
}

#[test]
fn dumpe2fs_prints_the_same_as_for_mke2fs() {
    for (args, options, bytes) in twins() {
        println!("{args}");
        let (ours, _) = made(bytes, &options);
        let theirs = mke2fs_image(bytes, args);
        let (ours, theirs) = (dumpe2fs::dump(ours.path()), dumpe2fs::dump(theirs.path()));
        assert_eq!(differences(&ours.values, &theirs.values), Vec::<String>::new(), "{args}");
        assert_eq!(ours.groups.len(), theirs.groups.len());
        // Journals that are mapped by indirect blocks lie in the first group there, in the middle
        // here.
        if options.preset == Preset::Ext3 {
            continue;
        }
        for (n, (a, b)) in ours.groups.iter().zip(&theirs.groups).enumerate() {
            assert_eq!(a, b, "{args}: group {n}");
        }
    }
}

/// Further twins: groups of few clusters, and a mark with a field of its own.
fn further_twins() -> Vec<(&'static str, Options, u64)> {
    let plain = "^orphan_file,^metadata_csum_seed";
    let mut clustered = ext4(4096, &format!("bigalloc,{plain}"));
    (clustered.cluster_size, clustered.group_blocks) = (Some(65536), Some(256));
    vec![
        ("-t ext4 -b 4096 -O bigalloc -C 65536 -g 256", clustered, 512 * MIB),
        ("-t ext4 -b 1024 -O encrypt", ext4(1024, &format!("encrypt,{plain}")), 64 * MIB),
    ]
}

#[test]
fn bytes_are_those_of_mke2fs() {
    for (args, options, bytes) in twins().into_iter().chain(further_twins()) {
        if bytes > 600 * MIB || options.preset == Preset::Ext3 {
            continue;
        }
        println!("{args}");
        let (ours, _) = made(bytes, &options);
        let theirs = mke2fs_image(bytes, args);
        let (ours, theirs) = (ours.bytes(), theirs.bytes());
        for (n, (a, b)) in ours.chunks(1024).zip(theirs.chunks(1024)).enumerate() {
            assert!(
                a == b || normal(a).is_some_and(|sb| Some(sb) == normal(b)),
                "{args}: KiB {n}: {:?}",
                first_difference(a, b)
            );
        }
    }
}

/// Returns a superblock without the count of bytes written, which depends on the way of writing.
fn normal(chunk: &[u8]) -> Option<Vec<u8>> {
    let mut sb = Superblock::parse_unverified(chunk).ok()?;
    sb.verify_checksum().ok()?;
    sb.set_kbytes_written(0);
    Some(sb.seal().to_vec())
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<(usize, u8, u8)> {
    a.iter().zip(b).enumerate().find(|(_, (x, y))| x != y).map(|(n, (x, y))| (n, *x, *y))
}

/// Returns lines that differ, except for those that depend on the way and the time of writing.
fn differences(ours: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>) -> Vec<String> {
    let ignored = |name: &str| matches!(name, "Lifetime writes" | "Checksum");
    let names = ours.keys().chain(theirs.keys()).filter(|name| !ignored(name));
    let mut lines: Vec<String> = names
        .filter(|name| ours.get(*name) != theirs.get(*name))
        .map(|name| format!("{name}: {:?}, mke2fs {:?}", ours.get(name), theirs.get(name)))
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn equal_seeds_give_equal_bytes() {
    let image = |seed| {
        let device = Memory::new(64 * MIB);
        let options =
            Options { seed: Some(seed), time: Some(Timestamp::new(TIME, 0)), ..Options::default() };
        make(&device, &options).unwrap();
        let mut bytes = vec![0; 64 << 20];
        device.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert!(image(1) == image(1));
    assert!(image(1) != image(2));
}

#[test]
fn sixty_tebibytes_take_little() {
    let device = SparseDevice::new(60 << 40);
    let options = Options { write_backups: false, ..Options::default() };
    let report = make(&device, &options).unwrap();
    assert_eq!((report.groups, report.inodes), (491_520, 1_006_632_960));
    assert!(report.written < 400 * MIB, "{}", report.written);
    // Few inodes: the time of e2fsck grows with their number.
    let (image, _) = made(17 << 40, &Options { inode_ratio: Some(1 << 20), ..Options::default() });
    image.leave_unjudged("dumpe2fs and e2freefrag look at each of four billion blocks");
    e2fsck::check_with(image.path(), &[]).assert_clean();
    Mount::new(image.path(), "ro").unmount();
    let dump = dumpe2fs::header(image.path());
    assert_eq!(dump.number("Block count"), 4_563_402_752);
    assert_eq!(dump.number("Inode count"), 17_825_792);
}

#[test]
fn bad_options_are_refused_and_nothing_is_written() {
    let device = SparseDevice::new(64 * MIB);
    let refused = |options: Options| make(&device, &options).unwrap_err();
    assert!(matches!(
        refused(Options { label: vec![b'x'; 17], ..Options::default() }),
        Error::Invalid(_)
    ));
    assert!(matches!(
        refused(Options { size: Some(65 * MIB), ..Options::default() }),
        Error::TooSmall(_)
    ));
    assert!(matches!(refused(ext4(4096, "shared_blocks")), Error::Unsupported(_)));
    assert!(matches!(
        refused(Options { journal_size: Some(1), ..Options::default() }),
        Error::Invalid(_)
    ));
    assert!(device.next_data(0).unwrap().is_none());
    for bytes in (0..300).map(|n| n * 1024) {
        match make(&SparseDevice::new(bytes), &Options::default()) {
            Ok(report) => assert!(report.free_blocks > 0),
            Err(error) => assert!(matches!(error, Error::TooSmall(_)), "{bytes}: {error}"),
        }
    }
}

#[test]
fn every_size_is_clean() {
    for bytes in [300, 700, 1500, 3000, 8193, 8194, 8300, 8500, 16_385, 16_500, 33_000, 70_001]
        .map(|kib| kib * 1024)
    {
        for options in
            [Options::default(), Options { block_size: Some(4096), ..Options::default() }]
        {
            let image = Image::blank(bytes);
            let device = OpenOptions::new(image.path()).open().unwrap();
            let result = make(&device, &options);
            drop(device);
            match result {
                Ok(_) => {
                    assert_eq!(e2fsck::check(image.path()), e2fsck::Verdict::Clean, "{bytes} bytes")
                }
                Err(error) => assert!(matches!(error, Error::TooSmall(_)), "{bytes}: {error}"),
            }
        }
    }
}

/// Features that random options set and clear.
const CHOICES: [&str; 26] = [
    "has_journal",
    "resize_inode",
    "dir_index",
    "ext_attr",
    "orphan_file",
    "sparse_super2",
    "fast_commit",
    "filetype",
    "extent",
    "64bit",
    "flex_bg",
    "metadata_csum_seed",
    "meta_bg",
    "mmp",
    "inline_data",
    "large_dir",
    "ea_inode",
    "sparse_super",
    "large_file",
    "huge_file",
    "metadata_csum",
    "uninit_bg",
    "dir_nlink",
    "extra_isize",
    "bigalloc",
    "stable_inodes",
];

fn random_options(rng: &mut Rng) -> (Options, u64) {
    let mut options = Options::preset(*rng.pick(&[Preset::Ext2, Preset::Ext3, Preset::Ext4]));
    for _ in 0..rng.below(6) {
        let not = if rng.one_in(2) { "^" } else { "" };
        options.apply_features(&format!("{not}{}", rng.pick(&CHOICES))).unwrap();
    }
    let one = |rng: &mut Rng, power: (u64, u64)| {
        rng.one_in(3).then(|| 1u64 << rng.between(power.0, power.1))
    };
    options.block_size = one(rng, (10, 16)).map(|n| n as u32);
    options.inode_size = one(rng, (7, 12)).map(|n| n as u16);
    options.flex_bg_size = one(rng, (0, 8)).map(|n| n as u32);
    options.cluster_size = one(rng, (11, 20)).map(|n| n as u32).filter(|_| rng.one_in(2));
    options.inode_ratio = one(rng, (10, 22));
    options.inode_count = rng.one_in(8).then(|| rng.below(100_000));
    options.journal_size = one(rng, (18, 26));
    options.orphan_file_size = one(rng, (9, 21)).map(Length::Bytes);
    options.backup_superblocks = rng.below(3) as u8;
    options.reserved_percent = rng.below(51) as f64;
    let most = 1 << rng.between(18, 31);
    let bytes = rng.between(100 << 10, most);
    (options, bytes)
}

#[test]
fn any_options_make_a_clean_file_system_or_none() {
    let mut made = 0;
    for seed in 0..150 {
        let (options, bytes) = random_options(&mut Rng::new(seed));
        let image = Image::blank(bytes);
        let device = OpenOptions::new(image.path()).open().unwrap();
        match make(&device, &options) {
            Err(Error::Io(e)) => panic!("seed {seed}: {e}"),
            Err(_) => continue,
            Ok(_) => made += 1,
        }
        drop(device);
        let verdict = e2fsck::check(image.path());
        assert!(verdict.is_clean(), "seed {seed}, {bytes} bytes: {verdict:?}\n{options:?}");
    }
    assert!(made > 40, "{made}");
}

/// Inode tables have whole blocks: the maximum number of inodes of a group depends on the inodes in
/// a block.
#[test]
fn the_smallest_ratio_makes_clean_file_systems_at_every_block_and_inode_size() {
    for block_size in (10..=16).map(|bits| 1_u32 << bits) {
        for inode_size in
            (7..=15).map(|bits| 1_u16 << bits).take_while(|size| u32::from(*size) <= block_size)
        {
            let mut options = ext4(block_size, "");
            options.inode_size = Some(inode_size);
            options.inode_ratio = Some(1024);
            // A full group: the number of inodes equals that of blocks.
            let bytes = u64::from(block_size) * (u64::from(block_size) * 8).min(65_528) + 1024;
            println!("block size {block_size}, inode size {inode_size}");
            let image = Image::blank(bytes);
            let device = OpenOptions::new(image.path()).open().unwrap();
            match make(&device, &options) {
                Ok(report) => assert!(report.free_blocks > 0),
                // The table would take the whole group, or most of it.
                Err(Error::TooSmall(_)) if u32::from(inode_size) * 2 >= block_size => continue,
                Err(error) => panic!("block size {block_size}, inode size {inode_size}: {error}"),
            }
            drop(device);
            let header = dumpe2fs::header(image.path());
            let per_block = u64::from(block_size) / u64::from(inode_size);
            assert_eq!(header.number("Inodes per group") % per_block, 0);
            e2fsck::check(image.path()).assert_clean();
        }
    }
}
