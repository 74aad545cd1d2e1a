//! Out of an image into a tar archive: POSIX (PAX), with extended attributes, times to the
//! nanosecond and sparse files.

use super::dest::next_data;
use super::job::{Copied, Job};
use crate::walk::{Step, Walk};
use extant_engine::{Attr, File as ImageFile, FileType, Fs, Node, OpenFlags};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use tar::{Builder, EntryType, Header};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Lengths of a name and of a link's target that every header has room for.
const SHORT: usize = 100;

/// The largest number in eleven octal digits.
const OCTAL_MAX: u64 = (1 << 33) - 1;

/// The largest user or group in seven octal digits.
const OCTAL_ID_MAX: u32 = (1 << 21) - 1;

/// Name in the header of a sparse file, whose record has the real name.
const SPARSE_NAME: &str = "GNUSparseFile.0/";

/// Records of one entry.
type Records = Vec<(String, Vec<u8>)>;

/// Writes the tree below `top` into an archive; the top itself is `name`.
pub fn write(fs: &Fs, top: Node, name: &[u8], out: impl Write, job: &Job<'_>) -> io::Result<()> {
    let mut archive = Archive { fs, job, builder: Builder::new(out), first: HashMap::new() };
    let mut walk = Walk::new(fs, top, None);
    // The directories from the top down to the one that the walk is in.
    let mut above: Vec<Arc<Member>> = Vec::new();
    while let Some(step) = walk.step() {
        match step {
            Step::Found(item) => {
                above.truncate(item.depth);
                let own = if item.depth == 0 { name } else { &item.name };
                let member = Member { above: above.last().cloned(), name: own.into() };
                above.extend(archive.add(member, &item.node)?.map(Arc::new));
            }
            Step::Left(_) => {}
            Step::Problem(problem) => job.problem(walk.path(), problem),
        }
    }
    archive.builder.finish()?;
    archive.builder.get_mut().flush()
}

/// A member of the archive by its name and the directory above it. Whole paths of a deep tree would
/// take memory in proportion to the square of its depth.
struct Member {
    above: Option<Arc<Member>>,
    name: Box<[u8]>,
}

impl Member {
    fn path(&self) -> Vec<u8> {
        let mut names = vec![&*self.name];
        let mut at = self;
        while let Some(above) = &at.above {
            names.push(&above.name);
            at = above;
        }
        names.reverse();
        names.join(&b'/')
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

struct Archive<'a, W: Write> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    builder: Builder<W>,
    /// The member of each inode but directories. An inode may have more names than it counts links,
    /// so all are remembered.
    first: HashMap<u64, Member>,
}

impl<W: Write> Archive<'_, W> {
    /// Adds one entry; returns it if it is a directory. Reports a failed read of the image and
    /// continues. Returns only errors of the archive itself.
    fn add(&mut self, member: Member, node: &Node) -> io::Result<Option<Member>> {
        let (attr, path) = (node.attr(), member.path());
        if attr.ftype == FileType::Directory {
            self.add_new(&path, node, &attr)?;
            return Ok(Some(member));
        }
        if let Some(first) = self.first.get(&attr.ino).map(Member::path) {
            self.job.done(Copied::Other, || path.clone());
            let entry = NewEntry {
                path: &path,
                attr: &attr,
                kind: EntryType::Link,
                target: Some(&first),
                records: Vec::new(),
                size: 0,
            };
            self.append(entry, &mut io::empty())?;
        } else if self.add_new(&path, node, &attr)? {
            // Further names lead to a member only if it is in the archive.
            self.first.insert(attr.ino, member);
        }
        Ok(None)
    }

    /// Adds a file that is not in the archive yet; false if it was left out.
    fn add_new(&mut self, path: &[u8], node: &Node, attr: &Attr) -> io::Result<bool> {
        let Some(records) = self.job.check(|| path.to_vec(), xattrs(self.fs, node)) else {
            return Ok(false);
        };
        let (kind, copied) = match attr.ftype {
            FileType::Regular => return self.file(path, node, attr, records),
            FileType::Directory => (EntryType::Directory, Copied::Directory),
            FileType::Symlink => (EntryType::Symlink, Copied::Other),
            FileType::CharDevice => (EntryType::Char, Copied::Other),
            FileType::BlockDevice => (EntryType::Block, Copied::Other),
            FileType::Fifo => (EntryType::Fifo, Copied::Other),
            FileType::Socket | FileType::Unknown => {
                self.job.problem(path, "an archive cannot hold this type");
                return Ok(false);
            }
        };
        let target = match kind {
            EntryType::Symlink => match self.job.check(|| path.to_vec(), self.fs.read_link(node)) {
                Some(target) => Some(target),
                None => return Ok(false),
            },
            _ => None,
        };
        self.job.done(copied, || path.to_vec());
        let entry = NewEntry { path, attr, kind, target: target.as_deref(), records, size: 0 };
        self.append(entry, &mut io::empty())?;
        Ok(true)
    }

    fn file(
        &mut self,
        path: &[u8],
        node: &Node,
        attr: &Attr,
        mut records: Records,
    ) -> io::Result<bool> {
        let opened = self.fs.open_file(node, OpenFlags { direct: true, ..OpenFlags::default() });
        let Some(file) = self.job.check(|| path.to_vec(), opened) else { return Ok(false) };
        let Some(parts) = self.job.check(|| path.to_vec(), parts(&file)) else { return Ok(false) };
        let end = file.len();
        let map = match parts[..] {
            [(0, stop)] if stop == end => Vec::new(),
            [] if end == 0 => Vec::new(),
            _ => sparse_map(&parts, end),
        };
        let stored: u64 =
            parts.iter().map(|(start, stop)| stop - start).sum::<u64>() + map.len() as u64;
        let data = stored - map.len() as u64;
        if self.job.check(|| path.to_vec(), self.job.admit(data)).is_none() {
            return Ok(false);
        }
        let name = if map.is_empty() {
            path.to_vec()
        } else {
            records.push(("GNU.sparse.major".into(), b"1".to_vec()));
            records.push(("GNU.sparse.minor".into(), b"0".to_vec()));
            records.push(("GNU.sparse.name".into(), path.to_vec()));
            records.push(("GNU.sparse.realsize".into(), end.to_string().into_bytes()));
            [SPARSE_NAME.as_bytes(), path.rsplit(|b| *b == b'/').next().unwrap_or(b"file")].concat()
        };
        let content = Content { file: &file, parts: &parts, at: 0, part: 0, failed: None };
        let mut data = io::Cursor::new(map).chain(content);
        let kind = EntryType::Regular;
        let entry = NewEntry { path: &name, attr, kind, target: None, records, size: stored };
        self.append(entry, &mut data)?;
        let (_, content) = data.into_inner();
        match content.failed {
            // The header had promised bytes; zeroes stand for them.
            Some(error) => {
                self.job.problem(path, format_args!("{error}; zeroes stand in the archive instead"))
            }
            None => self.job.done(Copied::File, || path.to_vec()),
        }
        self.job.bytes(stored);
        Ok(true)
    }

    fn append(&mut self, entry: NewEntry<'_>, data: &mut dyn Read) -> io::Result<()> {
        let NewEntry { path, attr, kind, target, mut records, size } = entry;
        let path = if kind == EntryType::Directory { [path, b"/"].concat() } else { path.to_vec() };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(u32::from(attr.mode) & 0o7777);
        put_text(&mut header.as_old_mut().name, &path, "path", &mut records);
        if let Some(target) = target {
            put_text(&mut header.as_old_mut().linkname, target, "linkpath", &mut records);
        }
        put_numbers(&mut header, attr, size, &mut records)?;
        if !records.is_empty() {
            self.builder.append_pax_extensions(
                records.iter().map(|(key, value)| (key.as_str(), value.as_slice())),
            )?;
        }
        header.set_cksum();
        self.builder.append(&header, data)
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

/// Returns extended attributes as records, ACLs also as the text that tar programs restore.
fn xattrs(fs: &Fs, node: &Node) -> extant_engine::Result<Records> {
    let mut records = Vec::new();
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
            _ => tracing::warn!("an attribute whose name an archive cannot hold was left out"),
        }
    }
    Ok(records)
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

/// Returns the ranges of a file that have data.
fn parts(file: &ImageFile) -> extant_engine::Result<Vec<(u64, u64)>> {
    let end = file.len();
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some((start, stop)) = next_data(file, at, end)? {
        parts.push((start, stop));
        at = stop;
    }
    Ok(parts)
}

/// Returns the map that stands before the data of a sparse file: the number of its ranges and each
/// one's offset and length, a line each, filled up to whole records of the archive. It ends with an
/// empty range at the end of the file.
fn sparse_map(parts: &[(u64, u64)], end: u64) -> Vec<u8> {
    const RECORD: usize = 512;
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

/// The data of a file, one range after the other. After an error it is zeroes.
struct Content<'a> {
    file: &'a ImageFile,
    parts: &'a [(u64, u64)],
    /// Bytes of the current part that were read.
    at: u64,
    part: usize,
    failed: Option<String>,
}

impl Read for Content<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some((start, stop)) = self.parts.get(self.part).copied() else { return Ok(0) };
            let left = stop - start - self.at;
            if left == 0 {
                (self.part, self.at) = (self.part + 1, 0);
                continue;
            }
            let want = buf.len().min(PIECE).min(usize::try_from(left).unwrap_or(PIECE));
            let len = match &self.failed {
                Some(_) => 0,
                None => self.file.read_at(start + self.at, &mut buf[..want]).unwrap_or_else(|e| {
                    self.failed = Some(e.to_string());
                    0
                }),
            };
            if len == 0 && want > 0 {
                self.failed.get_or_insert_with(|| "content ends early".into());
                buf[..want].fill(0);
                self.at += want as u64;
                return Ok(want);
            }
            self.at += len as u64;
            return Ok(len);
        }
    }
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
