//! Changes that no journal makes whole, with a redo file: not begun, or whole by it, after a cut at
//! any write.

use crate::inode_sizes::inodes_of;
use crate::oracle::complaints;
use crate::switching::{
    EXT2, Kind, NO_JOURNAL, NO_JOURNAL_NO_SUMS, SUMS, every_or, features, filled, read, superblock,
};
use extant_blocks::{BlockDevice, Event, Fault, FaultDevice, MemDevice, Op, RecordingDevice};
use extant_check::resize::{NewSize, Resize, ResizeError};
use extant_check::tune::{JournalSize, ReservedShare, Tune, TuneChanges};
use extant_check::{RedoError, RedoRecord, finish_redo};
use extant_format::superblock::State;
use extant_testkit::Image;
use extant_testkit::cuts::chosen_cuts;
use std::io::{self, Cursor};
use std::sync::Arc;

pub const NO_JOURNAL_META_BG: Kind =
    &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^has_journal,meta_bg,^resize_inode"];
pub const NO_JOURNAL_MMP: Kind =
    &["-t", "ext4", "-b", "1024", "-O", "^has_journal,mmp,^metadata_csum"];

/// Makes a redo file durable.
pub type Save<'s> = dyn FnMut(&RedoRecord<'_>) -> io::Result<()> + 's;

/// A change with its redo file.
pub struct Redone {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    events: Vec<Event>,
    /// The number of events before the file is durable.
    begin: usize,
    pub file: Vec<u8>,
}

impl Redone {
    /// Records the writes of a change, which must make one redo file.
    pub fn of(before: &[u8], work: &dyn Fn(Arc<dyn BlockDevice>, &mut Save<'_>)) -> Redone {
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(before)));
        let (mut file, mut begin) = (Vec::new(), Vec::new());
        work(recorder.clone(), &mut |redo: &RedoRecord<'_>| {
            begin.push(recorder.log().len());
            redo.write_to(&mut file)
        });
        let [begin] = begin[..] else { panic!("{} redo files", begin.len()) };
        let (events, after) = (recorder.log(), recorder.inner().to_vec());
        Redone { before: before.to_vec(), after, events, begin, file }
    }

    /// Judges the made state, whose files are those from before, and the states after cuts. Without
    /// a redo file they have the old superblock.
    fn judge_change(&self, case: &str, before: &[u8]) {
        let image = Image::holding(&self.after);
        assert_eq!(complaints(image.path()), [""; 0], "{case}");
        read(&self.after).assert_same(&read(before));
        let old = superblock(before);
        let is_old = |state: &[u8]| superblock(state).as_bytes() == old.as_bytes();
        self.judge(case, every_or((self.events.len() / 12).max(1)), &is_old);
    }

    /// Judges the states after a cut at the events of which every `every`th is chosen, and all of
    /// those near the redo file and at the end. `is_old` judges the states without one.
    pub fn judge(&self, case: &str, every: usize, is_old: &dyn Fn(&[u8]) -> bool) {
        let (begin, last) = (self.begin, self.events.len());
        let is_chosen = |cut: usize| {
            let is_near = cut.abs_diff(begin) < 3 || cut + 6 >= last;
            cut.is_multiple_of(every) || is_near
        };
        let (mut finished, mut parts) = (0, 0);
        chosen_cuts(&self.before, &self.events, &is_chosen, &mut |cut, state| {
            let case = format!("{case}, cut {cut} of {last}, redo file at {begin}");
            if cut <= begin {
                assert!(is_old(&state), "{case}");
                assert_eq!(complaints(Image::holding(&state).path()), [""; 0], "{case}");
            }
            if cut < begin {
                return;
            }
            // Without the file, nothing takes a part of the change for a whole file system.
            let is_marked = !superblock(&state).state().contains(State::VALID);
            assert!(is_marked || is_old(&state) || self.is_made(&state), "{case}: not marked");
            let memory = MemDevice::from_bytes(&state);
            let done = finish_redo(&memory, &mut Cursor::new(&self.file));
            let done = done.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(self.is_made(&memory.to_vec()), "{case}");
            assert_eq!(memory.len(), self.after.len() as u64, "{case}");
            let again = finish_redo(&memory, &mut Cursor::new(&self.file));
            assert_eq!(again.expect("no change"), 0, "{case}");
            (finished, parts) = (finished + 1, parts + u64::from(done > 0));
        });
        println!("{case}: {finished} states of {last} events, {parts} with a part");
        assert!(finished > 2 && parts > 1, "{case}: {finished}, {parts}");
    }

    /// Returns whether a state begins with the one after the change.
    fn is_made(&self, state: &[u8]) -> bool {
        state.get(..self.after.len()) == Some(&self.after[..])
    }
}

/// All kinds of changes of file systems without a journal, and those that a journal does not make
/// whole.
pub fn cases() -> Vec<(Kind, TuneChanges)> {
    let label = || TuneChanges { label: Some(b"new".into()), ..TuneChanges::default() };
    let with_label = |list| TuneChanges { label: Some(b"new".into()), ..features(list) };
    let reserved = Some(ReservedShare::Blocks(7));
    let journal_size = Some(JournalSize::Bytes(1 << 20));
    vec![
        (EXT2, TuneChanges { uuid: Some([7; 16]), reserved, ..label() }),
        (NO_JOURNAL_NO_SUMS, features("metadata_csum")),
        (NO_JOURNAL, with_label("^metadata_csum")),
        (NO_JOURNAL, features("quota,mmp")),
        (EXT2, features("dir_index,extent,uninit_bg")),
        (EXT2, TuneChanges { journal_size, ..with_label("has_journal,quota") }),
        (SUMS, features("^has_journal")),
        (SUMS, with_label("quota,^has_journal")),
        (SUMS, features("^64bit")),
        (NO_JOURNAL, features("^64bit")),
        (NO_JOURNAL, inodes_of(512)),
    ]
}

#[test]
fn a_cut_change_of_values_and_features_is_whole_by_its_redo_file() {
    for (kind, changes) in cases() {
        let case = format!("{kind:?} {:?} {:?}", changes.features, changes.label);
        let before = filled(kind).bytes();
        let redone = Redone::of(&before, &|device, save| {
            let tune = Tune::new(device).threads(2);
            let new =
                tune.apply_with_redo(&changes, save).unwrap_or_else(|e| panic!("{case}: {e}"));
            if let Some(label) = &changes.label {
                assert_eq!(new.volume_name().as_bytes(), label, "{case}");
            }
        });
        redone.judge_change(&case, &before);
        // The same features as without a file.
        let device = Arc::new(MemDevice::from_bytes(&before));
        Tune::new(device.clone()).apply(&changes).expect("a change");
        let features = [&redone.after, &device.to_vec()].map(|bytes| superblock(bytes).features());
        assert_eq!(features[0], features[1], "{case}");
    }
}

/// A journal that stays makes a change whole, and so does the write that adds one.
#[test]
fn changes_that_are_whole_without_a_redo_file_make_none() {
    let label = TuneChanges { label: Some(b"new".into()), ..TuneChanges::default() };
    let cases = [
        (SUMS, label),
        (SUMS, features("quota")),
        (SUMS, features("^metadata_csum")),
        (EXT2, features("has_journal")),
    ];
    for (kind, changes) in cases {
        let device = Arc::new(MemDevice::from_bytes(&filled(kind).bytes()));
        let mut save = |_: &RedoRecord<'_>| panic!("{kind:?}: a redo file");
        Tune::new(device.clone()).apply_with_redo(&changes, &mut save).expect("a change");
        let image = Image::holding(&device.to_vec());
        assert_eq!(complaints(image.path()), [""; 0], "{kind:?}");
    }
}

/// A file that is not durable leaves the old state, and another image is refused.
#[test]
fn a_redo_file_of_features_is_for_its_image_alone() {
    let before = filled(NO_JOURNAL).bytes();
    let changes = features("quota");
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let mut save = |_: &RedoRecord<'_>| Err(io::ErrorKind::StorageFull.into());
    let refused = Tune::new(memory.clone()).apply_with_redo(&changes, &mut save);
    refused.expect_err("no redo file");
    assert!(superblock(&memory.to_vec()).as_bytes() == superblock(&before).as_bytes());
    read(&memory.to_vec()).assert_same(&read(&before));
    let redone = Redone::of(&before, &|device, save| {
        Tune::new(device).apply_with_redo(&changes, save).expect("a change");
    });
    let copy = MemDevice::from_bytes(&before);
    let error = finish_redo(&copy, &mut Cursor::new(&redone.file)).expect_err("a copy");
    assert!(matches!(error, RedoError::Missing(_)), "{error}");
    assert!(copy.to_vec() == before, "a refusal wrote");
}

/// Returns the number of blocks of an image.
fn blocks(bytes: &[u8]) -> u64 {
    superblock(bytes).blocks_count()
}

fn resized(device: Arc<dyn BlockDevice>, size: NewSize, save: &mut Save<'_>) {
    let plan = Resize::new(device).threads(2).plan(size).expect("a plan");
    plan.apply_with_redo(save).expect("another size");
}

/// A larger size extends the image before the redo file is made, and a smaller one cuts it when the
/// change is made, or when it is completed.
#[test]
fn a_cut_change_of_the_size_is_whole_by_its_redo_file() {
    let cases = [
        (NO_JOURNAL, 30 << 20),
        (EXT2, 41 << 20),
        (NO_JOURNAL_META_BG, 22 << 20),
        (NO_JOURNAL, 12 << 20),
        (EXT2, 15 << 20),
    ];
    for (kind, size) in cases {
        let case = format!("{kind:?} to {size}");
        let before = filled(kind).bytes();
        let redone = Redone::of(&before, &|device, save| {
            resized(device, NewSize::Bytes(size), save);
        });
        assert_eq!(blocks(&redone.after) << 10, redone.after.len() as u64, "{case}");
        assert!(blocks(&redone.after).abs_diff(size >> 10) < 1024, "{case}");
        redone.judge_change(&case, &before);
        // A copy of the old image has another length, or lacks new content.
        let mut longer = before.clone();
        longer.resize(redone.after.len().max(before.len()), 0);
        for copy in [before, longer] {
            let copy = MemDevice::from_bytes(&copy);
            let old = copy.to_vec();
            let error = finish_redo(&copy, &mut Cursor::new(&redone.file)).expect_err("a copy");
            let is_known = matches!(error, RedoError::Missing(_) | RedoError::Corrupt(_));
            assert!(is_known && copy.to_vec() == old, "{case}: {error}");
        }
    }
}

#[test]
fn without_a_journal_a_size_is_the_smallest_by_a_redo_file_only() {
    let before = filled(NO_JOURNAL).bytes();
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let plan = Resize::new(memory.clone()).plan_minimum().expect("a plan");
    let error = plan.apply().expect_err("no journal");
    assert!(matches!(error, ResizeError::NoJournal), "{error}");
    let mut save = |_: &RedoRecord<'_>| Err(io::ErrorKind::StorageFull.into());
    plan.apply_with_redo(&mut save).expect_err("no redo file");
    assert_eq!(memory.len(), before.len() as u64);
    read(&memory.to_vec()).assert_same(&read(&before));
    let image = Image::holding(&memory.to_vec());
    assert_eq!(complaints(image.path()), [""; 0]);
    let mut count = 0;
    let mut save = |_: &RedoRecord<'_>| {
        count += 1;
        Ok(())
    };
    plan.apply_with_redo(&mut save).expect("a smaller size");
    assert_eq!((count, memory.len()), (1, plan.bytes()));
    let image = Image::holding(&memory.to_vec());
    assert_eq!(complaints(image.path()), [""; 0]);
    read(&image.bytes()).assert_same(&read(&before));
}

/// A redo file that is not durable leaves the old size and length, and a failure behind it leaves
/// the new length.
#[test]
fn a_failure_behind_the_redo_file_keeps_the_new_length() {
    let before = filled(NO_JOURNAL).bytes();
    let size = 30 << 20;
    for writes in 0..2 {
        let memory = Arc::new(MemDevice::from_bytes(&before));
        let faulty = Arc::new(FaultDevice::new(memory.clone()));
        let plan = Resize::new(faulty.clone()).plan(NewSize::Bytes(size)).expect("a plan");
        let mut file = Vec::new();
        let mut save = |redo: &RedoRecord<'_>| {
            faulty.inject(Fault::new(Op::Write, writes));
            redo.write_to(&mut file)
        };
        let error = plan.apply_with_redo(&mut save).expect_err("a failed write");
        assert!(matches!(error, ResizeError::Partly(_)), "{error}");
        assert_eq!(memory.len(), size);
        let done = finish_redo(&*memory, &mut Cursor::new(&file));
        assert!(done.expect("a change under way") > 0);
        let image = Image::holding(&memory.to_vec());
        assert_eq!(complaints(image.path()), [""; 0]);
        assert_eq!(blocks(&image.bytes()) << 10, size);
    }
    let memory = Arc::new(MemDevice::from_bytes(&before));
    let plan = Resize::new(memory.clone()).plan(NewSize::Bytes(size)).expect("a plan");
    let mut save = |_: &RedoRecord<'_>| Err(io::ErrorKind::StorageFull.into());
    plan.apply_with_redo(&mut save).expect_err("no redo file");
    assert!(memory.to_vec() == before, "another length, or other blocks");
}

/// Hosts write the block of multi-mount protection at any time, also before the file is used.
#[test]
fn a_claim_of_multi_mount_protection_does_not_close_the_way() {
    for (kind, changes) in [
        (NO_JOURNAL_MMP, features("metadata_csum")),
        (NO_JOURNAL, features("mmp")),
        (NO_JOURNAL_MMP, features("^mmp")),
    ] {
        let before = filled(kind).bytes();
        let redone = Redone::of(&before, &|device, save| {
            Tune::new(device).apply_with_redo(&changes, save).expect("a change");
        });
        let block = |bytes: &[u8]| superblock(bytes).mmp_block().0 as usize * 1024;
        let place = block(&redone.after).max(block(&before));
        let mut state = redone.after.clone();
        // The sequence and the time of a claim.
        state[place + 4] ^= 1;
        state[place + 8] ^= 1;
        let memory = MemDevice::from_bytes(&state);
        let done = finish_redo(&memory, &mut Cursor::new(&redone.file));
        assert_eq!(done.unwrap_or_else(|e| panic!("{:?}: {e}", changes.features)), 0);
    }
}
