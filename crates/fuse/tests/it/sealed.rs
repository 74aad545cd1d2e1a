//! Encrypted files on a mount: a kernel without the key lists the same names and refuses the same
//! calls.

use crate::served::Served;
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirEntryExt, symlink};
use std::path::{Path, PathBuf};

/// Makes an image with a directory of encrypted files, by the kernel and its test key.
fn sealed() -> Image {
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-O", "encrypt,orphan_file"]);
    let mount = Mount::new(image.path(), "rw,test_dummy_encryption=v2");
    let dir = mount.join("dir");
    fs::create_dir(&dir).expect("mkdir");
    for n in 0..60 {
        fs::write(dir.join(format!("{n}{}", "n".repeat(4 * n))), b"secret").expect("write");
    }
    symlink("a target", dir.join("link")).expect("symlink");
    symlink("t".repeat(300), dir.join("long link")).expect("symlink");
    mount.unmount();
    image
}

/// Sizes and targets of the symlinks.
fn targets(top: &Path) -> BTreeSet<(u64, PathBuf)> {
    let entries =
        fs::read_dir(top.join("dir")).expect("read_dir").map(|entry| entry.expect("entry"));
    let links = entries
        .filter(|entry| entry.file_type().expect("type").is_symlink())
        .map(|entry| entry.path());
    links
        .map(|link| {
            (link.symlink_metadata().expect("lstat").len(), fs::read_link(&link).expect("readlink"))
        })
        .collect()
}

/// Names with the numbers of their inodes.
type Names = BTreeSet<(u64, OsString)>;

/// Result of each call: the number of the error, if any.
type Answers = Vec<(&'static str, Option<i32>)>;

fn names(dir: &Path) -> Names {
    let entries = fs::read_dir(dir).expect("read_dir").map(|entry| entry.expect("entry"));
    entries.map(|entry| (entry.ino(), entry.file_name())).collect()
}

/// The hash in a name without key is not compared, so other names lead to the entry. No cache of
/// the kernel shows one of them after the removal of another.
#[test]
pub fn a_removed_file_is_gone_by_each_spelling() {
    let mut served = Served::of(sealed());
    for (n, (_, name)) in names(&served.path("dir")).into_iter().take(8).enumerate() {
        let mut other = name.clone().into_string().expect("base64url").into_bytes();
        // These six bits belong to the hash.
        other[3] = if other[3] == b'A' { b'B' } else { b'A' };
        let other = OsString::from(String::from_utf8(other).expect("text"));
        let [shown, alias] = [&name, &other].map(|name| served.path("dir").join(name));
        for path in [&shown, &alias] {
            fs::symlink_metadata(path).expect("both spellings lead to the file");
        }
        let (gone, left) = if n % 2 == 0 { (&shown, &alias) } else { (&alias, &shown) };
        fs::remove_file(gone).expect("unlink");
        for path in [gone, left] {
            let kind = fs::symlink_metadata(path).map_err(|e| e.kind());
            assert_eq!(kind.err(), Some(io::ErrorKind::NotFound), "{}", path.display());
        }
    }
    served.unmount();
}

/// Lists a directory without its key, and returns the names and the result of each call.
fn asked(top: &Path) -> (Names, Answers) {
    let dir = top.join("dir");
    let all = names(&dir);
    let of = |n: usize| -> PathBuf { dir.join(&all.iter().nth(n).expect("a name").1) };
    let (first, second, plain) = (of(0), of(1), top.join("plain"));
    fs::write(&plain, b"plain").expect("outside all is as ever");
    let calls: [(&str, io::Result<()>); 10] = [
        ("read", fs::read(&first).map(drop)),
        ("write", File::options().write(true).open(&first).map(drop)),
        ("append", File::options().append(true).open(&first).map(drop)),
        (
            "truncate",
            rustix::fs::open(
                &first,
                rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC,
                0.into(),
            )
            .map(drop)
            .map_err(Into::into),
        ),
        ("create", File::create(dir.join("new")).map(drop)),
        ("mkdir", fs::create_dir(dir.join("new dir"))),
        ("rename into", fs::rename(&plain, dir.join("in"))),
        ("rename out", fs::rename(&first, top.join("out"))),
        ("stat", fs::metadata(&first).map(drop)),
        ("unlink", fs::remove_file(&second)),
    ];
    (
        all,
        calls
            .into_iter()
            .map(|(what, said)| (what, said.err().and_then(|e| e.raw_os_error())))
            .collect(),
    )
}

#[test]
fn results_without_a_key_equal_the_kernels() {
    let image = sealed();
    let other = image.copy();
    let mount = Mount::new(other.path(), "");
    let theirs = targets(&mount.join("."));
    assert_eq!(theirs.len(), 2);
    let (their_names, said) = asked(&mount.join("."));
    let left = names(&mount.join("dir"));
    mount.unmount();
    let mut served = Served::of(image);
    assert_eq!(targets(served.dir()), theirs);
    let (own_names, answered) = asked(served.dir());
    assert_eq!(own_names, their_names);
    assert_eq!(answered, said);
    assert_eq!(answered[0], ("read", Some(nix::libc::ENOKEY)));
    assert_eq!(names(&served.path("dir")), left);
    served.unmount();
}
