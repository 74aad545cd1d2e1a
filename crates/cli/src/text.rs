//! Values as people read them.

use extant_engine::{FileType, Printable, Timestamp};
use std::borrow::Cow;
use std::fmt::Write;

/// Returns a name or path for a message or a terminal.
pub fn shown(bytes: &[u8]) -> String {
    Printable(bytes).to_string()
}

/// Formats a number of bytes with a binary unit, as `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10).min(6);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let digits = if value < 10.0 && value.fract() > 0.0 { 1 } else { 0 };
    format!("{value:.digits$} {}", UNITS[unit as usize - 1])
}

/// Formats a time by its two largest units, as `3d 4h` or `7s`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// `one thing`, `2 things`.
pub fn count(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        n => format!("{n} {thing}s"),
    }
}

/// Returns the letter that `ls -l` has for a type.
pub fn type_letter(ftype: FileType) -> char {
    match ftype {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Regular => '-',
        FileType::Unknown => '?',
    }
}

/// Returns the name of a type.
pub fn type_name(ftype: FileType) -> &'static str {
    match ftype {
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::BlockDevice => "block device",
        FileType::CharDevice => "character device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Regular => "file",
        FileType::Unknown => "unknown",
    }
}

/// Type and permissions as `ls -l` has them.
pub fn mode(ftype: FileType, mode: u16) -> String {
    let mut text = String::from(type_letter(ftype));
    for (shift, special, letters) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        let (with, without) = letters.split_at(1);
        text.push_str(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => "x",
            (false, false) => "-",
        });
    }
    text
}

/// Year, month, day of a number of days since 1970-01-01 in the Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    // Years begin in March here, so that a leap day is the last one; 400 years have 146,097 days.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (year_of_era + 400 * era + i64::from(month <= 2), month, day)
}

/// Formats seconds since 1970 as `2026-11-21 05:30:00`, in UTC.
pub fn seconds(sec: i64) -> String {
    let (year, month, day) = date(sec.div_euclid(86_400));
    let second = sec.rem_euclid(86_400);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Formats a time with its nanoseconds, in UTC.
pub fn time(t: Timestamp) -> String {
    format!("{}.{:09} UTC", seconds(t.sec), t.nsec)
}

/// Returns a time as asctime(3) has it, in UTC.
pub fn asctime(sec: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = self::seconds(sec);
    let day = DAYS[sec.div_euclid(86_400).rem_euclid(7) as usize];
    let (date, time) = text.split_once(' ').unwrap_or((&text, ""));
    let mut parts = date.rsplit('-');
    let (of_month, month) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let year = parts.next().unwrap_or("");
    let month = month.parse::<usize>().ok().and_then(|month| MONTHS.get(month.wrapping_sub(1)));
    let of_month = of_month.trim_start_matches('0');
    format!("{day} {} {of_month:>2} {time} {year}", month.unwrap_or(&"???"))
}

/// A UUID in its usual form.
pub fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Letters of chattr(1) with their flags.
const FLAGS: [(char, u32); 17] = [
    ('s', 0x1),
    ('u', 0x2),
    ('c', 0x4),
    ('S', 0x8),
    ('i', 0x10),
    ('a', 0x20),
    ('d', 0x40),
    ('A', 0x80),
    ('E', 0x800),
    ('I', 0x1000),
    ('j', 0x4000),
    ('t', 0x8000),
    ('D', 0x1_0000),
    ('T', 0x2_0000),
    ('e', 0x8_0000),
    ('N', 0x1000_0000),
    ('P', 0x2000_0000),
];

/// Returns the flags of an inode as lsattr(1) shows them.
pub fn flags(flags: u32) -> String {
    FLAGS.iter().filter(|(_, bit)| flags & bit != 0).map(|(letter, _)| letter).collect()
}

/// Returns a path as it may be told: an address without its user, whose password may stand there,
/// and one in a store without parameters, which may be tokens.
pub fn without_secrets(path: &[u8]) -> Cow<'_, [u8]> {
    let is_of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'+';
    let scheme = path.iter().take_while(|byte| is_of_scheme(byte)).count();
    let Some(rest) = path[scheme..].strip_prefix(b"://") else { return path.into() };
    let start = path.len() - rest.len();
    let end = rest.iter().position(|byte| *byte == b'?').unwrap_or(rest.len());
    let (place, query) = rest.split_at(end);
    let host = place.iter().position(|byte| *byte == b'/').unwrap_or(end);
    let user = place[..host].iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    let is_told = path[..scheme].to_ascii_lowercase().starts_with(b"nbd");
    let query = if is_told { query } else { b"" };
    [&path[..start], &place[user..], query].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 30, "1 GiB"),
            (u64::MAX, "16 EiB"),
            (10_240, "10 KiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [(59, "59s"), (61, "1m 1s"), (7260, "2h 1m"), (90_000, "1d 1h")] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn dates_before_and_after_the_epoch() {
        assert_eq!(seconds(0), "1970-01-01 00:00:00");
        assert_eq!(seconds(-1), "1969-12-31 23:59:59");
        assert_eq!(seconds(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(seconds(4_107_542_399), "2100-02-28 23:59:59");
        assert_eq!(seconds(15_032_385_535), "2446-05-10 22:38:55");
    }

    #[test]
    fn modes_have_their_letters() {
        assert_eq!(mode(FileType::Regular, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileType::Symlink, 0o2644), "lrw-r-Sr--");
    }

    #[test]
    fn uuids_have_dashes() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(uuid(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn passwords_and_tokens_of_addresses_are_not_told() {
        for (path, told) in [
            ("https://u:pw@h/d/n", "https://h/d/n"),
            ("HTTPS://u:pw@h/n?sig=x", "HTTPS://h/n"),
            ("az://c/n?token=x", "az://c/n"),
            ("nbd://u@h:1/n?timeout=2", "nbd://h:1/n?timeout=2"),
            ("nbd+unix:///?socket=/a@b", "nbd+unix:///?socket=/a@b"),
            ("s3://b/n@sha256:0", "s3://b/n@sha256:0"),
            ("a/b?c@d", "a/b?c@d"),
            ("://", "://"),
        ] {
            assert_eq!(without_secrets(path.as_bytes()), told.as_bytes(), "{path}");
        }
    }
}
