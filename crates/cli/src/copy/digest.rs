//! The digest of a tree: SHA-256 over its content and attributes.
//!
//! docs/hash.md defines it. It depends neither on the layout of blocks nor on the order of
//! directories, and holes are as zeroes.

use super::content::{Content, Range};
use super::job::{Copied, Job};
use super::tree::{Entry, SMALL, Tree};
use crate::text;
use extant_engine::{Attr, FileType, Fs, Node};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io;

/// A SHA-256 digest.
pub type Sum = [u8; 32];

/// The begin of the hashed text: the name and the version of the definition.
const DOMAIN: &[u8] = b"extant-hash 1\n";

/// Bytes of content that are left out together if all are zero.
const BLOCK: u64 = 4096;

/// Attributes that a digest or a comparison leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore {
    /// Times of the last change of content.
    pub times: bool,
    /// Owners and groups.
    pub owners: bool,
    /// Permissions.
    pub modes: bool,
    /// Extended attributes and ACLs.
    pub xattrs: bool,
}

/// Returns the digest of a tree, and counts in the job. It is meaningless if the job has problems.
///
/// # Errors
/// None today: entries that cannot be read are problems of the job.
pub fn of_tree(tree: &Tree<'_>, ignore: Ignore) -> io::Result<Sum> {
    let mut sum = Sha256::new_with_prefix(DOMAIN);
    // The place in the sequence of the first name of each inode but directories.
    let mut first: HashMap<u64, u64> = HashMap::new();
    let mut index = 0;
    let job = tree.job;
    let work = |entry: &Entry| (!entry.again).then(|| begin(tree, entry, ignore));
    tree.each(work, |entry, begun| {
        let own = match begun {
            Some(begun) => begun.and_then(|begun| begun.finish(job)),
            None => Ok(link(&entry, first.get(&entry.attr.ino))),
        };
        if let Some(own) = job.check(|| entry.path(), own) {
            sum.update(own);
            job.done(copied(entry.attr.ftype), || entry.path());
        }
        if entry.attr.ftype != FileType::Directory {
            first.entry(entry.attr.ino).or_insert(index);
        }
        index += 1;
        Ok(())
    })?;
    Ok(sum.finalize().into())
}

/// Returns the digest of a further name of an inode.
fn link(entry: &Entry, first: Option<&u64>) -> Sum {
    let mut fields = Fields::of(entry);
    fields.add(b't', b"h");
    fields.number(b'i', first.copied().unwrap_or_default());
    fields.finish()
}

fn copied(ftype: FileType) -> Copied {
    match ftype {
        FileType::Directory => Copied::Directory,
        FileType::Regular => Copied::File,
        _ => Copied::Other,
    }
}

/// The hashed fields of an entry so far.
struct Fields(Sha256);

impl Fields {
    fn of(entry: &Entry) -> Fields {
        let mut fields = Fields(Sha256::new());
        fields.number(b'L', entry.depth);
        fields.add(b'n', entry.member.name());
        fields
    }

    fn add(&mut self, label: u8, value: &[u8]) {
        self.0.update([label]);
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
    }

    fn number(&mut self, label: u8, value: impl ToString) {
        self.add(label, value.to_string().as_bytes());
    }

    fn finish(self) -> Sum {
        self.0.finalize().into()
    }
}

/// An entry whose attributes are hashed, and its content, if that is small.
struct Begun {
    fields: Fields,
    content: Option<Content>,
    small: Option<Sum>,
}

impl Begun {
    /// Returns the digest of the entry. Hashes a content that was not hashed yet by the threads of
    /// the job.
    fn finish(mut self, job: &Job<'_>) -> Result<Sum, String> {
        if let Some(content) = &self.content {
            job.budget().admit(content.stored())?;
            let own = match self.small {
                Some(own) => own,
                None => of_content(content, Some(job.threads()))?,
            };
            self.fields.add(b'c', &own);
            job.bytes(content.stored());
        }
        Ok(self.fields.finish())
    }
}

fn begin(tree: &Tree<'_>, entry: &Entry, ignore: Ignore) -> Result<Begun, String> {
    let mut fields = Fields::of(entry);
    attributes(tree.fs, &entry.node, &entry.attr, ignore, &mut fields)
        .map_err(|e| e.to_string())?;
    if entry.attr.ftype != FileType::Regular {
        return Ok(Begun { fields, content: None, small: None });
    }
    let content = Content::open(tree.fs, &entry.node).map_err(|e| e.to_string())?;
    fields.number(b's', content.len);
    let is_small = content.stored() <= SMALL && tree.job.budget().admits(content.stored());
    let small = if is_small { Some(of_content(&content, None)?) } else { None };
    Ok(Begun { fields, content: Some(content), small })
}

fn attributes(
    fs: &Fs,
    node: &Node,
    attr: &Attr,
    ignore: Ignore,
    fields: &mut Fields,
) -> extant_engine::Result<()> {
    fields.add(b't', text::type_letter(attr.ftype).to_string().as_bytes());
    if !ignore.modes {
        fields.number(b'm', attr.mode & 0o7777);
    }
    if !ignore.owners {
        fields.number(b'u', attr.uid);
        fields.number(b'g', attr.gid);
    }
    if !ignore.times {
        fields.number(b'S', attr.mtime.sec);
        fields.number(b'N', attr.mtime.nsec);
    }
    if matches!(attr.ftype, FileType::BlockDevice | FileType::CharDevice) {
        fields.number(b'M', attr.rdev.0);
        fields.number(b'D', attr.rdev.1);
    }
    if attr.ftype == FileType::Symlink {
        fields.add(b'l', &fs.read_link(node)?);
    }
    if !ignore.xattrs {
        let mut names = fs.list_xattrs(node)?;
        names.sort_unstable();
        for name in names {
            fields.add(b'x', &name);
            fields.add(b'v', &fs.get_xattr(node, &name)?);
        }
    }
    Ok(())
}

/// Returns the digest of a file's content: by so many threads, or by this one.
///
/// # Errors
/// Those of reading, as text.
pub fn of_content(content: &Content, threads: Option<usize>) -> Result<Sum, String> {
    let mut sum = Sha256::new();
    let work = |piece: Range| (piece.0, of_piece(content, piece));
    let mut add = |(start, own): (u64, Result<Option<Sum>, String>)| {
        if let Some(own) = own.map_err(io::Error::other)? {
            sum.update(start.to_be_bytes());
            sum.update(own);
        }
        Ok(())
    };
    let mut ranges = content.pieces();
    let done: io::Result<()> = match threads {
        Some(threads) => content.each(threads, ranges, work, add),
        None => ranges.try_for_each(|piece| add(work(piece))),
    };
    done.map_err(|e| e.to_string())?;
    Ok(sum.finalize().into())
}

/// Returns the digest of a piece; `None` if it is all zeroes.
fn of_piece(content: &Content, piece: Range) -> Result<Option<Sum>, String> {
    const ZEROES: [u8; BLOCK as usize] = [0; BLOCK as usize];
    let mut sum = None;
    for (start, stop) in content.within(piece, BLOCK) {
        let data = content.read((start, stop))?;
        for (at, block) in (start..).step_by(ZEROES.len()).zip(data.chunks(ZEROES.len())) {
            if block != &ZEROES[..block.len()] {
                let sum = sum.get_or_insert_with(Sha256::new);
                sum.update(at.to_be_bytes());
                sum.update(block);
            }
        }
    }
    Ok(sum.map(|sum| sum.finalize().into()))
}
