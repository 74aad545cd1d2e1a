//! The error type for corrupt on-disk structures.

use crate::types::{BlockNr, GroupNr, InodeNr};
use std::fmt;

/// A corrupt structure: its name and location, the found and the expected value.
///
/// The coordinates (block, inode, group) are optional. Callers that know them add them while the
/// error propagates.
#[derive(Clone, PartialEq, Eq)]
pub struct Corrupt(Box<Details>);

#[derive(Clone, PartialEq, Eq, Default)]
struct Details {
    what: &'static str,
    field: Option<&'static str>,
    found: Option<u64>,
    expected: Option<u64>,
    inode: Option<InodeNr>,
    block: Option<BlockNr>,
    group: Option<GroupNr>,
}

impl Corrupt {
    /// Makes an error about the named structure, such as "extent header".
    #[cold]
    pub fn new(what: &'static str) -> Corrupt {
        Corrupt(Box::new(Details { what, ..Details::default() }))
    }

    /// Adds the name of the wrong field.
    #[must_use]
    pub fn field(mut self, field: &'static str) -> Corrupt {
        self.0.field = Some(field);
        self
    }

    /// Adds the found value.
    #[must_use]
    pub fn found(mut self, value: impl Into<u64>) -> Corrupt {
        self.0.found = Some(value.into());
        self
    }

    /// Adds the expected value or bound.
    #[must_use]
    pub fn expected(mut self, value: impl Into<u64>) -> Corrupt {
        self.0.expected = Some(value.into());
        self
    }

    /// Adds the block that holds the structure.
    #[must_use]
    pub fn at_block(mut self, block: impl Into<BlockNr>) -> Corrupt {
        self.0.block = Some(block.into());
        self
    }

    /// Adds the inode that the structure belongs to.
    #[must_use]
    pub fn at_inode(mut self, inode: impl Into<InodeNr>) -> Corrupt {
        self.0.inode = Some(inode.into());
        self
    }

    /// Adds the block group that the structure belongs to.
    #[must_use]
    pub fn at_group(mut self, group: impl Into<GroupNr>) -> Corrupt {
        self.0.group = Some(group.into());
        self
    }

    /// Returns the structure's name.
    pub fn what(&self) -> &'static str {
        self.0.what
    }

    /// Returns the field's name.
    pub fn field_name(&self) -> Option<&'static str> {
        self.0.field
    }

    /// Returns the value that was found.
    pub fn found_value(&self) -> Option<u64> {
        self.0.found
    }

    /// Returns the value that was expected.
    pub fn expected_value(&self) -> Option<u64> {
        self.0.expected
    }

    /// Returns the inode, where known.
    pub fn inode(&self) -> Option<InodeNr> {
        self.0.inode
    }

    /// Returns the block, where known.
    pub fn block(&self) -> Option<BlockNr> {
        self.0.block
    }

    /// Returns the group, where known.
    pub fn group(&self) -> Option<GroupNr> {
        self.0.group
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.0;
        write!(f, "corrupt {}", d.what)?;
        if let Some(field) = d.field {
            write!(f, ", {field}")?;
        }
        if let Some(found) = d.found {
            write!(f, " {}", Number(found))?;
        }
        if let Some(expected) = d.expected {
            write!(f, " (expected {})", Number(expected))?;
        }
        if let Some(inode) = d.inode {
            write!(f, ", inode {inode}")?;
        }
        if let Some(group) = d.group {
            write!(f, ", group {group}")?;
        }
        if let Some(block) = d.block {
            write!(f, ", block {block}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Corrupt({self})")
    }
}

impl std::error::Error for Corrupt {}

/// A number as error messages print it: values from 0x1000 in hexadecimal, since most are checksums
/// and magic numbers.
struct Number(u64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0x1000 { write!(f, "{}", self.0) } else { write!(f, "{:#x}", self.0) }
    }
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Corrupt>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_clear_line() {
        let error = Corrupt::new("extent header")
            .field("magic")
            .found(0x1234u32)
            .expected(0xF30Au32)
            .at_block(77u64)
            .at_inode(12u32);
        assert_eq!(
            error.to_string(),
            "corrupt extent header, magic 0x1234 (expected 0xf30a), inode 12, block 77"
        );
    }

    #[test]
    fn result_is_small() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }
}
