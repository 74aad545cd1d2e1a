//! `extant build`: images of directories, archives and container images, judged by e2fsck and the
//! kernel.

use crate::args;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::recovery::crashed;
use crate::unprivileged::{Fuse, as_user, belongs_to_user, home};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{run, run_with_env};
use extant_testkit::tree::{Manifest, Plan, Shape};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs, e2fsck};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The value of `security.capability` that setcap(8) stores for `cap_net_raw=ep`.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes a tree with entries of each kind.
pub fn tree(scratch: &Scratch, seed: u64) -> PathBuf {
    let top = scratch.dir("top");
    Plan::random(seed, &Shape { wide: 500, ..Shape::small() }).apply(&top);
    fs::create_dir(top.join("more")).unwrap();
    fs::write(top.join("more/capable"), "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(top.join("more/capable"), "security.capability", &CAPABILITY, flags)
        .unwrap();
    let sparse = fs::File::create_new(top.join("more/sparse")).unwrap();
    sparse.set_len(9 << 20).unwrap();
    sparse.write_all_at(&[7; 3 << 20], 4 << 20).unwrap();
    fs::hard_link(top.join("more/sparse"), top.join("more/sparse.again")).unwrap();
    top
}

/// Returns the tree of an image as the kernel shows it; e2fsck must find no fault.
#[track_caller]
pub fn kernel_tree(image: &Path) -> Manifest {
    e2fsck::check(image).assert_clean();
    let mount = Mount::new(image, "ro");
    let tree = Manifest::walk(mount.path()).without("lost+found");
    mount.unmount();
    tree
}

pub fn number(document: &Value, key: &str) -> u64 {
    document[key].as_u64().unwrap_or_else(|| panic!("{key}: {document}"))
}

#[test]
fn directories_become_equal_images() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 41);
    let expected = Manifest::walk(&top);
    for (n, options) in [
        args![].to_vec(),
        args!["-b", "1024", "-O", "inline_data"].to_vec(),
        args!["-t", "ext3", "-O", "^has_journal"].to_vec(),
        args!["--size", "64M", "-L", "root", "-O", "quota"].to_vec(),
    ]
    .into_iter()
    .enumerate()
    {
        let image = scratch.join(format!("{n}.img"));
        done(&[&args!["build", &image, &top][..], &options].concat());
        expected.assert_same(&kernel_tree(&image));
        let stored = fs::metadata(&image).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&stored) * 512;
        assert!(blocks <= stored.len() && blocks < 24 << 20, "sparse: {blocks}");
    }
}

#[test]
fn zeroes_become_holes_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 42);
    let zeroes = [vec![0; 5 << 20], vec![1; 100], vec![0; (3 << 20) + 77]].concat();
    fs::write(top.join("zeroes"), &zeroes).unwrap();
    let tar = scratch.join("top.tar.gz");
    run("tar", &args!["-czf", &tar, "-C", &top, "."]).must_succeed();
    let hash = |image: &PathBuf| done(&args!["hash", image]).text();
    for (name, source) in [("directory", &top), ("archive", &tar)] {
        let [plain, sparse, again] =
            ["plain", "sparse", "again"].map(|kind| scratch.join(format!("{name}.{kind}")));
        done(&args!["build", &plain, source]);
        done(&args!["build", "--sparse", &sparse, source]);
        done(&args!["--threads", "1", "build", "--sparse", &again, source]);
        assert!(fs::read(&sparse).unwrap() == fs::read(&again).unwrap(), "threads change bytes");
        kernel_tree(&plain).assert_same(&kernel_tree(&sparse));
        assert_eq!(hash(&plain), hash(&sparse));
        let [plain, sparse] = [plain, sparse].map(|image| fs::metadata(image).unwrap().len());
        assert!(plain - sparse >= 8 << 20, "{name}: {plain} and {sparse} bytes");
    }
}

#[test]
fn a_user_builds_and_unreadable_files_are_named() {
    let home = home();
    let script = "mkdir -p source/d; echo text > source/text; ln source/text source/d/text
        chmod 6751 source/text; setfattr -n user.a -v b source/d; mkfifo source/fifo
        setfacl -m u:7:rx source/d; touch -d 1969-12-31T23:59:58.5Z source/text
        extant build disk.img source; extant build --owner 0:5 owned.img source
        echo x > source/d/secret; mkdir source/closed; chmod 0 source/d/secret source/closed
        if extant build refused.img source; then exit 1; fi
        extant build --exclude secret --exclude closed without.img source
        rm -f source/d/secret; rmdir source/closed";
    let printed = as_user(&home, Fuse::Root, script).must_succeed();
    let errors = printed.errors();
    for name in ["source/d/secret", "source/closed", "permission denied", "as root"] {
        assert!(errors.contains(name), "{name}: {errors}");
    }
    assert!(!home.join("refused.img").exists());
    let expected = Manifest::walk(&home.join("source"));
    let times = |tree: Manifest| tree.without_directory_times();
    times(expected.clone()).assert_same(&times(kernel_tree(&home.join("disk.img"))));
    times(expected.clone()).assert_same(&times(kernel_tree(&home.join("without.img"))));
    let mut owned = expected;
    owned.nodes.values_mut().for_each(|node| (node.uid, node.gid) = (0, 5));
    times(owned).assert_same(&times(kernel_tree(&home.join("owned.img"))));
}

#[test]
fn every_kind_of_source_gives_the_same_tree() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    let script = "mkdir -p a/b; echo 1 > a/one; ln a/one a/b/two; ln -s one a/link; mkfifo a/fifo
        mknod a/null c 1 3; chown 7:8 a/one; chmod 4711 a/one; setfattr -n user.x -v y a/b
        setfacl -m u:7:rx a/b; truncate -s 90K a/hole; printf x >> a/hole";
    let call = format!("cd {}; {script}", top.display());
    run("sh", &["-euc", &call]).must_succeed();
    let first = scratch.join("first.img");
    done(&args!["build", "--free", "2M", &first, &top]);
    let (tar, oci, archive) = (scratch.join("a.tar"), scratch.join("oci"), scratch.join("oci.tar"));
    done(&args!["export", &first, "--tar", &tar]);
    done(&args!["export", &first, "--oci", &oci, "--compress", "zstd"]);
    done(&args!["export", &first, "--oci", &archive]);
    let docker = scratch.join("docker.tar");
    run(
        "skopeo",
        &[
            "copy".into(),
            format!("oci-archive:{}:latest", archive.display()),
            format!("docker-archive:{}:name:tag", docker.display()),
        ],
    )
    .must_succeed();
    run("gzip", &["-k", tar.to_str().unwrap()]).must_succeed();
    let expected = Manifest::walk(&top);
    let prefixed =
        |prefix: &str, path: &Path| OsString::from(format!("{prefix}{}", path.display()));
    for (n, source) in [
        prefixed("", &tar),
        prefixed("tar:", &scratch.join("a.tar.gz")),
        prefixed("", &oci),
        prefixed("oci:", &archive),
        prefixed("docker:", &docker),
    ]
    .into_iter()
    .enumerate()
    {
        let image = scratch.join(format!("{n}.img"));
        done(&args!["build", &image, &source]);
        expected.assert_same(&kernel_tree(&image));
    }
    let piped = scratch.join("piped.img");
    let call = format!("cat {} | {EXTANT} build {} -", tar.display(), piped.display());
    run("sh", &["-euc", &call]).must_succeed();
    expected.assert_same(&kernel_tree(&piped));
    refused(&args!["build", scratch.join("x.img"), &archive], 1, "write `oci:");
}

#[test]
fn later_sources_lie_over_earlier_ones() {
    let scratch = Scratch::new();
    let script = "mkdir -p one/d one/both two/d; echo 1 > one/d/f; echo 1 > one/d/kept
        echo 2 > two/d/f; echo 2 > two/both; echo 2 > two/skip.o; mkdir one/skip.o";
    let call = format!("cd {}; {script}", scratch.path().display());
    run("sh", &["-euc", &call]).must_succeed();
    let (image, one, two) = (scratch.join("i.img"), scratch.join("one"), scratch.join("two"));
    done(&args!["build", "--exclude", "*.o", &image, one, two]);
    let paths = ["", "both", "d", "d/f", "d/kept"];
    let found = kernel_tree(&image);
    assert!(found.nodes.keys().map(|path| &path[..]).eq(paths.map(str::as_bytes)), "{found:?}");
    assert_eq!(done(&args!["cat", &image, "/d/f", "/both"]).text(), "2\n2\n");
}

#[test]
fn equal_sources_give_equal_bytes_everywhere() {
    let scratch = Scratch::new();
    let (top, copy) = (tree(&scratch, 42), scratch.join("copy"));
    run("cp", &["-aT".as_ref(), top.as_os_str(), copy.as_os_str()]).must_succeed();
    // A name that is made again changes its place in a directory of tmpfs.
    let last = names(&copy).pop().unwrap();
    fs::rename(copy.join(&last), copy.join("aside")).unwrap();
    fs::rename(copy.join("aside"), copy.join(&last)).unwrap();
    run("touch", &["-r".as_ref(), top.as_os_str(), copy.as_os_str()]).must_succeed();
    assert_ne!(names(&top), names(&copy));
    Manifest::walk(&top).assert_same(&Manifest::walk(&copy));
    let build = |name: &str, source: &Path, umask: &str, env: &[(&str, &str)]| {
        let (image, source) = (scratch.join(name), source.display());
        let build = format!("umask {umask}; {EXTANT} build {}", image.display());
        for threads in [1, 2, 4] {
            let call = format!("{build} --threads {threads} --free 1M {source}");
            run_with_env("sh", &["-euc", &call], env).must_succeed();
        }
        fs::read(&image).unwrap()
    };
    let first = build("first.img", &top, "022", &[]);
    let away = [("TZ", "Asia/Tokyo"), ("LC_ALL", "C"), ("TMPDIR", "/dev/shm"), ("HOME", "/")];
    assert!(first == build("away.img", &top, "077", &away));
    assert!(first == build("copy.img", &copy, "000", &[]));
    fs::rename(top.join("more/capable"), top.join("more/renamed")).unwrap();
    assert!(first != build("other.img", &top, "022", &[]));
}

#[test]
fn the_time_and_the_seed_are_those_asked_for() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("new"), "").unwrap();
    let image = scratch.join("i.img");
    let call = args!["build", "--seed", "7", &image, &top];
    run_with_env(EXTANT, &call, &[("SOURCE_DATE_EPOCH", "1000000000")]).must_succeed();
    let found = kernel_tree(&image);
    assert!(found.nodes.values().all(|node| node.mtime == (1_000_000_000, 0)), "{found:?}");
    let uuid = |seed: &str| {
        json(&args!["build", "--seed", seed, &image, &top])["uuid"].as_str().unwrap().to_owned()
    };
    assert_eq!(uuid("7"), uuid("7"));
    assert_ne!(uuid("7"), uuid("8"));
}

#[test]
fn promised_space_is_there_and_a_block_less_is_refused() {
    let scratch = Scratch::new();
    let (top, image) = (tree(&scratch, 43), scratch.join("i.img"));
    let call = args!["build", "--free", "10M", "--inodes-free", "300", &image, &top];
    let estimate = json(&[&call[..], &args!["--estimate"]].concat());
    assert!(!image.exists());
    let printed = done(&[&call[..], &args!["--estimate"]].concat()).text();
    assert_eq!(printed.trim(), number(&estimate, "bytes").to_string());
    let made = json(&call);
    assert_eq!(number(&made, "bytes"), number(&estimate, "bytes"));
    assert_eq!(number(&made, "bytes"), fs::metadata(&image).unwrap().len());
    let mount = Mount::new(&image, "");
    fs::write(mount.join("large"), vec![1; 10 << 20]).unwrap();
    (0..299).for_each(|n| drop(fs::File::create_new(mount.join(format!("{n}"))).unwrap()));
    mount.unmount();
    let least = json(&args!["build", &image, &top]);
    let sized = |bytes: u64| args!["build", &image, &top, "--size", bytes.to_string()];
    done(&sized(number(&least, "bytes")));
    let before = fs::read(&image).unwrap();
    let enough = format!("{} are enough", number(&least, "bytes"));
    refused(&sized(number(&least, "bytes") - 4096), 1, &enough);
    assert!(before == fs::read(&image).unwrap(), "an older image stays");
    refused(&args!["build", "--size", "1G", "--free", "1M", &image, &top], 2, "--size exact");
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<OsString> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn failures_leave_nothing() {
    let scratch = Scratch::new();
    let out = scratch.dir("out");
    let script = "mkdir d; head -c 3000000 /dev/urandom > d/f; echo x > up; mkdir sub
        tar cf whole.tar d; head -c 1000000 whole.tar > cut.tar; gzip -k whole.tar
        head -c 1000000 whole.tar.gz > cut.tar.gz; cd sub; tar cPf ../dots.tar ../up; cd ..
        mkdir loop; ln d/f loop/f; tar cf links.tar d/f loop/f; tar --delete -f links.tar d/f
        head -c 5000 /dev/urandom > noise";
    let call = format!("cd {}; {script}", scratch.path().display());
    run("sh", &["-euc", &call]).must_succeed();
    for (source, words) in [
        ("cut.tar", "cut.tar: d/f: "),
        ("cut.tar.gz", "cut.tar.gz: "),
        ("dots.tar", "`..`"),
        ("links.tar", "links to d/f, which is missing"),
        ("noise", "noise: "),
        ("missing", "missing: No such file"),
        ("oci:d", "oci-layout"),
        ("docker:whole.tar", "manifest.json"),
    ] {
        let (prefix, name) = source.split_once(':').unwrap_or(("", source));
        let colon = if prefix.is_empty() { "" } else { ":" };
        let source = format!("{prefix}{colon}{}", scratch.join(name).display());
        refused(&args!["build", out.join("i.img"), source], 1, words);
        assert_eq!(names(&out), [""; 0], "{words}");
    }
    let top = scratch.join("d");
    refused(&args!["build", scratch.join("none/i.img"), &top], 1, "none/i.img: No such file");
    refused(&args!["build", &out, &top], 1, "a directory");
    refused(&args!["build", "/dev/null", &top], 1, "no disk");
    refused(&args!["build", "-b", "1000", out.join("i.img"), &top], 2, "block size");
    run("mount", &["-t", "tmpfs", "-o", "size=1M", "none", out.to_str().unwrap()]).must_succeed();
    fs::write(out.join("i.img"), "older").unwrap();
    let printed = extant(&args!["build", out.join("i.img"), &top]);
    let (left, older) = (names(&out), fs::read(out.join("i.img")).unwrap());
    run("umount", &[&out]).must_succeed();
    assert!(printed.code == 1 && printed.errors().contains("i.img: No space left"), "{printed}");
    assert_eq!((left, older), (vec!["i.img".into()], b"older".to_vec()));
}

#[test]
fn the_output_is_no_part_of_its_source() {
    let home = home();
    belongs_to_user(&home.path().join("extant"));
    let script = "mkdir s; echo x > s/f; extant build s/i.img s; extant build s/i.img s
        test \"$(extant ls s/i.img / | sort | xargs)\" = \"f lost+found\"";
    as_user(&home, Fuse::Root, script).must_succeed();
}

#[test]
fn owners_are_mapped_in_inodes_and_lists() {
    let scratch = Scratch::new();
    let (top, image) = (scratch.dir("top"), scratch.join("image"));
    let script = "echo x >f; chown 3:4 f; setfacl -m u:5:r,u:70:w,g:6:x f; mkdir d; chown 9:70 d
        setfacl -d -m g:9:rx d; chown 0:0 .";
    run("sh", &["-euc", &format!("cd {}; {script}", top.display())]).must_succeed();
    let maps = args!["--map-uid", "0:100000:10", "--map-gid", "70:7", "--map-gid", "6:60:4"];
    done(&[&args!["build", &image, &top][..], &maps].concat());
    e2fsck::check(&image).assert_clean();
    let mount = Mount::new(&image, "ro");
    let call = format!("cd {}; stat -c %n:%u:%g . f d; getfacl -n f d", mount.path().display());
    let found = run("sh", &["-euc", &call]).must_succeed().text();
    mount.unmount();
    for line in [
        ".:100000:0",
        "f:100003:4",
        "d:100009:7",
        "user:100005:r--",
        "user:70:-w-",
        "group:60:--x",
        "default:group:63:r-x",
    ] {
        assert!(found.lines().any(|found| found.starts_with(line)), "{line}: {found}");
    }
    let both = args!["build", &image, &top, "--map-uid", "5:70"];
    refused(&both, 1, "the same number");
    refused(&args!["build", &image, &top, "--map-uid", "5"], 2, "FROM:TO");
    refused(&args!["build", &image, &top, "--map-gid", "5:6", "--owner", "0:0"], 2, "--owner");
}

#[test]
fn permissions_are_changed_in_inodes_and_lists() {
    let scratch = Scratch::new();
    let (top, image) = (scratch.dir("top"), scratch.join("image"));
    let script = "chmod 2775 .; echo x >f; chmod 4666 f; echo x >run; chmod 711 run; mkdir d
        chmod 700 d; ln -s f link; echo x >listed; chmod 666 listed; setfacl -m u:5:rw listed";
    run("sh", &["-euc", &format!("cd {}; {script}", top.display())]).must_succeed();
    let find = |dir: &Path| {
        let call = format!("cd {}; find . | sort | xargs stat -c %n:%a", dir.display());
        run("sh", &["-euc", &format!("{call}; getfacl -n listed")]).must_succeed().text()
    };
    for changes in ["u=rwX,go=rX", "a-s,go-w", "600"] {
        done(&args!["build", &image, &top, "--mode", changes]);
        e2fsck::check(&image).assert_clean();
        let copy = scratch.join("copy");
        run("cp", &args!["-a", &top, &copy]).must_succeed();
        let words = if changes == "600" { "a=,u=rw,a-s" } else { changes };
        run("chmod", &args!["-R", words, &copy]).must_succeed();
        let mount = Mount::new(&image, "ro");
        let found = find(mount.path());
        mount.unmount();
        let found = found.replace("./lost+found:700\n", "");
        assert_eq!(found, find(&copy), "{changes}");
        fs::remove_dir_all(&copy).unwrap();
    }
    refused(&args!["build", &image, &top, "--mode", "u=z"], 2, "u=rwX");
}

/// Attributes of directories and of archives are kept by the patterns of their names.
#[test]
fn extended_attributes_are_kept_by_patterns_of_their_names() {
    let scratch = Scratch::new();
    let (top, image) = (scratch.dir("top"), scratch.join("image"));
    let script = "echo x >f; setfattr -n user.a -v 1 f; setfattr -n user.b -v 2 f
        setfattr -n trusted.c -v 3 f; setfacl -m u:54321:r f; setcap cap_net_raw=ep f
        mkdir d; setfattr -n user.b -v 4 d";
    run("sh", &["-euc", &format!("cd {}; {script}", top.display())]).must_succeed();
    let archive = scratch.join("top.tar");
    let kinds = args!["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"];
    let call = [&kinds[..], &args!["-cf", &archive, "-C", &top, "."]].concat();
    run("tar", &call).must_succeed();
    let names = |options: &[&str], source: &Path| {
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        done(&[&args!["build", &image, source][..], &options].concat());
        e2fsck::check(&image).assert_clean();
        let mount = Mount::new(&image, "ro");
        let call = format!("cd {}; getfattr -hm- f d", mount.path().display());
        let found = run("sh", &["-euc", &call]).must_succeed().text();
        mount.unmount();
        found.lines().filter(|line| line.contains('.')).map(str::to_owned).collect::<Vec<_>>()
    };
    let acl = "system.posix_acl_access";
    let all = ["security.capability", acl, "trusted.c", "user.a", "user.b", "user.b"];
    for source in [&top, &archive] {
        assert_eq!(names(&[], source), all);
        assert_eq!(names(&["--xattrs", "*"], source), all);
        assert_eq!(names(&["--xattrs", "user.*,^user.b"], source), ["user.a"]);
        let by_two = ["--xattrs", "^trusted.*", "--xattrs", "^user.?"];
        assert_eq!(names(&by_two, source), ["security.capability", acl]);
        assert_eq!(names(&["--xattrs", "^*"], source), [""; 0]);
        let none = ["-E", "no_copy_xattrs", "--xattrs", "user.*"];
        assert_eq!(names(&none, source), [""; 0]);
    }
    // As if the sources had no others.
    let made = |options: &[&str]| {
        names(options, &top);
        fs::read(&image).unwrap()
    };
    let kept = made(&["--xattrs", "user.*"]);
    let script =
        "setcap -r f; setfattr -x trusted.c f; m=$(stat -c %a f); setfacl -b f; chmod $m f";
    run("sh", &["-euc", &format!("cd {}; {script}", top.display())]).must_succeed();
    assert!(made(&[]) == kept, "other bytes than without the attributes");
}

/// An image made of another one has its tree, also with other blocks, and in its own place.
#[test]
fn an_image_is_a_source() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 43);
    let (first, second) = (scratch.join("first.img"), scratch.join("second.img"));
    done(&args!["build", "--free", "8M", &first, &top]);
    let hash = |image: &Path| done(&args!["hash", image]).text();
    let of = |image: &Path| format!("ext4:{}", image.display());
    for options in [&args!["-b", "1024", "--threads", "1"][..], &args!["-O", "inline_data"]] {
        done(&[&args!["build", &second, of(&first)][..], options].concat());
        Manifest::walk(&top).assert_same(&kernel_tree(&second));
        assert_eq!(hash(&first), hash(&second));
    }
    let copies = ["1", "4"].map(|threads| {
        let copy = scratch.join(format!("copy{threads}.img"));
        done(&args!["build", "--threads", threads, &copy, of(&first)]);
        fs::read(copy).unwrap()
    });
    assert!(copies[0] == copies[1]);
    let (before, digest) = (fs::metadata(&first).unwrap().len(), hash(&first));
    done(&args!["build", &first, of(&first)]);
    assert!(fs::metadata(&first).unwrap().len() < before, "free space is gone");
    assert_eq!(hash(&first), digest);
    kernel_tree(&first);
    // A part of a disk, with a directory laid over it.
    let disk = scratch.join("disk");
    fs::write(&disk, [vec![0; 1 << 20], fs::read(&first).unwrap()].concat()).unwrap();
    scratch.leave_unjudged("disk", "the file system begins later");
    let over = scratch.dir("over");
    fs::write(over.join("new"), "x").unwrap();
    done(&args!["build", &second, of(&scratch.join("disk@1M")), over]);
    let both = kernel_tree(&second);
    assert!(both.nodes.contains_key(&b"new"[..]) && both.nodes.contains_key(&b"more/sparse"[..]));
}

#[test]
fn a_source_image_is_recovered_in_memory_and_read_wholly_or_not_at_all() {
    let scratch = Scratch::new();
    let out = scratch.join("out.img");
    let of = |image: &Path| format!("ext4:{}", image.display());
    let torn = crashed(FeatureSet::named("default"));
    let before = torn.bytes();
    done(&args!["build", &out, of(torn.path())]);
    assert!(before == torn.bytes(), "reading wrote");
    done(&args!["recover", torn.path()]);
    assert_eq!(done(&args!["diff", torn.path(), &out]).text(), "");
    fs::remove_file(&out).unwrap();
    let top = scratch.dir("top");
    for name in ["up-up-name", "gone"] {
        fs::write(top.join(name), "x").unwrap();
    }
    let damaged = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", damaged.path(), &top, "/"]);
    damaged.replace(b"up-up-name", b"../../name");
    refused(&args!["build", &out, of(damaged.path())], 1, "corrupt directory entry");
    debugfs::write(damaged.path(), "clri /gone");
    damaged.leave_unjudged("an inode is cleared");
    refused(&args!["build", &out, of(damaged.path())], 1, "/gone: ");
    refused(&args!["build", &out, of(&scratch.join("none"))], 1, "none");
    refused(&args!["build", &out, of(&top)], 1, "top");
    assert!(!out.exists());
}
