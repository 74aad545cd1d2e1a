//! Mounts that allow mapped ids. A mapped mount shows the same ids as the kernel's ext4.
//! Permissions depend on the caller as on other mounts, although requests no longer carry ids.

use crate::oracle::{Notes, as_user, same_as_kernel};
use crate::rings::again;
use crate::served::allowing_id_maps;
use extant_testkit::tool::need;
use nix::libc;
use nix::mount::{MntFlags, umount2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

again! { crate::served::allowing_id_maps:
    control { trimming_knows_its_limits, a_mount_that_is_shut_down_is_recovered }
    overlays { layers_are_merged_as_on_the_kernels }
    permissions {
        set_id_bits_go_with_changes_by_others, changes_of_owner_take_set_id_bits,
        set_group_id_directories_hand_their_group_down, acls_are_inherited_and_tied_to_the_mode,
        acls_decide, set_group_id_depends_on_membership, immutable_and_append_only_files,
        flags_are_kept_and_inherited,
    }
    privileges {
        a_program_closes_changed_files_while_it_starts, administration_goes_by_capability,
        administration_needs_the_namespace_of_the_mount,
        a_user_with_the_capability_shuts_down, ordinary_users_administer_nothing,
        logged_content_needs_the_capability,
        set_id_bits_go_by_capability, set_id_files_change_hands_by_their_owner_only,
        trusted_names_are_listed_by_capability,
        times_of_immutable_and_append_only_files, kept_times_of_a_sealed_file_arrive,
    }
    ranges { writers_of_a_full_disk_are_stopped }
}

/// First id that the mapped mount shows.
const SHOWN: u32 = 10_000;
const COUNT: u32 = 3000;

/// A process in a user namespace whose ids are mapped.
struct Mapping(Child);

impl Mapping {
    fn new() -> Mapping {
        let mut command = Command::new(need("unshare"));
        command.args(["--user", "sleep", "600"]).stdin(Stdio::null()).stdout(Stdio::null());
        let mapping = Mapping(command.spawn().expect("a process"));
        let own = fs::read_link("/proc/self/ns/user").expect("a namespace");
        while fs::read_link(mapping.file("ns/user")).expect("its namespace") == own {
            std::thread::sleep(Duration::from_millis(1));
        }
        for map in ["uid_map", "gid_map"] {
            fs::write(mapping.file(map), format!("0 {SHOWN} {COUNT}")).expect(map);
        }
        mapping
    }

    fn file(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.0.id()).into()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The process sleeps; an error means that it has ended.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// A second mount of a directory, with mapped ids.
struct Mapped(PathBuf);

impl Drop for Mapped {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).expect("unmount");
    }
}

/// Mounts a directory at `at` with mapped ids.
#[expect(unsafe_code, reason = "a system call that no crate in use offers")]
fn show_mapped(dir: &Path, at: &Path) -> io::Result<Mapped> {
    let mapping = Mapping::new();
    let ids = File::open(mapping.file("ns/user"))?;
    let tree: OwnedFd =
        open_tree(CWD, dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let how = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: ids.as_raw_fd() as u64,
    };
    // SAFETY: the path is a C string, and the kernel reads as many bytes of `how` as the last
    // argument states.
    let failed = unsafe {
        let (fd, none, size) = (tree.as_raw_fd(), c"".as_ptr(), size_of_val(&how));
        libc::syscall(libc::SYS_mount_setattr, fd, none, libc::AT_EMPTY_PATH, &raw const how, size)
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    move_mount(&tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(Mapped(at.to_path_buf()))
}

fn owner(path: &Path) -> io::Result<(u32, u32, String)> {
    fs::symlink_metadata(path).map(|m| (m.uid(), m.gid(), format!("{:o}", m.mode())))
}

/// Runs all operations that carry ids or depend on them. Callers are the owner through the mapped
/// mount, another user, and root.
fn everything_of(who: &str, plain: &Path, mapped: &Path, notes: &mut Notes) {
    let names = ["file", "dir", "fifo", "link"].map(|kind| format!("{who} {kind}"));
    let [file, dir, fifo, link] = names.each_ref().map(|name| mapped.join(name));
    notes.call(format!("{who} creates"), File::create_new(&file).map(drop));
    notes.call(format!("{who} mkdir"), fs::create_dir(&dir));
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o640);
    notes.call(format!("{who} mkfifo"), nix::unistd::mkfifo(&fifo, mode));
    notes.call(format!("{who} symlink"), symlink("target", &link));
    for name in &names {
        notes.call(format!("{name} mapped"), owner(&mapped.join(name)));
        notes.call(format!("{name} plain"), owner(&plain.join(name)));
    }
    for (uid, gid) in [(SHOWN + 7, SHOWN + 8), (7, 8), (0, 0)] {
        notes.call(format!("{who} chown {uid}"), chown(&file, Some(uid), Some(gid)));
        notes.call(format!("{who} owner {uid}"), owner(&plain.join(&names[0])));
    }
    notes.call(
        format!("{who} opens another's"),
        File::options().append(true).open(mapped.join("other")).map(drop),
    );
    notes.call(format!("{who} removes"), fs::remove_file(&fifo));
}

fn mapped_ids(top: &Path, notes: &mut Notes) {
    let (plain, at) = (top.join("plain"), top.join("mapped"));
    fs::create_dir(&plain).and_then(|()| fs::create_dir(&at)).expect("directories");
    chown(&plain, Some(1), Some(1)).expect("chown");
    File::create(plain.join("other")).expect("create");
    chown(plain.join("other"), Some(5), Some(5)).expect("chown");
    let mapped = show_mapped(&plain, &at).expect("a mapped mount");
    notes.call("the directory", owner(&at));
    as_user(SHOWN + 1, SHOWN + 1, || everything_of("owner", &plain, &at, notes));
    as_user(1, 1, || everything_of("another", &plain, &at, notes));
    everything_of("root", &plain, &at, notes);
    drop(mapped);
}

#[test]
fn ids_are_mapped_as_by_the_kernel() {
    allowing_id_maps(|| same_as_kernel("default", mapped_ids));
}

/// Without the option the kernel refuses mapped mounts, and each request carries the ids of its
/// sender.
#[test]
fn ids_are_mapped_only_where_that_is_allowed() {
    let mut served = crate::served::Served::new("default");
    let [plain, at] = ["plain", "mapped"].map(|name| served.path(name));
    fs::create_dir(&plain).and_then(|()| fs::create_dir(&at)).expect("directories");
    let refused = show_mapped(&plain, &at).map(drop);
    assert_eq!(refused.map_err(|e| e.raw_os_error()), Err(Some(libc::EINVAL)));
    served.unmount();
}
