//! Extended headers (PAX): records of keys and values, for one member or all that follow.

use super::sparse::{PaxSparse, decimal};
use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use extant_format::{Printable, Timestamp};

/// Values in base 64, whose padding some writers leave out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Values of extended headers. Those without a value leave the field of the header as it is.
#[derive(Clone, Default, Debug)]
pub(super) struct Records {
    pub path: Option<Vec<u8>>,
    pub link_path: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub user: Option<Vec<u8>>,
    pub group: Option<Vec<u8>>,
    pub mtime: Option<Timestamp>,
    pub major: Option<u64>,
    pub minor: Option<u64>,
    /// Extended attributes; of equal names the last counts.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Access control lists as text.
    pub acl_access: Option<Vec<u8>>,
    pub acl_default: Option<Vec<u8>>,
    pub sparse: PaxSparse,
}

impl Records {
    /// Adds the records of an extended header. `Err` has the cause.
    pub(super) fn add(&mut self, header: &[u8]) -> Result<(), String> {
        let mut rest = header;
        while !rest.is_empty() {
            let (record, after) = split_record(rest).ok_or_else(|| {
                let at = header.len() - rest.len();
                format!("the record at byte {at} of the extended header is malformed")
            })?;
            let (key, value) = record;
            self.set(key, value)
                .ok_or_else(|| format!("the value of {} is malformed", Printable(key)))?;
            rest = after;
        }
        Ok(())
    }

    /// Sets one value; `None` if it is malformed. Keys without a meaning for files are ignored.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = bytes(value),
            b"linkpath" => self.link_path = bytes(value),
            b"size" => self.size = optional(value, decimal)?,
            b"uid" => self.uid = optional(value, decimal)?,
            b"gid" => self.gid = optional(value, decimal)?,
            b"uname" => self.user = bytes(value),
            b"gname" => self.group = bytes(value),
            b"mtime" => self.mtime = optional(value, time)?,
            b"SCHILY.devmajor" => self.major = optional(value, decimal)?,
            b"SCHILY.devminor" => self.minor = optional(value, decimal)?,
            b"SCHILY.acl.access" => self.acl_access = bytes(value),
            b"SCHILY.acl.default" => self.acl_default = bytes(value),
            b"RHT.security.selinux" => self.set_label(value),
            _ => return self.set_prefixed(key, value),
        }
        Some(())
    }

    fn set_prefixed(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.xattrs.push((name.to_vec(), value.to_vec()));
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            self.xattrs.push((percent_decoded(name)?, BASE64.decode(value).ok()?));
        } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
            self.sparse.set(name, value)?;
        }
        Some(())
    }

    /// Sets the label of SELinux, which has a NUL byte at its end as an attribute.
    fn set_label(&mut self, label: &[u8]) {
        let mut value = label.to_vec();
        if value.last() != Some(&0) {
            value.push(0);
        }
        self.xattrs.push((b"security.selinux".to_vec(), value));
    }
}

/// A key and its value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Splits the first record, `LENGTH KEY=VALUE\n`, from the rest.
fn split_record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let digits = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len = usize::try_from(decimal(bytes.get(..digits)?)?).ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let record = record.get(digits + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some(((record.get(..equals)?, record.get(equals + 1..)?), rest))
}

/// Returns a value; an empty one removes that of earlier headers.
fn bytes(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

/// Parses a value; an empty one removes that of earlier headers.
fn optional<T>(value: &[u8], parse: fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    if value.is_empty() { Some(None) } else { parse(value).map(Some) }
}

/// Parses decimal seconds with a fraction, rounded down to nanoseconds.
fn time(value: &[u8]) -> Option<Timestamp> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(value) => (true, value),
        None => (false, value),
    };
    let point = value.iter().position(|byte| *byte == b'.').unwrap_or(value.len());
    let (seconds, fraction) = value.split_at(point);
    let fraction = fraction.get(1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut nsec = 0;
    for index in 0..9 {
        nsec = nsec * 10 + fraction.get(index).map_or(0, |digit| u32::from(digit - b'0'));
    }
    let seconds = i64::try_from(decimal(seconds)?).ok()?;
    if !negative {
        return Some(Timestamp::new(seconds, nsec));
    }
    let beyond = fraction.iter().skip(9).any(|digit| *digit != b'0');
    let nsec = nsec + u32::from(beyond);
    let borrow = u32::from(nsec > 0);
    Some(Timestamp::new(-seconds - i64::from(borrow), borrow * 1_000_000_000 - nsec))
}

/// Decodes `%NN`.
fn percent_decoded(name: &[u8]) -> Option<Vec<u8>> {
    let mut parts = name.split(|byte| *byte == b'%');
    let mut decoded = parts.next()?.to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let digits = str::from_utf8(digits).ok()?;
        decoded.push(u8::from_str_radix(digits, 16).ok()?);
        decoded.extend_from_slice(rest);
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &[u8]) -> Vec<u8> {
        let body = key.len() + value.len() + 3;
        let mut len = body;
        while len != body + len.to_string().len() {
            len = body + len.to_string().len();
        }
        [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
    }

    #[test]
    fn fractions_of_seconds_are_rounded_down() {
        for (text, sec, nsec) in [
            ("0", 0, 0),
            ("1700000000.5", 1_700_000_000, 500_000_000),
            ("1.123456789999", 1, 123_456_789),
            ("-1", -1, 0),
            ("-1.5", -2, 500_000_000),
            ("-0.000000001", -1, 999_999_999),
            ("-0.0000000001", -1, 999_999_999),
            ("-0.9999999999", -1, 0),
        ] {
            assert_eq!(time(text.as_bytes()), Some(Timestamp::new(sec, nsec)), "{text}");
        }
        for text in ["", "-", "1.x", "+1", "1e9", "--1", "99999999999999999999"] {
            assert_eq!(time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn records_may_hold_any_bytes() {
        let mut records = Records::default();
        let header = [
            record("path", b"a\nb"),
            record("SCHILY.xattr.user.a=b", b""),
            record("SCHILY.xattr.user.n", b"\0=\n\xff"),
            record("LIBARCHIVE.xattr.user.%3d", b"AAE"),
            record("RHT.security.selinux", b"a:b:c"),
            record("comment", b"ignored"),
        ];
        records.add(&header.concat()).unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"a\nb"[..]));
        let expected: [(&[u8], &[u8]); 4] = [
            (b"user.a", b"b="),
            (b"user.n", b"\0=\n\xff"),
            (b"user.=", &[0, 1]),
            (b"security.selinux", b"a:b:c\0"),
        ];
        let found: Vec<_> =
            records.xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_empty_value_removes_an_earlier_one() {
        let mut records = Records::default();
        records
            .add(&[record("path", b"a"), record("uid", b"7"), record("mtime", b"1")].concat())
            .unwrap();
        records
            .add(&[record("path", b""), record("uid", b""), record("mtime", b"")].concat())
            .unwrap();
        assert!(records.path.is_none() && records.uid.is_none() && records.mtime.is_none());
    }

    #[test]
    fn malformed_records_are_refused() {
        for bad in [
            &b"x path=a\n"[..],
            b"9 path=ab\n",
            b"11 path=a\n",
            b"99999999999999999999999 path=a\n",
            b"5 =a\n",
            b"7 patha\n",
            b"0 path=a\n",
            b"10 uid=-1\n",
            b"28 LIBARCHIVE.xattr.user.a=!\n",
        ] {
            assert!(Records::default().add(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
