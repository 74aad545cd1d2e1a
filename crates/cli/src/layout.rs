//! Options of a new file system on the command line, as mke2fs(8) has them.

use crate::failure::{Failure, Result};
use extant_archive::{root_is_feigned, shown_ids};
use extant_engine::format::ErrorPolicy;
use extant_engine::mkfs::{self, Options, Preset, parse_size, parse_uuid};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The variable by which programs tell mke2fs the time.
const FAKE_TIME: &str = "E2FSPROGS_FAKE_TIME";

/// The extended option with the owner of the root.
const ROOT_OWNER: &str = "root_owner";

/// The extended option that leaves attributes of sources out.
const NO_XATTRS: &str = "no_copy_xattrs";

/// Options of a new file system, but for its size and the seed.
#[derive(clap::Args, Debug)]
pub struct LayoutArgs {
    /// The kind: ext2, ext3 or ext4
    #[arg(
        short = 't',
        value_name = "TYPE",
        default_value = "ext4",
        value_parser = ["ext2", "ext3", "ext4"],
    )]
    kind: String,
    /// Revision: 0 for an ext2 without features, else 1
    #[arg(short = 'r', value_name = "REVISION", default_value_t = 1)]
    revision: u32,
    /// Block size in bytes
    #[arg(short = 'b', value_name = "BYTES")]
    block_size: Option<String>,
    /// Cluster size in bytes, with bigalloc
    #[arg(short = 'C', value_name = "BYTES")]
    cluster_size: Option<String>,
    /// Blocks of a group, or clusters with bigalloc
    #[arg(short = 'g', value_name = "COUNT")]
    group_blocks: Option<u32>,
    /// Bytes for each inode
    #[arg(short = 'i', value_name = "BYTES")]
    inode_ratio: Option<String>,
    /// Inode size in bytes
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<String>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "COUNT")]
    inodes: Option<u64>,
    /// Label
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<OsString>,
    /// UUID
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Features to set, or with ^ to clear
    #[arg(short = 'O', value_name = "FEATURES", allow_hyphen_values = true)]
    features: Vec<String>,
    /// Extended options
    #[arg(short = 'E', value_name = "OPTIONS")]
    extended: Vec<String>,
    /// Options of the journal
    #[arg(short = 'J', value_name = "OPTIONS")]
    journal: Vec<String>,
    /// With a journal
    #[arg(short = 'j')]
    with_journal: bool,
    /// Groups of a flexible group
    #[arg(short = 'G', value_name = "COUNT")]
    flex_groups: Option<u32>,
    /// Percent of the blocks that are kept for root
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved: Option<f64>,
    /// Behavior of the kernel on errors
    #[arg(short = 'e', value_name = "WHAT", value_parser = ["continue", "remount-ro", "panic"])]
    errors: Option<String>,
}

/// The option of the journal that names its device.
const DEVICE: &str = "device=";

impl LayoutArgs {
    /// Returns the options, without size, time and seed.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn options(&self) -> Result<Options> {
        let preset = match self.kind.as_str() {
            "ext2" => Preset::Ext2,
            "ext3" => Preset::Ext3,
            _ => Preset::Ext4,
        };
        let usage = |e: mkfs::Error| Failure::usage(e);
        let mut options = Options::preset(preset);
        options.revision = self.revision;
        options.block_size = number("-b", &self.block_size)?;
        options.cluster_size = number("-C", &self.cluster_size)?;
        options.group_blocks = self.group_blocks;
        options.inode_ratio = number("-i", &self.inode_ratio)?;
        options.inode_size = number("-I", &self.inode_size)?;
        // Zero stands for the default, as with mke2fs.
        options.inode_count = self.inodes.filter(|count| *count > 0);
        options.label =
            self.label.as_ref().map(|label| label.as_bytes().to_vec()).unwrap_or_default();
        options.uuid = self.uuid()?;
        options.flex_bg_size = self.flex_groups;
        options.reserved_percent = self.reserved.unwrap_or(options.reserved_percent);
        options.errors = match self.errors.as_deref() {
            Some("remount-ro") => ErrorPolicy::RemountReadOnly,
            Some("panic") => ErrorPolicy::Panic,
            _ => ErrorPolicy::Continue,
        };
        if self.with_journal {
            options.apply_features("has_journal").map_err(usage)?;
        }
        self.features.iter().try_for_each(|list| options.apply_features(list)).map_err(usage)?;
        let mut extended = self.extended.iter().map(|list| with_own_ids(list));
        extended.try_for_each(|list| options.apply_extended(&list)).map_err(usage)?;
        let lists = self.journal.iter().map(|list| without_device(list));
        lists.into_iter().try_for_each(|list| options.apply_journal(&list)).map_err(usage)?;
        Ok(options)
    }

    /// Returns the device of the journal that `-J device=` names.
    pub fn journal_device(&self) -> Option<&Path> {
        let mut words = self.journal.iter().flat_map(|list| list.split([',', ' '])).rev();
        words.find_map(|word| word.strip_prefix(DEVICE)).map(Path::new)
    }

    /// Returns the owner of the root that is asked for.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn root_owner(&self) -> Result<Option<(u32, u32)>> {
        let is_asked = self.has_extended(ROOT_OWNER);
        Ok(if is_asked { Some(self.options()?.root_owner) } else { None })
    }

    /// Returns whether extended attributes of sources are left out.
    pub fn leaves_xattrs_out(&self) -> bool {
        self.has_extended(NO_XATTRS)
    }

    fn has_extended(&self, name: &str) -> bool {
        let lists = self.extended.iter().flat_map(|list| list.split([',', ' ']));
        lists.map(|word| word.split('=').next()).any(|found| found == Some(name))
    }

    fn uuid(&self) -> Result<Option<[u8; 16]>> {
        match self.uuid.as_deref() {
            // A UUID of the time names the machine, and no program asks for that.
            None | Some("random" | "time") => Ok(None),
            Some("clear") => Ok(Some([0; 16])),
            Some(text) => Ok(Some(parse_uuid(text).map_err(Failure::usage)?)),
        }
    }
}

/// Returns options of a journal without its device.
fn without_device(list: &str) -> String {
    let words = list.split([',', ' ']).filter(|word| !word.starts_with(DEVICE));
    words.collect::<Vec<_>>().join(",")
}

/// Returns options with the user and the group of this process for `root_owner` without a value.
fn with_own_ids(list: &str) -> String {
    // fakeroot(1) and pseudo(1) answer the C library only.
    let ids = if root_is_feigned() {
        shown_ids()
    } else {
        (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    };
    let words = list.split([',', ' ']).map(|word| match word {
        "root_owner" => format!("root_owner={}:{}", ids.0, ids.1),
        other => other.into(),
    });
    words.collect::<Vec<_>>().join(",")
}

fn number<T: TryFrom<u64>>(option: &str, text: &Option<String>) -> Result<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    let number = parse_size(text).ok().and_then(|n| T::try_from(n).ok());
    number
        .map(Some)
        .ok_or_else(|| Failure::usage(format_args!("{option} takes a number, not {text}")))
}

/// Returns the time of creation that is asked for, in seconds since 1970: by `SOURCE_DATE_EPOCH`,
/// or for mke2fs by `E2FSPROGS_FAKE_TIME`, where 0 stands for none.
pub fn creation_time() -> Result<Option<i64>> {
    Ok(match epoch()? {
        None => seconds(FAKE_TIME)?.filter(|sec| *sec > 0),
        epoch => epoch,
    })
}

/// Returns the time that `SOURCE_DATE_EPOCH` sets for reproducible output, in seconds since 1970.
pub fn epoch() -> Result<Option<i64>> {
    seconds("SOURCE_DATE_EPOCH")
}

fn seconds(variable: &str) -> Result<Option<i64>> {
    let Some(text) = std::env::var_os(variable) else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.parse().ok()).filter(|sec| *sec >= 0);
    number.map(Some).ok_or_else(|| {
        Failure::usage(format_args!(
            "{variable}: must be a number of seconds since 1970; unset it else"
        ))
    })
}
