//! Privileges depend on the capabilities of the calling thread in the user namespace of the mount,
//! as with the kernel's ext4.

use crate::control::Range;
use crate::oracle::{Notes, as_user, same_as_kernel};
use crate::permissions::{USER, mode, privileged, set_flags, set_mode};
use rustix::fs::{
    AtFlags, CWD, IFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, utimensat,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns programs that start another one as root and as a user, each with and without a
/// capability, and as root of another user namespace.
fn persons(capability: &str) -> Vec<Vec<String>> {
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups";
    [
        "env".to_string(),
        format!("setpriv --inh-caps=-{capability} --bounding-set=-{capability}"),
        user.to_string(),
        format!("{user} --inh-caps=+{capability} --ambient-caps=+{capability}"),
        "unshare --user --map-root-user".to_string(),
    ]
    .iter()
    .map(|line| line.split(' ').map(String::from).collect())
    .collect()
}

/// A program that needs a capability.
struct Privileged<'a> {
    /// Name of the capability, as setpriv(1) has it.
    capability: &'a str,
    /// Working directory of the program.
    dir: &'a Path,
    /// Name and arguments of the program.
    program: &'a [&'a str],
}

impl Privileged<'_> {
    /// Notes the exit of the program for each of its callers.
    fn by_all(&self, notes: &mut Notes) {
        self.by_all_with(notes, || (), |_| ());
    }

    /// Notes the exit of the program for each of its callers; `before` prepares, `after` notes the
    /// result.
    fn by_all_with(&self, notes: &mut Notes, before: impl Fn(), after: impl Fn(&mut Notes)) {
        for person in persons(self.capability) {
            before();
            let prefix = person[1..].iter().map(String::as_str);
            let args: Vec<&str> = prefix.chain(self.program.iter().copied()).collect();
            notes.program(self.dir, &person[0], &args);
            after(notes);
        }
    }
}

#[test]
pub fn administration_goes_by_capability() {
    same_as_kernel("default", |dir, notes| {
        let root = File::open(dir).expect("open");
        Privileged { capability: "sys_admin", dir, program: &["fstrim", "."] }.by_all(notes);
        // The thread keeps CAP_SYS_ADMIN, since setfsuid(2) drops capabilities for files only.
        let set = as_user(USER, USER, || crate::control::set_label(&root, b"by a user"));
        notes.call("a user with the capability sets the label", set);
        notes.call("label", crate::control::label(&root));
    });
}

/// A process with CAP_SETUID can make a namespace with the same map of ids, in which it has all
/// capabilities.
#[test]
pub fn administration_needs_the_namespace_of_the_mount() {
    same_as_kernel("default", |dir, notes| {
        let script = "until grep -q 4294967295 /proc/self/uid_map; do sleep 0.01; done; fstrim .";
        let mut command = Command::new(extant_testkit::tool::need("unshare"));
        command.args(["--user", "sh", "-c", script]).current_dir(dir).stderr(Stdio::null());
        let mut child = command.spawn().expect("a process");
        for map in ["uid_map", "gid_map"] {
            let map = format!("/proc/{}/{map}", child.id());
            // Until the process is in its namespace, the map is that of this one, and constant.
            while fs::write(&map, "0 0 4294967295").is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        notes.value("fstrim", child.wait().expect("it ends").code());
    });
}

#[test]
pub fn a_user_with_the_capability_shuts_down() {
    let mut served = crate::served::Served::new("default");
    let dir = served.dir();
    as_user(USER, USER, || crate::control::shut_down(dir)).expect("shutdown");
    let refused = fs::create_dir(served.path("late")).expect_err("nothing changes");
    assert_eq!(refused.raw_os_error(), Some(nix::libc::EIO));
    served.let_go();
    extant_testkit::e2fsck::recover(served.image()).assert_clean();
}

/// Gives up the capabilities of the thread, not only those for files as [`as_user`] does.
fn without_capabilities<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    as_user(USER, USER, || {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).expect("fewer capabilities");
        work()
    })
}

#[test]
pub fn ordinary_users_administer_nothing() {
    let mut served = crate::served::Served::new("default");
    let (dir, root) = (served.dir(), File::open(served.dir()).expect("open"));
    let whole = Range { start: 0, len: u64::MAX, min: 0 };
    let to = extant_engine::GrowTo::MoreBytes(1 << 30);
    let more = extant_fuse::control::GrowRequest { to, dry_run: true };
    let name = extant_fuse::control::IdentityRequest { uuid: Some([7; 16]), label: None };
    let (label, trimmed, shut_down, grown, others) = without_capabilities(|| {
        (
            crate::control::set_label(&root, b"by a user").map(drop),
            crate::control::trim(&root, whole).map(drop),
            crate::control::shut_down(dir).map(drop),
            crate::control::grow(&root, 1 << 20),
            [
                extant_fuse::control::set(dir, extant_fuse::control::READ_ONLY, 1).map(drop),
                extant_fuse::control::stats(dir).map(drop),
                extant_fuse::control::grow(dir, more).map(drop),
                extant_fuse::control::set_identity(dir, name).map(drop),
            ],
        )
    });
    let errno = |refused: std::io::Result<()>| refused.expect_err("refused").raw_os_error();
    for refused in [label, trimmed, shut_down, grown] {
        assert_eq!(errno(refused), Some(nix::libc::EPERM));
    }
    for refused in others {
        assert_eq!(errno(refused), Some(nix::libc::EACCES));
    }
    assert_eq!(crate::control::label(&root).expect("the label"), b"");
    fs::write(served.path("file"), b"still writable").expect("write");
    drop(root);
    served.unmount();
}

#[test]
pub fn logged_content_needs_the_capability() {
    same_as_kernel("default", |dir, notes| {
        let path = dir.join("f");
        let own = |uid| {
            fs::write(&path, b"content").expect("write");
            std::os::unix::fs::chown(&path, Some(uid), Some(uid)).expect("chown");
        };
        for owner in [0, USER] {
            Privileged { capability: "sys_resource", dir, program: &["chattr", "+j", "f"] }
                .by_all_with(notes, || own(owner), |notes| notes.program(dir, "lsattr", &["f"]));
        }
        fs::create_dir(dir.join("d")).expect("mkdir");
        Privileged { capability: "sys_resource", dir, program: &["chattr", "+j", "d"] }
            .by_all_with(notes, || (), |notes| notes.program(dir, "lsattr", &["-d", "d"]));
    });
}

#[test]
pub fn set_id_bits_go_by_capability() {
    same_as_kernel("default", |dir, notes| {
        let path = dir.join("f");
        for bits in [0o6777, 0o2767] {
            for change in [
                ["truncate", "-s", "5", "f"].as_slice(),
                &["sh", "-c", ": >f"],
                &["sh", "-c", "echo more >>f; sync f"],
                &["fallocate", "-l", "50000", "f"],
                &["fallocate", "-p", "-l", "4096", "f"],
                &[
                    "dd",
                    "if=/dev/zero",
                    "of=f",
                    "bs=4096",
                    "count=1",
                    "conv=notrunc",
                    "oflag=direct",
                    "status=none",
                ],
            ] {
                let before = || {
                    let _ = fs::remove_file(&path);
                    privileged(&path, bits);
                    set_mode(&path, bits).expect("chmod");
                };
                let change = Privileged { capability: "fsetid", dir, program: change };
                change.by_all_with(notes, before, |notes| {
                    // stat(1) requests the mode only, which the kernel may have cached.
                    notes.program(dir, "stat", &["-c", "%a", "f"]);
                    notes.call("mode", mode(&path));
                });
            }
        }
    });
}

#[test]
pub fn trusted_names_are_listed_by_capability() {
    same_as_kernel("default", |dir, notes| {
        for name in ["f", "only trusted"] {
            let path = dir.join(name);
            fs::write(&path, b"content").expect("write");
            set_mode(&path, 0o644).expect("chmod");
            for (attribute, value) in [("trusted.a", "1"), ("user.b", "2"), ("trusted.c", "3")] {
                if name == "f" || attribute.starts_with("trusted.") {
                    rustix::fs::setxattr(&path, attribute, value.as_bytes(), XattrFlags::empty())
                        .expect("setxattr");
                }
            }
            let length = || rustix::fs::listxattr(&path, &mut [0; 0][..]);
            notes.call("length", length());
            let program = &["getfattr", "-m", "-", "-d", name];
            Privileged { capability: "sys_admin", dir, program }.by_all(notes);
        }
    });
}

/// Sets access and modification time in all ways of the system call, each at a time that differs
/// from the file's times.
fn touch_all(notes: &mut Notes, label: &str, path: &Path) {
    let age = || {
        fs::metadata(path).and_then(|m| m.modified()).expect("stat").elapsed().unwrap_or_default()
    };
    let time = |tv_nsec| Timespec { tv_sec: 77, tv_nsec };
    let times = [("now", UTIME_NOW), ("kept", UTIME_OMIT), ("set", 5)];
    for (accessed, last_access) in times {
        for (modified, last_modification) in times {
            let times = Timestamps {
                last_access: time(last_access),
                last_modification: time(last_modification),
            };
            while age() < std::time::Duration::from_millis(20) {
                std::thread::yield_now();
            }
            let outcome = utimensat(CWD, path, &times, AtFlags::empty());
            notes.call(format!("{label}: accessed {accessed}, modified {modified}"), outcome);
        }
    }
    let shown = fs::metadata(path).map(|m| (m.atime() == 77, m.mtime() == 77)).expect("stat");
    notes.value(format!("{label}: set"), shown);
}

#[test]
pub fn times_of_immutable_and_append_only_files() {
    same_as_kernel("default", |dir, notes| {
        let (file, sub, fifo) = (dir.join("file"), dir.join("sub"), dir.join("fifo"));
        fs::write(&file, b"content").and_then(|()| fs::create_dir(&sub)).expect("new ones");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600))
            .expect("mkfifo");
        symlink("file", dir.join("link")).expect("symlink");
        for path in [&file, &sub] {
            for flags in [IFlags::IMMUTABLE, IFlags::APPEND, IFlags::empty()] {
                notes.call("flags", set_flags(path, flags));
                touch_all(notes, &format!("{:?} {flags:?}", path.file_name()), path);
                if path == &file && flags == IFlags::APPEND {
                    // Open for writing, with times that the kernel keeps.
                    let open = File::options().append(true).open(path).expect("open");
                    std::io::Write::write_all(&mut &open, b"more").expect("append");
                    touch_all(notes, "written to", path);
                    notes.call("fsync", open.sync_all());
                }
            }
        }
        touch_all(notes, "fifo", &fifo);
    });
}

/// overlayfs copies a file up with the credentials of the mounter, on behalf of a thread without
/// privileges.
#[test]
fn a_file_is_copied_up_with_trusted_attributes() {
    let mut served = crate::served::Served::new("default");
    let file = served.path("file");
    fs::write(&file, b"content").expect("write");
    set_mode(&file, 0o666).expect("chmod");
    rustix::fs::setxattr(&file, "trusted.a", b"1", XattrFlags::empty()).expect("setxattr");
    let layers = extant_testkit::scratch::Scratch::new();
    let [upper, work, merged] = ["upper", "work", "merged"].map(|name| layers.dir(name));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        served.dir().display(),
        upper.display(),
        work.display()
    );
    nix::mount::mount(
        Some("overlay"),
        &merged,
        Some("overlay"),
        nix::mount::MsFlags::empty(),
        Some(options.as_str()),
    )
    .expect("an overlay");
    let append = format!("echo more >>{}/file", merged.display());
    let user = ["--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-c", &append];
    let appended = extant_testkit::tool::run("setpriv", &user);
    let kept = rustix::fs::getxattr(upper.join("file"), "trusted.a", &mut [0; 8][..]);
    let seen = std::process::Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "getfattr", "-m", "-"])
        .arg(merged.join("file"))
        .output();
    nix::mount::umount(&merged).expect("unmount");
    appended.must_succeed();
    assert_eq!(kept, Ok(1), "copied up");
    assert_eq!(seen.expect("getfattr").stdout, b"", "not shown to a user");
    served.unmount();
}

/// execve(2) closes files, and the kernel sends their cached changes on behalf of a thread that
/// `/proc` shows only in part meanwhile.
#[test]
pub fn a_program_closes_changed_files_while_it_starts() {
    let mut served = crate::served::Served::new("default");
    let path = served.path("file");
    for round in 0..40u8 {
        let file =
            File::options().create(true).write(true).truncate(false).open(&path).expect("open");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "exec 9>>\"$1\"; echo more >&9; exec true", "sh"]).arg(&path);
        std::os::unix::fs::FileExt::write_all_at(&file, &[round; 5000], 0).expect("write");
        // The child has a copy of the descriptor until it runs execve(2).
        let mut child = command.spawn().expect("a program");
        drop(file);
        assert!(child.wait().expect("it ends").success(), "round {round}");
    }
    served.unmount();
}

/// Cached times of changes from before the file became immutable arrive nevertheless.
#[test]
pub fn kept_times_of_a_sealed_file_arrive() {
    same_as_kernel("default", |dir, notes| {
        for flags in [IFlags::IMMUTABLE, IFlags::APPEND] {
            let path = dir.join(format!("{flags:?}"));
            fs::write(&path, b"content").expect("write");
            let open = File::options().append(true).open(&path).expect("open");
            std::io::Write::write_all(&mut &open, b"more").expect("append");
            fs::hard_link(&path, dir.join("other")).expect("link");
            notes.call("seal", set_flags(&path, flags));
            notes.call("fsync", open.sync_all());
            drop(open);
            notes.call("sync", nix::unistd::syncfs(File::open(dir).expect("open")));
            notes.call("unseal", set_flags(&path, IFlags::empty()));
            fs::remove_file(dir.join("other")).expect("unlink");
        }
    });
}

/// A chown that changes neither owner nor group removes set-id bits, so only the owner may call it.
#[test]
pub fn only_the_owner_may_chown_without_ids() {
    same_as_kernel("default", |dir, notes| {
        for (bits, person) in [0o4755, 0o2755, 0o2745, 0o755]
            .into_iter()
            .flat_map(|bits| [USER, 65534].map(|person| (bits, person)))
        {
            let path = dir.join("f");
            let _ = fs::remove_file(&path);
            privileged(&path, bits);
            std::os::unix::fs::chown(&path, Some(USER), Some(USER)).expect("chown");
            set_mode(&path, bits).expect("chmod");
            let done = as_user(person, person, || std::os::unix::fs::chown(&path, None, None));
            notes.call(format!("{bits:o} by {person}"), done);
            notes.call("mode", mode(&path));
        }
        let program = &["stat", "-c", "%a", "f"];
        Privileged { capability: "fowner", dir, program }.by_all(notes);
    });
}

/// A chown removes set-id bits. A caller with CAP_CHOWN must therefore be the owner, too, or have
/// CAP_FOWNER.
#[test]
pub fn set_id_files_change_hands_by_their_owner_only() {
    same_as_kernel("default", |dir, notes| {
        let path = dir.join("f");
        for bits in [0o4755, 0o2755, 0o2745, 0o755] {
            for (owner, change) in
                [(USER, "1000:5"), (USER, ":1000"), (USER, "7"), (USER, ":"), (0, "7:7")]
            {
                for capability in ["fowner", "chown", "fsetid"] {
                    let before = || {
                        let _ = fs::remove_file(&path);
                        privileged(&path, bits);
                        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("chown");
                        set_mode(&path, bits).expect("chmod");
                    };
                    let program = &["chown", change, "f"];
                    Privileged { capability, dir, program }
                        .by_all_with(notes, before, |notes| notes.call("mode", mode(&path)));
                }
            }
        }
    });
}

#[test]
pub fn whiteouts_belong_to_their_maker() {
    same_as_kernel("default", |dir, notes| {
        for (bits, name) in [(0o777, "plain"), (0o2777, "group")] {
            let below = dir.join(name);
            fs::create_dir(&below).expect("mkdir");
            std::os::unix::fs::chown(&below, Some(5), Some(6)).expect("chown");
            set_mode(&below, bits).expect("chmod");
            for person in [USER, 0] {
                let made = as_user(person, person, || {
                    let dir = File::open(&below)?;
                    File::create(below.join("f"))?;
                    let flags = rustix::fs::RenameFlags::WHITEOUT;
                    Ok::<_, std::io::Error>(rustix::fs::renameat_with(
                        &dir, "f", &dir, "moved", flags,
                    )?)
                });
                notes.call(format!("{name} by {person}"), made);
                let meta = fs::symlink_metadata(below.join("f")).expect("a whiteout");
                notes.value("owner", (meta.uid(), meta.gid(), meta.mode()));
                let _ = fs::remove_file(below.join("moved"));
                fs::remove_file(below.join("f")).expect("unlink");
            }
        }
    });
}

#[test]
pub fn an_immutable_directory_takes_no_file_without_a_name() {
    same_as_kernel("default", |dir, notes| {
        let sealed = dir.join("sealed");
        fs::create_dir(&sealed).expect("mkdir");
        for flags in [IFlags::empty(), IFlags::IMMUTABLE, IFlags::APPEND] {
            set_flags(&sealed, flags).expect("flags");
            let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
            notes.call(
                "open",
                rustix::fs::open(&sealed, flags, rustix::fs::Mode::from_raw_mode(0o600)).map(drop),
            );
        }
        set_flags(&sealed, IFlags::empty()).expect("flags");
    });
}
