//! The results as tables.

use super::published::{self, Published};
use super::{Row, SpaceResults, Write};
use crate::sheet::Sheet;
use crate::stored::Results;

const HEAD: [&str; 10] = [
    "",
    "processor",
    "with disk",
    "rate",
    "memory",
    "loaded",
    "bitmaps",
    "pieces",
    "looks",
    "published",
];

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

fn short(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

fn said(published: Published) -> String {
    let bytes = published.bytes.map(|bytes| format!(", {}", megabytes(bytes))).unwrap_or_default();
    let cached = published.cached.map(|cached| format!(", {cached}")).unwrap_or_default();
    let pieces = published.pieces.map(|pieces| format!(", {pieces} pieces")).unwrap_or_default();
    format!("{}{bytes}{cached}{pieces}", short(published.seconds))
}

fn fields(row: &Row, write: &Write, bytes: u64, published: Option<Published>) -> [String; 10] {
    [
        row.name.to_string(),
        short(write.seconds - write.waited),
        short(write.seconds),
        megabytes(bytes as f64 / write.seconds) + "/s",
        megabytes((write.tree_bytes + write.index_bytes) as f64),
        write.trees.to_string(),
        write.bitmaps.to_string(),
        write.pieces.to_string(),
        write.looked.to_string(),
        published.map_or(String::new(), said),
    ]
}

/// One table for each profile and each write.
impl Results for SpaceResults {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = Vec::new();
        for rows in self.rows.chunk_by(|a, b| a.profile == b.profile) {
            sheets.extend([0, 1].map(|write| self.sheet(rows, write)));
            if let Some(last) = sheets.last_mut() {
                let whole = rows.iter().filter(|row| !row.plays || row.known.is_some());
                last.notes.extend(whole.map(mounts));
            }
        }
        sheets
    }
}

impl SpaceResults {
    /// Returns the table of the write with this index on the profile of `rows`.
    fn sheet(&self, rows: &[Row], write: usize) -> Sheet {
        // Others measured the whole disk.
        let whole = self.sizes == super::SIZES;
        let bytes = self.sizes[write];
        let profile = rows.first().map_or("", |row| &*row.profile);
        let order = if write == 0 { "first" } else { "next" };
        let mut sheet = Sheet::new(format!("{profile}: {order} {} MB", bytes >> 20), HEAD);
        for row in rows {
            let published = published::of(profile, &row.name).filter(|_| whole);
            let published = published.map(|writes| writes[write]);
            sheet.row(fields(row, &row.writes[write], bytes, published));
        }
        if profile == "harsh" && whole {
            let quoted = published::KERNEL.iter();
            sheet.notes.extend(
                quoted.map(|(name, writes)| format!("{name}, quoted: {}", said(writes[write]))),
            );
        }
        sheet
    }
}

fn mounts(row: &Row) -> String {
    let seconds = |time: Option<f64>| time.map_or(String::from("-"), short);
    format!(
        "{}: mount {}, all known {}, claims {:?}",
        row.name,
        seconds(row.mount),
        seconds(row.known),
        row.writes[1].claims
    )
}
