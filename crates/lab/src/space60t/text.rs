//! The results as tables.

use super::{Row, SpaceResults, Write};
use crate::grid::{Grid, Values};
use crate::sheet::Sheet;
use crate::stored::Results;

const HEAD: [&str; 9] =
    ["", "processor", "with disk", "rate", "memory", "loaded", "bitmaps", "pieces", "looks"];

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

fn short(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

fn fields(row: &Row, write: &Write, bytes: u64) -> [String; 9] {
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

impl Values for SpaceResults {
    /// Seconds, and trees or groups that ever were in memory.
    fn grids(self) -> Vec<Grid> {
        let mut grids = Vec::new();
        for rows in self.rows.chunk_by(|a, b| a.profile == b.profile) {
            for (at, write) in ["first write", "second write"].into_iter().enumerate() {
                let name = |what| format!("{}, {write}: {what}", rows[0].profile);
                let columns = || rows.iter().map(|row| row.name.clone()).collect();
                let mut seconds = Grid::of(name("seconds"), "s".into(), columns(), 0).less();
                let mut loaded =
                    Grid::of(name("trees or groups loaded"), "".into(), columns(), 0).less();
                for (column, row) in rows.iter().enumerate() {
                    seconds.add(write, column, row.writes[at].seconds);
                    loaded.add(write, column, row.writes[at].trees as f64);
                }
                grids.extend([seconds, loaded]);
            }
        }
        grids
    }
}

impl SpaceResults {
    /// Returns the table of the write with this index on the profile of `rows`.
    fn sheet(&self, rows: &[Row], write: usize) -> Sheet {
        let bytes = self.sizes[write];
        let profile = rows.first().map_or("", |row| &*row.profile);
        let order = if write == 0 { "first" } else { "next" };
        let mut sheet = Sheet::new(format!("{profile}: {order} {} MB", bytes >> 20), HEAD);
        for row in rows {
            sheet.row(fields(row, &row.writes[write], bytes));
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
