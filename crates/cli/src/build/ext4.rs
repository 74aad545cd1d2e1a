//! ext4 images as sources of new ones.

use crate::context::Context;
use crate::copy::content::Content;
use crate::copy::job::Job;
use crate::copy::tree::{self, Entry, Member};
use crate::failure::{At, Failure, Result};
use crate::image::ImageArgs;
use crate::text::count;
use extant_engine::{FileType, Fs, OpenFlags, OpenOptions};
use extant_image::{
    Attributes, ContentSource, DataRange, EntryKind, FileContent, OpenContent, SourceId, Tree,
};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The files of an image, by the numbers of their inodes.
struct Files(Arc<Fs>);

/// An open file of an image.
struct OpenFile(extant_engine::File);

impl ContentSource for Files {
    fn open(&self, ino: u64) -> io::Result<Box<dyn OpenContent + '_>> {
        let flags = OpenFlags { direct: true, ..OpenFlags::default() };
        let opened = self.0.node(ino).and_then(|node| self.0.open_file(&node, flags));
        Ok(Box::new(OpenFile(opened.map_err(io::Error::other)?)))
    }
}

impl OpenContent for OpenFile {
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.0.read_at(offset, buf).map_err(io::Error::other)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => {
                    buf = &mut buf[len..];
                    offset += len as u64;
                }
            }
        }
        Ok(())
    }
}

/// An entry that was read: attributes, kind, and bytes of data.
type Made = (Attributes, EntryKind, u64);

/// Adds the tree of an image. Its journal is replayed in memory.
///
/// # Errors
/// The image cannot be opened, or its journal not be replayed. Entries that cannot be read, or that
/// no image can hold, are all named before.
pub fn add(tree: &mut Tree, image: &ImageArgs, context: &Context) -> Result {
    let fs = Arc::new(image.open(&OpenOptions::new().read_only(true))?);
    let source = tree.add_source(Arc::new(Files(fs.clone())));
    let (job, name) = (Job::out_of(&fs, context), image.name());
    let top = fs.root().at(&name)?;
    let walk = tree::Tree { fs: &fs, top, name: b"", job: &job };
    let mut first: HashMap<u64, Arc<Member>> = HashMap::new();
    let made = walk.each(
        |entry| (!entry.again).then(|| read(&fs, entry, source)),
        |entry, made| {
            let path = entry.path();
            let added = match (made, first.get(&entry.attr.ino)) {
                (Some(made), _) => made.and_then(|made| put(tree, &path, made, &job)),
                (None, Some(first)) => {
                    tree.hard_link(&path, &first.path()).map_err(|error| error.to_string())
                }
                // The first name was a problem.
                (None, None) => Ok(()),
            };
            let added = added.map_err(|cause| format!("in {name}: {cause}"));
            if job.check(|| path, added).is_some() && entry.attr.ftype != FileType::Directory {
                first.entry(entry.attr.ino).or_insert(entry.member);
            }
            Ok(())
        },
    );
    made.at(&name)?;
    job.close().map_err(|_| {
        let entries = count(job.problems(), "thing");
        Failure::new(format_args!("{name}: {entries} could not be read"))
    })
}

fn put(
    tree: &mut Tree,
    path: &[u8],
    (attributes, kind, stored): Made,
    job: &Job<'_>,
) -> Result<(), String> {
    job.budget().admit(stored)?;
    job.bytes(stored);
    tree.add(path, &attributes, kind).map_err(|error| error.to_string())
}

fn read(fs: &Fs, entry: &Entry, source: SourceId) -> Result<Made, String> {
    let text = |error: extant_engine::Error| error.to_string();
    let (node, attr) = (&entry.node, &entry.attr);
    let mut xattrs = Vec::new();
    for name in fs.list_xattrs(node).map_err(text)? {
        let value = fs.get_xattr(node, &name).map_err(text)?;
        xattrs.push((name, value));
    }
    let attributes = Attributes {
        mode: attr.mode & 0o7777,
        uid: attr.uid,
        gid: attr.gid,
        mtime: attr.mtime,
        xattrs,
        ..Attributes::default()
    };
    let (major, minor) = attr.rdev;
    let mut stored = 0;
    let kind = match attr.ftype {
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink(fs.read_link(node).map_err(text)?),
        FileType::CharDevice => EntryKind::CharDevice(major, minor),
        FileType::BlockDevice => EntryKind::BlockDevice(major, minor),
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket => EntryKind::Socket,
        FileType::Regular => {
            let content = Content::open(fs, node).map_err(text)?;
            stored = content.stored();
            EntryKind::File(content_of(&content, source, attr.ino))
        }
        FileType::Unknown => return Err("corrupt: the inode has no type".into()),
    };
    Ok((attributes, kind, stored))
}

/// Returns the content of a file: its ranges with data.
fn content_of(content: &Content, source: SourceId, ino: u64) -> FileContent {
    let size = content.len;
    let ranges: Vec<DataRange> = content
        .parts
        .iter()
        .map(|&(start, stop)| DataRange { start, len: stop - start, position: ino, skip: start })
        .collect();
    match ranges[..] {
        [] => FileContent::Zeroes { size },
        [DataRange { start: 0, len, .. }] if len == size => {
            FileContent::Whole { source, position: ino, size }
        }
        _ => FileContent::Sparse { source, size, ranges },
    }
}
