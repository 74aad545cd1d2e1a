//! `extant hash`: the digest of docs/hash.md, whatever the image looks like.

use crate::args;
use crate::program::{done, extant, json, refused};
use extant_testkit::kernel::Mount;
use extant_testkit::tree::{Kind, Manifest, Node, Plan, Shape};
use extant_testkit::{FeatureSet, Image, Scratch};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Fields of an entry by the page.
#[derive(Default)]
struct Fields(Sha256);

impl Fields {
    fn add(&mut self, label: u8, value: &[u8]) {
        self.0.update([label]);
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
    }
}

/// The digest of a mounted tree by the definition of the page.
fn reference(top: &Path) -> String {
    let tree = Manifest::walk(top).without("lost+found");
    let mut nodes: Vec<(&Vec<u8>, &Node)> = tree.nodes.iter().collect();
    nodes.sort_by_key(|(path, _)| path.split(|b| *b == b'/').collect::<Vec<_>>());
    let mut sum = Sha256::new_with_prefix(b"extant-hash 1\n");
    let mut first: BTreeMap<&[u8], usize> = BTreeMap::new();
    for (index, (path, node)) in nodes.into_iter().enumerate() {
        let mut fields = Fields::default();
        let names: Vec<&[u8]> =
            path.split(|b| *b == b'/').filter(|name| !name.is_empty()).collect();
        fields.add(b'L', names.len().to_string().as_bytes());
        fields.add(b'n', names.last().copied().unwrap_or_default());
        match first.get(&**node.same_as.as_ref().unwrap_or(path)) {
            Some(first) => {
                fields.add(b't', b"h");
                fields.add(b'i', first.to_string().as_bytes());
            }
            None => {
                first.insert(node.same_as.as_ref().unwrap_or(path), index);
                add(&mut fields, &top.join(OsStr::from_bytes(path)), node);
            }
        }
        sum.update(fields.0.finalize());
    }
    format!("sha256:{:x}\n", sum.finalize())
}

fn add(fields: &mut Fields, path: &Path, node: &Node) {
    let letter = match node.kind {
        Kind::File => b"-",
        Kind::Directory => b"d",
        Kind::Symlink => b"l",
        Kind::BlockDevice => b"b",
        Kind::CharDevice => b"c",
        Kind::Fifo => b"p",
        Kind::Socket => b"s",
    };
    fields.add(b't', letter);
    let mut number = |label, number: i64| fields.add(label, number.to_string().as_bytes());
    number(b'm', node.mode.into());
    number(b'u', node.uid.into());
    number(b'g', node.gid.into());
    number(b'S', node.mtime.0);
    number(b'N', node.mtime.1.into());
    if matches!(node.kind, Kind::BlockDevice | Kind::CharDevice) {
        number(b'M', node.rdev.0.into());
        number(b'D', node.rdev.1.into());
    }
    if node.kind == Kind::Symlink {
        fields.add(b'l', &node.target);
    }
    for (name, value) in &node.xattrs {
        fields.add(b'x', name);
        fields.add(b'v', value);
    }
    if node.kind == Kind::File {
        fields.add(b's', node.size.to_string().as_bytes());
        fields.add(b'c', &content(&fs::read(path).unwrap()));
    }
}

fn content(data: &[u8]) -> Vec<u8> {
    let mut sum = Sha256::new();
    for (number, piece) in data.chunks(1 << 20).enumerate() {
        let mut own = Sha256::new();
        let mut is_zero = true;
        for (index, block) in piece.chunks(4096).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                is_zero = false;
                own.update((((number << 20) + (index << 12)) as u64).to_be_bytes());
                own.update(block);
            }
        }
        if !is_zero {
            sum.update(((number << 20) as u64).to_be_bytes());
            sum.update(own.finalize());
        }
    }
    sum.finalize().to_vec()
}

/// A tree with files of several pieces, of which some are zeroes, as holes and stored.
fn tree(scratch: &Scratch, seed: u64) -> std::path::PathBuf {
    let top = scratch.dir("top");
    let mut plan = Plan::random(seed, &Shape { longest_target: 300, ..Shape::small() });
    plan.entries.retain(|entry| !entry.path.starts_with(b"large"));
    plan.apply(&top);
    let large = fs::File::create_new(top.join("large")).unwrap();
    large.set_len((5 << 20) + 77).unwrap();
    for at in [0, 4095, (1 << 20) - 1, (3 << 20) + 5000, (5 << 20) + 76] {
        large.write_all_at(b"x", at).unwrap();
    }
    let dense: Vec<u8> = (0..3_000_001u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    fs::write(top.join("large.dense"), dense).unwrap();
    fs::create_dir(top.join("large-dir")).unwrap();
    // In the order of paths as bytes, not of names, this is before `large-dir/x`.
    fs::hard_link(top.join("large"), top.join("large-dir.x")).unwrap();
    fs::hard_link(top.join("large"), top.join("large-dir/x")).unwrap();
    top
}

#[test]
fn the_digest_is_that_of_the_page_on_every_layout() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 21);
    let mut expected = None;
    for set in ["default", "1k", "inline_data", "ext3", "bigalloc"] {
        let image = FeatureSet::named(set).make();
        done(&args!["put", image.path(), &top, "/"]);
        let mount = Mount::new(image.path(), "ro");
        let own = reference(mount.path());
        mount.unmount();
        for threads in ["1", "4"] {
            let printed = done(&args!["hash", "--threads", threads, image.path()]);
            assert_eq!(printed.text(), own, "{set}, {threads} threads");
        }
        // `put` keeps the attributes of the root.
        assert_eq!(*expected.get_or_insert(own.clone()), own, "{set}");
        image.assert_clean();
    }
}

#[test]
fn stored_zeroes_are_as_holes() {
    let scratch = Scratch::new();
    let (sparse, stored) = (scratch.dir("sparse"), scratch.dir("stored"));
    let mut data = vec![0; 3 << 20];
    data[(1 << 20) + 4097] = 1;
    fs::write(stored.join("f"), &data).unwrap();
    let file = fs::File::create_new(sparse.join("f")).unwrap();
    file.set_len(3 << 20).unwrap();
    file.write_all_at(&[1], (1 << 20) + 4097).unwrap();
    let digests = [&sparse, &stored].map(|top| {
        let image = FeatureSet::named("1k").make();
        done(&args!["put", image.path(), top, "/"]);
        done(&args!["hash", "--ignore", "times", image.path(), "/"]).text()
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn each_attribute_counts_unless_it_is_ignored() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let scratch = Scratch::new();
    fs::write(scratch.join("f"), "text").unwrap();
    done(&args!["put", image.path(), scratch.join("f"), "/f"]);
    let all = "times,owners,modes,xattrs";
    let digest = |ignore: &[std::ffi::OsString]| {
        done(&[&args!["hash", image.path(), "/f"], ignore].concat()).text()
    };
    let bare = digest(&args!["--ignore", all]);
    for (change, what) in [
        (&args!["chmod", image.path(), "600", "/f"][..], "modes"),
        (&args!["chown", image.path(), "7:8", "/f"], "owners"),
        (&args!["setfattr", "-n", "user.a", "-V", "b", image.path(), "/f"], "xattrs"),
        (&args!["truncate", "-s", "4", image.path(), "/f"], "times"),
    ] {
        let (before, without) = (digest(&[]), digest(&args!["--ignore", what]));
        done(change);
        assert_ne!(digest(&[]), before, "{what}");
        assert_eq!(digest(&args!["--ignore", what]), without, "{what}");
        assert_eq!(digest(&args!["--ignore", all]), bare, "{what}");
    }
    let document = json(&args!["hash", image.path(), "/f"]);
    assert_eq!(format!("{}\n", document["digest"].as_str().unwrap()), digest(&[]));
}

/// A digest of a part of a tree would be one of another tree.
#[test]
fn an_unreadable_entry_costs_the_digest() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    fs::write(top.join("up-up-name"), "").unwrap();
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", image.path(), &top, "/"]);
    image.replace(b"up-up-name", b"../../name");
    let printed = extant(&args!["hash", image.path()]);
    assert_eq!((printed.code, printed.text()), (1, String::new()), "{printed}");
    refused(&args!["hash", image.path()], 1, "1 thing could not be read");
}
