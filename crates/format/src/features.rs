//! Feature bits of the superblock, with the names that the ext4 tools use for them.
//!
//! # Invariants
//! Unnamed bits are preserved, never dropped: use
//! [`from_bits_retain`](bitflags::Flags::from_bits_retain), and `insert` and `remove` rather than
//! the complement operator.

use bitflags::bitflags;

bitflags! {
    /// Features that a program may ignore if unknown.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Compat: u32 {
        /// Preallocation of directory blocks.
        const DIR_PREALLOC = 0x1;
        /// Inodes of the AFS server.
        const IMAGIC_INODES = 0x2;
        /// There is a journal.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes.
        const EXT_ATTR = 0x8;
        /// Descriptor blocks are reserved for growing.
        const RESIZE_INODE = 0x10;
        /// Directories may be hash trees.
        const DIR_INDEX = 0x20;
        /// Only two superblock copies, in the groups that the superblock names.
        const SPARSE_SUPER2 = 0x200;
        /// The journal has an area for fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers never change (no shrinking).
        const STABLE_INODES = 0x800;
        /// There is an orphan file.
        const ORPHAN_FILE = 0x1000;
    }
}

bitflags! {
    /// Features that forbid any mount by a program that does not know them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Incompat: u32 {
        /// Compression (never supported).
        const COMPRESSION = 0x1;
        /// Directory entries carry the file type.
        const FILETYPE = 0x2;
        /// The journal needs recovery.
        const RECOVER = 0x4;
        /// The device is an external journal.
        const JOURNAL_DEV = 0x8;
        /// Descriptor blocks lie in their meta group.
        const META_BG = 0x10;
        /// Files may use extents.
        const EXTENTS = 0x40;
        /// Block numbers have 64 bits.
        const BIT64 = 0x80;
        /// Multiple mount protection.
        const MMP = 0x100;
        /// Bitmaps and inode tables may lie in other groups.
        const FLEX_BG = 0x200;
        /// Large attribute values lie in inodes of their own.
        const EA_INODE = 0x400;
        /// Data in directory entries (never supported).
        const DIRDATA = 0x1000;
        /// The checksum seed is stored, not derived from the UUID.
        const CSUM_SEED = 0x2000;
        /// Directories above 2 GiB, hash trees of three levels.
        const LARGEDIR = 0x4000;
        /// Small files lie in their inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted files.
        const ENCRYPT = 0x10000;
        /// Directories that ignore case.
        const CASEFOLD = 0x20000;
    }
}

bitflags! {
    /// Features that forbid writing by a program that does not know them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct RoCompat: u32 {
        /// Superblock copies only in groups 0, 1 and powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x1;
        /// At least one file has 2 GiB or more.
        const LARGE_FILE = 0x2;
        /// Trees in directories (never used).
        const BTREE_DIR = 0x4;
        /// Block counts of inodes have 48 bits.
        const HUGE_FILE = 0x8;
        /// Group descriptors have CRC-16 checksums and lazy initialisation.
        const GDT_CSUM = 0x10;
        /// Directories may have more than 65000 subdirectories.
        const DIR_NLINK = 0x20;
        /// Inodes have further fields.
        const EXTRA_ISIZE = 0x40;
        /// Snapshots (never merged).
        const HAS_SNAPSHOT = 0x80;
        /// Quota files are hidden inodes.
        const QUOTA = 0x100;
        /// Blocks are allocated in clusters.
        const BIGALLOC = 0x200;
        /// All metadata has CRC-32C checksums.
        const METADATA_CSUM = 0x400;
        /// Replicas (never merged).
        const REPLICA = 0x800;
        /// The file system may not be written.
        const READONLY = 0x1000;
        /// Project quota.
        const PROJECT = 0x2000;
        /// Files share blocks.
        const SHARED_BLOCKS = 0x4000;
        /// Files with a verity tree.
        const VERITY = 0x8000;
        /// The orphan file may be non-empty.
        const ORPHAN_PRESENT = 0x10000;
    }
}

const COMPAT_NAMES: [(u32, &str); 10] = [
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: [(u32, &str); 16] = [
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x10000, "encrypt"),
    (0x20000, "casefold"),
];

const RO_COMPAT_NAMES: [(u32, &str); 17] = [
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x10000, "orphan_present"),
];

/// Alternative spellings that the ext4 tools accept.
const ALIASES: [(&str, &str); 6] = [
    ("extents", "extent"),
    ("largedir", "large_dir"),
    ("gdt_csum", "uninit_bg"),
    ("recover", "needs_recovery"),
    ("csum_seed", "metadata_csum_seed"),
    ("readonly", "read-only"),
];

fn bit_names(bits: u32, table: &[(u32, &str)], letter: char) -> Vec<String> {
    (0..32)
        .filter(|n| bits & (1u32 << n) != 0)
        .map(|n| match table.iter().find(|(bit, _)| *bit == 1u32 << n) {
            Some((_, name)) => (*name).to_string(),
            None => format!("FEATURE_{letter}{n}"),
        })
        .collect()
}

fn bit_of(table: &[(u32, &str)], letter: char, name: &str) -> Option<u32> {
    if let Some((bit, _)) = table.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)) {
        return Some(*bit);
    }
    let number = name.strip_prefix("FEATURE_")?.strip_prefix(letter)?.parse::<u32>().ok()?;
    1u32.checked_shl(number)
}

macro_rules! named_set {
    ($set:ty, $table:ident, $letter:literal) => {
        impl $set {
            /// Returns the names of all set bits, in the order of the bits.
            pub fn names(self) -> Vec<String> {
                bit_names(self.bits(), &$table, $letter)
            }

            /// Returns the bits without a name in this crate.
            pub fn unknown(self) -> u32 {
                self.bits() & !<$set>::all().bits()
            }
        }
    };
}

named_set!(Compat, COMPAT_NAMES, 'C');
named_set!(Incompat, INCOMPAT_NAMES, 'I');
named_set!(RoCompat, RO_COMPAT_NAMES, 'R');

/// The three feature sets of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Must be known for any use.
    pub incompat: Incompat,
    /// Must be known for writing.
    pub ro_compat: RoCompat,
}

/// One feature, of one of the three kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Feature {
    /// A compatible feature.
    Compat(Compat),
    /// An incompatible feature.
    Incompat(Incompat),
    /// A feature that is compatible for reading.
    RoCompat(RoCompat),
}

impl Feature {
    /// Returns the feature of this name, as the ext4 tools spell it.
    pub fn from_name(name: &str) -> Option<Feature> {
        let name =
            ALIASES.iter().find(|(other, _)| *other == name).map_or(name, |(_, known)| known);
        if let Some(bit) = bit_of(&COMPAT_NAMES, 'C', name) {
            return Some(Feature::Compat(Compat::from_bits_retain(bit)));
        }
        if let Some(bit) = bit_of(&INCOMPAT_NAMES, 'I', name) {
            return Some(Feature::Incompat(Incompat::from_bits_retain(bit)));
        }
        bit_of(&RO_COMPAT_NAMES, 'R', name)
            .map(|bit| Feature::RoCompat(RoCompat::from_bits_retain(bit)))
    }
}

impl Features {
    /// Returns the names of all features: compatible, incompatible, read-only compatible.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.compat.names();
        names.extend(self.incompat.names());
        names.extend(self.ro_compat.names());
        names
    }

    /// Sets or clears one feature.
    pub fn set(&mut self, feature: Feature, on: bool) {
        match feature {
            Feature::Compat(bits) => self.compat.set(bits, on),
            Feature::Incompat(bits) => self.incompat.set(bits, on),
            Feature::RoCompat(bits) => self.ro_compat.set(bits, on),
        }
    }

    /// Returns whether the feature is set.
    pub fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::Compat(bits) => self.compat.contains(bits),
            Feature::Incompat(bits) => self.incompat.contains(bits),
            Feature::RoCompat(bits) => self.ro_compat.contains(bits),
        }
    }

    /// Returns whether group descriptors carry checksums, and with them the flags of lazy
    /// initialisation.
    pub fn has_group_checksums(&self) -> bool {
        self.ro_compat.intersects(RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_kept_and_named() {
        let set = Incompat::from_bits_retain(0x8000_0002);
        assert_eq!(set.names(), ["filetype", "FEATURE_I31"]);
        assert_eq!(set.unknown(), 0x8000_0000);
    }

    #[test]
    fn every_name_leads_back_to_its_bit() {
        let all = Features {
            compat: Compat::all(),
            incompat: Incompat::all(),
            ro_compat: RoCompat::all(),
        };
        let mut again = Features::default();
        for name in all.names() {
            again.set(Feature::from_name(&name).expect("a known name"), true);
        }
        assert_eq!(again, all);
        assert_eq!(Feature::from_name("extents"), Some(Feature::Incompat(Incompat::EXTENTS)));
        assert_eq!(Feature::from_name("nonsense"), None);
        assert_eq!(Feature::from_name("FEATURE_C99"), None);
    }
}
