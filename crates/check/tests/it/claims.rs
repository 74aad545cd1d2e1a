//! Claims against other hosts (MMP), held while the changes of this crate are planned and written.
//! Another host is an engine over an overlay of the same device, e2fsck, or the kernel.

use crate::edits::put;
use crate::oracle::complaints;
use extant_blocks::{BlockDevice, Event, MemDevice, OverlayDevice, RecordingDevice};
use extant_check::repair::{Repair, chosen_superblock};
use extant_check::resize::{NewSize, Resize};
use extant_check::tune::{Tune, TuneChanges, TuneError};
use extant_engine::{Errno, Error, Fs, HostClaim, OpenOptions};
use extant_format::mmp::{MMP_MAGIC, MMP_SEQ_CLEAN, MMP_SEQ_FSCK, MMP_SEQ_MAX, Mmp};
use extant_format::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_format::{BlockNr, Features, Incompat, Superblock};
use extant_testkit::Image;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use std::ffi::OsStr;
use std::io::{self, Cursor};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

const MIB: u64 = 1 << 20;

/// Claims the file system on a device in memory.
pub fn claimed(memory: &Arc<MemDevice>) -> HostClaim {
    let superblock = superblock(memory);
    HostClaim::take(memory.clone(), Some(&superblock), None).expect("a free file system")
}

fn superblock(device: &Arc<MemDevice>) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).expect("memory");
    Superblock::parse(&bytes).expect("a superblock")
}

fn image(args: &[&str]) -> Image {
    let image = Image::mke2fs(16 * MIB, &[&["-t", "ext4", "-b", "1024"], args].concat());
    image.leave_unjudged("its copy in memory is changed");
    image
}

fn memory(image: &Image) -> Arc<MemDevice> {
    Arc::new(MemDevice::from_bytes(&image.bytes()))
}

/// The bytes of the block on a device.
fn place(device: &Arc<MemDevice>) -> Range<u64> {
    let sb = superblock(device);
    let start = sb.mmp_block().0 * u64::from(sb.block_size());
    start..start + u64::from(sb.block_size())
}

fn block(device: &dyn BlockDevice, place: &Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (place.end - place.start) as usize];
    device.read_exact_at(&mut bytes, place.start).expect("memory");
    bytes
}

fn sequence(device: &dyn BlockDevice, place: &Range<u64>) -> u32 {
    Mmp::parse(&block(device, place), None).expect("a block of MMP").seq
}

/// Whether another host is refused. It reads the same blocks, and this process may not open the
/// device twice.
fn is_refused(memory: &Arc<MemDevice>) -> bool {
    let there = Arc::new(OverlayDevice::new(memory.clone(), 1024, 16 << 20));
    match Fs::open_device(there, &OpenOptions::new()) {
        Ok(fs) => fs.unmount().map(|()| false).expect("an overlay"),
        Err(error) => {
            assert!(error.is(Errno::Busy), "{error}");
            true
        }
    }
}

#[track_caller]
fn judge(memory: &MemDevice) {
    let image = Image::holding(&memory.to_vec());
    assert_eq!(complaints(image.path()), [""; 0]);
}

fn features(list: &str) -> TuneChanges {
    TuneChanges { features: Some(list.into()), ..TuneChanges::default() }
}

/// A device whose writes wait, but for those of the block of MMP.
#[derive(Debug)]
struct Gate {
    inner: Arc<MemDevice>,
    free: Range<u64>,
    /// A write has come, and writes may go on.
    state: Mutex<[bool; 2]>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, which: usize) {
        self.state.lock().expect("no panic")[which] = true;
        self.changed.notify_all();
    }

    fn wait(&self, which: usize) {
        let state = self.state.lock().expect("no panic");
        drop(self.changed.wait_while(state, |state| !state[which]).expect("no panic"));
    }
}

impl BlockDevice for Gate {
    extant_blocks::forward_device!(self => self.inner; len, name, read_exact_at, flush, claim);

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if !self.free.contains(&offset) {
            self.set(0);
            self.wait(1);
        }
        self.inner.write_all_at(data, offset)
    }
}

/// The growth takes longer than the interval after which other hosts would take over.
#[test]
fn a_long_resize_keeps_other_hosts_away() {
    let image = image(&["-O", "mmp"]);
    let mut bytes = image.bytes();
    bytes.resize(bytes.len() + (24 << 20), 0);
    let memory = Arc::new(MemDevice::from_bytes(&bytes));
    let place = place(&memory);
    let gate = Arc::new(Gate {
        inner: memory.clone(),
        free: place.clone(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let claim = HostClaim::take(gate.clone(), Some(&superblock(&memory)), None).expect("free");
    std::thread::scope(|scope| {
        let device = claim.device();
        let resize = scope.spawn(move || {
            let plan = Resize::new(device).plan(NewSize::Bytes(40 * MIB)).expect("a plan");
            plan.apply().map(drop).expect("memory")
        });
        gate.wait(0);
        // Two waits of another host, of eleven seconds each.
        let refused = [is_refused(&memory), is_refused(&memory)];
        gate.set(1);
        resize.join().expect("no panic");
        assert_eq!(refused, [true; 2]);
    });
    assert!((1..=MMP_SEQ_MAX).contains(&sequence(&*memory, &place)));
    claim.release().expect("its own");
    assert_eq!(sequence(&*memory, &place), MMP_SEQ_CLEAN);
    assert_eq!(superblock(&memory).blocks_count(), 40 << 10);
    judge(&memory);
    assert!(!is_refused(&memory));
}

/// A change that fails, and one that is not made, leave the block as it was, byte for byte.
#[test]
fn a_change_that_is_not_made_leaves_the_block_as_it_was() {
    let image = image(&["-O", "mmp"]);
    let (memory, before) = (memory(&image), image.bytes());
    let claim = claimed(&memory);
    assert!(memory.to_vec() != before, "other hosts see the claim");
    let error = Tune::new(claim.device()).apply(&features("bigalloc")).expect_err("a refusal");
    assert!(matches!(error, TuneError::Unsupported(_)), "{error}");
    let plan = Resize::new(claim.device()).plan(NewSize::Bytes(12 * MIB)).expect("a plan");
    drop((plan, claim));
    assert!(memory.to_vec() == before);
}

#[test]
fn nothing_is_written_once_another_host_has_the_file_system() {
    let image = image(&["-O", "mmp"]);
    let memory = memory(&image);
    let claim = claimed(&memory);
    let device = claim.device();
    let place = place(&memory);
    let mut theirs = block(&*memory, &place);
    let seed = Some(superblock(&memory).fs_seed());
    Mmp { seq: 77, node_name: "theirs".into(), ..Mmp::default() }.encode(&mut theirs, seed);
    memory.write_all_at(&theirs, place.start).expect("memory");
    let taken = memory.to_vec();
    assert!(claim.check().is_err_and(|error| error.is(Errno::Busy)));
    for refused in [
        device.write_all_at(&[1; 1024], 8 * MIB),
        device.write_zeroes(8 * MIB, 1024),
        device.discard(8 * MIB, 1024),
        device.write_all_at(&[1; 1024], place.start),
    ] {
        let error = refused.expect_err("a refusal");
        assert!(error.to_string().contains("another host has taken"), "{error}");
    }
    let tuned = Tune::new(device).apply(&features("^metadata_csum"));
    assert!(tuned.is_err_and(|error| error.to_string().contains("another host has taken")));
    assert!(claim.release().is_err_and(|error| error.is(Errno::Busy)));
    assert!(memory.to_vec() == taken, "something was written to the other host's file system");
}

/// The power of a host fails during a repair, and during another change.
#[test]
fn the_block_of_a_killed_change_is_treated_as_the_format_has_it() {
    let made = image(&["-O", "mmp"]);
    let memory = memory(&made);
    let sb = superblock(&memory);
    let claim = HostClaim::take_for_check(memory.clone(), Some(&sb), None).expect("free");
    assert_eq!(sequence(&*memory, &place(&memory)), MMP_SEQ_FSCK);
    let killed = Image::holding(&memory.to_vec());
    drop(claim);
    killed.leave_unjudged("its MMP block says that it is being checked");
    let refused = Fs::open(killed.path(), &OpenOptions::new());
    assert!(refused.is_err_and(|error| error.is(Errno::Busy)));
    let checked = run("e2fsck", &["-fy".as_ref(), killed.path().as_os_str()]);
    assert_eq!(checked.code & 8, 8, "e2fsck has an operational error: {checked}");
    assert!(Mount::try_new(killed.path(), "").is_err(), "the kernel mounts it");
    let clear = ["-f", "-E", "clear_mmp"].map(OsStr::new);
    run("tune2fs", &[&clear[..], &[killed.path().as_os_str()]].concat()).must_succeed();
    assert_eq!(complaints(killed.path()), [""; 0]);

    let claim = claimed(&memory);
    let killed = Image::holding(&memory.to_vec());
    drop(claim);
    let bytes = Arc::new(MemDevice::from_bytes(&killed.bytes()));
    assert!((1..=MMP_SEQ_MAX).contains(&sequence(&*bytes, &place(&bytes))));
    // Both wait, and go on: nothing renews the block.
    assert!(!is_refused(&bytes));
    let checked = run("e2fsck", &["-fy".as_ref(), killed.path().as_os_str()]);
    assert!(checked.code <= 1, "{checked}");
    let bytes = MemDevice::from_bytes(&killed.bytes());
    assert_eq!(sequence(&bytes, &place(&memory)), MMP_SEQ_CLEAN);
}

/// A block that no program can read is one that no host writes; a repair makes a new one.
#[test]
fn a_damaged_block_is_repaired_under_a_claim() {
    let image = image(&["-O", "mmp"]);
    let memory = memory(&image);
    let place = place(&memory);
    memory.write_all_at(&[0; 4], place.start).expect("memory");
    let damaged = memory.to_vec();
    let sb = superblock(&memory);
    let refused = HostClaim::take(memory.clone(), Some(&sb), None).expect_err("damage");
    assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
    let chosen = chosen_superblock(&*memory);
    let claim = HostClaim::take_for_check(memory.clone(), chosen.as_ref(), None);
    let claim = claim.expect("no other host writes it");
    assert_eq!(sequence(&*memory, &place), MMP_SEQ_FSCK);
    let mut found = Vec::new();
    let plan = Repair::new(claim.device()).plan(&mut |finding| found.push(finding.to_string()));
    assert!(found.iter().any(|finding| finding.contains("mmp")), "{found:?}");
    let plan = plan.expect("a plan");
    let mut undo = Vec::new();
    plan.save_undo(&mut undo).expect("memory");
    plan.apply().expect("memory");
    assert_eq!(sequence(&*memory, &place), MMP_SEQ_FSCK, "the claim goes on");
    extant_check::repair::restore(&*claim.device(), &mut Cursor::new(&undo)).expect("memory");
    drop(claim);
    assert!(memory.to_vec() == damaged, "a repair is taken back with the block");
    let claim = HostClaim::take_for_check(memory.clone(), Some(&sb), None).expect("free");
    Repair::new(claim.device()).plan(&mut |_| ()).expect("a plan").apply().expect("memory");
    claim.release().expect("its own");
    assert_eq!(sequence(&*memory, &place), MMP_SEQ_CLEAN);
    judge(&memory);
}

/// A replay would undo the claim of the host that replays.
#[test]
fn the_block_is_in_no_transaction() {
    for (args, list) in [("mmp,^metadata_csum", "metadata_csum"), ("mmp", "^metadata_csum")] {
        let image = image(&["-J", "size=1", "-O", args]);
        let memory = memory(&image);
        let place = place(&memory);
        let claim = claimed(&memory);
        let recorded = Arc::new(RecordingDevice::new(claim.device()));
        Tune::new(recorded.clone()).apply(&features(list)).expect("a change");
        for event in recorded.log() {
            let Event::Write { offset, data } = event else { continue };
            for (at, block) in (offset..).step_by(1024).zip(data.chunks(1024)) {
                let is_mmp = block.starts_with(&MMP_MAGIC.to_le_bytes());
                assert!(!is_mmp || at == place.start, "{list}: a copy at byte {at}");
            }
        }
        assert_ne!(sequence(&*memory, &place), MMP_SEQ_CLEAN, "the claim goes on");
        claim.release().expect("its own");
        judge(&memory);
        assert!(!is_refused(&memory), "{list}");
    }
}

/// A superblock with another place of the block, and one without.
#[test]
fn a_claim_follows_its_block() {
    let image = image(&["-O", "mmp"]);
    let memory = memory(&image);
    let (old, new) = (place(&memory), 12 * MIB..12 * MIB + 1024);
    let claim = claimed(&memory);
    let device = claim.device();
    let clean = block(&*device, &old);
    assert_eq!(Mmp::parse(&clean, None).expect("a block").seq, MMP_SEQ_CLEAN, "as programs see it");
    let write = |change: &dyn Fn(&mut Superblock)| {
        let mut sb = superblock(&memory);
        change(&mut sb);
        device.write_all_at(&sb.seal(), SUPERBLOCK_OFFSET).expect("memory");
    };
    // Without a block there the claim stays.
    write(&|sb| sb.set_mmp_block(BlockNr(13 << 10)));
    assert_eq!(sequence(&*device, &old), MMP_SEQ_CLEAN);
    device.write_all_at(&clean, new.start).expect("memory");
    write(&|sb| sb.set_mmp_block(BlockNr(12 << 10)));
    assert!((1..=MMP_SEQ_MAX).contains(&sequence(&*memory, &new)), "claimed before");
    assert_eq!(block(&*device, &new), clean);
    assert_eq!(sequence(&*device, &old), sequence(&*memory, &old), "it is a block as any other");
    claim.check().expect("its own");
    device.write_all_at(&[5; 1024], old.start).expect("memory");
    drop(claim);
    assert_eq!(block(&*memory, &new), clean);
    assert_eq!(block(&*memory, &old), [5; 1024]);

    let claim = claimed(&memory);
    let device = claim.device();
    let mut sb = superblock(&memory);
    let features = Features { incompat: sb.incompat().difference(Incompat::MMP), ..sb.features() };
    sb.set_features(features);
    device.write_all_at(&sb.seal(), SUPERBLOCK_OFFSET).expect("memory");
    device.write_all_at(&[6; 1024], new.start).expect("memory");
    claim.check().expect("nothing is claimed");
    claim.release().expect("nothing is claimed");
    assert_eq!(block(&*memory, &new), [6; 1024]);
}

/// The engine writes a file under the claim of its caller.
#[test]
fn a_file_system_opens_under_a_claim() {
    let image = image(&["-O", "mmp"]);
    let memory = memory(&image);
    let claim = claimed(&memory);
    let fs = Fs::open_device(claim.device(), &OpenOptions::new().under_claim(&claim));
    let fs = fs.expect("a file system");
    put(&fs, "/file", b"text");
    assert!(is_refused(&memory));
    fs.unmount().expect("memory");
    assert!(is_refused(&memory));
    claim.release().expect("its own");
    assert!(!is_refused(&memory));
    judge(&memory);
}
