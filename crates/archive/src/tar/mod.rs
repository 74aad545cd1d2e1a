//! Archives of tar: a reader for the formats v7, ustar, GNU and PAX.
//!
//! A member is one header of 512 bytes, with extensions before it: long names of GNU, or records of
//! PAX for this member or for all that follow. Its data follow, padded to 512 bytes. The reader
//! takes one member at a time and keeps nothing of earlier ones but the records for all.
//!
//! Where programs read an archive in different ways, the reader refuses it instead of choosing: a
//! size in the header that contradicts the extension, content of a directory or a link, two
//! different long names.
//!
//! # Memory
//! Extensions have bounds ([`MAX_EXTENSION`], [`MAX_GLOBAL`], [`MAX_NAME`], [`MAX_RANGES`]), so
//! that a member takes 80 MiB at most, however large the numbers in its header are.

mod header;
mod member;
mod number;
mod pax;
mod sparse;
#[cfg(test)]
mod tests;

pub(crate) use header::BLOCK;
pub use member::{FileData, Member, MemberKind};
pub use sparse::Range;

use crate::error::{Error, Result};
use crate::stream::{PIECE, Stream, fill};
use extant_format::{Printable, Timestamp};
use header::Header;
use pax::Records;
use sparse::MapPlace;
use std::io::{self, Read, Write};

/// Maximum size of the records of one member, in bytes.
const MAX_EXTENSION: u64 = 8 << 20;

/// Maximum size of all records for the members that follow, in bytes.
const MAX_GLOBAL: u64 = 64 << 10;

/// Maximum size of a long name of GNU, in bytes.
const MAX_NAME: u64 = 64 << 10;

/// Maximum length of a path, in bytes: PATH_MAX of Linux without the end mark.
const MAX_PATH: usize = 4095;

/// Maximum number of ranges of a sparse file.
const MAX_RANGES: u64 = 4 << 20;

/// Minimum size that eleven octal digits cannot hold.
const OCTAL_END: u64 = 1 << 33;

/// Behavior at the end of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndMark {
    /// The archive must end with a block of zeroes, which a truncated one does not have.
    Required,
    /// The archive may end after the content of any member, since a digest shows that it is whole.
    /// Writers of layers that are not closed leave out padding and mark.
    Optional,
}

/// Extensions before a header.
#[derive(Default)]
struct Extensions {
    /// Byte of the archive with the first one.
    offset: Option<u64>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    records: Option<Records>,
}

/// Reader of an archive.
pub(crate) struct TarReader<S> {
    stream: S,
    /// Byte of the archive that is read next.
    offset: u64,
    /// Bytes of the current member's data that were not read.
    data_left: u64,
    /// Bytes after these to the next block.
    padding: u64,
    global: Records,
    global_bytes: u64,
    end_mark: EndMark,
    /// Path of the member that was read last.
    current: Vec<u8>,
}

impl<S: Stream> TarReader<S> {
    pub(crate) fn new(stream: S, end_mark: EndMark) -> TarReader<S> {
        TarReader {
            stream,
            offset: 0,
            data_left: 0,
            padding: 0,
            global: Records::default(),
            global_bytes: 0,
            end_mark,
            current: Vec::new(),
        }
    }

    /// Returns the bytes of the archive that were read or passed over.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next member; `None` after the last. Data of the last member that were not copied
    /// are passed over.
    ///
    /// # Errors
    /// [`Error`] with the byte of the header if the archive is damaged, contradicts itself, or
    /// exceeds a bound.
    pub(crate) fn next_member(&mut self) -> Result<Option<Member>> {
        self.pass_data().map_err(|error| error.in_member(&self.current))?;
        let mut before = Extensions::default();
        loop {
            let offset = self.offset;
            let Some(block) = self.next_header()? else {
                return match before.offset {
                    Some(offset) => {
                        Err(Error::new("the member of an extension is missing").at(offset))
                    }
                    None => Ok(None),
                };
            };
            let parsed = Header::parse(&block).map_err(|cause| match offset {
                0 => format!("no tar archive, in none of the known compressions: {cause}"),
                _ => cause,
            });
            let result = match parsed {
                Ok(header) => self.interpret(&header, offset, &mut before),
                Err(cause) => Err(cause.into()),
            };
            match result {
                Ok(Some(member)) => {
                    self.current.clone_from(&member.path);
                    return Ok(Some(member));
                }
                Ok(None) => {}
                Err(error) => return Err(error.at(offset)),
            }
        }
    }

    /// Copies the data of the member that was read last.
    ///
    /// # Errors
    /// [`Error`] if the archive ends before the data do, and errors of `to`.
    pub(crate) fn copy_data(&mut self, to: &mut dyn Write) -> Result<()> {
        let mut piece = vec![0; PIECE.min(usize::try_from(self.data_left).unwrap_or(PIECE))];
        while self.data_left > 0 {
            let len = piece.len().min(usize::try_from(self.data_left).unwrap_or(PIECE));
            let buf = piece.get_mut(..len).unwrap_or_default();
            let failed = |error: Error| error.at(self.offset).in_member(&self.current);
            let part = self.stream.part(buf).map_err(|error| failed(error.into()))?;
            if part.is_empty() {
                return Err(failed(Error::new("the archive is truncated")));
            }
            to.write_all(part)?;
            let len = part.len() as u64;
            self.data_left -= len;
            self.offset += len;
        }
        Ok(())
    }

    /// Returns the stream after the last member.
    pub(crate) fn into_stream(self) -> S {
        self.stream
    }

    fn truncated(&self) -> Error {
        Error::new("the archive is truncated").at(self.offset)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<()> {
        let filled = fill(&mut self.stream, buf).map_err(|e| Error::from(e).at(self.offset))?;
        self.offset += filled as u64;
        if filled < buf.len() { Err(self.truncated()) } else { Ok(()) }
    }

    /// Passes over the rest of the data and the padding, which may be missing where the end mark
    /// may.
    fn pass_data(&mut self) -> Result<()> {
        let (at, all) = (self.offset, self.data_left + self.padding);
        let truncated = || Error::new("the archive is truncated after here").at(at);
        let passed = self.stream.skip(all).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => truncated(),
            _ => Error::from(error).at(at),
        })?;
        let needed = match self.end_mark {
            EndMark::Required => all,
            EndMark::Optional => self.data_left,
        };
        if passed < needed {
            return Err(truncated());
        }
        // The sizes of headers have 63 bits, and the input has as many bytes.
        self.offset = at.saturating_add(passed);
        (self.data_left, self.padding) = (0, 0);
        Ok(())
    }

    /// Returns the next block; `None` at the end mark, or at the end of the input.
    fn next_header(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let filled =
            fill(&mut self.stream, &mut block).map_err(|e| Error::from(e).at(self.offset))?;
        let at = self.offset;
        self.offset += filled as u64;
        match filled {
            0 if self.end_mark == EndMark::Optional => Ok(None),
            0 => Err(Error::new("the archive is truncated: its end mark is missing").at(at)),
            filled if filled < BLOCK => Err(self.truncated()),
            _ if block == [0; BLOCK] => Ok(None),
            _ => Ok(Some(block)),
        }
    }

    /// Returns the member of a header, or takes it as an extension.
    fn interpret(
        &mut self,
        header: &Header<'_>,
        offset: u64,
        before: &mut Extensions,
    ) -> Result<Option<Member>> {
        match header.type_flag() {
            b'x' | b'X' => {
                let mut records = self.global.clone();
                let bytes = self.extension(header, MAX_EXTENSION)?;
                records.add(&bytes)?;
                refuse_second(&before.records, "extended headers")?;
                before.records = Some(records);
            }
            b'g' => {
                let bytes = self.extension(header, MAX_GLOBAL - self.global_bytes)?;
                self.global_bytes += bytes.len() as u64;
                self.global.add(&bytes)?;
                if !self.global.sparse.is_empty() {
                    return Err(Error::new("a map of a sparse file for all members"));
                }
            }
            b'L' => {
                refuse_second(&before.long_name, "long names")?;
                before.long_name = Some(self.long_name(header)?);
            }
            b'K' => {
                refuse_second(&before.long_link, "long targets")?;
                before.long_link = Some(self.long_name(header)?);
            }
            b'V' => self.expect_data(header.size()?),
            b'M' => return Err(Error::new("a part of an archive of several volumes")),
            _ => {
                let extensions = std::mem::take(before);
                let offset = extensions.offset.unwrap_or(offset);
                return self.member(header, offset, extensions).map(Some);
            }
        }
        self.pass_data()?;
        before.offset.get_or_insert(offset);
        if matches!(header.type_flag(), b'g' | b'V') && before.is_empty() {
            before.offset = None;
        }
        Ok(None)
    }

    fn expect_data(&mut self, size: u64) {
        (self.data_left, self.padding) = (size, size.wrapping_neg() % BLOCK as u64);
    }

    /// Reads the data of an extension. Memory grows with the bytes that are there.
    fn extension(&mut self, header: &Header<'_>, limit: u64) -> Result<Vec<u8>> {
        let size = header.size()?;
        if size > limit {
            return Err(Error::new(format_args!(
                "an extension of {size} bytes; {limit} are the most"
            )));
        }
        self.expect_data(size);
        let mut bytes = Vec::new();
        (&mut self.stream).take(size).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        self.data_left -= bytes.len() as u64;
        if self.data_left > 0 { Err(self.truncated()) } else { Ok(bytes) }
    }

    fn long_name(&mut self, header: &Header<'_>) -> Result<Vec<u8>> {
        let mut name = self.extension(header, MAX_NAME)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    fn member(&mut self, header: &Header<'_>, offset: u64, before: Extensions) -> Result<Member> {
        let mut records = before.records.unwrap_or_else(|| self.global.clone());
        let plain = header.path();
        let name = records.sparse.name.take().or(records.path.take());
        let path = one_name(name, before.long_name)?.unwrap_or(plain);
        let target = one_name(records.link_path.take(), before.long_link)?;
        let result = self.member_named(header, records, target, path);
        result.map(|member| Member { offset, ..member })
    }

    fn member_named(
        &mut self,
        header: &Header<'_>,
        mut records: Records,
        target: Option<Vec<u8>>,
        path: Vec<u8>,
    ) -> Result<Member> {
        let shown = path.clone();
        let build = || -> Result<Member> {
            if path.is_empty() {
                return Err(Error::new("a member without a name"));
            }
            if path.len() > MAX_PATH {
                return Err(Error::new(format_args!(
                    "a path of {} bytes; 4095 are the most",
                    path.len()
                )));
            }
            let target = target.unwrap_or_else(|| header.link_path());
            let kind = self.kind(header, &mut records, target, path.ends_with(b"/"))?;
            let mtime = match records.mtime {
                Some(mtime) => mtime,
                None => Timestamp::new(header.mtime()?, 0),
            };
            Ok(Member {
                offset: 0,
                path,
                kind,
                mode: header.mode()?,
                uid: id("user", records.uid.map_or_else(|| header.uid(), Ok)?)?,
                gid: id("group", records.gid.map_or_else(|| header.gid(), Ok)?)?,
                user: records.user.unwrap_or_else(|| header.user().to_vec()),
                group: records.group.unwrap_or_else(|| header.group().to_vec()),
                mtime,
                xattrs: records.xattrs,
                acl_access: records.acl_access,
                acl_default: records.acl_default,
            })
        };
        build().map_err(|error| error.in_member(&shown))
    }

    fn kind(
        &mut self,
        header: &Header<'_>,
        records: &mut Records,
        target: Vec<u8>,
        is_named_directory: bool,
    ) -> Result<MemberKind> {
        let size = stored_size(header, records)?;
        let device = || -> Result<(u32, u32)> {
            let (major, minor) = header.device()?;
            let numbers = (records.major.unwrap_or(major), records.minor.unwrap_or(minor));
            let number =
                |number| u32::try_from(number).map_err(|_| "a device number beyond 32 bits");
            Ok((number(numbers.0).map_err(Error::new)?, number(numbers.1).map_err(Error::new)?))
        };
        let kind = match header.type_flag() {
            b'0' | b'7' | 0 if is_named_directory => MemberKind::Directory,
            b'0' | b'7' | 0 => return self.file(size, std::mem::take(&mut records.sparse)),
            b'S' if header.is_gnu() => return self.gnu_sparse(header, size),
            b'1' => MemberKind::HardLink(target),
            b'2' => MemberKind::Symlink(target),
            b'3' => device().map(|(major, minor)| MemberKind::CharDevice(major, minor))?,
            b'4' => device().map(|(major, minor)| MemberKind::BlockDevice(major, minor))?,
            b'5' => MemberKind::Directory,
            // The names in a directory, in an incremental backup.
            b'D' => {
                self.expect_data(size);
                return Ok(MemberKind::Directory);
            }
            b'6' => MemberKind::Fifo,
            other => {
                let shown = other.escape_ascii();
                return Err(Error::new(format_args!("the type `{shown}` is not known")));
            }
        };
        if size > 0 {
            let cause = "a member that is no regular file has content, which some readers take as \
                 the next header";
            return Err(Error::new(cause));
        }
        Ok(kind)
    }

    fn file(&mut self, stored: u64, sparse: sparse::PaxSparse) -> Result<MemberKind> {
        self.expect_data(stored);
        let (size, ranges) = match sparse.place()? {
            MapPlace::None => {
                let data = FileData { size: stored, offset: self.offset, stored, ranges: None };
                return Ok(MemberKind::File(data));
            }
            MapPlace::Header(size, ranges) => (size, ranges),
            MapPlace::Data(size) => {
                let limit = MAX_RANGES.min(stored / 4);
                (size, sparse::read_map(limit, || self.map_block())?)
            }
        };
        self.sparse_file(size, ranges)
    }

    /// Reads a block of the map before the data.
    fn map_block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        let left = self.data_left.checked_sub(BLOCK as u64);
        self.data_left = left.ok_or_else(|| Error::new("the map exceeds the sparse file"))?;
        self.read_exact(&mut block)?;
        Ok(block)
    }

    fn gnu_sparse(&mut self, header: &Header<'_>, stored: u64) -> Result<MemberKind> {
        let (mut ranges, mut continued, size) = header.sparse()?;
        while continued {
            let mut block = [0; BLOCK];
            self.read_exact(&mut block)?;
            let (more, next) = header::sparse_block(&block)?;
            ranges.extend(more);
            continued = next;
            if ranges.len() as u64 > MAX_RANGES {
                return Err(Error::new("more than 4194304 ranges of a sparse file"));
            }
        }
        self.expect_data(stored);
        self.sparse_file(size, ranges)
    }

    fn sparse_file(&mut self, size: u64, mut ranges: Vec<Range>) -> Result<MemberKind> {
        let stored = self.data_left;
        sparse::check(&mut ranges, size, stored)?;
        let data = FileData { size, offset: self.offset, stored, ranges: Some(ranges) };
        Ok(MemberKind::File(data))
    }
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.long_name.is_none() && self.long_link.is_none() && self.records.is_none()
    }
}

fn refuse_second<T>(first: &Option<T>, name: &str) -> Result<()> {
    match first {
        Some(_) => Err(Error::new(format_args!("two {name} for one member"))),
        None => Ok(()),
    }
}

/// Returns the name of the records, or that of GNU; they must not contradict each other.
fn one_name(record: Option<Vec<u8>>, long: Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match (record, long) {
        (Some(record), Some(long)) if record != long => Err(Error::new(format_args!(
            "the member has two names: {} and {}",
            Printable(&record),
            Printable(&long)
        ))),
        (record, long) => Ok(record.or(long)),
    }
}

/// Returns the bytes of data in the archive. A size in the records counts; that in the header must
/// be the same, unless it is too large for the header.
fn stored_size(header: &Header<'_>, records: &Records) -> Result<u64> {
    let plain = header.size()?;
    let Some(size) = records.size else { return Ok(plain) };
    if i64::try_from(size).is_err() {
        return Err(Error::new(format_args!("a size of {size} bytes, beyond 63 bits")));
    }
    if plain == size || plain == 0 || size >= OCTAL_END || header.size_is_full() {
        return Ok(size);
    }
    Err(Error::new(format_args!(
        "the size is {plain} in the header and {size} in its extension, so programs read different \
         members"
    )))
}

fn id(name: &str, number: u64) -> Result<u32> {
    let number = u32::try_from(number).ok().filter(|number| *number != u32::MAX);
    number.ok_or_else(|| Error::new(format_args!("the {name} has a number beyond 32 bits")))
}
