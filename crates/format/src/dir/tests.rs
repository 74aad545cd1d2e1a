use super::*;
use crate::seal::seal_dir_block;
use crate::types::FileType;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn format(block_size: u32) -> DirFormat {
    DirFormat { block_size, filetype: true, metadata_csum: true, largedir: false }
}

fn file(ino: InodeNr, name: &[u8]) -> NewEntry<'_> {
    NewEntry { ino, file_type: FileType::Regular, name }
}

fn names(block: &[u8], format: &DirFormat) -> Vec<String> {
    entries(format.area(block), format)
        .map(|entry| entry.unwrap())
        .filter(DirEntry::is_used)
        .map(|entry| String::from_utf8_lossy(entry.name).into_owned())
        .collect()
}

#[test]
fn first_block_has_the_dots() {
    let format = format(1024);
    let mut block = vec![0xFF; 1024];
    format.init_first_block(&mut block, Dots { own: InodeNr(12), parent: InodeNr(2) });
    assert_eq!(names(&block, &format), [".", ".."]);
    assert_eq!(dot_dot(&block, &format).unwrap().ino, InodeNr(2));
    seal_dir_leaf(&mut block, 0, 5);
    assert!(verify_leaf(&block, 5).is_ok());
    assert!(verify_leaf(&block, 6).is_err());
}

#[test]
fn removed_entries_give_their_room_to_the_one_before() {
    let format = format(1024);
    let mut block = vec![0; 1024];
    format.init_block(&mut block);
    for name in ["one", "two", "three"] {
        let entry = file(InodeNr(20), name.as_bytes());
        let at = insert(format.area_mut(&mut block), &format, entry);
        assert!(at.unwrap().is_some());
    }
    let two = find(format.area(&block), &format, b"two").unwrap().unwrap().offset;
    remove(format.area_mut(&mut block), &format, two, None).unwrap();
    assert_eq!(names(&block, &format), ["one", "three"]);
    remove(format.area_mut(&mut block), &format, 0, Some(0)).unwrap();
    assert_eq!(names(&block, &format), ["three"]);
    assert!(remove(format.area_mut(&mut block), &format, 4, Some(1)).is_err());
    let symlink = NewEntry { ino: InodeNr(21), file_type: FileType::Symlink, name: b"four" };
    let at = insert(format.area_mut(&mut block), &format, symlink);
    assert_eq!(at.unwrap(), Some(0));
    let four = find(format.area(&block), &format, b"four").unwrap().unwrap();
    assert_eq!((four.ino, four.file_type), (InodeNr(21), FileType::Symlink));
}

#[test]
fn blocks_of_64_kib_hold_one_record() {
    let mut format = format(65536);
    format.metadata_csum = false;
    let mut block = vec![0; 65536];
    format.init_block(&mut block);
    let only: Vec<_> = entries(&block, &format).map(|entry| entry.unwrap().rec_len).collect();
    assert_eq!(only, [65536]);
    assert_eq!(largest_gap(&block, &format).unwrap(), 65536);
    crate::bytes::put_le16(&mut block, 4, 0);
    assert_eq!(entries(&block, &format).count(), 1);
}

#[test]
fn filling_packs_entries() {
    let format = format(1024);
    let mut area = vec![0; 64];
    let list =
        || [(InodeNr(5), FileType::Regular, &b"abc"[..]), (InodeNr(6), FileType::Fifo, &b"de"[..])];
    assert!(fill(&mut area, &format, list()));
    let lens: Vec<_> = entries(&area, &format).map(|entry| entry.unwrap().rec_len).collect();
    assert_eq!(lens, [12, 52]);
    assert!(!fill(&mut area[..20], &format, list()));
    assert_eq!(entries(&area[..20], &format).count(), 1);
    assert!(fill(&mut area, &format, []));
    assert_eq!(largest_gap(&area, &format).unwrap(), 64);
}

#[test]
fn without_file_types_the_byte_stays_zero() {
    let format = DirFormat { filetype: false, ..format(1024) };
    let mut block = vec![0; 1024];
    format.init_first_block(&mut block, Dots { own: InodeNr(2), parent: InodeNr(2) });
    assert_eq!(block[7], 0);
    let types: Vec<_> =
        entries(format.area(&block), &format).map(|entry| entry.unwrap().file_type).collect();
    assert_eq!(types, [FileType::Unknown, FileType::Unknown]);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Remove(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![any::<u8>().prop_map(Step::Insert), any::<u8>().prop_map(Step::Remove)];
    prop::collection::vec(step, 0..300)
}

fn name_of(n: u8) -> Vec<u8> {
    vec![b'a' + n % 26; 1 + usize::from(n) / 5]
}

/// Reference implementation of `search`: one record at a time.
fn slowly<'a>(
    area: &'a [u8],
    format: &DirFormat,
    name: &[u8],
    wanted: usize,
) -> crate::error::Result<Search<'a>> {
    let mut search = Search { found: None, before: None, room: None };
    for entry in entries(area, format) {
        let entry = entry?;
        if entry.is_used() && entry.name == name {
            search.found = Some(entry);
            break;
        }
        search.room = search.room.or((entry.gap() >= wanted).then_some(entry.offset));
        search.before = Some(entry.offset);
    }
    Ok(search)
}

/// Records of names of few letters, some of them damaged.
fn scribbled() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::collection::vec(b'a'..=b'b', 1..7);
    let record = (name, 0u32..3, 0usize..4, prop::bool::weighted(0.02));
    prop::collection::vec(record, 0..12).prop_map(|records| {
        let mut area = Vec::new();
        for (name, ino, more, damaged) in records {
            let (at, len) = (area.len(), entry_len(name.len()) + 4 * more);
            area.resize(at + len, 0);
            put_entry(
                &mut area,
                &format(1024),
                at,
                len + usize::from(damaged),
                file(InodeNr(ino), &name),
            );
        }
        area
    })
}

proptest! {
    #[test]
    fn searches_and_walks_agree(
        area in scribbled(),
        name in prop::collection::vec(b'a'..=b'b', 0..7),
        wanted in 8usize..32,
    ) {
        let format = format(1024);
        match (search(&area, &format, &name, wanted), slowly(&area, &format, &name, wanted)) {
            (Ok(fast), Ok(slow)) => {
                prop_assert_eq!(&fast, &slow);
                if let Some(at) = fast.room {
                    prop_assert_eq!(
                        room_at(&area, &format, at, wanted).unwrap().map(|room| room.offset),
                        Some(at),
                    );
                }
            }
            (fast, slow) => prop_assert_eq!(fast.is_err(), slow.is_err()),
        }
    }

    #[test]
    fn any_bytes_are_read(
        area in prop::collection::vec(any::<u8>(), 0..300),
        large in any::<bool>(),
    ) {
        let format = format(if large { 65536 } else { 1024 });
        let mut end = 0;
        for entry in entries(&area, &format).flatten() {
            prop_assert_eq!(entry.offset, end);
            end = entry.offset + entry.rec_len;
        }
        prop_assert!(end <= area.len());
        let mut area = area;
        let _ = insert(&mut area, &format, file(InodeNr(5), b"name"));
        let _ = remove(&mut area, &format, 0, Some(8));
        let _ = remove(&mut area, &format, 12, Some(usize::MAX));
        let _ = dot_dot(&area, &format);
        let _ = verify_leaf(&area, 0);
        seal_dir_block(&mut area, 0, 0);
        init_tail(&mut area);
    }

    #[test]
    fn behaves_like_a_map(steps in steps()) {
        let format = format(1024);
        let mut block = vec![0; 1024];
        format.init_block(&mut block);
        let mut model = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            let area = format.area_mut(&mut block);
            match step {
                Step::Insert(n) if !model.contains_key(&name_of(n)) => {
                    let ino = InodeNr(number as u32 + 1);
                    let gap = largest_gap(area, &format).unwrap();
                    let at = insert(area, &format, file(ino, &name_of(n))).unwrap();
                    prop_assert_eq!(at.is_some(), gap >= entry_len(name_of(n).len()));
                    if at.is_some() {
                        model.insert(name_of(n), ino);
                    }
                }
                Step::Insert(_) => {}
                Step::Remove(n) => {
                    let search = search(area, &format, &name_of(n), 40).unwrap();
                    prop_assert_eq!(&search, &slowly(area, &format, &name_of(n), 40).unwrap());
                    let found = search.found.map(|entry| entry.offset);
                    prop_assert_eq!(found.is_some(), model.remove(&name_of(n)).is_some());
                    if let Some(offset) = found {
                        let before = if n % 2 == 0 { search.before } else { None };
                        remove(area, &format, offset, before).unwrap();
                    }
                }
            }
        }
        let read: BTreeMap<_, _> = entries(format.area(&block), &format)
            .map(|entry| entry.unwrap())
            .filter(DirEntry::is_used)
            .map(|entry| (entry.name.to_vec(), entry.ino))
            .collect();
        prop_assert_eq!(read, model);
    }
}

/// A small generator, so that millions of areas cost seconds.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ self.0 >> 33).wrapping_mul(0xff51afd7ed558ccd);
        mixed ^ mixed >> 29
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    fn once_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Fills an area with records of few different shapes, whose names have equal ends and whose
/// lengths are wrong at times.
fn fill_hostile(dice: &mut Dice, area: &mut [u8], base: usize) {
    const LENGTHS: [usize; 9] = [0, 1, 2, 3, 4, 5, 8, 253, 255];
    const RAW: [u16; 10] = [0, 1, 2, 4, 8, 11, 12, 65532, 65534, 65535];
    let mut at = 0;
    while at + HEADER_SIZE <= area.len() {
        let len = if dice.once_in(3) { dice.of(&LENGTHS) } else { base };
        let needed = entry_len(len);
        let honest = needed + dice.of(&[0, 0, 0, 0, 4, 8, 12, 16, 300]);
        let raw = match dice.next() % 40 {
            0 => dice.of(&RAW),
            1 => (needed as u16).wrapping_sub(dice.of(&[1, 2, 4, 8])),
            2 => honest as u16 | dice.of(&[1, 2, 3]),
            3 => (area.len() - at) as u16,
            4 => (area.len() - at + dice.of(&[1, 4, 12])) as u16,
            _ => honest as u16,
        };
        let ino = if dice.once_in(8) { 0 } else { dice.of(&[1u32, 2, 1 << 24, u32::MAX]) };
        area[at..at + 4].copy_from_slice(&ino.to_le_bytes());
        area[at + 4..at + 6].copy_from_slice(&raw.to_le_bytes());
        area[at + 6] = len as u8;
        area[at + 7] = dice.of(&[0, 1, 2, 255]);
        let same = dice.once_in(12);
        let end = area.len().min(at + HEADER_SIZE + len);
        for (n, byte) in area[at + HEADER_SIZE..end].iter_mut().enumerate() {
            // The last bytes are mostly equal, and the first one alone differs at times.
            *byte = if same || n > 0 && n + 4 < len || dice.once_in(4) { b'a' } else { b'b' };
        }
        at += if raw.is_multiple_of(4) && raw >= 12 { usize::from(raw) } else { honest.max(12) };
    }
}

fn agree(area: &[u8], format: &DirFormat, name: &[u8], wanted: usize) {
    let found = search(area, format, name, wanted);
    let expected = slowly(area, format, name, wanted);
    assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{name:?} {wanted} {area:?}");
    let named = find(area, format, name).map_err(|e| e.to_string());
    let expected = slowly(area, format, name, usize::MAX).map(|search| search.found);
    assert_eq!(named, expected.map_err(|e| e.to_string()), "{name:?} {area:?}");
    let roomy = |entry: &crate::error::Result<DirEntry<'_>>| {
        entry.as_ref().map_or(true, |entry| entry.gap() >= wanted)
    };
    let room = find_room(area, format, wanted).map_err(|e| e.to_string());
    let expected = entries(area, format).find(roomy).transpose().map_err(|e| e.to_string());
    assert_eq!(room, expected, "{wanted} {area:?}");
}

/// Searches skip runs of records; a bad record, or one without a file, must end each run.
#[test]
fn searches_of_hostile_areas_find_what_one_record_at_a_time_shows() {
    let rounds = std::env::var("ROUNDS").map_or(20_000, |n| n.parse().unwrap());
    let seed = std::env::var("SEED").map_or(1, |n| n.parse().unwrap());
    let (mut dice, mut buffer, mut hits) = (Dice(seed), vec![0; 65536], 0u64);
    for _ in 0..rounds {
        let large = dice.once_in(2);
        let format = format(if large { 65536 } else { 1024 });
        let base = dice.of(&[1, 2, 3, 4, 5, 8, 9, 12, 255]);
        let len = if large && dice.once_in(500) { 65536 } else { dice.next() as usize % 600 };
        let area = &mut buffer[..len];
        fill_hostile(&mut dice, area, base);
        let mut name =
            vec![b'a'; if dice.once_in(6) { dice.of(&[0, 1, 3, 4, 256, 300]) } else { base }];
        for byte in name.iter_mut().rev().take(5) {
            *byte = dice.of(b"aaab");
        }
        let wanted = dice.of(&[1, 4, 8, 12, 16, 263, usize::MAX]);
        agree(area, &format, &name, wanted);
        hits += u64::from(find(area, &format, &name).is_ok_and(|found| found.is_some()));
    }
    println!("{hits} hits");
    assert!(hits * 50 > rounds, "{hits} of {rounds} found");
}
