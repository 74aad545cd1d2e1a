//! Mean and interval of many ratios.

use crate::sheet::{Name, Sheet};
use serde::{Deserialize, Serialize};

/// Student's t for 95% of both sides together, for 1, 2, … 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// A ratio's geometric mean and the interval that has the true one with 95%.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Geometric mean.
    pub mean: f64,
    /// Lower end; 0 if one pair is all there is.
    pub low: f64,
    /// Upper end; infinite (`null` in JSON) if one pair is all there is.
    pub high: f64,
}

fn student(freedom: usize) -> f64 {
    STUDENT.get(freedom - 1).copied().unwrap_or(1.96 + 2.4 / freedom as f64)
}

impl Interval {
    /// Of the ratios of pairs, by Student's distribution of their logarithms; None if there are
    /// none, or one is not positive.
    pub fn of(ratios: &[f64]) -> Option<Interval> {
        if ratios.is_empty() {
            return None;
        }
        if ratios.iter().any(|r| !r.is_finite() || *r <= 0.0) {
            return Some(Interval { mean: 0.0, low: 0.0, high: f64::INFINITY });
        }
        let n = ratios.len();
        let logs: Vec<f64> = ratios.iter().map(|r| r.ln()).collect();
        let mean = logs.iter().sum::<f64>() / n as f64;
        if n == 1 {
            return Some(Interval { mean: mean.exp(), low: 0.0, high: f64::INFINITY });
        }
        let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let half = student(n - 1) * (variance / n as f64).sqrt();
        Some(Interval { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
    }

    /// Of `ours` divided by `theirs`, run by run, likewise.
    pub fn of_pairs(ours: &[f64], theirs: &[f64]) -> Option<Interval> {
        if ours.len() != theirs.len() {
            return None;
        }
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        Interval::of(&ratios)
    }

    /// How it stands to a bar.
    pub fn beside(&self, bar: f64) -> Standing {
        match bar {
            bar if self.low >= bar => Standing::Reached,
            bar if self.high < bar => Standing::Missed,
            _ => Standing::Open,
        }
    }
}

/// How an interval stands to a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Standing {
    /// All of it is at or above the bar.
    Reached,
    /// The bar is inside: the pairs do not decide.
    Open,
    /// All of it is below.
    Missed,
}

impl Standing {
    /// As tables show it.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Reached => "reached",
            Standing::Open => "open",
            Standing::Missed => "MISSED",
        }
    }
}

impl From<bool> for Standing {
    fn from(reached: bool) -> Standing {
        if reached { Standing::Reached } else { Standing::Missed }
    }
}

/// A bar, the figures of a run, and how they stand to it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Verdict {
    /// The bar.
    pub what: Name,
    /// The figures.
    pub found: String,
    /// How they stand to it.
    pub standing: Standing,
}

impl Verdict {
    /// Makes a verdict.
    pub fn new(
        what: impl Into<Name>,
        found: impl ToString,
        standing: impl Into<Standing>,
    ) -> Verdict {
        Verdict { what: what.into(), found: found.to_string(), standing: standing.into() }
    }

    /// Makes the verdict on an interval beside a bar.
    pub fn of(what: impl Into<Name>, found: Interval, bar: f64) -> Verdict {
        Verdict::new(what, found, found.beside(bar))
    }

    /// Returns a line of a report.
    pub fn line(&self) -> String {
        format!("{}: {}: {}", self.standing.word(), self.what, self.found)
    }
}

/// Returns whether every bar is reached.
pub fn all_reached(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| verdict.standing == Standing::Reached)
}

/// Returns the table of verdicts that are not reached, below the number of those that are.
pub fn judged(verdicts: &[Verdict]) -> Sheet {
    let (reached, others): (Vec<_>, Vec<_>) =
        verdicts.iter().partition(|verdict| verdict.standing == Standing::Reached);
    let title = format!("{} of {} bars reached", reached.len(), verdicts.len());
    let mut sheet = Sheet::new(title, [""; 0]);
    sheet.notes = others.into_iter().map(Verdict::line).collect();
    sheet
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.high {
            // One pair: there is no interval.
            f64::INFINITY => write!(f, "{:.2}", self.mean),
            high => write!(f, "{:.2} [{:.2} to {high:.2}]", self.mean, self.low),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_by_hand() {
        // Logarithms 0 and 2 ln 2: mean ln 2, deviation sqrt 2 ln 2, so the half is 12.706 ln 2.
        let found = Interval::of(&[1.0, 4.0]).expect("two ratios");
        assert!((found.mean - 2.0).abs() < 1e-9);
        assert!((found.high.ln() - 13.706 * 2f64.ln()).abs() < 1e-9);
        assert!((found.low * found.high - 4.0).abs() < 1e-9);
    }

    #[test]
    fn bars_and_intervals() {
        let same = Interval::of(&[3.0; 15]).expect("ratios");
        assert_eq!(same.beside(2.9), Standing::Reached);
        assert_eq!(same.beside(3.1), Standing::Missed);
        let one = Interval::of(&[3.0]).expect("a ratio");
        assert_eq!((one.beside(1.0), one.beside(9.0)), (Standing::Open, Standing::Open));
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of_pairs(&[1.0, 2.0], &[1.0]), None);
        let none = Interval::of(&[1.0, 0.0]).expect("ratios");
        assert_eq!(none.beside(1.0), Standing::Open, "a bar does not disappear");
        assert_eq!(Interval::of_pairs(&[6.0, 3.0], &[3.0, 1.5]).map(|i| i.mean), Some(2.0));
    }
}
