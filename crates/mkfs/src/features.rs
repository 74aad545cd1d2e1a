//! Choice of features: those of the preset, the requested ones, and those that they imply.

use super::error::{Error, Result};
use super::options::{Options, Preset};
use extant_format::{Compat, Feature, Features, Incompat, RoCompat};

const HAS_JOURNAL: Feature = Feature::Compat(Compat::HAS_JOURNAL);
const RESIZE_INODE: Feature = Feature::Compat(Compat::RESIZE_INODE);
const ORPHAN_FILE: Feature = Feature::Compat(Compat::ORPHAN_FILE);
const FAST_COMMIT: Feature = Feature::Compat(Compat::FAST_COMMIT);
const META_BG: Feature = Feature::Incompat(Incompat::META_BG);
const BIT64: Feature = Feature::Incompat(Incompat::BIT64);
const EXTENTS: Feature = Feature::Incompat(Incompat::EXTENTS);
const CSUM_SEED: Feature = Feature::Incompat(Incompat::CSUM_SEED);
const BIGALLOC: Feature = Feature::RoCompat(RoCompat::BIGALLOC);
const GDT_CSUM: Feature = Feature::RoCompat(RoCompat::GDT_CSUM);
const METADATA_CSUM: Feature = Feature::RoCompat(RoCompat::METADATA_CSUM);

/// Features that depend on another one.
const NEEDS: [(Feature, Feature); 5] = [
    (ORPHAN_FILE, HAS_JOURNAL),
    (FAST_COMMIT, HAS_JOURNAL),
    (CSUM_SEED, METADATA_CSUM),
    (BIGALLOC, EXTENTS),
    (BIT64, EXTENTS),
];

/// Features that exclude each other; the first is dropped if neither was requested, or only the
/// second.
const EXCLUDE: [(Feature, Feature); 2] = [(RESIZE_INODE, META_BG), (GDT_CSUM, METADATA_CSUM)];

/// Supported compatible features.
const COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);

/// Supported incompatible features.
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);

/// Supported read-only compatible features.
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::QUOTA)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

fn preset(preset: Preset) -> Features {
    let mut features = Features {
        compat: Compat::RESIZE_INODE | Compat::DIR_INDEX | Compat::EXT_ATTR,
        incompat: Incompat::FILETYPE,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
    };
    if preset != Preset::Ext2 {
        features.compat |= Compat::HAS_JOURNAL;
    }
    if preset == Preset::Ext4 {
        features.compat |= Compat::ORPHAN_FILE;
        features.incompat |=
            Incompat::EXTENTS | Incompat::FLEX_BG | Incompat::BIT64 | Incompat::CSUM_SEED;
        features.ro_compat |= RoCompat::HUGE_FILE
            | RoCompat::METADATA_CSUM
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE;
    }
    features
}

/// Returns the features for these options, without those that depend on the device's size.
pub(super) fn choose(options: &Options) -> Result<Features> {
    match options.revision {
        0 => return none(options),
        1 => {}
        other => return Error::invalid(format!("revision {other}: must be 0 or 1")),
    }
    let mut features =
        if options.no_default_features { Features::default() } else { preset(options.preset) };
    for (feature, on) in &options.features {
        features.set(*feature, *on);
    }
    check_supported(features)?;
    exclude(options, &mut features)?;
    depend(options, &mut features)?;
    Ok(features)
}

/// Returns the features of revision 0.
fn none(options: &Options) -> Result<Features> {
    if options.preset != Preset::Ext2 {
        return Error::invalid("revision 0 is one of ext2 alone");
    }
    match options.features.iter().find(|(feature, _)| options.asked(*feature) == Some(true)) {
        Some((feature, _)) => {
            Error::invalid(format!("revision 0 has no features: {}", name(*feature)))
        }
        None => Ok(Features::default()),
    }
}

/// Refuses unsupported features, and bits that are states, not choices.
fn check_supported(features: Features) -> Result<()> {
    let left = Features {
        compat: features.compat.difference(COMPAT),
        incompat: features.incompat.difference(INCOMPAT),
        ro_compat: features.ro_compat.difference(RO_COMPAT),
    };
    match left.names().first() {
        Some(name) => Err(Error::Unsupported(format!("making a file system with `{name}`"))),
        None => Ok(()),
    }
}

/// Keeps the requested one of two features that exclude each other.
fn exclude(options: &Options, features: &mut Features) -> Result<()> {
    for (weak, strong) in EXCLUDE {
        if !features.has(weak) || !features.has(strong) {
            continue;
        }
        match (options.asked(weak), options.asked(strong)) {
            (Some(true), Some(true)) => {
                return Error::invalid(format!(
                    "{} and {} exclude each other",
                    name(weak),
                    name(strong)
                ));
            }
            // Checksums of all metadata imply those of descriptors, so a request for the weaker
            // kind changes nothing.
            (Some(true), _) if weak == RESIZE_INODE => features.set(strong, false),
            _ => features.set(weak, false),
        }
    }
    Ok(())
}

/// Drops a default feature, or refuses a requested one, if a feature that it needs is missing.
fn depend(options: &Options, features: &mut Features) -> Result<()> {
    for (feature, needed) in NEEDS {
        if !features.has(feature) || features.has(needed) {
            continue;
        }
        if options.asked(feature) == Some(true) {
            return Error::invalid(format!("{} needs {}", name(feature), name(needed)));
        }
        features.set(feature, false);
    }
    Ok(())
}

fn name(feature: Feature) -> String {
    let mut set = Features::default();
    set.set(feature, true);
    set.names().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Result<Features> {
        let mut options = Options::default();
        options.apply_features(list)?;
        choose(&options)
    }

    #[test]
    fn defaults_without_a_journal_have_no_orphan_file() {
        let features = chosen("^has_journal").unwrap();
        assert!(!features.has(ORPHAN_FILE));
        assert!(features.has(CSUM_SEED));
        assert!(chosen("^has_journal,orphan_file").is_err());
    }

    #[test]
    fn exclusions_keep_requested_features() {
        let features = chosen("meta_bg").unwrap();
        assert!(features.has(META_BG) && !features.has(RESIZE_INODE));
        assert!(chosen("meta_bg,resize_inode").is_err());
        let features = chosen("uninit_bg,^metadata_csum").unwrap();
        assert!(features.has(GDT_CSUM) && !features.has(CSUM_SEED));
        assert!(!chosen("uninit_bg").unwrap().has(GDT_CSUM));
    }

    #[test]
    fn revision_0_has_no_features() {
        let chosen = |preset, list: &str| {
            let mut options = Options { revision: 0, ..Options::preset(preset) };
            options.apply_features(list)?;
            choose(&options)
        };
        assert_eq!(
            chosen(Preset::Ext2, "^64bit,dir_index,^dir_index").unwrap(),
            Features::default()
        );
        assert!(chosen(Preset::Ext2, "dir_index").is_err());
        assert!(chosen(Preset::Ext4, "").is_err());
        assert!(choose(&Options { revision: 2, ..Options::preset(Preset::Ext2) }).is_err());
    }

    #[test]
    fn states_and_unknown_features_are_refused() {
        for list in
            ["needs_recovery", "journal_dev", "shared_blocks", "orphan_present", "FEATURE_I30"]
        {
            assert!(matches!(chosen(list), Err(Error::Unsupported(_))), "{list}");
        }
        assert!(chosen("bigalloc,^extent").is_err());
    }
}
