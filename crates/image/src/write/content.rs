//! Content of files, read from their sources.

use crate::error::{Error, Result};
use crate::tree::{Body, ContentSource, DataRange, NodeId, OpenContent, StoredContent, Tree};
use std::io;

/// A reader of a file at any place.
pub(crate) struct FileReader<'t> {
    tree: &'t Tree,
    node: NodeId,
    kind: Ranges<'t>,
    /// Position and content that were opened last.
    open: Option<(u64, Box<dyn OpenContent + 't>)>,
}

/// The ranges with data.
enum Ranges<'t> {
    Bytes(&'t [u8]),
    One(&'t dyn ContentSource, DataRange),
    Many(&'t dyn ContentSource, &'t [DataRange]),
}

impl<'t> FileReader<'t> {
    pub(crate) fn new(tree: &'t Tree, node: NodeId) -> FileReader<'t> {
        let kind = match tree.node(node).body {
            Body::Symlink { .. } => Ranges::Bytes(tree.target(node)),
            Body::File { size, content } => match content {
                StoredContent::Hole => Ranges::Bytes(&[]),
                StoredContent::Bytes(start) => Ranges::Bytes(tree.stored(start, size)),
                StoredContent::Whole { source, position } => {
                    let range = DataRange { start: 0, len: size, position, skip: 0 };
                    Ranges::One(tree.source(source), range)
                }
                StoredContent::Sparse { source, index } => {
                    Ranges::Many(tree.source(source), tree.ranges(index))
                }
            },
            _ => Ranges::Bytes(&[]),
        };
        FileReader { tree, node, kind, open: None }
    }

    /// Fills `buf` from byte `offset` of the file. `buf` must be zeroed: bytes without data stay.
    pub(crate) fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (source, ranges) = match &self.kind {
            Ranges::Bytes(bytes) => {
                let rest = bytes.get(offset as usize..).unwrap_or_default();
                let len = rest.len().min(buf.len());
                buf[..len].copy_from_slice(&rest[..len]);
                return Ok(());
            }
            Ranges::One(source, range) => (*source, std::slice::from_ref(range)),
            Ranges::Many(source, ranges) => (*source, *ranges),
        };
        let end = offset + buf.len() as u64;
        let first = ranges.partition_point(|range| range.end() <= offset);
        for range in ranges.get(first..).into_iter().flatten().take_while(|r| r.start < end) {
            let (from, to) = (range.start.max(offset), range.end().min(end));
            let part = buf.get_mut((from - offset) as usize..(to - offset) as usize);
            let part = part.unwrap_or_default();
            read_range(&mut self.open, source, range, part, from)
                .map_err(|error| failure(self.tree, self.node, error))?;
        }
        Ok(())
    }

    /// Ends the reading: verifies that the content is the one that was added to the tree.
    pub(crate) fn finish(self) -> Result<()> {
        let done = self.open.map_or(Ok(()), |(_, content)| content.finish());
        done.map_err(|error| failure(self.tree, self.node, error))
    }
}

fn read_range<'t>(
    open: &mut Option<(u64, Box<dyn OpenContent + 't>)>,
    source: &'t dyn ContentSource,
    range: &DataRange,
    buf: &mut [u8],
    from: u64,
) -> io::Result<()> {
    if open.as_ref().is_none_or(|(position, _)| *position != range.position) {
        if let Some((_, content)) = open.take() {
            content.finish()?;
        }
        *open = Some((range.position, source.open(range.position)?));
    }
    match open {
        Some((_, content)) => content.read_exact_at(buf, range.skip + (from - range.start)),
        None => Ok(()),
    }
}

fn failure(tree: &Tree, node: NodeId, error: io::Error) -> Error {
    Error::Content { path: tree.path_of(node), error }
}

/// Reads a whole file; for small ones.
pub(super) fn read_file(tree: &Tree, node: NodeId) -> Result<Vec<u8>> {
    let Body::File { size, .. } = tree.node(node).body else { return Ok(Vec::new()) };
    let mut bytes = vec![0; size as usize];
    let mut reader = FileReader::new(tree, node);
    reader.read(&mut bytes, 0)?;
    reader.finish()?;
    Ok(bytes)
}
