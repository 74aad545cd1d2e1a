//! The UUID of the file system.
//!
//! Where checksums depend on it, the superblock stores their seed, which is that of the old UUID
//! (`metadata_csum_seed`): no block but the superblock and its copies changes. For example, a
//! server gives a clone that is mounted another UUID while programs write to it.

use super::Operations;
use crate::error::{Error, Result};
use extant_format::Superblock;
use extant_format::features::Compat;

impl Operations {
    /// Returns the UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.st().groups.superblock().uuid()
    }

    /// Sets the UUID. Once this returns, programs that read the device beside the mount see it.
    ///
    /// # Errors
    /// `Unsupported` for a file system of which more depends on the UUID than a seed; EROFS;
    /// those of the journal, and `Io`.
    pub fn set_uuid(&self, uuid: [u8; 16]) -> Result<()> {
        self.alive()?;
        let st = self.st();
        st.writable()?;
        // Copies of the superblock are written beside the journal, as growth does.
        let _one = self.freezing.exclude();
        self.alive()?;
        st.writable()?;
        let present = st.groups.superblock();
        if present.uuid() == uuid {
            return Ok(());
        }
        check(&present)?;
        st.begin(1)?
            .step(|step| st.groups.edit_superblock(step.handle(), |sb| sb.replace_uuid(uuid)))?;
        st.journal.checkpoint_all()?;
        self.write_superblock_copies()
    }
}

/// Refuses a new UUID where more than the seed of `metadata_csum` depends on the old one.
fn check(sb: &Superblock) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::Unsupported(format!("the UUID of this file system cannot be changed: {why}")))
    };
    if let Some(why) = sb.uuid_dependant() {
        return refuse(why);
    }
    if sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inum().0 == 0 {
        return refuse("the external journal has it too, while the file system is mounted");
    }
    Ok(())
}
