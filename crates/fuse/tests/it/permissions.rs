//! Modes, owners, ACLs and flags: their inheritance, their dependencies, and their removal by other
//! changes.

use crate::oracle::{Notes, as_user, same_as_kernel};
use rustix::fs::{
    CWD, FallocateFlags, FileType, IFlags, Mode, fallocate, ioctl_getflags, ioctl_setflags, mknodat,
};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::path::Path;

pub const USER: u32 = 1000;
const GROUP: u32 = 2000;

/// Flags of the inode's storage (extents, htree, inline data), which callers must set as they read
/// them.
const KEPT: u32 = 0x0008_0000 | 0x1000 | 0x1000_0000;

pub fn mode(path: &Path) -> io::Result<String> {
    fs::symlink_metadata(path).map(|m| format!("{:o} {} {}", m.mode(), m.uid(), m.gid()))
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn copy_within(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    file.set_len(10_000)?;
    rustix::fs::copy_file_range(&file, Some(&mut 0), &file, Some(&mut 5000), 100)?;
    Ok(())
}

pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

fn mkdir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(mode).create(path)
}

/// Creates a file of the user with these set-id bits.
pub fn privileged(path: &Path, bits: u32) -> File {
    let file = create(path, 0o666).expect("create");
    file.write_all_at(&[1; 10_000], 0).expect("write");
    chown(path, Some(USER), Some(GROUP)).expect("chown");
    set_mode(path, bits).expect("chmod");
    file
}

#[test]
pub fn set_id_bits_go_with_changes_by_others() {
    same_as_kernel("default", |dir, notes| {
        for bits in [0o6777, 0o6767, 0o4755, 0o2777, 0o2766] {
            let path = dir.join(format!("f{bits:o}"));
            let root = privileged(&path, bits);
            let changes: [(&str, &(dyn Fn() -> io::Result<()> + Sync)); 10] = [
                ("write", &|| File::options().write(true).open(&path)?.write_all(b"x")),
                ("append", &|| File::options().append(true).open(&path)?.write_all(b"x")),
                ("truncate", &|| File::options().write(true).open(&path)?.set_len(5)),
                ("open to truncate", &|| {
                    File::options().write(true).truncate(true).open(&path).map(drop)
                }),
                ("allocate", &|| {
                    Ok(fallocate(
                        File::options().write(true).open(&path)?,
                        FallocateFlags::empty(),
                        0,
                        50_000,
                    )?)
                }),
                ("punch", &|| {
                    Ok(fallocate(File::options().write(true).open(&path)?, PUNCH, 0, 4096)?)
                }),
                ("copy", &|| copy_within(&path)),
                ("grow", &|| File::options().write(true).open(&path)?.set_len(20_000)),
                ("chown to the same", &|| chown(&path, Some(USER), Some(GROUP))),
                ("chmod", &|| set_mode(&path, 0o6755)),
            ];
            for (what, change) in changes {
                set_mode(&path, bits).expect("chmod");
                for (who, uid, gid) in [("owner", USER, GROUP), ("another", 3000, 3000)] {
                    notes.call(format!("{bits:o} {what} by {who}"), as_user(uid, gid, change));
                    root.sync_all().expect("fsync");
                    notes.call("mode", mode(&path));
                }
                set_mode(&path, bits).expect("chmod");
                notes.call(format!("{bits:o} {what} by root"), change());
                notes.call("mode", mode(&path));
            }
        }
    });
}

#[test]
pub fn changes_of_owner_take_set_id_bits() {
    same_as_kernel("default", |dir, notes| {
        for bits in [0o6755, 0o6745, 0o2711] {
            let path = dir.join(format!("f{bits:o}"));
            privileged(&path, bits);
            for (uid, gid) in [(None, None), (Some(5), None), (None, Some(6)), (Some(7), Some(8))] {
                set_mode(&path, bits).expect("chmod");
                notes.call(format!("{bits:o} chown {uid:?} {gid:?}"), chown(&path, uid, gid));
                notes.call("mode", mode(&path));
            }
        }
        let sub = dir.join("sub");
        mkdir(&sub, 0o755).expect("mkdir");
        set_mode(&sub, 0o6755).expect("chmod");
        notes.call("chown of a directory", chown(&sub, Some(9), Some(9)));
        notes.call("mode", mode(&sub));
        for kind in [FileType::Fifo, FileType::Socket, FileType::CharacterDevice] {
            let path = dir.join(format!("{kind:?}"));
            mknodat(CWD, &path, kind, Mode::RUSR, 0).expect("mknod");
            for bits in [0o6755, 0o6745] {
                set_mode(&path, bits).expect("chmod");
                notes.call(format!("chown of a {kind:?}"), chown(&path, Some(9), Some(9)));
                notes.call("mode", mode(&path));
            }
        }
        let capable = dir.join("capable");
        let file = privileged(&capable, 0o755);
        let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let flags = rustix::fs::XattrFlags::empty();
        for change in ["write", "truncate", "chown"] {
            notes.call(
                "capability",
                rustix::fs::setxattr(&capable, "security.capability", &value, flags),
            );
            match change {
                "write" => notes.call("write", file.write_at(b"x", 3)),
                "truncate" => notes.call("truncate", file.set_len(4)),
                _ => notes.call("chown", chown(&capable, Some(1), None)),
            }
            file.sync_all().expect("fsync");
            notes.call(
                "capability",
                rustix::fs::getxattr(&capable, "security.capability", &mut [0; 64][..]),
            );
        }
    });
}

#[test]
pub fn set_group_id_directories_hand_their_group_down() {
    same_as_kernel("orphan_file", |dir, notes| {
        let top = dir.join("top");
        mkdir(&top, 0o777).expect("mkdir");
        chown(&top, None, Some(GROUP)).expect("chown");
        set_mode(&top, 0o2777).expect("chmod");
        for (who, uid, gid) in [("root", 0, 0), ("member", USER, GROUP), ("stranger", 3000, 3000)] {
            as_user(uid, gid, || drop(mkdir(&top.join(format!("{who}.d")), 0o755)));
            notes.call(format!("{who} mkdir"), mode(&top.join(format!("{who}.d"))));
            for bits in [0o644, 0o2755, 0o2745, 0o6777] {
                let file = top.join(format!("{who}.{bits:o}"));
                as_user(uid, gid, || drop(create(&file, bits)));
                notes.call(format!("{who} create {bits:o}"), mode(&file));
                let again = as_user(uid, gid, || set_mode(&file, bits));
                notes.call(format!("{who} chmod {bits:o}"), again);
                notes.call("mode", mode(&file));
            }
            let link = top.join(format!("{who}.l"));
            as_user(uid, gid, || drop(symlink("x", &link)));
            notes.call(format!("{who} symlink"), mode(&link));
        }
    });
}

/// Creates files, with and without the set-group-id bit, in a set-group-id directory.
const MAKE_PROGRAMS: &str = r#"
use Fcntl;
umask 0;
foreach my $mode (02755, 02745, 06711, 02010, 0755) {
    sysopen(
        my $file,
        sprintf("%s.%o", $ARGV[0], $mode),
        O_CREAT | O_EXCL | O_WRONLY,
        $mode,
    ) or die "$!";
}
"#;

/// The results of the mount and of the library equal those of the kernel's ext4: for root, for
/// members by the primary group, for strangers, and for members by a supplementary group. The
/// latter exist for the mount only.
#[test]
pub fn strangers_make_no_programs_of_a_directorys_group() {
    const PERSONS: [(u32, u32, &str); 4] =
        [(0, 0, "0"), (1000, 2000, "1000"), (1000, 1000, "3000"), (1000, 1000, "2000")];
    let made = |dir: &Path, notes: &mut Notes| {
        let top = dir.join("top");
        mkdir(&top, 0o777).expect("mkdir");
        chown(&top, None, Some(GROUP)).expect("chown");
        set_mode(&top, 0o2777).expect("chmod");
        for (nth, (uid, gid, others)) in PERSONS.into_iter().enumerate() {
            let ids = [uid.to_string(), gid.to_string(), format!("p{nth}")];
            let credentials = ["--reuid", &ids[0], "--regid", &ids[1], "--groups", others];
            notes.program(
                &top,
                "setpriv",
                &[&credentials[..], &["perl", "-e", MAKE_PROGRAMS, &ids[2]]].concat(),
            );
            for bits in [0o2755, 0o2745, 0o6711, 0o2010, 0o755] {
                notes.call(format!("{nth} {bits:o}"), mode(&top.join(format!("p{nth}.{bits:o}"))));
            }
        }
    };
    same_as_kernel("default", made);
    let theirs = extant_testkit::image::FeatureSet::named("default").make();
    let mount = extant_testkit::kernel::Mount::new(theirs.path(), "");
    made(mount.path(), &mut Notes::default());
    let ours = extant_testkit::image::FeatureSet::named("default").make();
    let fs =
        extant_engine::Fs::open(ours.path(), &extant_engine::OpenOptions::new()).expect("open");
    let who = |uid, gid| extant_engine::Caller { uid, gid, ..extant_engine::Caller::default() };
    let top = fs
        .create_as(
            &who(0, GROUP),
            (&fs.root().expect("root"), b"top"),
            0o2777,
            extant_engine::NodeKind::Dir,
        )
        .expect("mkdir");
    for (nth, (uid, gid, others)) in PERSONS.into_iter().enumerate() {
        // A caller of the library passes one group, which decides.
        let gid = if others == "2000" { GROUP } else { gid };
        for bits in [0o2755, 0o2745, 0o6711, 0o2010, 0o755] {
            let name = format!("p{nth}.{bits:o}");
            let node = fs
                .create_as(
                    &who(uid, gid),
                    (&top, name.as_bytes()),
                    bits,
                    extant_engine::NodeKind::File,
                )
                .expect("create");
            let attr = node.attr();
            let own = format!("{:o} {} {}", attr.mode, attr.uid, attr.gid);
            assert_eq!(own, mode(&mount.join("top").join(&name)).expect("stat"), "{name}");
            let nameless = fs.create_nameless(&who(uid, gid), &top, bits).expect("create");
            assert_eq!(nameless.attr().mode, attr.mode, "{name} without a name");
            fs.release(&nameless, 1);
        }
    }
    drop(top);
    mount.unmount();
    fs.unmount().expect("unmount");
    ours.assert_clean();
}

fn acl_names(dir: &Path, notes: &mut Notes, name: &str) {
    notes.call(format!("mode of {name}"), mode(&dir.join(name)));
    notes.program(dir, "getfacl", &["-n", name]);
}

#[test]
pub fn acls_are_inherited_and_tied_to_the_mode() {
    same_as_kernel("default", |dir, notes| {
        mkdir(&dir.join("d"), 0o755).expect("mkdir");
        notes.program(
            dir,
            "setfacl",
            &["-d", "-m", "u::rwx,u:1000:rwx,g::r-x,g:2000:rw,m::rwx,o::---", "d"],
        );
        acl_names(dir, notes, "d");
        for (name, bits) in
            [("d/plain", 0o666), ("d/exec", 0o777), ("d/closed", 0o600), ("d/none", 0)]
        {
            notes.call(name, create(&dir.join(name), bits).map(drop));
            acl_names(dir, notes, name);
        }
        for (name, bits) in [("d/sub", 0o777), ("d/sub/below", 0o700)] {
            notes.call(name, mkdir(&dir.join(name), bits));
            acl_names(dir, notes, name);
        }
        symlink("plain", dir.join("d/link")).expect("symlink");
        for bits in [0o640, 0o777, 0o000, 0o2755] {
            notes.call("chmod", set_mode(&dir.join("d/exec"), bits));
            acl_names(dir, notes, "d/exec");
        }
        for change in ["u:1000:r", "m::r", "o::rwx", "g::rwx,g:1000:x"] {
            notes.program(dir, "setfacl", &["-m", change, "d/plain"]);
            acl_names(dir, notes, "d/plain");
        }
        notes.program(dir, "setfacl", &["-b", "d/plain"]);
        acl_names(dir, notes, "d/plain");
        notes.program(dir, "setfacl", &["-k", "d"]);
        notes.call("without a default", create(&dir.join("d/later"), 0o666).map(drop));
        acl_names(dir, notes, "d/later");
        notes.program(dir, "setfacl", &["-d", "-m", "u:1:r", "d/plain"]);
        notes.program(
            dir,
            "setfattr",
            &["-n", "system.posix_acl_access", "-v", "0x0200", "d/plain"],
        );
    });
}

#[test]
pub fn acls_decide() {
    same_as_kernel("default", |dir, notes| {
        fs::write(dir.join("f"), b"content").expect("write");
        set_mode(&dir.join("f"), 0o600).expect("chmod");
        mkdir(&dir.join("d"), 0o700).expect("mkdir");
        fs::write(dir.join("d/inner"), b"content").expect("write");
        let tries = |notes: &mut Notes| {
            for (uid, gid) in [(USER, 1), (1, GROUP), (3000, 3000)] {
                notes.call(
                    format!("{uid} {gid} reads"),
                    as_user(uid, gid, || fs::read(dir.join("f"))),
                );
                notes.call(
                    format!("{uid} {gid} writes"),
                    as_user(uid, gid, || {
                        File::options().append(true).open(dir.join("f")).map(drop)
                    }),
                );
                notes.call(
                    format!("{uid} {gid} lists"),
                    as_user(uid, gid, || fs::read_dir(dir.join("d")).map(Iterator::count)),
                );
                notes.call(
                    format!("{uid} {gid} stats"),
                    as_user(uid, gid, || fs::metadata(dir.join("d/inner")).map(|m| m.len())),
                );
                notes.call(
                    format!("{uid} {gid} sets"),
                    as_user(uid, gid, || set_mode(&dir.join("f"), 0o777)),
                );
            }
        };
        tries(notes);
        notes.program(dir, "setfacl", &["-m", "u:1000:r,g:2000:rw", "f"]);
        notes.program(dir, "setfacl", &["-m", "u:1000:x,g:2000:rx", "d"]);
        tries(notes);
        notes.program(dir, "setfacl", &["-m", "m::-", "f"]);
        tries(notes);
        notes.program(dir, "setfacl", &["-b", "f", "d"]);
        tries(notes);
    });
}

/// Members by their main group, members by another, and strangers.
#[test]
pub fn set_group_id_depends_on_membership() {
    same_as_kernel("default", |dir, notes| {
        fs::set_permissions(dir, Permissions::from_mode(0o777)).expect("chmod");
        let path = dir.join("g");
        for (main, others) in [("2000", "1000"), ("1000", "3000,2000"), ("1000", "3000")] {
            let credentials = ["--reuid", "1000", "--regid", main, "--groups", others];
            for (mode, change) in [
                (0o2755, "setfacl -m u::rwx,g::rwx,o::rwx g"),
                (0o2745, "setfacl -m u::rwx,g::rwx,o::rwx g"),
                (0o2745, "chown 1000 g"),
                (0o2765, "echo more >>g"),
                (0o2745, "echo more >>g"),
                (0o2745, "truncate -s 100 g"),
            ] {
                let _ = fs::remove_file(&path);
                fs::write(&path, b"content").expect("write");
                std::os::unix::fs::chown(&path, Some(1000), Some(2000)).expect("chown");
                fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
                notes.program(
                    dir,
                    "setpriv",
                    &[credentials.as_slice(), &["sh", "-c", change]].concat(),
                );
                let now = fs::metadata(&path).expect("stat").mode();
                notes.value(format!("{main} and {others}, {mode:o}, {change}"), format!("{now:o}"));
            }
        }
    });
}

pub fn set_flags(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    let file = rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let kept = IFlags::from_bits_retain(ioctl_getflags(&file)?.bits() & KEPT);
    ioctl_setflags(&file, kept | flags)
}

trait Quiet {
    fn quiet(self) -> io::Result<()>;
}

impl<T, E: Into<io::Error>> Quiet for Result<T, E> {
    fn quiet(self) -> io::Result<()> {
        self.map(drop).map_err(Into::into)
    }
}

fn try_changes(dir: &Path, notes: &mut Notes, label: &str, open: &File) {
    let path = dir.join("f");
    let flags = rustix::fs::XattrFlags::empty();
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let then = rustix::fs::Timespec { tv_sec: 5, tv_nsec: 5 };
    let touch = |time| {
        rustix::fs::utimensat(
            rustix::fs::CWD,
            &path,
            &rustix::fs::Timestamps { last_access: time, last_modification: time },
            rustix::fs::AtFlags::empty(),
        )
    };
    let calls: [(&str, io::Result<()>); 19] = [
        ("open to read", File::open(&path).quiet()),
        ("open to write", File::options().write(true).open(&path).quiet()),
        ("open to append", File::options().append(true).open(&path).quiet()),
        (
            "open to append and truncate",
            rustix::fs::open(
                &path,
                rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::APPEND | rustix::fs::OFlags::TRUNC,
                0.into(),
            )
            .quiet(),
        ),
        (
            "truncate",
            rustix::fs::open(&path, rustix::fs::OFlags::RDONLY, 0.into())
                .quiet()
                .and(nix::unistd::truncate(&path, 3).quiet()),
        ),
        ("ftruncate", open.set_len(3)),
        (
            "fallocate",
            rustix::fs::fallocate(open, rustix::fs::FallocateFlags::empty(), 0, 100_000).quiet(),
        ),
        (
            "punch",
            rustix::fs::fallocate(
                open,
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                0,
                4096,
            )
            .quiet(),
        ),
        ("chmod", set_mode(&path, 0o640)),
        ("chown", chown(&path, Some(1), Some(1))),
        ("touch", touch(now).quiet()),
        ("set times", touch(then).quiet()),
        ("setxattr", rustix::fs::setxattr(&path, "user.x", b"1", flags).quiet()),
        ("removexattr", rustix::fs::removexattr(&path, "user.x").quiet()),
        ("link", fs::hard_link(&path, dir.join("l"))),
        (
            "rename",
            fs::rename(&path, dir.join("g")).and_then(|()| fs::rename(dir.join("g"), &path)),
        ),
        (
            "rename over",
            fs::write(dir.join("h"), b"h").and_then(|()| fs::rename(dir.join("h"), &path)),
        ),
        ("unlink", fs::remove_file(&path)),
        ("unlink of the other", fs::remove_file(dir.join("h"))),
    ];
    for (what, outcome) in calls {
        notes.call(format!("{label}: {what}"), outcome);
    }
    let _ = fs::remove_file(dir.join("l"));
}

#[test]
pub fn immutable_and_append_only_files() {
    same_as_kernel("default", |dir, notes| {
        for (label, flags) in [
            ("immutable", IFlags::IMMUTABLE),
            ("append", IFlags::APPEND),
            ("both", IFlags::IMMUTABLE | IFlags::APPEND),
        ] {
            let path = dir.join("f");
            fs::write(&path, [7; 9000]).expect("write");
            let open = File::options().read(true).write(true).open(&path).expect("open");
            notes.call(label, set_flags(&path, flags));
            try_changes(dir, notes, label, &open);
            notes.value("length", open.metadata().map(|m| m.len()).ok());
            notes
                .call("flags of a user", as_user(USER, GROUP, || set_flags(&path, IFlags::NODUMP)));
            notes.call("flags back", set_flags(&path, IFlags::empty()));
            notes.call("unlink", fs::remove_file(&path));
        }
    });
}

#[test]
pub fn immutable_and_append_only_directories() {
    same_as_kernel("default", |dir, notes| {
        for (label, flags) in [("immutable", IFlags::IMMUTABLE), ("append", IFlags::APPEND)] {
            let sub = dir.join("d");
            mkdir(&sub, 0o755).expect("mkdir");
            mkdir(&sub.join("inner"), 0o755).expect("mkdir");
            fs::write(sub.join("old"), b"x").expect("write");
            fs::write(dir.join("outer"), b"x").expect("write");
            notes.call(label, set_flags(&sub, flags));
            notes.call("create", fs::write(sub.join("new"), b"x"));
            notes.call("mkdir", mkdir(&sub.join("newdir"), 0o755));
            notes.call("symlink", symlink("x", sub.join("newlink")));
            notes.call("link", fs::hard_link(dir.join("outer"), sub.join("hard")));
            notes.call(
                "change a file",
                File::options()
                    .append(true)
                    .open(sub.join("old"))
                    .and_then(|mut f| f.write_all(b"y")),
            );
            notes.call("unlink", fs::remove_file(sub.join("old")));
            notes.call("rmdir", fs::remove_dir(sub.join("inner")));
            notes.call("rename within", fs::rename(sub.join("old"), sub.join("older")));
            notes.call("rename out", fs::rename(sub.join("old"), dir.join("older")));
            notes.call("rename in", fs::rename(dir.join("outer"), sub.join("outer")));
            notes.call(
                "rename it",
                fs::rename(&sub, dir.join("e")).and_then(|()| fs::rename(dir.join("e"), &sub)),
            );
            notes.call("chmod", set_mode(&sub, 0o700));
            notes.call("flags back", set_flags(&sub, IFlags::empty()));
            notes.call("remove", fs::remove_dir_all(&sub));
            let _ = fs::remove_file(dir.join("outer"));
        }
    });
}

#[test]
pub fn flags_are_kept_and_inherited() {
    same_as_kernel("default", |dir, notes| {
        let top = dir.join("top");
        mkdir(&top, 0o777).expect("mkdir");
        let all = [
            IFlags::NOATIME,
            IFlags::NODUMP,
            IFlags::SYNC,
            IFlags::DIRSYNC,
            IFlags::TOPDIR,
            IFlags::NOTAIL,
            IFlags::UNRM,
            IFlags::SECURE_REMOVAL,
            IFlags::PROJECT_INHERIT,
        ];
        for flags in all {
            notes.call(format!("directory {flags:?}"), set_flags(&top, flags));
            notes.program(dir, "lsattr", &["-d", "top"]);
            notes.call("file", fs::write(top.join("f"), b"x"));
            notes.call("directory", mkdir(&top.join("d"), 0o755));
            notes.program(dir, "lsattr", &["top"]);
            notes.call(format!("file {flags:?}"), set_flags(&top.join("f"), flags));
            notes.program(dir, "lsattr", &["top/f"]);
            notes.call("back", set_flags(&top, IFlags::empty()));
            fs::remove_file(top.join("f")).expect("unlink");
            fs::remove_dir(top.join("d")).expect("rmdir");
        }
        fs::write(dir.join("f"), b"x").expect("write");
        chown(dir.join("f"), Some(USER), Some(GROUP)).expect("chown");
        for flags in [IFlags::NOATIME, IFlags::IMMUTABLE, IFlags::APPEND] {
            notes.call(
                format!("owner {flags:?}"),
                as_user(USER, GROUP, || set_flags(&dir.join("f"), flags)),
            );
            notes.call(
                format!("another {flags:?}"),
                as_user(3000, 3000, || set_flags(&dir.join("f"), flags)),
            );
            notes.program(dir, "lsattr", &["f"]);
            notes.call("back", set_flags(&dir.join("f"), IFlags::empty()));
        }
        symlink("f", dir.join("l")).expect("symlink");
        notes.program(dir, "lsattr", &["l"]);
    });
}
