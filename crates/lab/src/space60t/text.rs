//! The table as text.

use super::published::{self, Published};
use super::{Row, Write};

fn columns(fields: &[String]) -> String {
    const WIDTHS: [usize; 10] = [27, 10, 10, 10, 10, 10, 9, 9, 8, 0];
    let mut line = String::new();
    for (field, width) in fields.iter().zip(WIDTHS) {
        if line.is_empty() {
            line += &format!("{field:<width$}")
        } else {
            line += &format!(" {field:>width$}")
        }
    }
    line.trim_end().into()
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

fn short(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

fn said(published: Option<Published>) -> String {
    let Some(published) = published else { return String::new() };
    let bytes = published.bytes.map(|bytes| format!(", {}", megabytes(bytes))).unwrap_or_default();
    let cached = published.cached.map(|cached| format!(", {cached}")).unwrap_or_default();
    let pieces = published.pieces.map(|pieces| format!(", {pieces} pieces")).unwrap_or_default();
    format!("  {}{bytes}{cached}{pieces}", short(published.seconds))
}

fn fields(name: &str, write: &Write, bytes: u64, published: Option<Published>) -> Vec<String> {
    vec![
        name.into(),
        short(write.seconds - write.waited),
        short(write.seconds),
        megabytes(bytes as f64 / write.seconds) + "/s",
        megabytes((write.tree_bytes + write.index_bytes) as f64),
        write.trees.to_string(),
        write.bitmaps.to_string(),
        write.pieces.to_string(),
        write.looked.to_string(),
        said(published),
    ]
}

/// One table for each profile and each write.
pub fn tables(rows: &[Row], sizes: [u64; 2]) -> String {
    // Others measured the whole disk.
    let whole = sizes == super::SIZES;
    let mut text = String::new();
    for of_profile in rows.chunk_by(|a, b| a.profile == b.profile) {
        let Some(profile) = of_profile.first().map(|row| row.profile) else { continue };
        for (index, bytes) in sizes.iter().enumerate() {
            let order = if index == 0 { "first" } else { "next" };
            text += &format!("\n{profile}: {order} {} MB\n", bytes >> 20);
            let heads = [
                "",
                "processor",
                "with disk",
                "rate",
                "memory",
                "loaded",
                "bitmaps",
                "pieces",
                "looks",
                "  published",
            ];
            text += &(columns(&heads.map(String::from)) + "\n");
            for row in of_profile {
                let published =
                    published::of(profile, &row.name).filter(|_| whole).map(|writes| writes[index]);
                text +=
                    &(columns(&fields(&row.name, &row.writes[index], *bytes, published)) + "\n");
            }
            if profile == "harsh" && whole {
                published::KERNEL
                    .iter()
                    .for_each(|(name, writes)| text += &quoted(name, writes[index]));
            }
        }
        of_profile
            .iter()
            .filter(|row| !row.plays || row.known.is_some())
            .for_each(|row| text += &mounts(row));
    }
    text
}

fn quoted(name: &str, published: Published) -> String {
    format!("{name:<27} quoted: {}\n", said(Some(published)).trim_start())
}

fn mounts(row: &Row) -> String {
    let seconds = |time: Option<f64>| time.map_or(String::from("-"), short);
    format!(
        "{}: mount {}, all known {}, claims {:?}\n",
        row.name,
        seconds(row.mount),
        seconds(row.known),
        row.writes[1].claims
    )
}
