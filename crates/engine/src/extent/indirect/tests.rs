//! The map against a model, with pointer blocks of four pointers.

use super::*;
use crate::error::Errno;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: usize = 16;
const REACH: u32 = 12 + 4 + 16 + 64;

#[derive(Debug)]
struct Mem {
    root: Vec<u8>,
    blocks: BTreeMap<u32, Vec<u8>>,
    places: RefCell<BTreeMap<u32, (u32, u8)>>,
    next: u32,
    free: usize,
}

impl Mem {
    fn new() -> Mem {
        Mem {
            root: vec![0; 60],
            blocks: BTreeMap::new(),
            places: RefCell::default(),
            next: 1_000_000,
            free: usize::MAX,
        }
    }
}

impl Pointers for Mem {
    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn view<R>(&self, at: At, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match at {
            At::Root => Ok(f(&self.root)),
            At::Block(nr) => Ok(f(&self.blocks[&(nr as u32)])),
        }
    }

    fn place(&self, block: u32, first: u32, level: u8) -> Result<()> {
        let place = *self.places.borrow_mut().entry(block).or_insert((first, level));
        assert_eq!(place, (first, level), "{block} in two places");
        Ok(())
    }
}

impl PointersMut for Mem {
    fn change<R>(&mut self, at: At, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        match at {
            At::Root => Ok(f(&mut self.root)),
            At::Block(nr) => Ok(f(self.blocks.get_mut(&(nr as u32)).unwrap())),
        }
    }

    fn prepare(&mut self, blocks: usize) -> Result<()> {
        if blocks > self.free { Err(Errno::NoSpc.into()) } else { Ok(()) }
    }

    fn create(&mut self) -> Result<u32> {
        self.free -= 1;
        self.next += 1;
        self.blocks.insert(self.next, vec![0; BLOCK]);
        Ok(self.next)
    }

    fn release(&mut self, block: u32) -> Result<()> {
        assert!(self.blocks.remove(&block).is_some_and(|b| b.iter().all(|&x| x == 0)));
        Ok(())
    }

    fn hold(&mut self, _: At) -> Result<()> {
        Ok(())
    }

    fn prepare_release(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn step<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        change(self)
    }
}

/// Frees into a set, so many runs at a time.
struct Freed {
    blocks: BTreeSet<u32>,
    left: usize,
}

/// Maps blocks array by array. Gives how many, and why not all if so.
fn insert_all(mem: &mut Mem, lblk: u32, pblk: u64, len: u32) -> (u32, Result<()>) {
    let mut done = 0;
    while done < len {
        let (lblk, pblk) = (lblk + done, pblk + u64::from(done));
        let part = prepare_insert(mem, lblk, pblk, len - done)
            .and_then(|part| insert(mem, lblk, pblk, part).map(|()| part));
        match part {
            Ok(part) => done += part,
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

impl Removal<Mem> for Freed {
    fn may_free(&mut self, _: &mut Mem, _: u32, _: u32) -> Result<bool> {
        Ok(self.left > 0)
    }

    fn uncharge(&mut self, _: &mut Mem, _: u32) -> Result<()> {
        Ok(())
    }

    fn reached(&mut self, _: u64) {}

    fn free(&mut self, _: &mut Mem, first: u32, len: u32) -> Result<()> {
        self.left -= 1;
        assert!((first..first + len).all(|b| self.blocks.insert(b)), "a block freed twice");
        Ok(())
    }
}

type Model = BTreeMap<u32, u32>;

fn read_all(mem: &Mem) -> Model {
    let mut model = Model::new();
    let mut at = 0;
    while at < REACH {
        let (first, len) = lookup(mem, at, u64::from(REACH - at)).unwrap();
        if let Some(first) = first {
            model.extend((0..len as u32).map(|n| (at + n, first + n)));
        }
        at += len as u32;
    }
    model
}

fn remove_all(mem: &mut Mem, range: Range<u64>, at_once: usize) -> BTreeSet<u32> {
    let mut freed = Freed { blocks: BTreeSet::new(), left: at_once };
    let mut end = range.end;
    for _ in 0..10_000 {
        freed.left = at_once;
        end = remove(mem, range.start..end, &mut freed).unwrap();
        if end == range.start {
            return freed.blocks;
        }
    }
    panic!("removal does not end");
}

/// No pointer block is empty, and each is used once.
fn check(mem: &Mem) {
    let used = mem.blocks.values().chain([&mem.root]);
    let used: Vec<u32> = used
        .flat_map(|b| (0..b.len() / 4).map(|n| pointer(b, n)))
        .filter(|p| *p > 1_000_000)
        .collect();
    assert_eq!(used.len(), mem.blocks.len());
    assert!(mem.blocks.values().all(|b| b.iter().any(|&x| x != 0)));
}

#[derive(Clone, Debug)]
enum Op {
    Insert { lblk: u32, len: u32, pblk: u32 },
    Remove { lblk: u32, len: u32, at_once: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let lblk = 0..REACH;
    prop_oneof![
        2 => (lblk.clone(), 1..20u32, any::<bool>()).prop_map(|(lblk, len, near)| {
            let pblk = if near { 10_000 + lblk } else { 100 + lblk * 32 };
            Op::Insert { lblk, len, pblk }
        }),
        1 => (
            lblk,
            1..60u32,
            1..4usize,
        ).prop_map(|(lblk, len, at_once)| Op::Remove { lblk, len, at_once }),
    ]
}

fn run_op(mem: &mut Mem, model: &mut Model, op: &Op) {
    match *op {
        Op::Insert { lblk, len, pblk } => {
            let free = (lblk..lblk + len).all(|l| !model.contains_key(&l)) && lblk + len <= REACH;
            if free {
                let (done, result) = insert_all(mem, lblk, pblk.into(), len);
                assert!(result.is_ok() && done == len);
                model.extend((0..len).map(|n| (lblk + n, pblk + n)));
            }
        }
        Op::Remove { lblk, len, at_once } => {
            let freed = remove_all(mem, lblk.into()..u64::from(lblk) + u64::from(len), at_once);
            let gone: BTreeSet<u32> = model.range(lblk..lblk + len).map(|(_, &p)| p).collect();
            assert_eq!(freed, gone);
            model.retain(|&l, _| l < lblk || l >= lblk + len);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn the_map_follows_the_model(ops in prop::collection::vec(op(), 1..100)) {
        let (mut mem, mut model) = (Mem::new(), Model::new());
        for op in &ops {
            run_op(&mut mem, &mut model, op);
            prop_assert_eq!(&read_all(&mem), &model);
            check(&mem);
        }
        remove_all(&mut mem, 0..u64::MAX, 1);
        prop_assert!(mem.blocks.is_empty() && mem.root.iter().all(|&b| b == 0));
    }
}

#[test]
fn without_space_a_part_is_mapped() {
    let mut mem = Mem::new();
    mem.free = 1;
    let (done, result) = insert_all(&mut mem, 10, 500, 40);
    assert_eq!(done, 6);
    assert!(result.is_err_and(|e| e.is(Errno::NoSpc)));
    assert_eq!(read_all(&mem).len(), 6);
}

#[test]
fn blocks_past_the_reach_or_past_32_bits_are_refused() {
    let mut mem = Mem::new();
    assert!(insert_all(&mut mem, REACH, 500, 1).1.is_err_and(|e| e.is(Errno::FBig)));
    assert!(insert_all(&mut mem, 0, 1 << 32, 1).1.is_err_and(|e| e.is(Errno::FBig)));
    assert!(insert_all(&mut mem, 0, 100, 1).1.is_ok());
    assert!(insert_all(&mut mem, 0, 100, 1).1.is_err());
    assert_eq!(lookup(&mem, REACH, 7).unwrap(), (None, 7));
}
