//! Copies out of images with names that no file system makes, and into directories that another
//! user changes meanwhile.

use crate::args;
use crate::program::{EXTANT, done, extant, refused};
use crate::rival::beside_a_rival;
use extant_testkit::tool::run;
use extant_testkit::verity::{self, Wanted};
use extant_testkit::{Image, Scratch, debugfs};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// An image, made from a tree, whose names can be changed without notice.
fn image_of(top: &Path) -> Image {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", image.path(), top, "/"]);
    image
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn names_that_lead_elsewhere_are_left_out_by_all_readers() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir_all(top.join("d")).unwrap();
    for name in ["up-up-name", "null-name", "good"] {
        fs::write(top.join("d").join(name), name).unwrap();
    }
    let image = image_of(&top);
    image.replace(b"up-up-name", b"../../name");
    image.replace(b"null-name", b"null\0name");
    for command in ["ls", "find", "tree", "du"] {
        let printed = extant(&args![command, image.path(), "/d"]);
        assert_eq!(printed.code, 1, "{printed}");
        assert!(printed.errors().contains("directory entry"), "{printed}");
        assert!(!printed.text().contains("..") && !printed.text().contains("null"), "{printed}");
        assert!(command == "du" || printed.text().contains("good"), "{printed}");
    }
    let out = scratch.join("out/er/most");
    fs::create_dir_all(&out).unwrap();
    refused(&args!["get", image.path(), "/", &out], 1, "d: corrupt: corrupt directory entry");
    assert_eq!(fs::read(out.join("d/good")).unwrap(), b"good");
    assert_eq!(fs::read_dir(out.join("d")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(scratch.join("out/er")).unwrap().count(), 1);
    let archive = scratch.join("a.tar");
    refused(&args!["get", image.path(), "/d", "--tar", &archive], 1, "directory entry");
    let members = run("tar", &["-tf".as_ref(), archive.as_os_str()]).must_succeed().text();
    assert_eq!(members, "./\n./good\n");
    refused(&args!["rm", "-r", image.path(), "/d"], 1, "directory entry");
}

#[test]
fn repeated_names_are_copied_once_and_told() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    let victim = scratch.file("victim", 0);
    set_mode(&victim, 0o600);
    for number in 0..40 {
        let fifo = top.join(format!("fifo-{number:02}"));
        run("mkfifo", &[&fifo]).must_succeed();
        set_mode(&fifo, 0o777);
        symlink(&victim, top.join(format!("link-{number:02}"))).unwrap();
    }
    let image = image_of(&top);
    for number in 0..40 {
        image.replace(
            format!("link-{number:02}").as_bytes(),
            format!("fifo-{number:02}").as_bytes(),
        );
    }
    for round in 0..5 {
        let out = scratch.join(format!("out{round}"));
        refused(
            &args!["get", "--threads", "4", image.path(), "/", &out],
            1,
            "occurs more than once",
        );
        assert_eq!(mode_of(&victim), 0o600, "round {round}");
        // One of each name, and lost+found.
        assert_eq!(fs::read_dir(&out).unwrap().count(), 41);
    }
    let archive = scratch.join("a.tar");
    refused(&args!["get", image.path(), "/", "--tar", &archive], 1, "occurs more than once");
    let members = run("tar", &["-tf".as_ref(), archive.as_os_str()]).must_succeed().text();
    assert_eq!(members.lines().count(), 42, "{members}");
    refused(&args!["ls", image.path(), "/"], 1, "left out for repeated names: 40");
}

#[test]
fn a_rival_in_the_destination_cannot_redirect_attributes() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    for number in 0..200 {
        let fifo = top.join(format!("f{number}"));
        run("mkfifo", &[&fifo]).must_succeed();
        set_mode(&fifo, 0o777);
    }
    let image = image_of(&top);
    let victim = scratch.file("victim", 0);
    set_mode(&victim, 0o600);
    let out = scratch.dir("out");
    // What the rival can do who owns the destination: put a symlink in the place of each new name.
    let rival = |hits: &AtomicU64| {
        for number in 0..200 {
            let path = out.join(format!("f{number}"));
            if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_symlink())
                && fs::remove_file(&path).is_ok()
            {
                hits.fetch_add(u64::from(symlink(&victim, &path).is_ok()), Ordering::Relaxed);
            }
        }
    };
    beside_a_rival(rival, || {
        extant(&args!["get", "--threads", "1", image.path(), "/", &out]);
        assert_eq!(mode_of(&victim), 0o600);
    });
}

#[test]
fn a_destination_that_is_there_keeps_its_attributes() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir(top.join("sub")).unwrap();
    let image = image_of(&top);
    done(&args!["chmod", image.path(), "777", "/", "/sub"]);
    done(&args!["chown", image.path(), "12:34", "/", "/sub"]);
    let out = scratch.dir("out");
    set_mode(&out, 0o700);
    let before = fs::metadata(&out).unwrap();
    done(&args!["get", image.path(), "/", &out]);
    let after = fs::metadata(&out).unwrap();
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    let sub = fs::metadata(out.join("sub")).unwrap();
    assert_eq!((sub.mode() & 0o7777, sub.uid(), sub.gid()), (0o777, 12, 34));
}

#[test]
fn members_of_an_archive_are_links_to_members_only() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    let socket = std::os::unix::net::UnixListener::bind(top.join("a")).unwrap();
    fs::hard_link(top.join("a"), top.join("b")).unwrap();
    fs::write(top.join("c"), "text").unwrap();
    fs::hard_link(top.join("c"), top.join("d")).unwrap();
    drop(socket);
    let image = image_of(&top);
    done(&args!["rm", "-r", image.path(), "/lost+found"]);
    let archive = scratch.join("a.tar");
    refused(&args!["get", image.path(), "/", "--tar", &archive], 1, "cannot hold this type");
    let members = run("tar", &["-tf".as_ref(), archive.as_os_str()]).must_succeed().text();
    assert_eq!(members, "./\n./c\n./d\n");
}

#[test]
fn a_user_namespace_costs_attributes_but_no_files() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("acl"), "text").unwrap();
    run("setfacl", &["-m".as_ref(), "u:1234:r".as_ref(), top.join("acl").as_os_str()])
        .must_succeed();
    run("mknod", &[top.join("null").as_os_str(), "c".as_ref(), "1".as_ref(), "3".as_ref()])
        .must_succeed();
    fs::hard_link(top.join("null"), top.join("null2")).unwrap();
    fs::write(top.join("owned"), "text").unwrap();
    run("chown", &["1234:1234".as_ref(), top.join("owned").as_os_str()]).must_succeed();
    let image = image_of(&top);
    let out = scratch.join("out");
    let script = args!["--user", "--map-root-user", EXTANT, "get", image.path(), "/", &out];
    let printed = run("unshare", &script);
    assert_eq!(printed.code, 0, "{printed}");
    for left in ["1 extended attribute left out", "1 owner left out", "2 devices left out"] {
        assert!(printed.errors().contains(left), "{left}: {printed}");
    }
    for name in ["acl", "owned"] {
        assert_eq!(fs::read(out.join(name)).unwrap(), b"text");
    }
    assert!(!out.join("null").exists());
}

#[test]
fn hard_links_go_to_what_was_copied() {
    // A name that is replaced between the copy and the link must not be linked: the rival's file
    // would get a further name.
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir(top.join("zz")).unwrap();
    for number in 0..100 {
        fs::write(top.join(format!("f{number}")), "image").unwrap();
        fs::hard_link(top.join(format!("f{number}")), top.join(format!("zz/l{number}"))).unwrap();
    }
    let image = image_of(&top);
    let out = scratch.dir("out");
    let rival = |hits: &AtomicU64| {
        for number in 0..100 {
            let path = out.join(format!("f{number}"));
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.len() == 5)
                && fs::remove_file(&path).is_ok()
            {
                hits.fetch_add(u64::from(fs::write(&path, "rival's").is_ok()), Ordering::Relaxed);
            }
        }
    };
    beside_a_rival(rival, || {
        let _ = fs::remove_dir_all(out.join("zz"));
        let status = Command::new(EXTANT)
            .args(["get", "--quiet", "--threads", "1"])
            .args([image.path(), Path::new("/"), &out])
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.code().is_some());
        for entry in fs::read_dir(out.join("zz")).unwrap() {
            assert_eq!(fs::read(entry.unwrap().path()).unwrap(), b"image");
        }
    });
}

#[test]
fn holes_of_verified_files_are_errors() {
    let content: Vec<u8> = (0..200_000u32).map(|i| i as u8 | 1).collect();
    let wanted = [
        Wanted { name: "whole", content: &content, args: &[] },
        Wanted { name: "holed", content: &content, args: &[] },
    ];
    let (image, _) = verity::make(64 << 20, 4096, &wanted);
    image.leave_unjudged("a part of a verified file is missing");
    debugfs::write(image.path(), "punch /holed 10 20");
    let scratch = Scratch::new();
    let out = scratch.dir("out");
    refused(&args!["get", image.path(), "/", &out], 1, "holed");
    assert_eq!(fs::read(out.join("whole")).unwrap(), content);
    assert!(!out.join("holed").exists());
    refused(&args!["get", image.path(), "/holed", "--tar", scratch.join("a.tar")], 1, "holed");
}
