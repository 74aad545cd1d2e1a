//! The content of an image, written to places that are known before.
//!
//! Threads take batches of nodes in order; each computes the places of its nodes, reads their
//! content, and writes it. So the bytes of an image do not depend on the number of threads.

mod content;
mod inodes;
mod sink;

use crate::crew::{Turn, run_on_threads};
use crate::error::{Error, Result};
use crate::layout::numbers::{Position, positions_of};
use crate::layout::placement::Placement;
use crate::layout::shapes::Shapes;
use crate::layout::xattrs::View;
use crate::tree::{Body, Tree, XattrSetId};
pub(crate) use content::FileReader;
use extant_blocks::BlockDevice;
use extant_format::quota::QuotaKind;
use extant_format::xattr::{encode_block, seal_xattr_block};
use extant_format::{Geometry, InodeNr, Timestamp};
use extant_mkfs::{FileMap, MappedRun, Population};
pub(crate) use sink::Sink;
use std::ops::Range;

/// A sink of one thread.
type DeviceSink<'a> = Sink<&'a dyn BlockDevice>;

/// Bytes of a batch: enough for large writes, and few enough to divide the work evenly.
const BATCH_BYTES: u64 = 4 << 20;

/// Nodes of a batch at most.
const BATCH_NODES: u32 = 4096;

/// An image with the places of everything.
pub(crate) struct Image<'a> {
    pub tree: &'a Tree,
    pub shapes: &'a Shapes<'a>,
    pub placement: &'a Placement,
    pub geo: Geometry,
    pub time: Timestamp,
    /// Inode of position 1.
    pub first: InodeNr,
    pub threads: usize,
    /// Gets bytes and files that were written since the last call.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl Image<'_> {
    fn view(&self) -> View<'_> {
        View { tree: self.tree, seed: self.geo.csum_seed, first: self.value_inode(0) }
    }

    fn path(&self, position: Position) -> Vec<u8> {
        self.tree.path_of(self.shapes.numbers.node(position))
    }

    /// Returns the number of nodes and of values with inodes of their own.
    fn all(&self) -> u32 {
        self.shapes.numbers.len() + self.shapes.xattrs.values.len() as u32
    }

    /// Divides the nodes into batches. A large file is a batch of its own.
    fn batches(&self) -> Vec<Range<Position>> {
        let mut batches = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for position in 0..self.all() {
            bytes += self.bytes(position);
            if bytes >= BATCH_BYTES || position + 1 - start >= BATCH_NODES {
                batches.push(start..position + 1);
                (start, bytes) = (position + 1, 0);
            }
        }
        batches.push(start..self.all());
        batches
    }

    fn bytes(&self, position: Position) -> u64 {
        let blocks = |position| {
            let runs = self.shapes.blocks(position);
            runs.iter().map(|run| run.end - run.start).sum::<u64>()
        };
        let node = position < self.shapes.numbers.len();
        if node { blocks(position) * u64::from(self.geo.block_size) } else { BATCH_BYTES / 64 }
    }

    /// Writes the blocks of a batch.
    fn write_batch(&self, batch: Range<Position>, sink: &mut DeviceSink<'_>) -> Result<()> {
        let mut files = 0;
        for position in batch {
            match position.checked_sub(self.shapes.numbers.len()) {
                Some(number) => self.write_value(number as usize, sink)?,
                None => {
                    self.write_node(position, sink)?;
                    files += u64::from(self.shapes.is_file(position));
                }
            }
        }
        (self.progress)(0, files);
        Ok(sink.flush()?)
    }

    fn write_node(&self, position: Position, sink: &mut DeviceSink<'_>) -> Result<()> {
        let node = self.shapes.numbers.node(position);
        let runs = self.shapes.blocks(position);
        if runs.is_empty() {
            return Ok(());
        }
        let (map, runs) = self.map_of(position)?;
        if self.placement.arrival(self.shapes, position).is_some() {
            return self.write_map(&map, sink);
        }
        if let Body::Directory { .. } = self.tree.node(node).body {
            let directory = self.shapes.directory(position, self.first);
            let seed = self.geo.inode_seed(directory.own, 0);
            let blocks = directory.encode(&self.geo, seed);
            let blocks = blocks.map_err(|cause| Error::entry(&self.path(position), cause))?;
            let places = runs.into_iter().flat_map(|(_, run)| run);
            places.zip(&blocks).try_for_each(|(place, block)| self.put(sink, place, block))?;
        } else {
            let mut reader = FileReader::new(self.tree, node);
            for (logical, run) in runs {
                self.copy(&mut reader, logical, run, sink)?;
            }
            reader.finish()?;
        }
        self.write_map(&map, sink)
    }

    /// Copies blocks of a file, from logical block `first` on.
    fn copy(
        &self,
        reader: &mut FileReader<'_>,
        first: u64,
        run: Range<u64>,
        sink: &mut DeviceSink<'_>,
    ) -> Result<()> {
        let size = u64::from(self.geo.block_size);
        let (mut offset, mut at) = (first * size, run.start * size);
        while at < run.end * size {
            let part = sink.reserve(at, run.end * size - at)?;
            let len = part.len() as u64;
            reader.read(part, offset)?;
            (self.progress)(len, 0);
            (offset, at) = (offset + len, at + len);
        }
        Ok(())
    }

    fn write_map(&self, map: &FileMap, sink: &mut DeviceSink<'_>) -> Result<()> {
        map.nodes.iter().try_for_each(|(place, block)| self.put(sink, *place, block))
    }

    fn put(&self, sink: &mut DeviceSink<'_>, place: u64, block: &[u8]) -> Result<()> {
        Ok(sink.put(place * u64::from(self.geo.block_size), block)?)
    }

    fn write_value(&self, number: usize, sink: &mut DeviceSink<'_>) -> Result<()> {
        let (_, map, runs) = self.value(number)?;
        let bytes = self.shapes.xattrs.value(self.tree, &self.shapes.xattrs.values[number]);
        self.write_bytes(bytes, &runs, sink)?;
        self.write_map(&map, sink)
    }

    /// Writes bytes over whole blocks.
    fn write_bytes(
        &self,
        bytes: &[u8],
        runs: &[MappedRun],
        sink: &mut DeviceSink<'_>,
    ) -> Result<()> {
        let size = self.geo.block_size as usize;
        let places = runs.iter().flat_map(|(_, run)| run.clone());
        for (place, part) in places.zip(bytes.chunks(size)) {
            let mut block = part.to_vec();
            block.resize(size, 0);
            self.put(sink, place, &block)?;
        }
        Ok(())
    }

    fn write_xattr_blocks(&self, sink: &mut DeviceSink<'_>) -> Result<()> {
        for (number, places) in (0..).zip(&self.placement.xattr_blocks) {
            let set = XattrSetId(number);
            let entries = self.shapes.xattrs.in_block(&self.view(), set);
            for (n, place) in places.iter().enumerate() {
                let references = self.placement.references(self.shapes, set, n);
                let mut block = vec![0; self.geo.block_size as usize];
                let fits = encode_block(&entries, references, &mut block);
                debug_assert!(fits, "attributes were placed by the room of the block");
                if self.geo.metadata_csum {
                    seal_xattr_block(&mut block, *place, self.geo.csum_seed);
                }
                self.put(sink, *place, &block)?;
            }
        }
        Ok(sink.flush()?)
    }

    /// Writes batches until none is left.
    fn work(
        &self,
        batches: &[Range<Position>],
        turn: &Turn,
        device: &dyn BlockDevice,
    ) -> Result<u64> {
        let mut sink = Sink::new(device);
        while let Some(number) = turn.take() {
            self.write_batch(batches[number].clone(), &mut sink)?;
        }
        Ok(sink.written)
    }
}

/// Carries an error through the writer of the file system.
fn wrap(error: Error) -> extant_mkfs::Error {
    extant_mkfs::Error::Io(std::io::Error::other(error))
}

impl Population for Image<'_> {
    fn inodes(&self) -> u32 {
        self.all() - 1
    }

    fn directories(&self, inodes: Range<u32>) -> u32 {
        let positions = positions_of(inodes, self.first);
        positions.end.min(self.shapes.numbers.directories()).saturating_sub(positions.start)
    }

    fn usage(&self, kind: QuotaKind, id: u32) -> (u64, u64) {
        let mut usage = (0, 0);
        for position in 0..self.shapes.numbers.len() {
            let Ok((inode, _)) = self.inode(position) else { continue };
            if [inode.uid, inode.gid, inode.projid][kind.index()] == id {
                usage = (usage.0 + 1, usage.1 + inode.blocks * 512);
            }
        }
        usage
    }

    fn encode(&self, ino: InodeNr, slot: &mut [u8]) -> extant_mkfs::Result<()> {
        let position = if ino == InodeNr::ROOT { 0 } else { ino.0 - self.first.0 + 1 };
        self.encode_at(position, ino, slot)
    }

    fn write(&self, device: &dyn BlockDevice) -> extant_mkfs::Result<u64> {
        let mut sink = Sink::new(device);
        self.write_xattr_blocks(&mut sink).map_err(wrap)?;
        let batches = self.batches();
        let work = |turn: &Turn| self.work(&batches, turn, device);
        let written = run_on_threads(self.threads, batches.len(), work).map_err(wrap)?;
        let before = self.placement.arrived_bytes();
        Ok(before + sink.written + written.into_iter().sum::<u64>())
    }
}
