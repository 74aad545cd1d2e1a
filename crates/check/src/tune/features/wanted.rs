//! The features that a call asks for, with those that follow from them.

use crate::tune::{JournalSize, TuneChanges, TuneError};
use extant_format::quota::QuotaKind;
use extant_format::{Compat, Feature, Features, Geometry, Incompat, InodeNr, RoCompat, Superblock};

/// Features that are only marks of the superblock, and are set without another change.
const MARKS: Features = Features {
    compat: Compat::DIR_INDEX.union(Compat::FAST_COMMIT).union(Compat::STABLE_INODES),
    incompat: Incompat::EXTENTS
        .union(Incompat::LARGEDIR)
        .union(Incompat::EA_INODE)
        .union(Incompat::ENCRYPT)
        .union(Incompat::CASEFOLD),
    ro_compat: RoCompat::LARGE_FILE
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::VERITY),
};

/// Features that are set and cleared with their structures.
const SWITCHED: Features = Features {
    compat: Compat::HAS_JOURNAL.union(Compat::ORPHAN_FILE),
    incompat: Incompat::CSUM_SEED.union(Incompat::MMP).union(Incompat::BIT64),
    ro_compat: RoCompat::METADATA_CSUM
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::QUOTA)
        .union(RoCompat::PROJECT),
};

/// Marks that are cleared.
const CLEARED: Compat = Compat::DIR_INDEX.union(Compat::FAST_COMMIT);

/// The change of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalStep {
    Add(JournalSize),
    Remove,
    /// Another length, in bytes.
    Resize(u64),
    /// From another device into the file system.
    Inside(JournalSize),
    /// Onto another device, also where there is none so far.
    Outside,
}

/// The directories that are written with an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Indexing {
    /// Those of several blocks without one.
    Missing,
    /// All of several blocks.
    All,
}

/// The features and quota files before and after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub old: Features,
    pub new: Features,
    /// The kinds of quota files, in the order of [`QuotaKind::ALL`].
    pub had: [bool; 3],
    pub has: [bool; 3],
    pub journal: Option<JournalStep>,
    /// Files with pointers get extents.
    pub converts_files: bool,
    /// Directories get indexes: those without one, or all.
    pub indexes: Option<Indexing>,
    /// The new size of inodes in bytes.
    pub inode_size: Option<u16>,
    /// The seed of checksums is another one without the feature that stores it.
    seed_changes: bool,
}

fn invalid(why: impl Into<String>) -> TuneError {
    TuneError::Invalid(why.into())
}

fn refused(name: &str, why: &str) -> TuneError {
    TuneError::Unsupported(format!("the feature {name} {why}"))
}

/// A word of a list, without its sign; whether it is to be set.
fn signed(word: &str) -> (&str, bool) {
    match word.strip_prefix(['^', '-']) {
        Some(name) => (name, false),
        None => (word.strip_prefix('+').unwrap_or(word), true),
    }
}

fn words(list: Option<&String>) -> impl Iterator<Item = (&str, bool)> {
    let words = list.map(String::as_str).unwrap_or_default().split(',').map(str::trim);
    words.filter(|word| !word.is_empty()).map(signed)
}

/// The names of a list of features, as parsed.
#[derive(Default)]
struct Named {
    on: Features,
    off: Features,
}

impl Named {
    fn of(list: Option<&String>, old: Features) -> Result<Named, TuneError> {
        let mut named = Named::default();
        for (name, on) in words(list) {
            let feature = Feature::from_name(name);
            let feature = feature.ok_or_else(|| invalid(format!("`{name}` is no feature")))?;
            if old.has(feature) != on {
                check_known(feature, name, on)?;
            }
            let (to, from) =
                if on { (&mut named.on, &mut named.off) } else { (&mut named.off, &mut named.on) };
            to.set(feature, true);
            from.set(feature, false);
        }
        Ok(named)
    }
}

/// Refuses features that are not switched, and names a remedy.
fn check_known(feature: Feature, name: &str, on: bool) -> Result<(), TuneError> {
    let known = SWITCHED.has(feature)
        || if on {
            MARKS.has(feature)
        } else {
            matches!(feature, Feature::Compat(c) if CLEARED.contains(c))
        };
    if known {
        return Ok(());
    }
    Err(refused(
        name,
        match feature {
            _ if on => "is not added to a file system; copy its files into a new one",
            _ if MARKS.has(feature) => "stays: files may depend on it",
            _ => "is not removed from a file system; copy its files into a new one",
        },
    ))
}

impl Wanted {
    /// Returns the features and files that the changes ask for.
    ///
    /// # Errors
    /// Unknown names, features that are not switched, and contradictions.
    pub fn of(
        sb: &Superblock,
        geometry: &Geometry,
        changes: &TuneChanges,
    ) -> Result<Wanted, TuneError> {
        let old = sb.features();
        let named = Named::of(changes.features.as_ref(), old)?;
        let mut new = Features {
            compat: (old.compat | named.on.compat).difference(named.off.compat),
            incompat: (old.incompat | named.on.incompat).difference(named.off.incompat),
            ro_compat: (old.ro_compat | named.on.ro_compat).difference(named.off.ro_compat),
        };
        let files = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()];
        let had = files.map(|ino| ino != InodeNr::NONE && old.ro_compat.contains(RoCompat::QUOTA));
        checksums(old, &mut new, &named)?;
        let present = Present {
            has: old.compat.contains(Compat::HAS_JOURNAL),
            is_outside: sb.journal_inum() == InodeNr::NONE,
        };
        let journal = journal(present, &mut new, &named, changes)?;
        let has = quotas(had, &mut new, &named, changes.quota.as_ref())?;
        let fields = RoCompat::PROJECT | RoCompat::EXTRA_ISIZE;
        let added = new.ro_compat.difference(old.ro_compat);
        if geometry.inode_size <= 128 && added.intersects(fields) {
            let names = (added & fields).names().join(", ");
            return Err(refused(&names, "takes inodes of more than 128 bytes"));
        }
        let mut plain = sb.clone();
        plain.set_features(new);
        let seed_changes = new.ro_compat.contains(RoCompat::METADATA_CSUM)
            && old.ro_compat.contains(RoCompat::METADATA_CSUM)
            && old.incompat.contains(Incompat::CSUM_SEED)
            && plain.fs_seed() != sb.fs_seed();
        let converts_files = named.on.incompat.contains(Incompat::EXTENTS);
        let asks_index = named.on.compat.contains(Compat::DIR_INDEX);
        let indexes = if changes.compacts_directories {
            Some(Indexing::All)
        } else {
            asks_index.then_some(Indexing::Missing)
        };
        let inode_size = inode_size(geometry, changes.inode_size)?;
        Ok(Wanted {
            old,
            new,
            had,
            has,
            journal,
            converts_files,
            indexes,
            inode_size,
            seed_changes,
        })
    }

    /// Returns whether files or directories are written in another form.
    pub fn rewrites(&self) -> bool {
        self.converts_files || self.indexes.is_some()
    }

    /// Returns whether nothing changes.
    pub fn is_none(&self) -> bool {
        let is_same = self.old == self.new && self.had == self.has && !self.rewrites();
        is_same && self.journal.is_none() && self.inode_size.is_none()
    }

    /// Returns whether blocks other than the superblock change, but for the journal.
    pub fn changes_structures(&self) -> bool {
        self.changes_checksums()
            || self.had != self.has
            || self.removes(Compat::DIR_INDEX)
            || self.rewrites()
            || self.switches(Compat::ORPHAN_FILE)
            || self.mmp().is_some()
    }

    /// Returns whether descriptors are wide afterwards, if that changes.
    pub fn width(&self) -> Option<bool> {
        let [had, has] =
            [self.old, self.new].map(|features| features.incompat.contains(Incompat::BIT64));
        (had != has).then_some(has)
    }

    /// Returns whether more than the length of descriptors changes.
    pub fn changes_more_than_width(&self) -> bool {
        let mut same = self.new;
        same.incompat.toggle(Incompat::BIT64);
        let has_step = self.journal.is_some() || self.inode_size.is_some();
        same != self.old || self.had != self.has || has_step || self.rewrites()
    }

    /// Returns whether more than the size of inodes changes.
    pub fn changes_more_than_inode_size(&self) -> bool {
        !Wanted { inode_size: None, ..*self }.is_none()
    }

    /// Returns whether multi-mount protection is there afterwards, if that changes.
    pub fn mmp(&self) -> Option<bool> {
        let had = self.old.incompat.contains(Incompat::MMP);
        (had != self.has_mmp()).then_some(!had)
    }

    /// Returns whether multi-mount protection is there afterwards.
    pub fn has_mmp(&self) -> bool {
        self.new.incompat.contains(Incompat::MMP)
    }

    /// Returns whether the checksums of metadata or descriptors change.
    pub fn changes_checksums(&self) -> bool {
        let sums = RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM;
        self.seed_changes || (self.old.ro_compat & sums) != (self.new.ro_compat & sums)
    }

    /// Returns whether the seed changes, so that no checksum is valid before and after.
    pub fn changes_seed(&self) -> bool {
        self.seed_changes
    }

    pub fn removes(&self, feature: Compat) -> bool {
        self.old.compat.contains(feature) && !self.new.compat.contains(feature)
    }

    pub fn switches(&self, feature: Compat) -> bool {
        self.old.compat.contains(feature) != self.new.compat.contains(feature)
    }

    /// Returns the names of switched features, those to be cleared with a `^`.
    pub fn names(&self) -> Vec<String> {
        let changed = |from: Features, to: Features| Features {
            compat: to.compat.difference(from.compat),
            incompat: to.incompat.difference(from.incompat),
            ro_compat: to.ro_compat.difference(from.ro_compat),
        };
        let cleared = changed(self.new, self.old).names();
        let cleared = cleared.into_iter().map(|name| format!("^{name}"));
        changed(self.old, self.new).names().into_iter().chain(cleared).collect()
    }
}

/// Returns the size of inodes if it is another one.
fn inode_size(geometry: &Geometry, size: Option<u32>) -> Result<Option<u16>, TuneError> {
    let Some(size) = size.filter(|size| *size != geometry.inode_size.into()) else {
        return Ok(None);
    };
    let (present, block) = (u32::from(geometry.inode_size), geometry.block_size);
    if !size.is_power_of_two() || size > block {
        let why = format!("inodes of {size} bytes, which are a power of two up to {block}");
        return Err(invalid(why));
    }
    if size < present {
        let why = format!("inodes of {present} bytes do not become smaller");
        return Err(TuneError::Unsupported(why));
    }
    let per_block = block.checked_div(size).unwrap_or(0);
    let size = u16::try_from(size).ok().filter(|_| geometry.inodes_per_group >= per_block);
    let why = "so large inodes: a block would have more of them than a group";
    size.map(Some).ok_or_else(|| TuneError::Unsupported(why.into()))
}

/// Resolves the features of checksums: `metadata_csum` contains those of `uninit_bg`.
fn checksums(old: Features, new: &mut Features, named: &Named) -> Result<(), TuneError> {
    let had = old.ro_compat.contains(RoCompat::METADATA_CSUM);
    if new.ro_compat.contains(RoCompat::METADATA_CSUM) {
        new.ro_compat.remove(RoCompat::GDT_CSUM);
        return Ok(());
    }
    if had {
        // Without checksums of descriptors all tables would have to be written.
        let keeps = !named.off.ro_compat.contains(RoCompat::GDT_CSUM);
        new.ro_compat.set(RoCompat::GDT_CSUM, keeps);
        new.incompat.remove(Incompat::CSUM_SEED);
    }
    if named.on.incompat.contains(Incompat::CSUM_SEED) {
        return Err(refused("metadata_csum_seed", "takes metadata_csum"));
    }
    Ok(())
}

/// The journal before a change.
#[derive(Clone, Copy)]
struct Present {
    has: bool,
    is_outside: bool,
}

fn journal(
    present: Present,
    new: &mut Features,
    named: &Named,
    changes: &TuneChanges,
) -> Result<Option<JournalStep>, TuneError> {
    let (size, goes_outside) = (changes.journal_size, changes.journal_device.is_some());
    if (size.is_some() || goes_outside) && named.off.compat.contains(Compat::HAS_JOURNAL) {
        return Err(invalid("size or device of the journal that is removed"));
    }
    if size.is_some() && goes_outside {
        return Err(invalid("a journal on another device has the length of that"));
    }
    let has = new.compat.contains(Compat::HAS_JOURNAL) || size.is_some() || goes_outside;
    new.compat.set(Compat::HAS_JOURNAL, has);
    let dependent = Compat::ORPHAN_FILE | Compat::FAST_COMMIT;
    if !has {
        let asked = named.on.compat & dependent;
        if !asked.is_empty() {
            return Err(refused(&asked.names().join(", "), "takes a journal (has_journal)"));
        }
        new.compat.remove(dependent);
    }
    Ok(match (present.has, has, size) {
        _ if goes_outside => Some(JournalStep::Outside),
        (false, true, size) => Some(JournalStep::Add(size.unwrap_or(JournalSize::Default))),
        (true, false, _) => Some(JournalStep::Remove),
        (true, true, Some(size)) if present.is_outside => Some(JournalStep::Inside(size)),
        (true, true, Some(JournalSize::Bytes(bytes))) => Some(JournalStep::Resize(bytes)),
        (true, true, Some(JournalSize::Default)) => {
            return Err(invalid("the file system has a journal already; a size changes it"));
        }
        _ => None,
    })
}

/// Resolves the kinds of quota files: `quota` alone is that of users and groups, and `project` has
/// one of its own.
fn quotas(
    had: [bool; 3],
    new: &mut Features,
    named: &Named,
    list: Option<&String>,
) -> Result<[bool; 3], TuneError> {
    let mut has = had;
    let [users, groups, projects] = &mut has;
    let is_new = had == [false; 3];
    if named.on.ro_compat.contains(RoCompat::PROJECT) {
        *projects = true;
    }
    if named.on.ro_compat.contains(RoCompat::QUOTA) && is_new && list.is_none() {
        (*users, *groups) = (true, true);
        *projects |= new.ro_compat.contains(RoCompat::PROJECT);
    }
    for (name, on) in words(list) {
        match name {
            "usrquota" | "usr" => *users = on,
            "grpquota" | "grp" => *groups = on,
            "prjquota" | "prj" => *projects = on,
            _ => return Err(invalid(format!("`{name}` is none of usrquota, grpquota, prjquota"))),
        }
    }
    if *projects {
        new.ro_compat.insert(RoCompat::PROJECT);
    }
    if named.off.ro_compat.contains(RoCompat::PROJECT) {
        *projects = false;
        new.ro_compat.remove(RoCompat::PROJECT);
    }
    if named.off.ro_compat.contains(RoCompat::QUOTA) {
        has = [false; 3];
    }
    // As with tune2fs, projects go with their quota file.
    if had[2] && !has[2] {
        new.ro_compat.remove(RoCompat::PROJECT);
    }
    new.ro_compat.set(RoCompat::QUOTA, has != [false; 3]);
    Ok(has)
}

/// Returns the kinds with a change, and whether each has a file afterwards.
pub fn changed_quotas(wanted: &Wanted) -> impl Iterator<Item = (QuotaKind, bool)> + use<> {
    let states = wanted.had.into_iter().zip(wanted.has);
    QuotaKind::ALL
        .into_iter()
        .zip(states)
        .filter(|(_, (had, has))| had != has)
        .map(|(kind, (_, has))| (kind, has))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(list: &str) -> Features {
        let mut features = Features::default();
        for name in list.split(' ').filter(|name| !name.is_empty()) {
            features.set(Feature::from_name(name).expect("a feature"), true);
        }
        features
    }

    fn wanted(old: &str, changes: &TuneChanges) -> Result<Wanted, TuneError> {
        let mut sb = Superblock::empty();
        sb.set_features(features(old));
        sb.set_inode_size(256);
        let mut geometry_of = sb.clone();
        geometry_of.set_blocks_count(8193);
        geometry_of.set_first_data_block(1);
        geometry_of.set_blocks_per_group(8192);
        geometry_of.set_clusters_per_group(8192);
        geometry_of.set_inodes_per_group(1024);
        geometry_of.set_inodes_count(1024);
        geometry_of.set_rev_level(1);
        geometry_of.set_first_ino(11);
        geometry_of.set_features(Features::default());
        let geometry = Geometry::new(&geometry_of).expect("a geometry");
        Wanted::of(&sb, &geometry, changes)
    }

    fn of(old: &str, list: &str) -> Result<Wanted, TuneError> {
        let changes = TuneChanges { features: Some(list.into()), ..TuneChanges::default() };
        wanted(old, &changes)
    }

    #[test]
    fn features_bring_others_along() {
        for (old, list, names) in [
            (
                "metadata_csum metadata_csum_seed",
                "^metadata_csum",
                "uninit_bg ^metadata_csum_seed ^metadata_csum",
            ),
            ("metadata_csum", "^metadata_csum,^uninit_bg", "^metadata_csum"),
            ("uninit_bg", "metadata_csum", "metadata_csum ^uninit_bg"),
            (
                "has_journal orphan_file fast_commit",
                "^has_journal",
                "^has_journal ^fast_commit ^orphan_file",
            ),
            ("", "project", "quota project"),
            ("", "quota", "quota"),
            ("has_journal", "+dir_index,-has_journal", "dir_index ^has_journal"),
            ("dir_index", "dir_index", ""),
            ("", "mmp", "mmp"),
            ("mmp", "^mmp", "^mmp"),
            ("64bit", "^64bit", "^64bit"),
        ] {
            let wanted = of(old, list).expect(list);
            assert_eq!(wanted.names().join(" "), names, "{old}: {list}");
        }
        assert_eq!(of("", "quota").expect("quota").has, [true, true, false]);
        assert_eq!(of("", "project").expect("quota").has, [false, false, true]);
        assert_eq!(of("", "quota,project").expect("quota").has, [true; 3]);
    }

    #[test]
    fn contradictions_and_unknown_names_are_refused() {
        for (old, list) in [
            ("", "nonesuch"),
            ("", "FEATURE_C9"),
            ("", "metadata_csum_seed"),
            ("", "orphan_file"),
            ("has_journal", "^has_journal,orphan_file"),
            ("extent", "^extent"),
            ("", "bigalloc"),
            ("", "needs_recovery"),
        ] {
            assert!(of(old, list).is_err(), "{old}: {list}");
        }
    }
}
