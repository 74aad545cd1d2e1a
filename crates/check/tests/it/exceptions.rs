//! All known differences from the verdicts of `e2fsck -fn`, each with its reason.

/// A finding that e2fsck does not make, or a complaint of e2fsck that is no finding.
pub struct Exception {
    /// Words of the finding or of the complaint, in order.
    pub words: &'static [&'static str],
    /// The reason.
    pub reason: &'static str,
}

const fn exception(words: &'static [&'static str], reason: &'static str) -> Exception {
    Exception { words, reason }
}

/// Damage that e2fsck does not report.
pub const OWN: &[Exception] = &[
    exception(
        &["journal-invalid", "first block"],
        "the kernel refuses such a log; e2fsck -n reads the field only for a replay",
    ),
    exception(
        &["journal-invalid", "start"],
        "the kernel refuses such a log; e2fsck -n reads the field only for a replay",
    ),
    exception(
        &["extent-node", "depth"],
        "the kernel refuses a node whose depth is not that of its level",
    ),
    exception(
        &["inline-data", "size"],
        "the size of a file is more than its data in the inode, and the kernel reads no more",
    ),
    exception(&["inode-field, inode 7,"], "e2fsck checks fields of inodes with names only"),
    exception(&["inode-field, inode 8,"], "e2fsck checks fields of inodes with names only"),
    exception(&["xattr-block, inode 8:"], "e2fsck checks fields of inodes with names only"),
    exception(&["xattr-block, inode 12:"], "e2fsck checks fields of inodes with names only"),
    exception(&["xattr-hash"], "e2fsck compares hashes of values in some file systems only"),
    exception(
        &["superblock-field, last write"],
        "e2fsck 1.47.0 does not read the high bits of times in the superblock",
    ),
    exception(
        &["superblock-field, last mount"],
        "e2fsck 1.47.0 does not read the high bits of times in the superblock",
    ),
    exception(
        &["block-in-metadata, inode 1,"],
        "e2fsck accepts bad blocks in inode tables, whose inodes it does not read",
    ),
    exception(
        &["journal-invalid", "in the file system and outside"],
        "the kernel refuses the number of a device beside that of an inode; e2fsck reads the UUID",
    ),
    exception(&["acl,"], "e2fsck does not read access control lists"),
];

/// Complaints of e2fsck that are no damage.
pub const THEIRS: &[Exception] = &[
    exception(
        &["Error writing block"],
        "e2fsck -n tries to clear the error code of the log, which fails",
    ),
    exception(
        &["MMP check failed"],
        "the file system is in use, or was when its host failed; only writers must not begin then",
    ),
    exception(&["(invalid value)"], "the offset of an empty value, without a meaning"),
];

/// Images of e2fsprogs to which e2fsck objects after a repair.
pub const OBJECTIONS: &[Exception] = &[
    exception(&["f_bad_encryption"], "policies of encrypted directories are not compared"),
    exception(&["f_badsymlinks2"], "open: a long encrypted target passes the check"),
    exception(&["f_inlinedata_repair"], "open: a symbolic link in an inode passes the check"),
    exception(&["f_ea_inode"], "hashes of values in inodes are not compared with their content"),
    exception(&["f_inode_ea_collision"], "values that overlap are read as they are"),
];

/// Images of e2fsprogs whose verdict of `e2fsck -fn` is unknown.
pub const ENDLESS: &[Exception] = &[
    exception(&["f_illitable_flexbg"], "e2fsck -fn asks without end; the image is damaged"),
    exception(&["f_misstable"], "e2fsck -fn asks without end; the image is damaged"),
];

/// Returns the reason of the first exception whose words are in `text`.
pub fn reason(exceptions: &[Exception], text: &str) -> Option<&'static str> {
    let has = |exception: &&Exception| {
        let mut rest = Some(text);
        for word in exception.words {
            rest = rest.and_then(|rest| rest.split_once(word)).map(|(_, rest)| rest);
        }
        rest.is_some()
    };
    exceptions.iter().find(has).map(|exception| exception.reason)
}
