//! The content of an image, written to places that are known before.
//!
//! Threads take batches of nodes in order; each computes the places of its nodes, reads their
//! content, and writes it. So the bytes of an image do not depend on the number of threads.

mod inodes;
mod sink;

use crate::crew::{Turn, run_on_threads};
use crate::error::{Error, Result};
use crate::layout::directory::Directory;
use crate::layout::numbers::Position;
use crate::layout::placement::Placement;
use crate::layout::shapes::Shapes;
use crate::layout::xattrs::View;
use crate::tree::{Body, FileReader, Tree, XattrSetId};
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

/// Bytes of the parts in which threads copy a larger file.
const PART_BYTES: u64 = 16 << 20;

/// Least bytes that the host copies by itself: fewer are joined with others to a write. Shared
/// storage of small pieces would also scatter the image on the host's disk.
const HOST_COPY: u64 = 64 << 10;

/// The work that a thread takes at once.
enum Batch {
    /// Nodes and values, without the content of larger files.
    Nodes(Range<Position>),
    /// Blocks of a larger file, by their numbers among those with data.
    Part(Position, Range<u64>),
}

/// An image with the places of everything.
pub(crate) struct Image<'a> {
    pub tree: &'a Tree,
    pub shapes: &'a Shapes<'a>,
    pub placement: &'a Placement,
    pub geo: Geometry,
    pub time: Timestamp,
    /// First inode after those that every file system has.
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

    /// Divides the nodes, and the content of larger files, into batches.
    fn batches(&self) -> Vec<Batch> {
        let mut batches = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for position in 0..self.all() {
            if self.is_divided(position) {
                batches.extend(self.parts(position));
            } else {
                bytes += self.bytes(position);
            }
            if bytes >= BATCH_BYTES || position + 1 - start >= BATCH_NODES {
                batches.push(Batch::Nodes(start..position + 1));
                (start, bytes) = (position + 1, 0);
            }
        }
        batches.push(Batch::Nodes(start..self.all()));
        batches
    }

    /// Returns whether threads copy parts of a file.
    fn is_divided(&self, position: Position) -> bool {
        position < self.shapes.numbers.len()
            && self.shapes.is_file(position)
            && self.bytes(position) > PART_BYTES
            && self.placement.arrival(self.shapes, position).is_none()
    }

    fn parts(&self, position: Position) -> impl Iterator<Item = Batch> {
        let size = u64::from(self.geo.block_size);
        let (all, most) = (self.bytes(position) / size, PART_BYTES / size);
        let starts = (0..all).step_by(most as usize);
        starts.map(move |start| Batch::Part(position, start..all.min(start + most)))
    }

    fn bytes(&self, position: Position) -> u64 {
        let blocks = |position| {
            let runs = self.shapes.blocks(position);
            runs.iter().map(|run| run.end - run.start).sum::<u64>()
        };
        let node = position < self.shapes.numbers.len();
        if node { blocks(position) * u64::from(self.geo.block_size) } else { BATCH_BYTES / 64 }
    }

    fn write_batch(&self, batch: &Batch, sink: &mut DeviceSink<'_>) -> Result<()> {
        match batch {
            Batch::Nodes(nodes) => self.write_nodes(nodes.clone(), sink)?,
            Batch::Part(position, blocks) => {
                let runs = self.placement.blocks(self.shapes, *position).runs;
                self.write_content(*position, &runs, blocks.clone(), sink)?;
            }
        }
        Ok(sink.flush()?)
    }

    fn write_nodes(&self, nodes: Range<Position>, sink: &mut DeviceSink<'_>) -> Result<()> {
        let mut files = 0;
        for position in nodes {
            match position.checked_sub(self.shapes.numbers.len()) {
                Some(number) => self.write_value(number as usize, sink)?,
                None => {
                    self.write_node(position, sink)?;
                    files += u64::from(self.shapes.is_file(position));
                }
            }
        }
        (self.progress)(0, files);
        Ok(())
    }

    fn write_node(&self, position: Position, sink: &mut DeviceSink<'_>) -> Result<()> {
        let node = self.shapes.numbers.node(position);
        let runs = self.shapes.blocks(position);
        if runs.is_empty() {
            return Ok(());
        }
        let (map, runs) = self.map_of(position)?;
        if let Body::Directory { .. } = self.tree.node(node).body {
            let directory = self.shapes.directory(position, self.first);
            let seed = self.geo.inode_seed(directory.own, 0);
            let blocks = directory.encode(&self.geo, seed);
            let mut blocks = blocks.map_err(|cause| Error::entry(&self.path(position), cause))?;
            let count = runs.iter().map(|(_, run)| (run.end - run.start) as usize).sum();
            // Those of lost+found that are kept for names.
            blocks.resize_with(count, || Directory::empty_block(&self.geo, seed));
            let places = runs.into_iter().flat_map(|(_, run)| run);
            places.zip(&blocks).try_for_each(|(place, block)| self.put(sink, place, block))?;
        } else if self.placement.arrival(self.shapes, position).is_none()
            && !self.is_divided(position)
        {
            self.write_content(position, &runs, 0..u64::MAX, sink)?;
        }
        self.write_map(&map, sink)
    }

    /// Copies blocks of a file, by their numbers among those with data.
    fn write_content(
        &self,
        position: Position,
        runs: &[MappedRun],
        blocks: Range<u64>,
        sink: &mut DeviceSink<'_>,
    ) -> Result<()> {
        let mut reader = FileReader::new(self.tree, self.shapes.numbers.node(position));
        let mut number = 0;
        for (logical, run) in runs {
            let len = run.end - run.start;
            let part = blocks.start.max(number)..blocks.end.min(number + len);
            if !part.is_empty() {
                let skipped = part.start - number;
                let start = run.start + skipped;
                let run = start..start + (part.end - part.start);
                self.copy(&mut reader, logical + skipped, run, sink)?;
            }
            number += len;
        }
        reader.finish()
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
        let (mut offset, end) = (first * size, run.end * size);
        let mut at = run.start * size;
        let copied = self.copy_by_host(reader, offset, at..end, sink)?;
        (offset, at) = (offset + copied, at + copied);
        while at < end {
            let part = sink.reserve(at, end - at)?;
            let len = part.len() as u64;
            reader.read(part, offset)?;
            (self.progress)(len, 0);
            (offset, at) = (offset + len, at + len);
        }
        Ok(())
    }

    /// Lets the host copy whole blocks of a file from byte `offset` on. Returns the bytes.
    fn copy_by_host(
        &self,
        reader: &mut FileReader<'_>,
        offset: u64,
        to: Range<u64>,
        sink: &mut DeviceSink<'_>,
    ) -> Result<u64> {
        if to.end - to.start < HOST_COPY {
            return Ok(0);
        }
        let Some((bytes, len)) = reader.host_bytes(offset)? else { return Ok(0) };
        let whole = |len| len / u64::from(self.geo.block_size) * u64::from(self.geo.block_size);
        let copied = whole(sink.copy(bytes, to.start, whole(len.min(to.end - to.start)))?);
        (self.progress)(copied, 0);
        Ok(copied)
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
    fn work(&self, batches: &[Batch], turn: &Turn, device: &dyn BlockDevice) -> Result<u64> {
        let mut sink = Sink::new(device);
        while let Some(number) = turn.take() {
            self.write_batch(&batches[number], &mut sink)?;
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
        self.shapes.inodes()
    }

    fn directories(&self, inodes: Range<u32>) -> u32 {
        let positions = self.shapes.numbers.positions_of(inodes, self.first);
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
        self.encode_at(self.shapes.numbers.position_of(ino, self.first), ino, slot)
    }

    fn write(&self, device: &dyn BlockDevice) -> extant_mkfs::Result<u64> {
        let mut sink = Sink::new(device);
        self.write_xattr_blocks(&mut sink).map_err(wrap)?;
        let batches = self.batches();
        let work = |turn: &Turn| self.work(&batches, turn, device);
        let written = run_on_threads(self.threads, batches.len(), work).map_err(wrap)?;
        self.tree.finish_sources().map_err(wrap)?;
        let before = self.placement.arrived_bytes();
        Ok(before + sink.written + written.into_iter().sum::<u64>())
    }
}
