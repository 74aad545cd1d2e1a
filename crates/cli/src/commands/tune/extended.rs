//! Options of tune2fs behind `-E`.

use crate::failure::{Failure, Result};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Options behind `-E`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extended {
    /// Text of mount options.
    pub mount_opts: Option<Vec<u8>>,
    /// Seconds between updates of the block of multi-mount protection.
    pub mmp_update_interval: Option<u16>,
    /// The claim of multi-mount protection ends.
    pub clear_mmp: bool,
}

impl Extended {
    /// Parses lists of options, separated by commas. The text of mount options ends a list: it may
    /// have commas itself.
    pub fn parse(lists: &[OsString]) -> Result<Extended> {
        let mut options = Extended::default();
        for list in lists {
            let mut rest = Some(list.as_bytes());
            while let Some(list) = rest {
                if let Some(text) = list.strip_prefix(b"mount_opts=") {
                    options.mount_opts = Some(text.to_vec());
                    break;
                }
                let mut parts = list.splitn(2, |byte| *byte == b',');
                options.set(parts.next().unwrap_or_default())?;
                rest = parts.next();
            }
        }
        Ok(options)
    }

    fn set(&mut self, option: &[u8]) -> Result {
        if option == b"clear_mmp" {
            self.clear_mmp = true;
            return Ok(());
        }
        let unknown = || {
            Failure::usage(
                "-E: the extended options are mount_opts=TEXT, mmp_update_interval=SECONDS and \
                 clear_mmp",
            )
        };
        let value = option.strip_prefix(b"mmp_update_interval=").ok_or_else(unknown)?;
        let seconds = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let invalid = || Failure::usage("-E mmp_update_interval=: a number of seconds, up to 300");
        self.mmp_update_interval = Some(seconds.filter(|n| *n <= 300).ok_or_else(invalid)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Option<Extended> {
        Extended::parse(&[list.into()]).ok()
    }

    #[test]
    fn lists_are_parsed() {
        let expected = Extended {
            mount_opts: Some(b"nodelalloc,debug".to_vec()),
            mmp_update_interval: Some(7),
            clear_mmp: true,
        };
        let list = "clear_mmp,mmp_update_interval=7,mount_opts=nodelalloc,debug";
        assert_eq!(parse(list), Some(expected));
        for bad in ["", "clear_mmp,", "stride=4", "mmp_update_interval=", "mmp_update_interval=301"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
