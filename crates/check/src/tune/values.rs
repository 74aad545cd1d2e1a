//! The new superblock: each value is checked, then set.

use super::open::Tunable;
use super::{ReservedShare, TuneChanges, TuneError};
use extant_format::mmp::{MMP_MAX_CHECK_INTERVAL, MMP_UPDATE_INTERVAL};
use extant_format::superblock::{DefaultMountOpts, State, SuperFlags};
use extant_format::{Compat, InodeNr, Superblock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a label.
const MAX_LABEL: usize = 16;

/// Bytes of the text of mount options: its field ends with a zero.
const MAX_MOUNT_OPTIONS: usize = 63;

/// Bytes of the directory of the last mount: its field ends with a zero.
const MAX_DIRECTORY: usize = 63;

/// The newest hash that needs no key.
const TEA: u8 = 2;

/// Maximum number of mounts until a check, and since one.
const MAX_MOUNTS: u16 = 16000;

/// The value of `max_mnt_count` for no limit.
const NO_LIMIT: u16 = u16::MAX;

impl Tunable<'_> {
    /// Returns the superblock with new values, and the current time as that of the last write.
    pub fn with_values(&self, changes: &TuneChanges) -> Result<Superblock, TuneError> {
        let mut sb = self.primary.superblock.clone();
        set_texts(&mut sb, changes)?;
        set_reserve(&mut sb, changes)?;
        set_checks(&mut sb, changes)?;
        set_marks(&mut sb, changes)?;
        if let Some(policy) = changes.errors {
            sb.set_error_policy(policy);
        }
        if let Some(uuid) = changes.uuid.filter(|uuid| *uuid != sb.uuid()) {
            self.check_uuid()?;
            sb.replace_uuid(uuid);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        sb.set_wtime(now.as_secs());
        Ok(sb)
    }

    /// Refuses a new UUID where more than the seed of `metadata_csum` depends on the old one.
    fn check_uuid(&self) -> Result<(), TuneError> {
        let sb = &self.primary.superblock;
        let refuse =
            |why: &str| Err(TuneError::Unsupported(format!("the UUID cannot be changed: {why}")));
        if let Some(why) = sb.uuid_dependant() {
            return refuse(why);
        }
        let is_external =
            sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inum() == InodeNr::NONE;
        if is_external && self.log.is_none() {
            return refuse("the external journal has it too, and its device is not named");
        }
        Ok(())
    }
}

fn invalid(why: impl Into<String>) -> TuneError {
    TuneError::Invalid(why.into())
}

fn check_text(name: &str, text: &[u8], max: usize) -> Result<(), TuneError> {
    if text.len() > max {
        return Err(invalid(format!("{name}: {} bytes, of at most {max}", text.len())));
    }
    if text.contains(&0) {
        return Err(invalid(format!("{name}: a zero byte would end the text")));
    }
    Ok(())
}

fn set_texts(sb: &mut Superblock, changes: &TuneChanges) -> Result<(), TuneError> {
    if let Some(label) = &changes.label {
        check_text("label", label, MAX_LABEL)?;
        sb.set_volume_name(label);
    }
    if let Some(options) = &changes.mount_options {
        check_text("mount options", options, MAX_MOUNT_OPTIONS)?;
        sb.set_mount_opts(options);
    }
    if let Some(directory) = &changes.last_mounted {
        check_text("directory of the last mount", directory, MAX_DIRECTORY)?;
        sb.set_last_mounted(directory);
    }
    if let Some(list) = &changes.default_mount_options {
        let edited = sb.default_mount_opts().edited(list);
        let unknown =
            |name| invalid(format!("`{name}`: default mount options are {}", option_names()));
        sb.set_default_mount_opts(edited.map_err(unknown)?);
    }
    Ok(())
}

fn option_names() -> String {
    let journal = ["journal_data", "journal_data_ordered", "journal_data_writeback"];
    let mut names = DefaultMountOpts::all().difference(DefaultMountOpts::JMODE).names();
    names.extend(journal);
    names.join(", ")
}

fn set_reserve(sb: &mut Superblock, changes: &TuneChanges) -> Result<(), TuneError> {
    let all = sb.blocks_count();
    match changes.reserved {
        Some(ReservedShare::Percent(share)) if (0.0..=50.0).contains(&share) => {
            sb.set_r_blocks_count((share * all as f64 / 100.0) as u64);
        }
        Some(ReservedShare::Percent(share)) => {
            return Err(invalid(format!("{share} percent of reserved blocks, of 0 to 50")));
        }
        Some(ReservedShare::Blocks(count)) if count <= all / 2 => sb.set_r_blocks_count(count),
        Some(ReservedShare::Blocks(count)) => {
            return Err(invalid(format!("{count} reserved blocks, of at most {}", all / 2)));
        }
        None => {}
    }
    if let Some(uid) = changes.reserved_uid {
        sb.set_def_resuid(uid);
    }
    if let Some(gid) = changes.reserved_gid {
        sb.set_def_resgid(gid);
    }
    Ok(())
}

fn set_checks(sb: &mut Superblock, changes: &TuneChanges) -> Result<(), TuneError> {
    if let Some(count) = changes.max_mount_count {
        if count > MAX_MOUNTS && count != NO_LIMIT {
            return Err(invalid(format!("{count} mounts until a check, of at most {MAX_MOUNTS}")));
        }
        sb.set_max_mnt_count(if count == 0 { NO_LIMIT } else { count });
    }
    if let Some(count) = changes.mount_count {
        if count > MAX_MOUNTS {
            return Err(invalid(format!("{count} mounts since a check, of at most {MAX_MOUNTS}")));
        }
        sb.set_mnt_count(count);
    }
    if let Some(interval) = changes.check_interval {
        sb.set_checkinterval(interval);
    }
    if let Some(time) = changes.last_check {
        sb.set_lastcheck(time);
    }
    if let Some(interval) = changes.mmp_update_interval {
        if interval > MMP_MAX_CHECK_INTERVAL {
            let most = MMP_MAX_CHECK_INTERVAL;
            return Err(invalid(format!("{interval} s between updates, of at most {most}")));
        }
        sb.set_mmp_update_interval(if interval == 0 { MMP_UPDATE_INTERVAL } else { interval });
    }
    Ok(())
}

/// Sets values that only other programs obey, and the mark of errors.
fn set_marks(sb: &mut Superblock, changes: &TuneChanges) -> Result<(), TuneError> {
    if let Some(stride) = changes.raid_stride {
        sb.set_raid_stride(stride);
    }
    if let Some(width) = changes.raid_stripe_width {
        sb.set_raid_stripe_width(width);
    }
    match changes.hash_version {
        Some(hash) if hash > TEA => return Err(invalid(format!("hash {hash} of 0, 1 and 2"))),
        Some(hash) => sb.set_def_hash_version(hash),
        None => {}
    }
    if let Some(is_test) = changes.is_test {
        let mut flags = sb.flags();
        flags.set(SuperFlags::TEST_FILESYS, is_test);
        sb.set_flags(flags);
    }
    if changes.asks_check {
        sb.set_state(sb.state() | State::ERROR);
    }
    Ok(())
}
