//! Files found by handle, as an NFS server finds them; names whose inodes are damaged; one image
//! mounted twice.

use crate::served::{Served, make};
use extant_engine::{Fs, OpenOptions};
use extant_testkit::debugfs;
use extant_testkit::image::Image;
use nix::libc;
use rustix::fs::XattrFlags;
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

/// Returns the handle that the kernel makes of a node id and a generation.
fn forged(node: u64, generation: u32) -> Handle {
    /// FILEID_INO64_GEN of FUSE: the node id's halves, the generation.
    const KIND: libc::c_int = 0x81;
    let mut handle = Handle { len: 12, kind: KIND, bytes: [0; MOST] };
    let words = [(node >> 32) as u32, node as u32, generation];
    let bytes = words.map(u32::to_ne_bytes).concat();
    handle.bytes[..12].copy_from_slice(&bytes);
    handle
}

/// A client of NFS may send any handle. Inodes of the file system itself have generation 0.
#[test]
pub fn forged_handles_find_nothing() {
    let features = "quota,project,orphan_file,ea_inode,resize_inode";
    let mut served = Served::of(Image::mke2fs(64 << 20, &["-t", "ext4", "-O", features]));
    let path = served.path("file");
    std::fs::write(&path, b"content").expect("write");
    rustix::fs::setxattr(&path, "user.large", &[1; 20_000], XattrFlags::empty()).expect("a value");
    let number = std::fs::metadata(&path).expect("stat").ino();
    served.unmount();
    let stat = debugfs::read(served.image(), "stat /file");
    let generation = stat.split("Generation: ").nth(1).and_then(|rest| rest.split(' ').next());
    let generation = generation.expect("a generation").parse().expect("a number");
    // The value's inode is the only one behind the file's.
    let value = (number + 1..number + 20)
        .map(|ino| (ino, debugfs::read(served.image(), &format!("stat <{ino}>"))))
        .find_map(|(ino, stat)| {
            let rest = stat.split_once("Links: 1").and(stat.split_once("Generation: "))?.1;
            Some((ino, rest.split(' ').next()?.parse().ok()?))
        });
    served.mount();
    let found = read(open_by_handle(served.dir(), &mut forged(number, generation)).expect("open"));
    assert_eq!(found, b"content");
    let own = (2..11).chain([12, 13]).map(|node| (node, 0));
    let absent = [(0, 0), (2000, 0), (1 << 31, 0), (u64::from(u32::MAX), 0), (u64::MAX, 0)];
    let far = [(1 << 32 | number, generation), (1 << 63 | 2, 0), (number, generation ^ 1)];
    for (node, generation) in own.chain(absent).chain(far).chain([value.expect("a value's inode")])
    {
        let refused = open_by_handle(served.dir(), &mut forged(node, generation));
        let refused = refused.expect_err("no inode that users may have").raw_os_error();
        assert_eq!(refused, Some(libc::ESTALE), "node {node}, generation {generation}");
    }
    std::fs::write(served.path("next"), b"still writable").expect("write");
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
