//! Published curves beside simulated ones, with the errors of the simulation.

use crate::published::{Here, Published, number, works};
use extant_measure::grid::Grid;
use extant_measure::sheet::Sheet;

const HEAD: [&str; 10] = [
    "",
    "before",
    "simulated",
    "error",
    "after",
    "engine",
    "error",
    "effect",
    "simulated",
    "error",
];

/// Returns the table of all grids that have a published one beside them, if any.
pub fn errors(grids: &[Grid]) -> Option<Sheet> {
    let title = "published speedups over the first row and effects, simulated ones, and errors";
    let mut sheet = Sheet::new(title, HEAD);
    for table in works().ok()?.iter().flat_map(|work| &work.tables) {
        for here in table.here.iter().filter(|here| here.run == "scale") {
            let grid = grids.iter().find(|grid| grid.title == *here.grid);
            if let Some(grid) = grid {
                compare(&mut sheet, table, here, grid);
            }
        }
    }
    (!sheet.rows.is_empty()).then_some(sheet)
}

fn compare(sheet: &mut Sheet, table: &Published, here: &Here, grid: &Grid) {
    let Some((_, after)) = here.after.first() else { return };
    let before = table.effects.iter().find(|effect| effect.after == *after).map(|e| &e.before);
    let rows = grid.rows.iter().enumerate();
    let keyed: Vec<(usize, String)> = rows
        .filter_map(|(at, (name, _))| Some((at, here.key(name)?)))
        .filter(|(_, key)| table.effect_of(after, key).is_some())
        .collect();
    let Some((first, first_key)) = keyed.first() else { return };
    for (at, key) in &keyed {
        let mut cells = vec![grid.rows[*at].0.clone()];
        for (column, design) in [before, Some(after)].into_iter().enumerate() {
            let speed = |row: usize| grid.rows[row].1[column].first().copied();
            let published = design.and_then(|design| {
                Some(throughput(table, key, design)? / throughput(table, first_key, design)?)
            });
            let simulated = speed(*at).zip(speed(*first)).map(|(at, first)| at / first);
            cells.extend(beside(published, simulated));
        }
        let simulated = grid.gain(*at, 0).map(|gain| gain.mean);
        cells.extend(beside(table.effect_of(after, key), simulated));
        sheet.row(cells);
    }
}

/// Returns the published throughput: of elapsed times that of as many tasks as the row's number.
fn throughput(table: &Published, key: &str, column: &str) -> Option<f64> {
    let value = table.cell(key, column)?;
    if table.title.contains("elapsed") { Some(number(key)? / value) } else { Some(value) }
}

/// Returns both values and the error of the second in percent.
fn beside(published: Option<f64>, simulated: Option<f64>) -> [String; 3] {
    let cell = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    let error = published.zip(simulated).map(|(published, simulated)| simulated / published - 1.0);
    [cell(published), cell(simulated), error.map_or("-".into(), |e| format!("{:+.0}%", e * 100.0))]
}
