//! Calls that allocate no memory, or a bounded number of times. A program of its own: its allocator
//! counts.

use extant::{Error, ErrorKind, FileOptions, Fs, mkfs};
use extant_testkit::Memory;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// Allocations of this thread, reallocations included. Jobs on other threads do not count.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all calls go to `System` with the arguments of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// The least number of allocations of 16 runs of `call` by this thread. Tables that grow now and
/// then add some to single runs.
fn allocations<R>(mut call: impl FnMut() -> R) -> u64 {
    let run = || {
        let before = ALLOCATIONS.get();
        let result = std::hint::black_box(call());
        let count = ALLOCATIONS.get() - before;
        drop(result);
        count
    };
    std::iter::repeat_with(run).take(16).min().unwrap_or(u64::MAX)
}

/// A file system in memory, judged by e2fsck when it goes, with the file `/dir/file` of 64 KiB.
fn new() -> Fs {
    let device = Arc::new(Memory::new(32 << 20));
    let fs = Fs::options().create_on(device, &mkfs::Options::default()).unwrap();
    fs.create_dir("/dir").unwrap();
    fs.write("/dir/file", vec![7; 64 << 10]).unwrap();
    fs.sync().unwrap();
    fs
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| Box::new(1_u64)), 1);
    assert_eq!(allocations(|| 1_u64), 0);
}

#[test]
fn a_lookup_of_an_absent_name_by_handle_allocates_nothing() {
    let fs = new();
    let dir = fs.open_dir("/dir").unwrap();
    let error = dir.open("absent").unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, None));
    assert_eq!(allocations(|| dir.open("absent")), 0);
    assert_eq!(allocations(|| dir.remove_file("absent")), 0);
}

#[test]
fn errors_of_handles_allocate_nothing() {
    let fs = new();
    let inode = fs.lookup("/dir/file").unwrap();
    assert_eq!(inode.xattr("user.absent").unwrap_err().kind(), ErrorKind::NoData);
    assert_eq!(allocations(|| inode.xattr("user.absent")), 0);
    let file = fs.open_file("/dir/file").unwrap();
    assert_eq!(file.write_all_at(b"x", 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(allocations(|| file.write_all_at(b"x", 0)), 0);
}

#[test]
fn errors_of_paths_keep_one_copy_of_the_path() {
    let fs = new();
    assert_eq!(fs.metadata("/dir/absent").unwrap_err().path(), Some(&b"/dir/absent"[..]));
    // The error and the path.
    assert_eq!(allocations(|| fs.metadata("/dir/absent")), 2);
    assert_eq!(size_of::<Error>(), 16);
}

#[test]
fn attributes_of_handles_and_paths_allocate_nothing() {
    let fs = new();
    let inode = fs.lookup("/dir/file").unwrap();
    assert_eq!(allocations(|| inode.metadata().unwrap()), 0);
    assert_eq!(allocations(|| fs.metadata("/dir/file").unwrap()), 0);
}

#[test]
fn reads_of_cached_pages_allocate_nothing() {
    let fs = new();
    let file = fs.open_file("/dir/file").unwrap();
    let mut buf = vec![0; 4096];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4096);
    assert_eq!(allocations(|| file.read_at(&mut buf, 8192 + 100).unwrap()), 0);
}

#[test]
fn writes_into_dirty_pages_allocate_nothing() {
    let fs = new();
    let options = FileOptions::new().write(true);
    let file = fs.open_file_with("/dir/file", &options).unwrap();
    let data = vec![1; 4096];
    file.write_all_at(&data, 0).unwrap();
    assert_eq!(allocations(|| file.write_all_at(&data, 0).unwrap()), 0);
    assert_eq!(allocations(|| file.write_all_at(&data[..10], 100).unwrap()), 0);
}

#[test]
fn opening_allocates_a_bounded_number_of_times() {
    let fs = new();
    let dir = fs.open_dir("/dir").unwrap();
    let inode = fs.lookup("/dir/file").unwrap();
    assert_eq!(allocations(|| dir.open("file").unwrap()), 0);
    let by_handle = allocations(|| inode.file(&FileOptions::new()).unwrap());
    let by_path = allocations(|| fs.open_file("/dir/file").unwrap());
    assert!(by_handle <= 2 && by_path <= 2, "{by_handle} by handle, {by_path} by path");
}
