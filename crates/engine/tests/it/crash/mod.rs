//! Power cuts. Each family of operations runs over a recording device. The recording is cut at
//! writes, with parts of the writes since the last flush, torn at sectors. Extant recovers each
//! state; e2fsck and the kernel recover copies of some, and come to the same tree. Durable changes
//! must be there. Each state is then written to and checked again, and some recoveries are cut as
//! well.

mod campaign;
mod examine;
mod mix;
mod pages;
mod recovery;
mod scene;
mod seen;
mod states;

use campaign::KINDS;
pub(crate) use campaign::sweep;
use extant_engine::{Node, NodeKind, OpenFlags, RenameFlags, XattrMode};
use extant_testkit::rng::Rng;
use extant_testkit::{Scratch, e2fsck};
pub(crate) use pages::{Copy, PageDevice, Pages};
use scene::LOGGED;
pub(crate) use scene::{
    BIGALLOC, DEEP, EXT2, EXT3, EXT4, INLINE, LAYOUTS, Promise, QUOTA, Setup, Stage, record, setup,
};
pub(crate) use seen::seen;

/// All kinds of file systems that mixes run on, each once.
pub(crate) fn kinds() -> std::collections::BTreeSet<Setup> {
    KINDS.iter().map(|(setup, _)| *setup).collect()
}

/// States tried for one workload in `make test`.
const STATES: usize = 240;

fn files(stage: &mut Stage) {
    let root = stage.root();
    for i in 0..12u64 {
        let name = format!("f{i}");
        let data = Rng::new(i).bytes((i * 1700 + 10) as usize);
        let node = stage.write(&root, &name, 0, &data);
        if i % 2 == 0 {
            stage.sync_file(&node, &format!("/{name}"), &data);
        }
    }
    for i in (0..12).step_by(4) {
        stage.forget(&format!("/f{i}"));
        stage.fs.unlink(&root, format!("f{i}").as_bytes()).expect("unlink");
        let other = stage.fs.lookup(&root, b"f2").expect("f2");
        stage.fs.sync_node(&other, false).expect("fsync");
    }
}

fn names(stage: &mut Stage) {
    let root = stage.root();
    let a = stage.fs.create(&root, b"a", 0o755, NodeKind::Dir).expect("a");
    let b = stage.fs.create(&root, b"b", 0o755, NodeKind::Dir).expect("b");
    for i in 0..40 {
        let data = format!("file {i}").into_bytes();
        let name = format!("a-rather-long-name-that-fills-blocks-{i}");
        let node = stage.write(&a, &name, 0, &data);
        if i % 8 == 0 {
            stage.sync_file(&node, &format!("/a/{name}"), &data);
            stage.forget(&format!("/a/{name}"));
            stage
                .fs
                .rename((&a, name.as_bytes()), (&b, name.as_bytes()), RenameFlags::empty())
                .expect("rename");
            stage.sync_file(&node, &format!("/b/{name}"), &data);
        }
    }
    stage
        .fs
        .rename((&root, b"b"), (&a, b"inner"), RenameFlags::empty())
        .map_err(|e| panic!("{e}"))
        .ok();
    stage.forget_all();
    stage.fs.sync().expect("sync");
}

fn sizes(stage: &mut Stage) {
    let root = stage.root();
    let data = Rng::new(9).bytes(200_000);
    let node = stage.write(&root, "big", 0, &data);
    stage.sync_file(&node, "/big", &data);
    stage.forget("/big");
    let file =
        stage.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    file.set_len(70_001).expect("truncate");
    stage.sync_file(&node, "/big", &data[..70_001]);
    stage.forget("/big");
    file.write_at(500_000, &data[..3000]).expect("sparse write");
    let mut whole = data[..70_001].to_vec();
    whole.resize(500_000, 0);
    whole.extend_from_slice(&data[..3000]);
    stage.sync_file(&node, "/big", &whole);
    stage.forget("/big");
    file.allocate(extant_engine::Falloc::Punch, 10_000, 30_000).expect("punch");
    whole[10_000..40_000].fill(0);
    stage.sync_file(&node, "/big", &whole);
    drop(file);
    stage.forget("/big");
    stage.fs.unlink(&root, b"big").expect("unlink");
    stage.fs.sync().expect("sync");
    stage.promise("/big", Promise::Gone);
}

/// A file of hundreds of extents: its tree splits, loses parts, is shifted and shrinks.
fn maps(stage: &mut Stage) {
    const BLOCK: usize = 1024;
    let root = stage.root();
    let mut whole = vec![0; 1200 * BLOCK];
    let node = stage.write(&root, "map", 0, &[]);
    let file =
        stage.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    for part in 0..3usize {
        for n in (0..400usize)
            .rev()
            .map(|n| (n * 3 + part) * BLOCK)
            .filter(|at| at / BLOCK % 2 == part % 2)
        {
            let data = Rng::new(n as u64).bytes(BLOCK);
            file.write_at(n as u64, &data).expect("write");
            whole[n..n + BLOCK].copy_from_slice(&data);
        }
        whole.truncate(file.len() as usize);
        stage.sync_file(&node, "/map", &whole);
        stage.forget("/map");
        whole.resize(1200 * BLOCK, 0);
    }
    whole.truncate(file.len() as usize);
    for (how, at, len) in [
        (extant_engine::Falloc::Punch, 100, 300),
        (extant_engine::Falloc::Collapse, 50, 60),
        (extant_engine::Falloc::Insert, 7, 90),
    ] {
        file.allocate(how, (at * BLOCK) as u64, (len * BLOCK) as u64).expect("fallocate");
        match how {
            extant_engine::Falloc::Punch => whole[at * BLOCK..(at + len) * BLOCK].fill(0),
            extant_engine::Falloc::Collapse => drop(whole.drain(at * BLOCK..(at + len) * BLOCK)),
            _ => drop(whole.splice(at * BLOCK..at * BLOCK, vec![0; len * BLOCK])),
        }
        stage.sync_file(&node, "/map", &whole);
        stage.forget("/map");
    }
    file.set_len(30 * BLOCK as u64).expect("truncate");
    stage.sync_file(&node, "/map", &whole[..30 * BLOCK]);
}

/// Writes a file of many unwritten pieces within its size: its map has leaves of its own.
fn preallocated(stage: &mut Stage, name: &str) -> Node {
    let node = stage.write(&stage.root(), name, (PIECES * PIECE + 100) as u64, b"the end");
    let file =
        stage.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
    for n in (0..PIECES).step_by(2) {
        file.allocate(extant_engine::Falloc::KeepSize, (n * PIECE) as u64, PIECE as u64)
            .expect("fallocate");
    }
    stage.fs.sync().expect("sync");
    node
}

const PIECES: usize = 40;
const PIECE: usize = 8192;

/// Bytes of the file that [`preallocated`] makes, with one piece written.
fn with_piece(n: usize, data: &[u8]) -> Vec<u8> {
    let mut whole = vec![0; PIECES * PIECE + 100];
    whole.extend_from_slice(b"the end");
    whole[n * PIECE..n * PIECE + data.len()].copy_from_slice(data);
    whole
}

/// Writes into unwritten extents in leaves outside the inode. Each fsync must cover the conversion,
/// for each way of writing, and even if the inode left memory between the write and the fsync.
fn conversions(stage: &mut Stage) {
    let data = Rng::new(5).bytes(PIECE);
    for (round, name) in
        ["cached", "direct", "evicted", "evicted, data only"].into_iter().enumerate()
    {
        let node = preallocated(stage, name);
        let other = stage.write(&stage.root(), &format!("other {round}"), 0, &data);
        // No inode is dirty in the transaction of the conversion.
        stage.fs.sync().expect("sync");
        let at = (8 * PIECE) as u64;
        if round == 0 {
            stage.write(&stage.root(), name, at, &data);
        } else {
            stage.fs.write_direct(&node, at, &data, false).expect("direct write");
        }
        drop(node);
        if round >= 2 {
            while stage.fs.operations().shrink(1000) > 0 {}
        }
        let node = stage.fs.lookup(&stage.root(), name.as_bytes()).expect(name);
        stage.fs.sync_node(&node, round == 3).expect("fsync");
        stage.holds(&format!("/{name}"), with_piece(8, &data));
        drop((node, other));
    }
}

/// On bigalloc: blocks are added to a cluster that the file owns, below leaves of their own blocks.
fn owned_clusters(stage: &mut Stage) {
    let root = stage.root();
    let block = Rng::new(6).bytes(1024);
    let mut whole = vec![0; 40 * 8192 + 1024];
    let node = stage.write(&root, "file", 40 * 8192, &block);
    whole[40 * 8192..].copy_from_slice(&block);
    for n in 0..40usize {
        stage.write(&root, "file", (n * 8192) as u64, &block);
        whole[n * 8192..n * 8192 + 1024].copy_from_slice(&block);
    }
    stage.fs.sync().expect("sync");
    stage.holds("/file", whole.clone());
    for n in [3, 20] {
        stage.forget("/file");
        stage
            .fs
            .write_direct(&node, (n * 8192 + 2048) as u64, &block, false)
            .expect("direct write");
        whole[n * 8192 + 2048..n * 8192 + 3072].copy_from_slice(&block);
        stage.sync_file(&node, "/file", &whole);
    }
}

/// A directory grows from one kind into the next and is emptied again; other directories are
/// created and removed.
fn directories(stage: &mut Stage) {
    let root = stage.root();
    let dir = stage.fs.create(&root, b"d", 0o755, NodeKind::Dir).expect("d");
    let file = stage.write(&root, "f", 0, b"linked");
    let name = |n: u32| format!("{}-{n}", "x".repeat(40 + n as usize % 150)).into_bytes();
    for n in 0..300 {
        stage.fs.link(&file, &dir, &name(n)).expect("link");
        if n % 3 == 0 {
            stage.fs.unlink(&dir, &name(n / 2)).expect("unlink");
        }
        let other = format!("sub{}", n % 7).into_bytes();
        if n % 14 < 7 {
            drop(stage.fs.create(&root, &other, 0o755, NodeKind::Dir).expect("mkdir"))
        } else {
            stage.fs.rmdir(&root, &other).expect("rmdir")
        }
        if n % 16 == 0 {
            stage.fs.sync().expect("sync");
        }
    }
}

/// Attributes move between inode, block and attribute inodes. Blocks are shared and copied.
fn attributes(stage: &mut Stage) {
    let root = stage.root();
    let nodes: Vec<Node> =
        (0..6).map(|n| stage.write(&root, &format!("f{n}"), 0, b"content")).collect();
    let mut rng = Rng::new(3);
    for round in 0..120 {
        let node = rng.pick(&nodes);
        let name = *rng.pick(&[&b"user.a"[..], b"user.b", b"trusted.c"]);
        let len = *rng.pick(&[10, 70, 400, 900, 3000]);
        let value = vec![rng.below(2) as u8; len];
        if rng.one_in(4) {
            drop(stage.fs.remove_xattr(node, name))
        } else {
            stage.fs.set_xattr(node, name, &value, XattrMode::Any).expect("set")
        }
        if round % 10 == 0 {
            stage.fs.sync_node(node, false).expect("fsync");
        }
    }
    for n in 0..6 {
        stage.fs.unlink(&root, format!("f{n}").as_bytes()).expect("unlink");
    }
}

/// A removed file that filled the disk leaves no block in use, for each way of writing.
#[test]
fn space_of_a_removed_file_that_filled_the_disk_is_free() {
    for setup in kinds() {
        let scratch = Scratch::new();
        let path = scratch.join("image");
        std::fs::write(&path, setup.pages().to_vec()).expect("room");
        e2fsck::check(&path).assert_clean();
    }
}

#[test]
fn directories_survive_power_cuts() {
    sweep("directories", &record(EXT4, false, directories), STATES, 1);
    sweep("directories that begin inline", &record(INLINE, false, directories), STATES / 2, 1);
    sweep("directories on ext3", &record(EXT3, false, directories), STATES / 2, 1);
}

#[test]
fn attributes_survive_power_cuts() {
    sweep("attributes", &record(INLINE, false, attributes), STATES, 1);
}

#[test]
fn maps_survive_power_cuts() {
    sweep("maps", &record(EXT4, false, maps), STATES, 1);
}

#[test]
fn fsync_makes_converted_extents_durable() {
    sweep("conversions", &record(EXT4, false, conversions), STATES / 2, 1);
}

#[test]
fn fsync_makes_blocks_of_owned_clusters_durable() {
    sweep("owned clusters", &record(BIGALLOC, false, owned_clusters), STATES / 2, 1);
}

#[test]
fn files_survive_power_cuts() {
    sweep("files", &record(EXT4, false, files), STATES, 1);
}

#[test]
fn files_survive_power_cuts_on_ext3() {
    sweep("files on ext3", &record(EXT3, false, files), STATES, 1);
}

#[test]
fn names_survive_power_cuts() {
    sweep("names", &record(EXT4, false, names), STATES, 1);
}

#[test]
fn sizes_survive_power_cuts() {
    sweep("sizes", &record(EXT4, false, sizes), STATES, 1);
}

#[test]
fn open_unlinked_files_are_freed_after_a_cut() {
    let scene = record(EXT4, false, |stage| {
        let root = stage.root();
        let node = stage.write(&root, "gone", 0, &[1; 50_000]);
        let held = stage.fs.open_file(&node, OpenFlags::default()).expect("open");
        stage.fs.unlink(&root, b"gone").expect("unlink");
        stage.fs.sync().expect("sync");
        stage.promise("/gone", Promise::Gone);
        std::mem::forget(held);
    });
    sweep("open unlinked", &scene, STATES / 2, 1);
}

#[test]
fn logged_data_survives_power_cuts() {
    sweep("sizes, data logged", &record(LOGGED, false, sizes), STATES, 1);
    sweep("files, data logged", &record(LOGGED, false, files), STATES, 1);
}

#[test]
fn mixes_survive_power_cuts() {
    for (i, (setup, threads)) in KINDS.into_iter().enumerate() {
        let name = format!("mix of {threads} on {}", setup.name);
        sweep(&name, &mix::scene(setup, threads, i as u64 + 1), STATES / 2, i as u64);
    }
}

/// In this mix a conversion was lost when fsync did not wait for changes of leaves outside the
/// inode.
#[test]
fn conversions_in_deep_maps_survive_power_cuts() {
    sweep("mix on deep clusters", &mix::scene(scene::DEEP_BIGALLOC, 1, 3), STATES, 3);
}
