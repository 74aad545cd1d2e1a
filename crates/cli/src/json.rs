//! Values as programs read them.

use crate::text::shown;
use extant_engine::{Attr, Timestamp};
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// An array that is written as its elements are found, so that a large one needs no memory.
pub struct Array<W: Write> {
    out: W,
    empty: bool,
}

impl<W: Write> Array<W> {
    /// Makes an array to be written to `out`. [`Context::array`] makes one that is the document.
    ///
    /// [`Context::array`]: crate::context::Context::array
    pub fn new(out: W) -> Array<W> {
        Array { out, empty: true }
    }

    /// Writes an element.
    pub fn push(&mut self, element: &Value) -> io::Result<()> {
        self.out.write_all(if self.empty { b"[\n  " } else { b",\n  " })?;
        self.empty = false;
        let text = without_controls(&serde_json::to_string_pretty(element)?);
        self.out.write_all(text.replace('\n', "\n  ").as_bytes())
    }

    /// Writes the end.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(if self.empty { b"[]\n" } else { b"\n]\n" })?;
        self.out.flush()
    }
}

/// Puts a name or path into an object: as text, and where its bytes are no UTF-8 also as
/// hexadecimal digits under `KEY_hex`.
pub fn put_bytes(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    object.insert(key.into(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{key}_hex"), hex(bytes).into());
    }
}

/// Returns the bytes that [`put_bytes`] put into an object.
pub fn bytes(object: &Map<String, Value>, key: &str) -> Option<Vec<u8>> {
    let text = object.get(key)?.as_str()?;
    let digits = object.get(&format!("{key}_hex")).and_then(Value::as_str);
    let exact = digits.and_then(|digits| {
        digits
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect()
    });
    Some(exact.unwrap_or_else(|| text.as_bytes().to_vec()))
}

/// Escapes the characters that JSON allows in texts and that terminals obey: DEL, controls from
/// 0x80 on, and those that change the direction of text.
pub fn without_controls(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut text, c| {
        if c >= '\u{7f}' && shown(c.encode_utf8(&mut [0; 4]).as_bytes()) != c.to_string() {
            text.push_str(&format!("\\u{:04x}", u32::from(c)))
        } else {
            text.push(c)
        }
        text
    })
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a time: whole seconds since 1970 and nanoseconds.
pub fn time(t: Timestamp) -> Value {
    json!({ "sec": t.sec, "nsec": t.nsec })
}

/// Attributes of an inode.
pub fn attr(a: &Attr) -> Map<String, Value> {
    let value = json!({
        "inode": a.ino,
        "generation": a.generation,
        "type": crate::text::type_name(a.ftype),
        "mode": a.mode & 0o7777,
        "mode_text": crate::text::mode(a.ftype, a.mode),
        "links": a.nlink,
        "uid": a.uid,
        "gid": a.gid,
        "size": a.size,
        "blocks_512": a.blocks,
        "device": { "major": a.rdev.0, "minor": a.rdev.1 },
        "atime": time(a.atime),
        "mtime": time(a.mtime),
        "ctime": time(a.ctime),
        "crtime": a.crtime.map(time),
        "flags": a.flags,
        "flags_text": crate::text::flags(a.flags),
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_steer_a_terminal() {
        let name = "a\u{202e}gpj\u{7f}\u{9b}grün";
        let text = without_controls(&serde_json::to_string(name).unwrap());
        assert_eq!(text, r#""a\u202egpj\u007f\u009bgrün""#);
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), name);
    }
}
