//! Options of mkfs. Unset options get the value that `mke2fs` 1.47 chooses, for the device's size
//! where that matters.

use super::error::{Error, Result};
use extant_format::quota::QuotaKind;
use extant_format::superblock::ErrorPolicy;
use extant_format::{Feature, Features, Timestamp};

/// Kind of file system that determines the default features, as `mke2fs -t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Preset {
    /// No journal, block maps.
    Ext2,
    /// A journal, block maps.
    Ext3,
    /// Features of `mke2fs -t ext4`, plus `orphan_file` and `metadata_csum_seed`.
    #[default]
    Ext4,
}

/// Policy for parts of the device that must read as zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Zeroing {
    /// Zero the parts that readers depend on, unless the device reports them as zero. Inode tables
    /// are left to the kernel's background initialization if descriptors have checksums.
    #[default]
    Lazy,
    /// Zero inode tables, too.
    Full,
    /// Zero nothing: the whole device reads as zeroes.
    Known,
}

/// A length in one of two units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Length {
    /// In bytes, rounded up to whole blocks.
    Bytes(u64),
    /// In blocks.
    Blocks(u64),
}

/// Options of a new file system. The default equals `mke2fs -t ext4`, plus `orphan_file` and
/// `metadata_csum_seed`.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Source of the default features.
    pub preset: Preset,
    /// Revision: 1, or 0 for an ext2 as the first kernels had it, without features, with inodes of
    /// 128 bytes.
    pub revision: u32,
    /// Size of the file system in bytes; the device's length if unset.
    pub size: Option<u64>,
    /// Block size in bytes, 1024 to 65536; by size if unset: 1024 below 512 MiB, else 4096.
    pub block_size: Option<u32>,
    /// Cluster size in bytes with `bigalloc`; 16 blocks if unset.
    pub cluster_size: Option<u32>,
    /// Blocks of a group, or clusters with `bigalloc`, a multiple of 8 from 256 on; as many as a
    /// block has bits if unset.
    pub group_blocks: Option<u32>,
    /// Inode size in bytes; 256 if unset, or 128 with revision 0.
    pub inode_size: Option<u16>,
    /// Bytes of the device per inode; by size if unset.
    pub inode_ratio: Option<u64>,
    /// Number of inodes; wins over the ratio.
    pub inode_count: Option<u64>,
    /// Label, at most 16 bytes.
    pub label: Vec<u8>,
    /// UUID; random if unset.
    pub uuid: Option<[u8; 16]>,
    /// Seed of directory hashes, the bytes of a UUID; random if unset.
    pub hash_seed: Option<[u8; 16]>,
    /// Seed of the UUID and the hash seed, if these are unset. Equal seeds, options and times give
    /// images with equal bytes.
    pub seed: Option<u64>,
    /// Features set or cleared, in order.
    pub features: Vec<(Feature, bool)>,
    /// Starts from no features instead of the preset's.
    pub no_default_features: bool,
    /// Percent of the blocks reserved for root, 0 to 50.
    pub reserved_percent: f64,
    /// Size of the journal in bytes, the fast-commit area not counted; by size if unset.
    pub journal_size: Option<u64>,
    /// Size of the fast-commit area in bytes with `fast_commit`; 1/64 of the journal if unset.
    pub fast_commit_size: Option<u64>,
    /// Groups of a flexible group, a power of two; 16 if unset.
    pub flex_bg_size: Option<u32>,
    /// Size of the orphan file; by the file system's size if unset.
    pub orphan_file_size: Option<Length>,
    /// Reaction to errors.
    pub errors: ErrorPolicy,
    /// RAID stride in blocks.
    pub stride: u16,
    /// RAID stripe width in blocks.
    pub stripe_width: u32,
    /// The size that the file system can later grow to, for the reserved descriptor blocks; 1024
    /// times its size if unset.
    pub resize_limit: Option<Length>,
    /// Number of superblock copies with `sparse_super2`, 0 to 2.
    pub backup_superblocks: u8,
    /// Seconds between updates of the block of multiple mount protection.
    pub mmp_interval: u16,
    /// The quota files that `quota` makes; those of users and groups if unset, and that of projects
    /// with `project`.
    pub quota_kinds: Option<Vec<QuotaKind>>,
    /// Whether case-folded directories refuse names that are not valid UTF-8.
    pub strict_names: bool,
    /// Owner of the root directory.
    pub root_owner: (u32, u32),
    /// Permission bits of the root directory.
    pub root_mode: u16,
    /// Time of creation; now if unset.
    pub time: Option<Timestamp>,
    /// Whether unused parts are zeroed.
    pub zeroing: Zeroing,
    /// Whether the whole device is discarded first.
    pub discard: bool,
    /// Whether copies of superblock and descriptors are written. Only simulations of very large
    /// devices disable this.
    pub write_backups: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            preset: Preset::default(),
            revision: 1,
            size: None,
            block_size: None,
            cluster_size: None,
            group_blocks: None,
            inode_size: None,
            inode_ratio: None,
            inode_count: None,
            label: Vec::new(),
            uuid: None,
            hash_seed: None,
            seed: None,
            features: Vec::new(),
            no_default_features: false,
            reserved_percent: 5.0,
            journal_size: None,
            fast_commit_size: None,
            flex_bg_size: None,
            orphan_file_size: None,
            errors: ErrorPolicy::Continue,
            stride: 0,
            stripe_width: 0,
            resize_limit: None,
            backup_superblocks: 2,
            mmp_interval: 5,
            quota_kinds: None,
            strict_names: false,
            root_owner: (0, 0),
            root_mode: 0o755,
            time: None,
            zeroing: Zeroing::default(),
            discard: false,
            write_backups: true,
        }
    }
}

impl Options {
    /// Makes options of this preset, with defaults for everything else.
    pub fn preset(preset: Preset) -> Self {
        Self { preset, ..Self::default() }
    }

    /// Applies a list in the form of `mke2fs -O`: names, `^name` to clear a feature, `none` to
    /// start without features.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name.
    pub fn apply_features(&mut self, list: &str) -> Result<()> {
        for word in words(list) {
            if word == "none" {
                self.no_default_features = true;
                self.features.clear();
                continue;
            }
            let (name, on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
            let feature = Feature::from_name(name)
                .ok_or_else(|| Error::Invalid(format!("unknown feature `{name}`")))?;
            self.features.push((feature, on));
        }
        Ok(())
    }

    /// Applies a list in the form of `mke2fs -E`: `stride=`, `stripe_width=`, `resize=`,
    /// `num_backup_sb=`, `mmp_update_interval=`, `root_owner=`, `quotatype=`, `encoding=`,
    /// `encoding_flags=`, `root_perms=`, `hash_seed=`, `orphan_file_size=`, `lazy_itable_init=`,
    /// `assume_storage_prezeroed=`, `discard`, `nodiscard`. `lazy_journal_init`,
    /// `packed_meta_blocks` and `no_copy_xattrs` are accepted without effect.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown option or an invalid value.
    pub fn apply_extended(&mut self, list: &str) -> Result<()> {
        words(list).try_for_each(|word| {
            let (name, value) = split(word);
            self.extended(name, value)
        })
    }

    fn extended(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "stride" => self.stride = number(name, value)?,
            "stripe_width" | "stripe-width" => self.stripe_width = number(name, value)?,
            "resize" => self.resize_limit = Some(length(value)?),
            "num_backup_sb" => self.backup_superblocks = number(name, value)?,
            "mmp_update_interval" => self.mmp_interval = number(name, value)?,
            "root_owner" => self.root_owner = owner(value)?,
            "encoding" if matches!(value, "utf8" | "utf8-12.1") => {}
            "encoding_flags" if matches!(value, "strict" | "nostrict") => {
                self.strict_names = value == "strict"
            }
            "quotatype" => self.quota_kinds = Some(quota_kinds(value)?),
            "root_perms" => self.root_mode = octal(name, value)?,
            "hash_seed" => self.hash_seed = Some(parse_uuid(value)?),
            "orphan_file_size" => self.orphan_file_size = Some(length(value)?),
            "lazy_itable_init" if value != "0" => self.zeroing = Zeroing::Lazy,
            "lazy_itable_init" => self.zeroing = Zeroing::Full,
            "assume_storage_prezeroed" if value != "0" => self.zeroing = Zeroing::Known,
            "assume_storage_prezeroed" | "lazy_journal_init" | "packed_meta_blocks" => {}
            // Attributes are those of a source, which mkfs has not.
            "no_copy_xattrs" => {}
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            _ => return Error::invalid(format!("unknown extended option `{name}`")),
        }
        Ok(())
    }

    /// Applies a list in the form of `mke2fs -J`: `size=` and `fast_commit_size=`, in MiB and KiB
    /// without a unit.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown option; [`Error::Unsupported`] for an external journal.
    pub fn apply_journal(&mut self, list: &str) -> Result<()> {
        for word in words(list) {
            let (name, value) = split(word);
            match name {
                "size" => self.journal_size = Some(size_in(value, 20)?),
                "fast_commit_size" => self.fast_commit_size = Some(size_in(value, 10)?),
                "device" => {
                    let remedy = "a journal on another device: make the file system with \
                                  ^has_journal, then move it there (`extant tune -J device=PATH`)";
                    return Err(Error::Unsupported(remedy.into()));
                }
                _ => return Error::invalid(format!("unknown journal option `{name}`")),
            }
        }
        Ok(())
    }
    /// Returns the request for a feature: set, cleared, or none.
    pub(super) fn asked(&self, feature: Feature) -> Option<bool> {
        let only = |on| {
            let mut set = Features::default();
            set.set(on, true);
            set
        };
        self.features.iter().rev().find(|(f, _)| only(*f) == only(feature)).map(|(_, on)| *on)
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty())
}

fn split(word: &str) -> (&str, &str) {
    word.split_once('=').unwrap_or((word, ""))
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| Error::Invalid(format!("`{name}` is no number: `{value}`")))
}

fn octal(name: &str, value: &str) -> Result<u16> {
    match u16::from_str_radix(value, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Error::invalid(format!("`{name}` are no permission bits: `{value}`")),
    }
}

fn quota_kinds(value: &str) -> Result<Vec<QuotaKind>> {
    let kind = |name| match name {
        "usrquota" => Ok(QuotaKind::User),
        "grpquota" => Ok(QuotaKind::Group),
        "prjquota" => Ok(QuotaKind::Project),
        other => Error::invalid(format!("no kind of quota: `{other}`")),
    };
    value.split(':').map(kind).collect()
}

fn owner(value: &str) -> Result<(u32, u32)> {
    let (uid, gid) = value.split_once(':').unwrap_or((value, "0"));
    Ok((number("root_owner", uid)?, number("root_owner", gid)?))
}

/// Parses a length. A number without a unit counts blocks, as in `mke2fs`.
fn length(value: &str) -> Result<Length> {
    let number = parse_size(value)?;
    Ok(if is_plain(value) { Length::Blocks(number) } else { Length::Bytes(number) })
}

fn is_plain(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_digit())
}

fn size_in(value: &str, shift: u32) -> Result<u64> {
    let bytes = parse_size(value)?;
    if !is_plain(value) {
        return Ok(bytes);
    }
    bytes
        .checked_mul(1 << shift)
        .ok_or_else(|| Error::Invalid(format!("size out of range: `{value}`")))
}

/// Parses a size in bytes: a number, optionally followed by `k`, `m`, `g`, `t` or `p` (powers of
/// 1024).
///
/// # Errors
/// [`Error::Invalid`] for anything else.
pub fn parse_size(text: &str) -> Result<u64> {
    let fail = || Error::Invalid(format!("not a size: `{text}`"));
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib") {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(fail()),
    };
    let number: u64 = digits.parse().map_err(|_| fail())?;
    number.checked_mul(1 << shift).ok_or_else(fail)
}

/// Parses a UUID in its usual text form, with or without dashes.
///
/// # Errors
/// [`Error::Invalid`] for anything else.
pub fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    let fail = || Error::Invalid(format!("not a UUID: `{text}`"));
    if digits.len() != 32 {
        return Err(fail());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| fail())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| fail())?;
    }
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::{Compat, Incompat};

    #[test]
    fn feature_lists_are_applied_in_order() {
        let mut options = Options::default();
        options.apply_features("^has_journal,inline_data has_journal").unwrap();
        assert_eq!(options.asked(Feature::Compat(Compat::HAS_JOURNAL)), Some(true));
        assert_eq!(options.asked(Feature::Incompat(Incompat::INLINE_DATA)), Some(true));
        assert_eq!(options.asked(Feature::Incompat(Incompat::MMP)), None);
        assert!(options.apply_features("nonsense").is_err());
        options.apply_features("none,extent").unwrap();
        assert!(options.no_default_features);
        assert_eq!(options.features.len(), 1);
    }

    #[test]
    fn extended_options_are_applied() {
        let mut options = Options::default();
        options
            .apply_extended(
                "stride=16,stripe_width=64,root_owner=1000:100,nodiscard,num_backup_sb=1",
            )
            .unwrap();
        assert_eq!(
            (options.stride, options.stripe_width, options.root_owner),
            (16, 64, (1000, 100))
        );
        assert_eq!(options.backup_superblocks, 1);
        assert!(options.apply_extended("stride=x").is_err());
        assert!(options.apply_extended("what").is_err());
        options.apply_journal("size=16").unwrap();
        assert_eq!(options.journal_size, Some(16 << 20));
        assert!(matches!(options.apply_journal("device=/dev/sdb"), Err(Error::Unsupported(_))));
    }

    #[test]
    fn sizes_and_uuids() {
        assert_eq!(parse_size("60T").unwrap(), 60 << 40);
        assert_eq!(parse_size("1MiB").unwrap(), 1 << 20);
        for bad in ["", "k", "1x", "99999999999T", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        let uuid = parse_uuid("6f7ae4d6-9c2f-4f0e-8b1c-2d3a5b7c9e10").unwrap();
        assert_eq!((uuid[0], uuid[15]), (0x6f, 0x10));
        assert!(parse_uuid("6f7ae4d6").is_err());
        assert!(parse_uuid("zz7ae4d6-9c2f-4f0e-8b1c-2d3a5b7c9e10").is_err());
    }
}
