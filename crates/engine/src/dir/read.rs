//! Reading of a directory from a cookie on, one part at a time: a part is found under the
//! directory's lock, and its entries are passed on without it.
//!
//! With `dir_index` a position has 31 bits of major hash above 32 bits of minor hash; `.` and `..`
//! come first, at 0 and 1. Without it, and in directories that store hashes with the names, a
//! position is the entry's offset in bytes. Entries of an inline directory have the offsets that
//! they would have in a first block.

use super::blocks::{Dir, Shape};
use super::inline::{Areas, DOTS_LEN};
use super::{Entry, Kind, area, is_component, nokey, window};
use crate::error::Result;
use crate::inode::Window;
use extant_format::dir::{DirFormat, entries, entry_len};
use extant_format::error::Corrupt;
use extant_format::types::{FileType, InodeNr};
use std::sync::Arc;

/// Offsets behind `.` and `..`.
const DOTS: [u64; 2] = [entry_len(1) as u64, DOTS_LEN as u64];

/// First position behind `.` and `..` in hash order.
pub(super) const FIRST: u64 = 2;

/// Entries that follow each other, as they were when the directory was locked. It shares them with
/// the caches and copies none.
pub struct Part {
    /// Where reading goes on behind this part, `None` at the end, or why it cannot.
    pub next: Result<Option<u64>>,
    dir: InodeNr,
    format: DirFormat,
    from: u64,
    dots: Option<Dots>,
    source: Source,
    /// The form in which encrypted names are passed on.
    shown: Option<nokey::Names>,
    /// Whether all names were checked before.
    checked: bool,
}

/// `.` and `..`, where they are not among the other entries.
struct Dots {
    parent: InodeNr,
    /// The positions behind them.
    nexts: [u64; 2],
}

enum Source {
    Nothing,
    Window(Arc<Window>),
    Areas(Areas),
    Block {
        /// Position of the block.
        start: u64,
        bytes: Arc<[u8]>,
        keeps_hashes: bool,
    },
}

/// Returns the part from `cookie` on.
pub(super) fn part(d: &Dir<'_>, cookie: u64) -> Result<Part> {
    let hashed = d.hashed() && !d.keeps_hashes;
    let nexts = match (hashed, d.kind) {
        (true, _) => Some([1, FIRST]),
        (false, Kind::Linear) => None,
        // The root has `.` and `..`, but no leaf for the scan by offsets.
        (false, Kind::Inline | Kind::Indexed) => Some(DOTS),
    };
    let dots = match nexts.filter(|nexts| cookie < nexts[1]) {
        Some(nexts) => Some(Dots { parent: super::parent(d.env, d.inode)?, nexts }),
        None => None,
    };
    let found = match (hashed, d.kind) {
        (true, _) => window_at(d, cookie.max(FIRST)),
        (false, Kind::Inline) => Areas::read(d).map(|areas| (Source::Areas(areas), None)),
        (false, _) => block_at(d, cookie),
    };
    let (source, next) = match found {
        Ok((source, next)) => (source, Ok(next)),
        // The dots are passed on before the error.
        Err(e) => (Source::Nothing, Err(e)),
    };
    let shown = if d.encrypted { Some(nokey::Names::of(d)?) } else { None };
    let checked = shown.is_none() && matches!(&source, Source::Window(w) if w.has_components_only);
    Ok(Part {
        next,
        dir: d.inode.ino,
        format: d.format,
        from: cookie,
        dots,
        source,
        shown,
        checked,
    })
}

fn window_at(d: &Dir<'_>, pos: u64) -> Result<(Source, Option<u64>)> {
    if pos == Window::END {
        return Ok((Source::Nothing, None));
    }
    let window = window::at(d, pos)?;
    let next = (window.end < Window::END).then_some(window.end);
    Ok((Source::Window(window), next))
}

/// Finds the first leaf at `cookie` or behind it.
fn block_at(d: &Dir<'_>, cookie: u64) -> Result<(Source, Option<u64>)> {
    let bits = d.env.geo.block_bits;
    let first = u32::try_from(cookie >> bits).unwrap_or(u32::MAX);
    let mut scan = d.scan()?;
    for lblk in first..d.count {
        let bytes = scan.load(lblk)?.snapshot();
        if d.shape(lblk, &bytes) == Shape::Leaf {
            let start = u64::from(lblk) << bits;
            let next = (lblk + 1 < d.count).then(|| u64::from(lblk + 1) << bits);
            return Ok((Source::Block { start, bytes, keeps_hashes: d.keeps_hashes }, next));
        }
    }
    Ok((Source::Nothing, None))
}

impl Part {
    /// Verifies that an entry can be passed to readers of the directory: that it is `.` or `..`, or
    /// that its name can be a component of a path.
    ///
    /// # Errors
    /// `Corrupt`.
    #[inline]
    pub fn check(&self, entry: &Entry<'_>) -> Result<(), Corrupt> {
        if self.checked || matches!(entry.name, b"." | b"..") || is_component(entry.name) {
            return Ok(());
        }
        Err(Corrupt::new("directory entry").field("name").found(entry.ino.0).at_inode(self.dir))
    }

    /// Calls `each` with the entries, until it returns false; this then returns false. The names
    /// are not checked.
    ///
    /// # Errors
    /// `Corrupt`, behind the entries before the damage.
    #[inline]
    pub fn each(&self, mut each: impl FnMut(Entry<'_>) -> bool) -> Result<bool> {
        let Some(names) = &self.shown else { return self.each_stored(each) };
        let mut wrong = None;
        let all = self.each_stored(|entry| match entry.name {
            b"." | b".." => each(entry),
            stored => match names.show(stored, entry.hash) {
                Ok(shown) => each(Entry { name: &shown, ..entry }),
                Err(e) => {
                    wrong = Some(e);
                    false
                }
            },
        })?;
        wrong.map_or(Ok(all), |e| Err(e.at_inode(self.dir).into()))
    }

    #[inline]
    fn each_stored(&self, mut each: impl FnMut(Entry<'_>) -> bool) -> Result<bool> {
        if !self.each_dot(&mut each) {
            return Ok(false);
        }
        Ok(match &self.source {
            Source::Nothing => true,
            Source::Window(window) => {
                let from = window.entries.partition_point(|e| e.pos < self.from);
                window.entries.get(from..).unwrap_or_default().iter().all(|e| {
                    let (name, ino, ftype) = (window.name(e), InodeNr(e.ino), e.ftype);
                    each(Entry { name, ino, ftype, next: e.pos + 1, hash: None })
                })
            }
            Source::Areas(areas) => {
                for (_, start, bytes) in areas.each() {
                    if !self.each_of_area(bytes, start as u64, false, &mut each)? {
                        return Ok(false);
                    }
                }
                true
            }
            Source::Block { start, bytes, keeps_hashes } => {
                self.each_of_area(self.format.area(bytes), *start, *keeps_hashes, &mut each)?
            }
        })
    }

    fn each_dot(&self, each: &mut impl FnMut(Entry<'_>) -> bool) -> bool {
        let Some(Dots { parent, nexts }) = &self.dots else { return true };
        [(b".".as_slice(), self.dir), (b"..", *parent)].into_iter().zip(nexts).all(
            |((name, ino), &next)| {
                let ftype = FileType::Directory;
                self.from >= next || each(Entry { name, ino, ftype, next, hash: None })
            },
        )
    }

    /// Passes the used entries of an area that starts at position `start`.
    fn each_of_area(
        &self,
        bytes: &[u8],
        start: u64,
        keeps_hashes: bool,
        each: &mut impl FnMut(Entry<'_>) -> bool,
    ) -> Result<bool> {
        for entry in entries(bytes, &self.format) {
            let e = entry.map_err(|e| e.at_inode(self.dir))?;
            let pos = start + e.offset as u64;
            // Only the first two entries can be `.` and `..`.
            let stray = e.is_dot_or_dot_dot() && pos > DOTS[0];
            if !e.is_used() || stray || pos < self.from {
                continue;
            }
            let next = pos + e.rec_len as u64;
            let hash = keeps_hashes.then(|| e.kept_hash(bytes));
            if !each(Entry { name: e.name, ino: e.ino, ftype: e.file_type, next, hash }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Calls `f` with every used entry of every leaf and area, except `.` and `..`.
pub(super) fn for_each_name(
    d: &Dir<'_>,
    mut f: impl FnMut(area::NamedInode<'_>) -> Result<()>,
) -> Result<()> {
    let mut take = |bytes: &[u8]| -> Result<()> {
        for entry in area::names(bytes, &d.format) {
            f(entry.map_err(|e| e.at_inode(d.inode.ino))?)?;
        }
        Ok(())
    };
    if d.kind == Kind::Inline {
        return Areas::read(d)?.each().try_for_each(|(_, _, bytes)| take(bytes));
    }
    let mut scan = d.scan()?;
    for lblk in 0..d.count {
        let buf = scan.load(lblk)?;
        let bytes = buf.read();
        if d.shape(lblk, &bytes) == Shape::Leaf {
            take(d.format.area(&bytes))?;
        }
    }
    Ok(())
}
