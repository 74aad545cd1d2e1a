//! Attributes of nodes: mode, owner, times, extended attributes.

use super::NodeId;
use extant_format::acl::{Acl, AclEntry, Tag};
use extant_format::xattr::{NameIndex, XATTR_NAME_MAX, XATTR_VALUE_MAX, split_name};
use extant_format::{Printable, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Attributes of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Permission bits, with set-id and sticky bits; other bits are ignored.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last access; as `mtime` if unset.
    pub atime: Option<Timestamp>,
    /// Last change of the inode; as `mtime` if unset.
    pub ctime: Option<Timestamp>,
    /// Extended attributes: full names and values as getxattr(2) gives them. Of equal names the
    /// last counts.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Default for Attributes {
    /// Attributes of a directory that was not added itself: mode 0755, owner 0:0, time 0.
    fn default() -> Self {
        Attributes {
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            atime: None,
            ctime: None,
            xattrs: Vec::new(),
        }
    }
}

/// Maximum number of attributes of an entry. An inode of 64 KiB and a block of 64 KiB have no more:
/// the shortest one takes 16 bytes.
const MAX_XATTRS: usize = 2 * 65_536 / 16;

/// An extended attribute in the form that the disk has.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Xattr {
    /// Number of the prefix.
    pub index: u8,
    /// Name without its prefix.
    pub name: Vec<u8>,
    /// Value; access control lists in their short form.
    pub value: Vec<u8>,
}

/// A set of extended attributes that many nodes may have; 0 is the empty set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct XattrSetId(pub u32);

/// The distinct sets of extended attributes.
#[derive(Debug, Default)]
pub(super) struct XattrSets {
    sets: Vec<Arc<[Xattr]>>,
    numbers: HashMap<Arc<[Xattr]>, XattrSetId>,
}

impl XattrSets {
    /// Returns the set with these attributes, sorted by prefix and name; `Err` has the cause.
    pub(super) fn intern<'l>(
        &mut self,
        list: impl Iterator<Item = &'l (Vec<u8>, Vec<u8>)>,
    ) -> Result<XattrSetId, String> {
        let mut last_values = BTreeMap::new();
        for (name, value) in list {
            let Some(Xattr { index, name, value }) = convert(name, value)? else { continue };
            last_values.insert((index, name), value);
            if last_values.len() > MAX_XATTRS {
                return Err(format!(
                    "the entry has more than {MAX_XATTRS} extended attributes, the most that ext4 \
                     can store"
                ));
            }
        }
        if last_values.is_empty() {
            return Ok(XattrSetId::default());
        }
        let set = last_values.into_iter();
        self.number(set.map(|((index, name), value)| Xattr { index, name, value }).collect())
    }

    /// Returns the number of a set, which is sorted.
    fn number(&mut self, set: Vec<Xattr>) -> Result<XattrSetId, String> {
        if let Some(number) = self.numbers.get(set.as_slice()) {
            return Ok(*number);
        }
        let set: Arc<[Xattr]> = set.into();
        self.sets.push(set.clone());
        let number = u32::try_from(self.sets.len()).map_err(|_| "too many sets of attributes")?;
        self.numbers.insert(set, XattrSetId(number));
        Ok(XattrSetId(number))
    }

    /// Returns the set in which chmod(2) has changed the access control list; `Err` has the cause.
    pub(super) fn chmod(&mut self, id: XattrSetId, mode: u16) -> Result<XattrSetId, String> {
        let is_changed = |xattr: &Xattr| xattr.index == NameIndex::POSIX_ACL_ACCESS;
        if !self.get(id).iter().any(is_changed) {
            return Ok(id);
        }
        let mut changed = self.get(id).to_vec();
        for xattr in changed.iter_mut().filter(|xattr| is_changed(xattr)) {
            let mut list = Acl::from_disk(&xattr.value).map_err(|error| error.to_string())?;
            list.chmod(mode);
            xattr.value = list.to_disk();
        }
        self.number(changed)
    }

    /// Maps the subjects of all access control lists; `Err` has the cause.
    pub(super) fn map_lists(&mut self, map: impl Fn(Tag) -> Tag) -> Result<(), String> {
        for set in &mut self.sets {
            let mut mapped = set.to_vec();
            for xattr in mapped.iter_mut().filter(|xattr| is_list(xattr.index)) {
                let list = Acl::from_disk(&xattr.value).map_err(|error| error.to_string())?;
                let entries = list.entries().iter();
                let entries = entries.map(|entry| AclEntry { tag: map(entry.tag), ..*entry });
                let list = Acl::new(entries.collect()).map_err(
                    |_| "two users or two groups of an access control list get the same number",
                )?;
                xattr.value = list.to_disk();
            }
            *set = mapped.into();
        }
        // Of sets that became equal the last one is found.
        let numbers = self.sets.iter().zip(1..);
        self.numbers = numbers.map(|(set, number)| (set.clone(), XattrSetId(number))).collect();
        Ok(())
    }

    /// Returns the number of sets, the empty one included.
    pub(super) fn len(&self) -> usize {
        self.sets.len() + 1
    }

    /// Returns the attributes of a set.
    pub(super) fn get(&self, id: XattrSetId) -> &[Xattr] {
        let index = (id.0 as usize).checked_sub(1);
        index.and_then(|index| self.sets.get(index)).map_or(&[], |set| set)
    }
}

/// Returns whether attributes with this prefix are access control lists.
fn is_list(index: u8) -> bool {
    [NameIndex::POSIX_ACL_ACCESS, NameIndex::POSIX_ACL_DEFAULT].contains(&index)
}

/// Converts an attribute to the form of the disk. An access control list that the mode expresses
/// gives `None`.
fn convert(full: &[u8], value: &[u8]) -> Result<Option<Xattr>, String> {
    let shown = Printable(full);
    let Some((index, rest)) = split_name(full) else {
        return Err(format!(
            "the extended attribute {shown} has a prefix that ext4 cannot store; leave it out \
             (--xattrs '^{shown}')"
        ));
    };
    if (index, rest) == (NameIndex::SYSTEM, NameIndex::INLINE_DATA_NAME) {
        return Err(format!("the extended attribute {shown} belongs to the file system"));
    }
    if rest.len() > XATTR_NAME_MAX || value.len() > XATTR_VALUE_MAX || full.contains(&0) {
        let (name, value) = (rest.len(), value.len());
        return Err(format!(
            "the extended attribute {shown} has a name of {name} and a value of {value} bytes; \
             255 and 65536 are the most, without NUL in the name"
        ));
    }
    if !is_list(index) {
        return Ok(Some(Xattr { index, name: rest.to_vec(), value: value.to_vec() }));
    }
    let acl =
        Acl::from_xattr(value).map_err(|e| format!("the attribute {shown} is no list: {e}"))?;
    let expressed = |acl: &Acl| index == NameIndex::POSIX_ACL_ACCESS && acl.is_mode();
    Ok(acl.filter(|acl| !expressed(acl)).map(|acl| Xattr {
        index,
        name: Vec::new(),
        value: acl.to_disk(),
    }))
}

/// Times of the nodes that have others than `mtime`.
#[derive(Debug, Default)]
pub(super) struct OtherTimes {
    times: HashMap<NodeId, [Option<Timestamp>; 2]>,
}

impl OtherTimes {
    pub(super) fn set(&mut self, node: NodeId, attributes: &Attributes) {
        let times = [attributes.atime, attributes.ctime];
        if times.iter().all(Option::is_none) {
            self.times.remove(&node);
        } else {
            self.times.insert(node, times);
        }
    }

    pub(super) fn limit(&mut self, latest: Timestamp) {
        for time in self.times.values_mut().flatten().flatten() {
            *time = (*time).min(latest);
        }
    }

    /// Returns the access and the change time, if they are set.
    pub(super) fn get(&self, node: NodeId) -> [Option<Timestamp>; 2] {
        self.times.get(&node).copied().unwrap_or_default()
    }
}
