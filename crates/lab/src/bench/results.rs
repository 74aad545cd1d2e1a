//! Results of the bench, and their tables.

use crate::bars::{self, Verdict};
use crate::huge::Huge;
use crate::measure::{Record, Unit};
use crate::report::figure;
use crate::sheet::Sheet;
use crate::side::{SIDES, Side};
use crate::stored::Results;
use serde::{Deserialize, Serialize};

/// Results of `extant-lab bench`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Bench {
    /// Every measured value.
    pub record: Record,
    /// The opening of a very large file system, if it was measured.
    pub huge: Option<Huge>,
}

impl Bench {
    /// Returns the bars for which there are figures.
    pub fn verdicts(&self) -> Vec<Verdict> {
        bars::judge(&self.record, self.huge.as_ref())
    }

    /// Returns the measured ones of `sides`.
    fn measured(&self, sides: &[Side]) -> Vec<Side> {
        let measured = |side: &Side| {
            self.record.rows().iter().any(|(_, values)| values.sides.contains_key(side.name()))
        };
        sides.iter().copied().filter(measured).collect()
    }

    fn medians(&self) -> Sheet {
        let sides = self.measured(&SIDES);
        let names = sides.iter().map(|side| side.name());
        let mut sheet =
            Sheet::new("median rates", ["", "threads", "unit"].into_iter().chain(names));
        for (row, values) in self.record.rows() {
            let rate =
                |side: &Side| self.record.median(row, side.name()).map_or("-".into(), figure);
            let head =
                [row.workload.to_string(), row.threads.to_string(), unit(values.unit).into()];
            sheet.row(head.into_iter().chain(sides.iter().map(rate)));
        }
        sheet
    }

    /// Returns the table of ratios of `ours` to each of `theirs`, with least and greatest of the
    /// runs.
    fn ratios(&self, ours: Side, theirs: &[Side]) -> Option<Sheet> {
        let theirs = self.measured(theirs);
        if theirs.is_empty() || self.measured(&[ours]).is_empty() {
            return None;
        }
        let names = theirs.iter().map(|side| side.name());
        let title = format!("rates of {} by those of others", ours.name());
        let mut sheet = Sheet::new(title, ["", "threads"].into_iter().chain(names));
        for (row, _) in self.record.rows() {
            let ratio = |side: &Side| {
                let found = self.record.ratio(row, ours.name(), side.name());
                found.map_or("-".into(), |ratio| ratio.to_string())
            };
            let head = [row.workload.to_string(), row.threads.to_string()];
            sheet.row(head.into_iter().chain(theirs.iter().map(ratio)));
        }
        Some(sheet)
    }

    fn bars(&self) -> Sheet {
        let verdicts = self.verdicts();
        let missed = verdicts.iter().filter(|verdict| !verdict.reached);
        let title = format!(
            "{} of {} bars reached",
            verdicts.len() - missed.clone().count(),
            verdicts.len()
        );
        let mut sheet = Sheet::new(title, ["missed", "found"]);
        missed.for_each(|verdict| sheet.row([verdict.bar.clone(), verdict.found.clone()]));
        sheet.notes.extend(self.huge.as_ref().map(large));
        sheet
    }
}

impl Results for Bench {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = Vec::new();
        if !self.record.rows().is_empty() {
            let theirs = [Side::Ext4, Side::Fuse2fs, Side::Null, Side::Tmpfs];
            sheets.push(self.medians());
            sheets.extend(self.ratios(Side::Engine, &theirs[..1]));
            sheets.extend(self.ratios(Side::ExtantFuse, &theirs));
            let rings = [Side::ExtantFuse, Side::Fuse2fs, Side::NullRings];
            sheets.extend(self.ratios(Side::ExtantRings, &rings));
            sheets.extend(self.ratios(Side::NullRings, &[Side::Null]));
        }
        sheets.push(self.bars());
        sheets
    }
}

fn large(huge: &Huge) -> String {
    format!(
        "mounting 60 TiB: {} s and {:.0} MB in a process of its own; on the sparse device {:.3} s",
        huge.seconds,
        huge.process_bytes as f64 / 1e6,
        huge.sparse_seconds,
    )
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Ops => "ops/s",
        Unit::Megabytes => "MB/s",
    }
}
