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
