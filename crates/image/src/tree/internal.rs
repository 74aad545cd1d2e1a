//! The parts of the tree that the layout reads.

use super::{Body, DataRange, EntryId, NodeId, SourceId, StoredContent, Tree, Xattr, XattrSetId};
use crate::error::{Error, Result};
use extant_format::Timestamp;

impl Tree {
    /// Returns the number of nodes, those without names included.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn entry_node(&self, entry: EntryId) -> NodeId {
        self.entries.get(entry).node
    }

    pub(crate) fn entry_name(&self, entry: EntryId) -> &[u8] {
        self.entries.name(entry)
    }

    /// Returns the directory above one; the root is its own.
    pub(crate) fn parent_of(&self, directory: NodeId) -> NodeId {
        self.parent(directory)
    }

    /// Returns the number of sets of attributes.
    pub(crate) fn xattr_sets(&self) -> usize {
        self.xattrs.len()
    }

    pub(crate) fn xattrs(&self, set: XattrSetId) -> &[Xattr] {
        self.xattrs.get(set)
    }

    /// Returns the node with an index below [`Self::node_count`].
    pub(crate) fn node_at(&self, index: usize) -> Option<NodeId> {
        (index < self.nodes.len()).then_some(NodeId(index as u32))
    }

    /// Verifies that no source has changed, after the last read.
    ///
    /// # Errors
    /// [`Error::Content`] with a file of the source.
    pub(crate) fn finish_sources(&self) -> Result<()> {
        for (number, source) in (0..).zip(&self.sources) {
            let failed = |error| Error::Content { path: self.file_of(SourceId(number)), error };
            source.finish().map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the path of a file whose content is in a source.
    fn file_of(&self, wanted: SourceId) -> Vec<u8> {
        let is_in = |id: &NodeId| match self.node(*id).body {
            Body::File { content: StoredContent::Whole { source, .. }, .. }
            | Body::File { content: StoredContent::Sparse { source, .. }, .. } => source == wanted,
            _ => false,
        };
        let found = (0..).map_while(|index| self.node_at(index)).find(is_in);
        found.map(|id| self.path_of(id)).unwrap_or_default()
    }

    /// Sets the ranges with data of a file whose content is in a source.
    pub(crate) fn set_ranges(&mut self, id: NodeId, ranges: Vec<DataRange>) {
        let Body::File { size, content } = self.node(id).body else { return };
        let content = match content {
            StoredContent::Whole { source, .. } => self.keep_ranges(source, ranges),
            StoredContent::Sparse { .. } if ranges.is_empty() => StoredContent::Hole,
            StoredContent::Sparse { index, .. } => {
                self.sparse[index as usize] = ranges.into();
                content
            }
            StoredContent::Hole | StoredContent::Bytes(_) => content,
        };
        self.node_mut(id).body = Body::File { size, content };
    }

    /// Returns the first block of content that was written before the rest of the tree was known.
    pub(crate) fn arrival(&self, node: NodeId) -> Option<u64> {
        let arrivals = self.arrivals?;
        match self.node(node).body {
            Body::File { content: StoredContent::Whole { source, position }, .. } => {
                (source == arrivals).then_some(position)
            }
            Body::File { content: StoredContent::Sparse { source, index }, .. } => {
                let first = self.ranges(index).first().filter(|_| source == arrivals);
                first.map(|range| range.position)
            }
            _ => None,
        }
    }

    /// Returns the size and the content of a file.
    pub(crate) fn file_content(&self, node: NodeId) -> Option<(u64, StoredContent)> {
        match self.node(node).body {
            Body::File { size, content } => Some((size, content)),
            _ => None,
        }
    }

    /// Returns the ranges of a sparse file.
    pub(crate) fn ranges(&self, index: u32) -> &[DataRange] {
        self.sparse.get(index as usize).map_or(&[], |ranges| ranges)
    }

    /// Returns the times of access, change and modification.
    pub(crate) fn times(&self, node: NodeId) -> [Timestamp; 3] {
        let mtime = self.node(node).mtime;
        let [atime, ctime] = self.times.get(node);
        [atime.unwrap_or(mtime), ctime.unwrap_or(mtime), mtime]
    }

    /// Returns a path of a node, for messages. Searches all entries for one of a file.
    pub(crate) fn path_of(&self, node: NodeId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut entry = match self.node(node).body {
            Body::Directory { entry, .. } => entry,
            _ => self.entries.of_node(node),
        };
        while entry != EntryId::NONE {
            names.push(self.entries.name(entry));
            entry = match self.node(self.entries.get(entry).parent).body {
                Body::Directory { entry, .. } => entry,
                _ => EntryId::NONE,
            };
        }
        names.reverse();
        names.join(&b'/')
    }
}
