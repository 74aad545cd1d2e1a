//! Mounts for writing on which the kernel opens files without a request (`open=fast`): tests of
//! other mounts, and each difference from them.

use crate::control::shut_down;
use crate::ranges::write_until_refused;
use crate::rings::again;
use crate::served::{Served, make};
use crate::watchdog::{await_that, await_tick_after};
use extant_engine::{AccessTimes, Fs, OpenOptions};
use extant_fuse::{MountOptions, mount};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::{debugfs, e2fsck};
use nix::libc::{ENOSPC, O_NOATIME};
use rustix::fs::{Advice, IFlags, fadvise, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

again! { crate::served::opening_fast:
    control {
        a_mount_that_is_shut_down_is_recovered, a_change_of_flags_shows_at_once,
        a_change_of_flags_shows_to_the_next_program,
    }
    disks {
        an_unmount_returns_when_everything_is_written, files_can_be_swap_files,
        blocks_lie_where_debugfs_says, blocks_have_their_places_when_they_are_asked_for,
        a_sync_of_the_mount_reaches_the_device,
    }
    handles { a_handle_outlives_the_mount_but_not_the_file }
    mounts {
        a_tree_survives_a_mount, many_writers_at_once, an_open_file_outlives_its_name,
        attributes_and_links, holes_and_random_writes,
        a_detached_mount_ends_well_with_its_last_user,
    }
    nameless { files_without_a_name_are_made_and_named, files_that_get_no_name_go }
    names { renames_with_all_flags, special_files, results_of_open_equal_the_kernels }
    overlays { layers_are_merged_as_on_the_kernels }
    permissions { set_id_bits_go_with_changes_by_others, acls_decide }
    privileges {
        a_program_closes_changed_files_while_it_starts, logged_content_needs_the_capability,
        set_id_bits_go_by_capability,
    }
    ranges {
        allocation_and_holes, data_and_holes_are_found, data_not_yet_written_are_found,
        a_search_leaves_the_pages_of_others, searches_meet_data_not_yet_written, limits_of_sizes,
        ranges_are_copied, usage_equals_the_kernels, blocks_show_when_fsync_returns,
        blocks_of_closed_files_show, writers_of_a_full_disk_are_stopped,
    }
    resources {
        direct_writes_to_files_with_changed_pages_end, notices_of_many_callers_arrive,
        writers_of_more_pages_than_the_kernel_keeps_end,
    }
    small {
        small_files_share_requests, replaced_files_have_their_old_or_new_content,
        other_ways_to_a_file_see_waiting_content,
    }
    times {
        times_that_the_kernel_kept_wrong_are_asked_for, times_are_kept_as_they_were_set,
        changes_move_times,
    }
}

/// Mounts an image, with the kernel's cache of writes or not.
fn mounted(image: Image, writeback_cache: bool) -> Served {
    let mut served = Served::unmounted(image);
    served.options.writeback_cache = writeback_cache;
    served.options.fast_opens = Some(true);
    served.mount();
    served
}

/// Opens a file that is there, so that the kernel needs no CREATE.
fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

/// An open of these files, or one for writing, fails on other mounts.
#[test]
fn images_whose_files_opens_would_refuse_are_refused() {
    let image = make("default");
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let ino = fs.create(&root, b"f", 0o644, extant_engine::NodeKind::File).expect("create").ino();
    drop(root);
    fs.unmount().expect("unmount");
    image.leave_unjudged("its flags name features that it lacks");
    let dir = image.scratch().dir("mnt");
    let options = MountOptions { fast_opens: Some(true), ..MountOptions::default() };
    let mount_it = || {
        let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
        mount(fs, &dir, &options)
    };
    let usual = debugfs::stat(image.path(), "/f").flags;
    for flag in [0x10, 0x20, 0x800, 0x10_0000] {
        debugfs::write(image.path(), &format!("set_inode_field /f flags {}", usual | flag));
        let refused = mount_it().expect_err("its opens must be requests").to_string();
        assert!(refused.contains(&format!("inode {ino} is immutable")), "{flag:x}: {refused}");
    }
    debugfs::write(image.path(), &format!("set_inode_field /f flags {usual}"));
    mount_it().expect("no open would be refused").unmount().expect("unmount");
}

#[test]
fn flags_that_opens_would_check_cannot_be_set() {
    let mut served = mounted(make("default"), true);
    fs::create_dir(served.path("d")).expect("mkdir");
    File::create(served.path("f")).expect("create");
    for name in ["f", "d"] {
        let open = File::open(served.path(name)).expect("open");
        let before = ioctl_getflags(&open).expect("flags");
        for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
            assert_eq!(ioctl_setflags(&open, before | flag), Err(Errno::OPNOTSUPP), "{name}");
        }
        assert_eq!(ioctl_getflags(&open), Ok(before));
        assert_eq!(ioctl_setflags(&open, before | IFlags::NOATIME), Ok(()));
    }
    served.unmount();
}

/// Makes the kernel drop its pages of a file.
fn drop_pages(file: &File) {
    file.sync_all().expect("fsync");
    fadvise(file, 0, None, Advice::DontNeed).expect("fadvise");
}

/// The kernel tells of a read only if it lacks the content.
#[test]
fn reads_of_content_that_the_kernel_lacks_set_access_times() {
    let mut served = Served::unmounted(make("default"));
    served.options.access_times = Some(AccessTimes::Always);
    served.options.fast_opens = Some(true);
    served.mount();
    let path = served.path("f");
    fs::write(&path, b"content").expect("write");
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    let sets = |read: &dyn Fn()| {
        let times = fs::FileTimes::new().set_accessed(past);
        File::open(&path).and_then(|file| file.set_times(times)).expect("utimens");
        read();
        fs::metadata(&path).expect("stat").accessed().expect("atime") != past
    };
    let read = || assert_eq!(fs::read(&path).expect("read"), b"content");
    assert!(!sets(&read), "the kernel has the content from the write");
    assert!(!sets(&|| drop(File::open(&path).expect("open"))));
    let silent = File::options().read(true).custom_flags(O_NOATIME).open(&path).expect("open");
    drop_pages(&silent);
    assert!(sets(&read));
    assert!(!sets(&read), "the kernel has the content from the last read");
    drop_pages(&silent);
    assert!(!sets(&|| assert_eq!(silent.read_at(&mut [0; 7], 0).expect("read"), 7)));
    drop_pages(&silent);
    let writes = File::options().write(true).open(&path).expect("open");
    assert!(!sets(&|| writes.write_all_at(b"C", 0).expect("write")), "the kernel reads the page");
    drop((silent, writes));
    served.unmount();
}

/// As on other mounts, though the kernel does not say which descriptor can write.
#[test]
fn writers_of_a_file_that_was_there_are_stopped_on_a_full_disk() {
    const BYTES: u64 = 32 << 20;
    let mut served = mounted(FeatureSet::named("default").make_sized(BYTES), true);
    let (first, second) = (served.path("first"), served.path("second"));
    fs::write(&first, vec![1; 4 << 20]).expect("write");
    fs::write(&second, b"x").expect("write");
    let (writer, reader) = (open(&second), File::open(&second).expect("open"));
    writer.sync_all().expect("fsync");
    let (at, errno) = write_until_refused(&writer, 0, 20 * BYTES);
    assert_eq!(errno, Some(ENOSPC), "{at} bytes were accepted");
    assert_eq!(reader.read_at(&mut [0; 8192], at - 4096).expect("reads go on"), 4096);
    fs::remove_file(&first).expect("unlink");
    // The space of the file is free when the kernel has forgotten it.
    await_that("space is free again", || writer.write_all_at(&[9; 4096], 0).is_ok());
    writer.sync_all().expect("fsync");
    drop((writer, reader));
    // The file system also reports the loss once: consume that error.
    let _ = nix::unistd::syncfs(File::open(served.dir()).expect("open"));
    served.unmount();
}

/// The server counts no opens: the kernel forgets the file after the last close.
#[test]
fn a_removed_file_is_freed_at_its_last_close() {
    for writeback_cache in [true, false] {
        let mut served = mounted(make("default"), writeback_cache);
        let path = served.path("f");
        let free = || {
            let stat = rustix::fs::statvfs(served.dir()).expect("statvfs");
            (stat.f_ffree, stat.f_bfree)
        };
        let before = free();
        fs::write(&path, vec![1; 4 << 20]).expect("write");
        let (a, b) = (open(&path), File::open(&path).expect("open"));
        fs::remove_file(&path).expect("unlink");
        drop_pages(&a);
        a.write_all_at(&[2; 4096], 4 << 20).expect("write");
        a.sync_all().expect("fsync");
        drop(a);
        let mut last = [0; 4096];
        b.read_exact_at(&mut last, 4 << 20).expect("read");
        assert_eq!(last, [2; 4096]);
        assert_eq!(free().0, before.0 - 1, "it is open");
        drop(b);
        await_that("the file is freed", || free() == before);
        served.unmount();
    }
}

/// Other mounts refuse such an open. Here a later call has the error.
#[test]
fn opens_for_writing_succeed_after_the_end_of_changes() {
    for fast in [true, false] {
        let mut served = Served::unmounted(make("default"));
        served.options.fast_opens = Some(fast);
        served.mount();
        let path = served.path("f");
        fs::write(&path, b"kept").expect("write");
        open(&path).sync_all().expect("fsync");
        shut_down(served.dir()).expect("shutdown");
        let opened = File::options().write(true).open(&path);
        assert_eq!(opened.is_ok(), fast);
        if let Ok(file) = opened {
            let written = file.write_all_at(b"lost", 0).and_then(|()| file.sync_all());
            assert!(written.is_err());
        }
        // The file system also reports the loss once: consume that error.
        let _ = nix::unistd::syncfs(File::open(served.dir()).expect("open"));
        served.let_go();
        e2fsck::recover(served.image()).assert_clean();
        assert_eq!(debugfs::read(served.image(), "cat /f"), "kept");
    }
}

/// The server is not told of the close, and asks the kernel for a while to forget the file.
#[test]
fn a_change_of_flags_shows_after_the_close() {
    let mut served = mounted(make("default"), true);
    let path = served.path("f");
    File::create(&path).expect("create");
    let ctime = || fs::metadata(&path).map(|m| (m.ctime(), m.ctime_nsec())).expect("stat");
    let before = ctime();
    await_tick_after(before);
    let held = File::open(&path).expect("open");
    let flags = ioctl_getflags(&held).expect("flags");
    ioctl_setflags(&held, flags | IFlags::NOATIME).expect("the ioctl");
    std::thread::sleep(Duration::from_millis(30));
    drop(held);
    await_that("the change time shows", || ctime() > before);
    served.unmount();
}
