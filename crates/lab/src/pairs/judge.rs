//! Which bars are reached.

use super::{Row, THREADS};
use crate::interval::{Interval, Standing};
use crate::measure::median;
use serde::Serialize;

/// Required rate with the most threads, relative to the best number of threads.
const OF_BEST: f64 = 0.95;

/// A bar and how it stands.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The bar.
    pub bar: String,
    /// How it stands.
    pub standing: Standing,
    /// The interval that says so.
    pub found: Interval,
}

/// Returns all bars for which there are figures.
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let beside_kernel = rows.iter().filter_map(|row| {
        let (bar, found) = (row.bar?, row.ratio()?);
        let bar_text = format!("{}, {} threads: {bar} times ext4", row.name, row.threads);
        Some(Verdict { bar: bar_text, standing: found.beside(bar), found })
    });
    let many = rows
        .iter()
        .filter(|row| row.threads == THREADS[THREADS.len() - 1])
        .filter_map(|row| keeps(rows, row));
    beside_kernel.chain(many).collect()
}

/// The most threads beside the number of threads whose median rate is greatest.
fn keeps(rows: &[Row], row: &Row) -> Option<Verdict> {
    let rate = |row: &Row| median(&row.sides[0].rate).unwrap_or(0.0);
    let best =
        rows.iter().filter(|r| r.name == row.name).max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let found = Interval::of_pairs(&row.sides[0].rate, &best.sides[0].rate)?;
    let bar = format!(
        "{}: {} threads at {OF_BEST} of the best, which is {}",
        row.name, row.threads, best.threads
    );
    Some(Verdict { bar, standing: found.beside(OF_BEST), found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::Values;

    fn row(threads: usize, ours: f64, theirs: f64) -> Row {
        let values = |rate: f64| Values { rate: vec![rate; 3], ..Values::default() };
        Row { name: "w".into(), threads, bar: Some(2.0), sides: [values(ours), values(theirs)] }
    }

    #[test]
    fn rows_are_judged_beside_the_kernel_and_beside_their_best() {
        let verdicts = judge(&[row(1, 10.0, 4.0), row(2, 20.0, 11.0), row(16, 18.0, 1.0)]);
        let standings: Vec<_> = verdicts.iter().map(|v| v.standing).collect();
        assert_eq!(
            standings,
            [Standing::Reached, Standing::Missed, Standing::Reached, Standing::Missed]
        );
        assert!((verdicts[3].found.mean - 0.9).abs() < 1e-9, "{verdicts:?}");
    }

    #[test]
    fn the_best_at_most_threads_is_its_own_measure() {
        let verdicts = judge(&[row(1, 10.0, 1.0), row(16, 18.0, 1.0)]);
        assert_eq!(verdicts.last().map(|v| v.standing), Some(Standing::Reached));
    }
}
