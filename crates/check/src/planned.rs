//! Weights of findings, and the repairs that remove them.

/// Weight of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Severity {
    /// No damage of the file system in use, such as an old superblock copy.
    Note,
    /// Damage.
    Damage,
    /// Damage that prevents any further check.
    Fatal,
}

impl Severity {
    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Damage => "damage",
            Severity::Fatal => "fatal",
        }
    }
}

macro_rules! repairs {
    ($($(#[$doc:meta])* $variant:ident, $name:literal;)*) => {
        /// The repair that removes a defect.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        pub enum PlannedRepair {
            $($(#[$doc])* $variant,)*
        }

        impl PlannedRepair {
            /// Returns the stable name, in lower case with hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(PlannedRepair::$variant => $name,)* }
            }
        }
    };
}

repairs! {
    /// None is known.
    None, "none";
    /// Take the superblock from a copy.
    RestoreSuperblock, "restore-superblock";
    /// Compute the superblock's checksum again.
    SealSuperblock, "seal-superblock";
    /// Set the field of the superblock to a value that is possible.
    CorrectSuperblock, "correct-superblock";
    /// Replay the journal.
    ReplayJournal, "replay-journal";
    /// Make a new, empty journal.
    RebuildJournal, "rebuild-journal";
    /// Write the superblock copy again.
    RewriteBackup, "rewrite-backup";
    /// Take the descriptor from a copy, or derive it from the layout.
    RestoreDescriptor, "restore-descriptor";
    /// Build the block bitmap from the blocks in use.
    RebuildBlockBitmap, "rebuild-block-bitmap";
    /// Build the inode bitmap from the inodes in use.
    RebuildInodeBitmap, "rebuild-inode-bitmap";
    /// Count again.
    Recount, "recount";
    /// Compute the inode's checksum again.
    SealInode, "seal-inode";
    /// Set the field of the inode to a value that is possible.
    CorrectInode, "correct-inode";
    /// Clear the inode.
    ClearInode, "clear-inode";
    /// Make a new root directory.
    MakeRoot, "make-root";
    /// Delete or truncate the orphans.
    ProcessOrphans, "process-orphans";
    /// Build the map of the file from its valid parts.
    RebuildMap, "rebuild-map";
    /// Remove the blocks from the file.
    ReleaseBlocks, "release-blocks";
    /// Copy the blocks, so that each owner has its own.
    CloneBlocks, "clone-blocks";
    /// Build the resize inode again.
    RebuildResizeInode, "rebuild-resize-inode";
    /// Remove the attributes.
    ClearXattrs, "clear-xattrs";
    /// Compute hashes and checksum of the attributes again.
    SealXattrs, "seal-xattrs";
    /// Build the directory from its valid entries.
    RebuildDirectory, "rebuild-directory";
    /// Correct the entry.
    CorrectEntry, "correct-entry";
    /// Remove the entry.
    RemoveEntry, "remove-entry";
    /// Give the inode a name in `lost+found`.
    Reconnect, "reconnect";
    /// Build the quota file from the usage that was found.
    RebuildQuota, "rebuild-quota";
    /// Write the block of multiple mount protection again.
    RebuildMmp, "rebuild-mmp";
}
