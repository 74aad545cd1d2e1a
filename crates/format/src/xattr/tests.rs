use super::*;
use proptest::prelude::*;

fn sample() -> Vec<Entry> {
    vec![
        Entry::new(NameIndex::SYSTEM, b"data", b""),
        Entry::new(NameIndex::USER, b"longer", b"value"),
        Entry::new(NameIndex::USER, b"b", &[7; 12]),
        Entry::in_inode(NameIndex::USER, b"big", 99, 100_000, 0x1234_5678),
    ]
}

fn plain(entries: &[Entry]) -> Vec<(u8, Vec<u8>, Value)> {
    entries.iter().map(|entry| (entry.index, entry.name.clone(), entry.value.clone())).collect()
}

#[test]
fn inode_area_keeps_order() {
    let mut area = vec![0xFF; 160];
    assert!(encode_inode_area(&sample(), &mut area));
    let read = decode_inode_area(&area).unwrap();
    assert_eq!(plain(&read), plain(&sample()));
    assert!(read[..3].iter().all(|entry| entry.hash == 0));
    assert_eq!(read[3].hash, inode_entry_hash(b"big", 0x1234_5678));
    let needed = inode_area_space(&sample());
    assert!(encode_inode_area(&sample(), &mut area[..needed]));
    let before = area.clone();
    assert!(!encode_inode_area(&sample(), &mut area[..needed - 4]));
    assert_eq!(area, before);
    assert!(encode_inode_area(&[], &mut area));
    assert!(decode_inode_area(&area).unwrap().is_empty());
    assert!(decode_inode_area(&[]).unwrap().is_empty());
}

#[test]
fn blocks_are_sorted_and_sealed() {
    let mut block = vec![0xFF; 1024];
    assert!(encode_block(&sample(), 3, &mut block));
    let (header, read) = decode_block(&block).unwrap();
    let names: Vec<&[u8]> = read.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(names, [&b"b"[..], b"big", b"longer", b"data"]);
    assert_eq!((header.refcount, refcount(&block)), (3, 3));
    assert_eq!(header.hash, block_hash(read.iter().map(|entry| entry.hash)));
    set_refcount(&mut block, 4);
    seal_xattr_block(&mut block, 77, 1);
    assert!(verify_xattr_block(&block, 77, 1).is_ok());
    assert!(verify_xattr_block(&block, 78, 1).is_err());
    set_refcount(&mut block, 0);
    assert!(decode_block(&block).is_err());
}

#[test]
fn overlapping_values_are_refused() {
    let mut block = vec![0; 1024];
    let entries = [Entry::new(1, b"a", &[1; 400]), Entry::new(1, b"b", &[1; 400])];
    assert!(encode_block(&entries, 1, &mut block));
    assert!(decode_block(&block).is_ok());
    let offset = crate::bytes::le16(&block, 32 + 2);
    crate::bytes::put_le16(&mut block, 32 + 20 + 2, offset);
    crate::bytes::put_le32(&mut block, 32 + 8, 600);
    assert!(decode_block(&block).is_err());
}

#[test]
fn one_zero_hash_forbids_sharing() {
    assert_eq!(block_hash([5, 0, 7]), 0);
    assert_ne!(block_hash([5, 7]), 0);
    assert_ne!(entry_hash("größe".as_bytes(), b""), entry_hash_signed("größe".as_bytes(), b""));
}

fn any_entries() -> impl Strategy<Value = Vec<Entry>> {
    let entry = (
        1u8..8,
        prop::collection::vec(any::<u8>(), 0..20),
        prop::collection::vec(any::<u8>(), 0..60),
    )
        .prop_map(|(index, name, value)| Entry::new(index, &name, &value));
    prop::collection::vec(entry, 0..12)
}

proptest! {
    #[test]
    fn any_bytes_are_read(mut area in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_block(&area);
        if area.len() >= 12 {
            area[..12].copy_from_slice(&[0, 0, 2, 0xEA, 1, 0, 0, 0, 1, 0, 0, 0]);
        }
        let _ = decode_block(&area);
        let _ = decode_inode_area(&area);
        seal_xattr_block(&mut area, 1, 2);
    }

    #[test]
    fn entries_round_trip(entries in any_entries()) {
        let mut area = vec![0; 1020];
        prop_assert_eq!(
            encode_inode_area(&entries, &mut area),
            inode_area_space(&entries) <= 1020 || entries.is_empty(),
        );
        if inode_area_space(&entries) <= 1020 {
            prop_assert_eq!(plain(&decode_inode_area(&area).unwrap()), plain(&entries));
        }
        let mut block = vec![0; 1024];
        if encode_block(&entries, 1, &mut block) {
            let mut sorted = plain(&entries);
            sorted.sort_by(
                |one,
                other| (one.0, one.1.len(), &one.1).cmp(&(other.0, other.1.len(), &other.1)),
            );
            prop_assert_eq!(plain(&decode_block(&block).unwrap().1), sorted);
        }
    }
}

#[test]
fn an_entry_without_any_name_is_no_end() {
    let mut area = vec![0; 100];
    assert!(encode_inode_area(
        &[Entry::in_inode(1, b"a", 12, 70_000, 5), Entry::in_inode(1, b"b", 13, 7, 5)],
        &mut area
    ));
    // Behind the magic: name length, index and the offset of a value, which one in an inode does
    // not have.
    assert_eq!(area[4..8], [1, 1, 0, 0]);
    area[4..8].copy_from_slice(&[0, 0, 8, 0]);
    assert!(decode_inode_area(&area).is_err());
}
