//! Facts of a superblock that do not change in use, one by one.
//!
//! Some belong together: the number of reserved descriptor blocks means nothing without the feature
//! that reserves them.

use extant_format::superblock::RawSuperblock;
use extant_format::{Compat, Features, Incompat, RoCompat, Superblock};

/// Features that a kernel adds and removes without a change of the copies.
const OF_KERNELS: Features = Features {
    compat: Compat::EXT_ATTR,
    incompat: Incompat::RECOVER,
    ro_compat: RoCompat::LARGE_FILE.union(RoCompat::ORPHAN_PRESENT),
};

/// The name of the fact that tells of the journal.
pub const JOURNAL: &str = "journal";

/// A fact.
#[derive(Clone, Copy)]
pub struct Fact {
    /// The name, for findings.
    pub name: &'static str,
    features: Features,
    copy: fn(&mut RawSuperblock, &RawSuperblock),
}

impl Fact {
    /// Takes the fact from another superblock.
    pub fn take(&self, to: &mut Superblock, from: &Superblock) {
        (self.copy)(to.raw_mut(), from.raw());
        let (old, new, mask) = (to.features(), from.features(), self.features);
        to.set_features(Features {
            compat: old.compat.difference(mask.compat) | new.compat & mask.compat,
            incompat: old.incompat.difference(mask.incompat) | new.incompat & mask.incompat,
            ro_compat: old.ro_compat.difference(mask.ro_compat) | new.ro_compat & mask.ro_compat,
        });
    }

    /// Returns whether both are the same fact, whatever its value.
    pub fn is_like(&self, other: &Fact) -> bool {
        self.name == other.name && self.features == other.features
    }

    /// Returns whether both superblocks tell the same.
    pub fn is_same(&self, one: &Superblock, other: &Superblock) -> bool {
        let mut taken = one.clone();
        self.take(&mut taken, other);
        taken.as_bytes() == one.as_bytes()
    }
}

const fn features(compat: Compat, incompat: Incompat, ro_compat: RoCompat) -> Features {
    Features { compat, incompat, ro_compat }
}

const fn compat(compat: Compat) -> Features {
    features(compat, Incompat::empty(), RoCompat::empty())
}

const fn incompat(incompat: Incompat) -> Features {
    features(Compat::empty(), incompat, RoCompat::empty())
}

const fn ro_compat(ro_compat: RoCompat) -> Features {
    features(Compat::empty(), Incompat::empty(), ro_compat)
}

const NONE: Features = compat(Compat::empty());

macro_rules! fact {
    ($name:expr, $features:expr, $($field:ident),+) => {
        Fact {
            name: $name,
            features: $features,
            copy: |to, from| { $(to.$field = from.$field;)+ },
        }
    };
}

/// The facts that are more than a feature, those first that most others depend on.
const FACTS: &[Fact] = &[
    fact!("magic", NONE, magic),
    fact!("revision", NONE, rev_level),
    fact!("block size", NONE, log_block_size, first_data_block),
    fact!(
        "blocks per group",
        NONE,
        blocks_count_lo,
        blocks_count_hi,
        blocks_per_group,
        inodes_count,
        inodes_per_group
    ),
    fact!("clusters", ro_compat(RoCompat::BIGALLOC), log_cluster_size, clusters_per_group),
    fact!("inode size", NONE, inode_size),
    fact!("descriptor size", incompat(Incompat::BIT64), desc_size),
    fact!(
        "reserved descriptor blocks",
        features(Compat::RESIZE_INODE, Incompat::META_BG, RoCompat::empty()),
        reserved_gdt_blocks,
        first_meta_bg
    ),
    fact!(
        "groups with copies",
        features(Compat::SPARSE_SUPER2, Incompat::empty(), RoCompat::SPARSE_SUPER),
        backup_bgs
    ),
    fact!("flexible groups", incompat(Incompat::FLEX_BG), log_groups_per_flex),
    fact!(
        "checksums",
        features(
            Compat::empty(),
            Incompat::CSUM_SEED,
            RoCompat::METADATA_CSUM.union(RoCompat::GDT_CSUM)
        ),
        checksum_type,
        checksum_seed
    ),
    fact!("UUID", NONE, uuid),
    fact!("first inode", NONE, first_ino),
    fact!(
        JOURNAL,
        features(
            Compat::HAS_JOURNAL.union(Compat::FAST_COMMIT),
            Incompat::JOURNAL_DEV,
            RoCompat::empty()
        ),
        journal_inum,
        journal_dev,
        journal_uuid
    ),
    fact!(
        "quota",
        ro_compat(RoCompat::QUOTA.union(RoCompat::PROJECT)),
        usr_quota_inum,
        grp_quota_inum,
        prj_quota_inum
    ),
    fact!("orphan file", compat(Compat::ORPHAN_FILE), orphan_file_inum),
    fact!("multiple mount protection", incompat(Incompat::MMP), mmp_block),
    fact!("hashes of names", NONE, hash_seed, def_hash_version),
    fact!("encoding of names", incompat(Incompat::CASEFOLD), encoding, encoding_flags),
    fact!("system", NONE, creator_os),
];

/// Returns the facts in which both superblocks differ.
pub fn differing(one: &Superblock, other: &Superblock) -> Vec<Fact> {
    let differ = |fact: &Fact| !fact.is_same(one, other);
    let own = FACTS.iter().map(|fact| fact.features).chain([OF_KERNELS]);
    let known = own.fold(NONE, |all, more| Features {
        compat: all.compat | more.compat,
        incompat: all.incompat | more.incompat,
        ro_compat: all.ro_compat | more.ro_compat,
    });
    let bits = (0..32).map(|bit| 1u32 << bit).flat_map(|bit| {
        [
            compat(Compat::from_bits_retain(bit & !known.compat.bits())),
            incompat(Incompat::from_bits_retain(bit & !known.incompat.bits())),
            ro_compat(RoCompat::from_bits_retain(bit & !known.ro_compat.bits())),
        ]
    });
    let others = bits.map(|features| Fact { name: "features", features, copy: |_, _| () });
    FACTS.iter().copied().chain(others).filter(differ).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_taken_alone() {
        let mut one = Superblock::empty();
        let mut other = one.clone();
        other.set_reserved_gdt_blocks(7);
        let both = Compat::RESIZE_INODE | Compat::DIR_INDEX | Compat::EXT_ATTR;
        other.set_features(compat(both));
        let names = |one: &Superblock, other: &Superblock| -> Vec<&str> {
            differing(one, other).iter().map(|fact| fact.name).collect()
        };
        assert_eq!(names(&one, &other), ["reserved descriptor blocks", "features"]);
        differing(&one, &other)[0].take(&mut one, &other);
        assert_eq!((one.reserved_gdt_blocks(), one.compat()), (7, Compat::RESIZE_INODE));
        assert_eq!(names(&one, &other), ["features"]);
    }
}
