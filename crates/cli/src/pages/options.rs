//! The options of a mount as a list of a manual page, from the text that `extant help mount` shows.

use super::entry;
use crate::mounting::options::help;
use clap_mangen::roff::{Roff, roman};

/// Columns before the name of an option in the text.
const NAME_COLUMN: usize = 2;

/// Appends headings, options with explanations, and plain lists.
pub fn describe(roff: &mut Roff) {
    let help = help();
    let mut lines = help.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(text) = line.strip_prefix("  ") else {
            roff.control("SS", [line.trim_end_matches(':')]);
            continue;
        };
        let (names, explanation) = text.split_once("  ").unwrap_or((text, ""));
        let mut explanation = explanation.trim().to_owned();
        while let Some(more) = lines.next_if(|next| indent(next) > NAME_COLUMN) {
            if !explanation.is_empty() {
                explanation.push(' ');
            }
            explanation.push_str(more.trim());
        }
        if explanation.is_empty() {
            roff.text([roman(names)])
        } else {
            entry(roff, names, &format!("{explanation}."));
            continue;
        };
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
