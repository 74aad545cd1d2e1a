//! Repeats all tests but the long ones with requests through io_uring, and adds tests of rings.

use crate::served::{Served, over_rings};
use crate::watchdog::await_that;
use rustix::fs::{SeekFrom, seek};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Barrier;

/// Defines tests that run tests of other modules with other mounts.
macro_rules! again {
    ($how:path: $($module:ident { $($test:ident),* $(,)? })*) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                $how(crate::$module::$test);
            })*
        })*
    };
}
pub(crate) use again;

again! { crate::served::over_rings:
    control {
        labels, trimming_knows_its_limits, a_mount_that_is_shut_down_is_recovered,
        access_times_are_kept_as_the_mount_was_asked_to, a_change_of_flags_shows_at_once,
        a_change_of_flags_shows_to_the_next_program, flags_have_two_names,
    }
    directories {
        numbers_in_entries_are_those_of_stat, every_place_can_be_sought,
        names_that_stay_are_read_exactly_once, rewinding_shows_new_names,
        a_directory_without_a_name, links_and_sizes_of_directories,
    }
    disks {
        an_unmount_returns_when_everything_is_written, the_kernel_holds_the_device,
        files_can_be_swap_files, blocks_lie_where_debugfs_says,
        blocks_have_their_places_when_they_are_asked_for, logged_content_lies_nowhere,
        a_sync_of_the_mount_reaches_the_device,
    }
    handles {
        a_handle_outlives_the_mount_but_not_the_file, a_listing_names_inodes_that_cannot_be_had,
        an_image_is_mounted_once,
    }
    mounts {
        a_tree_survives_a_mount, many_writers_at_once, an_open_file_outlives_its_name,
        attributes_and_links, holes_and_random_writes, free_space_is_given_back_to_the_device,
        a_detached_mount_ends_well_with_its_last_user,
    }
    nameless {
        files_without_a_name_are_made_and_named, files_that_get_no_name_go, the_time_of_birth_shows,
    }
    names {
        limits_of_names, renames_with_all_flags, special_files, attributes_by_name,
        results_of_open_equal_the_kernels, links,
    }
    overlays { layers_are_merged_as_on_the_kernels, directories_of_layers_are_redirected }
    panics { a_panic_of_a_handler_ends_all_changes }
    small {
        small_files_share_requests, each_descriptor_is_told_of_a_failed_writeback_once,
        replaced_files_have_their_old_or_new_content, other_ways_to_a_file_see_waiting_content,
    }
    permissions {
        set_id_bits_go_with_changes_by_others, changes_of_owner_take_set_id_bits,
        set_group_id_directories_hand_their_group_down, acls_are_inherited_and_tied_to_the_mode,
        acls_decide, set_group_id_depends_on_membership, immutable_and_append_only_files,
        immutable_and_append_only_directories, flags_are_kept_and_inherited,
        strangers_make_no_programs_of_a_directorys_group,
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
    protected {
        append_only_files_are_only_appended_to, a_cleared_append_flag_holds_for_no_request,
        descriptors_from_before_a_file_was_append_only, older_and_newer_descriptors_append_in_turn,
        parts_of_direct_appends_overtake_each_other,
        immutable_files_are_not_written_through_older_descriptors,
        mappings_do_not_change_immutable_files,
    }
    ranges {
        allocation_and_holes, collapse_and_insert_are_not_supported, data_and_holes_are_found,
        data_not_yet_written_are_found, a_search_leaves_the_pages_of_others,
        searches_meet_data_not_yet_written, limits_of_sizes, ranges_are_copied,
        usage_equals_the_kernels, blocks_show_when_fsync_returns, blocks_of_closed_files_show,
        writers_of_a_full_disk_are_stopped,
    }
    resources {
        direct_writes_to_files_with_changed_pages_end, notices_of_many_callers_arrive,
        writers_of_more_pages_than_the_kernel_keeps_end,
    }
    times {
        times_that_the_kernel_kept_wrong_are_asked_for, times_are_kept_as_they_were_set,
        changes_move_times,
    }
}

/// One of many callers: searches for unwritten data, syncs, and reads. All callers meet at a
/// barrier before they seek: each seek makes the kernel write first, which needs a slot while the
/// seeks hold theirs. A caller that failed must still reach the barrier.
fn call(path: &Path, caller: usize, together: &Barrier) -> io::Result<()> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    let round = |round: u64| {
        let (at, data) = (round * 8192, vec![caller as u8 ^ round as u8; 3000]);
        let written = file.write_all_at(&data, at);
        together.wait();
        written?;
        assert_eq!(seek(&file, SeekFrom::Data(at))?, at);
        if round.is_multiple_of(4) {
            file.sync_all()?;
        }
        let mut back = vec![0; 3000];
        file.read_exact_at(&mut back, at)?;
        assert!(back == data, "round {round} of caller {caller}");
        Ok(())
    };
    (0..12).map(round).fold(Ok(()), io::Result::and)
}

fn at_once(served: &Served, callers: usize) {
    let together = Barrier::new(callers);
    let failed: Vec<io::Error> = std::thread::scope(|scope| {
        let spawn = |caller| {
            let (path, together) = (served.path(&format!("file {caller}")), &together);
            scope.spawn(move || call(&path, caller, together))
        };
        let callers: Vec<_> = (0..callers).map(spawn).collect();
        callers.into_iter().filter_map(|caller| caller.join().expect("a caller").err()).collect()
    });
    assert!(failed.is_empty(), "{} callers failed: {:?}", failed.len(), failed.first());
}

/// More callers than slots and threads.
fn many_callers() {
    let mut served = Served::new("default");
    at_once(&served, 150);
    served.unmount();
}

#[test]
fn more_callers_than_slots() {
    over_rings(many_callers);
}

/// Fewer callers than one processor has slots, wherever they run: no seek is refused, so the kernel
/// keeps sending them.
fn usual_callers() {
    let mut served = Served::new("default");
    at_once(&served, 60);
    let file = File::create(served.path("hole")).expect("create");
    file.set_len(1 << 20).expect("truncate");
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0), "the kernel still asks for holes");
    drop(file);
    served.unmount();
}

#[test]
fn many_searches_leave_holes_known() {
    over_rings(usual_callers);
}

/// FORGET does not come through rings; without it no removed file would ever be freed.
fn files_go() {
    const FILES: u64 = 500;
    let mut served = Served::new("default");
    let free = || rustix::fs::statvfs(served.dir()).expect("statvfs").f_ffree;
    let before = free();
    for i in 0..FILES {
        fs::write(served.path(&format!("f{i}")), b"short").expect("write");
    }
    assert_eq!(free(), before - FILES);
    (0..FILES).for_each(|i| fs::remove_file(served.path(&format!("f{i}"))).expect("unlink"));
    await_that("the inodes are free", || free() == before);
    served.unmount();
}

#[test]
fn removed_files_are_freed_while_mounted() {
    over_rings(files_go);
}

/// Requests of the largest size fill a slot's payload.
fn largest() {
    let mut served = Served::new("default");
    let data: Vec<u8> = (0..9u32 << 20).map(|i| (i ^ i >> 11) as u8).collect();
    fs::write(served.path("large"), &data).expect("write");
    fs::create_dir(served.path("dir")).expect("mkdir");
    for i in 0..1500 {
        File::create(served.path(&format!("dir/{i:0200}"))).expect("create");
    }
    served.unmount();
    served.mount();
    assert!(fs::read(served.path("large")).expect("read") == data);
    assert_eq!(fs::read_dir(served.path("dir")).expect("readdir").count(), 1500);
    assert_eq!(fs::metadata(served.path("dir")).expect("stat").nlink(), 2);
    served.unmount();
}

#[test]
fn the_largest_requests_arrive() {
    over_rings(largest);
}
