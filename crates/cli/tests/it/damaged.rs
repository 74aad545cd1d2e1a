//! Copies out of images with names that no file system makes, and into directories that another
//! user changes meanwhile.

use crate::args;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::rival::beside_a_rival;
use extant_testkit::kernel::Mount;
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
    assert_eq!(members.lines().count(), 41, "{members}");
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
    // Possible attack of the owner of the destination: replace each new name by a symlink.
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
fn hard_links_lead_to_copied_files() {
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

/// Runs commands of debugfs on an image, which is damaged then.
fn damage(image: &Image, commands: &str) {
    let script = image.scratch().join("commands");
    fs::write(&script, commands).unwrap();
    let printed = run(
        "debugfs",
        &["-w".as_ref(), "-f".as_ref(), script.as_os_str(), image.path().as_os_str()],
    );
    let errors = printed.errors();
    let told = errors.lines().filter(|line| !line.starts_with("debugfs 1.")).count();
    assert!(printed.code == 0 && told == 0, "{printed}");
    image.leave_unjudged("debugfs damaged it");
}

fn bytes_below(dir: &Path) -> u64 {
    let du = run("du", &["-sB1".as_ref(), dir.as_os_str()]).must_succeed().text();
    du.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).expect("a number of bytes")
}

#[test]
fn an_inode_with_more_names_than_it_counts_is_copied_once() {
    const NAMES: u64 = 40;
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir(top.join("sub")).unwrap();
    fs::write(top.join("file"), vec![7; 2 << 20]).unwrap();
    symlink("target", top.join("link")).unwrap();
    run("mkfifo", &[top.join("fifo")]).must_succeed();
    let image = image_of(&top);
    let commands = (0..NAMES).flat_map(|number| {
        ["file", "link", "fifo"].map(|kind| format!("ln /{kind} /sub/{kind}-{number}\n"))
    });
    let commands = "expand_dir /sub\n".repeat(4) + &commands.collect::<String>();
    damage(&image, &commands);
    assert_eq!(debugfs::stat(image.path(), "/file").links, 1);
    let (out, archive, unpacked) =
        (scratch.join("out"), scratch.join("a.tar"), scratch.dir("unpacked"));
    done(&args!["get", "--threads", "4", image.path(), "/", &out]);
    done(&args!["get", image.path(), "/", "--tar", &archive]);
    assert!(fs::metadata(&archive).unwrap().len() < 3 << 20);
    run("tar", &["-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), unpacked.as_os_str()])
        .must_succeed();
    for copy in [&out, &unpacked] {
        for kind in ["file", "link", "fifo"] {
            let first = fs::symlink_metadata(copy.join(kind)).unwrap();
            let last = copy.join(format!("sub/{kind}-{}", NAMES - 1));
            assert_eq!(first.nlink(), NAMES + 1, "{kind}");
            assert_eq!(first.ino(), fs::symlink_metadata(last).unwrap().ino(), "{kind}");
        }
        assert!(bytes_below(copy) < 3 << 20);
    }
}

/// The attributes of a directory cannot be read, of an image for `get`, through a mount for `put`.
/// Group and others get nothing: an ACL that cannot be read may deny users of either.
#[test]
fn a_directory_gets_its_mode_whatever_else_fails() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir(top.join("sub")).unwrap();
    fs::write(top.join("file"), "no attributes").unwrap();
    let image = image_of(&top);
    done(&args!["chmod", image.path(), "751", "/sub"]);
    let block = debugfs::read(image.path(), "blocks /file");
    damage(&image, &format!("set_inode_field /sub file_acl {}\n", block.trim()));
    let out = scratch.join("out");
    refused(&args!["get", image.path(), "/", &out], 1, "sub");
    assert_eq!(mode_of(&out.join("sub")), 0o700);
    let copy = Image::mke2fs(32 << 20, &["-t", "ext4"]);
    let mount = Mount::new(image.path(), "ro,noload");
    refused(&args!["put", copy.path(), mount.path(), "/"], 1, "extended attributes");
    mount.unmount();
    let stat = json(&args!["stat", copy.path(), "/sub"]);
    assert_eq!(stat[0]["mode"], 0o700, "{stat}");
    copy.assert_clean();
}

#[test]
fn inodes_that_share_blocks_are_copied_up_to_the_size_of_the_device() {
    const DEVICE: u64 = 8 << 20;
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("first"), vec![7; 1 << 20]).unwrap();
    for number in 0..30 {
        fs::write(top.join(format!("more-{number}")), "").unwrap();
    }
    let image = Image::mke2fs(DEVICE, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", image.path(), &top, "/"]);
    let commands = (0..30).map(|number| format!("copy_inode /first /more-{number}\n"));
    damage(&image, &commands.collect::<String>());
    let (out, archive) = (scratch.join("out"), scratch.join("a.tar"));
    refused(&args!["get", image.path(), "/", &out], 1, "inodes share blocks");
    refused(&args!["get", image.path(), "/", "--tar", &archive], 1, "inodes share blocks");
    refused(&args!["hash", image.path()], 1, "inodes share blocks");
    assert!(bytes_below(&out) <= DEVICE + (1 << 20));
    assert!(fs::metadata(&archive).unwrap().len() <= DEVICE + (1 << 20));
    // No file is there in part.
    let lengths = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert!(lengths.filter(|meta| meta.is_file()).all(|meta| meta.len() == 1 << 20));
}

/// The copy of the first name is removed, and its inode is free for the files copied after it. In
/// any order of the files one of the two immutable names is met before its further name.
#[test]
fn further_names_of_a_file_that_failed_lead_to_no_other_file() {
    let scratch = Scratch::new();
    let old = scratch.dir("old");
    let top = scratch.dir("top");
    for (kept, further) in [("a", "z"), ("zz", "aa")] {
        fs::write(old.join(kept), "old").unwrap();
        fs::write(top.join(kept), "new").unwrap();
        fs::hard_link(top.join(kept), top.join(further)).unwrap();
    }
    let image = image_of(&old);
    damage(&image, "set_inode_field /a flags 0x80010\nset_inode_field /zz flags 0x80010\n");
    for number in 0..400 {
        fs::write(top.join(format!("f{number}")), format!("content {number}")).unwrap();
    }
    let printed = extant(&args!["put", "--threads", "1", image.path(), &top, "/"]);
    assert_eq!(printed.code, 1, "{printed}");
    for further in ["z", "aa"] {
        let content = extant(&args!["cat", image.path(), format!("/{further}")]);
        assert!(content.code == 1 || content.text() == "new", "{further}: {content} {printed}");
    }
    assert!(printed.errors().contains("its first name could not be copied"), "{printed}");
    for kept in ["/a", "/zz"] {
        assert_eq!(done(&args!["cat", image.path(), kept]).text(), "old");
    }
}

/// An access ACL as the value of its attribute: 200 users read, the group reads, the mask is `rwx`,
/// others read and execute.
fn large_acl() -> Vec<u8> {
    let users = (0..200).map(|number| (2u16, 4u16, 1000 + number));
    let entries = std::iter::once((1, 7, u32::MAX)).chain(users).chain([
        (4, 4, u32::MAX),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ]);
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

/// The group bits of a file with an ACL are its mask. Without the ACL they are the owning group's,
/// and a user that the ACL names is one of the others.
#[test]
fn copies_without_their_acl_give_the_group_no_more() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::create_dir(top.join("d")).unwrap();
    fs::write(top.join("f"), "content").unwrap();
    for name in ["d", "f"] {
        rustix::fs::setxattr(
            top.join(name),
            "system.posix_acl_access",
            &large_acl(),
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        assert_eq!(mode_of(&top.join(name)), 0o775);
    }
    // Its blocks are too small for the ACL.
    let small = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024"]);
    done(&args!["put", small.path(), &top, "/"]);
    for name in ["/d", "/f"] {
        let stat = json(&args!["stat", small.path(), name]);
        assert_eq!(stat[0]["mode"], 0o744, "{stat}");
    }
    small.assert_clean();
    let full = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096"]);
    done(&args!["put", full.path(), &top, "/"]);
    let stat = json(&args!["stat", full.path(), "/d", "/f"]);
    assert_eq!((&stat[0]["mode"], &stat[1]["mode"]), (&0o775.into(), &0o775.into()), "{stat}");
    let mount = Mount::new(small.path(), "rw");
    let out = mount.path().join("out");
    let copied = json(&args!["get", full.path(), "/", &out]);
    let modes = ["d", "f"].map(|name| mode_of(&out.join(name)));
    mount.unmount();
    assert_eq!(modes, [0o744; 2]);
    assert_eq!(copied["left_out"]["attributes"], 2, "{copied}");
    let out = scratch.join("out");
    done(&args!["get", full.path(), "/", &out]);
    assert_eq!(["d", "f"].map(|name| mode_of(&out.join(name))), [0o775; 2]);
}
