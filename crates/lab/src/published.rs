//! The five works' published tables, and their effects.
//!
//! `reproduce/published.json` has every table number for number, with author, date and posting. It
//! also names the rows and designs of the lab that do the same, so that both effects stand side by
//! side.

use extant_measure::grid::{Grid, shown};
use extant_measure::sheet::Sheet;
use extant_measure::stored::{ListItem, Machine};
use extant_measure::timing::{Spread, median};
use serde::{Deserialize, Serialize};

/// A work: its source, its tables, and parts that this lab cannot repeat.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Work {
    /// Name on command lines.
    pub name: String,
    /// Subject.
    pub title: String,
    /// Author, date and place of the posting.
    pub author: String,
    pub date: String,
    pub posting: String,
    /// Whether Linux has it.
    pub state: String,
    /// The authors' hardware and parameters.
    pub machine: String,
    /// Parts that are left out or differ here, with reasons.
    pub omitted: Vec<String>,
    pub tables: Vec<Published>,
}

/// A published table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Published {
    /// The measured quantity.
    pub title: String,
    /// Head of the first column.
    pub key: String,
    /// Heads of the others.
    pub columns: Vec<String>,
    /// Columns in which less is better.
    pub less: Vec<String>,
    /// Cells as published, each row below its name.
    pub rows: Vec<Vec<String>>,
    /// Cells are changes by the work in percent.
    #[serde(default)]
    pub changes: bool,
    /// The compared columns, or rows.
    pub effects: Vec<Effect>,
    /// The same in this lab.
    pub here: Vec<Here>,
}

/// Two columns of a table, or two of its rows.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Effect {
    /// Without the work.
    pub before: String,
    /// With it.
    pub after: String,
    /// Columns in which two rows are compared; all if there are none.
    #[serde(default)]
    pub columns: Vec<String>,
}

/// Rows of a stored run that stand beside a published table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Here {
    /// The experiment.
    pub run: String,
    /// Title of its table; empty if the results are not numbers.
    pub grid: String,
    /// The design before the work.
    pub before: String,
    /// Designs after it, each with the `after` of the published effect, if there is one.
    pub after: Vec<(String, String)>,
    /// Names of rows, `#` for any part, with the row or column of the published effect.
    pub rows: Vec<(String, String)>,
    /// The measured values.
    #[serde(default)]
    pub found: Option<Found>,
}

/// Values of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Found {
    /// The machine of the run, and its command.
    pub machine: Machine,
    pub command: String,
    /// The rows.
    pub grid: Grid,
    /// Results that are not numbers.
    pub notes: Vec<String>,
    /// Maps of free space, with their names.
    pub maps: Vec<(String, String)>,
}

/// Returns the five works without measured values.
pub fn works() -> serde_json::Result<Vec<Work>> {
    serde_json::from_str(include_str!("reproduce/published.json"))
}

impl Here {
    /// Returns the row or column of the published effect for a row of the run.
    pub fn key(&self, name: &str) -> Option<String> {
        self.rows.iter().find_map(|(pattern, key)| {
            let part = matched(pattern, name)?;
            Some(if key == "#" { part.to_owned() } else { key.clone() })
        })
    }
}

/// Returns the part of a name that stands for `#`, which has no comma.
fn matched<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('#') {
        Some((start, end)) => {
            let part = name.strip_prefix(start)?.strip_suffix(end)?;
            (!part.contains(',')).then_some(part)
        }
        None => (pattern == name).then_some(""),
    }
}

impl Published {
    /// Returns an effect in a row, if columns are compared, or else in a column: above 1 the second
    /// is better.
    pub fn effect(&self, effect: &Effect, key: &str) -> Option<f64> {
        let by_columns = self.columns.contains(&effect.before);
        let cell = |which: &String| {
            let cell = if by_columns { self.cell(key, which) } else { self.cell(which, key) };
            cell.map(|value| if self.changes { 1.0 + value / 100.0 } else { value })
        };
        let (before, after) = (cell(&effect.before)?, cell(&effect.after)?);
        let less = if by_columns {
            self.less.contains(&effect.before)
        } else {
            self.less.iter().any(|l| l == key)
        };
        Some(if less { before / after } else { after / before })
    }

    /// Returns the rows, if columns are compared, or else the columns for which there is an effect,
    /// with its value.
    pub fn effects<'a>(&'a self, effect: &'a Effect) -> impl Iterator<Item = (&'a str, f64)> {
        let by_columns = self.columns.contains(&effect.before);
        let wanted =
            |column: &&String| effect.columns.is_empty() || effect.columns.contains(*column);
        let keys: Vec<&String> = if by_columns {
            self.rows.iter().map(|row| &row[0]).collect()
        } else {
            self.columns.iter().filter(wanted).collect()
        };
        keys.into_iter().filter_map(|key| Some((key.as_str(), self.effect(effect, key)?)))
    }

    /// Returns the published effect of the design `after` in a row or column.
    pub fn effect_of(&self, after: &str, key: &str) -> Option<f64> {
        let mut effects = self.effects.iter().filter(|effect| effect.after == after);
        effects.find_map(|effect| self.effect(effect, key))
    }

    /// Returns a cell's value.
    pub fn cell(&self, row: &str, column: &str) -> Option<f64> {
        let at = self.columns.iter().position(|name| name == column)?;
        let row = self.rows.iter().find(|cells| cells.first().is_some_and(|name| name == row))?;
        number(row.get(at + 1)?)
    }
}

/// Returns the value of a cell: in seconds for times, in bytes or operations for the rest.
pub fn number(cell: &str) -> Option<f64> {
    let cell = cell.split("+/-").next()?.replace(',', "");
    if let Some((minutes, seconds)) =
        cell.split_once('m').filter(|_| cell.starts_with(|c: char| c.is_ascii_digit()))
    {
        return Some(
            minutes.parse::<f64>().ok()? * 60.0
                + seconds.trim_end_matches('s').parse::<f64>().ok()?,
        );
    }
    let digits =
        cell.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(cell.len());
    let (value, unit) = cell.split_at(digits);
    let scale = match unit.trim_start().chars().next() {
        Some('K') => 1e3,
        Some('M') => 1e6,
        Some('G') => 1e9,
        _ => 1.0,
    };
    Some(value.parse::<f64>().ok()? * scale)
}

impl ListItem for Work {
    fn sheets(all: &[Self]) -> Vec<Sheet> {
        all.iter().flat_map(Work::sheets).collect()
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
            let values = self.effects(effect);
            let list: Vec<_> =
                values.map(|(column, value)| format!("{column} {}", ratio(Some(value)))).collect();
            let Effect { before, after, .. } = effect;
            sheet.notes.push(format!("effect: {before} to {after}: {}", list.join(", ")));
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
        for (row, (name, cells)) in grid.rows.iter().enumerate() {
            let key = here.key(name).unwrap_or_default();
            for (after, published) in &here.after {
                let (Some(b), Some(a)) = (grid.column(&here.before), grid.column(after)) else {
                    continue;
                };
                let effect = match grid.gain_of(row, a, b) {
                    Some(gain) if gain.high.is_finite() => gain.to_string(),
                    Some(gain) => ratio(Some(gain.mean)),
                    // One of them was measured more often, so there are no pairs.
                    None => ratio(of_medians([&cells[a], &cells[b]], grid.less)),
                };
                let published = ratio(self.effect_of(published, &key));
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

/// Ratio of two medians, above 1 if the first is better.
fn of_medians([after, before]: [&[f64]; 2], less: bool) -> Option<f64> {
    let [after, before] = [median(after)?, median(before)?];
    Some(if less { before / after } else { after / before })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_times_rates_and_sizes() {
        let cases = [
            ("25m51s", 1551.0),
            ("2m20", 140.0),
            ("5m1.871s", 301.871),
            ("146.080s", 146.08),
            ("24,000+/-500", 24_000.0),
            ("6.8 KB/s", 6800.0),
            ("130MB/s", 130e6),
            ("-2.39% *", -2.39),
        ];
        for (cell, value) in cases {
            let found = number(cell).unwrap_or_else(|| panic!("{cell}"));
            assert!((found - value).abs() < 1e-6, "{cell}: {found}");
        }
        assert_eq!(["-", "not run", "needs about 10 KB"].map(number), [None; 3]);
    }

    /// A design has one value where the engine has three.
    #[test]
    fn designs_that_ran_less_often_have_an_effect() {
        assert_eq!(of_medians([&[1.0, 2.0, 9.0], &[8.0]], true), Some(4.0));
        assert_eq!(of_medians([&[1.0, 2.0, 9.0], &[8.0]], false), Some(0.25));
        assert_eq!(of_medians([&[], &[8.0]], true), None);
    }

    /// The authors print their changes, too: a wrong digit in a table shows.
    #[test]
    fn effects_are_the_published_changes() {
        let mut compared = 0;
        for table in works().expect("published tables").iter().flat_map(|work| &work.tables) {
            assert!(
                table.rows.iter().all(|row| row.len() == table.columns.len() + 1),
                "{}",
                table.title
            );
            for row in &table.rows {
                let Some(change) = table.cell(&row[0], "change") else { continue };
                let effect = table.effect(&table.effects[0], &row[0]).expect("an effect");
                assert!(((effect - 1.0) * 100.0 - change).abs() < 0.06, "{row:?}: {effect}");
                compared += 1;
            }
            for effect in &table.effects {
                let named = |name: &String| {
                    table.columns.contains(name) || table.rows.iter().any(|row| row[0] == *name)
                };
                assert!(named(&effect.before) && named(&effect.after), "{effect:?}");
            }
        }
        assert_eq!(compared, 16 + 12);
    }
}
