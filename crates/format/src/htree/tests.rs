use super::*;
use crate::dir::Dots;
use crate::types::InodeNr;
use proptest::prelude::*;

fn format(block_size: u32, metadata_csum: bool) -> DirFormat {
    DirFormat { block_size, filetype: true, metadata_csum, largedir: false }
}

const DOTS: Dots = Dots { own: InodeNr(12), parent: InodeNr(2) };
const INFO: RootInfo = RootInfo { hash_version: HashVersion::HalfMd4, levels: 0 };

fn root(format: &DirFormat) -> Vec<u8> {
    let mut block = vec![0xAA; format.block_size as usize];
    NodeMut::init_root(&mut block, format, INFO, DOTS, 1);
    block
}

#[test]
fn limits_are_those_of_the_format() {
    for (csum, root, interior) in [(false, 508, 511), (true, 507, 510)] {
        let format = format(4096, csum);
        assert_eq!((Kind::Root.limit(&format), Kind::Interior.limit(&format)), (root, interior));
    }
    assert_eq!(Kind::Interior.limit(&format(65536, false)), 8191);
}

#[test]
fn roots_are_made_and_read() {
    let format = format(1024, true);
    let mut block = root(&format);
    assert_eq!(RootInfo::parse(&block, &format).unwrap(), INFO);
    let mut node = NodeMut::open(&mut block, Kind::Root, &format).unwrap();
    assert!(node.insert(1, 0x8000, 2));
    assert!(node.insert(1, 0x4000, 3));
    assert!(node.insert(3, 0xC001, 4));
    assert!(!node.insert(0, 0, 5));
    assert!(!node.insert(5, 0, 5));
    let node = Node::open(&block, Kind::Root, &format).unwrap();
    let all: Vec<_> = node.entries().collect();
    assert_eq!(all, [(0, 1), (0x4000, 3), (0x8000, 2), (0xC001, 4)]);
    assert_eq!([0, 0x3FFF, 0x4000, 0xC000, u32::MAX].map(|hash| node.find(hash)), [0, 0, 1, 2, 3]);
    assert!(node.check_order().is_ok());
    seal_htree(&mut block, 0, 9);
    assert!(verify_htree(&block, 9).is_ok());
    assert!(verify_htree(&block, 8).is_err());
}

#[test]
fn interior_nodes_are_made_and_split() {
    let format = format(1024, true);
    let mut block = vec![0; 1024];
    let limit = Kind::Interior.limit(&format);
    let mut node = NodeMut::init_interior(&mut block, &format, 7);
    for n in 1..u32::from(limit) {
        assert!(node.insert(n as usize, n * 2, n));
    }
    assert!(node.is_full() && !node.insert(1, 1, 1));
    let all = node.entries();
    let (low, high) = all.split_at(all.len() / 2);
    assert!(node.set_entries(low));
    assert!(node.remove(1) && !node.remove(0));
    assert_eq!(node.len(), low.len() - 1);
    let mut other = vec![0; 1024];
    assert!(NodeMut::init_interior(&mut other, &format, 0).set_entries(high));
    assert!(is_interior(&other, &format));
    seal_htree(&mut other, 0, 1);
    assert!(verify_htree(&other, 1).is_ok());
    let read = Node::open(&other, Kind::Interior, &format).unwrap();
    assert_eq!(read.get(0), Some((0, high[0].1)));
    assert_eq!(read.get(1), Some(high[1]));
}

#[test]
fn impossible_counts_are_refused() {
    let format = format(1024, true);
    let good = root(&format);
    for (offset, value) in [(0x20, 5u16), (0x22, 0), (0x22, 200)] {
        let mut block = good.clone();
        crate::bytes::put_le16(&mut block, offset, value);
        assert!(Node::open(&block, Kind::Root, &format).is_err());
    }
    for (offset, value) in [(0x18, 1u8), (0x1C, 6), (0x1D, 9), (0x1E, 2), (0x1F, 1)] {
        let mut block = good.clone();
        block[offset] = value;
        assert!(RootInfo::parse(&block, &format).is_err());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(
        mut block in prop::collection::vec(any::<u8>(), 0..1100),
        hash in any::<u32>(),
    ) {
        let format = format(1024, true);
        let _ = RootInfo::parse(&block, &format);
        for kind in [Kind::Root, Kind::Interior] {
            if let Ok(node) = Node::open(&block, kind, &format) {
                prop_assert!(node.find(hash) < node.len());
            }
        }
        let _ = verify_htree(&block, 0);
        seal_htree(&mut block, 0, 0);
    }
}
