//! Out of an image into a tar archive: POSIX (PAX), with extended attributes, times to the
//! nanosecond and sparse files.
//!
//! Entries stand in the order of their names, and threads only read ahead: the bytes depend on the
//! tree alone.

use super::content::{Content, Range, pieces};
use super::job::{Copied, Job};
use super::tree::{Entry, Member, SMALL, Tree};
use crate::text::shown;
use extant_engine::{Attr, FileType, Fs, Node, Timestamp};
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use tar::{Builder, EntryType, Header};

/// Bytes of a record of the archive.
const RECORD: usize = 512;

/// Lengths of a name and of a link's target that every header has room for.
const SHORT: usize = 100;

/// The largest number in eleven octal digits.
const OCTAL_MAX: u64 = (1 << 33) - 1;

/// The largest user or group in seven octal digits.
const OCTAL_ID_MAX: u32 = (1 << 21) - 1;

/// Name in the header of a sparse file, whose record has the real name.
const SPARSE_NAME: &str = "GNUSparseFile.0/";

/// Begin of the names that remove names of lower layers.
pub const WHITEOUT: &[u8] = b".wh.";

/// Begins of the records of attributes by which overlayfs, and readers of layers, know removed
/// names and directories.
const OVERLAY: [&str; 2] = ["SCHILY.xattr.trusted.overlay.", "SCHILY.xattr.user.overlay."];

/// Records of one entry.
type Records = Vec<(String, Vec<u8>)>;

/// Form of an archive.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whether this is a layer of an OCI image: holes are zeroes, since few programs know another
    /// form, and no name may begin with `.wh.`, since that removes another name.
    pub layer: bool,
    /// The latest time of an entry, in seconds since 1970; later ones are lowered to it.
    pub latest: Option<i64>,
}

/// All of a tree, as GNU tar and bsdtar restore it.
pub const PLAIN: Style = Style { layer: false, latest: None };

/// Writes a tree into an archive. Returns the latest time of an entry, in seconds since 1970.
///
/// # Errors
/// Those of `out`. An entry that cannot be read is a problem of the job.
pub fn write(tree: &Tree<'_>, style: Style, out: impl Write) -> io::Result<i64> {
    let mut archive = Archive::new(tree.fs, tree.job, style, out);
    let ahead = |entry: &Entry| (!entry.again).then(|| prepare((tree.fs, tree.job), entry, style));
    tree.each(
        // Records of hostile size are read again when it is their turn: memory is bounded.
        |entry| ahead(entry).filter(|made| made.as_ref().map_or(true, Prepared::is_small)),
        |entry, prepared| archive.add(entry, prepared),
    )?;
    archive.finish()
}

/// All of an entry but the content of large files.
pub struct Prepared {
    records: Records,
    /// Target of a symlink.
    target: Option<Vec<u8>>,
    content: Option<Content>,
    /// The content of a small file.
    data: Option<Result<Vec<u8>, String>>,
}

impl Prepared {
    /// Returns whether it takes little memory besides the content of a small file.
    pub fn is_small(&self) -> bool {
        const MAX_RECORDS: usize = 64 << 10;
        self.records.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
            <= MAX_RECORDS
    }
}

/// Reads an entry: its attributes and its content, if that is small.
///
/// # Errors
/// The reason why the entry cannot be in the archive.
pub fn prepare(
    (fs, job): (&Fs, &Job<'_>),
    entry: &Entry,
    style: Style,
) -> Result<Prepared, String> {
    let text = |e: extant_engine::Error| e.to_string();
    let (records, left_out) = xattrs(fs, &entry.node).map_err(text)?;
    for name in left_out {
        let name = shown(&name);
        let cause = format_args!("an archive cannot hold the attribute {name}; it is left out");
        job.problem(&entry.path(), cause);
    }
    if style.layer {
        check_for_layer(&entry.attr, &records)?;
    }
    let mut prepared = Prepared { records, target: None, content: None, data: None };
    match entry.attr.ftype {
        FileType::Symlink => {
            let target = fs.read_link(&entry.node).map_err(text)?;
            if target.is_empty() || target.contains(&0) {
                return Err("corrupt: the symlink has no valid target; `e2fsck -fy` on a copy of \
                            the image removes it"
                    .into());
            }
            prepared.target = Some(target);
        }
        FileType::Regular => {
            let content = Content::open(fs, &entry.node).map_err(text)?;
            if content.len <= SMALL && job.budget().admits(content.stored()) {
                let read = |range: &Range| content.read(*range);
                let ranges = stored_ranges(&content, style);
                let data: Result<Vec<_>, _> = ranges.iter().map(read).collect();
                prepared.data = Some(data.map(|parts| parts.concat()));
            }
            prepared.content = Some(content);
        }
        FileType::Socket | FileType::Unknown => {
            return Err("an archive cannot hold this type".into());
        }
        _ => {}
    }
    Ok(prepared)
}

/// Refuses entries that stand for the removal of others in a layer, as overlayfs has them.
fn check_for_layer(attr: &Attr, records: &Records) -> Result<(), String> {
    if attr.ftype == FileType::CharDevice && attr.rdev == (0, 0) {
        return Err("a layer cannot hold the device 0:0, which removes its name there".into());
    }
    let is_overlay = |key: &&String| OVERLAY.iter().any(|prefix| key.starts_with(prefix));
    match records.iter().map(|(key, _)| key).find(is_overlay) {
        Some(key) => {
            let name = key.trim_start_matches("SCHILY.xattr.");
            Err(format!(
                "a layer cannot hold the attribute {}, which overlayfs takes for its own",
                shown(name.as_bytes())
            ))
        }
        None => Ok(()),
    }
}

/// Returns the ranges of a file whose bytes are in the archive.
fn stored_ranges(content: &Content, style: Style) -> Vec<Range> {
    match content.len {
        0 => Vec::new(),
        len if style.layer => vec![(0, len)],
        _ => content.parts.clone(),
    }
}

/// An entry without its content.
struct NewEntry<'a> {
    path: &'a [u8],
    attr: &'a Attr,
    kind: EntryType,
    /// Target of a link.
    target: Option<&'a [u8]>,
    records: Records,
    /// Bytes of content.
    size: u64,
}

/// An archive that is being written.
pub struct Archive<'a, W: Write> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    style: Style,
    builder: Builder<W>,
    /// The member of each inode but directories.
    first: HashMap<u64, Arc<Member>>,
    newest: i64,
}

impl<'a, W: Write> Archive<'a, W> {
    /// Begins an archive.
    pub fn new(fs: &'a Fs, job: &'a Job<'a>, style: Style, out: W) -> Archive<'a, W> {
        let (builder, first) = (Builder::new(out), HashMap::new());
        Archive { fs, job, style, builder, first, newest: i64::MIN }
    }

    /// Ends the archive. Returns the latest time of an entry.
    pub fn finish(mut self) -> io::Result<i64> {
        self.builder.finish()?;
        self.builder.get_mut().flush()?;
        Ok(self.newest)
    }

    /// Adds one entry, prepared or not. Reports a failed read of the image and continues. Returns
    /// only errors of the archive itself.
    pub fn add(
        &mut self,
        entry: Entry,
        prepared: Option<Result<Prepared, String>>,
    ) -> io::Result<()> {
        let path = entry.path();
        if self.style.layer && path.split(|b| *b == b'/').any(|name| name.starts_with(WHITEOUT)) {
            self.job.problem(&path, "a layer cannot hold names that begin with .wh.");
            return Ok(());
        }
        if let Some(first) = self.first.get(&entry.attr.ino).map(|first| first.path()) {
            self.job.done(Copied::Other, || path.clone());
            let (kind, target) = (EntryType::Link, Some(first.as_slice()));
            let (attr, records) = (&entry.attr, Vec::new());
            return self.append(NewEntry { path: &path, attr, kind, target, records, size: 0 });
        }
        let prepared = prepared.unwrap_or_else(|| prepare((self.fs, self.job), &entry, self.style));
        let Some(prepared) = self.job.check(|| path.clone(), prepared) else { return Ok(()) };
        // Further names lead to a member only if it is in the archive.
        if self.add_new(&path, &entry.attr, prepared)? && entry.attr.ftype != FileType::Directory {
            self.first.insert(entry.attr.ino, entry.member);
        }
        Ok(())
    }

    /// Adds a file that is not in the archive yet; false if it was left out.
    fn add_new(&mut self, path: &[u8], attr: &Attr, prepared: Prepared) -> io::Result<bool> {
        let (kind, copied) = match attr.ftype {
            FileType::Directory => (EntryType::Directory, Copied::Directory),
            FileType::Symlink => (EntryType::Symlink, Copied::Other),
            FileType::CharDevice => (EntryType::Char, Copied::Other),
            FileType::BlockDevice => (EntryType::Block, Copied::Other),
            FileType::Fifo => (EntryType::Fifo, Copied::Other),
            FileType::Regular | FileType::Socket | FileType::Unknown => {
                return self.file(path, attr, prepared);
            }
        };
        self.job.done(copied, || path.to_vec());
        let (target, records) = (prepared.target.as_deref(), prepared.records);
        self.append(NewEntry { path, attr, kind, target, records, size: 0 })?;
        Ok(true)
    }

    fn file(&mut self, path: &[u8], attr: &Attr, prepared: Prepared) -> io::Result<bool> {
        let Prepared { mut records, content: Some(content), data, .. } = prepared else {
            return Ok(false);
        };
        let ranges = stored_ranges(&content, self.style);
        let stored = ranges.iter().map(|(start, stop)| stop - start).sum::<u64>();
        let budget = self.job.budget();
        let admitted = budget.admit(content.stored());
        let admitted = admitted.and_then(|()| budget.admit_holes(stored - content.stored()));
        if self.job.check(|| path.to_vec(), admitted).is_none() {
            return Ok(false);
        }
        let map = match ranges[..] {
            [(0, stop)] if stop == content.len => Vec::new(),
            [] if content.len == 0 => Vec::new(),
            _ => sparse_map(&ranges, content.len),
        };
        let name = if map.is_empty() {
            path.to_vec()
        } else {
            records.push(("GNU.sparse.major".into(), b"1".to_vec()));
            records.push(("GNU.sparse.minor".into(), b"0".to_vec()));
            records.push(("GNU.sparse.name".into(), path.to_vec()));
            records.push(("GNU.sparse.realsize".into(), content.len.to_string().into_bytes()));
            [SPARSE_NAME.as_bytes(), path.rsplit(|b| *b == b'/').next().unwrap_or(b"file")].concat()
        };
        let (kind, size) = (EntryType::Regular, stored + map.len() as u64);
        self.append(NewEntry { path: &name, attr, kind, target: None, records, size })?;
        self.builder.get_mut().write_all(&map)?;
        match self.content(&content, &ranges, data, stored)? {
            // The header had promised bytes; zeroes stand for them.
            Some(error) => {
                self.job.problem(path, format_args!("{error}; zeroes stand in the archive instead"))
            }
            None => self.job.done(Copied::File, || path.to_vec()),
        }
        self.job.bytes(stored);
        Ok(true)
    }

    /// Writes the content of a file, `data` if that was read before. Returns the first error of
    /// reading; zeroes take the place of bytes that cannot be read.
    fn content(
        &mut self,
        content: &Content,
        ranges: &[Range],
        data: Option<Result<Vec<u8>, String>>,
        stored: u64,
    ) -> io::Result<Option<String>> {
        let out = self.builder.get_mut();
        let mut failed = None;
        let mut put = |(len, data): (u64, Result<Vec<u8>, String>)| match data {
            Ok(data) => out.write_all(&data),
            Err(error) => {
                failed.get_or_insert(error);
                io::copy(&mut io::Read::take(io::repeat(0), len), out).map(drop)
            }
        };
        match data {
            Some(data) => put((stored, data))?,
            None => {
                let read = |range: Range| (range.1 - range.0, content.read(range));
                content.each(self.job.threads(), pieces(ranges), read, put)?;
            }
        }
        let rest = stored.next_multiple_of(RECORD as u64) - stored;
        io::copy(&mut io::Read::take(io::repeat(0), rest), self.builder.get_mut())?;
        Ok(failed)
    }

    /// Adds the marker of a removal from lower layers: an empty file.
    pub fn marker(&mut self, path: &[u8]) -> io::Result<()> {
        let (mut header, mut records) = (Header::new_ustar(), Records::new());
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        put_text(&mut header.as_old_mut().name, path, "path", &mut records);
        self.put_header(header, &records)
    }

    fn append(&mut self, entry: NewEntry<'_>) -> io::Result<()> {
        let NewEntry { path, attr, kind, target, mut records, size } = entry;
        let path = if kind == EntryType::Directory { [path, b"/"].concat() } else { path.to_vec() };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(u32::from(attr.mode) & 0o7777);
        put_text(&mut header.as_old_mut().name, &path, "path", &mut records);
        if let Some(target) = target {
            put_text(&mut header.as_old_mut().linkname, target, "linkpath", &mut records);
        }
        let mut attr = *attr;
        if let Some(latest) = self.style.latest.filter(|latest| attr.mtime.sec >= *latest) {
            attr.mtime = Timestamp { sec: latest, nsec: 0 };
        }
        self.newest = self.newest.max(attr.mtime.sec);
        put_numbers(&mut header, &attr, size, &mut records)?;
        self.put_header(header, &records)
    }

    fn put_header(&mut self, mut header: Header, records: &Records) -> io::Result<()> {
        if !records.is_empty() {
            self.builder.append_pax_extensions(
                records.iter().map(|(key, value)| (key.as_str(), value.as_slice())),
            )?;
        }
        header.set_cksum();
        self.builder.get_mut().write_all(header.as_bytes())
    }
}

/// Writes a text into its field, or into a record if the field is too short.
fn put_text(field: &mut [u8; SHORT], text: &[u8], key: &str, records: &mut Records) {
    let fits = text.len().min(SHORT);
    field[..fits].copy_from_slice(&text[..fits]);
    if text.len() > SHORT {
        records.push((key.into(), text.to_vec()));
    }
}

/// Writes size, owner, time and device number; uses records for values that exceed their fields.
fn put_numbers(
    header: &mut Header,
    attr: &Attr,
    size: u64,
    records: &mut Records,
) -> io::Result<()> {
    let mut record = |key: &str, value: String| records.push((key.into(), value.into_bytes()));
    header.set_size(size.min(OCTAL_MAX));
    if size > OCTAL_MAX {
        record("size", size.to_string());
    }
    header.set_uid(attr.uid.min(OCTAL_ID_MAX).into());
    header.set_gid(attr.gid.min(OCTAL_ID_MAX).into());
    if attr.uid > OCTAL_ID_MAX {
        record("uid", attr.uid.to_string());
    }
    if attr.gid > OCTAL_ID_MAX {
        record("gid", attr.gid.to_string());
    }
    let whole = u64::try_from(attr.mtime.sec).ok().filter(|sec| *sec <= OCTAL_MAX);
    header.set_mtime(whole.unwrap_or(0));
    if whole.is_none() || attr.mtime.nsec > 0 {
        record("mtime", decimal_time(attr.mtime.sec, attr.mtime.nsec));
    }
    if matches!(attr.ftype, FileType::CharDevice | FileType::BlockDevice) {
        header.set_device_major(attr.rdev.0)?;
        header.set_device_minor(attr.rdev.1)?;
    }
    Ok(())
}

/// Formats seconds with a fraction. Nanoseconds count forward from the whole second, before 1970
/// too.
fn decimal_time(sec: i64, nsec: u32) -> String {
    match (sec, nsec) {
        (sec, 0) => sec.to_string(),
        (sec, nsec) if sec >= 0 => format!("{sec}.{nsec:09}"),
        (sec, nsec) => {
            format!("-{}.{:09}", (sec + 1).unsigned_abs(), 1_000_000_000 - nsec.min(999_999_999))
        }
    }
}

/// Returns extended attributes as records, ACLs also as the text that tar programs restore, and the
/// names of those that have no place in a record.
fn xattrs(fs: &Fs, node: &Node) -> extant_engine::Result<(Records, Vec<Vec<u8>>)> {
    let (mut records, mut left_out) = (Vec::new(), Vec::new());
    for name in fs.list_xattrs(node)? {
        let value = fs.get_xattr(node, &name)?;
        let acl = match name.as_slice() {
            b"system.posix_acl_access" => Some("SCHILY.acl.access"),
            b"system.posix_acl_default" => Some("SCHILY.acl.default"),
            _ => None,
        };
        if let Some((key, text)) = acl.zip(acl_text(&value)) {
            records.push((key.into(), text.into_bytes()));
        }
        // A key that is no UTF-8, or would end early, has no place in a record.
        match String::from_utf8(name) {
            Ok(name) if !name.contains('=') => {
                records.push((format!("SCHILY.xattr.{name}"), value))
            }
            Ok(name) => left_out.push(name.into_bytes()),
            Err(error) => left_out.push(error.into_bytes()),
        }
    }
    Ok((records, left_out))
}

/// Formats an ACL, given as the value of its attribute, as text with numeric ids:
/// `user::rw-,user:7:r--,group::r--,mask::r--,other::---`.
fn acl_text(value: &[u8]) -> Option<String> {
    const VERSION: [u8; 4] = 2u32.to_le_bytes();
    let entries = value.strip_prefix(&VERSION)?;
    let mut parts = Vec::new();
    for entry in entries.chunks(8) {
        let [tag, tag_high, perm, _, id @ ..] = entry else { return None };
        let id = u32::from_le_bytes(id.try_into().ok()?);
        let who = match u16::from_le_bytes([*tag, *tag_high]) {
            0x01 => "user:".into(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".into(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".into(),
            0x20 => "other:".into(),
            _ => return None,
        };
        let letter = |bit, letter| if perm & bit != 0 { letter } else { '-' };
        parts.push(format!("{who}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x')));
    }
    Some(parts.join(","))
}

/// Returns the map that stands before the data of a sparse file: the number of its ranges and each
/// one's offset and length, a line each, filled up to whole records of the archive. It ends with an
/// empty range at the end of the file.
fn sparse_map(parts: &[(u64, u64)], end: u64) -> Vec<u8> {
    let closing = parts.last().is_none_or(|(_, stop)| *stop < end).then_some((end, end));
    let ranges = || parts.iter().copied().chain(closing);
    let mut map = format!("{}\n", ranges().count());
    for (start, stop) in ranges() {
        map.push_str(&format!("{start}\n{}\n", stop - start));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(RECORD), 0);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fraction() {
        assert_eq!(decimal_time(5, 0), "5");
        assert_eq!(decimal_time(5, 7), "5.000000007");
        assert_eq!(decimal_time(-1, 500_000_000), "-0.500000000");
        assert_eq!(decimal_time(-2, 900_000_000), "-1.100000000");
    }

    #[test]
    fn acls_are_text() {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in [
            (1u16, 6u16, u32::MAX),
            (2, 5, 7),
            (4, 4, u32::MAX),
            (8, 1, 9),
            (16, 7, u32::MAX),
            (32, 0, 0),
        ] {
            value.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        let text = "user::rw-,user:7:r-x,group::r--,group:9:--x,mask::rwx,other::---";
        assert_eq!(acl_text(&value).as_deref(), Some(text));
        assert_eq!(acl_text(&value[..11]), None);
        assert_eq!(acl_text(b"\x01\0\0\0"), None);
    }

    #[test]
    fn maps_fill_records() {
        let map = sparse_map(&[(0, 10), (4096, 5000)], 10_000);
        assert_eq!(map.len(), 512);
        assert!(map.starts_with(b"3\n0\n10\n4096\n904\n10000\n0\n\0"));
    }
}
