//! Images in the format qcow2, and overlays, judged by `qemu-img` and e2fsck.

use crate::args;
use crate::program::{EXTANT, Server, done, extant, json, refused};
use extant_testkit::host::SmallHost;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch, e2fsck};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Asserts that an image is consistent, and has no leaks.
#[track_caller]
fn assert_clean(image: &Path) {
    let printed = run("qemu-img", &args!["check", "-f", "qcow2", image]);
    assert_eq!(printed.code, 0, "{printed}");
}

/// Returns the disk of an image as QEMU reads it.
fn disk(scratch: &Scratch, image: &Path) -> PathBuf {
    let raw = scratch.join("disk.raw");
    let convert = args!["convert", "-q", "-f", "qcow2", "-O", "raw", image, &raw];
    run("qemu-img", &convert).must_succeed();
    raw
}

/// An image with a tree, and an overlay of it.
struct Stage {
    scratch: Scratch,
    base: PathBuf,
    overlay: PathBuf,
}

impl Stage {
    fn new() -> Stage {
        let scratch = Scratch::new();
        let (top, base) = (scratch.dir("top"), scratch.join("base.img"));
        fs::write(top.join("file"), "of the base").unwrap();
        fs::create_dir(top.join("dir")).unwrap();
        done(&args!["build", &base, &top, "--free", "32M", "-N", "256"]);
        let overlay = scratch.join("o.qcow2");
        done(&args!["overlay", "create", &overlay, "--backing", &base]);
        assert_clean(&overlay);
        Stage { scratch, base, overlay }
    }

    /// A command on the overlay.
    fn on(&self, command: &str, rest: &[OsString]) -> Vec<OsString> {
        let options = args!["--format", "qcow2", "--backing", &self.base];
        [&args![command][..], &options, &args![&self.overlay], rest].concat()
    }
}

#[test]
fn built_images_have_the_disk_of_raw_ones() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("file"), vec![7; 3 << 20]).unwrap();
    let (raw, image, again) = (scratch.join("raw"), scratch.join("i"), scratch.join("again"));
    let size = args!["--free", "40M"];
    done(&[&args!["build", &raw, &top][..], &size].concat());
    for out in [&image, &again] {
        done(&[&args!["build", out, &top, "--format", "qcow2"][..], &size].concat());
        assert_clean(out);
    }
    assert!(fs::read(&image).unwrap() == fs::read(&again).unwrap(), "the bytes differ");
    assert!(fs::read(disk(&scratch, &image)).unwrap() == fs::read(&raw).unwrap());
    assert!(fs::metadata(&image).unwrap().len() < 8 << 20, "only clusters in use are stored");
    let stream = [&args!["build", "-", &top, "--format", "qcow2"][..], &size].concat();
    assert!(done(&stream).stdout == fs::read(&image).unwrap());
    let all = done(&args!["cat", "--format", "qcow2", &image, "/file"]).stdout;
    assert!(all == vec![7; 3 << 20]);
    // A disk with a file system behind an offset.
    let behind = scratch.join("behind");
    let bytes = [vec![0; 1 << 20], fs::read(&raw).unwrap()].concat();
    fs::write(&behind, bytes).unwrap();
    let packed = scratch.join("packed");
    let convert = args!["convert", "-q", "-f", "raw", "-O", "qcow2", "-c", &behind, &packed];
    run("qemu-img", &convert).must_succeed();
    let place = format!("{}@1M", packed.display());
    let found = json(&args!["ls", "--format", "qcow2", place, "/"]);
    assert!(found.to_string().contains("\"file\""), "{found}");
}

#[test]
fn commands_change_the_overlay_alone() {
    let stage = Stage::new();
    let before = fs::read(&stage.base).unwrap();
    fs::write(stage.scratch.join("new"), "of the overlay").unwrap();
    done(&stage.on("put", &args![stage.scratch.join("new"), "/dir/new"]));
    done(&stage.on("mkdir", &args!["/more"]));
    done(&stage.on("rm", &args!["/file"]));
    let script = stage.scratch.join("script");
    fs::write(&script, "mkdir /applied\n").unwrap();
    done(&stage.on("apply", &args![&script]));
    assert_eq!(done(&stage.on("cat", &args!["/dir/new"])).text(), "of the overlay");
    for command in ["info", "ls", "tree", "check", "recover", "repair", "trim", "tune", "hash"] {
        done(&stage.on(command, &args![]));
    }
    done(&stage.on("resize", &args!["--minimum"]));
    done(&stage.on("find", &args!["/more"]));
    done(&stage.on("get", &args!["/dir/new", stage.scratch.join("copy")]));
    done(&stage.on("export", &args!["--tar", stage.scratch.join("all.tar")]));
    done(&stage.on("verity", &args!["--tree", stage.scratch.join("hashes")]));
    let clone = stage.scratch.join("clone.img");
    done(&stage.on("clone", &args![&clone]));
    assert_eq!(fs::read(stage.scratch.join("copy")).unwrap(), b"of the overlay");
    assert!(fs::read(&stage.base).unwrap() == before, "the base was changed");
    assert_clean(&stage.overlay);
    e2fsck::check(&disk(&stage.scratch, &stage.overlay)).assert_clean();
    let two = args!["--format-b", "qcow2", "--backing-b", &stage.base, "--json"];
    let diff = [&args!["diff"][..], &two, &args![&stage.base, &stage.overlay]].concat();
    let printed = extant(&diff);
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.text().contains("applied"), "{printed}");
}

#[test]
fn overlays_are_put_into_their_base_or_a_new_image() {
    let stage = Stage::new();
    done(&stage.on("mkdir", &args!["/more"]));
    let (raw, packed) = (stage.scratch.join("raw"), stage.scratch.join("packed"));
    let flatten = args!["overlay", "flatten", "--backing", &stage.base, &stage.overlay];
    done(&[&flatten[..], &args![&raw]].concat());
    done(&[&flatten[..], &args![&packed, "--format", "qcow2"]].concat());
    refused(&[&flatten[..], &args![&raw]].concat(), 1, "--force");
    refused(&[&flatten[..], &args![&stage.base, "--force"]].concat(), 1, "the image itself");
    refused(&stage.on("clone", &args![&stage.base, "--force"]), 1, "the image itself");
    assert_clean(&packed);
    let expected = fs::read(disk(&stage.scratch, &stage.overlay)).unwrap();
    assert!(fs::read(disk(&stage.scratch, &packed)).unwrap() == expected);
    assert!(fs::read(&raw).unwrap() == expected);
    let other = stage.scratch.join("other.img");
    fs::copy(&stage.base, &other).unwrap();
    let commit = args!["overlay", "commit", &stage.overlay, "--backing"];
    refused(&[&commit[..], &args![&other]].concat(), 1, "is an overlay of");
    let document = json(&[&commit[..], &args![&stage.base]].concat());
    assert!(document["bytes"].as_u64().unwrap() > 0, "{document}");
    assert!(fs::read(&stage.base).unwrap() == expected);
    e2fsck::check(&stage.base).assert_clean();
    // The overlay is as good as before.
    done(&stage.on("ls", &args!["/more"]));
}

/// The disk's content would take the place of the tables of its base.
#[test]
fn a_base_is_not_written_in_another_format() {
    let stage = Stage::new();
    let (base, overlay) = (stage.scratch.join("b.qcow2"), stage.scratch.join("second.qcow2"));
    // As long as its disk, so that its length does not give it away.
    let convert = args!["convert", "-q", "-f", "raw", "-O", "qcow2", "-o", "preallocation=full"];
    let convert = [&convert[..], &args![&stage.base, &base]].concat();
    run("qemu-img", &convert).must_succeed();
    let backing = format!("{}:qcow2", base.display());
    done(&args!["overlay", "create", &overlay, "--backing", &backing]);
    done(&args!["mkdir", "--format", "qcow2", "--backing", &backing, &overlay, "/more"]);
    let before = fs::read(&base).unwrap();
    let commit = args!["overlay", "commit", "--force", &overlay, "--backing", &base];
    refused(&commit, 1, &format!("name it by --backing {backing}"));
    assert!(fs::read(&base).unwrap() == before);
    done(&args!["overlay", "commit", &overlay, "--backing", &backing]);
    assert_clean(&base);
}

#[test]
fn overlays_of_overlays_are_named_in_order() {
    let stage = Stage::new();
    let second = stage.scratch.join("second.qcow2");
    let below = format!("{}:qcow2", stage.overlay.display());
    let chain = args!["--backing", &below, "--backing", &stage.base];
    done(&[&args!["overlay", "create", &second][..], &chain].concat());
    let on = |command: &str, rest: &[OsString]| {
        let all = [&args![command, "--format", "qcow2"][..], &chain, &args![&second], rest];
        done(&all.concat())
    };
    on("mkdir", &args!["/second"]);
    on("ls", &args!["/dir"]);
    assert_clean(&second);
    done(&[&args!["overlay", "commit", &second][..], &chain].concat());
    assert_clean(&stage.overlay);
    done(&stage.on("ls", &args!["/second"]));
    let upside_down = args!["--backing", &stage.base, "--backing", &below];
    let command = [&args!["ls", "--format", "qcow2"][..], &upside_down, &args![&second]].concat();
    refused(&command, 1, "name the backing file");
}

#[test]
fn formats_and_backing_files_are_never_guessed() {
    let stage = Stage::new();
    refused(&args!["ls", &stage.overlay], 1, "--format qcow2 opens it");
    refused(&args!["ls", "--format", "qcow2", &stage.overlay], 1, "--backing FILE[:FORMAT]");
    refused(&args!["ls", "--format", "qcow2", &stage.base], 1, "no header of this format");
    refused(&args!["ls", "--backing", &stage.base, &stage.base], 1, "the format qcow2");
    let missing = args!["--format", "qcow2", "--backing", "/missing", &stage.overlay];
    refused(&[&args!["ls"][..], &missing].concat(), 1, "/missing");
    // The header of the overlay says that its base is raw.
    let wrong = format!("{}:qcow2", stage.base.display());
    let packed = stage.scratch.join("b.qcow2");
    done(&args![
        "overlay",
        "flatten",
        "--backing",
        &stage.base,
        &stage.overlay,
        &packed,
        "--format",
        "qcow2"
    ]);
    let fork = stage.scratch.join("fork.qcow2");
    let told = done(&args!["overlay", "create", &fork, "--backing", &packed]);
    assert!(told.errors().contains("taken as a raw image"), "{told}");
    let of_packed = args!["--format", "qcow2", "--backing", &packed, &fork];
    refused(&[&args!["ls"][..], &of_packed].concat(), 1, "BASE:qcow2");
    let renamed = format!("{}:qcow2", packed.display());
    let of_renamed = args!["--format", "qcow2", "--backing", &renamed, &fork];
    refused(&[&args!["ls"][..], &of_renamed].concat(), 1, "the format raw, and");
    refused(&args!["ls", "--format", "qcow2", "--backing", &wrong, &stage.overlay], 1, "no header");
    // A raw base that looks like an overlay of a file of root is a raw base.
    let header = fs::read(&stage.overlay).unwrap();
    fs::write(stage.scratch.join("disguised"), &header).unwrap();
    let disguised = args!["--backing", stage.scratch.join("disguised"), "-f"];
    let create = args!["overlay", "create", stage.scratch.join("x.qcow2")];
    done(&[&create[..], &disguised].concat());
    let x = stage.scratch.join("x.qcow2");
    assert!(fs::read(disk(&stage.scratch, &x)).unwrap().starts_with(b"QFI\xfb"));
}

#[test]
fn images_in_use_are_locked() {
    let stage = Stage::new();
    let second = stage.scratch.join("second.qcow2");
    done(&args!["overlay", "create", &second, "--backing", &stage.base]);
    let backing = args!["--format", "qcow2", "--backing", &stage.base];
    let server = Server::with(&stage.overlay, "rw", &backing);
    fs::write(server.dir().join("mounted"), "x").unwrap();
    refused(&stage.on("mkdir", &args!["/x"]), 1, "in use");
    refused(&stage.on("ls", &args![]), 1, "in use");
    // The base is shared with readers, and with other overlays.
    done(&args!["ls", &stage.base]);
    refused(&args!["mkdir", &stage.base, "/x"], 1, "in use");
    let commit = args!["overlay", "commit", &second, "--backing", &stage.base];
    refused(&commit, 1, "in use");
    let other = [&args!["mkdir"][..], &backing, &args![&second, "/other"]].concat();
    done(&other);
    done(&args!["umount", server.dir()]);
    assert_clean(&stage.overlay);
    assert_eq!(done(&stage.on("cat", &args!["/mounted"])).text(), "x");
}

/// The overlay is waited for, and not the base alone.
#[test]
fn a_commit_waits_for_the_overlay() {
    let stage = Stage::new();
    let backing = args!["--format", "qcow2", "--backing", &stage.base];
    let server = Server::with(&stage.overlay, "rw", &backing);
    fs::write(server.dir().join("mounted"), "x").unwrap();
    let commit = args!["overlay", "commit", &stage.overlay, "--backing", &stage.base];
    refused(&commit, 1, "--wait");
    let mut waiting = Command::new(EXTANT)
        .args([&commit[..], &args!["--wait"]].concat())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut told = String::new();
    let mut errors = BufReader::new(waiting.stderr.take().expect("a pipe"));
    errors.read_line(&mut told).expect("a line");
    assert!(told.contains("o.qcow2") && told.contains("waiting for up to"), "{told}");
    done(&args!["umount", server.dir()]);
    errors.read_to_string(&mut told).expect("the end");
    assert!(waiting.wait().expect("its end").success(), "{told}");
    assert_eq!(done(&args!["cat", &stage.base, "/mounted"]).text(), "x");
    e2fsck::check(&stage.base).assert_clean();
}

#[test]
fn overlays_are_mounted() {
    let stage = Stage::new();
    let before = fs::read(&stage.base).unwrap();
    let dir = stage.scratch.dir("mnt");
    let backing = args!["--format", "qcow2", "--backing", &stage.base];
    done(&[&args!["mount"][..], &backing, &args![&stage.overlay, &dir]].concat());
    for number in 0..50u8 {
        fs::write(dir.join(format!("{number}")), vec![number; 100_000]).unwrap();
    }
    done(&args!["umount", &dir]);
    assert!(fs::read(&stage.base).unwrap() == before, "the base was changed");
    assert_clean(&stage.overlay);
    e2fsck::check(&disk(&stage.scratch, &stage.overlay)).assert_clean();
    // By an option list, as in fstab(5), for reading.
    let list = format!("ro,format=qcow2,backing={}", stage.base.display());
    done(&args!["mount", "-o", list, &stage.overlay, &dir]);
    for (name, content) in [("file", b"of the base".to_vec()), ("49", vec![49; 100_000])] {
        assert_eq!(fs::read(dir.join(name)).unwrap(), content);
    }
    done(&args!["umount", &dir]);
}

#[test]
fn file_systems_are_made_in_disk_images() {
    let stage = Stage::new();
    let image = stage.scratch.join("new.qcow2");
    let mkfs = |image: &Path, rest: &[OsString]| {
        [&args!["mkfs", "--format", "qcow2"][..], &args![image], rest].concat()
    };
    refused(&mkfs(&image, &args![]), 2, "say how large");
    refused(&mkfs(&image, &args!["64M", "-b", "3000"]), 2, "block");
    refused(&mkfs(&image, &args!["64M", "--backing", &stage.base]), 1, "overlay create");
    assert!(!image.exists(), "a failed creation leaves nothing");
    done(&mkfs(&image, &args!["64M", "-n"]));
    assert!(!image.exists());
    done(&mkfs(&image, &args!["64M", "-L", "first"]));
    assert_clean(&image);
    assert!(fs::metadata(&image).unwrap().len() < 16 << 20);
    let disk_of = |image: &Path| disk(&stage.scratch, image);
    e2fsck::check(&disk_of(&image)).assert_clean();
    done(&args!["mkdir", "--format", "qcow2", &image, "/dir"]);
    refused(&mkfs(&image, &args![]), 1, "label \"first\"");
    refused(&mkfs(&image, &args!["-F", "128M"]), 1, "qemu-img resize");
    let report = json(&mkfs(&image, &args!["-F", "-L", "second"]));
    assert_eq!(
        report["blocks"].as_u64().unwrap() * report["block_size"].as_u64().unwrap(),
        64 << 20
    );
    assert_clean(&image);
    e2fsck::check(&disk_of(&image)).assert_clean();
    // An overlay hides the file system of its base.
    let before = fs::read(&stage.base).unwrap();
    let backing = args!["--backing", &stage.base, "-F"];
    done(&mkfs(&stage.overlay, &backing));
    assert!(fs::read(&stage.base).unwrap() == before, "the base was changed");
    assert_clean(&stage.overlay);
    e2fsck::check(&disk_of(&stage.overlay)).assert_clean();
    let found = json(&stage.on("ls", &args!["/"])).to_string();
    assert!(found.contains("lost+found") && !found.contains("\"file\""), "{found}");
    let raw = args!["mkfs", "-F", "--backing", &stage.base, stage.scratch.join("raw"), "64M"];
    refused(&raw, 2, "--format qcow2");
}

#[test]
fn disk_images_are_sources_of_new_ones() {
    let stage = Stage::new();
    let (packed, out) = (stage.scratch.join("packed"), stage.scratch.join("out"));
    done(&args!["build", &packed, &stage.base, "--format", "qcow2"]);
    let source = |kind: &str, path: &Path| format!("{kind}:{}", path.display());
    done(&args!["build", &out, source("qcow2", &packed)]);
    assert_eq!(done(&args!["cat", &out, "/file"]).text(), "of the base");
    let ext4 = args!["build", &out, source("ext4", &packed)];
    refused(&ext4, 1, &format!("the source qcow2:{} reads it", packed.display()));
    let overlay = args!["build", &out, source("qcow2", &stage.overlay)];
    refused(&overlay, 1, "overlay flatten");
}

/// A host without space costs the writes that need some, and a mount goes on once there is space.
#[test]
fn a_mount_survives_a_host_without_space() {
    let stage = Stage::new();
    let (small, dir) = (stage.scratch.dir("small"), stage.scratch.dir("mnt"));
    let host = SmallHost::new(small, "16M");
    let overlay = host.join("o.qcow2");
    done(&args!["overlay", "create", &overlay, "--backing", &stage.base]);
    let backing = args!["--format", "qcow2", "--backing", &stage.base];
    let all = |command: &str| [&args![command][..], &backing, &args![&overlay]].concat();
    done(&[&all("mount")[..], &args![&dir]].concat());
    fs::write(dir.join("kept"), vec![1; 1 << 20]).unwrap();
    File::open(dir.join("kept")).unwrap().sync_all().unwrap();
    // All that is left; then the overlay's file cannot grow.
    let filler = host.fill();
    let new = File::create(dir.join("new")).unwrap();
    let written = new.write_all_at(&vec![3; 2 << 20], 0).and_then(|()| new.sync_all());
    let kept = fs::read(dir.join("kept")).unwrap() == vec![1; 1 << 20];
    drop((new, filler));
    let more = dir.join("more");
    let write = fs::write(&more, vec![4; 2 << 20]).and_then(|()| File::open(&more)?.sync_all());
    let umounted = extant(&args!["umount", &dir]);
    assert_clean(&overlay);
    let copy = stage.scratch.join("copy.qcow2");
    fs::copy(&overlay, &copy).unwrap();
    host.unmount();
    assert!(written.is_err() && kept && umounted.code == 0, "{written:?} {umounted}");
    write.unwrap();
    e2fsck::check(&disk(&stage.scratch, &copy)).assert_clean();
    let content = [&args!["cat"][..], &backing, &args![&copy, "/kept"]].concat();
    assert!(done(&content).stdout == vec![1; 1 << 20]);
}

#[test]
fn a_base_of_qemu_takes_an_overlay() {
    let stage = Stage::new();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let packed = stage.scratch.join("cloud.qcow2");
    let convert = args!["convert", "-q", "-f", "raw", "-O", "qcow2", "-c", image.path(), &packed];
    run("qemu-img", &convert).must_succeed();
    refused(&args!["mkdir", "--format", "qcow2", &packed, "/x"], 1, "compressed clusters");
    let (overlay, base) = (stage.scratch.join("fork.qcow2"), format!("{}:qcow2", packed.display()));
    done(&args!["overlay", "create", &overlay, "--backing", &base]);
    done(&args!["mkdir", "--format", "qcow2", "--backing", &base, &overlay, "/x"]);
    assert_clean(&overlay);
    e2fsck::check(&disk(&stage.scratch, &overlay)).assert_clean();
}
