//! What is said about a structure that is not what it has to be.

use crate::types::{BlockNr, GroupNr, InodeNr};
use std::fmt;

/// A corrupt structure: what it is, where it is, what was found and what was expected.
///
/// The coordinates are optional and are added by whoever knows them, while the error travels
/// upward.
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
    /// A corruption of the named structure ("extent header").
    #[cold]
    pub fn new(what: &'static str) -> Corrupt {
        Corrupt(Box::new(Details { what, ..Details::default() }))
    }

    /// Names the field that is wrong.
    #[must_use]
    pub fn field(mut self, field: &'static str) -> Corrupt {
        self.0.field = Some(field);
        self
    }

    /// Tells the value that was found.
    #[must_use]
    pub fn found(mut self, value: impl Into<u64>) -> Corrupt {
        self.0.found = Some(value.into());
        self
    }

    /// Tells the value (or the bound) that was expected.
    #[must_use]
    pub fn expected(mut self, value: impl Into<u64>) -> Corrupt {
        self.0.expected = Some(value.into());
        self
    }

    /// Tells the block that holds the structure.
    #[must_use]
    pub fn at_block(mut self, block: impl Into<BlockNr>) -> Corrupt {
        self.0.block = Some(block.into());
        self
    }

    /// Tells the inode that the structure belongs to.
    #[must_use]
    pub fn at_inode(mut self, inode: impl Into<InodeNr>) -> Corrupt {
        self.0.inode = Some(inode.into());
        self
    }

    /// Tells the block group that the structure belongs to.
    #[must_use]
    pub fn at_group(mut self, group: impl Into<GroupNr>) -> Corrupt {
        self.0.group = Some(group.into());
        self
    }

    /// The structure's name.
    pub fn what(&self) -> &'static str {
        self.0.what
    }

    /// The field's name.
    pub fn field_name(&self) -> Option<&'static str> {
        self.0.field
    }

    /// The value that was found.
    pub fn found_value(&self) -> Option<u64> {
        self.0.found
    }

    /// The value that was expected.
    pub fn expected_value(&self) -> Option<u64> {
        self.0.expected
    }

    /// The inode, where known.
    pub fn inode(&self) -> Option<InodeNr> {
        self.0.inode
    }

    /// The block, where known.
    pub fn block(&self) -> Option<BlockNr> {
        self.0.block
    }

    /// The group, where known.
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

/// Large numbers are mostly checksums and magics, which are read best in hexadecimal.
struct Number(u64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0x1000 { write!(f, "{}", self.0) } else { write!(f, "{:#x}", self.0) }
    }
}

/// The short form of a result in this crate.
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
