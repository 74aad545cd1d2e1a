//! The tree against a model, over nodes so small that trees get deep.

use super::*;
use crate::error::{Errno, Error};
use extant_format::extent::{MAX_DEPTH, Node, NodeMut};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes in memory: the root of 60 bytes and blocks of five entries.
#[derive(Debug)]
struct Mem {
    root: Vec<u8>,
    blocks: BTreeMap<u64, Vec<u8>>,
    next: u64,
    /// Blocks that may still be had.
    free: usize,
    prepared: usize,
    /// Reads of blocks until one fails, and whether that one was met.
    reads_left: Cell<usize>,
    failed: Cell<bool>,
    held: BTreeSet<u64>,
    changes: usize,
    /// A step failed after its first change.
    half_done: bool,
}

/// Maps a hole; false if a block of it is mapped.
fn insert(mem: &mut Mem, e: Leaf) -> Result<bool> {
    let Some(prepared) = prepare_insert(mem, e)? else { return Ok(false) };
    super::insert(mem, &prepared, e).map(|()| true)
}

fn remove_tail(mem: &mut Mem, path: Path, gone: &Tail) -> Result<()> {
    let prepared = prepare_removal(mem, path, gone)?;
    super::remove_tail(mem, &prepared, gone)
}

const BLOCK_BYTES: usize = 12 + 5 * 12 + 4;

impl Mem {
    fn new() -> Mem {
        let mut root = vec![0; 60];
        NodeMut::init(&mut root, 0);
        Mem {
            root,
            blocks: BTreeMap::new(),
            next: 1,
            free: 10_000,
            prepared: 0,
            reads_left: Cell::new(usize::MAX),
            failed: Cell::new(false),
            held: BTreeSet::new(),
            changes: 0,
            half_done: false,
        }
    }

    /// A block comes from the device unless it is held: nothing is cached.
    fn read(&self, at: At) -> Result<()> {
        let At::Block(nr) = at else { return Ok(()) };
        if self.held.contains(&nr) {
            return Ok(());
        }
        match self.reads_left.get() {
            0 => {
                self.failed.set(true);
                self.reads_left.set(usize::MAX);
                Err(std::io::Error::other("unreadable").into())
            }
            left => {
                self.reads_left.set(left - 1);
                Ok(())
            }
        }
    }

    fn bytes(&mut self, at: At) -> &mut Vec<u8> {
        match at {
            At::Root => &mut self.root,
            At::Block(nr) => self.blocks.get_mut(&nr).unwrap(),
        }
    }
}

impl Nodes for Mem {
    fn view<R>(&self, at: At, expect: Expect, f: impl FnOnce(Node<'_>) -> R) -> Result<R> {
        self.read(at)?;
        let bytes = match at {
            At::Root => &self.root,
            At::Block(nr) => &self.blocks[&nr],
        };
        Ok(f(Node::parse(bytes, expect.depth)?))
    }
}

impl NodesMut for Mem {
    fn change<R>(&mut self, at: At, f: impl FnOnce(NodeMut<'_>) -> R) -> Result<R> {
        self.read(at)?;
        self.changes += 1;
        Ok(f(NodeMut::open(self.bytes(at))?))
    }

    fn format<R>(&mut self, at: At, depth: u16, f: impl FnOnce(NodeMut<'_>) -> R) -> Result<R> {
        self.changes += 1;
        Ok(f(NodeMut::init(self.bytes(at), depth)))
    }

    fn prepare(&mut self, blocks: usize) -> Result<()> {
        if blocks > self.free {
            return Err(Errno::NoSpc.into());
        }
        self.prepared = self.prepared.max(blocks);
        Ok(())
    }

    fn create(&mut self) -> Result<u64> {
        self.prepared = self.prepared.checked_sub(1).expect("a block that was not prepared");
        self.free -= 1;
        self.next += 1;
        self.changes += 1;
        self.blocks.insert(self.next, vec![0; BLOCK_BYTES]);
        self.held.insert(self.next);
        Ok(self.next)
    }

    fn release(&mut self, block: u64) -> Result<()> {
        assert!(self.blocks.remove(&block).is_some(), "block {block} freed twice");
        self.changes += 1;
        Ok(())
    }

    fn hold(&mut self, at: At, _: Expect) -> Result<()> {
        self.read(at)?;
        if let At::Block(nr) = at {
            self.held.insert(nr);
        }
        Ok(())
    }

    fn prepare_release(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let before = self.changes;
        let done = change(self);
        self.held.clear();
        self.half_done |= done.is_err() && self.changes != before;
        done
    }
}

/// All extents in order; panics if the tree is not as it has to be.
fn check(mem: &Mem) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    let mut seen = 0;
    walk(mem, At::Root, Expect::ROOT, &mut leaves, &mut seen);
    assert_eq!(seen, mem.blocks.len(), "blocks that no node refers to");
    assert!(leaves.windows(2).all(|w| w[0].end() <= w[1].lblk.into()));
    leaves
}

fn walk(mem: &Mem, at: At, expect: Expect, leaves: &mut Vec<Leaf>, seen: &mut usize) {
    let children = mem
        .view(at, expect, |node| {
            assert!(at == At::Root || !node.is_empty(), "an empty node");
            assert!(
                expect.first.is_none_or(|key| node.key(0) == Some(key)),
                "a key that is not the child's"
            );
            assert!(node.depth() <= MAX_DEPTH);
            leaves.extend(node.leaves());
            let inside = leaves.last().is_none_or(|e| e.end() <= expect.end);
            assert!(inside || !node.is_leaf(), "an extent past its parent's range");
            (0..node.indexes().len())
                .map(|i| path::child(&node, expect, i).unwrap())
                .collect::<Vec<_>>()
        })
        .unwrap();
    for (at, expect) in children {
        *seen += 1;
        walk(mem, at, expect, leaves, seen);
    }
}

type Model = BTreeMap<u32, (u64, bool)>;

fn as_model(leaves: &[Leaf]) -> Model {
    let block = |e: &Leaf, n: u32| (e.lblk + n, (e.pblk + u64::from(n), e.unwritten));
    leaves.iter().flat_map(|e| (0..u32::from(e.len)).map(move |n| block(e, n))).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Insert { lblk: u32, len: u16, pblk: u64, unwritten: bool },
    Convert { lblk: u32, len: u32, unwritten: bool },
    Remove { lblk: u32, len: u32 },
    Collapse { lblk: u32, len: u32 },
    Open { lblk: u32, len: u32 },
}

const SPACE: u32 = 2000;

fn op() -> impl Strategy<Value = Op> {
    let lblk = 0..SPACE;
    prop_oneof![
        6 => (
            lblk.clone(),
            1..6u16,
            any::<bool>(),
            any::<bool>(),
        ).prop_map(|(lblk, len, near, unwritten)| {
            let pblk = if near { 10_000 + u64::from(lblk) } else { 50_000 + u64::from(lblk) * 7 };
            Op::Insert { lblk, len, pblk, unwritten }
        }),
        3 => (lblk.clone(), 1..40u32, any::<bool>())
            .prop_map(|(lblk, len, unwritten)| Op::Convert { lblk, len, unwritten }),
        2 => (lblk.clone(), 1..100u32).prop_map(|(lblk, len)| Op::Remove { lblk, len }),
        1 => (lblk.clone(), 1..30u32).prop_map(|(lblk, len)| Op::Collapse { lblk, len }),
        1 => (lblk, 1..30u32).prop_map(|(lblk, len)| Op::Open { lblk, len }),
    ]
}

/// Several extents of a leaf at a time, and parts of long ones.
fn remove_range(mem: &mut Mem, start: u32, end: u32) {
    let (most, long) = (1 + start as usize % 4, if start.is_multiple_of(3) { 2 } else { u64::MAX });
    let mut end = u64::from(end);
    while let Some(path) = last_before(mem, end).unwrap() {
        let gone = tail(mem, &path, start.into()..end, most, long).unwrap();
        let Some(first) = gone.parts.first() else { break };
        end = first.lblk.into();
        remove_tail(mem, path, &gone).unwrap();
    }
}

fn collapse(mem: &mut Mem, model: &mut Model, start: u32, len: u32) {
    remove_range(mem, start, start + len);
    model.retain(|&l, _| l < start || l >= start + len);
    let mut from = start + len;
    while let Some(e) = first_from(mem, from).unwrap() {
        assert!(shift(mem, e.lblk, e.lblk.into(), -i64::from(len)).unwrap());
        from = e.end() as u32;
    }
    *model = model.iter().map(|(&l, &v)| (if l >= start { l - len } else { l }, v)).collect();
}

fn open(mem: &mut Mem, model: &mut Model, start: u32, len: u32) {
    let mut end = LOGICAL_END;
    while let Some(e) = last_before(mem, end).unwrap().and_then(|path| path.left) {
        if e.end() <= start.into() {
            break;
        }
        assert!(shift(mem, e.lblk, start.into(), len.into()).unwrap());
        end = e.lblk.max(start).into();
    }
    *model = model.iter().map(|(&l, &v)| (if l >= start { l + len } else { l }, v)).collect();
}

fn run(mem: &mut Mem, model: &mut Model, op: &Op) {
    match *op {
        Op::Insert { lblk, len, pblk, unwritten } => {
            let free = (lblk..lblk + u32::from(len)).all(|l| !model.contains_key(&l));
            let before = mem.root.clone();
            let done = insert(mem, Leaf { lblk, len, pblk, unwritten });
            assert_eq!(done.unwrap(), free);
            if !free {
                assert_eq!(before, mem.root);
                return;
            }
            model.extend((0..u32::from(len)).map(|n| (lblk + n, (pblk + u64::from(n), unwritten))));
        }
        Op::Convert { lblk, len, unwritten } => {
            let mut at = lblk;
            while at < lblk + len {
                at = convert(mem, at..lblk + len, unwritten).unwrap() as u32;
            }
            model.range_mut(lblk..lblk + len).for_each(|(_, v)| v.1 = unwritten);
        }
        Op::Remove { lblk, len } => {
            remove_range(mem, lblk, lblk + len);
            model.retain(|&l, _| l < lblk || l >= lblk + len);
        }
        Op::Collapse { lblk, len } => collapse(mem, model, lblk, len),
        Op::Open { lblk, len } => open(mem, model, lblk, len),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_follows_the_model(ops in prop::collection::vec(op(), 1..400)) {
        let mut mem = Mem::new();
        let mut model = Model::new();
        for op in &ops {
            run(&mut mem, &mut model, op);
            prop_assert_eq!(&as_model(&check(&mem)), &model);
        }
        remove_range(&mut mem, 0, u32::MAX);
        prop_assert!(mem.blocks.is_empty());
        prop_assert_eq!(mem.view(At::Root, Expect::ROOT, |n| n.header().max).unwrap(), 4);
    }

    /// Extents of which a leaf takes several in one edit are mapped as one by one.
    #[test]
    fn extents_that_are_mapped_together_are_those_of_the_model(
        ops in prop::collection::vec(op(), 0..150),
        blocks in prop::collection::btree_set(0..SPACE, 1..80),
    ) {
        let (mut mem, mut model) = (Mem::new(), Model::new());
        for op in &ops {
            run(&mut mem, &mut model, op);
        }
        let holes: Vec<u32> = blocks.into_iter().filter(|l| !model.contains_key(l)).collect();
        let mut pblk = 90_000;
        let extents: Vec<Leaf> = holes
            .iter()
            .map(|&lblk| {
                let second = lblk + 1;
                let alone = model.contains_key(&second) || holes.binary_search(&second).is_ok();
                let len = if alone { 1 } else { 2 };
                pblk += u64::from(len);
                written(lblk, len, pblk - u64::from(len))
            })
            .collect();
        let mut rest = extents.as_slice();
        while let Some(first) = rest.first() {
            let (prepared, count) = prepare_insert_some(&mut mem, rest).unwrap().unwrap();
            super::insert(&mut mem, &prepared, *first).unwrap();
            prop_assert!(!mem.half_done);
            for e in &rest[..count] {
                let block = |n: u32| (e.lblk + n, (e.pblk + u64::from(n), false));
                model.extend((0..e.len.into()).map(block));
            }
            prop_assert_eq!(&as_model(&check(&mem)), &model);
            prop_assert!(prepare_insert_some(&mut mem, rest).unwrap().is_none());
            rest = &rest[count..];
        }
    }

    /// An edit of a cold tree meets a block that cannot be read, whichever: it has happened as a
    /// whole or not at all.
    #[test]
    fn an_unreadable_block_leaves_no_half_of_an_edit(
        ops in prop::collection::vec(op(), 100..300),
        nth in 0usize..12,
    ) {
        let (mut mem, mut model) = (Mem::new(), Model::new());
        let (before, last) = ops.split_at(ops.len() / 2);
        for op in before {
            run(&mut mem, &mut model, op);
        }
        for op in last {
            let model = as_model(&check(&mem));
            mem.reads_left.set(nth);
            let (done, after) = one_edit(&mut mem, &model, op);
            mem.reads_left.set(usize::MAX);
            prop_assert!(!mem.half_done, "{op:?} would have aborted the journal");
            let found = as_model(&check(&mem));
            prop_assert!(found == if done { after } else { model }, "{op:?}, done: {done}");
        }
    }

    #[test]
    fn without_space_nothing_changes(
        ops in prop::collection::vec(op(), 1..200),
        free in 0usize..6,
    ) {
        let mut mem = Mem::new();
        let mut model = Model::new();
        for op in &ops {
            run(&mut mem, &mut model, op);
        }
        mem.free = free;
        let before = check(&mem);
        for lblk in (5000..5400).step_by(2) {
            if insert(&mut mem, Leaf { lblk, len: 1, pblk: 9, unwritten: false }).is_err() {
                break;
            }
        }
        let after = check(&mem);
        prop_assert_eq!(&after[..before.len()], &before[..]);
    }
}

/// One edit of the kind that an operation begins with. Gives whether it succeeded, and the model
/// after it.
fn one_edit(mem: &mut Mem, model: &Model, op: &Op) -> (bool, Model) {
    let mut after = model.clone();
    let done = match *op {
        Op::Insert { lblk, len, pblk, unwritten } => {
            let done = insert(mem, Leaf { lblk, len, pblk, unwritten });
            if let Ok(true) = done {
                after.extend(
                    (0..u32::from(len)).map(|n| (lblk + n, (pblk + u64::from(n), unwritten))),
                );
            }
            done.map(drop)
        }
        Op::Convert { lblk, len, unwritten } => {
            convert(mem, lblk..lblk + len, unwritten).map(|end| {
                after.range_mut(lblk..end as u32).for_each(|(_, block)| block.1 = unwritten);
            })
        }
        Op::Remove { lblk, len } | Op::Collapse { lblk, len } => {
            let range = u64::from(lblk)..u64::from(lblk + len);
            let found = last_before(mem, range.end).and_then(|path| match path {
                Some(path) => tail(mem, &path, range, 3, u64::MAX).map(|gone| Some((path, gone))),
                None => Ok(None),
            });
            found.and_then(|found| match found {
                Some((path, gone)) if !gone.parts.is_empty() => {
                    let low = gone.parts[0].lblk;
                    after.retain(|&l, _| l < low || l >= lblk + len);
                    remove_tail(mem, path, &gone)
                }
                _ => Ok(()),
            })
        }
        Op::Open { lblk, .. } => split_at(mem, lblk),
    };
    (done.is_ok(), after)
}

fn written(lblk: u32, len: u16, pblk: u64) -> Leaf {
    Leaf { lblk, len, pblk, unwritten: false }
}

#[test]
fn a_leaf_takes_as_many_extents_as_it_has_space_for() {
    let mut mem = Mem::new();
    let extents: Vec<Leaf> = (0..6).map(|n| written(n * 10, 1, 100 + u64::from(n))).collect();
    let (prepared, count) = prepare_insert_some(&mut mem, &extents).unwrap().unwrap();
    assert_eq!(count, 4);
    super::insert(&mut mem, &prepared, extents[0]).unwrap();
    assert_eq!(check(&mem), extents[..4]);
    let (prepared, count) = prepare_insert_some(&mut mem, &extents[4..]).unwrap().unwrap();
    assert_eq!(count, 1, "the root is full");
    super::insert(&mut mem, &prepared, extents[4]).unwrap();
    assert_eq!(check(&mem), extents[..5]);
}

#[test]
fn an_appended_file_fills_its_leaves() {
    let mut mem = Mem::new();
    for n in 0..500u32 {
        assert!(insert(&mut mem, written(n * 2, 1, 100 + u64::from(n) * 2)).unwrap());
    }
    assert_eq!(check(&mem).len(), 500);
    assert!(mem.blocks.len() <= 130, "{} blocks", mem.blocks.len());
}

#[test]
fn a_file_written_backwards_is_one_tree_too() {
    let mut mem = Mem::new();
    for n in (0..300u32).rev() {
        assert!(insert(&mut mem, written(n * 2, 1, 100 + u64::from(n) * 2)).unwrap());
        check(&mem);
    }
    assert_eq!(check(&mem).len(), 300);
}

#[test]
fn the_longest_written_extent_becomes_two_unwritten_ones() {
    let mut mem = Mem::new();
    insert(&mut mem, written(0, 32768, 1000)).unwrap();
    assert_eq!(convert(&mut mem, 0..40_000, true).unwrap(), 32768);
    assert_eq!(check(&mem).iter().map(|e| e.len).collect::<Vec<_>>(), [32767, 1]);
    assert_eq!(convert(&mut mem, 0..40_000, false).unwrap(), 32767);
    assert_eq!(convert(&mut mem, 32767..40_000, false).unwrap(), 32768);
    assert_eq!(check(&mem), [written(0, 32768, 1000)]);
}

#[test]
fn extents_join_up_to_their_longest() {
    let mut mem = Mem::new();
    for n in 0..3u32 {
        insert(&mut mem, written(n * 16384, 16384, u64::from(n) * 16384 + 5)).unwrap();
    }
    assert_eq!(check(&mem).iter().map(|e| e.len).collect::<Vec<_>>(), [32768, 16384]);
}

#[test]
fn the_last_block_of_a_file_can_be_mapped() {
    let mut mem = Mem::new();
    insert(&mut mem, written(u32::MAX - 1, 1, 5)).unwrap();
    assert_eq!(find(&mem, u32::MAX - 1).unwrap().hit(), Some(written(u32::MAX - 1, 1, 5)));
    assert!(!shift(&mut mem, u32::MAX - 1, 0, 1).unwrap());
    assert_eq!(
        last_before(&mem, u64::MAX).unwrap().unwrap().left,
        Some(written(u32::MAX - 1, 1, 5))
    );
}

#[test]
fn a_tree_has_a_greatest_depth() {
    let mut mem = Mem::new();
    mem.free = usize::MAX;
    let mut n = 0;
    let error = loop {
        match insert(&mut mem, written(n * 2, 1, 7 * u64::from(n))) {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Posix(Errno::FBig)), "{error}");
    assert_eq!(check(&mem).len(), n as usize);
}
