//! POSIX access control lists: the on-disk form (version 1), the form that system calls carry as an
//! attribute (version 2), and the correspondence between lists and mode bits.
//!
//! # Invariants
//! A parsed [`Acl`] is valid: owner, owning group and others occur exactly once each, entries are
//! sorted, no named user or group occurs twice, and a list with a named entry has a mask.

use crate::bytes::{le16, le32, put_le16, put_le32};
use crate::error::{Corrupt, Result};

const VERSION_DISK: u32 = 1;
const VERSION_XATTR: u32 = 2;
const HEADER: usize = 4;
const SHORT_ENTRY: usize = 4;
const LONG_ENTRY: usize = 8;
/// The id in version 2 entries of tags without an id.
const NO_ID: u32 = 0xFFFF_FFFF;

/// Permission bits: read 4, write 2, execute 1.
const PERM_MASK: u16 = 7;

/// The subject of an entry. The order of variants is the order of entries in a list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A user.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A group.
    Group(u32),
    /// The upper bound of the permissions of named users, named groups and the owning group.
    Mask,
    /// All others.
    Other,
}

/// The owners of a file, as in its inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOwner {
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
}

impl Tag {
    fn from_raw(tag: u16, id: u32) -> Option<Tag> {
        Some(match tag {
            0x01 => Tag::UserObj,
            0x02 => Tag::User(id),
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group(id),
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        })
    }

    const fn to_raw(self) -> (u16, Option<u32>) {
        match self {
            Tag::UserObj => (0x01, None),
            Tag::User(id) => (0x02, Some(id)),
            Tag::GroupObj => (0x04, None),
            Tag::Group(id) => (0x08, Some(id)),
            Tag::Mask => (0x10, None),
            Tag::Other => (0x20, None),
        }
    }

    const fn is_named(self) -> bool {
        matches!(self, Tag::User(_) | Tag::Group(_))
    }
}

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// The subject.
    pub tag: Tag,
    /// Permissions: read 4, write 2, execute 1.
    pub perm: u16,
}

/// An access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

#[cold]
fn bad(field: &'static str, found: u64) -> Corrupt {
    Corrupt::new("access control list").field(field).found(found)
}

fn decode_entry(bytes: &[u8]) -> Result<AclEntry> {
    let (tag, perm) = (le16(bytes, 0), le16(bytes, 2));
    let tag = Tag::from_raw(tag, le32(bytes, SHORT_ENTRY)).ok_or_else(|| bad("tag", tag.into()))?;
    if perm & !PERM_MASK != 0 {
        return Err(bad("permissions", perm.into()));
    }
    Ok(AclEntry { tag, perm })
}

fn body(bytes: &[u8], version: u32) -> Result<&[u8]> {
    match bytes.get(HEADER..) {
        Some(rest) if le32(bytes, 0) == version => Ok(rest),
        _ => Err(bad("version", le32(bytes, 0).into())),
    }
}

fn header(version: u32) -> Vec<u8> {
    version.to_le_bytes().to_vec()
}

impl Acl {
    /// Makes a list of these entries and sorts them.
    ///
    /// # Errors
    /// [`Corrupt`] if the entries do not make a valid list.
    pub fn new(mut entries: Vec<AclEntry>) -> Result<Acl> {
        entries.sort_by_key(|entry| entry.tag);
        let acl = Acl { entries };
        acl.check()?;
        Ok(acl)
    }

    /// Returns the list that grants the same permissions as a mode.
    pub fn from_mode(mode: u16) -> Acl {
        let entry = |tag, shift: u32| AclEntry { tag, perm: mode >> shift & PERM_MASK };
        Acl { entries: vec![entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)] }
    }

    fn check(&self) -> Result<()> {
        for tag in [Tag::UserObj, Tag::GroupObj, Tag::Other] {
            let count = self.entries.iter().filter(|entry| entry.tag == tag).count();
            if count != 1 {
                return Err(bad("base entries", count as u64));
            }
        }
        if let Some(entry) = self.entries.iter().find(|entry| entry.perm & !PERM_MASK != 0) {
            return Err(bad("permissions", entry.perm.into()));
        }
        let ordered = self.entries.is_sorted_by(|a, b| a.tag < b.tag);
        if !ordered {
            return Err(bad("entries out of order", self.entries.len() as u64));
        }
        let named = self.entries.iter().any(|entry| entry.tag.is_named());
        if named && self.perm_of(Tag::Mask).is_none() {
            return Err(bad("mask missing", self.entries.len() as u64));
        }
        Ok(())
    }

    /// Parses the on-disk form (version 1).
    ///
    /// # Errors
    /// [`Corrupt`] if the bytes are not a valid list.
    pub fn from_disk(bytes: &[u8]) -> Result<Acl> {
        let mut rest = body(bytes, VERSION_DISK)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let named = matches!(le16(rest, 0), 0x02 | 0x08);
            let len = if named { LONG_ENTRY } else { SHORT_ENTRY };
            let (entry, after) =
                rest.split_at_checked(len).ok_or_else(|| bad("size", bytes.len() as u64))?;
            entries.push(decode_entry(entry)?);
            rest = after;
        }
        Acl::new(entries)
    }

    /// Returns the on-disk form (version 1).
    pub fn to_disk(&self) -> Vec<u8> {
        let mut bytes = header(VERSION_DISK);
        for entry in &self.entries {
            let (tag, id) = entry.tag.to_raw();
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&entry.perm.to_le_bytes());
            if let Some(id) = id {
                bytes.extend_from_slice(&id.to_le_bytes());
            }
        }
        bytes
    }

    /// Parses the attribute's form (version 2). An empty list gives `None` and stands for the
    /// removal of the attribute.
    ///
    /// # Errors
    /// [`Corrupt`] if the bytes are not a valid list.
    pub fn from_xattr(bytes: &[u8]) -> Result<Option<Acl>> {
        let rest = body(bytes, VERSION_XATTR)?;
        if rest.len() % LONG_ENTRY != 0 {
            return Err(bad("size", bytes.len() as u64));
        }
        if rest.is_empty() {
            return Ok(None);
        }
        let entries =
            rest.chunks_exact(LONG_ENTRY).map(decode_entry).collect::<Result<Vec<_>>>()?;
        Acl::new(entries).map(Some)
    }

    /// Returns the attribute's form (version 2).
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = header(VERSION_XATTR);
        for entry in &self.entries {
            let (tag, id) = entry.tag.to_raw();
            let mut raw = [0; LONG_ENTRY];
            put_le16(&mut raw, 0, tag);
            put_le16(&mut raw, 2, entry.perm);
            put_le32(&mut raw, SHORT_ENTRY, id.unwrap_or(NO_ID));
            bytes.extend_from_slice(&raw);
        }
        bytes
    }

    /// Returns the entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    fn perm_of(&self, tag: Tag) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// Returns the tag of the entry that corresponds to the group bits of the mode: the mask if
    /// there is one, otherwise the owning group.
    fn group_class(&self) -> Tag {
        if self.perm_of(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj }
    }

    /// Returns the nine permission bits of the mode that corresponds to the list.
    pub fn mode_bits(&self) -> u16 {
        let perm = |tag| self.perm_of(tag).unwrap_or(0);
        perm(Tag::UserObj) << 6 | perm(self.group_class()) << 3 | perm(Tag::Other)
    }

    /// Returns whether the mode bits express the whole list, so that the list need not be stored.
    pub fn is_mode(&self) -> bool {
        self.entries.len() == 3
    }

    fn class_shift(&self, tag: Tag) -> Option<u32> {
        match tag {
            Tag::UserObj => Some(6),
            Tag::Other => Some(0),
            tag if tag == self.group_class() => Some(3),
            _ => None,
        }
    }

    /// Replaces the permissions of owner, mask (or owning group) and others by those of a mode, as
    /// `chmod` does.
    pub fn chmod(&mut self, mode: u16) {
        self.for_classes(|entry, shift| entry.perm = mode >> shift & PERM_MASK);
    }

    fn for_classes(&mut self, mut change: impl FnMut(&mut AclEntry, u32)) {
        let shifts: Vec<_> = self.entries.iter().map(|entry| self.class_shift(entry.tag)).collect();
        for (entry, shift) in self.entries.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                change(entry, shift);
            }
        }
    }

    /// Returns the mode of a new file below a directory with this default list, and the file's
    /// access list unless the mode expresses it. The caller must not apply the umask to the
    /// requested `mode` if there is a default list.
    pub fn inherit(&self, mode: u16) -> (u16, Option<Acl>) {
        let mut access = self.clone();
        access.for_classes(|entry, shift| entry.perm &= mode >> shift & PERM_MASK);
        let mode = mode & !0o777 | access.mode_bits();
        (mode, (!access.is_mode()).then_some(access))
    }

    /// Returns whether the list of a file of `owner` grants `want` (read 4, write 2, execute 1) to
    /// user `uid`. `in_group` must tell whether the user belongs to a group.
    pub fn allows(
        &self,
        want: u16,
        owner: FileOwner,
        uid: u32,
        in_group: impl Fn(u32) -> bool,
    ) -> bool {
        let mask = self.perm_of(Tag::Mask).unwrap_or(PERM_MASK);
        let has = |perm: u16| perm & want == want;
        if uid == owner.uid {
            return has(self.perm_of(Tag::UserObj).unwrap_or(0));
        }
        if let Some(perm) = self.perm_of(Tag::User(uid)) {
            return has(perm & mask);
        }
        let mut member = false;
        for entry in &self.entries {
            let group = match entry.tag {
                Tag::GroupObj => owner.gid,
                Tag::Group(gid) => gid,
                _ => continue,
            };
            if in_group(group) {
                member = true;
                if has(entry.perm & mask) {
                    return true;
                }
            }
        }
        !member && has(self.perm_of(Tag::Other).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;
