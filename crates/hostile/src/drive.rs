//! Runs all operations of a program on an image, and detects panics, hangs and writes of readers.

use crate::seeds::options;
use extant_blocks::{FaultDevice, MemDevice, Op};
use extant_engine::{
    Falloc, FileType, Fs, Node, NodeKind, OpenFlags, RenameFlags, SetAttr, XattrMode,
};
use extant_testkit::rng::Rng;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Maximum number of inodes that a walk visits, and of entries that it reads from a directory.
const MOST: usize = 2000;

/// Entries after which a listing counts as endless.
const ENDLESS: usize = 200_000;

/// Maximum number of device reads of one walk, which visits [`MOST`] inodes and reads a part of
/// each.
const MAX_READS: u64 = 300_000;

/// Time after which an image counts as hanging, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Kind of use of an image. Writing waits for seconds on images with multiple mount protection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Read only.
    Read,
    /// Read, change, and read again.
    Write,
}

/// Messages of panics in threads of the engine, which no caller would see otherwise.
fn panics() -> &'static Mutex<Vec<String>> {
    static PANICS: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    PANICS.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            if name.starts_with("extant") || name == "mutant" {
                let message = format!("{name}: {info}");
                panics().lock().unwrap_or_else(|e| e.into_inner()).push(message);
            } else {
                before(info);
            }
        }));
        Mutex::default()
    })
}

/// Returns the messages of panics in threads of the engine since the last call.
pub fn panics_since() -> Vec<String> {
    std::mem::take(&mut *panics().lock().unwrap_or_else(|e| e.into_inner()))
}

/// Runs all operations on an image. An error is a message about a panic, a hang, or a change of a
/// read-only image.
pub fn survive(image: Vec<u8>, seed: u64, depth: Depth) -> Result<(), String> {
    panics();
    let (done, finished) = channel();
    let body = move || {
        let base = Arc::new(MemDevice::from_bytes(&image));
        drop(image);
        let result = catch_unwind(AssertUnwindSafe(|| use_up(&base, &mut Rng::new(seed), depth)));
        let _ = done.send(result.unwrap_or_else(|_| Err("a panic".into())));
    };
    let thread = std::thread::Builder::new().name("mutant".into()).spawn(body).expect("a thread");
    let result = match finished.recv_timeout(PATIENCE) {
        Ok(result) => {
            let _ = thread.join();
            result
        }
        Err(RecvTimeoutError::Timeout) => Err("a hang".into()),
        Err(RecvTimeoutError::Disconnected) => Err("a lost thread".into()),
    };
    let panicked = panics_since();
    if panicked.is_empty() { result } else { Err(panicked.join("; ")) }
}

/// Reads an image, changes it, and reads it again. An error is a message about a forbidden effect.
pub fn use_up(base: &Arc<MemDevice>, rng: &mut Rng, depth: Depth) -> Result<(), String> {
    read_only(base)?;
    if depth == Depth::Write {
        read_write(base, rng);
        read_only(base)?;
    }
    Ok(())
}

fn read_only(base: &Arc<MemDevice>) -> Result<(), String> {
    let device = Arc::new(FaultDevice::new(base.clone()));
    if let Ok(fs) = Fs::open_device(device.clone(), &options().read_only(true)) {
        walk(&fs);
        let _ = fs.stats();
        let root = fs.root();
        let made = root.map(|root| fs.create(&root, b"never", 0o644, NodeKind::File).is_ok());
        if made.unwrap_or(false) {
            return Err("a read-only file system changed".into());
        }
        let _ = fs.sync();
        let _ = fs.unmount();
    }
    let reads = device.count(Op::Read);
    match [Op::Write, Op::Zero, Op::Discard, Op::SetLen].map(|op| device.count(op)) {
        [0, 0, 0, 0] if reads > MAX_READS => Err(format!("{reads} reads of one image")),
        [0, 0, 0, 0] => Ok(()),
        counts => Err(format!("writes to a device opened to be read: {counts:?}")),
    }
}

/// Visits all reachable nodes and reads them. Returns some of them.
fn walk(fs: &Fs) -> Vec<Node> {
    let mut seen = BTreeSet::new();
    let mut todo: Vec<Node> = fs.root().into_iter().collect();
    let mut found = Vec::new();
    while let Some(node) = todo.pop() {
        if found.len() >= MOST || !seen.insert(node.ino()) {
            continue;
        }
        read(fs, &node);
        if node.file_type() == FileType::Directory {
            todo.extend(children(fs, &node));
        }
        found.push(node);
    }
    let _ = fs.resolve("/dir/sub/deep/../../short", extant_engine::Follow::Yes);
    found
}

fn children(fs: &Fs, dir: &Node) -> Vec<Node> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut count = 0;
    let _ = fs.read_dir_from(dir, 0, |entry| {
        count += 1;
        assert!(count < ENDLESS, "a listing without end");
        if names.len() < MOST && entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    });
    let mut plus = 0;
    let _ = fs.read_dir_plus(dir, 0, |_, _| {
        plus += 1;
        plus < 100
    });
    let _ = fs.lookup(dir, b"no such name");
    names.iter().filter_map(|name| fs.lookup(dir, name).ok()).collect()
}

fn read(fs: &Fs, node: &Node) {
    let attr = node.attr();
    for name in fs.list_xattrs(node).unwrap_or_default() {
        let _ = fs.get_xattr(node, &name);
    }
    let _ = fs.read_link(node);
    let Ok(file) = fs.open_file(node, OpenFlags::default()) else { return };
    let mut buffer = vec![0; 100_000];
    for offset in [0, attr.size / 2, attr.size.saturating_sub(5000), u64::MAX - 10] {
        let _ = file.read_at(offset, &mut buffer);
    }
    let _ = fs.read_direct(node, 4096, &mut buffer);
    let _ = file.seek_data(0).and_then(|at| file.seek_hole(at));
    let mut extents = 0;
    let _ = file.extents(0, u64::MAX, |_| {
        extents += 1;
        extents < ENDLESS
    });
    assert!(extents < ENDLESS, "a map without end");
}

/// Runs all kinds of changes, as far as the image allows.
fn read_write(base: &Arc<MemDevice>, rng: &mut Rng) {
    let Ok(fs) = Fs::open_device(base.clone(), &options()) else { return };
    let nodes = walk(&fs);
    if nodes.is_empty() {
        return;
    }
    for step in 0..60 {
        change(&fs, &nodes, step, rng);
    }
    drop(nodes);
    let _ = fs.sync();
    if rng.one_in(4) {
        fs.crash();
    } else {
        let _ = fs.unmount();
    }
}

fn change(fs: &Fs, nodes: &[Node], step: u64, rng: &mut Rng) {
    let dirs: Vec<&Node> =
        nodes.iter().filter(|node| node.file_type() == FileType::Directory).collect();
    if dirs.is_empty() {
        return;
    }
    let (dir, other) = (*rng.pick(&dirs), *rng.pick(&dirs));
    let name = some_name(fs, dir, rng);
    let new = format!("new name {}", rng.below(30)).into_bytes();
    match step % 10 {
        0 => drop(fs.create(dir, &new, 0o644, NodeKind::File).map(|node| alter(fs, &node, rng))),
        1 => drop(fs.create(dir, &new, 0o755, NodeKind::Dir)),
        2 => drop(fs.create(
            dir,
            &new,
            0o755,
            NodeKind::Symlink(&vec![b's'; rng.below(200) as usize + 1]),
        )),
        3 => drop(fs.unlink(dir, &name).or_else(|_| fs.rmdir(dir, &name))),
        4 => drop(fs.rename((dir, &name), (other, &new), RenameFlags::empty())),
        5 => drop(fs.rename(
            (dir, &name),
            (other, &some_name(fs, other, rng)),
            RenameFlags::EXCHANGE,
        )),
        6 => drop(fs.link(rng.pick(nodes), dir, &new)),
        7 => drop(fs.sync()),
        _ => alter(fs, rng.pick(nodes), rng),
    }
}

fn some_name(fs: &Fs, dir: &Node, rng: &mut Rng) -> Vec<u8> {
    let mut name = b"missing".to_vec();
    let mut left = rng.below(40) + 2;
    let _ = fs.read_dir_from(dir, 0, |entry| {
        if entry.name != b"." && entry.name != b".." {
            name = entry.name.to_vec();
        }
        left -= 1;
        left > 0
    });
    name
}

/// Changes one inode.
fn alter(fs: &Fs, node: &Node, rng: &mut Rng) {
    for name in [&b"user.short"[..], b"trusted.long", b"user.new"] {
        let value = vec![7; rng.below(3000) as usize];
        let _ = fs.set_xattr(node, name, &value, XattrMode::Any);
    }
    let _ = fs.remove_xattr(node, b"trusted.long");
    let _ = fs.set_attr(node, &SetAttr { mode: Some(0o600), uid: Some(5), ..Default::default() });
    let Ok(file) = fs.open_file(node, OpenFlags { write: true, ..Default::default() }) else {
        return;
    };
    let size = node.attr().size;
    let data = rng.bytes(20_000);
    let _ = file.write_at(rng.below(size.clamp(1, 1 << 22)), &data);
    let _ = file.write_at(size, &data[..100]);
    let _ = file.sync();
    let block = 65536 * rng.below(3);
    let how = *rng.pick(Falloc::ALL);
    let _ = file.allocate(how, block, 65536);
    if rng.one_in(2) {
        let _ = file.set_len(rng.below(size.clamp(1, 1 << 22) * 2));
    }
    let _ = fs.write_direct(node, 8192, &data, false);
    let _ = file.sync_data();
}
