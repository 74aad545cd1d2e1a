//! Runs of `e2fsck` and their verdicts. A verdict is read from the text: the exit status alone is
//! no proof.

use crate::counts::{self, Summary};
use crate::tool::{Printed, arg, need, run_with_env};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Verdict of `e2fsck` on an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All five passes ran without a complaint.
    Clean,
    /// The lines that are not part of a clean report, in order.
    Complaints(Vec<String>),
}

impl Verdict {
    /// Panics with the complaints, if there are any.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }

    /// Makes the verdict with these complaints.
    pub fn of(lines: Vec<String>) -> Self {
        if lines.is_empty() { Verdict::Clean } else { Verdict::Complaints(lines) }
    }

    /// Returns whether there are no complaints.
    pub fn is_clean(&self) -> bool {
        *self == Verdict::Clean
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Clean => f.write_str("clean"),
            Verdict::Complaints(lines) => write!(f, "complaints:\n  {}", lines.join("\n  ")),
        }
    }
}

/// As [`check_with`]. For a clean image the results of the other programs are compared, and each
/// contradiction is a complaint (see [`counts`]).
#[track_caller]
pub fn check_by_all(image: &Path, args: &[&str]) -> Verdict {
    let printed = e2fsck(image, "-fn", args);
    let verdict = verdict(&printed, |_| false);
    let summary = printed.text().lines().find_map(summary);
    match (verdict.is_clean(), summary) {
        (true, Some(summary)) => Verdict::of(counts::contradictions(image, summary)),
        _ => verdict,
    }
}

/// Runs `e2fsck -fn` with further arguments, for instance `["-E", "journal_only"]` or
/// `["-b", "32768"]`. An image that needs its journal replayed is not clean.
pub fn check_with(image: &Path, args: &[&str]) -> Verdict {
    let printed = e2fsck(image, "-fn", args);
    verdict(&printed, |_| false)
}

/// As [`check_with`]; `None` if e2fsck has not ended after this time. It walks maps whose blocks
/// point to each other along all ways.
pub fn check_within(image: &Path, limit: Duration) -> Option<Verdict> {
    let seconds = format!("{}", limit.as_secs_f64());
    let mut all: Vec<OsString> = ["-s", "KILL", &seconds].map(Into::into).into();
    all.extend([need("e2fsck").into(), "-fn".into(), arg(image)]);
    let printed = run_with_env("timeout", &all, &[("E2FSCK_TIME", &soon())]);
    // The code of timeout(1) for a program that it has killed, or the signal that meets both.
    let is_ended = !matches!(printed.code, 124 | 137 | -1);
    is_ended.then(|| verdict(&printed, |_| false))
}

/// Repairs the traces of a crash with `e2fsck -fy` (journal replay, orphans, global free counts, a
/// stale `orphan_present`), and checks again by `check`.
///
/// The verdict has every line of the repair that is not one of these allowances, then every
/// complaint of the check.
pub fn recover_and(image: &Path, check: impl FnOnce(&Path) -> Verdict) -> Verdict {
    let repair = e2fsck(image, "-fy", &["-E", "no_optimize_extents"]);
    let mut complaints = match verdict(&repair, allowed_after_crash) {
        Verdict::Clean => Vec::new(),
        Verdict::Complaints(lines) => lines,
    };
    if let Verdict::Complaints(lines) = check(image) {
        // e2fsck keeps the tree of a file that it has truncated, unless told to optimize, and then
        // prints this remark.
        let lines = lines.into_iter().filter(|line| !line.contains("could be shorter.  Optimize?"));
        complaints.extend(lines.map(|line| format!("after repair: {line}")));
    }
    Verdict::of(complaints)
}

/// Runs `e2fsck -fy` and returns its report.
pub fn repair(image: &Path) -> Printed {
    e2fsck(image, "-fy", &[])
}

fn e2fsck(image: &Path, mode: &str, args: &[&str]) -> Printed {
    let mut all = vec![mode.into()];
    all.extend(args.iter().map(Into::into));
    all.push(arg(image));
    run_with_env("e2fsck", &all, &[("E2FSCK_TIME", &soon())])
}

/// Returns the time for e2fsck. It reads a coarse clock, for which a simultaneous write is in the
/// future.
fn soon() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() + 2).to_string()
}

const PASSES: [&str; 5] = [
    "Pass 1: Checking inodes, blocks, and sizes",
    "Pass 2: Checking directory structure",
    "Pass 3: Checking directory connectivity",
    "Pass 4: Checking reference counts",
    "Pass 5: Checking group summary information",
];

/// Reads a report: clean if it consists of the five passes, the summary and lines that `allowed`
/// accepts.
fn verdict(printed: &Printed, allowed: fn(&str) -> bool) -> Verdict {
    let text = printed.text() + &printed.errors();
    let mut passes = PASSES.iter().peekable();
    let mut complaints = Vec::new();
    let mut summaries = 0;
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        if passes.peek().is_some_and(|pass| **pass == line) {
            passes.next();
        } else if summary(line).is_some() {
            summaries += 1;
        } else if !line.starts_with("e2fsck 1.") && !is_advice(line) && !allowed(line) {
            complaints.push(line.to_owned());
        }
    }
    if let Some(missing) = passes.next() {
        complaints.push(format!("the report lacks `{missing}`"));
    }
    if summaries != 1 {
        complaints.push(format!("the report has {summaries} summary lines"));
    }
    complaints.extend(bad_exit(printed.code, allowed("recovering journal")));
    Verdict::of(complaints)
}

/// A complaint about the exit code, which is 0, or 1 where repairs are allowed.
fn bad_exit(code: i32, repairs: bool) -> Option<String> {
    let fine = code == 0 || (repairs && code == 1);
    (!fine).then(|| format!("exit code {code}"))
}

/// Returns whether a line remarks on leaves that are not full, as in all files written in random
/// order, also by the kernel.
fn is_advice(line: &str) -> bool {
    line.starts_with("Inode ")
        && line.contains(" extent tree (at level ")
        && line.contains(") could be narrower.")
}

/// `NAME: 11/65536 files (0.0% non-contiguous), 14360/262144 blocks`
fn summary(line: &str) -> Option<Summary> {
    let words: Vec<&str> = line.rsplit_once(": ")?.1.split_whitespace().collect();
    match words.as_slice() {
        [files, "files", percent, "non-contiguous),", blocks, "blocks"]
            if percent.starts_with('(') =>
        {
            let ((used_inodes, inodes), (used_blocks, blocks)) = (ratio(files)?, ratio(blocks)?);
            Some(Summary { used_inodes, inodes, used_blocks, blocks })
        }
        _ => None,
    }
}

fn ratio(word: &str) -> Option<(u64, u64)> {
    let (used, all) = word.split_once('/')?;
    Some((used.parse().ok()?, all.parse().ok()?))
}

/// Returns whether a repair after a crash may print this line, for images of Extant and of the
/// kernel.
fn allowed_after_crash(line: &str) -> bool {
    const WHOLE: [&str; 4] = [
        "Fix? yes",
        "Clear? yes",
        "Feature orphan_present is set but orphan file is clean.",
        "recovering journal",
    ];
    const START: [&str; 6] = [
        "Clearing orphaned inode ",
        "Truncating orphaned inode ",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "Setting free blocks count to ",
        "Setting free inodes count to ",
    ];
    let replay = line.ends_with(": recovering journal")
        || line.ends_with(": ***** FILE SYSTEM WAS MODIFIED *****");
    let orphan_block = line.starts_with("Orphan file (inode ") && line.ends_with(" is not clean.");
    replay
        || orphan_block
        || WHOLE.contains(&line)
        || START.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(body: &str, code: i32) -> Printed {
        Printed {
            command: "e2fsck".into(),
            code,
            stdout: body.as_bytes().to_vec(),
            stderr: b"e2fsck 1.47.0 (5-Feb-2023)\n".to_vec(),
        }
    }

    fn passes() -> String {
        PASSES.join("\n") + "\nimg: 11/65536 files (0.0% non-contiguous), 14360/262144 blocks\n"
    }

    #[test]
    fn clean_report_is_clean() {
        assert_eq!(verdict(&report(&passes(), 0), |_| false), Verdict::Clean);
    }

    #[test]
    fn any_other_line_is_a_complaint() {
        let text =
            passes().replace("Pass 2", "Deleted inode 15 has zero dtime.  Fix? no\n\nPass 2");
        let Verdict::Complaints(lines) = verdict(&report(&text, 0), |_| false) else {
            panic!("clean")
        };
        assert_eq!(lines, ["Deleted inode 15 has zero dtime.  Fix? no"]);
    }

    #[test]
    fn missing_pass_or_summary_is_a_complaint() {
        assert!(!verdict(&report("", 0), |_| false).is_clean());
        let cut = passes().replace(PASSES[4], "");
        assert!(!verdict(&report(&cut, 0), |_| false).is_clean());
    }

    #[test]
    fn exit_code_counts() {
        assert!(!verdict(&report(&passes(), 4), |_| false).is_clean());
        assert!(!verdict(&report(&passes(), 1), |_| false).is_clean());
        assert!(verdict(&report(&passes(), 1), allowed_after_crash).is_clean());
    }

    #[test]
    fn group_counts_are_never_allowed() {
        assert!(allowed_after_crash("Free blocks count wrong (55992, counted=55940)."));
        assert!(!allowed_after_crash(
            "Free blocks count wrong for group #0 (55992, counted=55940)."
        ));
        assert!(!allowed_after_crash("Block bitmap differences:  -8707"));
    }
}
