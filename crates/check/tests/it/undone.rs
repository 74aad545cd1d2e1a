//! Changes of values, features and sizes that are taken back by their undo files.

use crate::inode_sizes::inodes_of;
use crate::oracle::complaints;
use crate::redone::{NO_JOURNAL_META_BG, NO_JOURNAL_MMP, cases};
use crate::switching::{
    EXT2, Kind, NO_JOURNAL, SUMS, every_or, features, filled, read, superblock,
};
use extant_blocks::{BlockDevice, MemDevice, RecordingDevice};
use extant_check::repair::restore;
use extant_check::resize::{NewSize, Resize};
use extant_check::tune::{JournalSize, Tune, TuneChanges};
use extant_format::checksum::crc32c_raw;
use extant_testkit::Image;
use extant_testkit::cuts::chosen_cuts;
use std::io::Cursor;
use std::sync::Arc;

/// A change of a device, before which its undo file is made. With the flag it has a redo file, too.
type Work<'w> = &'w dyn Fn(Arc<dyn BlockDevice>, bool) -> Vec<u8>;

/// Takes a change back: when it is made, and after cuts. `judge` gets each state.
fn take_back(before: &[u8], work: Work<'_>, judge: &dyn Fn(&str, &[u8])) {
    for with_redo in [false, true] {
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(before)));
        let undo = work(recorder.clone(), with_redo);
        let memory = recorder.inner();
        let made = memory.to_vec();
        assert!(made != before);
        for at in [0, 9, 17, 21, 30, 40, undo.len() - 1] {
            let mut broken = undo.clone();
            broken[at] ^= 1;
            assert!(restore(memory, &mut Cursor::new(&broken)).is_err(), "{at}");
        }
        assert!(memory.to_vec() == made, "a refusal wrote");
        assert!(restore(memory, &mut Cursor::new(&undo)).expect("an undo file") > 0);
        judge("made", &memory.to_vec());
        let events = recorder.log();
        let every = every_or((events.len() / 4).max(1));
        let is_chosen = |cut: usize| cut.is_multiple_of(every);
        chosen_cuts(before, &events, &is_chosen, &mut |cut, state| {
            let memory = MemDevice::from_bytes(&state);
            restore(&memory, &mut Cursor::new(&undo)).expect("an undo file");
            judge(&format!("redo {with_redo}, cut {cut} of {}", events.len()), &memory.to_vec());
        });
    }
}

/// The undo file gives the old image back, to the byte.
#[test]
fn an_undo_file_takes_values_and_features_back() {
    let more = [
        (SUMS, TuneChanges { label: Some(b"x".into()), ..TuneChanges::default() }),
        (SUMS, features("^metadata_csum")),
        (SUMS, features("quota,orphan_file")),
        (SUMS, inodes_of(512)),
        (SUMS, TuneChanges { journal_size: Some(JournalSize::Bytes(2 << 20)), ..features("mmp") }),
        (NO_JOURNAL_MMP, features("metadata_csum")),
    ];
    for (kind, changes) in cases().into_iter().chain(more) {
        let before = filled(kind).bytes();
        let work = |device: Arc<dyn BlockDevice>, with_redo: bool| {
            let (tune, mut undo) = (Tune::new(device).threads(2), Vec::new());
            tune.save_undo(&changes, with_redo, &mut undo).expect("an undo file");
            let made = if with_redo {
                tune.apply_with_redo(&changes, &mut |_| Ok(()))
            } else {
                tune.apply(&changes)
            };
            made.expect("a change");
            undo
        };
        // Its content is that of the host which has the file system now.
        let mmp = superblock(&before).mmp_block().0 as usize * 1024;
        let is_mmp = |at: usize| mmp > 0 && (mmp..mmp + 1024).contains(&at);
        take_back(&before, &work, &|case, state| {
            assert_eq!(state.len(), before.len(), "{case}");
            let differ = state.iter().zip(&before).enumerate();
            let differ = differ.filter(|(at, (a, b))| a != b && !is_mmp(*at)).count();
            assert_eq!(differ, 0, "{kind:?} {:?} {case}", changes.features);
        });
    }
}

/// Blocks behind a smaller size come back, but for the content of free ones.
#[test]
fn an_undo_file_takes_another_size_back() {
    const SMALL_LOG: Kind = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-g", "2048"];
    let cases = [
        (SUMS, 40 << 20, true),
        (NO_JOURNAL, 30 << 20, true),
        (NO_JOURNAL_META_BG, 22 << 20, true),
        (SUMS, 12 << 20, true),
        (SMALL_LOG, 10 << 20, true),
        (EXT2, 12 << 20, false),
    ];
    for (kind, size, has_both) in cases {
        let before = filled(kind).bytes();
        let tree = read(&before);
        let work = |device: Arc<dyn BlockDevice>, with_redo: bool| {
            let plan = Resize::new(device).threads(2).plan(NewSize::Bytes(size)).expect("a plan");
            let mut undo = Vec::new();
            plan.save_undo(&mut undo).expect("an undo file");
            let made = if with_redo || !has_both {
                plan.apply_with_redo(&mut |_| Ok(()))
            } else {
                plan.apply()
            };
            made.expect("another size");
            undo
        };
        let kept = before.len().min(size as usize);
        take_back(&before, &work, &|case, state| {
            let case = format!("{kind:?} to {size}, {case}");
            assert_eq!(state.len(), before.len(), "{case}");
            assert!(state[..kept] == before[..kept], "{case}");
            if case.ends_with("made") {
                read(state).assert_same(&tree);
                assert_eq!(complaints(Image::holding(state).path()), [""; 0], "{case}");
            }
        });
    }
}

/// A file that no change has made is refused before the first write, whatever its checksum.
#[test]
fn blocks_behind_the_end_are_refused() {
    const LEN: u64 = 1 << 20;
    let file = |len: u64, numbers: [u64; 2]| {
        let mut bytes = b"EXTUNDO2".to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(1024u32.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend(LEN.to_le_bytes());
        for number in numbers {
            bytes.extend(number.to_le_bytes());
            bytes.extend([7; 1024]);
        }
        bytes.extend(crc32c_raw(u32::MAX, &bytes).to_le_bytes());
        Cursor::new(bytes)
    };
    let device = MemDevice::new(LEN);
    for (len, last) in [(LEN, 1024), (LEN, 1 << 28), (LEN, u64::MAX), (0, 6), (2047, 6)] {
        assert!(restore(&device, &mut file(len, [5, last])).is_err(), "{len} {last}");
        assert!(device.to_vec() == vec![0; LEN as usize], "{len} {last}");
    }
    assert_eq!(restore(&device, &mut file(LEN, [5, 1023])).expect("an undo file"), 2);
}
