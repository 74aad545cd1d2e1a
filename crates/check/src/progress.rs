//! Progress of a check.

/// The part of a check that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckStage {
    /// Inode tables; the parts are groups.
    Inodes,
    /// Directories; the parts are directories.
    Directories,
    /// The test that reads all blocks; the parts are ranges of it.
    Blocks,
}

/// Progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CheckProgress {
    /// The stage that runs.
    pub stage: CheckStage,
    /// Parts of the stage that are done.
    pub done: u64,
    /// Parts of the stage.
    pub total: u64,
}
