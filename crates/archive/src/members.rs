//! Members of one archive become entries of a tree.

use crate::acl::Owners;
use crate::error::{Error, Result};
use crate::layer::{self, LayerStep};
use crate::spool::Spool;
use crate::stream::Stream;
use crate::tar::{FileData, Member, MemberKind, Range, TarReader};
use extant_image::{Attributes, ContentSink, DataRange, EntryKind, FileContent, SourceId, Tree};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that the entries of any archive may take, in bytes.
const FREE_MEMORY: u64 = 256 << 20;

/// Further memory for each byte of input. Entries of real archives take less, those of a bomb more.
const MEMORY_PER_BYTE: u64 = 32;

/// Memory of an entry beside its name, in bytes.
const ENTRY: u64 = 128;

/// Memory of a range of a sparse file, in bytes.
const RANGE: u64 = 32;

/// Meaning of special members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rules {
    /// Each member is a file.
    Plain,
    /// Whiteouts and opaque markers remove entries of lower layers.
    Layer,
}

/// Place of the content of members.
pub(crate) enum Place<'a> {
    /// In the archive, whose first byte is at `base` of the source.
    Archive { source: SourceId, base: u64 },
    /// In a spool, since the archive cannot be read twice. Bytes of input are counted.
    Spool { source: SourceId, spool: &'a mut Spool, consumed: Arc<AtomicU64> },
    /// In the image, to which it goes as it arrives.
    Image { source: SourceId, image: &'a mut dyn ContentSink, consumed: Arc<AtomicU64> },
}

/// Files at the root of an archive that show an image of containers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Markers {
    pub oci_layout: bool,
    pub docker_manifest: bool,
}

/// Adds the members of an archive to a tree.
pub(crate) struct Adder<'a> {
    pub tree: &'a mut Tree,
    pub rules: Rules,
    pub place: Place<'a>,
    owners: Owners,
    memory: u64,
    markers: Markers,
}

impl<'a> Adder<'a> {
    pub(crate) fn new(tree: &'a mut Tree, rules: Rules, place: Place<'a>) -> Adder<'a> {
        let (owners, markers) = Default::default();
        Adder { tree, rules, place, owners, memory: 0, markers }
    }

    /// Adds all members.
    ///
    /// # Errors
    /// [`Error`] with the member and its byte.
    pub(crate) fn add_all<S: Stream>(mut self, reader: &mut TarReader<S>) -> Result<Markers> {
        while let Some(mut member) = reader.next_member()? {
            let offset = member.offset;
            let path = member.path.clone();
            self.add(&mut member, reader).map_err(|error| error.in_member(&path).at(offset))?;
        }
        Ok(self.markers)
    }

    fn add<S: Stream>(&mut self, member: &mut Member, reader: &mut TarReader<S>) -> Result<()> {
        let step = match self.rules {
            Rules::Plain => LayerStep::Add,
            Rules::Layer => layer::interpret(member)?,
        };
        let (before, bytes) = (self.tree.len(), memory_of(member));
        match step {
            LayerStep::Add => self.add_file(member, reader)?,
            LayerStep::AddOpaque => {
                self.add_file(member, reader)?;
                self.tree.make_opaque(&member.path)?;
            }
            LayerStep::Opaque(directory) => self.tree.make_opaque(&directory)?,
            LayerStep::Whiteout(path) => {
                // A directory of this layer stays, without the lower layers' entries below.
                if !self.tree.whiteout(&path)? && self.is_directory(&path) {
                    self.tree.make_opaque(&path)?;
                }
            }
            LayerStep::Ignore => {}
        }
        let added = self.tree.len().saturating_sub(before);
        self.charge(bytes + added * ENTRY, reader.offset())
    }

    fn add_file<S: Stream>(
        &mut self,
        member: &mut Member,
        reader: &mut TarReader<S>,
    ) -> Result<()> {
        self.note_marker(member);
        self.owners.add((&member.user, member.uid), (&member.group, member.gid));
        let attributes = self.attributes(member)?;
        let kind = match &mut member.kind {
            MemberKind::Directory => EntryKind::Directory,
            MemberKind::File(data) => EntryKind::File(self.content(data, reader)?),
            MemberKind::Symlink(target) => EntryKind::Symlink(std::mem::take(target)),
            MemberKind::CharDevice(major, minor) => EntryKind::CharDevice(*major, *minor),
            MemberKind::BlockDevice(major, minor) => EntryKind::BlockDevice(*major, *minor),
            MemberKind::Fifo => EntryKind::Fifo,
            MemberKind::HardLink(target) => {
                return Ok(self.tree.hard_link(&member.path, target)?);
            }
        };
        Ok(self.tree.add(&member.path, &attributes, kind)?)
    }

    fn attributes(&self, member: &mut Member) -> Result<Attributes> {
        let mut xattrs = std::mem::take(&mut member.xattrs);
        let mut mode = member.mode;
        if let Some(text) = &member.acl_access {
            let acl = self.owners.acl(text)?;
            // As setting the list does: headers of bsdtar have the group's own permissions in place
            // of the mask.
            mode = mode & !0o777 | acl.mode_bits();
            xattrs.push((b"system.posix_acl_access".to_vec(), acl.to_xattr()));
        }
        if let Some(text) = &member.acl_default {
            let acl = self.owners.acl(text)?;
            xattrs.push((b"system.posix_acl_default".to_vec(), acl.to_xattr()));
        }
        Ok(Attributes {
            mode,
            uid: member.uid,
            gid: member.gid,
            mtime: member.mtime,
            xattrs,
            ..Attributes::default()
        })
    }

    /// Returns the content of a file; spools it if the archive cannot be read again.
    fn content<S: Stream>(
        &mut self,
        data: &mut FileData,
        reader: &mut TarReader<S>,
    ) -> Result<FileContent> {
        let (source, position) = match &mut self.place {
            Place::Archive { source, base } => (*source, *base + data.offset),
            Place::Spool { source, spool, .. } => {
                let position = spool.position();
                reader.copy_data(*spool)?;
                (*source, position)
            }
            Place::Image { source, image, .. } => {
                let position = match &data.ranges {
                    Some(ranges) => image.begin(data.size, &spans(ranges))?,
                    None => image.begin(data.size, std::slice::from_ref(&(0..data.size)))?,
                };
                reader.copy_data(&mut InImage(&mut **image))?;
                (*source, position)
            }
        };
        let Some(ranges) = &data.ranges else {
            return Ok(FileContent::Whole { source, position, size: data.size });
        };
        let mut skip = 0;
        let ranges = ranges.iter().map(|range| {
            let range = DataRange { start: range.start, len: range.len, position, skip };
            skip += range.len;
            range
        });
        Ok(FileContent::Sparse { source, size: data.size, ranges: ranges.collect() })
    }

    /// Refuses archives with entries that take much more memory than the archive has bytes.
    fn charge(&mut self, bytes: u64, read: u64) -> Result<()> {
        self.memory += bytes;
        let input = match &self.place {
            Place::Archive { .. } => read,
            Place::Spool { consumed, .. } | Place::Image { consumed, .. } => {
                // Relaxed: a number for a bound, which publishes nothing else.
                consumed.load(Ordering::Relaxed)
            }
        };
        if self.memory > FREE_MEMORY.saturating_add(input.saturating_mul(MEMORY_PER_BYTE)) {
            let cause = "the entries of the archive take more than 32 times as much memory as its \
                 compressed bytes; decompress it first if that is intended";
            return Err(Error::new(cause));
        }
        Ok(())
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        let entry = self.tree.entry(path);
        entry.is_some_and(|entry| matches!(entry.kind, EntryKind::Directory))
    }

    fn note_marker(&mut self, member: &Member) {
        let mut name = &member.path[..];
        while let Some(rest) = name.strip_prefix(b"./").or_else(|| name.strip_prefix(b"/")) {
            name = rest;
        }
        self.markers.oci_layout |= name == b"oci-layout";
        self.markers.docker_manifest |= name == b"manifest.json";
    }
}

/// Writer of content to its place in the image.
struct InImage<'a>(&'a mut dyn ContentSink);

impl Write for InImage<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("the image cannot be written: {error}"))
        };
        self.0.write(bytes).map_err(failed).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn spans(ranges: &[Range]) -> Vec<std::ops::Range<u64>> {
    ranges.iter().map(|range| range.start..range.start + range.len).collect()
}

/// Returns the memory that an entry takes at most, missing directories before it not counted.
fn memory_of(member: &Member) -> u64 {
    let xattrs = member.xattrs.iter().map(|(name, value)| name.len() + value.len());
    let (target, ranges) = match &member.kind {
        MemberKind::Symlink(target) => (target.len(), 0),
        MemberKind::File(FileData { ranges: Some(ranges), .. }) => (0, ranges.len() as u64),
        _ => (0, 0),
    };
    let bytes = member.path.len() + target + xattrs.sum::<usize>();
    ENTRY + ranges * RANGE + bytes as u64
}
