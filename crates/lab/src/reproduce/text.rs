//! The tables of a work.

use super::published::{Found, Here, Published, Work};
use crate::grid::shown;
use crate::measure::Spread;
use crate::sheet::Sheet;
use crate::stored::Results;

impl Results for Vec<Work> {
    fn sheets(&self) -> Vec<Sheet> {
        self.iter().flat_map(Work::sheets).collect()
    }
}

impl Work {
    fn sheets(&self) -> Vec<Sheet> {
        let Work { title, author, date, posting, state, machine, .. } = self;
        let mut origin = Sheet::new(format!("{title}: {author}, {date}"), [""; 0]);
        origin.notes = vec![
            format!("posted: {posting}"),
            state.clone(),
            format!("authors' machine: {machine}"),
        ];
        let mut sheets = vec![origin];
        for table in &self.tables {
            sheets.push(table.sheet());
            sheets.extend(
                table.here.iter().filter_map(|here| Some(table.beside(here, here.found.as_ref()?))),
            );
        }
        let mut left = Sheet::new("left out or different here", [""; 0]);
        left.notes.clone_from(&self.omitted);
        sheets.push(left);
        sheets
    }
}

impl Published {
    /// Returns the table as published, and its effects.
    pub fn sheet(&self) -> Sheet {
        let by_columns: Vec<_> =
            self.effects.iter().filter(|e| self.columns.contains(&e.before)).collect();
        let heads = by_columns.iter().map(|e| format!("effect: {} to {}", e.before, e.after));
        let head = [self.key.clone()].into_iter().chain(self.columns.clone()).chain(heads);
        let mut sheet = Sheet::new(format!("published: {}", self.title), head);
        for cells in &self.rows {
            let effects = by_columns.iter().map(|effect| ratio(self.effect(effect, &cells[0])));
            sheet.row(cells.iter().cloned().chain(effects));
        }
        for effect in self.effects.iter().filter(|e| !self.columns.contains(&e.before)) {
            let wanted =
                |column: &&String| effect.columns.is_empty() || effect.columns.contains(*column);
            let in_column = |column: &String| {
                Some(format!("{column} {}", ratio(Some(self.effect(effect, column)?))))
            };
            let list: Vec<String> =
                self.columns.iter().filter(wanted).filter_map(in_column).collect();
            sheet.notes.push(format!(
                "effect: {} to {}: {}",
                effect.before,
                effect.after,
                list.join(", ")
            ));
        }
        sheet
    }

    /// Returns measured rows, a line for each design after the work.
    pub fn beside(&self, here: &Here, found: &Found) -> Sheet {
        let grid = &found.grid;
        let unit = if grid.unit.is_empty() { String::new() } else { format!(" ({})", grid.unit) };
        let title =
            format!("here: {}{unit}", if grid.title.is_empty() { &here.run } else { &*grid.title });
        let head: &[&str] = if grid.title.is_empty() {
            &[]
        } else {
            &["", &here.before, "after", "", "effect [95%]", "published", "runs"]
        };
        let mut sheet = Sheet::new(title, head.iter().copied());
        let column = |name: &str| grid.columns.iter().position(|column| column == name);
        for (row, ((name, cells), key)) in grid.rows.iter().zip(&found.keys).enumerate() {
            for (after, published) in &here.after {
                let (Some(b), Some(a)) = (column(&here.before), column(after)) else { continue };
                let effect = match grid.gain_of(row, a, b) {
                    Some(gain) if gain.high.is_finite() => gain.to_string(),
                    gain => ratio(gain.map(|gain| gain.mean)),
                };
                let published = ratio(self.effect_of(published, key));
                let runs = cells[a].len().to_string();
                sheet.row([
                    name.clone(),
                    spread(&cells[b]),
                    after.clone(),
                    spread(&cells[a]),
                    effect,
                    published,
                    runs,
                ]);
            }
        }
        sheet.notes = found.notes.clone();
        sheet.notes.push(format!("`{}`; {}", found.command, found.machine));
        sheet
    }
}

/// Median and extremes of one or more values.
fn spread(values: &[f64]) -> String {
    match Spread::of(values) {
        None => "-".into(),
        Some(Spread { median, min, max }) if min == max => shown(median),
        Some(Spread { median, min, max }) => {
            format!("{} [{} to {}]", shown(median), shown(min), shown(max))
        }
    }
}

/// Three digits or so.
fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) => shown(value),
    }
}
