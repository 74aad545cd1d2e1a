//! Sources at the limits of the format, and real ones, as `extant build` reads them.

use crate::args;
use crate::building::kernel_tree;
use crate::program::{EXTANT, done, json, refused};
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::{run, run_with_env};
use extant_testkit::tree::Manifest;
use extant_testkit::{Scratch, e2fsck};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

#[test]
fn a_file_has_65000_names_and_no_more() {
    let scratch = Scratch::new();
    let (top, image) = (scratch.dir("top"), scratch.join("i.img"));
    fs::write(top.join("f"), "content").unwrap();
    (1..65_000).for_each(|n| fs::hard_link(top.join("f"), top.join(format!("{n}"))).unwrap());
    done(&args!["build", &image, &top]);
    e2fsck::check(&image).assert_clean();
    let mount = Mount::new(&image, "ro");
    assert_eq!(fs::metadata(mount.join("f")).unwrap().nlink(), 65_000);
    assert_eq!(fs::read(mount.join("64999")).unwrap(), b"content");
    mount.unmount();
    fs::hard_link(top.join("f"), top.join("more")).unwrap();
    refused(&args!["build", &image, &top], 1, "has 65000 names already");
}

#[test]
fn tebibytes_of_holes_pieces_and_odd_names_are_kept() {
    let scratch = Scratch::new();
    let (top, image) = (scratch.dir("top"), scratch.join("i.img"));
    let large = File::create_new(top.join("tebibyte")).unwrap();
    large.set_len(1 << 40).unwrap();
    large.write_all_at(b"end", (1 << 40) - 3).unwrap();
    let pieces = File::create_new(top.join("pieces")).unwrap();
    for n in 0..10_000_u64 {
        pieces.write_all_at(&[n as u8 | 1; 4096], n * 12_288).unwrap();
    }
    let odd = OsStr::from_bytes(b"no \xff\xfe text\n\x01");
    fs::write(top.join(odd), "odd").unwrap();
    let tar = scratch.join("a.tar");
    let words = args!["--format=posix", "-S", "-C", &top, "-cf", &tar, "."];
    run("tar", &words).must_succeed();
    for source in [&top, &tar] {
        done(&args!["build", "--free", "1M", &image, source]);
        e2fsck::check(&image).assert_clean();
        let mount = Mount::new(&image, "ro");
        let found = File::open(mount.join("tebibyte")).unwrap();
        assert_eq!(found.metadata().unwrap().len(), 1 << 40);
        let mut bytes = [7; 5];
        found.read_exact_at(&mut bytes, (1 << 40) - 5).unwrap();
        assert_eq!(&bytes, b"\0\0end");
        assert!(fs::read(mount.join("pieces")).unwrap() == fs::read(top.join("pieces")).unwrap());
        assert_eq!(fs::read(mount.join(odd)).unwrap(), b"odd");
        let shown = run("filefrag", &args!["-v", mount.join("pieces")]).must_succeed().text();
        assert_eq!(shown.lines().filter(|line| line.contains("..")).count(), 10_000);
        drop(found);
        mount.unmount();
    }
}

/// Writes an archive of empty files by a program that is fed its members.
fn archive_of(tar: &Path, names: impl Iterator<Item = String>) {
    let mut archive = tar::Builder::new(BufWriter::new(File::create(tar).unwrap()));
    for name in names {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_mtime(1_600_000_000);
        header.set_cksum();
        archive.append(&header, std::io::empty()).unwrap();
    }
    archive.into_inner().unwrap().flush().unwrap();
}

#[test]
fn attributes_of_64_kib_come_from_archives() {
    let scratch = Scratch::new();
    let (tar, image) = (scratch.join("a.tar"), scratch.join("i.img"));
    let value = vec![b'v'; 65_536];
    let mut archive = tar::Builder::new(File::create(&tar).unwrap());
    archive.append_pax_extensions([("SCHILY.xattr.user.large", &value[..])]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("f").unwrap();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append(&header, std::io::empty()).unwrap();
    archive.into_inner().unwrap();
    done(&args!["build", "-O", "ea_inode", &image, &tar]);
    e2fsck::check(&image).assert_clean();
    let mount = Mount::new(&image, "ro");
    let mut found = vec![0; 70_000];
    let len = rustix::fs::getxattr(mount.join("f"), "user.large", &mut found).unwrap();
    assert!(found[..len] == value);
    mount.unmount();
    refused(&args!["build", &image, &tar], 1, "ea_inode");
}

/// The image would be read while it is written.
#[test]
fn an_archive_that_is_the_output_is_refused() {
    let scratch = Scratch::new();
    let (tar, top) = (scratch.join("a.tar"), scratch.dir("top"));
    fs::write(top.join("f"), "content").unwrap();
    run("tar", &args!["-C", &top, "-cf", &tar, "."]).must_succeed();
    let before = fs::read(&tar).unwrap();
    let link = scratch.join("link");
    std::os::unix::fs::symlink(&tar, &link).unwrap();
    for out in [&tar, &link] {
        refused(&args!["build", out, &tar], 2, "is a source, too");
    }
    let call = format!("{EXTANT} build {0} - < {0}", tar.display());
    let printed = run("sh", &["-c", &call]);
    assert!(printed.code == 2 && printed.errors().contains("is a source, too"), "{printed}");
    assert!(fs::read(&tar).unwrap() == before);
}

#[test]
fn a_disk_that_has_the_archive_is_no_place_for_the_image() {
    let scratch = Scratch::new();
    let (tar, top) = (scratch.join("a.tar"), scratch.dir("top"));
    fs::write(top.join("f"), "content").unwrap();
    run("tar", &args!["-C", &top, "-cf", &tar, "."]).must_succeed();
    File::options().write(true).open(&tar).unwrap().set_len(8 << 20).unwrap();
    let before = fs::read(&tar).unwrap();
    let disk = Loop::attach(&tar, false);
    for source in [disk.device(), &tar] {
        for prefix in ["tar:", "layer:", "ext4:", ""] {
            let source = format!("{prefix}{}", source.display());
            refused(&args!["build", "-F", disk.device(), source], 2, "shares bytes with one");
        }
    }
    let call = format!("{EXTANT} build -F {0} - < {0}", disk.device().display());
    let printed = run("sh", &["-c", &call]);
    assert!(printed.code == 2 && printed.errors().contains("is a source, too"), "{printed}");
    assert!(fs::read(&tar).unwrap() == before);
}

/// Runs the program; returns the most memory that it had, in KiB.
fn memory_of(call: &[std::ffi::OsString]) -> u64 {
    let mut process =
        Command::new(EXTANT).args(call).stdout(Stdio::null()).spawn().expect("the program");
    let mut most = 0;
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", process.id()));
        let peak = status.unwrap_or_default().lines().find_map(|line| {
            line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse().ok()
        });
        most = most.max(peak.unwrap_or(0));
        if let Some(status) = process.try_wait().unwrap() {
            assert!(status.success());
            return most;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
#[ignore = "a minute: `make inputs`"]
fn a_million_files_and_one_large_directory_take_bounded_memory() {
    const MAX_KIB: u64 = 256_000_000 >> 10;
    let scratch = Scratch::new();
    let (tar, image) = (scratch.join("a.tar"), scratch.join("i.img"));
    let million = (0..1_000_000).map(|n| format!("dir{:04}/file{n:07}", n / 100));
    archive_of(&tar, million);
    let most = memory_of(&args!["build", &image, &tar]);
    assert!(most < MAX_KIB, "{most} KiB");
    e2fsck::check(&image).assert_clean();
    let mount = Mount::new(&image, "ro");
    let call = format!("find {} -type f | wc -l", mount.path().display());
    assert_eq!(run("sh", &["-c", &call]).must_succeed().text().trim(), "1000000");
    mount.unmount();
    archive_of(&tar, (0..500_000).map(|n| format!("d/an entry of a large directory {n}")));
    done(&args!["build", "--free", "8M", "--inodes-free", "1000", &image, &tar]);
    e2fsck::check(&image).assert_clean();
    let mount = Mount::new(&image, "");
    assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 500_000);
    for n in (0..500_000).step_by(997) {
        fs::remove_file(mount.join(format!("d/an entry of a large directory {n}"))).unwrap();
        fs::write(mount.join(format!("d/new {n}")), "x").unwrap();
    }
    mount.unmount();
    e2fsck::check(&image).assert_clean();
}

/// A system as debootstrap(8) installs it, from its directory and as an archive, and the archives
/// of its packages.
#[test]
#[ignore = "needs the network: `make inputs`"]
fn a_new_debian_system_and_its_packages_become_images() {
    let scratch = Scratch::on_disk();
    let (system, tar, image) =
        (scratch.join("system"), scratch.join("system.tar"), scratch.join("i.img"));
    let release = ". /etc/os-release && echo $VERSION_CODENAME";
    let release = run("sh", &["-c", release]).must_succeed().text();
    run("debootstrap", &args!["--variant=minbase", release.trim(), &system]).must_succeed();
    let expected = Manifest::walk(&system);
    let call = format!(
        "tar --format=posix --xattrs --xattrs-include=* --acls -C {} -cf {} .",
        system.display(),
        tar.display()
    );
    run("sh", &["-c", &call]).must_succeed();
    for source in [&system, &tar] {
        let made = json(&args!["build", "--free", "64M", &image, source]);
        expected.assert_same(&kernel_tree(&image));
        let mount = Mount::new(&image, "");
        fs::write(mount.join("promised"), vec![1; 64 << 20]).unwrap();
        mount.unmount();
        e2fsck::check(&image).assert_clean();
        let least = json(&args!["build", "--estimate", &image, source])["bytes"].as_u64().unwrap();
        assert!(least < made["bytes"].as_u64().unwrap());
        let less = (least - 4096).to_string();
        let inodes = json(&args!["build", "--estimate", &image, source])["inodes"].to_string();
        refused(&args!["build", "--size", less, "-N", inodes, &image, source], 1, "are enough");
    }
    let packages = scratch.dir("packages");
    let archives = system.join("var/cache/apt/archives");
    for package in fs::read_dir(archives).unwrap().map(|entry| entry.unwrap().path()) {
        if package.extension() != Some(OsStr::new("deb")) {
            continue;
        }
        let into = packages.join(package.file_stem().unwrap());
        run("dpkg-deb", &args!["-x", &package, &into]).must_succeed();
        let call = format!(
            "set -o pipefail; dpkg-deb --fsys-tarfile {} | tee {} |
             {EXTANT} build --size 256M -N 20000 {} -",
            package.display(),
            tar.display(),
            image.display()
        );
        run_with_env("bash", &["-c", &call], &[("TMPDIR", "/nowhere")]).must_succeed();
        set_times_of_directories(&tar, &into);
        Manifest::walk(&into).without_root().assert_same(&kernel_tree(&image).without_root());
    }
}

/// Gives unpacked directories the times that the archive has for them: tar makes links that lead
/// outside after the times of directories.
fn set_times_of_directories(tar: &Path, top: &Path) {
    let mut archive = tar::Archive::new(File::open(tar).unwrap());
    for entry in archive.entries().unwrap().map(Result::unwrap) {
        if entry.header().entry_type().is_dir() {
            let dir = File::open(top.join(entry.path().unwrap())).unwrap();
            let time = Duration::from_secs(entry.header().mtime().unwrap());
            dir.set_modified(SystemTime::UNIX_EPOCH + time).unwrap();
        }
    }
}

/// Images of one layer and of two, with whiteouts, from the store of buildah.
const BUILDAH: &str = r#"
    umask 022
    store() { buildah --root "$PWD/store" --runroot "$PWD/run" --storage-driver vfs "$@"; }
    mkdir -p first/etc/deep first/usr/lib
    printf 1 > first/etc/one; printf 2 > first/etc/deep/two; printf 3 > first/usr/lib/three
    ln -s usr/lib first/lib; ln first/etc/one first/usr/same
    head -c 300000 /dev/urandom > first/usr/lib/large
    one=$(store from scratch)
    store copy --quiet "$one" first /
    cp -a "$(store mount "$one")" one
    store commit --quiet "$one" "oci:$PWD/layout:one"
    store commit --quiet "$one" base
    two=$(store from --pull-never base)
    root=$(store mount "$two")
    rm -r "$root/etc/deep" "$root/usr/lib/large" "$root/usr/lib/three"
    mkdir "$root/usr/lib/three"
    printf new > "$root/usr/lib/three/file"; chown 12:34 "$root/etc/one"; mkfifo "$root/etc/fifo"
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 "$root/etc/one"
    cp -a "$root" two
    store commit --quiet "$two" "oci:$PWD/layout:two"
    store commit --quiet --disable-compression=false "$two" "oci-archive:$PWD/two.tar:two"
    store commit --quiet "$two" "docker-archive:$PWD/docker.tar:name:two"
    store umount --all > /dev/null"#;

#[test]
#[ignore = "needs buildah: `make inputs`"]
fn images_of_buildah_equal_its_mounts() {
    let scratch = Scratch::on_disk();
    let image = scratch.join("i.img");
    let script = format!("cd {}; {BUILDAH}", scratch.path().display());
    run("bash", &["-euc", &script]).must_succeed();
    let (layout, archive, docker) =
        (scratch.join("layout"), scratch.join("two.tar"), scratch.join("docker.tar"));
    let named = |kind: &str, path: &Path| format!("{kind}:{}", path.display());
    for (source, name, expected) in [
        (named("oci", &layout), "one", "one"),
        (named("oci", &layout), "two", "two"),
        (named("oci", &archive), "two", "two"),
        (named("docker", &docker), "name:two", "two"),
    ] {
        done(&args!["build", "--image", name, &image, &source]);
        e2fsck::check(&image).assert_clean();
        // buildah stores whole seconds.
        let expected = Manifest::walk(&scratch.join(expected)).without_root().in_whole_seconds();
        expected.assert_same(&kernel_tree(&image).without_root());
    }
}
