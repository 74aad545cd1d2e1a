//! Tables of the results.

use super::{Row, judge};
use crate::grid::{Grid, Values};
use crate::interval::{Interval, Standing};
use crate::measure::median;
use crate::report::figure;
use crate::sheet::Sheet;
use crate::stored::Results;

/// Columns; those with `ext4` after them have the kernel's next.
const HEAD: [&str; 11] = [
    "operations per second",
    "threads",
    "engine",
    "ext4",
    "ratio [95%]",
    "bar",
    "",
    "cpu us",
    "ext4",
    "instructions",
    "ext4",
];

impl Results for Vec<Row> {
    fn sheets(&self) -> Vec<Sheet> {
        let verdicts = judge(self);
        let (reached, others): (Vec<_>, Vec<_>) =
            verdicts.iter().partition(|verdict| verdict.standing == Standing::Reached);
        let title = format!("{} of {} bars reached", reached.len(), verdicts.len());
        let mut sheet = Sheet::new(title, HEAD);
        self.iter().for_each(|row| sheet.row(cells(row)));
        sheet.notes = others
            .iter()
            .map(|verdict| {
                format!("{}: {}: {}", verdict.standing.word(), verdict.bar, verdict.found)
            })
            .collect();
        vec![sheet]
    }
}

impl Values for Vec<Row> {
    fn grids(self) -> Vec<Grid> {
        let mut grid = Grid::new("pairs", "operations/s", &["ext4", "engine"], 1);
        for Row { name, threads, sides: [ours, theirs], .. } in self {
            grid.rows.push((format!("{name}, {threads} threads"), vec![theirs.rate, ours.rate]));
        }
        vec![grid]
    }
}

fn cells(row: &Row) -> [String; HEAD.len()] {
    let mid = |values: &[f64], show: fn(f64) -> String| median(values).map_or("-".into(), show);
    let micros = |v: f64| format!("{v:.2}");
    let ratio = row.ratio();
    let standing = ratio.zip(row.bar).map_or("", |(ratio, bar)| ratio.beside(bar).word());
    let [ours, theirs] = &row.sides;
    [
        row.name.clone(),
        row.threads.to_string(),
        mid(&ours.rate, figure),
        mid(&theirs.rate, figure),
        ratio.map_or("-".into(), |ratio: Interval| ratio.to_string()),
        row.bar.map_or("-".into(), |bar| bar.to_string()),
        standing.into(),
        mid(&ours.cpu, micros),
        mid(&theirs.cpu, micros),
        mid(&ours.instructions, figure),
        mid(&theirs.instructions, figure),
    ]
}
