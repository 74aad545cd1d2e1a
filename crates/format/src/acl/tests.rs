use super::*;
use proptest::prelude::*;

fn entry(tag: Tag, perm: u16) -> AclEntry {
    AclEntry { tag, perm }
}

fn sample() -> Acl {
    Acl::new(vec![
        entry(Tag::UserObj, 7),
        entry(Tag::User(1000), 6),
        entry(Tag::GroupObj, 5),
        entry(Tag::Group(50), 7),
        entry(Tag::Mask, 6),
        entry(Tag::Other, 4),
    ])
    .unwrap()
}

#[test]
fn both_forms_round_trip() {
    let acl = sample();
    assert_eq!(acl.to_disk().len(), 4 + 4 * 4 + 2 * 8);
    assert_eq!(acl.to_xattr().len(), 4 + 6 * 8);
    assert_eq!(Acl::from_disk(&acl.to_disk()).unwrap(), acl);
    assert_eq!(Acl::from_xattr(&acl.to_xattr()).unwrap(), Some(acl));
    assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]).unwrap(), None);
}

#[test]
fn invalid_lists_are_refused() {
    let base = || vec![entry(Tag::UserObj, 7), entry(Tag::GroupObj, 5), entry(Tag::Other, 4)];
    assert!(Acl::new(base()).is_ok());
    for extra in [entry(Tag::User(5), 1), entry(Tag::UserObj, 1), entry(Tag::Mask, 8)] {
        let mut entries = base();
        entries.push(extra);
        assert!(Acl::new(entries).is_err());
    }
    let mut twice = base();
    twice.extend([entry(Tag::User(5), 1), entry(Tag::User(5), 2), entry(Tag::Mask, 7)]);
    assert!(Acl::new(twice).is_err());
    assert!(Acl::new(base()[1..].to_vec()).is_err());
    assert!(Acl::from_disk(&[1, 0, 0]).is_err());
    assert!(Acl::from_disk(&[2, 0, 0, 0]).is_err());
}

#[test]
fn modes_follow_the_mask() {
    let mut acl = sample();
    assert_eq!(acl.mode_bits(), 0o764);
    assert!(!acl.is_mode());
    acl.chmod(0o100_640);
    assert_eq!(acl.mode_bits(), 0o640);
    assert_eq!(acl.entries()[2], entry(Tag::GroupObj, 5));
    assert_eq!(Acl::from_mode(0o751).mode_bits(), 0o751);
}

#[test]
fn new_files_take_the_default_list() {
    let (mode, access) = sample().inherit(0o100_666);
    assert_eq!(mode, 0o100_664);
    let access = access.unwrap();
    assert_eq!(access.mode_bits(), 0o664);
    assert_eq!(access.entries()[3], entry(Tag::Group(50), 7));
    let (mode, access) = Acl::from_mode(0o750).inherit(0o100_666);
    assert_eq!((mode, access), (0o100_640, None));
}

#[test]
fn permissions_are_those_of_the_first_match() {
    const OWNER: FileOwner = FileOwner { uid: 1, gid: 9 };
    let acl = sample();
    let in_50 = |gid| gid == 50;
    let nowhere = |_| false;
    assert!(acl.allows(7, OWNER, 1, nowhere));
    assert!(acl.allows(6, OWNER, 1000, nowhere));
    assert!(!acl.allows(1, OWNER, 1000, nowhere));
    assert!(acl.allows(6, OWNER, 2, in_50));
    assert!(!acl.allows(1, OWNER, 2, in_50));
    assert!(acl.allows(4, OWNER, 2, nowhere));
    assert!(!acl.allows(2, OWNER, 2, nowhere));
    assert!(!acl.allows(2, OWNER, 2, |gid| gid == 9));
}

proptest! {
    #[test]
    fn any_bytes_are_read(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for version in [1, 2] {
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[version, 0, 0, 0]);
            }
            let _ = Acl::from_disk(&bytes);
            let _ = Acl::from_xattr(&bytes);
        }
    }
}
