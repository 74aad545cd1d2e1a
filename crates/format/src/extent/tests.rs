use super::*;
use proptest::prelude::*;

fn leaf(lblk: u32, len: u16, pblk: u64) -> Leaf {
    Leaf { lblk, len, unwritten: false, pblk }
}

#[test]
fn capacities_are_those_of_the_format() {
    assert_eq!(capacity(ROOT_SIZE), 4);
    assert_eq!(capacity(1024), 84);
    assert_eq!(capacity(4096), 340);
    assert_eq!(capacity(65536), 5460);
    assert_eq!(capacity(3), 0);
}

#[test]
fn lengths_tell_written_from_unwritten() {
    let mut bytes = [0u8; 12];
    for (len, unwritten) in [(1, false), (32768, false), (1, true), (32767, true)] {
        let leaf = Leaf { lblk: 5, len, unwritten, pblk: 0x1234_5678_9ABC };
        leaf.encode(&mut bytes);
        assert_eq!(Leaf::decode(&bytes), leaf);
    }
}

#[test]
fn index_entries_put_the_low_half_first() {
    let mut bytes = [0u8; 12];
    Index { lblk: 1, child: 0x0002_0000_0003 }.encode(&mut bytes);
    assert_eq!(bytes, [1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn entries_are_inserted_searched_and_removed() {
    let mut bytes = [0xAAu8; ROOT_SIZE];
    let mut node = NodeMut::init(&mut bytes, 0);
    assert!(node.insert_leaf(0, &leaf(10, 5, 100)));
    assert!(node.insert_leaf(1, &leaf(30, 5, 300)));
    assert!(node.insert_leaf(1, &leaf(20, 5, 200)));
    assert!(node.insert_leaf(0, &leaf(0, 5, 50)));
    assert!(!node.insert_leaf(0, &leaf(0, 5, 50)));
    let read = node.as_node();
    let starts: Vec<u32> = read.leaves().map(|leaf| leaf.lblk).collect();
    assert_eq!(starts, [0, 10, 20, 30]);
    assert_eq!(read.search(9), Some(0));
    assert_eq!(read.search(25), Some(2));
    assert_eq!(read.search(u32::MAX), Some(3));
    node.remove(1..3);
    node.remove(7..9);
    let node = Node::parse(&bytes, Some(0)).unwrap();
    assert_eq!(node.leaves().collect::<Vec<_>>(), [leaf(0, 5, 50), leaf(30, 5, 300)]);
    assert!(bytes[36..].iter().all(|byte| *byte == 0));
}

#[test]
fn search_before_the_first_entry_finds_none() {
    let mut bytes = [0u8; ROOT_SIZE];
    let mut node = NodeMut::init(&mut bytes, 0);
    assert_eq!(node.as_node().search(5), None);
    assert!(node.set_leaves(&[leaf(10, 1, 1)]));
    assert_eq!(node.as_node().search(9), None);
}

#[test]
fn disorder_and_overlap_are_refused() {
    let mut bytes = [0u8; ROOT_SIZE];
    for pair in [
        [leaf(10, 5, 1), leaf(14, 1, 9)],
        [leaf(10, 5, 1), leaf(3, 1, 9)],
        [leaf(0, 0, 1), leaf(3, 1, 9)],
    ] {
        assert!(NodeMut::init(&mut bytes, 0).set_leaves(&pair));
        assert!(Node::parse(&bytes, None).is_err());
    }
    assert!(
        NodeMut::init(&mut bytes, 1)
            .set_indexes(&[Index { lblk: 5, child: 1 }, Index { lblk: 5, child: 2 }])
    );
    assert!(Node::parse(&bytes, None).is_err());
    NodeMut::init(&mut bytes, 1);
    assert!(Node::parse(&bytes, None).is_err());
    NodeMut::init(&mut bytes, 0);
    assert!(Node::parse(&bytes, Some(1)).is_err());
    assert!(Node::parse(&bytes, Some(0)).is_ok());
}

#[test]
fn block_checksums_find_changes() {
    let mut block = vec![0u8; 1024];
    assert!(NodeMut::init(&mut block, 0).insert_leaf(0, &leaf(1, 2, 3)));
    seal_extent_block(&mut block, 0, 77);
    assert!(verify_extent_block(&block, 77));
    assert!(!verify_extent_block(&block, 78));
    block[20] ^= 1;
    assert!(!verify_extent_block(&block, 77));
}

#[test]
fn joining_minds_the_longest_length() {
    assert!(leaf(0, 32767, 10).can_join(&leaf(32767, 1, 32777)));
    assert!(!leaf(0, 32767, 10).can_join(&leaf(32767, 2, 32777)));
    let unwritten = Leaf { unwritten: true, ..leaf(0, 32767, 10) };
    assert!(!unwritten.can_join(&Leaf { unwritten: true, ..leaf(32767, 1, 32777) }));
    assert!(!unwritten.can_join(&leaf(32767, 1, 32777)));
}

proptest! {
    #[test]
    fn any_bytes_are_read(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        depth in 0u16..8,
        key in any::<u32>(),
    ) {
        if bytes.len() >= 8 {
            bytes[0] = 0x0A;
            bytes[1] = 0xF3;
            bytes[3] = 0;
            bytes[5] = 0;
            bytes[7] = 0;
        }
        let _ = Node::parse(&bytes, Some(depth));
        if let Ok(node) = Node::open(&bytes) {
            let _ = node.search(key);
            prop_assert!(node.leaves().len() + node.indexes().len() == node.len());
        }
        let _ = verify_extent_block(&bytes, 1);
        seal_extent_block(&mut bytes, 0, 1);
        if let Ok(mut node) = NodeMut::open(&mut bytes) {
            let _ = node.insert_leaf(key as usize % 20, &Leaf::default());
            node.remove(depth as usize..key as usize);
        }
    }
}
