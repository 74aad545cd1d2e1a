//! Zeroes in the content of files, which become holes.

use crate::crew::{Turn, run_on_threads};
use crate::error::Result;
use crate::options::number_of_threads;
use crate::tree::{Body, DataRange, FileReader, NodeId, StoredContent, Tree, TreeNode};

/// Bytes that become a hole together: blocks of the usual size.
const PIECE: u64 = 4096;

/// Bytes of one read.
const CHUNK: u64 = 64 * PIECE;

/// A file with the ranges that remain.
type Found = (NodeId, Vec<DataRange>);

impl Tree {
    /// Turns zeroes in the content of files into holes, in pieces of 4 KiB from the start of a
    /// file, by `threads` threads, or one for each processor if it is 0. Reads all content once,
    /// except that which the tree keeps in memory.
    ///
    /// # Errors
    /// [`Error::Content`](crate::Error::Content) if content cannot be read, or has changed. The
    /// tree is unchanged then.
    pub fn find_holes(&mut self, threads: usize) -> Result<()> {
        let found = search(self, number_of_threads(threads))?;
        found.into_iter().for_each(|(node, ranges)| self.set_ranges(node, ranges));
        Ok(())
    }
}

fn search(tree: &Tree, threads: usize) -> Result<Vec<Found>> {
    let parts = run_on_threads(threads, tree.node_count(), |turn| work(tree, turn))?;
    Ok(parts.into_iter().flatten().collect())
}

/// Searches files that no other thread has.
fn work(tree: &Tree, turn: &Turn) -> Result<Vec<Found>> {
    let mut buf = vec![0; CHUNK as usize];
    let mut found = Vec::new();
    while let Some(node) = turn.take().and_then(|number| tree.node_at(number)) {
        if let Some(ranges) = data_of(tree, node, &mut buf)? {
            found.push((node, ranges));
        }
    }
    Ok(found)
}

/// Returns the ranges of a file without its zeroes, if it has some.
fn data_of(tree: &Tree, node: NodeId, buf: &mut [u8]) -> Result<Option<Vec<DataRange>>> {
    let TreeNode { links: 1.., body: Body::File { size, content }, .. } = *tree.node(node) else {
        return Ok(None);
    };
    let whole;
    let ranges = match content {
        StoredContent::Whole { position, .. } => {
            whole = DataRange { start: 0, len: size, position, skip: 0 };
            std::slice::from_ref(&whole)
        }
        StoredContent::Sparse { index, .. } => tree.ranges(index),
        StoredContent::Hole | StoredContent::Bytes(_) => return Ok(None),
    };
    let mut reader = FileReader::new(tree, node);
    let mut data = Vec::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end() {
            let end = ((at / CHUNK + 1) * CHUNK).min(range.end());
            let part = &mut buf[..(end - at) as usize];
            reader.read(part, at)?;
            add_data(&mut data, range, at, part);
            at = end;
        }
    }
    reader.finish()?;
    Ok((data != ranges).then_some(data))
}

/// Adds the pieces of `bytes`, from byte `at` of the file, that are not zero.
fn add_data(data: &mut Vec<DataRange>, range: &DataRange, mut at: u64, mut bytes: &[u8]) {
    const ZEROES: [u8; PIECE as usize] = [0; PIECE as usize];
    while !bytes.is_empty() {
        let len = (PIECE - at % PIECE).min(bytes.len() as u64);
        let (piece, rest) = bytes.split_at(len as usize);
        if piece != &ZEROES[..piece.len()] {
            let skip = range.skip + (at - range.start);
            join(data, DataRange { start: at, len, position: range.position, skip });
        }
        (at, bytes) = (at + len, rest);
    }
}

/// Adds a range, to the last one if it goes on there.
fn join(data: &mut Vec<DataRange>, range: DataRange) {
    match data.last_mut() {
        Some(last)
            if last.end() == range.start
                && last.position == range.position
                && last.skip + last.len == range.skip =>
        {
            last.len += range.len;
        }
        _ => data.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attributes, ContentSource, EntryKind, FileContent, OpenContent};
    use std::io;
    use std::sync::Arc;

    /// Its content at each position.
    struct Bytes(Vec<Vec<u8>>);

    impl ContentSource for Bytes {
        fn open(&self, position: u64) -> io::Result<Box<dyn OpenContent + '_>> {
            Ok(Box::new(&self.0[position as usize][..]))
        }
    }

    impl OpenContent for &[u8] {
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            let part = self.get(offset as usize..offset as usize + buf.len());
            buf.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }

    fn with_data(len: u64, data: &[std::ops::Range<u64>]) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        data.iter().for_each(|range| bytes[range.start as usize..range.end as usize].fill(7));
        bytes
    }

    fn ranges(tree: &Tree, name: &str) -> Option<Vec<(u64, u64)>> {
        let node = (0..)
            .map_while(|n| tree.node_at(n))
            .find(|node| tree.path_of(*node) == name.as_bytes());
        let Body::File { content, .. } = tree.node(node.unwrap()).body else { return None };
        match content {
            StoredContent::Hole => Some(Vec::new()),
            StoredContent::Sparse { index, .. } => {
                Some(tree.ranges(index).iter().map(|range| (range.start, range.end())).collect())
            }
            _ => None,
        }
    }

    #[test]
    fn zeroes_become_holes_in_whole_pieces() {
        let end = CHUNK + 5000;
        let contents = vec![
            with_data(end, &[10..11, CHUNK - 1..CHUNK + 1, end - 1..end]),
            with_data(9000, &[]),
            vec![7; 9000],
            with_data(20_000, &[100..101, 19_000..19_001]),
        ];
        for threads in [1, 3] {
            let mut tree = Tree::new();
            let source = tree.add_source(Arc::new(Bytes(contents.clone())));
            let mut add = |name: &str, content| {
                tree.add(name.as_bytes(), &Attributes::default(), EntryKind::File(content))
                    .unwrap();
            };
            for (position, name) in (0..).zip(["mixed", "zero", "full"]) {
                let size = contents[position as usize].len() as u64;
                add(name, FileContent::Whole { source, position, size });
            }
            // Its range begins within a piece of the file.
            let range = DataRange { start: 3000, len: 19_000, position: 3, skip: 1000 };
            add("sparse", FileContent::Sparse { source, size: 30_000, ranges: vec![range] });
            tree.find_holes(threads).unwrap();
            let joined = vec![(0, PIECE), (CHUNK - PIECE, end)];
            assert_eq!(ranges(&tree, "mixed"), Some(joined));
            assert_eq!(ranges(&tree, "zero"), Some(Vec::new()));
            assert_eq!(ranges(&tree, "full"), None, "it stays as it was");
            assert_eq!(ranges(&tree, "sparse"), Some(vec![(5 * PIECE, 22_000)]));
        }
    }

    #[test]
    fn content_that_ended_early_leaves_the_tree_unchanged() {
        let mut tree = Tree::new();
        let source = tree.add_source(Arc::new(Bytes(vec![vec![0; 9000], vec![0; 10]])));
        for (position, name) in (0..).zip(["whole", "short"]) {
            let content = FileContent::Whole { source, position, size: 9000 };
            let kind = EntryKind::File(content);
            tree.add(name.as_bytes(), &Attributes::default(), kind).unwrap();
        }
        let error = tree.find_holes(2).unwrap_err().to_string();
        assert!(error.contains("short"), "{error}");
        assert_eq!(ranges(&tree, "whole"), None);
    }
}
