//! Extended attributes: compared with a map, checked by e2fsck, read and changed by the kernel.

use extant_engine::{Caller, Errno, Fs, Node, NodeKind, OpenOptions, XattrMode};
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tree::{Manifest, posix_acl};
use std::collections::BTreeMap;

type Attrs = BTreeMap<Vec<u8>, Vec<u8>>;

const WHO: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[], umask: 0o022 };
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).unwrap()
}

/// Unmounts, and verifies that no handle changed more blocks than its credits.
fn unmount(fs: Fs) {
    assert_eq!(fs.stats().journal.overdrawn, 0, "credits");
    fs.unmount().unwrap();
}

fn node(fs: &Fs, path: &str) -> Node {
    fs.operations().resolve(path, extant_engine::Follow::No).unwrap()
}

fn read(fs: &Fs, node: &Node) -> Attrs {
    let ops = fs.operations();
    ops.list_xattrs(node)
        .unwrap()
        .into_iter()
        .map(|name| (name.clone(), ops.get_xattr(node, &name).unwrap()))
        .collect()
}

/// Sets, replaces and removes attributes at random. Values without space are refused and change
/// nothing.
fn churn(fs: &Fs, node: &Node, model: &mut Attrs, rng: &mut Rng, largest: u64) {
    let ops = fs.operations();
    for _ in 0..60 {
        let prefix = rng.pick(&["user.", "trusted.", "security."]);
        let name = format!("{prefix}{}", "n".repeat(rng.between(1, 12) as usize)).into_bytes();
        if rng.one_in(3) {
            match ops.remove_xattr(node, &name) {
                Ok(()) => assert!(model.remove(&name).is_some()),
                Err(e) => assert!(e.is(Errno::NoData) && !model.contains_key(&name), "{e}"),
            }
            continue;
        }
        let len = if rng.one_in(4) { rng.between(0, largest) } else { rng.between(0, 60) };
        let value = rng.bytes(len as usize);
        match ops.set_xattr(node, &name, &value, XattrMode::Any) {
            Ok(()) => drop(model.insert(name, value)),
            Err(e) => assert!(e.is(Errno::NoSpc), "{e}"),
        }
    }
    assert_eq!(&read(fs, node), model);
}

/// Attributes of each file as the kernel sees them.
fn kernel_reads(image: &Image, expected: &BTreeMap<String, Attrs>) {
    let mount = Mount::new(image.path(), "");
    let found = Manifest::walk(mount.path());
    for (path, attrs) in expected {
        let node = &found.nodes[path.trim_start_matches('/').as_bytes()];
        assert_eq!(&node.xattrs, attrs, "{path}");
    }
    mount.unmount();
}

fn exercise(name: &str, largest: u64) {
    let set = FeatureSet::named(name);
    let image = set.make();
    let fs = open(&image);
    let ops = fs.operations();
    let root = ops.root().unwrap();
    let rng = &mut Rng::new(21);
    let mut expected = BTreeMap::new();
    for n in 0..8 {
        let what = match n % 3 {
            0 => NodeKind::Dir,
            1 => NodeKind::File,
            _ => NodeKind::Symlink(b"target"),
        };
        let path = format!("/x{n}");
        let node = ops.create_as(&WHO, (&root, &path.as_bytes()[1..]), 0o644, what).unwrap();
        let mut model = Attrs::new();
        if n % 3 != 2 {
            churn(&fs, &node, &mut model, rng, largest);
        }
        expected.insert(path, model);
    }
    for n in (0..200).step_by(2) {
        // Removed files release their attributes.
        let name = format!("gone{n}");
        let node = ops.create_as(&WHO, (&root, name.as_bytes()), 0o644, NodeKind::File).unwrap();
        let len = rng.between(100, largest);
        let _ = ops.set_xattr(&node, b"user.large", &rng.bytes(len as usize), XattrMode::Any);
        drop(node);
        ops.unlink(&root, name.as_bytes()).unwrap();
    }
    drop(root);
    unmount(fs);
    image.assert_clean();
    let fs = open(&image);
    for (path, attrs) in &expected {
        assert_eq!(&read(&fs, &node(&fs, path)), attrs, "{path}");
    }
    unmount(fs);
    if set.kernel_mountable {
        kernel_reads(&image, &expected);
        image.assert_clean();
    }
}

#[test]
fn large_inodes() {
    exercise("orphan_file", 3000);
    exercise("inode_1024", 4000);
}

#[test]
fn blocks_only() {
    exercise("inode_128", 3000);
    exercise("ext2_1k", 900);
}

#[test]
fn small_and_large_blocks() {
    exercise("1k", 900);
    exercise("64k", 40_000);
}

#[test]
fn inodes_for_values() {
    exercise("ea_inode", 65_536);
}

#[test]
fn beside_inline_data() {
    exercise("inline_data", 3000);
}

#[test]
fn clusters_and_no_checksums() {
    exercise("bigalloc", 3000);
    exercise("no_csum", 3000);
}

#[test]
fn equal_attributes_share_a_block() {
    let image = FeatureSet::named("1k").make();
    let fs = open(&image);
    let ops = fs.operations();
    let root = ops.root().unwrap();
    let before = ops.usage().free;
    let value = vec![7; 600];
    let nodes: Vec<Node> = (0..1500)
        .map(|n| {
            let node = ops
                .create_as(&WHO, (&root, format!("f{n}").as_bytes()), 0o644, NodeKind::File)
                .unwrap();
            ops.set_xattr(&node, b"user.same", &value, XattrMode::Create).unwrap();
            node
        })
        .collect();
    let used = before - ops.usage().free;
    assert!(used < 200, "{used} blocks for two shared ones and a directory");
    ops.set_xattr(&nodes[3], b"user.same", b"other", XattrMode::Replace).unwrap();
    ops.remove_xattr(&nodes[4], b"user.same").unwrap();
    for (n, node) in nodes.iter().enumerate() {
        match n {
            3 => assert_eq!(ops.get_xattr(node, b"user.same").unwrap(), b"other"),
            4 => assert!(ops.get_xattr(node, b"user.same").unwrap_err().is(Errno::NoData)),
            _ => assert_eq!(ops.get_xattr(node, b"user.same").unwrap(), value),
        }
    }
    drop((nodes, root));
    unmount(fs);
    image.assert_clean();
    let fs = open(&image);
    let ops = fs.operations();
    let root = ops.root().unwrap();
    for n in 0..1500 {
        ops.unlink(&root, format!("f{n}").as_bytes()).unwrap();
    }
    drop(root);
    unmount(fs);
    image.assert_clean();
}

/// Sets one of a few values on each node again and again, or removes it.
fn set_few_values(ops: &extant_engine::Operations, nodes: &[Node], seed: u64) -> Vec<Attrs> {
    let rng = &mut Rng::new(seed);
    let mut models = vec![Attrs::new(); nodes.len()];
    for _ in 0..400 {
        let n = rng.below(nodes.len() as u64) as usize;
        if rng.one_in(3) {
            if models[n].remove(&b"user.same"[..]).is_some() {
                ops.remove_xattr(&nodes[n], b"user.same").unwrap();
            }
        } else {
            let value = vec![rng.below(3) as u8; 500];
            ops.set_xattr(&nodes[n], b"user.same", &value, XattrMode::Any).unwrap();
            models[n].insert(b"user.same".to_vec(), value);
        }
    }
    models
}

/// Several threads share, copy and drop attribute blocks at the same time.
#[test]
fn threads_share_blocks() {
    const THREADS: usize = 4;
    for set in ["1k", "ea_inode", "no_journal"] {
        let image = FeatureSet::named(set).make();
        let fs = open(&image);
        let ops = fs.operations();
        let root = ops.root().unwrap();
        let mut nodes: Vec<Node> = (0..40)
            .map(|n| {
                ops.create_as(&WHO, (&root, format!("f{n}").as_bytes()), 0o644, NodeKind::File)
                    .unwrap()
            })
            .collect();
        nodes.sort_by_key(Node::ino);
        let models: Vec<Attrs> = std::thread::scope(|scope| {
            let work = |(t, own)| scope.spawn(move || set_few_values(ops, own, t as u64));
            let threads: Vec<_> =
                nodes.chunks(nodes.len() / THREADS).enumerate().map(work).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for (node, model) in nodes.iter().zip(&models) {
            assert_eq!(&read(&fs, node), model);
        }
        drop((nodes, root));
        unmount(fs);
        image.assert_clean();
    }
}

#[test]
fn modes_and_limits() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let ops = fs.operations();
    let root = ops.root().unwrap();
    let file = ops.create_as(&WHO, (&root, b"f"), 0o644, NodeKind::File).unwrap();
    let set = |name: &[u8], value: &[u8], mode| ops.set_xattr(&file, name, value, mode);
    assert!(set(b"user.a", b"1", XattrMode::Replace).unwrap_err().is(Errno::NoData));
    set(b"user.a", b"1", XattrMode::Create).unwrap();
    assert!(set(b"user.a", b"1", XattrMode::Create).unwrap_err().is(Errno::Exist));
    set(b"user.a", b"22", XattrMode::Replace).unwrap();
    assert!(set(b"user.big", &[0; 4096], XattrMode::Any).unwrap_err().is(Errno::NoSpc));
    assert!(set(b"user.huge", &[0; 65537], XattrMode::Any).unwrap_err().is(Errno::TooBig));
    assert!(set(b"strange.a", b"1", XattrMode::Any).unwrap_err().is(Errno::OpNotSupp));
    assert!(set(ACCESS, b"nonsense", XattrMode::Any).unwrap_err().is(Errno::Inval));
    assert_eq!(ops.get_xattr(&file, b"user.a").unwrap(), b"22");
    drop((file, root));
    unmount(fs);
    image.assert_clean();
}

#[test]
fn acls_are_inherited_and_follow_the_mode() {
    let image = FeatureSet::named("orphan_file").make();
    let fs = open(&image);
    let ops = fs.operations();
    let root = ops.root().unwrap();
    let dir = ops.create_as(&WHO, (&root, b"d"), 0o755, NodeKind::Dir).unwrap();
    let acl = posix_acl(0o770, (1001, 7), (1002, 5));
    ops.set_xattr(&dir, DEFAULT, &acl, XattrMode::Any).unwrap();
    let file = ops.create_as(&WHO, (&dir, b"file"), 0o666, NodeKind::File).unwrap();
    let sub = ops.create_as(&WHO, (&dir, b"sub"), 0o777, NodeKind::Dir).unwrap();
    assert_eq!(ops.get_xattr(&sub, DEFAULT).unwrap(), acl);
    let mode = |node: &Node| node.attr().mode & 0o777;
    assert_eq!((mode(&file), mode(&sub)), (0o660, 0o770));
    let before = ops.get_xattr(&file, ACCESS).unwrap();
    ops.set_attr(&file, &extant_engine::SetAttr { mode: Some(0o600), ..Default::default() })
        .unwrap();
    assert_ne!(ops.get_xattr(&file, ACCESS).unwrap(), before);
    assert_eq!(mode(&file), 0o600);
    let expected = [("/d", &dir), ("/d/file", &file), ("/d/sub", &sub)]
        .map(|(path, node)| (path.to_string(), read(&fs, node)));
    drop((root, dir, file, sub));
    unmount(fs);
    image.assert_clean();
    kernel_reads(&image, &BTreeMap::from(expected));
}

#[test]
fn attributes_of_the_kernel_are_read_and_changed() {
    for set in ["orphan_file", "1k", "ea_inode", "inline_data"] {
        let image = FeatureSet::named(set).make();
        let rng = &mut Rng::new(33);
        let mut expected = BTreeMap::new();
        let mount = Mount::new(image.path(), "");
        for n in 0..6 {
            let path = mount.join(format!("k{n}"));
            std::fs::write(&path, b"content").unwrap();
            let mut attrs = Attrs::new();
            for i in 0..3 {
                let len = if i == 2 && set == "ea_inode" { 20_000 } else { 90 * (1 + i) };
                let (name, value) = (
                    format!("user.k{i}"),
                    if n % 2 == 0 { vec![i as u8; len] } else { rng.bytes(len) },
                );
                rustix::fs::setxattr(&path, name.as_str(), &value, rustix::fs::XattrFlags::empty())
                    .unwrap();
                attrs.insert(name.into_bytes(), value);
            }
            expected.insert(format!("/k{n}"), attrs);
        }
        mount.unmount();
        let fs = open(&image);
        for (path, attrs) in &mut expected {
            let node = node(&fs, path);
            assert_eq!(&read(&fs, &node), attrs, "{set} {path}");
            if path < &"/k4".to_string() {
                fs.operations()
                    .set_xattr(&node, b"user.k0", b"changed", XattrMode::Replace)
                    .unwrap();
                fs.operations().remove_xattr(&node, b"user.k2").unwrap();
                attrs.insert(b"user.k0".to_vec(), b"changed".to_vec());
                attrs.remove(&b"user.k2"[..]);
            }
        }
        let ops = fs.operations();
        ops.unlink(&ops.root().unwrap(), b"k5").unwrap();
        expected.remove("/k5");
        unmount(fs);
        image.assert_clean();
        kernel_reads(&image, &expected);
    }
}

/// The removal of an absent ACL succeeds, as in the kernel; that of another absent attribute fails.
#[test]
fn removing_an_absent_acl_succeeds_as_with_the_kernel() {
    let image = FeatureSet::named("default").make();
    let fs = open(&image);
    let root = fs.root().unwrap();
    fs.create_as(&WHO, (&root, b"file"), 0o644, NodeKind::File).unwrap();
    fs.create_as(&WHO, (&root, b"dir"), 0o755, NodeKind::Dir).unwrap();
    fs.create_as(&WHO, (&root, b"link"), 0o777, NodeKind::Symlink(b"target")).unwrap();
    drop(root);
    unmount(fs);
    let cases: Vec<(&str, &[u8])> = ["file", "dir", "link"]
        .into_iter()
        .flat_map(|path| [ACCESS, DEFAULT, b"trusted.absent"].map(|name| (path, name)))
        .collect();
    let mount = Mount::new(image.path(), "");
    let expected: Vec<i32> = cases
        .iter()
        .map(|(path, name)| {
            let done = rustix::fs::lremovexattr(mount.join(path), *name);
            done.map_or_else(|e| e.raw_os_error(), |()| 0)
        })
        .collect();
    mount.unmount();
    let fs = open(&image);
    for ((path, name), expected) in cases.iter().zip(expected) {
        let node = node(&fs, &format!("/{path}"));
        let before = node.attr().ctime;
        let done = fs.remove_xattr(&node, name).map_or_else(|e| e.errno(), |()| 0);
        assert_eq!(done, expected, "{path}: {}", String::from_utf8_lossy(name));
        assert_eq!(node.attr().ctime, before, "{path}: nothing was changed");
    }
    unmount(fs);
    image.assert_clean();
}
