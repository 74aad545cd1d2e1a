//! Verdicts of both programs on one image.

use crate::exceptions::{OWN, THEIRS, reason};
use extant_blocks::{BlockDevice, MemDevice};
use extant_check::{Check, CheckSummary, Finding, Severity};
use extant_testkit::{Image, e2fsck};
use std::path::Path;
use std::sync::Arc;

/// Runs a check of these bytes.
pub fn check(bytes: &[u8], as_is: bool, threads: usize) -> (Vec<Finding>, CheckSummary) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let mut found = Vec::new();
    let check = Check::new(device).as_is(as_is).threads(threads);
    let summary = check.run(&mut |finding| found.push(finding));
    (found, summary)
}

/// Returns the damages in words. They must be the same for one thread and for three.
pub fn damages(bytes: &[u8], as_is: bool) -> Vec<String> {
    let (found, summary) = check(bytes, as_is, 1);
    // The clock, which bounds times, may move on between two checks, but not each time.
    let is_same = |_| check(bytes, as_is, 1) == check(bytes, as_is, 3);
    let same = check(bytes, as_is, 3) == (found.clone(), summary) || (0..3).any(is_same);
    assert!(same, "the number of threads matters: {found:?}");
    let damages: Vec<String> = found
        .iter()
        .filter(|finding| finding.severity() != Severity::Note)
        .map(ToString::to_string)
        .collect();
    assert_eq!(damages.is_empty(), summary.is_clean(), "{summary:?}");
    damages
}

/// Returns the complaints of `e2fsck -fn` about an image. Advice and the remark on a log that it
/// does not replay are none.
pub fn complaints(image: &Path) -> Vec<String> {
    let is_remark = |line: &str| {
        line.contains("could be shorter.")
            || line.starts_with("Warning: skipping journal recovery")
            || line == "Fix? no"
    };
    match e2fsck::check_with(image, &[]) {
        e2fsck::Verdict::Clean => Vec::new(),
        e2fsck::Verdict::Complaints(lines) => {
            lines.into_iter().filter(|line| !is_remark(line)).collect()
        }
    }
}

/// Agreement of both verdicts.
pub enum Agreement {
    Same { damaged: bool },
    Excepted(&'static str),
}

/// Compares the verdicts on the blocks as they are.
///
/// # Errors
/// Both, if they differ without a known reason.
pub fn compare(bytes: &[u8]) -> Result<Agreement, String> {
    let image = Image::holding(bytes);
    image.leave_unjudged("it is damaged");
    let (own, theirs) = (damages(bytes, true), complaints(image.path()));
    let why = match (own.first(), theirs.first()) {
        (Some(own), None) => reason(OWN, own),
        (None, Some(theirs)) => reason(THEIRS, theirs),
        (own, _) => return Ok(Agreement::Same { damaged: own.is_some() }),
    };
    let differ = || format!("own findings {own:?}, complaints of e2fsck {theirs:?}");
    why.map(Agreement::Excepted).ok_or_else(differ)
}
