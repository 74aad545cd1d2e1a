//! The fast-commit area: whether it holds anything that would have to be replayed.

use crate::error::{Error, Result};
use crate::log::Log;
use extant_format::jbd2::{FastCommitTag, FastCommitTags};

/// Refuses a log whose fast commits follow on its last full commit, `end` being the sequence after that one.
pub(super) fn check_empty(log: &Log, end: u32) -> Result<()> {
    let Some(area) = log.superblock().fast_commit_area() else { return Ok(()) };
    let (mut block, mut checksum) = (vec![0; log.block_size()], 0);
    for at in area {
        log.read(at, &mut block)?;
        let mut tags = FastCommitTags::new(&block, checksum);
        let mut any = false;
        for tag in tags.by_ref() {
            any = true;
            match tag {
                FastCommitTag::Head(_, tid) if tid != end => return Ok(()),
                FastCommitTag::Tail(tail) if tail.valid_for(end) => {
                    return Err(Error::Unsupported("replaying fast commits"));
                }
                FastCommitTag::Tail(_) => return Ok(()),
                _ => {}
            }
        }
        if !any {
            return Ok(());
        }
        checksum = tags.checksum();
    }
    Ok(())
}
