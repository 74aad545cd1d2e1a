//! Content of files, read from their sources.

use super::{Body, ContentSource, DataRange, NodeId, OpenContent, StoredContent, Tree};
use crate::error::{Error, Result};
use extant_blocks::HostBytes;
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

    /// Returns the bytes of the host from byte `offset` of the file on, and their number, if the
    /// file has data there that the host can copy.
    pub(crate) fn host_bytes(&mut self, offset: u64) -> Result<Option<(HostBytes<'_>, u64)>> {
        let (source, ranges) = match &self.kind {
            Ranges::Bytes(_) => return Ok(None),
            Ranges::One(source, range) => (*source, std::slice::from_ref(range)),
            Ranges::Many(source, ranges) => (*source, *ranges),
        };
        let first = ranges.partition_point(|range| range.end() <= offset);
        let Some(range) = ranges.get(first).filter(|range| range.start <= offset) else {
            return Ok(None);
        };
        let content = opened(&mut self.open, source, range)
            .map_err(|error| failure(self.tree, self.node, error))?;
        let bytes = content.host_bytes().and_then(|bytes| bytes.skip(range.in_content(offset)));
        Ok(bytes.map(|bytes| (bytes, range.end() - offset)))
    }

    /// Fills `buf` from byte `offset` of the file. Bytes without data, as those after the end, are
    /// zeroes.
    pub(crate) fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (source, ranges) = match &self.kind {
            Ranges::Bytes(bytes) => {
                let rest = bytes.get(offset as usize..).unwrap_or_default();
                let (data, zeroes) = buf.split_at_mut(rest.len().min(buf.len()));
                data.copy_from_slice(&rest[..data.len()]);
                zeroes.fill(0);
                return Ok(());
            }
            Ranges::One(source, range) => (*source, std::slice::from_ref(range)),
            Ranges::Many(source, ranges) => (*source, *ranges),
        };
        let (mut at, end) = (offset, offset + buf.len() as u64);
        let mut rest = buf;
        let first = ranges.partition_point(|range| range.end() <= offset);
        for range in ranges.get(first..).into_iter().flatten().take_while(|r| r.start < end) {
            let (from, to) = (range.start.max(at), range.end().min(end));
            let (zeroes, behind) = rest.split_at_mut((from - at) as usize);
            let (part, behind) = behind.split_at_mut((to - from) as usize);
            zeroes.fill(0);
            opened(&mut self.open, source, range)
                .and_then(|content| content.read_exact_at(part, range.in_content(from)))
                .map_err(|error| failure(self.tree, self.node, error))?;
            (rest, at) = (behind, to);
        }
        rest.fill(0);
        Ok(())
    }

    /// Verifies that no content of the source has changed.
    fn verify_source(&self) -> Result<()> {
        let done = match &self.kind {
            Ranges::Bytes(_) => Ok(()),
            Ranges::One(source, _) | Ranges::Many(source, _) => source.finish(),
        };
        done.map_err(|error| failure(self.tree, self.node, error))
    }

    /// Ends the reading: verifies that the content is the one that was added to the tree.
    pub(crate) fn finish(self) -> Result<()> {
        let done = self.open.map_or(Ok(()), |(_, content)| content.finish());
        done.map_err(|error| failure(self.tree, self.node, error))
    }
}

/// Returns the content of a range, opened before or now.
fn opened<'o, 't>(
    open: &'o mut Option<(u64, Box<dyn OpenContent + 't>)>,
    source: &'t dyn ContentSource,
    range: &DataRange,
) -> io::Result<&'o (dyn OpenContent + 't)> {
    if let Some((_, content)) = open.take_if(|(position, _)| *position != range.position) {
        content.finish()?;
    }
    let content = match open.take() {
        Some(content) => content,
        None => (range.position, source.open(range.position)?),
    };
    Ok(&*open.insert(content).1)
}

fn failure(tree: &Tree, node: NodeId, error: io::Error) -> Error {
    Error::Content { path: tree.path_of(node), error }
}

/// Reads a whole file; for small ones.
pub(crate) fn read_file(tree: &Tree, node: NodeId) -> Result<Vec<u8>> {
    let Body::File { size, .. } = tree.node(node).body else { return Ok(Vec::new()) };
    let mut bytes = vec![0; size as usize];
    let mut reader = FileReader::new(tree, node);
    reader.read(&mut bytes, 0)?;
    reader.verify_source()?;
    reader.finish()?;
    Ok(bytes)
}
