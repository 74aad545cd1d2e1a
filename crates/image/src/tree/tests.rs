use super::*;

fn file(text: &str) -> EntryKind {
    EntryKind::File(FileContent::Bytes(text.as_bytes().to_vec()))
}

fn with_mode(mode: u16) -> Attributes {
    Attributes { mode, ..Attributes::default() }
}

fn add(tree: &mut Tree, path: &str, kind: EntryKind) {
    tree.add(path.as_bytes(), &with_mode(0o755), kind).unwrap();
}

fn link(tree: &mut Tree, path: &str, target: &str) {
    add(tree, path, EntryKind::Symlink(target.as_bytes().to_vec()));
}

/// Returns all paths with the kind of their node and its links.
fn listing(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![(NodeId::ROOT, String::new())];
    while let Some((directory, path)) = directories.pop() {
        for entry in tree.children(directory) {
            let name = String::from_utf8_lossy(tree.entries.name(entry));
            let path = format!("{path}/{name}");
            let id = tree.entries.get(entry).node;
            let node = tree.node(id);
            match node.body {
                Body::Directory { entry: own, .. } => {
                    assert_eq!(own, entry, "{path}");
                    directories.push((id, path.clone()));
                }
                Body::File { content: StoredContent::Bytes(start), size } => {
                    let text = String::from_utf8_lossy(tree.stored(start, size)).into_owned();
                    found.push(format!("{path} {text:?} {}", node.links));
                    continue;
                }
                _ => {}
            }
            found.push(format!("{path} {:?} {}", node.file_type(), node.links));
        }
    }
    found.sort();
    assert_eq!(found.len() as u64, tree.len());
    found
}

#[test]
fn missing_directories_are_made() {
    let mut tree = Tree::new();
    add(&mut tree, "/a/b//./c", file("x"));
    assert_eq!(listing(&tree), ["/a Directory 1", "/a/b Directory 1", "/a/b/c \"x\" 1"]);
    assert!(tree.contains(b"a/b/c/") && tree.contains(b"") && !tree.contains(b"a/c"));
}

#[test]
fn directories_merge_and_all_else_replaces() {
    let mut tree = Tree::new();
    add(&mut tree, "d/kept", file("1"));
    tree.add(b"d", &with_mode(0o700), EntryKind::Directory).unwrap();
    assert_eq!(tree.node(tree.lookup(b"d").unwrap()).mode, 0o700);
    add(&mut tree, "d/kept", file("2"));
    assert_eq!(listing(&tree), ["/d Directory 1", "/d/kept \"2\" 1"]);
    add(&mut tree, "d/sub/deep/file", file("3"));
    add(&mut tree, "d", file("a file now"));
    assert_eq!(listing(&tree), ["/d \"a file now\" 1"]);
}

#[test]
#[should_panic(expected = "no directory")]
fn a_file_is_no_directory() {
    let mut tree = Tree::new();
    add(&mut tree, "f", file(""));
    add(&mut tree, "f/g", file(""));
}

#[test]
fn hard_links_count_names() {
    let mut tree = Tree::new();
    add(&mut tree, "f", file("x"));
    tree.hard_link(b"d/g", b"f").unwrap();
    tree.hard_link(b"d/g", b"f").unwrap();
    assert_eq!(listing(&tree), ["/d Directory 1", "/d/g \"x\" 2", "/f \"x\" 2"]);
    assert!(tree.remove(b"f").unwrap());
    assert_eq!(listing(&tree), ["/d Directory 1", "/d/g \"x\" 1"]);
    // A name in a directory that the link replaces.
    tree.hard_link(b"d", b"d/g").unwrap();
    assert_eq!(listing(&tree), ["/d \"x\" 1"]);
    let error = tree.hard_link(b"h", b"none").unwrap_err().to_string();
    assert_eq!(error, "h: links to none, which is missing");
    add(&mut tree, "dir", EntryKind::Directory);
    assert!(tree.hard_link(b"h", b"dir").is_err());
    for n in 1..LINK_MAX {
        tree.hard_link(format!("names/{n}").as_bytes(), b"d").unwrap();
    }
    assert!(tree.hard_link(b"one/more", b"d").is_err());
}

#[test]
fn attributes_that_are_left_out_may_have_any_name() {
    let attributes = |names: &[&str]| Attributes {
        xattrs: names.iter().map(|name| (name.as_bytes().to_vec(), b"v".to_vec())).collect(),
        ..Attributes::default()
    };
    let mut tree = Tree::new();
    let foreign = attributes(&["com.apple.quarantine", "user.a"]);
    let error = tree.add(b"f", &foreign, EntryKind::Fifo).unwrap_err().to_string();
    assert!(error.contains("--xattrs '^com.apple.quarantine'"), "{error}");
    tree.filter_xattrs(|name| !name.starts_with(b"com.apple."));
    tree.add(b"f", &foreign, EntryKind::Fifo).unwrap();
    let kept = tree.entry(b"f").unwrap().attributes.xattrs;
    assert_eq!(kept, attributes(&["user.a"]).xattrs);
}

/// Symlinks lead to more directories than a path can name.
#[test]
fn the_depth_of_a_tree_is_bounded() {
    let mut tree = Tree::new();
    let make = |tree: &mut Tree, path: &str| {
        tree.add(path.as_bytes(), &Attributes::default(), EntryKind::Directory)
    };
    let thousand = "a/".repeat(1000);
    link(&mut tree, "l", &thousand);
    make(&mut tree, "l/z").unwrap();
    link(&mut tree, "l/l", &thousand);
    make(&mut tree, "l/l/z").unwrap();
    make(&mut tree, &format!("l/l/{}", "a/".repeat(48))).unwrap();
    let error = make(&mut tree, &format!("l/l/{}", "a/".repeat(49))).unwrap_err();
    assert!(error.to_string().contains("more than 2048 directories"));
    assert_eq!(tree.len(), 2048 + 4);
    let around = "a/../".repeat(800);
    for n in 0..5 {
        link(&mut tree, &format!("around{n}"), &format!("{around}around{}", n + 1));
    }
    let error = make(&mut tree, "around0/z").unwrap_err();
    assert!(error.to_string().contains("16 KiB"), "{error}");
}

#[test]
fn symlinks_in_a_path_stay_in_the_image() {
    let mut tree = Tree::new();
    link(&mut tree, "lib", "usr/lib");
    link(&mut tree, "usr/up", "../../../..");
    link(&mut tree, "abs", "/usr/./lib/");
    add(&mut tree, "lib/a", file("a"));
    add(&mut tree, "usr/up/abs/b", file("b"));
    assert!(tree.contains(b"usr/lib/a") && tree.contains(b"usr/lib/b"));
    // The last name is not followed.
    add(&mut tree, "lib", EntryKind::Directory);
    assert!(!tree.contains(b"lib/a") && tree.contains(b"usr/lib/a"));
    link(&mut tree, "x", "y");
    link(&mut tree, "y", "x");
    let error = tree.add(b"x/f", &Attributes::default(), EntryKind::Fifo).unwrap_err();
    assert!(error.to_string().contains("circle"), "{error}");
}

#[test]
fn whiteouts_spare_their_own_layer() {
    let mut tree = Tree::new();
    add(&mut tree, "d/low", file("1"));
    add(&mut tree, "d/sub/low", file("1"));
    add(&mut tree, "d/both", file("1"));
    tree.begin_layer();
    add(&mut tree, "d/sub/high", file("2"));
    add(&mut tree, "d/both", file("2"));
    assert!(!tree.whiteout(b"d/both").unwrap());
    tree.make_opaque(b"d").unwrap();
    let rest = ["/d Directory 1", "/d/both \"2\" 1", "/d/sub Directory 1", "/d/sub/high \"2\" 1"];
    assert_eq!(listing(&tree), rest);
    tree.begin_layer();
    assert!(tree.whiteout(b"d").unwrap() && !tree.whiteout(b"d").unwrap());
    assert!(tree.is_empty());
    tree.make_opaque(b"missing").unwrap();
    add(&mut tree, "d/both", file("3"));
    tree.make_opaque(b"/").unwrap();
    assert_eq!(listing(&tree), ["/d Directory 1", "/d/both \"3\" 1"]);
}

/// Many whiteouts of a layer do not walk the same directories again.
#[test]
fn a_layer_walks_each_directory_once() {
    let mut tree = Tree::new();
    add(&mut tree, "d/sub/deep/low", file("1"));
    tree.begin_layer();
    add(&mut tree, "d/sub/deep/high", file("2"));
    let node = |tree: &Tree, path: &[u8]| tree.lookup(path).unwrap();
    let (deep, d) = (node(&tree, b"d/sub/deep"), node(&tree, b"d"));
    tree.make_opaque(b"d/sub/deep").unwrap();
    assert_eq!(tree.take_below(deep), []);
    // The entries below `deep` are not walked again.
    assert_eq!(tree.take_below(d).len(), 2);
    assert!(tree.whiteout(b"d").unwrap() && tree.take_below(d).is_empty());
    assert!(tree.contains(b"d/sub/deep/high") && !tree.contains(b"d/sub/deep/low"));
    tree.begin_layer();
    assert!(tree.whiteout(b"d").unwrap());
    assert!(tree.is_empty());
}

#[test]
fn as_many_attributes_as_ext4_can_store_are_taken() {
    let mut tree = Tree::new();
    let mut add = |count: u32, distinct: u32| {
        let xattr =
            |n: u32| (format!("user.{}", n % distinct).into_bytes(), n.to_le_bytes().into());
        let xattrs = (0..count).map(xattr).collect();
        tree.add(b"f", &Attributes { xattrs, ..Attributes::default() }, EntryKind::Fifo)
    };
    add(300_000, 8192).unwrap();
    let error = add(300_000, 300_000).unwrap_err();
    assert!(error.to_string().contains("more than 8192 extended attributes"), "{error}");
}

#[test]
fn entries_that_no_image_can_hold_are_refused() {
    let mut tree = Tree::new();
    let mut refused =
        |path: &[u8], kind| tree.add(path, &Attributes::default(), kind).unwrap_err().to_string();
    assert!(refused(b"a/../b", EntryKind::Fifo).contains(".."));
    assert!(refused(b"a\0\xFF", EntryKind::Fifo).starts_with("a\\u{0}\\xff: "));
    assert!(refused(b"", EntryKind::Fifo).starts_with("/: "));
    assert!(refused(b"l", EntryKind::Symlink(Vec::new())).contains("target"));
    assert!(refused(b"l", EntryKind::Symlink(vec![b'x'; 4096])).contains("4095"));
    assert!(refused(b"n", EntryKind::CharDevice(1 << 12, 0)).contains("4096:0"));
    let range = |start, len| DataRange { start, len, position: 0, skip: 0 };
    for ranges in [vec![range(0, 0)], vec![range(5, 6)], vec![range(0, 2), range(1, 2)]] {
        let content = FileContent::Sparse { source: SourceId(0), size: 10, ranges };
        assert!(refused(b"s", EntryKind::File(content)).contains("ranges"));
    }
}

#[test]
fn attributes_are_converted_and_shared() {
    let mut tree = Tree::new();
    let acl = extant_format::acl::Acl::from_mode(0o750);
    let xattrs = vec![
        (b"user.b".to_vec(), b"old".to_vec()),
        (b"security.selinux".to_vec(), b"label".to_vec()),
        (b"system.posix_acl_access".to_vec(), acl.to_xattr()),
        (b"system.posix_acl_default".to_vec(), acl.to_xattr()),
        (b"user.b".to_vec(), b"new".to_vec()),
    ];
    let mut attributes = Attributes { xattrs, ..Attributes::default() };
    tree.add(b"a", &attributes, EntryKind::Fifo).unwrap();
    attributes.xattrs.swap(1, 3);
    tree.add(b"b", &attributes, EntryKind::Fifo).unwrap();
    let sets = [b"a", b"b"].map(|path| tree.node(tree.lookup(path).unwrap()).xattrs);
    assert_eq!(sets[0], sets[1]);
    let set: Vec<_> = tree.xattrs.get(sets[0]).iter().map(|x| (x.index, &x.value[..])).collect();
    assert_eq!(set, [(1, &b"new"[..]), (3, &acl.to_disk()), (6, b"label")]);
    for (name, value) in [("other.x", 1), ("user.", 1), ("user.x", 65537), ("system.data", 1)] {
        attributes.xattrs = vec![(name.into(), vec![0; value])];
        let error = tree.add(b"a", &attributes, EntryKind::Fifo).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// A source whose byte `n` of position `p` is `p + n`.
struct Counting;

impl ContentSource for Counting {
    fn open(&self, position: u64) -> std::io::Result<Box<dyn OpenContent + '_>> {
        Ok(Box::new(Counted(position)))
    }
}

struct Counted(u64);

impl OpenContent for Counted {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        (self.0 + offset..).zip(buf).for_each(|(n, byte)| *byte = n as u8);
        Ok(())
    }
}

#[test]
fn entries_can_be_read_back() {
    let mut tree = Tree::new();
    let source = tree.add_source(Arc::new(Counting));
    let whole = FileContent::Whole { source, position: 7, size: 3 };
    add(&mut tree, "b/whole", EntryKind::File(whole));
    let ranges = vec![
        DataRange { start: 1, len: 2, position: 50, skip: 0 },
        DataRange { start: 4, len: 1, position: 60, skip: 9 },
    ];
    add(&mut tree, "b/sparse", EntryKind::File(FileContent::Sparse { source, size: 6, ranges }));
    add(&mut tree, "b.", EntryKind::File(FileContent::Zeroes { size: 2 }));
    add(&mut tree, "a", EntryKind::BlockDevice(8, 1));
    link(&mut tree, "c", "target");
    tree.hard_link(b"b/first", b"b/whole").unwrap();
    assert_eq!(tree.read(b"b/whole").unwrap(), [7, 8, 9]);
    assert_eq!(tree.read(b"b/sparse").unwrap(), [0, 50, 51, 0, 69, 0]);
    assert_eq!(tree.read(b"b.").unwrap(), [0, 0]);
    assert!(tree.read(b"a").is_err());
    let walked: Vec<TreeEntry> = tree.walk().collect();
    let paths: Vec<_> =
        walked.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect();
    assert_eq!(paths, ["a", "b", "b/first", "b/sparse", "b/whole", "b.", "c"]);
    assert_eq!((walked[2].links, walked[2].file), (2, walked[4].file));
    assert!(matches!(walked[0].kind, EntryKind::BlockDevice(8, 1)));
    assert!(matches!(&walked[6].kind, EntryKind::Symlink(target) if target == b"target"));
}

#[test]
fn names_in_messages_cannot_steer_a_terminal() {
    let mut tree = Tree::new();
    let error = tree.hard_link(b"b\n", "\u{202e}a".as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "b\\n: links to \\u{202e}a, which is missing");
    let mut attributes = with_mode(0o644);
    attributes.xattrs.push((b"other\x1b".to_vec(), Vec::new()));
    let error = tree.add(b"x", &attributes, EntryKind::Socket).unwrap_err().to_string();
    assert!(error.contains("attribute other\\u{1b} has"), "{error}");
}

#[test]
fn attributes_can_be_read_back() {
    let mut tree = Tree::new();
    let mut acl = extant_format::acl::Acl::from_mode(0o640).to_xattr();
    // A mask, so that the mode does not express the list.
    acl.extend_from_slice(&[0x10, 0, 4, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    acl[20..].rotate_right(8);
    let attributes = Attributes {
        mode: 0o640,
        uid: 70_000,
        gid: 5,
        mtime: Timestamp::new(-1, 999_999_999),
        atime: Some(Timestamp::new(5, 0)),
        ctime: None,
        xattrs: vec![
            (b"user.x".to_vec(), b"1".to_vec()),
            (b"system.posix_acl_access".to_vec(), acl),
        ],
    };
    tree.add(b"./x", &attributes, EntryKind::Socket).unwrap();
    assert_eq!(tree.entry(b"/x").unwrap().attributes, attributes);
    tree.add(b"/", &attributes, EntryKind::Directory).unwrap();
    assert_eq!(tree.entry(b"").unwrap().attributes, attributes);
    assert!(tree.entry(b"y").is_none());
}

#[test]
fn seeds_depend_on_names_attributes_and_sizes_alone() {
    let seed = |path: &str, mode, text| {
        let mut tree = Tree::new();
        tree.add(path.as_bytes(), &with_mode(mode), file(text)).unwrap();
        tree.seed()
    };
    let first = seed("a", 0o644, "text");
    assert_eq!(first, seed("a", 0o644, "TEXT"));
    for other in [seed("b", 0o644, "text"), seed("a", 0o600, "text"), seed("a", 0o644, "texts")] {
        assert_ne!(first, other);
    }
    // Images that were made before keep their UUIDs.
    assert_eq!(first, 6_680_071_978_551_042_727);
}
