//! Mounts as layers of overlayfs, which acts with the credentials of its mounter.

use crate::oracle::{Notes, as_user, same_as_kernel};
use crate::permissions::{USER, set_mode};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

/// Prints names, types, permissions, owners, sizes and targets of a tree.
const TREE: &str = "find . -type d -printf '%P %y %m %U %G\n' \
    -o -printf '%P %y %m %U %G %s %n %l\n' | sort";

/// Prints device numbers, and the attributes that overlayfs gives to directories.
const MARKS: &str = "find . -type c -exec stat -c '%n %t %T' {} + | sort; \
    find . -type d | sort | xargs getfattr -d -m '^trusted.overlay.(opaque|redirect)$'";

/// A mounted overlay of two directories.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(dir: &Path, options: &str) -> Overlay {
        let at = dir.join("merged");
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| dir.join(name));
        for made in [&at, &upper, &work] {
            fs::create_dir(made).expect("mkdir");
        }
        let [lower, upper, work] = [&lower, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}{options}");
        mount(Some("overlay"), &at, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .expect("the kernel accepts the layers");
        Overlay(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::empty()).expect("unmount");
    }
}

fn fill(lower: &Path) -> io::Result<()> {
    fs::create_dir_all(lower.join("dir/sub"))?;
    fs::create_dir(lower.join("public"))?;
    set_mode(&lower.join("public"), 0o1777)?;
    for name in ["file", "dir/one", "dir/sub/two", "public/three"] {
        fs::write(lower.join(name), name.repeat(1000))?;
    }
    symlink("file", lower.join("link"))?;
    fs::write(lower.join("program"), b"x")?;
    chown(lower.join("program"), Some(USER), Some(USER))?;
    set_mode(&lower.join("program"), 0o6755)
}

fn append(path: &Path) -> io::Result<()> {
    File::options().append(true).open(path)?.write_all(b"more")
}

/// Copies files up, removes and replaces names of the lower directory.
fn change(merged: &Path, notes: &mut Notes) {
    let path = |name: &str| merged.join(name);
    notes.call("copy up", append(&path("file")));
    notes.call("chmod", set_mode(&path("dir/sub/two"), 0o640));
    notes.call("owner of a link", std::os::unix::fs::lchown(path("link"), Some(7), Some(7)));
    notes.call("owner of a program", chown(path("program"), Some(8), Some(8)));
    notes.call("whiteout", fs::remove_file(path("dir/one")));
    notes.call("gone", fs::metadata(path("dir/one")).map(drop));
    notes.call("a new file there", fs::write(path("dir/one"), b"new"));
    notes.call("over a lower one", fs::rename(path("dir/one"), path("dir/sub/two")));
    notes.call("a lower directory", fs::rename(path("dir/sub"), path("moved")));
    notes.call("not empty", fs::remove_dir(path("dir")));
    notes.call("remove a tree", fs::remove_dir_all(path("dir")));
    notes.call("opaque", fs::create_dir(path("dir")));
    notes.call("empty", fs::read_dir(path("dir")).map(|entries| entries.count()));
    let (dir, link) = (path("dir"), path("link"));
    notes.call("exchange", renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE));
    notes.call("trusted", rustix::fs::getxattr(&dir, "trusted.overlay.opaque", &mut [0; 9][..]));
}

/// Changes within the permissions of a user, made through the rights of the mounter.
fn change_as_user(merged: &Path, notes: &mut Notes) {
    let path = |name: &str| merged.join(name);
    notes.call("user: append", append(&path("file")));
    notes.call("user: chmod", set_mode(&path("file"), 0o777));
    notes.call("user: remove", fs::remove_file(path("file")));
    notes.call("user: remove in a sticky directory", fs::remove_file(path("public/three")));
    notes.call("user: create", fs::write(path("public/own"), b"own"));
    notes.call("user: set-id", set_mode(&path("public/own"), 0o4755));
    notes.call("user: rename", fs::rename(path("public/own"), path("public/mine")));
    notes.call("user: mkdir", fs::create_dir(path("public/dir")));
    notes.call("user: rmdir", fs::remove_dir(path("public/dir")));
}

fn layers(dir: &Path, notes: &mut Notes, options: &str) {
    let lower = dir.join("lower");
    fs::create_dir(&lower).and_then(|()| fill(&lower)).expect("a lower directory");
    let overlay = Overlay::mount(dir, options);
    change(&overlay.0, notes);
    as_user(USER, USER, || change_as_user(&overlay.0, notes));
    notes.program(&overlay.0, "sh", &["-c", TREE]);
    drop(overlay);
    for part in ["lower", "upper"] {
        notes.program(&dir.join(part), "sh", &["-c", TREE]);
        notes.program(&dir.join(part), "sh", &["-c", MARKS]);
    }
}

#[test]
pub fn layers_are_merged_as_on_the_kernels() {
    same_as_kernel("default", |dir, notes| layers(dir, notes, ""));
}

#[test]
pub fn directories_of_layers_are_redirected() {
    same_as_kernel("default", |dir, notes| layers(dir, notes, ",redirect_dir=on,index=on"));
}
