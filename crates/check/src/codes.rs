//! The table of codes: one row for each kind of defect.

use crate::planned::{PlannedRepair, Severity};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $severity:ident, $repair:ident;)*) => {
        /// The kind of a defect. [`FindingCode::name`] is stable, for scripts.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        #[non_exhaustive]
        pub enum FindingCode {
            $($(#[$doc])* $variant,)*
        }

        impl FindingCode {
            /// Returns the stable name, in lower case with hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(FindingCode::$variant => $name,)* }
            }

            /// Returns the severity of all findings with this code.
            pub const fn severity(self) -> Severity {
                match self { $(FindingCode::$variant => Severity::$severity,)* }
            }

            /// Returns the repair that removes the defect.
            pub const fn repair(self) -> PlannedRepair {
                match self { $(FindingCode::$variant => PlannedRepair::$repair,)* }
            }
        }
    };
}

codes! {
    /// The primary superblock is unreadable or contradicts itself.
    SuperblockInvalid, "superblock-invalid", Fatal, RestoreSuperblock;
    /// The primary superblock is unreadable, contradicts itself, or has a wrong checksum. A copy of
    /// it tells of another layout, and takes its place in memory.
    SuperblockReplaced, "superblock-replaced", Damage, RestoreSuperblock;
    /// The primary superblock's checksum is wrong.
    SuperblockChecksum, "superblock-checksum", Damage, SealSuperblock;
    /// A field of the superblock is impossible or contradicts the features.
    SuperblockField, "superblock-field", Damage, CorrectSuperblock;
    /// The superblock has features that this program does not know.
    UnknownFeatures, "unknown-features", Fatal, None;
    /// The superblock records errors of earlier use.
    ErrorsRecorded, "errors-recorded", Note, CorrectSuperblock;
    /// The file system is longer than the device.
    DeviceTooShort, "device-too-short", Damage, None;
    /// The journal has transactions that are not on their home blocks.
    JournalNotReplayed, "journal-not-replayed", Note, ReplayJournal;
    /// The journal was replayed in memory for this check.
    JournalReplayed, "journal-replayed", Note, ReplayJournal;
    /// The journal has fast commits, which this check does not replay.
    FastCommitsNotReplayed, "fast-commits-not-replayed", Note, ReplayJournal;
    /// The journal cannot be read or replayed.
    JournalInvalid, "journal-invalid", Damage, RebuildJournal;
    /// The journal is on a device that is not at hand.
    JournalDeviceMissing, "journal-device-missing", Damage, None;
    /// A superblock copy is unreadable, has a wrong checksum, or describes another layout.
    BackupSuperblock, "backup-superblock", Note, RewriteBackup;
    /// A block cannot be read.
    Unreadable, "unreadable", Damage, None;
    /// A group descriptor's checksum is wrong.
    DescriptorChecksum, "descriptor-checksum", Damage, RestoreDescriptor;
    /// A group descriptor has an impossible value.
    DescriptorField, "descriptor-field", Damage, RestoreDescriptor;
    /// Metadata of two groups lies in the same block.
    MetadataOverlap, "metadata-overlap", Damage, RestoreDescriptor;
    /// The block bitmap's checksum is wrong.
    BlockBitmapChecksum, "block-bitmap-checksum", Damage, RebuildBlockBitmap;
    /// The inode bitmap's checksum is wrong.
    InodeBitmapChecksum, "inode-bitmap-checksum", Damage, RebuildInodeBitmap;
    /// Bits past the last cluster of a group are clear.
    BlockBitmapPadding, "block-bitmap-padding", Damage, RebuildBlockBitmap;
    /// Bits past the last inode of a group are clear.
    InodeBitmapPadding, "inode-bitmap-padding", Damage, RebuildInodeBitmap;
    /// The block bitmap marks a block in use as free.
    BlockMarkedFree, "block-marked-free", Damage, RebuildBlockBitmap;
    /// The block bitmap marks a block as used that nothing uses.
    BlockMarkedUsed, "block-marked-used", Damage, RebuildBlockBitmap;
    /// The inode bitmap marks an inode in use as free.
    InodeMarkedFree, "inode-marked-free", Damage, RebuildInodeBitmap;
    /// The inode bitmap marks an unused inode as used.
    InodeMarkedUsed, "inode-marked-used", Damage, RebuildInodeBitmap;
    /// A group's count of free clusters is wrong.
    FreeClusters, "free-clusters", Damage, Recount;
    /// A group's count of free inodes is wrong.
    FreeInodes, "free-inodes", Damage, Recount;
    /// A group's count of directories is wrong.
    UsedDirs, "used-dirs", Damage, Recount;
    /// The superblock's count of free blocks or inodes is wrong.
    SuperblockCount, "superblock-count", Damage, Recount;
    /// The superblock's count of free blocks or inodes is older than the replayed journal.
    StaleCount, "stale-count", Note, Recount;
    /// An inode's checksum is wrong.
    InodeChecksum, "inode-checksum", Damage, SealInode;
    /// A field of an inode is impossible.
    InodeField, "inode-field", Damage, CorrectInode;
    /// The type of an inode is none that exists.
    InodeMode, "inode-mode", Damage, ClearInode;
    /// A flag of an inode contradicts its type or the features.
    InodeFlag, "inode-flag", Damage, CorrectInode;
    /// A reserved inode is in use for nothing.
    ReservedInode, "reserved-inode", Damage, ClearInode;
    /// The root directory is missing or no directory.
    RootInode, "root-inode", Damage, MakeRoot;
    /// A deleted inode has no deletion time, or an inode in use has one.
    DeletionTime, "deletion-time", Damage, CorrectInode;
    /// An inode was deleted or shortened while it was open, and the rest is to be done.
    Orphan, "orphan", Note, ProcessOrphans;
    /// The list or the file of orphans is damaged.
    OrphanRecord, "orphan-record", Damage, ProcessOrphans;
    /// The size of an inode contradicts its blocks.
    InodeSize, "inode-size", Damage, CorrectInode;
    /// The count of blocks of an inode is wrong.
    InodeBlocks, "inode-blocks", Damage, CorrectInode;
    /// A symbolic link's target contradicts its size.
    Symlink, "symlink", Damage, ClearInode;
    /// A node of an extent tree is damaged.
    ExtentNode, "extent-node", Damage, RebuildMap;
    /// The checksum of an extent block is wrong.
    ExtentChecksum, "extent-checksum", Damage, RebuildMap;
    /// An entry of an extent tree is impossible.
    ExtentEntry, "extent-entry", Damage, RebuildMap;
    /// A block pointer leads outside of the file system.
    BlockPointer, "block-pointer", Damage, RebuildMap;
    /// A file's block lies in metadata.
    BlockInMetadata, "block-in-metadata", Damage, ReleaseBlocks;
    /// A block belongs to more than one owner.
    MultiplyClaimed, "multiply-claimed", Damage, CloneBlocks;
    /// Blocks of a file violate the rules of clusters.
    Misaligned, "misaligned-cluster", Damage, RebuildMap;
    /// The resize inode does not list the reserved descriptor blocks.
    ResizeInode, "resize-inode", Damage, RebuildResizeInode;
    /// Inline data is damaged.
    InlineData, "inline-data", Damage, ClearInode;
    /// The list of extended attributes in an inode is damaged.
    XattrInInode, "xattr-in-inode", Damage, ClearXattrs;
    /// A block of extended attributes is damaged.
    XattrBlock, "xattr-block", Damage, ClearXattrs;
    /// The checksum of a block of extended attributes is wrong.
    XattrChecksum, "xattr-checksum", Damage, SealXattrs;
    /// The reference count of a block of extended attributes is wrong.
    XattrReferences, "xattr-references", Damage, Recount;
    /// An attribute's hash is wrong.
    XattrHash, "xattr-hash", Damage, SealXattrs;
    /// An access control list is damaged.
    Acl, "acl", Damage, ClearXattrs;
    /// An inode with an attribute's value is damaged or missing.
    XattrValue, "xattr-value", Damage, ClearXattrs;
    /// A directory lacks a block.
    DirectoryHole, "directory-hole", Damage, RebuildDirectory;
    /// A directory block is damaged.
    DirectoryBlock, "directory-block", Damage, RebuildDirectory;
    /// The checksum of a directory block is wrong.
    DirectoryChecksum, "directory-checksum", Damage, RebuildDirectory;
    /// The index of a directory is damaged.
    DirectoryIndex, "directory-index", Damage, RebuildDirectory;
    /// The entries `.` and `..` are missing or wrong.
    DotEntries, "dot-entries", Damage, CorrectEntry;
    /// An entry leads to an inode that does not exist or is not in use.
    EntryInode, "entry-inode", Damage, RemoveEntry;
    /// A name is empty or has impossible bytes.
    EntryName, "entry-name", Damage, CorrectEntry;
    /// A name occurs twice.
    EntryDuplicate, "entry-duplicate", Damage, CorrectEntry;
    /// The type of an entry is not that of its inode.
    EntryType, "entry-type", Damage, CorrectEntry;
    /// A directory has more than one name.
    DirectoryLinked, "directory-linked", Damage, RemoveEntry;
    /// An inode's count of links is wrong.
    LinkCount, "link-count", Damage, Recount;
    /// An inode has no name.
    Unattached, "unattached", Damage, Reconnect;
    /// A directory has no path from the root.
    Disconnected, "disconnected", Damage, Reconnect;
    /// A quota file is damaged.
    QuotaFile, "quota-file", Damage, RebuildQuota;
    /// The usage of an owner in a quota file is wrong.
    QuotaUsage, "quota-usage", Damage, RebuildQuota;
    /// The block of multiple mount protection is damaged.
    Mmp, "mmp", Damage, RebuildMmp;
    /// Findings beyond the number that is reported one by one.
    MoreFindings, "more-findings", Damage, None;
}
