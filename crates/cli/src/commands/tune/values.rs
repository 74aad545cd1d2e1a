//! Values of the superblock as they are given and printed.

use crate::failure::Result;
use crate::text::{seconds, shown, uuid};
use extant_check::tune::TuneChanges;
use extant_engine::format::{ErrorPolicy, Superblock};
use extant_engine::mkfs::parse_size;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// The maximum number of mounts that means no limit.
const NO_LIMIT: u16 = u16::MAX;

const DAY: u64 = 24 * 3600;

/// Parses a number of bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses a time between checks, in seconds.
pub fn parse_interval(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "" | "d" => DAY,
        "w" => 7 * DAY,
        "m" => 30 * DAY,
        other => return Err(format!("the unit `{other}` is none of s, d, w and m")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number")?;
    let seconds = number.checked_mul(unit).and_then(|seconds| u32::try_from(seconds).ok());
    seconds.ok_or_else(|| "at most 4294967295 seconds".into())
}

/// Parses a time, in seconds since 1970.
pub fn parse_time(text: &str) -> Result<u64, String> {
    if text == "now" {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(now.as_secs());
    }
    let error = || "neither `now` nor YYYYMMDD[hh[mm[ss]]]".to_owned();
    let is_time = matches!(text.len(), 8 | 10 | 12 | 14);
    if !is_time || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error());
    }
    let part =
        |from: usize, len: usize| text.get(from..from + len).map_or(0, |t| t.parse().unwrap_or(0));
    let [year, month, day]: [u64; 3] = [part(0, 4), part(4, 2), part(6, 2)];
    let [hour, minute, second]: [u64; 3] = [part(8, 2), part(10, 2), part(12, 2)];
    let valid = hour < 24 && minute < 60 && second < 60;
    let days = days_since_1970(year, month, day).filter(|_| valid).ok_or_else(error)?;
    Ok(days * DAY + hour * 3600 + minute * 60 + second)
}

/// Returns the days from 1970 to a date; `None` for an earlier one, and one that does not exist.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let february = if is_leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if day == 0 || day > *lengths.get(index)? {
        return None;
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let years = year.checked_sub(1970)? * 365 + leaps(year - 1) - leaps(1969);
    Some(years + lengths.iter().take(index).sum::<u64>() + day - 1)
}

/// Returns the reaction of this name.
pub fn policy(name: &str) -> ErrorPolicy {
    match name {
        "remount-ro" => ErrorPolicy::RemountReadOnly,
        "panic" => ErrorPolicy::Panic,
        _ => ErrorPolicy::Continue,
    }
}

fn policy_name(policy: ErrorPolicy) -> &'static str {
    match policy {
        ErrorPolicy::Continue => "continue",
        ErrorPolicy::RemountReadOnly => "remount-ro",
        ErrorPolicy::Panic => "panic",
    }
}

/// Returns the names of the values to change, as in the document.
pub fn names(changes: &TuneChanges) -> Vec<&'static str> {
    [
        ("label", changes.label.is_some()),
        ("uuid", changes.uuid.is_some()),
        ("reserved_blocks", changes.reserved.is_some()),
        ("reserved_uid", changes.reserved_uid.is_some()),
        ("reserved_gid", changes.reserved_gid.is_some()),
        ("errors", changes.errors.is_some()),
        ("default_mount_options", changes.default_mount_options.is_some()),
        ("mount_options", changes.mount_options.is_some()),
        ("last_mounted", changes.last_mounted.is_some()),
        ("raid_stride", changes.raid_stride.is_some()),
        ("raid_stripe_width", changes.raid_stripe_width.is_some()),
        ("hash_version", changes.hash_version.is_some()),
        ("is_test", changes.is_test.is_some()),
        ("asks_check", changes.asks_check),
        ("max_mount_count", changes.max_mount_count.is_some()),
        ("mount_count", changes.mount_count.is_some()),
        ("check_interval", changes.check_interval.is_some()),
        ("last_check", changes.last_check.is_some()),
        ("features", changes.features.is_some()),
        ("directories", changes.compacts_directories),
        ("journal_size", changes.journal_size.is_some()),
        ("journal_device", changes.journal_device.is_some()),
        ("quota", changes.quota.is_some()),
        ("inode_size", changes.inode_size.is_some()),
        ("mmp_update_interval", changes.mmp_update_interval.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, is_changed)| is_changed.then_some(name))
    .collect()
}

/// Returns the values as members of a document.
pub fn document(sb: &Superblock) -> Map<String, Value> {
    let limit = Some(sb.max_mnt_count()).filter(|count| *count != NO_LIMIT && *count != 0);
    let values = json!({
        "label": sb.volume_name(),
        "uuid": uuid(sb.uuid()),
        "reserved_blocks": sb.r_blocks_count(),
        "reserved_uid": sb.def_resuid(),
        "reserved_gid": sb.def_resgid(),
        "errors": policy_name(sb.error_policy()),
        "default_mount_options": sb.default_mount_opts().names(),
        "mount_options": sb.mount_opts(),
        "max_mount_count": limit,
        "mount_count": sb.mnt_count(),
        "check_interval": sb.checkinterval(),
        "last_check": sb.lastcheck(),
        "features": sb.features().names(),
    });
    if let Value::Object(values) = values { values } else { Map::new() }
}

/// Prints the values, one to a line, under the names of the options.
pub fn print(sb: &Superblock) -> Result {
    let text = |text: String| if text.is_empty() { "none".into() } else { shown(text.as_bytes()) };
    let limit = match sb.max_mnt_count() {
        0 | NO_LIMIT => "none".into(),
        count => count.to_string(),
    };
    let interval = match sb.checkinterval() {
        0 => "none".into(),
        seconds => format!("{seconds} s"),
    };
    let checked = i64::try_from(sb.lastcheck()).unwrap_or(i64::MAX);
    let rows = [
        ("label", text(sb.volume_name())),
        ("uuid", uuid(sb.uuid())),
        ("reserved-blocks", format!("{} of {}", sb.r_blocks_count(), sb.blocks_count())),
        ("reserved-uid", sb.def_resuid().to_string()),
        ("reserved-gid", sb.def_resgid().to_string()),
        ("errors", policy_name(sb.error_policy()).into()),
        ("default-mount-options", text(sb.default_mount_opts().names().join(","))),
        ("mount-options", text(sb.mount_opts())),
        ("max-mount-count", limit),
        ("mount-count", sb.mnt_count().to_string()),
        ("check-interval", interval),
        ("last-checked", format!("{} UTC", seconds(checked))),
        ("features", sb.features().names().join(",")),
    ];
    let mut out = BufWriter::new(std::io::stdout().lock());
    for (name, value) in rows {
        writeln!(out, "{name:<22} {value}")?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_the_units_of_tune2fs() {
        for (text, seconds) in [
            ("0", 0),
            ("3", 259_200),
            ("3d", 259_200),
            ("5s", 5),
            ("3w", 1_814_400),
            ("2m", 5_184_000),
        ] {
            assert_eq!(parse_interval(text), Ok(seconds), "{text}");
        }
        for bad in ["", "d", "1x", "-1", "1.5", "50000d", "99999999999999999999"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_dates_in_utc() {
        for text in ["19700101", "20000229235959", "20200102030405", "21000301", "24680101"] {
            let time = parse_time(text).expect(text) as i64;
            let digits: String = seconds(time).chars().filter(char::is_ascii_digit).collect();
            assert_eq!(digits, format!("{text:0<14}"));
        }
        assert_eq!(parse_time("2020010203"), Ok(1_577_934_000));
        for bad in ["", "never", "19691231", "20210229", "20200001", "2020010225", "202001"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
