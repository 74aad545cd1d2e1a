//! The table that people read: sizes and habits of each crate.

use std::fmt::Write;

use super::report::{Crate, Report};

const COLUMNS: [&str; 14] = [
    "crate",
    "files",
    "tokens",
    "words",
    "what",
    "who",
    "longest fn",
    "parameters",
    "exports",
    "documented",
    "panics",
    "unsafe",
    "circle",
    "long lines",
];

/// A Markdown table. Tokens, functions, panics and unsafe blocks are those of production code;
/// pronouns are per 10,000 words of all comments.
pub fn table(report: &Report) -> String {
    let mut text = format!("| {} |\n|{}\n", COLUMNS.join(" | "), " --- |".repeat(COLUMNS.len()));
    for (name, own) in &report.crates {
        text += &format!("| {} |\n", row(name, own).join(" | "));
    }
    let pages = &report.pages;
    writeln!(
        text,
        "\nMarkdown: {} words, what {:.1}, who {:.1}, {} long lines.",
        pages.words,
        pages.rate(pages.what),
        pages.rate(pages.who),
        pages.long_lines
    )
    .expect("a string takes all text");
    text
}

fn row(name: &str, own: &Crate) -> [String; 14] {
    let own_names = &own.exports.own;
    let documented = own_names.values().filter(|documented| **documented).count();
    [
        name.to_owned(),
        own.files.to_string(),
        own.tokens.to_string(),
        own.prose.words.to_string(),
        format!("{:.1}", own.prose.rate(own.prose.what)),
        format!("{:.1}", own.prose.rate(own.prose.who)),
        own.longest.to_string(),
        own.parameters.to_string(),
        own.exports.len().to_string(),
        format!("{documented} of {}", own_names.len()),
        own.panics.to_string(),
        own.unsafe_blocks.to_string(),
        own.uses.in_circles().len().to_string(),
        own.prose.long_lines.to_string(),
    ]
}
