//! Directories: compared with a map of names, checked by e2fsck, listed by the kernel.

use extant_engine::{Errno, Fs, Node, NodeKind, OpenOptions, RenameFlags};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

type Model = BTreeMap<Vec<u8>, u64>;

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).unwrap()
}

/// Unmounts, and verifies that no handle changed more blocks than its credits.
fn unmount(fs: Fs) {
    assert_eq!(fs.stats().journal.overdrawn, 0, "credits");
    fs.unmount().unwrap();
}

/// Names of all lengths, most of them short, some with bytes above ASCII.
fn name(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(20) { rng.between(1, 255) } else { rng.between(4, 30) };
    name_of_len(rng, len)
}

fn name_of_len(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut name = rng.bytes(len as usize);
    for byte in &mut name {
        let alphabet: u8 = if *byte & 0x80 != 0 { 0x80 } else { b'a' };
        *byte = alphabet + *byte % 26;
    }
    name
}

/// A directory under test: its names lead to one of a few files.
struct Subject<'f> {
    fs: &'f Fs,
    dir: Node,
    files: Vec<Node>,
    model: Model,
}

impl<'f> Subject<'f> {
    fn new(fs: &'f Fs, name: &str) -> Self {
        let ops = fs.operations();
        let root = ops.root().unwrap();
        let dir = ops.create(&root, name.as_bytes(), 0o755, NodeKind::Dir).unwrap();
        let files = (0..2)
            .map(|n| {
                ops.create(&root, format!("{name}.{n}").as_bytes(), 0o644, NodeKind::File).unwrap()
            })
            .collect();
        Subject { fs, dir, files, model: Model::new() }
    }

    fn insert(&mut self, rng: &mut Rng, name: Vec<u8>) {
        if self.model.contains_key(&name) {
            return;
        }
        let file = rng.pick(&self.files);
        self.fs.operations().link(file, &self.dir, &name).unwrap();
        self.model.insert(name, file.ino());
    }

    fn some_name(&self, rng: &mut Rng) -> Option<Vec<u8>> {
        self.model.range(name(rng)..).next().map(|(name, _)| name.clone())
    }

    /// Gives a file a new name, or the name of another.
    fn rename_some(&mut self, rng: &mut Rng) {
        let Some(old) = self.some_name(rng) else { return };
        let new = if rng.one_in(4) { self.some_name(rng) } else { None };
        let new = new.unwrap_or_else(|| name(rng));
        let (from, to) = ((&self.dir, &old[..]), (&self.dir, &new[..]));
        self.fs.operations().rename(from, to, RenameFlags::empty()).unwrap();
        // Two names of one file stay.
        if self.model.get(&new) != self.model.get(&old) {
            let file = self.model.remove(&old).unwrap();
            self.model.insert(new, file);
        }
    }

    fn remove_some(&mut self, rng: &mut Rng) {
        let Some(victim) = self.some_name(rng) else { return };
        self.fs.operations().unlink(&self.dir, &victim).unwrap();
        self.model.remove(&victim);
    }

    fn look_up_some(&self, rng: &mut Rng) {
        let from = name(rng);
        let there = self.model.range(from.clone()..).next();
        if let Some((name, ino)) = there {
            assert_eq!(self.fs.operations().lookup(&self.dir, name).unwrap().ino(), *ino);
        }
        if !self.model.contains_key(&from) {
            assert!(self.fs.operations().lookup(&self.dir, &from).unwrap_err().is(Errno::NoEnt));
        }
    }

    fn churn(&mut self, rng: &mut Rng, steps: u32, remove_in_ten: u64) {
        for _ in 0..steps {
            if rng.below(10) < remove_in_ten {
                self.remove_some(rng)
            } else {
                self.insert_any(rng)
            }
            if rng.one_in(5) {
                self.rename_some(rng);
            }
            if rng.one_in(50) {
                self.look_up_some(rng);
            }
        }
    }

    fn insert_any(&mut self, rng: &mut Rng) {
        let name = name(rng);
        self.insert(rng, name);
    }

    fn assert_listed(&self) {
        let mut listed = list(self.fs, &self.dir, usize::MAX);
        assert_eq!(listed.remove(&b"."[..]), Some(self.dir.ino()));
        assert!(listed.remove(&b".."[..]).is_some());
        assert_eq!(listed, self.model);
    }
}

/// Lists a directory with a new read after every `batch` entries. No name may appear twice.
fn list(fs: &Fs, dir: &Node, batch: usize) -> Model {
    let mut out = Model::new();
    let mut cookie = 0;
    loop {
        let (mut count, before) = (0, cookie);
        fs.operations()
            .read_dir_from(dir, cookie, |entry| {
                assert!(entry.next > cookie, "cookies ascend");
                assert!(
                    out.insert(entry.name.to_vec(), entry.ino.get().into()).is_none(),
                    "{:?} came twice",
                    entry.name
                );
                cookie = entry.next;
                count += 1;
                count < batch
            })
            .unwrap();
        if cookie == before {
            return out;
        }
    }
}

fn kernel_list(path: &Path) -> Model {
    let entries = std::fs::read_dir(path).unwrap();
    entries
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().as_bytes().to_vec(), e.metadata().unwrap().ino()))
        .collect()
}

/// Fills, thins out and fills again a directory of about `size` names.
fn exercise(set: &FeatureSet, size: u32, seed: u64) {
    let image = set.make();
    let rng = &mut Rng::new(seed);
    let fs = open(&image);
    let mut subject = Subject::new(&fs, "subject");
    subject.churn(rng, 60, 2);
    subject.assert_listed();
    subject.churn(rng, size, 1);
    subject.assert_listed();
    subject.churn(rng, size / 2, 9);
    subject.churn(rng, size / 4, 3);
    subject.assert_listed();
    assert_eq!(list(&fs, &subject.dir, 7).len(), subject.model.len() + 2);
    let model = std::mem::take(&mut subject.model);
    drop(subject);
    unmount(fs);
    image.assert_clean();
    again(&image, &model);
    if set.kernel_mountable {
        kernel_agrees(&image, &model);
    }
}

/// Verifies the entries after the image is opened again.
fn again(image: &Image, model: &Model) {
    let fs = open(image);
    let dir = fs.operations().resolve("/subject", extant_engine::Follow::Yes).unwrap();
    let mut listed = list(&fs, &dir, 100);
    listed.retain(|name, _| !matches!(&name[..], b"." | b".."));
    assert_eq!(&listed, model);
    for (name, ino) in model.iter().step_by(17) {
        assert_eq!(fs.operations().lookup(&dir, name).unwrap().ino(), *ino);
    }
    drop(dir);
    unmount(fs);
}

/// Verifies that the kernel lists the same entries and can change the directory.
fn kernel_agrees(image: &Image, model: &Model) {
    let mount = Mount::new(image.path(), "");
    let dir = mount.join("subject");
    assert_eq!(&kernel_list(&dir), model);
    for name in model.keys().step_by(3) {
        std::fs::remove_file(dir.join(OsStr::from_bytes(name))).unwrap();
    }
    for n in 0..200 {
        std::fs::hard_link(mount.join("subject.0"), dir.join(format!("kernel {n}"))).unwrap();
    }
    let after = kernel_list(&dir);
    mount.unmount();
    image.assert_clean();
    again(image, &after);
}

#[test]
fn four_kib_blocks() {
    exercise(FeatureSet::named("orphan_file"), 20_000, 1);
}

#[test]
fn one_kib_blocks() {
    exercise(FeatureSet::named("1k"), 20_000, 2);
}

#[test]
fn sixty_four_kib_blocks() {
    exercise(FeatureSet::named("64k"), 20_000, 3);
}

#[test]
fn large_directories() {
    exercise(FeatureSet::named("large_dir"), 50_000, 4);
}

/// Returns the number of index levels below the root, as debugfs prints it.
fn index_levels(image: &Image) -> String {
    let dump = extant_testkit::debugfs::read(image.path(), "htree /subject");
    dump.lines().find(|line| line.contains("Indirect levels")).unwrap_or_default().to_string()
}

/// Adds long names in small blocks, so that two index levels cannot hold the leaves.
fn fill_with_long_names(set: &str, count: usize) -> (Image, Model, Option<extant_engine::Error>) {
    let image = FeatureSet::named(set).make();
    let fs = open(&image);
    let mut subject = Subject::new(&fs, "subject");
    let rng = &mut Rng::new(16);
    let mut error = None;
    while subject.model.len() < count && error.is_none() {
        let name = name_of_len(rng, 250);
        let file = &subject.files[subject.model.len() % 2];
        match fs.operations().link(file, &subject.dir, &name) {
            Ok(()) => drop(subject.model.insert(name, file.ino())),
            Err(e) => error = Some(e),
        }
    }
    subject.assert_listed();
    let model = std::mem::take(&mut subject.model);
    drop(subject);
    unmount(fs);
    image.assert_clean();
    again(&image, &model);
    (image, model, error)
}

#[test]
fn three_levels() {
    let (image, model, error) = fill_with_long_names("large_dir", 45_000);
    assert!(error.is_none(), "{error:?}");
    assert!(index_levels(&image).ends_with(": 2"), "{}", index_levels(&image));
    kernel_agrees(&image, &model);
}

#[test]
fn two_levels_are_full_without_large_dir() {
    let (image, model, error) = fill_with_long_names("1k", 60_000);
    assert!(error.is_some_and(|e| e.is(Errno::NoSpc)));
    assert!(index_levels(&image).ends_with(": 1"), "{}", index_levels(&image));
    kernel_agrees(&image, &model);
}

/// Turns a feature on or off with tune2fs.
fn tune(image: &Image, features: &str) {
    let args = ["-O".into(), features.into(), image.path().as_os_str().to_owned()];
    extant_testkit::tool::run("tune2fs", &args).must_succeed();
}

/// Fills a directory, changes a feature of the file system, and changes the directory again.
fn change_feature(set: &str, features: &str) {
    let image = FeatureSet::named(set).make();
    let fs = open(&image);
    let mut subject = Subject::new(&fs, "subject");
    let rng = &mut Rng::new(18);
    subject.churn(rng, 2500, 2);
    let model = std::mem::take(&mut subject.model);
    drop(subject);
    unmount(fs);
    tune(&image, features);
    let fs = open(&image);
    let resolve = |path: &str| fs.operations().resolve(path, extant_engine::Follow::Yes).unwrap();
    let files = vec![resolve("/subject.0"), resolve("/subject.1")];
    let mut subject = Subject { fs: &fs, dir: resolve("/subject"), files, model };
    assert_eq!(list(&fs, &subject.dir, 13).len(), subject.model.len() + 2);
    subject.churn(rng, 2500, 4);
    subject.assert_listed();
    let model = std::mem::take(&mut subject.model);
    drop(subject);
    unmount(fs);
    image.assert_clean();
    kernel_agrees(&image, &model);
}

#[test]
fn an_index_that_the_file_system_no_longer_has() {
    change_feature("ext3_1k", "^dir_index");
}

#[test]
fn large_directories_without_index_where_others_have_one() {
    change_feature("no_dir_index", "dir_index");
}

#[test]
fn directories_of_the_kernel() {
    for set in ["1k", "orphan_file", "inline_data", "no_dir_index", "no_csum"] {
        let image = FeatureSet::named(set).make();
        let rng = &mut Rng::new(17);
        let mount = Mount::new(image.path(), "");
        std::fs::create_dir(mount.join("subject")).unwrap();
        std::fs::write(mount.join("subject.0"), b"").unwrap();
        for _ in 0..3000 {
            let name = name(rng);
            let _ = std::fs::hard_link(
                mount.join("subject.0"),
                mount.join("subject").join(OsStr::from_bytes(&name)),
            );
        }
        let mut model = kernel_list(&mount.join("subject"));
        mount.unmount();
        again(&image, &model);
        let fs = open(&image);
        let resolve =
            |path: &str| fs.operations().resolve(path, extant_engine::Follow::Yes).unwrap();
        let mut subject = Subject {
            fs: &fs,
            dir: resolve("/subject"),
            files: vec![resolve("/subject.0")],
            model,
        };
        subject.churn(rng, 3000, 4);
        subject.assert_listed();
        model = std::mem::take(&mut subject.model);
        drop(subject);
        unmount(fs);
        image.assert_clean();
        kernel_agrees(&image, &model);
    }
}

#[test]
fn inline() {
    exercise(FeatureSet::named("inline_data"), 2_000, 5);
    exercise(FeatureSet::named("inode_1024"), 2_000, 6);
}

#[test]
fn without_index() {
    exercise(FeatureSet::named("no_dir_index"), 10_000, 7);
}

#[test]
fn without_checksums() {
    exercise(FeatureSet::named("no_csum"), 5_000, 8);
    exercise(FeatureSet::named("ext3_1k"), 5_000, 9);
    exercise(FeatureSet::named("ext2"), 2_000, 10);
}

#[test]
fn clusters() {
    exercise(FeatureSet::named("bigalloc"), 3_000, 11);
}

#[test]
fn all_hashes() {
    for hash in ["legacy", "tea", "half_md4"] {
        let image = Image::mke2fs(
            64 << 20,
            &["-t", "ext4", "-b", "1024", "-E", "hash_seed=11111111-2222-3333-4444-555555555555"],
        );
        extant_testkit::tool::run(
            "tune2fs",
            &["-E".into(), format!("hash_alg={hash}").into(), image.path().as_os_str().to_owned()],
        )
        .must_succeed();
        let fs = open(&image);
        let mut subject = Subject::new(&fs, "subject");
        subject.churn(&mut Rng::new(12), 3000, 2);
        subject.assert_listed();
        let model = std::mem::take(&mut subject.model);
        drop(subject);
        unmount(fs);
        image.assert_clean();
        kernel_agrees(&image, &model);
    }
}

#[test]
fn cookies_stay_good_while_kinds_change() {
    for set in ["inline_data", "1k", "no_dir_index"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let mut subject = Subject::new(&fs, "subject");
        let rng = &mut Rng::new(13);
        subject.insert(rng, b"first".to_vec());
        subject.insert(rng, b"second".to_vec());
        let stay = subject.model.clone();
        let mut seen = Model::new();
        let mut cookie = 0;
        // One entry at a time, while names come and go around them and the directory grows from one
        // kind into the next.
        loop {
            let before = cookie;
            fs.operations()
                .read_dir_from(&subject.dir, cookie, |entry| {
                    *seen.entry(entry.name.to_vec()).or_default() += 1;
                    cookie = entry.next;
                    false
                })
                .unwrap();
            if cookie == before {
                break;
            }
            if subject.model.len() < 400 {
                subject.insert_any(rng);
            }
        }
        for name in stay.keys() {
            assert_eq!(seen.get(name), Some(&1), "{set}: {:?}", String::from_utf8_lossy(name));
        }
        drop(subject);
        unmount(fs);
        image.assert_clean();
    }
}

/// In an index without checksums an emptied leaf looks like a node.
#[test]
fn emptied_leaves_are_read_again() {
    for set in ["ext3_1k", "no_csum", "1k"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let mut subject = Subject::new(&fs, "subject");
        subject.churn(&mut Rng::new(15), 2000, 0);
        let names: Vec<_> = subject.model.keys().cloned().collect();
        let (gone, kept) = names.split_at(names.len() - 3);
        gone.iter().for_each(|name| fs.unlink(&subject.dir, name).unwrap());
        drop(subject);
        unmount(fs);
        image.assert_clean();
        let fs = open(&image);
        let dir = fs.lookup(&fs.root().unwrap(), b"subject").unwrap();
        assert_eq!(fs.read_dir(&dir).unwrap().len(), kept.len(), "{set}");
        for name in &names {
            assert_eq!(fs.lookup(&dir, name).is_ok(), kept.contains(name), "{set}");
            if !kept.contains(name) {
                fs.create(&dir, name, 0o644, NodeKind::File).unwrap();
            }
        }
        unmount(fs);
        image.assert_clean();
    }
}

#[test]
fn everything_is_removed_while_it_is_read() {
    for set in ["1k", "inline_data", "no_dir_index"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let ops = fs.operations();
        let mut subject = Subject::new(&fs, "subject");
        subject.churn(&mut Rng::new(14), 3000, 0);
        let mut cookie = 0;
        loop {
            let mut batch = Vec::new();
            ops.read_dir_from(&subject.dir, cookie, |entry| {
                cookie = entry.next;
                batch.push(entry.name.to_vec());
                batch.len() < 50
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            for name in batch.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
                ops.unlink(&subject.dir, name).unwrap();
            }
        }
        drop(subject);
        ops.rmdir(&ops.root().unwrap(), b"subject").unwrap();
        unmount(fs);
        image.assert_clean();
    }
}

#[test]
fn subdirectories_move() {
    for set in ["1k", "inline_data"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let ops = fs.operations();
        let root = ops.root().unwrap();
        let dirs: Vec<Node> = (0..3)
            .map(|n| ops.create(&root, format!("d{n}").as_bytes(), 0o755, NodeKind::Dir).unwrap())
            .collect();
        for n in 0..300 {
            let name = format!("sub{n}");
            let sub = ops.create(&dirs[0], name.as_bytes(), 0o755, NodeKind::Dir).unwrap();
            ops.rename(
                (&dirs[0], name.as_bytes()),
                (&dirs[1 + n % 2], name.as_bytes()),
                extant_engine::RenameFlags::empty(),
            )
            .unwrap();
            assert_eq!(ops.lookup(&sub, b"..").unwrap().ino(), dirs[1 + n % 2].ino());
        }
        assert!(ops.rmdir(&root, b"d1").unwrap_err().is(Errno::NotEmpty));
        ops.rmdir(&root, b"d0").unwrap();
        drop((root, dirs));
        unmount(fs);
        image.assert_clean();
    }
}

#[test]
fn full_file_system_leaves_directories_whole() {
    for set in ["1k", "inline_data"] {
        let image = FeatureSet::named(set).make_sized(4 << 20);
        let fs = open(&image);
        let mut subject = Subject::new(&fs, "subject");
        let rng = &mut Rng::new(15);
        let error = loop {
            let name = name(rng);
            if subject.model.contains_key(&name) {
                continue;
            }
            match fs.operations().link(&subject.files[0], &subject.dir, &name) {
                Ok(()) => subject.model.insert(name, subject.files[0].ino()),
                Err(e) => break e,
            };
        };
        assert!(error.is(Errno::NoSpc) || error.is(Errno::Mlink), "{error}");
        subject.assert_listed();
        drop(subject);
        unmount(fs);
        image.assert_clean();
    }
}

#[test]
fn names_that_are_no_components_are_refused_after_the_others() {
    for features in ["^metadata_csum", "^metadata_csum,^dir_index", "^metadata_csum,inline_data"] {
        let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", features]);
        let fs = open(&image);
        let root = fs.operations().root().unwrap();
        let names = ["first", "a-slash", "zero-byte", "the-last"];
        for name in names {
            fs.create(&root, name.as_bytes(), 0o644, NodeKind::File).unwrap();
        }
        unmount(fs);
        image.replace(b"a-slash", b"a/slash");
        image.replace(b"zero-byte", b"zero\0bite");
        let fs =
            Fs::open(image.path(), &OpenOptions::new().memory(64 << 20).read_only(true)).unwrap();
        let root = fs.root().unwrap();
        let error = fs.read_dir(&root).expect_err("two names are bad");
        assert!(matches!(error, extant_engine::Error::Corrupt(_)), "{error}");
        let mut found = Vec::new();
        let listed = fs.read_dir_from(&root, 0, |e| {
            found.push(String::from_utf8(e.name.to_vec()).unwrap());
            true
        });
        assert!(matches!(listed, Err(extant_engine::Error::Corrupt(_))), "{listed:?}");
        found.sort();
        assert_eq!(found, [".", "..", "first", "lost+found", "the-last"]);
    }
}
