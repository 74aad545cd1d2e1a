//! `extant diff --oci-layer`: layers that make one tree out of another, by `extant build` and by
//! other programs.

use crate::args;
use crate::comparing::{copy_of, image_of, mutate, sh};
use crate::program::{EXTANT, done, extant, json, refused};
use extant_testkit::tool::{run, run_with_env};
use extant_testkit::tree::{Manifest, Plan, Shape, What};
use extant_testkit::{Image, Scratch, debugfs};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// Writes the layer from `a` to `b`. Returns its members in order.
fn layer(a: &Image, b: &Image, to: &Path) -> Vec<String> {
    let call = args!["diff", a.path(), b.path(), "--compress", "none", "--oci-layer", to];
    let document = json(&call);
    let sum = format!("sha256:{:x}", Sha256::digest(fs::read(to).unwrap()));
    assert_eq!((&document["layer"], &document["diff_id"]), (&sum.clone().into(), &sum.into()));
    assert_eq!(document["size"], fs::metadata(to).unwrap().len());
    let listed = run("tar", &args!["-tf", to]).must_succeed().text();
    listed.lines().map(Into::into).collect()
}

/// The digest of an image built of the tree of `a` and layers above it.
fn rebuilt(scratch: &Scratch, a: &Image, layers: &[PathBuf]) -> String {
    let (base, out) = (scratch.join("base.tar"), scratch.join("rebuilt"));
    done(&args!["export", a.path(), "--tar", &base]);
    let mut call = args!["build", &out, base].to_vec();
    call.extend(layers.iter().map(|layer| format!("layer:{}", layer.display()).into()));
    done(&call);
    done(&args!["hash", out]).text()
}

fn hash(image: &Image) -> String {
    done(&args!["hash", image.path()]).text()
}

/// A layer takes the first tree to the second one, and another one takes that back.
#[test]
fn random_differences_are_rebuilt() {
    for seed in 40..46 {
        let scratch = Scratch::new();
        let top = scratch.dir("top");
        let mut plan = Plan::random(seed, &Shape { longest_target: 300, ..Shape::small() });
        plan.entries.retain(|entry| !matches!(entry.what, What::Socket));
        plan.apply(&top);
        let other = copy_of(&top, scratch.join("other"));
        mutate(&other, seed, 15);
        let [a, b] = [image_of(&top, "default"), image_of(&other, "1k")];
        for (name, from, to) in [("there", &a, &b), ("back", &b, &a)] {
            let file = scratch.join(name);
            layer(from, to, &file);
            assert_eq!(rebuilt(&scratch, from, &[file]), hash(to), "seed {seed}, {name}");
        }
        let both = [scratch.join("there"), scratch.join("back")];
        assert_eq!(rebuilt(&scratch, &a, &both), hash(&a), "seed {seed}");
    }
}

/// The trees of the test below: the second one has a change of each kind.
fn trees(scratch: &Scratch) -> [Image; 2] {
    let top = scratch.dir("top");
    let long = "n".repeat(255);
    sh(
        &top,
        &format!(
            "mkdir -p kept/deep attr gone replaced emptied to-file/sub; echo x >kept/deep/f
            echo x >gone/f; echo x >to-file/sub/f; echo x >replaced/old; mkdir replaced/dir
            echo x >replaced/dir/f; echo x >emptied/one; echo x >to-dir; echo x >kept/{long}
            echo linked >l1; ln l1 l2; ln l1 kept/l3; echo apart >p1; ln p1 p2; mknod null c 1 3
            mkfifo fifo; ln -s to link; truncate -s 3M sparse; echo same >same; ln same kept/same
            touch -h -d @1000 kept/deep/f kept/* */* * ."
        ),
    );
    let other = copy_of(&top, scratch.join("other"));
    sh(
        &other,
        &format!(
            "rm -r gone to-file kept/{long} emptied/one; echo x >to-file; rm to-dir; mkdir to-dir
            echo y >to-dir/in; rm -r replaced/*; echo new >replaced/new; mkdir replaced/sub
            echo deep >replaced/sub/f; chmod 700 attr; setfattr -n user.a -v 1 attr
            echo more >>l1; rm p2; cp p1 p2; ln l1 l0; rm null; mknod null b 7 7
            ln -sfn other link; printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc
            setcap cap_net_raw=ep same; setfacl -m u:7:r p1; setfacl -d -m u:7:rx to-dir
            echo x >kept/deep/more; touch -h -d @1000.25 kept/deep/more kept/deep kept . l1"
        ),
    );
    [image_of(&top, "default"), image_of(&other, "1k")]
}

#[test]
fn a_layer_has_changes_whiteouts_and_the_directories_above() {
    let scratch = Scratch::new();
    let [a, b] = trees(&scratch);
    let file = scratch.join("layer");
    let members = layer(&a, &b, &file);
    let long = "n".repeat(255);
    let expected = [
        "./",
        "./attr/",
        "./emptied/",
        "./emptied/.wh..wh..opq",
        "./.wh.gone",
        "./kept/",
        "./kept/deep/",
        "./kept/deep/more",
        "./kept/l3",
        &format!("./kept/.wh.{long}"),
        "./kept/same",
        "./l0",
        "./l1",
        "./l2",
        "./link",
        "./null",
        "./p1",
        "./p2",
        "./replaced/",
        "./replaced/.wh..wh..opq",
        "./replaced/new",
        "./replaced/sub/",
        "./replaced/sub/f",
        "./same",
        "./sparse",
        "./to-dir/",
        "./to-dir/in",
        "./to-file",
    ];
    assert_eq!(members, expected);
    assert_eq!(rebuilt(&scratch, &a, &[file]), hash(&b));
    // Two equal trees give a layer without members.
    let empty = scratch.join("empty");
    assert!(layer(&a, &a, &empty).is_empty());
    assert_eq!(rebuilt(&scratch, &a, &[empty]), hash(&a));
    // The bytes do not depend on threads, and the digests are of the stored and the plain bytes.
    for how in ["gzip", "zstd"] {
        let made = ["1", "4"].map(|threads| {
            let to = scratch.join(format!("{how}.{threads}"));
            let call = args!["diff", "--threads", threads, a.path(), b.path(), "--oci-layer", &to];
            let text = done(&[&call[..], &args!["--compress", how]].concat()).text();
            (text, fs::read(&to).unwrap())
        });
        assert!(made[0] == made[1], "{how}");
        let plain = format!(
            "diff_id sha256:{:x}",
            Sha256::digest(fs::read(scratch.join("layer")).unwrap())
        );
        let stored = format!("layer sha256:{:x}", Sha256::digest(&made[0].1));
        assert_eq!(made[0].0.lines().collect::<Vec<_>>(), [stored, plain]);
        assert_eq!(rebuilt(&scratch, &a, &[scratch.join(format!("{how}.4"))]), hash(&b), "{how}");
    }
}

/// umoci unpacks an image of two layers, of which the second one is a difference.
#[test]
fn umoci_unpacks_the_layer_over_its_base() {
    let scratch = Scratch::new();
    let [a, b] = trees(&scratch);
    let layout = scratch.join("layout");
    done(&args!["export", a.path(), "--oci", &layout]);
    let file = scratch.join("layer.tar");
    layer(&a, &b, &file);
    let image = format!("{}:latest", layout.display());
    run("umoci", &args!["raw", "add-layer", "--image", &image, &file]).must_succeed();
    let bundle = scratch.join("bundle");
    run("umoci", &args!["unpack", "--image", &image, &bundle]).must_succeed();
    let out = scratch.join("out");
    done(&args!["get", b.path(), "/", &out]);
    let tree = |top: &Path| Manifest::walk(top).without("lost+found").without_root();
    tree(&out).assert_same(&tree(&bundle.join("rootfs")));
}

#[test]
fn trees_without_a_layer_are_refused_and_leave_nothing() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    sh(&top, "mkdir d; echo x >d/f");
    let a = image_of(&top, "default");
    let made = |name: &str, script: &str| {
        let other = copy_of(&top, scratch.join(name));
        sh(&other, script);
        image_of(&other, "1k")
    };
    let to = scratch.join("layer");
    fs::write(&to, "old").unwrap();
    for (name, script, words) in [
        ("name", "echo x >d/.wh.f", "/d/.wh.f: a layer cannot hold names that begin with .wh."),
        ("opaque", "mkdir .wh..wh..opq", "begin with .wh."),
        ("device", "mknod d/zero c 0 0", "/d/zero: a layer cannot hold the device 0:0"),
        ("overlay", "setfattr -n trusted.overlay.opaque -v y d", "trusted.overlay.opaque"),
        (
            "socket",
            "python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind(\"d/s\")'",
            "/d/s: an archive cannot hold this type",
        ),
        ("attribute", "setfattr -n user.a=b -v 1 d", "cannot hold the attribute user.a=b"),
        ("sparse", "truncate -s 1T d/f", "the holes of sparse files"),
    ] {
        let b = made(name, script);
        refused(&args!["diff", a.path(), b.path(), "--oci-layer", &to], 2, words);
        assert_eq!(fs::read(&to).unwrap(), b"old", "{name}");
        // In the other direction they are gone.
        if !words.contains(".wh.") {
            done(&args!["diff", b.path(), a.path(), "--oci-layer", scratch.join("other")]);
        } else {
            let back = args!["diff", b.path(), a.path(), "--oci-layer", &to];
            refused(&back, 2, "begin with .wh.");
        }
    }
    let damaged = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", damaged.path(), &top, "/"]);
    debugfs::write(damaged.path(), "clri /d/f");
    damaged.leave_unjudged("an inode is cleared");
    for [first, second] in [[&a, &damaged], [&damaged, &a]] {
        let call = args!["diff", first.path(), second.path(), "--oci-layer", &to];
        refused(&call, 2, "/d/f: ");
    }
    assert_eq!(fs::read(&to).unwrap(), b"old");
    refused(&args!["diff", a.path(), a.path(), "/d/f", "--oci-layer", &to], 2, "directories");
    refused(&args!["diff", a.path(), a.path(), "--oci-layer", "-"], 2, "name a file");
    refused(&args!["diff", a.path(), a.path(), "--compress", "gzip"], 2, "--oci-layer");
    let call = args!["diff", a.path(), a.path(), "--oci-layer", scratch.join("no/layer")];
    refused(&call, 2, "no/layer");
}

/// `SOURCE_DATE_EPOCH` bounds times as in `export`.
#[test]
fn times_of_a_layer_end_with_the_epoch_of_the_source() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    let a = image_of(&top, "default");
    sh(&top, "echo x >new; touch -d @2000000000 new");
    let (b, to) = (image_of(&top, "1k"), scratch.join("layer"));
    let call = args!["diff", a.path(), b.path(), "--compress", "none", "--oci-layer", &to];
    run_with_env(EXTANT, &call, &[("SOURCE_DATE_EPOCH", "1600000000")]).must_succeed();
    let listed = run_with_env("tar", &args!["-tvf", &to], &[("TZ", "UTC")]).must_succeed().text();
    assert!(listed.contains("2020-09-13 12:26 ./new"), "{listed}");
    assert_eq!(extant(&args!["diff", a.path(), b.path()]).code, 1);
}
