//! Real input: tar copies the machine's own files into a mount, by four writers at once, and both
//! Extant and the kernel return them unchanged. Further tests let the kernel and Extant change an
//! image in turn.

use crate::served::Served;
use extant_testkit::image::FeatureSet;
use extant_testkit::kernel;
use extant_testkit::rng::Rng;
use extant_testkit::tool::need;
use extant_testkit::tree::{Kind, Manifest, Plan, Shape, posix_acl};
use extant_testkit::{Scratch, e2fsck};
use rustix::fs::XattrFlags;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const WRITERS: usize = 4;

/// Amount of input.
struct Load {
    files: usize,
    bytes: u64,
    largest: u64,
    image: u64,
}

/// The load of a run of all tests.
const SHORT: Load = Load { files: 10_000, bytes: 64 << 20, largest: 1 << 20, image: 1 << 30 };

/// The load of `make real`.
const FULL: Load = Load { files: 150_000, bytes: 3 << 30, largest: 256 << 20, image: 8 << 30 };

/// Returns paths below `/`, in order, up to the limits of the load.
fn pick(load: &Load) -> Vec<PathBuf> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut todo = vec![PathBuf::from("/usr/share"), PathBuf::from("/usr/lib")];
    while let Some(dir) = todo.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.len() <= load.largest
                && bytes + meta.len() <= load.bytes
                && found.len() < load.files
            {
                bytes += meta.len();
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// A shell pipe of two tars.
fn tar_pipe(pack: &[&OsStr], unpack: &[&OsStr], list: &[u8]) {
    const KEEP: [&str; 4] = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"];
    let tar = need("tar");
    let mut packer = Command::new(&tar);
    packer
        .arg("-c")
        .args(KEEP)
        .args(["--sparse", "-f", "-"])
        .args(pack)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut packer = packer.spawn().expect("tar");
    let from = packer.stdout.take().expect("a pipe");
    let mut unpacker = Command::new(&tar);
    unpacker
        .args(["-x", "--warning=no-timestamp"])
        .args(KEEP)
        .args(["-p", "-f", "-"])
        .args(unpack)
        .stdin(from);
    let mut unpacker = unpacker.spawn().expect("tar");
    packer.stdin.take().expect("a pipe").write_all(list).expect("tar takes the list");
    assert!(packer.wait().expect("tar").success(), "packing failed");
    assert!(unpacker.wait().expect("tar").success(), "unpacking failed");
}

fn part(n: usize) -> String {
    format!("part{n}")
}

/// Copies the machine's files into one directory per writer, and adds attributes that such files
/// lack.
fn stage(load: &Load) -> Scratch {
    let stage = Scratch::new();
    stage.leave_unjudged("", "the machine's files are not the test's");
    let files = pick(load);
    for (n, chunk) in files.chunks(files.len().div_ceil(WRITERS)).enumerate() {
        let dir = stage.dir(&part(n));
        let list: Vec<u8> = chunk
            .iter()
            .flat_map(|path| [&path.as_os_str().as_bytes()[1..], b"\0"].concat())
            .collect();
        let from = ["-C", "/", "--null", "--no-recursion", "-T", "-"].map(OsStr::new);
        tar_pipe(&from, &[OsStr::new("-C"), dir.as_os_str()], &list);
        decorate(&dir, n as u64);
    }
    let missing = load.files.saturating_sub(files.len());
    for n in 0..WRITERS {
        let dir = stage.path().join(part(n)).join("random");
        fs::create_dir_all(&dir).expect("mkdir");
        let shape = Shape {
            files: missing / WRITERS + 30,
            directories: 6 + missing / 200,
            largest: 64 << 10,
            ..Shape::small()
        };
        Plan::random(n as u64, &shape).apply(&dir);
    }
    stage
}

/// Adds attributes, owners, times and further names to some of the files.
fn decorate(dir: &Path, seed: u64) {
    let rng = &mut Rng::new(seed);
    let files: Vec<PathBuf> = Manifest::walk(dir)
        .nodes
        .into_iter()
        .filter(|(_, node)| node.size > 0)
        .map(|(path, _)| dir.join(OsStr::from_bytes(&path)))
        .collect();
    for file in files.iter().step_by(40) {
        if file.is_symlink() {
            continue;
        }
        let value = vec![b'v'; rng.below(2000) as usize];
        let set = |name: &str, value: &[u8]| {
            rustix::fs::lsetxattr(file, name, value, XattrFlags::empty())
        };
        set("user.origin", file.as_os_str().as_bytes()).expect("user.origin");
        set("trusted.long", &value).expect("trusted.long");
        if rng.one_in(3) {
            set("system.posix_acl_access", &posix_acl(0o640, (1000, 6), (100, 4))).expect("an ACL");
        }
        std::os::unix::fs::lchown(
            file,
            Some(rng.below(70_000) as u32),
            Some(rng.below(70_000) as u32),
        )
        .expect("chown");
        fs::set_permissions(file, fs::Permissions::from_mode(rng.below(0o10000) as u32))
            .expect("chmod");
        let link = file.with_file_name(format!("another name {}", rng.below(1 << 30)));
        fs::hard_link(file, &link).expect("link");
    }
}

/// Unpacks all parts into the mounted directory at once.
fn untar(stage: &Path, to: &Path) {
    std::thread::scope(|scope| {
        for n in 0..WRITERS {
            let name = part(n);
            scope.spawn(move || {
                let pack = [OsStr::new("-C"), stage.as_os_str(), OsStr::new(&name)];
                tar_pipe(&pack, &[OsStr::new("-C"), to.as_os_str()], b"");
            });
        }
    });
}

/// Returns the manifest of all parts, without sockets, which tar skips.
fn parts(root: &Path) -> Manifest {
    let mut all = Manifest::walk(root).without("lost+found").without_root();
    all.nodes.retain(|_, node| node.kind != Kind::Socket);
    all
}

fn real_tree_goes_in_and_comes_out(load: &Load) {
    let stage = stage(load);
    let source = parts(stage.path());
    assert!(source.nodes.len() >= load.files.min(30_000), "{} files", source.nodes.len());
    let mut served = Served::of(FeatureSet::named("orphan_file").make_sized(load.image));
    untar(stage.path(), served.dir());
    source.assert_same(&parts(served.dir()));
    served.unmount();
    served.mount();
    source.assert_same(&parts(served.dir()));
    served.unmount();
    let mount = kernel::Mount::new(served.image(), "ro");
    source.assert_same(&parts(mount.path()));
}

#[test]
fn ten_thousand_files_go_in_and_come_out() {
    real_tree_goes_in_and_comes_out(&SHORT);
}

#[test]
#[ignore = "takes minutes: make real"]
fn real_everything_goes_in_and_comes_out() {
    real_tree_goes_in_and_comes_out(&FULL);
}

/// Changes a tree by random system calls of all kinds, and returns its manifest afterwards.
fn edit(root: &Path, seed: u64, count: usize) -> Manifest {
    let rng = &mut Rng::new(seed);
    let before = Manifest::walk(root).without("lost+found");
    let paths: Vec<PathBuf> = before
        .nodes
        .keys()
        .filter(|path| !path.is_empty())
        .map(|path| root.join(OsStr::from_bytes(path)))
        .collect();
    let dirs: Vec<PathBuf> =
        paths.iter().filter(|path| path.is_dir() && !path.is_symlink()).cloned().collect();
    let files: Vec<PathBuf> =
        paths.iter().filter(|path| path.is_file() && !path.is_symlink()).cloned().collect();
    let mut gone = BTreeSet::new();
    for step in 0..count {
        let (file, dir) = (rng.pick(&files), rng.pick(&dirs));
        if gone.contains(file) {
            continue;
        }
        let new = dir.join(format!("edit {seed} {step}"));
        match rng.below(10) {
            0 => fs::remove_file(file).map(|()| forget(&mut gone, file)),
            1 => fs::rename(file, &new).map(|()| forget(&mut gone, file)),
            2 => fs::create_dir(&new).and_then(|()| fs::write(new.join("inside"), rng.bytes(3000))),
            3 => symlink("some/where", &new),
            4 => fs::hard_link(file, &new),
            5 => fs::write(&new, rng.bytes(rng.clone().below(150_000) as usize)),
            6 => resize(file, rng),
            7 => overwrite(file, rng),
            8 => attributes(file, rng),
            _ => std::os::unix::fs::chown(file, Some(step as u32), Some(7)),
        }
        .unwrap_or_else(|e| panic!("step {step} of {seed}, {}: {e}", file.display()));
    }
    Manifest::walk(root).without("lost+found")
}

fn forget(gone: &mut BTreeSet<PathBuf>, file: &Path) {
    gone.insert(file.into());
}

fn open(file: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(file)
}

fn resize(file: &Path, rng: &mut Rng) -> std::io::Result<()> {
    open(file)?.set_len(rng.below(100_000))
}

fn overwrite(file: &Path, rng: &mut Rng) -> std::io::Result<()> {
    let file = open(file)?;
    for _ in 0..rng.between(1, 4) {
        let data = rng.bytes(rng.clone().below(20_000) as usize);
        file.write_all_at(&data, rng.below(200_000))?;
    }
    if rng.one_in(3) {
        file.sync_all()?;
    }
    Ok(())
}

fn attributes(file: &Path, rng: &mut Rng) -> std::io::Result<()> {
    let value = vec![b'x'; rng.below(600) as usize];
    match rustix::fs::lsetxattr(file, "user.edited", &value, XattrFlags::empty()) {
        // Attributes of this size may not fit small blocks.
        Err(rustix::io::Errno::NOSPC) => {}
        other => other?,
    }
    fs::set_permissions(file, fs::Permissions::from_mode(0o600 | rng.below(0o200) as u32))?;
    let when = std::time::UNIX_EPOCH + std::time::Duration::new(rng.below(1 << 33), 123);
    fs::File::open(file)?.set_modified(when)
}

/// The kernel leaves trees of extents higher than they need to be.
fn assert_clean(image: &Path) {
    e2fsck::check_with(image, &["-E", "no_optimize_extents"]).assert_clean();
}

/// The kernel fills an image, then Extant and the kernel change it in turn, three times. Each must
/// find the tree that the other left.
fn to_and_fro(set: &str) {
    let image = FeatureSet::named(set).make_sized(256 << 20);
    let mount = kernel::Mount::new(image.path(), "");
    let shape = Shape {
        files: 600,
        directories: 40,
        depth: 6,
        wide: 300,
        largest: 200 << 10,
        ..Shape::default()
    };
    Plan::random(7, &shape).apply(mount.path());
    let mut left = Manifest::walk(mount.path()).without("lost+found");
    mount.unmount();
    image.assert_clean();
    let mut served = Served::unmounted(image);
    for round in 0..3 {
        served.mount();
        left.assert_same(&Manifest::walk(served.dir()).without("lost+found"));
        left = edit(served.dir(), round * 2, 300);
        served.let_go();
        assert_clean(served.image());
        let mount = kernel::Mount::new(served.image(), "");
        left.assert_same(&Manifest::walk(mount.path()).without("lost+found"));
        left = edit(mount.path(), round * 2 + 1, 300);
        mount.unmount();
        assert_clean(served.image());
    }
}

macro_rules! turns {
    ($($name:ident = $set:literal;)*) => {
        $(#[test]
        fn $name() {
            to_and_fro($set);
        })*
    };
}

turns! {
    default_to_and_fro = "default";
    orphan_file_to_and_fro = "orphan_file";
    small_blocks_to_and_fro = "1k";
    ext3_to_and_fro = "ext3_1k";
    ext2_to_and_fro = "ext2";
    bigalloc_to_and_fro = "bigalloc";
    inline_data_to_and_fro = "inline_data";
    ea_inode_to_and_fro = "ea_inode";
}

/// All other feature sets that the kernel can mount; inodes of 128 bytes are left out, since they
/// have no nanoseconds to compare.
#[test]
#[ignore = "takes minutes: make real"]
fn real_every_set_to_and_fro() {
    for set in [
        "2k",
        "no_journal",
        "bigalloc_1k",
        "meta_bg",
        "large_dir",
        "sparse_super2",
        "uninit_bg",
        "no_csum",
        "no_64bit",
        "inode_1024",
        "no_flex_bg",
        "no_dir_index",
    ] {
        println!("{set}");
        to_and_fro(set);
    }
}
