//! The label of the file system.

use super::Operations;
use crate::error::{Errno, Result};

/// Maximum length of a label, in bytes.
const MAX_LABEL: usize = 16;

impl Operations {
    /// The label; bytes that are not UTF-8 are replaced.
    pub fn label(&self) -> String {
        self.st().groups.superblock().volume_name()
    }

    /// Sets the label. Once this returns, programs that read the device beside the mount see it.
    ///
    /// # Errors
    /// EINVAL for more than 16 bytes, and for a zero among them.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > MAX_LABEL || label.contains(&0) {
            return Err(Errno::Inval.into());
        }
        self.alive()?;
        let st = self.st();
        st.begin(1)?.step(|step| {
            st.groups.edit_superblock(step.handle(), |sb| sb.set_volume_name(label))
        })?;
        Ok(st.journal.checkpoint_all()?)
    }
}
