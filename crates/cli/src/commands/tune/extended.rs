//! Options of tune2fs behind `-E`.

use crate::failure::{Failure, Result};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

/// Maximum number of seconds between updates of the block of multi-mount protection.
const MAX_SECONDS: u16 = 300;

/// Names of hashes by their numbers.
const HASHES: [&str; 3] = ["legacy", "half_md4", "tea"];

/// Options behind `-E`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extended {
    /// Text of mount options.
    pub mount_opts: Option<Vec<u8>>,
    /// Seconds between updates of the block of multi-mount protection.
    pub mmp_update_interval: Option<u16>,
    /// The claim of multi-mount protection ends.
    pub clear_mmp: bool,
    /// Blocks of a RAID chunk, and of a stripe.
    pub stride: Option<u16>,
    pub stripe_width: Option<u32>,
    /// The hash of new indexes.
    pub hash_version: Option<u8>,
    /// Whether the file system is one for tests.
    pub is_test: Option<bool>,
    /// The next check is a whole one.
    pub asks_check: bool,
    /// Names may ignore case: the feature `casefold`.
    pub folds_case: bool,
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
        let unknown = || {
            Failure::usage(
                "-E: the extended options are mount_opts=TEXT, mmp_update_interval=SECONDS, \
                 clear_mmp, stride=BLOCKS, stripe_width=BLOCKS, hash_alg=NAME, test_fs, ^test_fs, \
                 force_fsck and encoding=utf8",
            )
        };
        let text = std::str::from_utf8(option).map_err(|_| unknown())?;
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        match (name, value) {
            ("clear_mmp", "") => self.clear_mmp = true,
            ("test_fs", "") => self.is_test = Some(true),
            ("^test_fs", "") => self.is_test = Some(false),
            ("force_fsck", "") => self.asks_check = true,
            ("mmp_update_interval", _) => {
                let seconds = number(name, value)?;
                if seconds > MAX_SECONDS {
                    return Err(wrong(name, value));
                }
                self.mmp_update_interval = Some(seconds);
            }
            ("stride", _) => self.stride = Some(number(name, value)?),
            ("stripe_width" | "stripe-width", _) => self.stripe_width = Some(number(name, value)?),
            ("hash_alg", _) => {
                let known = HASHES.iter().position(|hash| *hash == value);
                let known = known.and_then(|hash| u8::try_from(hash).ok());
                self.hash_version = Some(known.ok_or_else(|| wrong(name, value))?);
            }
            // The only encoding.
            ("encoding", "utf8" | "utf8-12.1") => self.folds_case = true,
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn wrong(name: &str, value: &str) -> Failure {
    Failure::usage(format_args!("-E {name}=: `{value}` is no value of it"))
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| wrong(name, value))
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
            stride: Some(4),
            stripe_width: Some(70_000),
            hash_version: Some(2),
            is_test: Some(false),
            asks_check: true,
            folds_case: true,
        };
        let list = "clear_mmp,mmp_update_interval=7,stride=4,stripe-width=70000,hash_alg=tea,\
                    ^test_fs,force_fsck,encoding=utf8,mount_opts=nodelalloc,debug";
        assert_eq!(parse(list), Some(expected));
        for bad in ["", "clear_mmp,", "stride=", "hash_alg=x", "test_fs=1", "encoding=x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        for bad in ["mmp_update_interval=", "mmp_update_interval=301", "stride=65536"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
