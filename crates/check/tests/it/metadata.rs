//! Images of metadata: with the verdict of the file system, and without content of files.

use crate::oracle::{complaints, damages};
use extant_blocks::{BlockDevice, MemDevice};
use extant_check::debug::{InodeSlot, InspectOptions, Inspector, SavedMetadata};
use extant_engine::{Follow, Fs, Node, NodeKind, OpenOptions};
use extant_format::{InodeFlags, InodeNr};
use extant_hostile::bombs::share;
use extant_hostile::mutate::{mutate, mutate_once};
use extant_hostile::seeds::Seed;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use extant_testkit::{FEATURE_SETS, FeatureSet, Image, Scratch, e2fsck};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

pub const KEY: Option<[u8; 16]> = Some(*b"a secret of ours");

fn open(bytes: &[u8]) -> Option<Inspector> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    Inspector::open(device, None, InspectOptions { as_is: true, superblock: None }).ok()
}

pub fn save(bytes: &[u8], key: Option<[u8; 16]>) -> Option<(Vec<u8>, SavedMetadata)> {
    let target = MemDevice::new(bytes.len() as u64);
    let saved = open(bytes)?.save_metadata(&target, key, &mut |_| ()).expect("a memory device");
    Some((target.to_vec(), saved))
}

/// The time of e2fsck for one of these images, which takes milliseconds otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns all lines of e2fsck, without the name of the image; `None` if it does not end.
fn lines(bytes: &[u8]) -> Option<Vec<String>> {
    let image = Image::holding(bytes);
    image.leave_unjudged("it may be damaged");
    let name = image.path().display().to_string();
    Some(match e2fsck::check_within(image.path(), PATIENCE)? {
        e2fsck::Verdict::Clean => Vec::new(),
        e2fsck::Verdict::Complaints(lines) => {
            lines.iter().map(|line| without_noise(&line.replace(&name, "IMAGE"))).collect()
        }
    })
}

/// Returns a line without numbers that e2fsck takes from memory that it has not initialized: they
/// are huge, and others each time.
fn without_noise(line: &str) -> String {
    let is_noise = |word: &str| word.len() > 13 && word.bytes().all(|byte| byte.is_ascii_digit());
    let parts = line.split(' ').map(|word| match word.trim_end_matches('.') {
        number if is_noise(number) => "N",
        _ => word,
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Checks that an image of metadata has the verdicts of its file system. Returns whether e2fsck has
/// judged it.
fn assert_same_verdicts(bytes: &[u8], saved: &[u8], what: &str) -> bool {
    for as_is in [true, false] {
        assert_eq!(damages(bytes, as_is), damages(saved, as_is), "{what}, as is: {as_is}");
    }
    let Some(theirs) = lines(bytes) else { return false };
    assert_eq!(Some(theirs), lines(saved), "{what}: e2fsck");
    true
}

/// Returns whether the content of a file is no metadata.
fn is_content(inspector: &Inspector, slot: &InodeSlot) -> bool {
    let sb = inspector.superblock();
    let own = [sb.orphan_file_inum(), sb.prj_quota_inum()];
    slot.ino >= InodeNr::FIRST_ORDINARY.0
        && slot.inode.is_regular()
        && !slot.inode.flags.contains(InodeFlags::EA_INODE)
        && !own.contains(&InodeNr(slot.ino))
}

/// Checks that an image has nothing of the files of an undamaged file system. Returns the number of
/// blocks and inodes with content.
fn assert_no_content(bytes: &[u8], saved: &[u8], what: &str) -> usize {
    let inspector = open(bytes).expect("an image");
    let size = inspector.geometry().block_size as usize;
    let mut slots = Vec::new();
    for ino in 1..=inspector.geometry().inodes_count {
        slots.extend(inspector.inode(ino).ok().filter(|slot| is_content(&inspector, slot)));
    }
    let wanted: BTreeSet<u32> = slots.iter().map(|slot| slot.ino).collect();
    let mut count = 0;
    inspector.each_map(Some(&wanted), &mut |ino, runs| {
        for block in runs.iter().flat_map(|(_, first, len)| *first..*first + *len) {
            let part = block as usize * size..(block as usize + 1) * size;
            count += usize::from(bytes[part.clone()].iter().any(|byte| *byte != 0));
            let is_hole = saved[part].iter().all(|byte| *byte == 0);
            assert!(is_hole, "{what}: block {block} of inode {ino} is there");
        }
    });
    let inline = slots.iter().filter(|slot| slot.inode.flags.contains(InodeFlags::INLINE_DATA));
    for slot in inline.filter(|slot| slot.inode.links > 0) {
        let of = |bytes: &[u8]| {
            let at = slot.block as usize * size + slot.offset;
            bytes[at + 0x28..at + slot.bytes.len()].to_vec()
        };
        count += usize::from(of(bytes)[..60].iter().any(|byte| *byte != 0));
        assert!(of(saved)[..60].iter().all(|byte| *byte == 0), "{what}: inode {}", slot.ino);
    }
    count
}

#[test]
fn images_have_the_verdict_and_no_content() {
    let mut count = 0;
    for (n, set) in FEATURE_SETS.iter().filter(|set| set.name != "bigalloc").enumerate() {
        for crashed in [false, n % 2 == 0] {
            let seed = Seed::make(set, crashed);
            let (saved, told) = save(&seed.bytes, None).expect("an image");
            assert!(assert_same_verdicts(&seed.bytes, &saved, &seed.name));
            assert_eq!(told.problems, [""; 0], "{}", seed.name);
            if !crashed {
                count += assert_no_content(&seed.bytes, &saved, &seed.name);
            }
        }
    }
    assert!(count > 100, "{count} blocks with content");
}

#[test]
fn scrambled_images_have_the_verdict() {
    for (n, set) in FEATURE_SETS.iter().filter(|set| set.name != "bigalloc").enumerate() {
        let seed = Seed::make(set, n % 2 == 1);
        let (saved, told) = save(&seed.bytes, KEY).expect("an image");
        assert!(assert_same_verdicts(&seed.bytes, &saved, &seed.name));
        assert_eq!(told.problems, [""; 0], "{}", seed.name);
    }
}

/// Compares verdicts of mutants with those of their images. Those on which e2fsck does not end are
/// judged by one program only, and few.
fn compare_mutants(
    numbers: std::ops::Range<u64>,
    mutate: fn(&mut [u8], &Seed, &mut Rng) -> String,
) {
    let sets = ["default", "1k", "ext2_1k", "ext3", "inline_data", "ea_inode", "quota", "no_csum"];
    let seeds: Vec<Seed> =
        sets.iter().map(|name| Seed::make(FeatureSet::named(name), false)).collect();
    let (mut damaged, mut judged, mut all) = (0, 0, 0);
    for number in numbers {
        let seed = &seeds[number as usize % seeds.len()];
        let mut bytes = seed.bytes.clone();
        let what = mutate(&mut bytes, seed, &mut Rng::new(number));
        let Some((saved, _)) = save(&bytes, None) else { continue };
        // Other names may be other damage: that one is only made.
        save(&bytes, KEY);
        let name = format!("mutant {number} of {}, {what}", seed.name);
        all += 1;
        if assert_same_verdicts(&bytes, &saved, &name) {
            judged += 1;
        } else {
            println!("{name}: e2fsck does not end");
        }
        damaged += usize::from(!damages(&bytes, true).is_empty());
    }
    println!("{all} mutants, {damaged} of them damaged, and {judged} judged by e2fsck, too");
    assert!(damaged > 0 && judged * 10 > all * 9);
}

/// On a map whose blocks point to each other e2fsck takes hours, so that these have none.
#[test]
fn images_of_mutants_have_their_verdict() {
    compare_mutants(0..24, |bytes, seed, rng| mutate_once(bytes, &seed.atlas, rng));
}

#[test]
#[ignore = "minutes: make check-mutants runs it"]
fn images_of_many_mutants_have_their_verdict() {
    compare_mutants(1000..3000, |bytes, seed, rng| mutate(bytes, &seed.atlas, rng).join("; "));
}

/// Maps that lead to each other along many ways are saved at once.
#[test]
fn images_of_bombs_are_made() {
    for name in ["ext2_1k", "default"] {
        let seed = Seed::make(FeatureSet::named(name), false);
        for number in 0..3 {
            let mut bytes = seed.bytes.clone();
            share(&mut bytes, &seed.atlas, &mut Rng::new(number));
            let (saved, _) = save(&bytes, KEY.filter(|_| number > 0)).expect("an image");
            assert_eq!(damages(&bytes, true), damages(&saved, true), "{name}, {number}");
        }
    }
}

/// Returns whether bytes are somewhere.
pub fn has(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

/// A tree with a large directory, with long and short names and symbolic links.
fn tree() -> Scratch {
    let root = Scratch::new();
    let large = root.dir("secret-directory");
    for n in 0..300 {
        fs::write(large.join(format!("secret-name-{n}")), "confidential").expect("a file");
        fs::write(large.join(format!("s{n}")), "").expect("a file");
    }
    fs::create_dir(root.join("secret-directory/below")).expect("a directory");
    for name in ["a", "b", "c", "Secret ä.txt", "UPPER-secret"] {
        fs::write(root.join("secret-directory/below").join(name), "confidential").expect("a file");
    }
    let long = format!("/secret-directory/{}", "secret-".repeat(20));
    symlink(long, root.join("slow-secret")).expect("a link");
    symlink("secret-directory/../secret-directory", root.join("fast-secret")).expect("a link");
    root
}

/// Gives directories an index, where the file system has that: mke2fs makes none.
pub fn index_directories(image: &Image) {
    let printed = run("e2fsck", &[OsStr::new("-fyD"), image.path().as_os_str()]);
    assert!(printed.code <= 1, "{printed}");
}

fn assert_scrambled(kind: &[&str]) {
    let root = tree();
    let image = Image::mke2fs_from(24 << 20, kind, root.path());
    index_directories(&image);
    let bytes = image.bytes();
    assert!(has(&bytes, "secret") && has(&bytes, "confidential"));
    let (plain, _) = save(&bytes, None).expect("an image");
    assert!(has(&plain, "secret-name-7") && !has(&plain, "confidential"), "{kind:?}");
    let (saved, told) = save(&bytes, KEY).expect("an image");
    assert!(!has(&saved, "secret") && !has(&saved, "confidential"), "{kind:?}");
    assert_eq!((told.problems, told.notes), (vec![], vec![]), "{kind:?}");
    for image in [&plain, &saved] {
        assert!(assert_same_verdicts(&bytes, image, &format!("{kind:?}")));
    }
    // Each new name is found through the index.
    let device = Arc::new(MemDevice::from_bytes(&saved));
    let fs = Fs::open_device(device, &OpenOptions::new().read_only(true)).expect("an image");
    let inspector = open(&saved).expect("an image");
    let all: BTreeSet<u32> = (1..=inspector.geometry().inodes_count).collect();
    let indexed =
        |ino| inspector.inode(ino).is_ok_and(|slot| slot.inode.flags.contains(InodeFlags::INDEX));
    assert_eq!(all.iter().any(|ino| indexed(*ino)), !kind.contains(&"^dir_index"), "{kind:?}");
    let names = inspector.names(&all, false, None);
    let paths: BTreeSet<Vec<u8>> = names.names.iter().map(|name| names.path(name)).collect();
    assert_eq!(paths.len(), names.names.len(), "{kind:?}");
    assert!(paths.len() > 600 && paths.contains(&b"/lost+found"[..]), "{kind:?}");
    for path in paths.iter().filter(|path| path.len() > 1) {
        fs.resolve(path, Follow::No).unwrap_or_else(|error| panic!("{kind:?}, {path:?}: {error}"));
    }
}

/// The flag of directories that ignore case.
const CASEFOLD: u32 = 0x4000_0000;

/// Names that only folded case makes equal, and names beyond ASCII, in directories that refuse all
/// but UTF-8: e2fsck finds nothing, and each new name is found in any case.
#[test]
fn names_of_casefolded_directories_are_scrambled() {
    for (flags, features) in [("strict", "casefold"), ("", "casefold,^dir_index")] {
        let encoding = format!("encoding=utf8,encoding_flags={flags}");
        let encoding = if flags.is_empty() { "encoding=utf8" } else { encoding.as_str() };
        let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", features, "-E", encoding];
        let image = Image::mke2fs(5 << 20, &args);
        let kinds = ["Größe", "secret-name", "ÄRGER", "файл", "ФАЙЛ-й", "文件", "한국어", "🙂🙂"];
        let written = Fs::open(image.path(), &OpenOptions::new()).expect("an image");
        let root = written.root().expect("a root");
        for (dir, count) in [("few", 3), ("many", 20)] {
            let dir = written.create(&root, dir.as_bytes(), 0o755, NodeKind::Dir).expect("space");
            written.set_flags(&dir, dir.attr().flags | CASEFOLD).expect("an empty directory");
            for (kind, n) in kinds.iter().flat_map(|kind| (0..count).map(move |n| (kind, n))) {
                let name = format!("{kind} {n}");
                written.create(&dir, name.as_bytes(), 0o644, NodeKind::File).expect("space");
            }
        }
        written.unmount().expect("an unmount");
        index_directories(&image);
        let bytes = image.bytes();
        let (saved, told) = save(&bytes, KEY).expect("an image");
        assert_eq!((told.problems, told.notes), (vec![], vec![]), "{features}");
        assert!(kinds.iter().all(|kind| has(&bytes, kind) && !has(&saved, kind)), "{features}");
        assert_same_verdicts(&bytes, &saved, features);
        let saved = Image::holding(&saved);
        assert_eq!(complaints(saved.path()), [""; 0], "{features}");
        let options = OpenOptions::new().read_only(true);
        let read = Fs::open(saved.path(), &options).expect("an image");
        let root = read.root().expect("a root");
        let names = |dir: &Node| -> Vec<Vec<u8>> {
            let entries = read.read_dir(dir).expect("a directory").into_iter();
            entries.map(|entry| entry.name).filter(|name| !name.starts_with(b".")).collect()
        };
        let mut count = 0;
        for dir in names(&root).iter().filter(|name| *name != b"lost+found") {
            let dir = read.lookup(&root, dir).expect("a directory");
            for name in names(&dir) {
                let text = String::from_utf8(name).expect("UTF-8");
                for spelled in [text.clone(), text.to_uppercase()] {
                    let found = read.lookup(&dir, spelled.as_bytes());
                    found.unwrap_or_else(|error| panic!("{features}, {text}: {error}"));
                }
                count += 1;
            }
        }
        assert_eq!(count, kinds.len() * 23, "{features}");
        read.unmount().expect("an unmount");
    }
}

#[test]
fn names_are_scrambled() {
    for kind in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "4096", "-O", "inline_data"],
        &["-t", "ext2", "-b", "1024", "-O", "^dir_index"],
        &["-t", "ext3", "-b", "4096", "-I", "128"],
    ] {
        assert_scrambled(kind);
    }
}
