//! Files found by handle, as an NFS server finds them; names whose inodes are damaged; one image
//! mounted twice.

use crate::served::{Served, make};
use extant_engine::{Fs, OpenOptions};
use extant_testkit::debugfs;
use nix::libc;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a handle, more than any file system's.
const MOST: usize = 128;

/// `struct file_handle` with its bytes behind it.
#[repr(C)]
struct Handle {
    len: libc::c_uint,
    kind: libc::c_int,
    bytes: [u8; MOST],
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[expect(unsafe_code, reason = "a foreign call that no crate in use has")]
fn handle_of(path: &Path) -> io::Result<Handle> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let mut handle = Handle { len: MOST as libc::c_uint, kind: 0, bytes: [0; MOST] };
    let mut mount = 0;
    let place = (&raw mut handle).cast();
    // SAFETY: the path ends with NUL; `handle` is laid out as the kernel's structure and contains
    // the number of bytes that follow it.
    checked(unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), place, &raw mut mount, 0)
    })?;
    Ok(handle)
}

#[expect(unsafe_code, reason = "a foreign call that no crate in use has")]
fn open_by_handle(dir: &Path, handle: &mut Handle) -> io::Result<File> {
    let dir = File::open(dir)?;
    let place = (&raw mut *handle).cast();
    // SAFETY: the kernel has filled `handle`. The new descriptor has no other owner.
    unsafe {
        let fd = checked(libc::open_by_handle_at(dir.as_raw_fd(), place, libc::O_RDONLY))?;
        Ok(File::from_raw_fd(fd))
    }
}

fn read(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("readable");
    bytes
}

#[test]
pub fn a_handle_outlives_the_mount_but_not_the_file() {
    let mut served = Served::new("orphan_file");
    std::fs::create_dir_all(served.path("dir/sub")).expect("mkdir");
    std::fs::write(served.path("dir/sub/file"), b"content").expect("write");
    let mut file = handle_of(&served.path("dir/sub/file")).expect("a handle");
    let mut dir = handle_of(&served.path("dir/sub")).expect("a handle");
    let mut root = handle_of(served.dir()).expect("a handle");
    let number = std::fs::metadata(served.path("dir/sub")).expect("stat").ino();
    assert_eq!(read(open_by_handle(served.dir(), &mut file).expect("open")), b"content");
    served.unmount();
    served.mount();
    // Nothing was looked up since.
    assert_eq!(
        read(open_by_handle(served.dir(), &mut file).expect("open after a remount")),
        b"content"
    );
    let found = open_by_handle(served.dir(), &mut dir).expect("open a directory");
    assert_eq!(found.metadata().expect("stat").ino(), number);
    open_by_handle(served.dir(), &mut root).expect("open the root");
    drop(found);
    std::fs::rename(served.path("dir/sub/file"), served.path("moved")).expect("rename");
    assert_eq!(
        read(open_by_handle(served.dir(), &mut file).expect("open under another name")),
        b"content"
    );
    std::fs::remove_file(served.path("moved")).expect("unlink");
    std::fs::write(served.path("next"), b"other").expect("write");
    served.unmount();
    served.mount();
    let gone = open_by_handle(served.dir(), &mut file).expect_err("the file is gone");
    assert_eq!(gone.raw_os_error(), Some(libc::ESTALE), "{gone}");
    served.unmount();
}

#[test]
pub fn a_listing_names_inodes_that_cannot_be_had() {
    let mut served = Served::new("default");
    for name in ["one", "two", "three"] {
        std::fs::write(served.path(name), name).expect("write");
    }
    served.unmount();
    served.leave_unjudged("a name leads nowhere");
    debugfs::write(served.image(), "clri two");
    served.mount();
    let list = || {
        let entries = std::fs::read_dir(served.dir()).expect("readdir");
        let mut names: Vec<_> = entries
            .map(|e| e.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(), ["lost+found", "one", "three", "two"]);
    let damaged = std::fs::metadata(served.path("two")).expect_err("no inode");
    assert_eq!(damaged.raw_os_error(), Some(libc::ESTALE), "{damaged}");
    assert_eq!(std::fs::read(served.path("three")).expect("read"), b"three");
    assert_eq!(list(), ["lost+found", "one", "three", "two"]);
    served.let_go();
}

#[test]
pub fn an_image_is_mounted_once() {
    let mut served = Served::of(make("default"));
    let second = Fs::open(served.image(), &OpenOptions::new()).map(drop).expect_err("it is in use");
    assert_eq!(second.errno(), libc::EBUSY, "{second}");
    assert!(second.to_string().contains("in use"), "{second}");
    std::fs::write(served.path("file"), b"still served").expect("write");
    served.unmount();
}
