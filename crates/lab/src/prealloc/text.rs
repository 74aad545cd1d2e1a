//! The results as tables.

use super::sides::Mode;
use super::trials::{Outcome, TESTS, Test};
use super::{Results, Row, race};
use crate::grid::{Grid, Values};
use crate::interval::Standing;
use crate::sheet::Sheet;

const HEAD: [&str; 12] = [
    "",
    "allocation",
    "unit",
    "engine",
    "ext4",
    "ratio",
    "bar",
    "pieces",
    "ext4",
    "in calls",
    "blocks alone",
    "copied and written",
];

impl crate::stored::Results for Results {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = Vec::new();
        if !self.designs.is_empty() {
            sheets.push(race::sheet(&self.designs));
        }
        if !self.tests.is_empty() {
            let mut sheet = Sheet::new("the engine beside the kernel's ext4", HEAD);
            for (row, test) in self.tests.iter().filter_map(|row| Some((row, row.test()?))) {
                sheet.row(row.cells(test));
            }
            sheet.notes = self.tests.iter().filter_map(Row::counters).collect();
            sheets.push(sheet);
        }
        sheets
    }
}

impl Values for Results {
    fn grids(self) -> Vec<Grid> {
        let mut tests = Grid::new("tests", "MB/s or k/s", &["ext4", "engine"], 1);
        for row in self.tests {
            let name = format!("{}, {}", row.test, row.mode.name());
            row.kernel.iter().for_each(|kernel| tests.add(&name, 0, kernel.rate));
            tests.add(&name, 1, row.engine.rate);
        }
        vec![race::grid(self.designs), tests]
    }
}

impl Row {
    fn test(&self) -> Option<&'static Test> {
        TESTS.iter().find(|test| test.name == self.test)
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.engine.rate / self.kernel?.rate)
    }

    /// Returns whether the bars are reached, in rate and pieces; None without a bar, as immediate
    /// allocation is.
    pub fn reached(&self) -> Option<bool> {
        let (test, ratio) = (self.test()?, self.ratio()?);
        let theirs = self.kernel.and_then(|kernel| kernel.pieces);
        let fewer = match (self.engine.pieces, theirs, test.pieces_bar) {
            (Some(ours), Some(theirs), Some(bar)) => ours as f64 <= theirs as f64 / bar,
            _ => true,
        };
        (self.mode == Mode::Delayed).then_some(ratio >= test.rate_bar && fewer)
    }

    fn cells(&self, test: &Test) -> [String; HEAD.len()] {
        let rate = |rate: f64| format!("{rate:.1}");
        let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".into());
        let pieces = |outcome: &Outcome| or_none(outcome.pieces.map(|pieces| pieces.to_string()));
        let kernel = self.kernel.as_ref();
        let standing = self.reached().map(|reached| {
            let standing = if reached { Standing::Reached } else { Standing::Missed };
            format!("{}: {}", test.rate_bar, standing.word())
        });
        [
            format!("{} {}", test.name, test.what),
            self.mode.name().into(),
            test.unit.into(),
            rate(self.engine.rate),
            or_none(kernel.map(|kernel| rate(kernel.rate))),
            or_none(self.ratio().map(|ratio| format!("{ratio:.2}"))),
            or_none(standing),
            pieces(&self.engine),
            or_none(kernel.map(pieces)),
            format!("{:.0}%", self.engine.in_calls * 100.0),
            or_none(self.bounds.map(|bounds| rate(bounds.plainly))),
            or_none(self.bounds.map(|bounds| rate(bounds.copied))),
        ]
    }

    /// Returns a line about the engine's preallocations.
    fn counters(&self) -> Option<String> {
        let counters = self.engine.prealloc?;
        let looked = counters.visited as f64 / counters.searches.max(1) as f64;
        Some(format!(
            "{}, {}: {} preallocations made, {} given back, {} searches, {looked:.2} looked at for \
             each; shared runs had {} of {} claims",
            self.test,
            self.mode.name(),
            counters.created,
            counters.discarded,
            counters.searches,
            counters.small_hits,
            counters.small_hits + counters.small_misses,
        ))
    }
}
