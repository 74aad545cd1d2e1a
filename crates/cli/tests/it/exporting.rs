//! `extant export`: archives and OCI images as other programs restore them, and hostile images that
//! stay inside the target.

use crate::args;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::unprivileged::{Fuse, as_user, home};
use extant_testkit::tool::{run, run_with_env};
use extant_testkit::tree::{Manifest, Plan, Shape, What};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// The value of `security.capability` that setcap(8) stores for `cap_net_raw=ep`.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A tree with entries of each kind that an archive can hold.
fn tree(scratch: &Scratch, seed: u64) -> PathBuf {
    let top = scratch.dir("top");
    let mut plan = Plan::random(seed, &Shape { longest_target: 300, ..Shape::small() });
    plan.entries.retain(|e| !matches!(e.what, What::Socket));
    plan.apply(&top);
    fs::create_dir(top.join("more")).unwrap();
    fs::write(top.join("more/capable"), "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(top.join("more/capable"), "security.capability", &CAPABILITY, flags)
        .unwrap();
    let sparse = fs::File::create_new(top.join("more/sparse")).unwrap();
    sparse.set_len(9 << 20).unwrap();
    sparse.write_all_at(&[7; 3 << 20], 4 << 20).unwrap();
    fs::hard_link(top.join("more/sparse"), top.join("more/sparse.again")).unwrap();
    fs::write(top.join("more/empty"), "").unwrap();
    fs::write(top.join("more/large"), vec![5; (5 << 20) + 3]).unwrap();
    top
}

fn image_of(top: &Path) -> Image {
    let image = FeatureSet::named("default").make();
    done(&args!["put", image.path(), top, "/"]);
    image
}

fn manifest(top: &Path) -> Manifest {
    Manifest::walk(top).without("lost+found").without_root()
}

/// Restores an archive with all attributes.
fn restore(tool: &str, archive: &Path, to: &Path) -> Manifest {
    let options: &[&str] = match tool {
        "tar" => &["--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-p", "-C"],
        _ => &["--acls", "--xattrs", "--numeric-owner", "-p", "-C"],
    };
    let mut all: Vec<OsString> = options.iter().map(Into::into).collect();
    all.extend(args![to, "-xf", archive]);
    run_with_env(tool, &all, &[("LC_ALL", "C.UTF-8")]).must_succeed();
    manifest(to)
}

#[test]
fn archives_are_restored_by_gnu_tar_and_bsdtar() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 31);
    let image = image_of(&top);
    let archive = scratch.join("a.tar");
    done(&args!["export", image.path(), "--tar", &archive]);
    manifest(&top).assert_same(&restore("tar", &archive, &scratch.dir("tar")));
    // bsdtar 3.6 adds the fraction of a time before 1970 instead of subtracting it.
    let late = |mut tree: Manifest| {
        tree.nodes.values_mut().filter(|n| n.mtime.0 < 0).for_each(|n| n.mtime = (-1, 0));
        tree
    };
    let restored = restore("bsdtar", &archive, &scratch.dir("bsdtar"));
    late(manifest(&top)).assert_same(&late(restored));
    assert!(fs::metadata(&archive).unwrap().len() < 20 << 20, "holes are not stored");
    let out = scratch.join("dir");
    done(&args!["export", image.path(), "--dir", &out]);
    manifest(&top).assert_same(&manifest(&out));
    image.assert_clean();
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let scratch = Scratch::new();
    let image = image_of(&tree(&scratch, 32));
    let plain = done(&args!["export", image.path(), "--tar", "-"]).stdout;
    for (how, tool) in [("gzip", "gzip"), ("zstd", "zstd"), ("none", "cat")] {
        let files = ["1", "4"].map(|threads| {
            let file = scratch.join(format!("{how}.{threads}"));
            let form = args!["--compress", how, "--tar", &file];
            let call = args!["export", "--threads", threads, image.path()];
            done(&[&call[..], &form].concat());
            file
        });
        let bytes = files.clone().map(|file| fs::read(file).unwrap());
        assert!(bytes[0] == bytes[1], "{how}");
        let unpack: &[OsString] =
            if tool == "cat" { &args![&files[0]] } else { &args!["-dcf", &files[0]] };
        assert!(run(tool, unpack).must_succeed().stdout == plain, "{how}");
    }
    for how in ["gzip", "zstd", "none"] {
        let images = ["1", "4"].map(|threads| {
            let file = scratch.join(format!("{how}.{threads}.tar"));
            let form = args!["--compress", how, "--oci", &file];
            done(&[&args!["export", "--threads", threads, image.path()][..], &form].concat());
            fs::read(file).unwrap()
        });
        assert!(images[0] == images[1], "{how}");
    }
}

/// Returns a blob of a layout.
fn blob(layout: &Path, digest: &Value) -> PathBuf {
    let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
    layout.join("blobs/sha256").join(digest)
}

fn sum(path: &Path) -> String {
    format!("{:x}", Sha256::digest(fs::read(path).unwrap()))
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Every blob has its digest as name, and each reference leads to one of the stated size.
fn check_layout(layout: &Path, digests: &Value) -> PathBuf {
    for entry in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.file_name().unwrap().to_str(), Some(&*sum(&path)));
    }
    let index = parsed(&layout.join("index.json"));
    let described = |object: &Value| {
        let path = blob(layout, &object["digest"]);
        assert_eq!(object["size"], fs::metadata(&path).unwrap().len(), "{object}");
        path
    };
    assert_eq!(index["manifests"][0]["digest"], digests["manifest"]);
    let manifest = parsed(&described(&index["manifests"][0]));
    let config = parsed(&described(&manifest["config"]));
    assert_eq!(config["rootfs"]["diff_ids"][0], digests["diff_id"]);
    assert_eq!(manifest["layers"][0]["digest"], digests["layer"]);
    described(&manifest["layers"][0])
}

#[test]
fn oci_images_are_unpacked_by_umoci_and_read_by_skopeo() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 33);
    let image = image_of(&top);
    for how in ["gzip", "zstd", "none"] {
        let layout = scratch.join(how);
        let digests = json(&args!["export", image.path(), "--compress", how, "--oci", &layout]);
        let layer = check_layout(&layout, &digests);
        let raw = scratch.join("layer.tar");
        let unpack = match how {
            "gzip" => format!("gzip -dc {} >{}", layer.display(), raw.display()),
            "zstd" => format!("zstd -dcf {} >{}", layer.display(), raw.display()),
            _ => format!("cp {} {}", layer.display(), raw.display()),
        };
        run("sh", &["-c", &unpack]).must_succeed();
        assert_eq!(digests["diff_id"], format!("sha256:{}", sum(&raw)), "{how}");
        manifest(&top).assert_same(&restore("tar", &raw, &scratch.dir(&format!("tar.{how}"))));
    }
    let bundle = scratch.join("bundle");
    let named = format!("{}:latest", scratch.join("gzip").display());
    run("umoci", &args!["unpack", "--image", &named, &bundle]).must_succeed();
    manifest(&top).assert_same(&manifest(&bundle.join("rootfs")));
    let archive = scratch.join("image.tar");
    let call = args!["export", image.path(), "--tag", "v1", "--platform", "linux/arm64/v8"];
    let digests = json(&[&call[..], &args!["--oci", &archive]].concat());
    let source = format!("oci-archive:{}:v1", archive.display());
    let inspected = run("skopeo", &["inspect", "--raw", &source]).must_succeed();
    let found: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!(found["layers"][0]["digest"], digests["layer"], "{found}");
    let copy = format!("dir:{}", scratch.join("copy").display());
    let copied = ["copy", "--insecure-policy", "--override-arch", "arm64", &source, &copy];
    run("skopeo", &copied).must_succeed();
}

#[test]
fn times_end_with_the_epoch_of_the_source() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("new"), "x").unwrap();
    fs::write(top.join("old"), "x").unwrap();
    run("touch", &args!["-d", "@1000000000.5", top.join("old")]).must_succeed();
    let image = image_of(&top);
    let export = |name: &str, epoch: &str| {
        let to = scratch.join(name);
        let call = args!["export", image.path(), "--compress", "none", "--oci", &to];
        (run_with_env(EXTANT, &call, &[("SOURCE_DATE_EPOCH", epoch)]), to)
    };
    let (printed, layout) = export("layout", "1600000000");
    let printed = printed.must_succeed().text();
    let line = |name: &str| {
        let found = printed.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        Value::from(found.trim())
    };
    let config = parsed(&blob(&layout, &line("config ")));
    assert_eq!(config["created"], "2020-09-13T12:26:40Z");
    let listed = run_with_env(
        "tar",
        &args!["--full-time", "-tvf", blob(&layout, &line("layer "))],
        &[("TZ", "UTC")],
    );
    let listed = listed.must_succeed().text();
    assert!(listed.contains("2020-09-13 12:26:40 ./new"), "{listed}");
    assert!(listed.contains("2001-09-09 01:46:40.5 ./old"), "{listed}");
    let (printed, _) = export("other", "yesterday");
    assert_eq!(printed.code, 2, "{printed}");
}

#[test]
fn a_layer_has_no_names_of_whiteouts_and_no_endless_zeroes() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir(top.join(".wh.d")).unwrap();
    fs::write(top.join(".wh.d/f"), "x").unwrap();
    fs::write(top.join("good"), "x").unwrap();
    let image = image_of(&top);
    let (archive, layout) = (scratch.join("a.tar"), scratch.join("layout"));
    done(&args!["export", image.path(), "--tar", &archive]);
    let oci = args!["export", image.path(), "--compress", "none", "--oci", &layout];
    let printed = extant(&oci);
    assert!(printed.code == 1 && printed.errors().contains("begin with .wh."), "{printed}");
    let text = printed.text();
    let layer = text.lines().find_map(|line| line.strip_prefix("layer ")).unwrap();
    let members = run("tar", &args!["-tf", blob(&layout, &layer.into())]).must_succeed().text();
    assert_eq!(members, "./\n./good\n");
    fs::File::create_new(top.join("hole")).unwrap().set_len(1 << 40).unwrap();
    let image = image_of(&top);
    let oci = args!["export", image.path(), "--oci", scratch.join("other")];
    refused(&oci, 1, "the holes of sparse files");
    done(&args!["export", image.path(), "--tar", &archive]);
    assert!(fs::metadata(&archive).unwrap().len() < 1 << 20);
}

/// Exports an image in all three forms, which must tell that something is wrong. Returns the
/// members of the archive and the directory with the copy, in which `outside` lies two levels up.
fn hostile(image: &Image, scratch: &Scratch) -> (String, PathBuf) {
    let out = scratch.join("below/target");
    fs::create_dir_all(&out).unwrap();
    let archive = scratch.join("below/a.tar");
    for form in [args!["--dir", &out], args!["--tar", &archive], args!["--oci", scratch.join("o")]]
    {
        let printed = extant(&[&args!["export", image.path()][..], &form].concat());
        assert_eq!(printed.code, 1, "{printed}");
        assert!(!printed.errors().contains("panicked"), "{printed}");
    }
    let restored = scratch.dir("below/restored");
    for tool in ["tar", "bsdtar"] {
        run(tool, &args!["-C", &restored, "-xpf", &archive]).must_succeed();
    }
    let mut names: Vec<OsString> =
        fs::read_dir(scratch.join("below")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.tar", "restored", "target"]);
    (run("tar", &args!["-tf", &archive]).must_succeed().text(), out)
}

/// e2fsprogs#272: `debugfs rdump` of an image with an entry named `../pwn` wrote beside the target.
#[test]
fn e2fsprogs_272_an_entry_named_up_and_over_stays_inside() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    for dir in ["", "sub"] {
        fs::create_dir_all(top.join(dir)).unwrap();
        fs::write(top.join(dir).join("up_pwn"), "pwned").unwrap();
    }
    fs::write(top.join("good"), "good").unwrap();
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", image.path(), &top, "/"]);
    image.replace(b"up_pwn", b"../pwn");
    let (members, out) = hostile(&image, &scratch);
    assert_eq!(members, "./\n./good\n./sub/\n");
    assert_eq!(fs::read(out.join("good")).unwrap(), b"good");
    assert!(!out.join("pwn").exists() && !scratch.join("pwn").exists());
}

/// Names of an image and its exports.
const FORMS: [&str; 4] = ["image", "dir", "a.tar", "oci"];

/// Names in a directory but for the known ones.
fn others(dir: &Path, known: &[&str]) -> Vec<OsString> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| !known.iter().any(|known| name == known)).collect()
}

/// The damaged images of e2fsprogs' own tests: each is exported, or refused, and makes nothing
/// beside the target.
#[test]
#[ignore = "takes images that are not here: `make images` brings them"]
fn exports_of_images_of_others_stay_inside() {
    let folder = std::env::var_os("EXTANT_IMAGES").expect("EXTANT_IMAGES names a folder");
    let found = run("find", &args![folder, "-name", "image*.gz"]).must_succeed().text();
    let (mut exported, mut refused) = (0, 0);
    for path in found.lines() {
        let scratch = Scratch::new();
        let below = scratch.dir("below");
        fs::write(below.join("image"), run("gzip", &["-dc", path]).must_succeed().stdout).unwrap();
        scratch.leave_unjudged("below/image", "it is damaged");
        for (form, name) in [("--dir", "dir"), ("--tar", "a.tar"), ("--oci", "oci")] {
            let printed = extant(&args!["export", below.join("image"), form, below.join(name)]);
            assert!(matches!(printed.code, 0 | 1), "{path}: {printed}");
            assert!(!printed.errors().contains("panicked"), "{path}: {printed}");
            *(if printed.code == 0 { &mut exported } else { &mut refused }) += 1;
        }
        assert_eq!(others(scratch.path(), &["below"]), [""; 0], "{path}");
        assert_eq!(others(&below, &FORMS), [""; 0], "{path}");
    }
    println!("{exported} exports, {refused} refused or in part");
    assert!(exported > 0, "EXTANT_IMAGES names no folder with images");
}

/// e2fsprogs#152: `debugfs rdump` crashed on symlinks with a bad length. Here further symlinks lead
/// out of the target, and names below them, made by a second entry of the name, would be written
/// there.
#[test]
fn e2fsprogs_152_bad_symlinks_stay_inside() {
    let scratch = Scratch::new();
    let outside = scratch.dir("outside");
    let top = scratch.dir("top");
    for name in ["length", "zero", "huge"] {
        symlink("target", top.join(name)).unwrap();
    }
    symlink(&outside, top.join("aaa-out")).unwrap();
    fs::create_dir(top.join("bbb-out")).unwrap();
    fs::write(top.join("bbb-out/pwn"), "pwned").unwrap();
    symlink("x".repeat(200), top.join("slow")).unwrap();
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", image.path(), &top, "/"]);
    image.leave_unjudged("symlinks are damaged");
    for (name, size) in [("length", 59u64), ("zero", 0), ("huge", 1 << 40), ("slow", 1 << 20)] {
        debugfs::write(image.path(), &format!("set_inode_field /{name} size {size}"));
    }
    image.replace(b"bbb-out", b"aaa-out");
    let (members, out) = hostile(&image, &scratch);
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    assert!(members.contains("./aaa-out"), "{members}");
    assert!(fs::symlink_metadata(out.join("aaa-out")).is_ok());
}

#[test]
fn an_export_that_fails_leaves_nothing() {
    let scratch = Scratch::new();
    let image = FeatureSet::named("default").make();
    fs::write(scratch.dir("full").join("f"), "kept").unwrap();
    refused(&args!["export", image.path(), "--oci", scratch.join("full")], 1, "holds files");
    refused(&args!["export", image.path(), "--oci", scratch.join("no/dir")], 1, "no/dir");
    refused(&args!["export", image.path(), "--tar", scratch.join("no/a.tar")], 1, "no/a.tar");
    refused(&args!["export", image.path()], 2, "--tar");
    refused(&args!["export", image.path(), "--tar", "a", "--oci", "b"], 2, "--oci");
    let names = fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["full"]);
    assert_eq!(fs::read_dir(scratch.join("full")).unwrap().count(), 1);
    // A file system that is full while the archive is written.
    let mut all = args!["-c", "ulimit -f 1; exec \"$@\"", "sh", EXTANT].to_vec();
    fs::write(scratch.join("f"), vec![1; 2 << 20]).unwrap();
    done(&args!["put", image.path(), scratch.join("f"), "/f"]);
    let archive = scratch.join("a.tar");
    fs::write(&archive, "old").unwrap();
    all.extend(args!["export", image.path(), "--tar", &archive]);
    assert_ne!(run("sh", &all).code, 0);
    assert_eq!(fs::read(&archive).unwrap(), b"old");
}

#[test]
fn a_user_exports_all_attributes() {
    let home = home();
    let scratch = Scratch::new();
    let top = tree(&scratch, 34);
    let image = image_of(&top);
    fs::copy(image.path(), home.join("disk.img")).unwrap();
    let all = format!("chown -R 65534:65534 {}", home.path().display());
    run("sh", &["-c", &all]).must_succeed();
    let script = "umask 077; ./extant export disk.img --tar a.tar; stat -c %a a.tar";
    let printed = as_user(&home, Fuse::Everybody, script).must_succeed();
    assert!(printed.text().contains("600"), "{printed}");
    manifest(&top).assert_same(&restore("tar", &home.join("a.tar"), &scratch.dir("out")));
}
