//! Content of small files from a client with a cache of its own: it waits in pages for writeback.

use extant_blocks::{Event, RecordingDevice, replay};
use extant_engine::{Errno, Falloc, Follow, Fs, FsStats, Node, NodeKind, OpenFlags, OpenOptions};
use extant_engine::{RenameFlags, SetAttr};
use extant_testkit::cuts::each_cut;
use extant_testkit::{FeatureSet, Image, Memory, e2fsck};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Options of a file system without jobs: nothing is written unasked.
fn quiet() -> OpenOptions {
    OpenOptions::new().seed(7)
}

fn create(fs: &Fs, name: &str) -> Node {
    fs.create(&fs.root().unwrap(), name.as_bytes(), 0o644, NodeKind::File).unwrap()
}

fn write(fs: &Fs, node: &Node, content: &[u8]) {
    assert_eq!(fs.write_kept(node, 0, content, false).unwrap(), content.len());
}

fn read(fs: &Fs, path: &str) -> Option<Vec<u8>> {
    let node = fs.resolve(path, Follow::No).ok()?;
    let mut content = vec![0; node.attr().size as usize];
    assert_eq!(fs.read_direct(&node, 0, &mut content).unwrap(), content.len());
    Some(content)
}

#[test]
fn files_that_wait_share_requests_and_leave_memory() {
    const FILES: u64 = 500;
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let fs = Fs::open(image.path(), &quiet()).unwrap();
    let nodes: Vec<Node> = (0..FILES).map(|i| create(&fs, &format!("f{i}"))).collect();
    let before = FsStats::of(&fs);
    nodes.iter().enumerate().for_each(|(i, node)| write(&fs, node, &[i as u8; 4096]));
    let waiting = FsStats::of(&fs);
    assert_eq!(waiting.plugs.requests, before.plugs.requests);
    assert_eq!(waiting.pages.dirty, FILES * 4096);
    fs.sync().unwrap();
    let after = FsStats::of(&fs);
    assert_eq!(after.plug_files - before.plug_files, FILES);
    let requests = after.plugs.requests - before.plugs.requests;
    assert!(requests * 5 < FILES, "{requests} requests for {FILES} files");
    assert_eq!(after.pages.bytes, 0, "the client has the content");
    for i in 0..FILES {
        assert_eq!(read(&fs, &format!("/f{i}")).unwrap(), [i as u8; 4096]);
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

/// A file that grows beyond the bound is written past the pages, after its waiting content.
#[test]
fn a_file_that_grows_takes_its_waiting_content_along() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let fs = Fs::open(image.path(), &quiet()).unwrap();
    let node = create(&fs, "f");
    let dirty = || FsStats::of(&fs).pages.dirty;
    for (at, waits) in [(0u64, 4096), (4096, 8192), (60_000, 12_288 + 4096), (64 << 10, 0)] {
        assert_eq!(fs.write_kept(&node, at, &[at as u8 | 1; 4096], false).unwrap(), 4096);
        assert_eq!(dirty(), waits, "after a write at {at}");
    }
    let content = read(&fs, "/f").unwrap();
    assert_eq!((content.len(), content[60_000], content[64 << 10]), ((64 << 10) + 4096, 97, 1));
    // The other way round: a file that was cut waits again, once it is no longer open.
    let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap();
    file.set_len(0).unwrap();
    write(&fs, &node, &[5; 100]);
    assert_eq!(dirty(), 0, "it is being replaced");
    drop(file);
    write(&fs, &node, &[6; 100]);
    assert_eq!(dirty(), 4096);
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn places_and_holes_of_waiting_content_are_found() {
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let fs = Fs::open(image.path(), &quiet()).unwrap();
    let node = create(&fs, "f");
    assert_eq!(fs.write_kept(&node, 8192, &[1; 4096], false).unwrap(), 4096);
    assert_eq!((fs.seek(&node, 0, true).unwrap(), fs.seek(&node, 0, false).unwrap()), (8192, 0));
    assert_eq!(node.attr().blocks, 8);
    assert!(fs.place_of(&node, 8192, 4096).unwrap().is_some());
    assert_eq!(fs.place_of(&node, 0, 4096).unwrap(), None);
    // A hole is punched into waiting content; the rest stays.
    write(&fs, &node, &[2; 8192]);
    fs.allocate(&node, Falloc::Punch, 0, 4096).unwrap();
    assert_eq!(read(&fs, "/f").unwrap(), [[0; 4096], [2; 4096], [1; 4096]].concat());
    assert_eq!(fs.write_direct(&node, 4000, &[3; 200], false).unwrap(), 200);
    let content = read(&fs, "/f").unwrap();
    assert_eq!((content[3999], content[4000], content[4199], content[4200]), (0, 3, 3, 2));
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn a_full_disk_is_told_by_the_write() {
    let image = Image::mke2fs(4 << 20, &["-t", "ext4", "-b", "1024", "-N", "4096", "-m", "0"]);
    let fs = Fs::open(image.path(), &quiet()).unwrap();
    let mut kept = 0;
    loop {
        let node = create(&fs, &format!("f{kept}"));
        match fs.write_kept(&node, 0, &[kept as u8; 3000], false) {
            Ok(3000) => kept += 1,
            // A part of it has space.
            Ok(_) => break,
            Err(e) => {
                assert!(e.is(Errno::NoSpc), "{e}");
                break;
            }
        }
        assert!(kept < 4000, "the disk never is full");
    }
    let full = fs.write_kept(&create(&fs, "more"), 0, &[1; 3000], false).unwrap_err();
    assert!(full.is(Errno::NoSpc), "{full}");
    // Accepted content can be written.
    fs.sync().unwrap();
    for i in 0..kept {
        assert_eq!(read(&fs, &format!("/f{i}")).unwrap(), [i as u8; 3000]);
    }
    assert!(kept > 500, "{kept} files of 3 KiB on 4 MiB");
    fs.unmount().unwrap();
    image.assert_clean();
}

/// A file system on a device that records its changes.
fn recorded(options: &OpenOptions) -> (Vec<u8>, Arc<RecordingDevice<Memory>>, Fs) {
    let base = Image::mke2fs(4 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]).bytes();
    let device = Arc::new(RecordingDevice::new(Memory::from_bytes(&base)));
    let fs = Fs::open_device(device.clone(), options).unwrap();
    (base, device, fs)
}

/// A state to be built from the events of a recording.
fn state(before: &[u8]) -> Memory {
    let state = Memory::from_bytes(before);
    state.leave_unjudged("its recovery is judged");
    state
}

/// Recovers a state after a power cut, and gives the content of a file; e2fsck finds no problem.
fn recovered(state: &[u8], path: &str) -> Option<Vec<u8>> {
    let device = Arc::new(Memory::from_bytes(state));
    let fs = Fs::open_device(device, &quiet()).unwrap();
    let content = read(&fs, path);
    fs.unmount().unwrap();
    content
}

/// Makes the file durable with old content, runs a change of it, and commits without a sync of the
/// file. Returns the contents that the name may have after a power cut.
fn contents_during(change: impl FnOnce(&Fs)) -> Vec<Option<Vec<u8>>> {
    let (base, device, fs) = recorded(&quiet());
    write(&fs, &create(&fs, "f"), b"old");
    fs.sync().unwrap();
    let start = state(&base);
    replay(&device.take_log(), &start).unwrap();
    change(&fs);
    // Commits all that was changed, without other files' pages.
    fs.sync_node(&create(&fs, "other"), false).unwrap();
    let events = device.take_log();
    let mut found = Vec::new();
    each_cut(&start.to_vec(), &events, &mut |_, state| {
        let content = recovered(&state, "/f");
        if !found.contains(&content) {
            found.push(content);
        }
    });
    // e2fsck agrees about the last one.
    let last = state(&start.to_vec());
    replay(&events, &last).unwrap();
    let image = Image::holding(&last.to_vec());
    e2fsck::recover(image.path()).assert_clean();
    fs.unmount().unwrap();
    found.sort();
    found
}

fn old_and_new() -> Vec<Option<Vec<u8>>> {
    vec![Some(b"new content".to_vec()), Some(b"old".to_vec())]
}

#[test]
fn a_file_replaced_by_a_rename_has_its_old_or_new_content() {
    let found = contents_during(|fs| {
        let root = fs.root().unwrap();
        write(fs, &create(fs, "g"), b"new content");
        fs.rename((&root, b"g"), (&root, b"f"), RenameFlags::empty()).unwrap();
    });
    assert_eq!(found, old_and_new());
}

#[test]
fn files_that_exchange_their_names_have_their_content() {
    let found = contents_during(|fs| {
        let root = fs.root().unwrap();
        write(fs, &create(fs, "g"), b"new content");
        // The exchange may move waiting content to either name.
        fs.rename((&root, b"f"), (&root, b"g"), RenameFlags::EXCHANGE).unwrap();
    });
    assert_eq!(found, old_and_new());
}

#[test]
fn a_file_that_is_cut_and_written_has_its_old_or_new_content() {
    let found = contents_during(|fs| {
        let node = fs.resolve("/f", Follow::No).unwrap();
        fs.open_hint(&node);
        fs.set_attr(&node, &SetAttr { size: Some(0), ..Default::default() }).unwrap();
        write(fs, &node, b"new content");
        fs.close_hint(&node);
    });
    assert_eq!(found, old_and_new());
}

#[test]
fn a_synced_file_survives_a_power_cut() {
    let (base, device, fs) = recorded(&quiet());
    let node = create(&fs, "f");
    write(&fs, &node, &[7; 5000]);
    fs.sync_node(&node, true).unwrap();
    // Written again in its place: nothing but the data changes.
    write(&fs, &node, &[8; 5000]);
    fs.sync_node(&node, true).unwrap();
    let done = device.log().len();
    write(&fs, &create(&fs, "g"), &[9; 5000]);
    fs.sync_node(&fs.root().unwrap(), false).unwrap();
    let events = device.take_log();
    each_cut(&base, &events, &mut |cut, state| {
        if cut >= done {
            assert_eq!(recovered(&state, "/f").unwrap(), [8; 5000], "cut at {cut}");
        }
    });
    fs.unmount().unwrap();
}

/// The state of the device if power fails now.
fn durable(base: &[u8], device: &RecordingDevice<Memory>) -> Vec<u8> {
    let events = device.log();
    let flushed = events.iter().rposition(|event| *event == Event::Flush).unwrap_or(0);
    let found = state(base);
    replay(&events[..flushed], &found).unwrap();
    found.to_vec()
}

/// The clock commits 5 seconds after the first change of a transaction. Content that was written
/// meanwhile is in that commit, though its own time has not come. On a machine so busy that the
/// clock came before the write, the next file is looked at.
#[test]
fn a_commit_by_the_clock_takes_waiting_content_along() {
    const INTERVAL: Duration = Duration::from_millis(400);
    let (base, device, fs) = recorded(&OpenOptions::new().commit_interval(INTERVAL));
    let path = (0..100).map(|n| format!("/f{n}")).find(|path| {
        // Until the jobs of the opening, or the last transaction, have run.
        std::thread::sleep(INTERVAL * 3);
        let begun = Instant::now();
        let dir = format!("d{}", &path[1..]);
        fs.create(&fs.root().unwrap(), dir.as_bytes(), 0o755, NodeKind::Dir).unwrap();
        std::thread::sleep(INTERVAL / 2);
        write(&fs, &create(&fs, &path[1..]), b"content");
        begun.elapsed() < INTERVAL
    });
    let (path, begun) = (path.expect("a machine that is not always late"), Instant::now());
    let first = loop {
        if let Some(content) = recovered(&durable(&base, &device), &path) {
            break content;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no commit");
    };
    assert_eq!(first, b"content");
    fs.unmount().unwrap();
}

/// A device that refuses the content of one file: each cursor is told once.
#[test]
fn a_failed_writeback_is_told_to_each_cursor_once() {
    use extant_blocks::{Fault, FaultDevice, Op};
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &quiet()).unwrap();
    let node = create(&fs, "f");
    write(&fs, &node, &[1; 4096]);
    let at = fs.place_of(&node, 0, 4096).unwrap().unwrap();
    let (mut a, mut b) = (fs.error_cursor(&node), fs.error_cursor(&node));
    write(&fs, &node, &[2; 4096]);
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(at..at + 4096));
    let errno = |result: extant_engine::Result<()>| result.map_or_else(|e| e.errno(), |()| 0);
    assert_eq!(errno(fs.sync_node(&node, false)), 5);
    device.heal();
    assert_eq!(errno(fs.check_errors(&node, &mut a)), 5);
    assert_eq!(errno(fs.check_errors(&node, &mut a)), 0);
    assert_eq!(errno(fs.check_errors(&node, &mut fs.error_cursor(&node))), 0, "it came later");
    assert_eq!(errno(fs.check_errors(&node, &mut b)), 5);
    assert_eq!(read(&fs, "/f").unwrap(), [1; 4096], "a page that cannot be written is dropped");
    let _ = fs.unmount();
}

/// A client that never syncs the file system, on a dying device: files whose content was lost do
/// not fill memory, and the next sync tells the loss.
#[test]
fn files_that_lost_content_leave_memory() {
    use extant_blocks::{Fault, FaultDevice, Op};
    const FILES: usize = 1500;
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let device = Arc::new(FaultDevice::new(Memory::from_bytes(&image.bytes())));
    let fs = Fs::open_device(device.clone(), &quiet()).unwrap();
    let nodes: Vec<Node> = (0..FILES).map(|i| create(&fs, &format!("f{i}"))).collect();
    nodes.iter().for_each(|node| write(&fs, node, &[1; 4096]));
    fs.sync().unwrap();
    let place = |node| fs.place_of(node, 0, 4096).unwrap().unwrap();
    let (first, last) = nodes
        .iter()
        .map(place)
        .fold((u64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
    device.inject(Fault::new(Op::Write, 0).from_then_on().within(first..last + 4096));
    for node in &nodes {
        write(&fs, node, &[2; 4096]);
        assert_eq!(fs.place_of(node, 0, 4096).unwrap_err().errno(), 5);
    }
    device.heal();
    let last = create(&fs, "last");
    fs.sync_node(&last, false).unwrap();
    drop(nodes);
    let in_memory = || {
        while fs.shrink(10_000) > 0 {}
        FsStats::of(&fs).inodes_cached
    };
    let held = in_memory();
    assert!(held < FILES, "{held} inodes");
    assert_eq!(fs.sync().unwrap_err().errno(), 5);
    fs.sync().unwrap();
    assert!(in_memory() < 100);
    fs.unmount().unwrap();
}
