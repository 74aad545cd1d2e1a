//! Changes of the superblock: as those of tune2fs, wholly or not at all.

use crate::oracle::complaints;
use extant_blocks::{BlockDevice, MemDevice, RecordingDevice};
use extant_check::tune::{ReservedShare, Tune, TuneChanges, TuneError};
use extant_format::superblock::{ErrorPolicy, State};
use extant_format::{Features, Geometry, GroupNr, Incompat, RoCompat, Superblock};
use extant_testkit::cuts::each_cut;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, dumpe2fs, e2fsck};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

/// The bytes of an image: four groups, copies of the superblock in the groups 1 and 3.
const SIZE: u64 = 32 << 20;

/// A kind of file system: its name, and the arguments to `mke2fs`.
pub type Kind = (&'static str, &'static [&'static str]);

pub const KINDS: &[Kind] = &[
    ("metadata_csum", &["-t", "ext4", "-b", "4096", "-g", "2048"]),
    ("seed", &["-t", "ext4", "-b", "1024", "-O", "metadata_csum_seed,orphan_file"]),
    ("1k", &["-t", "ext4", "-b", "1024"]),
    ("no_csum", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]),
    ("no_64bit", &["-t", "ext4", "-b", "2048", "-g", "4096", "-O", "^64bit"]),
    ("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096", "-g", "8192"]),
    ("no_journal", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]),
    ("ext2", &["-t", "ext2", "-b", "1024", "-I", "128"]),
    ("ext3", &["-t", "ext3", "-b", "4096", "-g", "2048"]),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"]),
    (
        "all_copies",
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^sparse_super,^resize_inode"],
    ),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    ("uninit_bg", &["-t", "ext4", "-b", "1024", "-O", "uninit_bg,^metadata_csum"]),
    ("mmp", &["-t", "ext4", "-b", "1024", "-O", "mmp"]),
    ("quota", &["-t", "ext4", "-b", "1024", "-O", "quota,project"]),
];

fn kind(name: &str) -> Image {
    let (_, args) = KINDS.iter().find(|(known, _)| *known == name).expect("a kind");
    Image::mke2fs(SIZE, args)
}

const UUID: [u8; 16] = *b"0123456789abcdef";
const UUID_TEXT: &str = "30313233-3435-3637-3839-616263646566";

/// Changes, with the arguments to tune2fs for the same.
fn changes() -> Vec<(Vec<&'static str>, TuneChanges)> {
    let none = TuneChanges::default;
    let options = |list: &str| TuneChanges { default_mount_options: Some(list.into()), ..none() };
    let reserved = |share| TuneChanges { reserved: Some(share), ..none() };
    vec![
        (vec!["-L", "a label"], TuneChanges { label: Some(b"a label".into()), ..none() }),
        (vec!["-L", "0123456789abcdef"], TuneChanges { label: Some(UUID.into()), ..none() }),
        (vec!["-m", "2.55"], reserved(ReservedShare::Percent(2.55))),
        (vec!["-m", "0"], reserved(ReservedShare::Percent(0.0))),
        (vec!["-r", "4096"], reserved(ReservedShare::Blocks(4096))),
        (vec!["-u", "7"], TuneChanges { reserved_uid: Some(7), ..none() }),
        (vec!["-g", "65535"], TuneChanges { reserved_gid: Some(65535), ..none() }),
        (
            vec!["-e", "remount-ro"],
            TuneChanges { errors: Some(ErrorPolicy::RemountReadOnly), ..none() },
        ),
        (vec!["-e", "panic"], TuneChanges { errors: Some(ErrorPolicy::Panic), ..none() }),
        (vec!["-c", "20"], TuneChanges { max_mount_count: Some(20), ..none() }),
        (vec!["-c", "0"], TuneChanges { max_mount_count: Some(0), ..none() }),
        (vec!["-C", "5"], TuneChanges { mount_count: Some(5), ..none() }),
        (vec!["-i", "10d"], TuneChanges { check_interval: Some(864_000), ..none() }),
        (vec!["-T", "20200102030405"], TuneChanges { last_check: Some(1_577_934_245), ..none() }),
        (
            vec!["-E", "mount_opts=nodelalloc"],
            TuneChanges { mount_options: Some(b"nodelalloc".into()), ..none() },
        ),
        (vec!["-o", "^acl,journal_data_writeback"], options("^acl,journal_data_writeback")),
        (
            vec!["-o", "journal_data,^journal_data_ordered,debug"],
            options("journal_data,^journal_data_ordered,debug"),
        ),
        (
            vec!["-o", "bsdgroups,uid16,-user_xattr,nobarrier,Discard,block_validity,nodelalloc"],
            options("bsdgroups,uid16,-user_xattr,nobarrier,Discard,block_validity,nodelalloc"),
        ),
    ]
}

/// All kinds of changes at once.
fn all_changes() -> TuneChanges {
    TuneChanges {
        label: Some(b"all".into()),
        uuid: Some(UUID),
        reserved: Some(ReservedShare::Blocks(99)),
        reserved_uid: Some(1),
        reserved_gid: Some(2),
        errors: Some(ErrorPolicy::Panic),
        default_mount_options: Some("debug,^acl".into()),
        mount_options: Some(b"nodelalloc,discard".into()),
        max_mount_count: Some(30),
        mount_count: Some(3),
        check_interval: Some(86_400),
        last_check: Some(1 << 30),
        ..TuneChanges::default()
    }
}

fn tune2fs(image: &Path, args: &[&str]) {
    let args: Vec<OsString> = args.iter().map(OsString::from).chain([image.into()]).collect();
    // Times of the last check are in the local time zone.
    let zone = [("TZ", "UTC"), ("E2FSPROGS_FAKE_TIME", "1700000000")];
    extant_testkit::tool::run_with_env("tune2fs", &args, &zone).must_succeed();
}

/// Changes an image in memory, which must be refused without a write or leave a clean image.
fn tune(bytes: &[u8], changes: &TuneChanges) -> Result<Image, TuneError> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    match Tune::new(device.clone()).apply(changes) {
        Ok(new) => {
            let image = Image::holding(&device.to_vec());
            assert!(new.as_bytes() == &image.bytes()[1024..2048], "not as it is returned");
            Ok(image)
        }
        Err(error) => {
            assert!(device.to_vec() == bytes, "refused, but written: {error}");
            Err(error)
        }
    }
}

/// Returns the superblock at a byte, without time, checksum and counter of the last write.
#[track_caller]
fn comparable(bytes: &[u8], place: usize) -> Vec<u8> {
    let mut copy = Superblock::parse(&bytes[place..place + 1024]).expect("a valid superblock");
    copy.set_wtime(0);
    copy.set_kbytes_written(0);
    copy.raw_mut().checksum.set(0);
    copy.as_bytes().to_vec()
}

/// Returns superblock and copies in a form that can be compared.
#[track_caller]
fn superblocks(bytes: &[u8]) -> Vec<Vec<u8>> {
    let primary = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::new(&primary).expect("a geometry");
    let place = |group: GroupNr| match geometry.super_block_of(group) {
        Some(block) if group.0 > 0 => block.index() * geometry.block_size as usize,
        _ => 1024,
    };
    geometry.super_groups().map(|group| comparable(bytes, place(group))).collect()
}

/// Returns the lines of dumpe2fs, without those that each change renews: of the log, too, as it had
/// a transaction.
pub fn dumped(image: &Path) -> Vec<(String, String)> {
    const RENEWED: [&str; 6] = [
        "Last write time",
        "Lifetime writes",
        "Checksum",
        "Journal sequence",
        "Journal features",
        "Journal checksum",
    ];
    let is_kept = |name: &str| !RENEWED.contains(&name) && !name.to_lowercase().contains("mmp");
    dumpe2fs::header(image).values.into_iter().filter(|(name, _)| is_kept(name)).collect()
}

#[track_caller]
fn assert_equal(own: &Image, theirs: &Image, name: &str) {
    let (own_blocks, their_blocks) = (superblocks(&own.bytes()), superblocks(&theirs.bytes()));
    assert_eq!(own_blocks.len(), their_blocks.len(), "{name}");
    for (nr, (own, theirs)) in own_blocks.iter().zip(&their_blocks).enumerate() {
        let differ: Vec<usize> = (0..1024).filter(|at| own[*at] != theirs[*at]).collect();
        assert!(differ.is_empty(), "{name}: superblock {nr} differs at {differ:?}");
    }
    assert_eq!(dumped(own.path()), dumped(theirs.path()), "{name}");
    assert_eq!(complaints(own.path()), [""; 0], "{name}");
}

#[test]
fn each_change_is_that_of_tune2fs() {
    for name in ["metadata_csum", "no_csum"] {
        let image = kind(name);
        for (args, changes) in changes() {
            let theirs = image.copy();
            tune2fs(theirs.path(), &args);
            let own = tune(&image.bytes(), &changes).expect("a change");
            assert_equal(&own, &theirs, &format!("{name} {args:?}"));
        }
    }
}

#[test]
fn changes_of_all_kinds_of_file_systems_are_those_of_tune2fs() {
    let args = "-L all -r 99 -u 1 -g 2 -e panic -o debug,^acl -c 30 -C 3 -i 1d -T 20040110133704";
    let args: Vec<&str> = args.split(' ').chain(["-E", "mount_opts=nodelalloc"]).collect();
    let mount_options = Some(b"nodelalloc".into());
    let changes = TuneChanges { uuid: None, mount_options, ..all_changes() };
    for (name, kind) in KINDS {
        let image = Image::mke2fs(SIZE, kind);
        let theirs = image.copy();
        tune2fs(theirs.path(), &args);
        let own = tune(&image.bytes(), &changes).expect("a change");
        assert_equal(&own, &theirs, name);
    }
}

/// Copies get all values of the superblock, also those that only the primary one had.
#[test]
fn copies_of_a_used_file_system_are_renewed_as_by_tune2fs() {
    for name in ["metadata_csum", "no_csum", "no_journal"] {
        let image = kind(name);
        let mount = Mount::new(image.path(), "");
        std::fs::write(mount.join("file"), vec![7; 1 << 20]).expect("space");
        mount.unmount();
        let theirs = image.copy();
        tune2fs(theirs.path(), &["-L", "used"]);
        let changes = TuneChanges { label: Some(b"used".into()), ..TuneChanges::default() };
        let own = tune(&image.bytes(), &changes).expect("a change");
        assert_equal(&own, &theirs, name);
    }
}

/// With checksums of metadata the seed is kept: as by tune2fs after `-O metadata_csum_seed`.
#[test]
fn a_new_uuid_keeps_the_seed_of_checksums() {
    for (name, args) in KINDS.iter().filter(|(name, _)| *name != "uninit_bg") {
        let image = Image::mke2fs(SIZE, args);
        for (uuid, text) in [(UUID, UUID_TEXT), ([0; 16], "clear")] {
            let theirs = image.copy();
            let sb = Superblock::parse(&image.bytes()[1024..2048]).expect("a superblock");
            if sb.ro_compat().contains(RoCompat::METADATA_CSUM) {
                tune2fs(theirs.path(), &["-O", "metadata_csum_seed"]);
            }
            tune2fs(theirs.path(), &["-U", text]);
            let changes = TuneChanges { uuid: Some(uuid), ..TuneChanges::default() };
            let own = tune(&image.bytes(), &changes).expect("a change");
            assert_equal(&own, &theirs, &format!("{name} {text}"));
            let new = Superblock::parse(&own.bytes()[1024..2048]).expect("a superblock");
            assert_eq!(
                new.fs_seed(),
                if new.has_checksum() { sb.fs_seed() } else { new.fs_seed() }
            );
        }
    }
}

/// The kernel mounts the results, writes, and uses the new values.
#[test]
fn the_kernel_mounts_changed_file_systems() {
    for (name, args) in KINDS.iter().filter(|(name, _)| *name != "quota") {
        let image = Image::mke2fs(SIZE, args);
        let mut changes = all_changes();
        changes.errors = Some(ErrorPolicy::Continue);
        if *name == "uninit_bg" {
            changes.uuid = None;
        }
        let own = tune(&image.bytes(), &changes).expect("a change");
        let mount = Mount::new(own.path(), "");
        std::fs::write(mount.join("file"), name).expect("space");
        let device = mount.device().file_name().expect("a name").to_owned();
        let options = Path::new("/proc/fs/ext4").join(device).join("options");
        let options = std::fs::read_to_string(options).expect("the options of the mount");
        // Linux 6.18 prints the user as `resgid`, too.
        for option in ["nodelalloc", "debug", "discard", "resuid=1"] {
            assert!(options.lines().any(|line| line == option), "{name}: {option} in {options}");
        }
        mount.unmount();
        e2fsck::check(own.path()).assert_clean();
        assert_eq!(dumpe2fs::header(own.path()).value("Filesystem volume name"), "all");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let image = kind("metadata_csum").bytes();
    let none = TuneChanges::default;
    let options = |list: &str| TuneChanges { default_mount_options: Some(list.into()), ..none() };
    let reserved = |share| TuneChanges { reserved: Some(share), ..none() };
    for changes in [
        TuneChanges { label: Some(vec![b'x'; 17]), ..none() },
        TuneChanges { label: Some(b"a\0b".into()), ..none() },
        TuneChanges { mount_options: Some(vec![b'x'; 64]), ..none() },
        reserved(ReservedShare::Percent(50.1)),
        reserved(ReservedShare::Percent(-0.1)),
        reserved(ReservedShare::Percent(f64::NAN)),
        reserved(ReservedShare::Blocks(4097)),
        options("acl,nonesuch"),
        options("^^acl"),
        TuneChanges { max_mount_count: Some(16001), ..none() },
        TuneChanges { mount_count: Some(16001), ..none() },
    ] {
        let refused = tune(&image, &TuneChanges { reserved_uid: Some(3), ..changes.clone() });
        assert!(matches!(refused, Err(TuneError::Invalid(_))), "{changes:?}: {refused:?}");
    }
}

/// Edits the superblock of an image.
fn edited(bytes: &[u8], edit: impl FnOnce(&mut Superblock)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut sb = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    edit(&mut sb);
    bytes[1024..2048].copy_from_slice(&sb.seal());
    bytes
}

fn with_features(bytes: &[u8], add: impl FnOnce(&mut Features)) -> Vec<u8> {
    edited(bytes, |sb| {
        let mut features = sb.features();
        add(&mut features);
        sb.set_features(features);
    })
}

#[test]
fn file_systems_that_need_another_command_are_refused() {
    let image = kind("1k").bytes();
    let label = TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() };
    let of = |bytes: &[u8]| tune(bytes, &label).expect_err("a refusal");
    let marked = with_features(&image, |features| features.incompat.insert(Incompat::RECOVER));
    assert!(matches!(of(&marked), TuneError::NeedsRecovery));
    for state in [State::VALID | State::ERROR, State::empty()] {
        assert!(matches!(of(&edited(&image, |sb| sb.set_state(state))), TuneError::HasErrors));
    }
    for bit in [0x1000, 0x4000, 0x80, 1 << 20] {
        let bit = RoCompat::from_bits_retain(bit);
        let read_only = with_features(&image, |features| features.ro_compat.insert(bit));
        assert!(matches!(of(&read_only), TuneError::Unsupported(_)), "{bit:?}");
    }
    for bit in [0x1, 0x8, 1 << 20] {
        let bit = Incompat::from_bits_retain(bit);
        let unknown = with_features(&image, |features| features.incompat.insert(bit));
        assert!(matches!(of(&unknown), TuneError::Unsupported(_)), "{bit:?}");
    }
    assert!(matches!(of(&image[..SIZE as usize / 2]), TuneError::Corrupt(_)));
    let mut damaged = image.clone();
    damaged[1024 + 0x78] ^= 1;
    assert!(matches!(of(&damaged), TuneError::Corrupt(_)), "a wrong checksum");
}

/// A log with transactions is found even where the superblock has no mark.
#[test]
fn a_log_that_is_not_empty_is_refused() {
    let image = kind("no_csum");
    let copy = {
        let mount = Mount::new(image.path(), "");
        std::fs::write(mount.join("file"), "text").expect("space");
        mount.sync();
        image.copy()
    };
    copy.leave_unjudged("it was copied from a mount");
    let bytes = copy.bytes();
    let label = TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() };
    assert!(matches!(tune(&bytes, &label), Err(TuneError::NeedsRecovery)));
    let unmarked = with_features(&bytes, |features| features.incompat.remove(Incompat::RECOVER));
    assert!(matches!(tune(&unmarked, &label), Err(TuneError::NeedsRecovery)));
}

#[test]
fn another_hosts_file_system_is_refused() {
    let mut bytes = kind("mmp").bytes();
    let sb = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::new(&sb).expect("a geometry");
    let at = sb.mmp_block().index() * geometry.block_size as usize;
    let block = &mut bytes[at..at + 1024];
    let seed = Some(geometry.csum_seed);
    let mut mmp = extant_format::mmp::Mmp::parse(block, seed).expect("a block of MMP");
    mmp.seq = 5;
    mmp.encode(block, seed);
    let label = TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() };
    assert!(matches!(tune(&bytes, &label), Err(TuneError::InUse)));
}

#[test]
fn a_uuid_that_checksums_depend_on_is_not_changed() {
    let with =
        |features: &str| Image::mke2fs(SIZE, &["-t", "ext4", "-b", "1024", "-O", features]).bytes();
    let uuid = TuneChanges { uuid: Some(UUID), ..TuneChanges::default() };
    for (features, words) in [
        ("stable_inodes", "stable_inodes"),
        ("uninit_bg,^metadata_csum", "group descriptors"),
        ("ea_inode,^metadata_csum", "attributes"),
    ] {
        let error = tune(&with(features), &uuid).expect_err(features);
        assert!(error.to_string().contains(words), "{features}: {error}");
        let sb = Superblock::parse(&with(features)[1024..2048]).expect("a superblock");
        let same = TuneChanges { uuid: Some(sb.uuid()), ..TuneChanges::default() };
        tune(&with(features), &same).expect("no change of the UUID");
    }
}

/// With a journal of its own device: the log has the transaction, and its user the new UUID.
#[test]
fn an_external_journal_follows() {
    let journal = Image::mke2fs(8 << 20, &["-b", "1024", "-O", "journal_dev"]);
    let on = Loop::attach(journal.path(), false);
    let named = format!("device={}", on.device().display());
    let image = Image::mke2fs(SIZE, &["-t", "ext4", "-b", "1024", "-J", &named]);
    drop(on);
    let uuid = TuneChanges { uuid: Some(UUID), ..TuneChanges::default() };
    let error = tune(&image.bytes(), &uuid).expect_err("no journal");
    assert!(error.to_string().contains("external journal"), "{error}");
    // Other changes need no journal.
    let label = TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() };
    let labeled = tune(&image.bytes(), &label).expect("a change");
    labeled.leave_unjudged("its log is on another device");
    let log = Arc::new(MemDevice::from_bytes(&journal.bytes()));
    let device = Arc::new(MemDevice::from_bytes(&image.bytes()));
    Tune::new(device.clone()).journal(log.clone()).apply(&uuid).expect("a change");
    let (own, own_log) = (Image::holding(&device.to_vec()), Image::holding(&log.to_vec()));
    for image in [&own, &own_log] {
        image.leave_unjudged("the two belong together");
    }
    assert_eq!(dumpe2fs::dump(own_log.path()).value("Journal users"), UUID_TEXT);
    assert_eq!(dumpe2fs::header(own.path()).value("Filesystem UUID"), UUID_TEXT);
    let on = Loop::attach(own_log.path(), false);
    let mount = Mount::new(own.path(), &format!("journal_path={}", on.device().display()));
    std::fs::write(mount.join("file"), "text").expect("space");
    mount.unmount();
    let journal: OsString = on.device().into();
    let checked = run("e2fsck", &["-fn".into(), "-j".into(), journal, own.path().into()]);
    assert_eq!(checked.code, 0, "{checked}");
}

/// Records the writes of a change. Returns the image before, the events' device and the image
/// after them.
fn recorded(bytes: &[u8], changes: &TuneChanges) -> Arc<RecordingDevice<MemDevice>> {
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(bytes)));
    Tune::new(recorder.clone()).apply(changes).expect("a change");
    recorder
}

/// A change that is cut at any write leaves the old values or the new ones, in all copies: after
/// the replay by the kernel and by e2fsck.
#[test]
fn a_cut_change_is_whole_or_absent() {
    for name in ["metadata_csum", "1k", "ext3"] {
        let before = kind(name).bytes();
        let recorder = recorded(&before, &all_changes());
        let after = recorder.inner().to_vec();
        let values = |bytes: &[u8]| -> Vec<Vec<u8>> {
            let own = |sb: Vec<u8>| Superblock::parse_unverified(&sb).expect("a superblock");
            superblocks(bytes).into_iter().map(|sb| tuned_fields(&own(sb))).collect()
        };
        let sides = [values(&before), values(&after)];
        let mut seen = [0, 0];
        each_cut(&before, &recorder.log(), &mut |cut, state| {
            let image = Image::holding(&state);
            image.leave_unjudged("it is judged here");
            let by_kernel = image.copy();
            e2fsck::recover(image.path()).assert_clean();
            let after = values(&image.bytes());
            let side = sides.iter().position(|side| *side == after);
            let side = side.unwrap_or_else(|| panic!("{name}, cut {cut}: neither old nor new"));
            seen[side] += 1;
            Mount::new(by_kernel.path(), "").unmount();
            assert_eq!(complaints(by_kernel.path()), [""; 0], "{name}, cut {cut}");
            let label = dumpe2fs::header(by_kernel.path()).value("Filesystem volume name").len();
            assert_eq!(label, ["<none>", "all"][side].len(), "{name}, cut {cut}");
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{name}: {seen:?}");
    }
}

/// Returns the fields that [`all_changes`] sets, with features and seed.
fn tuned_fields(sb: &Superblock) -> Vec<u8> {
    let raw = sb.raw();
    let numbers = [
        u64::from(sb.checksum_seed()),
        sb.r_blocks_count(),
        u64::from(sb.def_resuid()),
        u64::from(sb.def_resgid()),
        u64::from(raw.errors.get()),
        u64::from(sb.default_mount_opts().bits()),
        u64::from(sb.max_mnt_count()),
        u64::from(sb.checkinterval()),
    ];
    let texts = [&raw.uuid[..], &raw.volume_name, &raw.mount_opts].concat();
    numbers
        .iter()
        .map(|number| format!("{number} ").into_bytes())
        .chain([texts])
        .flatten()
        .collect()
}

/// Without a journal the superblock decides, and copies may be older for a while.
#[test]
fn a_cut_change_without_a_journal_is_whole_in_the_superblock() {
    for name in ["no_journal", "ext2"] {
        let before = kind(name).bytes();
        let recorder = recorded(&before, &all_changes());
        let after = recorder.inner().to_vec();
        let primary = |bytes: &[u8]| comparable(bytes, 1024);
        let mut seen = [0, 0];
        each_cut(&before, &recorder.log(), &mut |cut, state| {
            let is_new = primary(&state) == primary(&after);
            assert!(is_new || primary(&state) == primary(&before), "{name}, cut {cut}");
            seen[usize::from(is_new)] += 1;
            let image = Image::holding(&state);
            assert_eq!(complaints(image.path()), [""; 0], "{name}, cut {cut}");
            // Another call completes the copies.
            let again = tune(&state, &all_changes()).expect("a change");
            assert!(superblocks(&again.bytes()) == superblocks(&after), "{name}, cut {cut}");
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{name}: {seen:?}");
    }
}

/// A log that is too small for all copies is left alone.
#[test]
fn more_copies_than_the_log_takes_are_written_in_place() {
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "256",
        "-N",
        "8192",
        "-O",
        "^sparse_super,^resize_inode",
    ];
    let image = Image::mke2fs(300 << 20, &[&args[..], &["-J", "size=1"]].concat());
    let bytes = image.bytes();
    assert!(superblocks(&bytes).len() > 1024, "{} copies", superblocks(&bytes).len());
    let theirs = image.copy();
    tune2fs(theirs.path(), &["-L", "x"]);
    let label = TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() };
    assert_equal(&tune(&bytes, &label).expect("a change"), &theirs, "many copies");
}

/// Each feature with which the engine opens a file system only for reading is refused.
#[test]
fn features_are_refused_as_for_writing() {
    let bytes = FeatureSet::named("1k").make_sized(SIZE).bytes();
    let label = TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() };
    for bit in (0..32).map(|n| RoCompat::from_bits_retain(1 << n)) {
        let bytes = with_features(&bytes, |features| features.ro_compat.insert(bit));
        let Ok(sb) = Superblock::parse(&bytes[1024..2048]) else { continue };
        if Geometry::new(&sb).is_err() {
            continue;
        }
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let engine = extant_engine::Fs::open_device(
            device as Arc<dyn BlockDevice>,
            &extant_engine::OpenOptions::new(),
        );
        let Ok(engine) = engine else { continue };
        let is_written = !engine.is_read_only();
        engine.crash();
        let own = Tune::new(Arc::new(MemDevice::from_bytes(&bytes))).apply(&label);
        let is_refused = matches!(own, Err(TuneError::Unsupported(_)));
        assert_eq!(is_refused, !is_written, "{bit:?}: {own:?}");
    }
}
