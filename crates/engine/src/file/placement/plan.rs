//! Where data go: blocks of a file are matched with places on the device, the data are written, and
//! the map follows.
//!
//! # Invariants
//! - A piece is contiguous in the file and on the device.
//! - Pieces that are not in place are mapped only after their data are written, whole blocks of
//!   them.
//!
//! # Locking
//! The caller holds the inode's `work` from the making of a plan until it is mapped, or excludes
//! others from its blocks (and their clusters) in between by a range lock.

use crate::alloc::Claim;
use crate::error::{Error, Result};
use crate::extent::{self, ExtentState, Placement, Run};
use crate::file::space::{self, AllocRequest, Waits};
use crate::file::times::Note;
use crate::file::window::{self, Growth, ScatteredAlloc};
use crate::file::{map, times};
use crate::inode::{Inode, Step, Tx, Work};
use crate::store::Store;
use crate::volume::SpaceRights;
use extant_format::error::Corrupt;
use extant_format::types::BlockNr;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The change of the map after a piece's data are written.
#[derive(Debug)]
pub(in crate::file) enum MapAction {
    /// Nothing: the blocks are mapped and written.
    InPlace,
    /// The blocks are mapped unwritten: they become written.
    Convert,
    /// The blocks are mapped from a claim, whose first `offset` blocks precede the piece.
    Map { claim: Claim, offset: u32 },
    /// The file owns the cluster already: the blocks are mapped there.
    Owned,
}

/// Blocks that lie together in the file and on the device.
#[derive(Debug)]
pub(in crate::file) struct Piece {
    pub lblk: u32,
    pub len: u32,
    pub pblk: BlockNr,
    pub how: MapAction,
}

impl Piece {
    /// One behind the last block.
    pub fn end(&self) -> u32 {
        self.lblk + self.len
    }

    /// Returns the number of blocks that are claimed for the piece. The limits of the file's owners
    /// count them as promised.
    pub fn claimed(&self) -> u64 {
        match &self.how {
            MapAction::Map { claim, .. } => claim.len.into(),
            _ => 0,
        }
    }

    /// Whether the map has to change once the piece is written.
    fn is_mapped_later(&self) -> bool {
        !matches!(self.how, MapAction::InPlace)
    }
}

/// The inputs of a plan.
#[derive(Debug)]
pub(in crate::file) struct PlanRequest<'a> {
    /// The blocks to be written, not empty.
    pub blocks: Range<u32>,
    /// The number of reserved blocks; claims are subtracted.
    pub reserved: &'a mut u32,
    /// How the file grows by the write.
    pub growth: Growth,
    /// Space for distant blocks that are written together.
    pub pack: Option<&'a mut ScatteredAlloc>,
    /// May wait for freed space to become usable.
    pub waits: Waits,
    /// Rights of the caller whose content it is: quota limits apply by them. `None` for content
    /// whose space was promised.
    pub rights: Option<SpaceRights>,
}

/// Finds places for blocks. If that fails after a part, the part is the plan: it covers the blocks
/// from the start on.
pub(in crate::file) fn make(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    need: PlanRequest<'_>,
) -> Result<Vec<Piece>> {
    let mut need = need;
    let blocks = need.blocks.clone();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut lblk = blocks.start;
    while lblk < blocks.end {
        match extend(st, inode, pieces.last_mut(), lblk..blocks.end) {
            Ok(None) => {}
            Ok(Some(more)) => {
                lblk += more;
                continue;
            }
            // The part is the plan. The caller asks again for the rest.
            Err(_) if !pieces.is_empty() => break,
            Err(e) => return Err(e),
        }
        let piece = next(st, inode, work, lblk..blocks.end, &mut need);
        match piece {
            Ok(piece) => {
                lblk = piece.end();
                pieces.push(piece);
            }
            Err(_) if !pieces.is_empty() => break,
            Err(e) => return Err(e),
        }
    }
    Ok(pieces)
}

/// On bigalloc a hole may go on within the cluster that the piece before it has claimed: that piece
/// grows. Gives the blocks added.
fn extend(
    st: &Store,
    inode: &Inode,
    before: Option<&mut Piece>,
    blocks: Range<u32>,
) -> Result<Option<u32>> {
    if blocks.start & (st.geo.cluster_ratio() - 1) == 0 {
        return Ok(None);
    }
    let Some(Piece { len, how: MapAction::Map { claim, offset }, .. }) = before else {
        return Ok(None);
    };
    let room = claim.len.saturating_sub(*offset + *len);
    let run = map::lookup(st, inode, blocks)?;
    if room == 0 || run.state != ExtentState::Hole {
        return Ok(None);
    }
    let more = run.len.min(room);
    *len += more;
    Ok(Some(more))
}

fn next(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    blocks: Range<u32>,
    need: &mut PlanRequest<'_>,
) -> Result<Piece> {
    // No more than a transaction has room for, wherever it lies.
    let end = blocks.end.min(blocks.start.saturating_add(extent::most_at_once(st, inode)));
    let run = map::lookup(st, inode, blocks.start..end)?;
    match run.state {
        ExtentState::Written => Ok(in_place(run, MapAction::InPlace)),
        ExtentState::Unwritten => Ok(in_place(run, MapAction::Convert)),
        ExtentState::Hole => hole(st, inode, work, run, need),
    }
}

fn in_place(run: Run, how: MapAction) -> Piece {
    Piece { lblk: run.lblk, len: run.len, pblk: run.pblk, how }
}

/// A place for the first blocks of a hole.
fn hole(
    st: &Store,
    inode: &Arc<Inode>,
    work: &mut Work,
    run: Run,
    need: &mut PlanRequest<'_>,
) -> Result<Piece> {
    let len = extent::unowned(st, inode, run.lblk, run.len)?.min(run.len);
    if len == 0 {
        return owned(st, inode, run);
    }
    let ratio = st.geo.cluster_ratio();
    let offset = run.lblk & (ratio - 1);
    let first = run.lblk - offset;
    let blocks = (offset + len).checked_next_multiple_of(ratio).unwrap_or(offset + len);
    // Preallocations for the position come first: their neighbors are in use by the file.
    let own = need.pack.as_ref().and_then(|_| window::kept(inode, work, first, blocks));
    let packed = own.or_else(|| need.pack.as_deref_mut().and_then(|pack| pack.take(st, blocks)));
    let claim = match packed {
        Some(claim) => {
            space::settle(st, &claim, need.reserved);
            claim
        }
        None => {
            let rights = need.rights.unwrap_or_default();
            let PlanRequest { growth, waits, .. } = *need;
            let want = AllocRequest { lblk: first, need: blocks, growth, waits, rights };
            let promised = if need.rights.is_some() { blocks } else { 0 };
            let claim = space::promised(st, inode, (promised, rights), || {
                space::claim(st, inode, work, want, need.reserved)
            })?;
            st.quota.release_reservation(inode, promised.saturating_sub(claim.len).into());
            claim
        }
    };
    let len = len.min(claim.len.saturating_sub(offset));
    if len == 0 {
        return Err(Error::Corrupt(Corrupt::new("claim").at_inode(inode.ino).found(claim.len)));
    }
    Ok(Piece {
        lblk: run.lblk,
        len,
        pblk: BlockNr(claim.start.0 + u64::from(offset)),
        how: MapAction::Map { claim, offset },
    })
}

/// The rest of a cluster that the file owns.
fn owned(st: &Store, inode: &Inode, run: Run) -> Result<Piece> {
    let implied = extent::implied(st, inode, run.lblk)?;
    let pblk =
        implied.ok_or_else(|| Corrupt::new("cluster").at_inode(inode.ino).found(run.lblk))?;
    let ratio = st.geo.cluster_ratio();
    let len = run.len.min(ratio - (run.lblk & (ratio - 1)));
    Ok(Piece { lblk: run.lblk, len, pblk, how: MapAction::Owned })
}

/// Places that nothing was mapped to are given up. Their space stays set aside: gives the blocks.
pub(in crate::file) fn unplace(pieces: impl IntoIterator<Item = Piece>) -> u32 {
    let blocks = |piece: Piece| match piece.how {
        MapAction::Map { claim, .. } => claim.into_reservation(),
        MapAction::InPlace | MapAction::Convert | MapAction::Owned => 0,
    };
    pieces.into_iter().map(blocks).sum()
}

/// Further work of the handle that maps.
#[derive(Debug)]
pub(in crate::file) struct After {
    /// The file's size: the size on disk grows up to it with the pieces.
    pub size: u64,
    /// The effects of the change of content on the inode, if any.
    pub stamp: Option<Note>,
    /// The block behind the last one that was mapped, or was already.
    pub reached: u32,
    /// Credits of the handle, each time that it is restarted.
    credits: u32,
}

impl After {
    /// Nothing is mapped yet.
    pub fn new(size: u64, stamp: Option<Note>) -> After {
        After { size, stamp, reached: 0, credits: 0 }
    }
}

/// Pieces in the order of the file. Those that are mapped leave; after an error those that are not
/// are left.
pub(in crate::file) type Pieces = VecDeque<Piece>;

/// Maps pieces whose data are written, in as few handles as their credits allow. After an error the
/// size on disk covers the mapped pieces, and `after.reached` is their end.
pub(in crate::file) fn apply(
    st: &Store,
    inode: &Arc<Inode>,
    pieces: &mut Pieces,
    after: &mut After,
) -> Result<()> {
    let most = st.journal.max_credits() / 4;
    while !pieces.is_empty() {
        let (mut credits, mut many) = (times::CREDITS, 0);
        while let Some(piece) = pieces.get(many) {
            let cost = cost(st, inode, piece);
            if many > 0 && credits + cost > most {
                break;
            }
            credits += cost;
            many += 1;
        }
        after.credits = credits;
        apply_batch(st, inode, (pieces, many), after)?;
    }
    Ok(())
}

fn cost(st: &Store, inode: &Inode, piece: &Piece) -> u32 {
    match piece.how {
        MapAction::InPlace => 0,
        _ => extent::credits(st, inode, piece.len),
    }
}

/// The first so many pieces.
type First<'a> = (&'a mut Pieces, usize);

/// The byte of the file that pieces end with, and whether the map changes with them.
fn extent_of((pieces, many): &First<'_>, st: &Store) -> (u64, bool) {
    let last = many.checked_sub(1).and_then(|last| pieces.get(last));
    (
        last.map_or(0, |p| map::byte(st, p.end())),
        pieces.iter().take(*many).any(Piece::is_mapped_later),
    )
}

fn apply_batch(st: &Store, inode: &Arc<Inode>, first: First<'_>, after: &mut After) -> Result<()> {
    let (end, maps) = extent_of(&first, st);
    if !maps && after.stamp.is_none() && inode.body().size >= end.min(after.size) {
        first.0.drain(..first.1);
        after.reached = after.reached.max(map::block_up(st, end));
        return Ok(());
    }
    apply_in(st, &mut st.begin(after.credits)?, inode, first, after)
}

/// Maps pieces within a handle, which is restarted if necessary. The size on
/// disk covers the mapped pieces, also after an error: no written block may be behind it.
fn apply_in(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    first: First<'_>,
    after: &mut After,
) -> Result<()> {
    let mapped = map_pieces(st, tx, inode, first, after);
    let noted = tx.step(|step| note_mapped(st, step, inode, after));
    match mapped {
        Ok(()) => noted,
        Err(e) => {
            // The mapping cannot be undone.
            let _ = noted.inspect_err(|e| st.abort(e));
            Err(e)
        }
    }
}

/// Raises the size on disk over the mapped pieces, and updates the inode's times.
fn note_mapped(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    after: &mut After,
) -> Result<()> {
    if after.reached == 0 {
        return Ok(());
    }
    times::grow_disk_size(st, step, inode, map::byte(st, after.reached).min(after.size))?;
    if let Some(note) = after.stamp.take() {
        times::stamp(st, &mut *step.edit(inode)?, note);
    }
    Ok(())
}

/// A file whose pieces are written to the device.
#[derive(Debug)]
pub(in crate::file) struct Written<'a> {
    pub inode: &'a Arc<Inode>,
    pub pieces: &'a mut Pieces,
    /// The file's size, as in [`After`].
    pub size: u64,
}

impl Written<'_> {
    /// Returns the credits of the mapping; 0 if there is nothing to do.
    fn cost(&self, st: &Store) -> u32 {
        let end = self.pieces.back().map_or(0, |p| map::byte(st, p.end()));
        let pieces =
            self.pieces.iter().fold(0u32, |sum, p| sum.saturating_add(cost(st, self.inode, p)));
        if pieces == 0 && self.inode.body().size >= end.min(self.size) {
            0
        } else {
            pieces.saturating_add(times::CREDITS)
        }
    }
}

/// Maps the pieces of many files, as many files in one handle as it may have credits for. Returns
/// the result of each file in their order.
pub(in crate::file) fn apply_all(st: &Store, files: Vec<Written<'_>>) -> Vec<Result<()>> {
    let most = st.journal.max_credits() / 4;
    let mut results = Vec::with_capacity(files.len());
    let mut files = files.into_iter().map(|file| (file.cost(st), file)).peekable();
    while let Some((mut credits, file)) = files.next() {
        if credits > most {
            results.push(apply(st, file.inode, file.pieces, &mut After::new(file.size, None)));
            continue;
        }
        let mut together = vec![file];
        while let Some((cost, file)) =
            files.next_if(|(cost, _)| credits.saturating_add(*cost) <= most)
        {
            credits += cost;
            together.push(file);
        }
        results.extend(apply_together(st, together, credits));
    }
    results
}

fn apply_together(st: &Store, files: Vec<Written<'_>>, credits: u32) -> Vec<Result<()>> {
    if credits == 0 {
        return files.iter().map(|_| Ok(())).collect();
    }
    let mut tx = match st.begin(credits) {
        Ok(tx) => tx,
        Err(e) => return files.iter().map(|_| Err(e.to_another())).collect(),
    };
    let each = |Written { inode, pieces, size }: Written<'_>| {
        let many = pieces.len();
        let mut after = After { credits, ..After::new(size, None) };
        apply_in(st, &mut tx, inode, (pieces, many), &mut after)
    };
    files.into_iter().map(each).collect()
}

/// Maps pieces. Pieces with adjacent claims on the device, though not in the file, are booked
/// together.
fn map_pieces(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    first: First<'_>,
    after: &mut After,
) -> Result<()> {
    let joins = st.geo.cluster_bits == 0 && extent::has_unwritten(inode);
    let (pieces, mut left) = first;
    while left > 0
        && let Some(piece) = pieces.pop_front()
    {
        left -= 1;
        match piece {
            Piece { lblk, len, how: MapAction::Map { mut claim, offset: 0 }, .. }
                if joins
                    && claim.len == len
                    && left > 0
                    && pieces.front().is_some_and(|next| follows(&claim, next)) =>
            {
                // Claims that adjoin become one, which is booked at once.
                let mut parts = vec![(lblk, len)];
                while left > 0
                    && let Some(Piece {
                        lblk, len, how: MapAction::Map { claim: more, .. }, ..
                    }) = pieces.pop_front_if(|next| follows(&claim, next))
                {
                    left -= 1;
                    claim.join(more);
                    parts.push((lblk, len));
                }
                map_scattered(st, tx, inode, (pieces, claim, &parts), after)?;
            }
            piece => map_piece(st, tx, inode, (pieces, piece), after)?,
        }
    }
    Ok(())
}

impl After {
    /// Blocks up to this one are mapped.
    fn note(&mut self, end: u32) {
        self.reached = self.reached.max(end);
    }
}

/// After an error the rest of a claim stays with the other pieces, for the blocks that are left.
fn keep_rest(pieces: &mut Pieces, claim: Claim, Placement { lblk, offset, len }: Placement) {
    let pblk = BlockNr(claim.start.0 + u64::from(offset));
    pieces.push_front(Piece { lblk, len, pblk, how: MapAction::Map { claim, offset } });
}

/// Whether a piece's claim, all of it, follows another claim.
fn follows(claim: &Claim, next: &Piece) -> bool {
    match &next.how {
        MapAction::Map { claim: more, offset: 0 } => {
            more.len == next.len && claim.is_followed_by(more)
        }
        _ => false,
    }
}

fn map_piece(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    (pieces, piece): (&mut Pieces, Piece),
    after: &mut After,
) -> Result<()> {
    let end = piece.end();
    let Piece { lblk, len, pblk, how } = piece;
    match how {
        MapAction::InPlace => {}
        MapAction::Convert => return convert(st, tx, inode, lblk..end, after),
        MapAction::Map { claim, offset } => {
            let at = Placement { lblk, offset, len };
            return map_claim(st, tx, inode, (pieces, claim, at), after);
        }
        MapAction::Owned => tx.step(|step| map_owned(st, step, inode, (lblk, len, pblk)))?,
    }
    after.note(end);
    Ok(())
}

/// Maps the blocks of a claim, one part of them in each step.
fn map_claim(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    (pieces, mut claim, at): (&mut Pieces, Claim, Placement),
    after: &mut After,
) -> Result<()> {
    let mut rest = at;
    while rest.len > 0 {
        let mapped = tx.step(|step| extent::insert_claim(st, step, inode, rest, &mut claim));
        let len = match mapped {
            Ok(len) => len,
            Err(e) => {
                keep_rest(pieces, claim, rest);
                return Err(e);
            }
        };
        after.note(rest.lblk + len);
        rest = Placement { lblk: rest.lblk + len, offset: 0, len: rest.len - len };
    }
    Ok(())
}

/// Maps the blocks of a claim to parts of the file, as many parts as a leaf takes in each step.
fn map_scattered(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    (pieces, mut claim, parts): (&mut Pieces, Claim, &[(u32, u32)]),
    after: &mut After,
) -> Result<()> {
    let mut rest = parts;
    while !rest.is_empty() {
        match tx.step(|step| extent::insert_scattered(st, step, inode, &mut claim, rest)) {
            Ok(count) => {
                let (done, left) = rest.split_at(count.min(rest.len()));
                done.iter().for_each(|(lblk, len)| after.note(lblk + len));
                rest = left;
            }
            Err(e) => {
                // Each part keeps its place, as a piece of its own.
                let left: Vec<_> =
                    rest.iter().map(|(lblk, len)| (*lblk, claim.split(*len))).collect();
                for (lblk, claim) in left.into_iter().rev() {
                    let len = claim.len;
                    keep_rest(pieces, claim, Placement { lblk, offset: 0, len });
                }
                return Err(e);
            }
        }
    }
    Ok(())
}

/// Turns unwritten blocks into written ones, and restarts the handle if its credits do not suffice:
/// the size covers the written blocks at the end of each handle.
fn convert(
    st: &Store,
    tx: &mut Tx<'_>,
    inode: &Arc<Inode>,
    range: Range<u32>,
    after: &mut After,
) -> Result<()> {
    let mut at = range.start;
    loop {
        at =
            tx.step(|step| extent::convert(st, step, inode, at..range.end, ExtentState::Written))?;
        after.note(at);
        if at >= range.end {
            return Ok(());
        }
        tx.step(|step| note_mapped(st, step, inode, after)).inspect_err(|e| st.abort(e))?;
        tx.restart(after.credits)?;
    }
}

fn map_owned(
    st: &Store,
    step: &mut Step<'_>,
    inode: &Arc<Inode>,
    (lblk, len, pblk): (u32, u32, BlockNr),
) -> Result<()> {
    let run = extent::allocate(st, step, inode, lblk..lblk + len, ExtentState::Written)?;
    if run.pblk == pblk && run.len >= len {
        return Ok(());
    }
    Err(Corrupt::new("cluster").at_inode(inode.ino).found(run.pblk.0).expected(pblk.0).into())
}
