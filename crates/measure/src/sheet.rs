//! Tables of results, for terminals and for pages.

use std::borrow::Cow;
use std::fmt::Write;
use std::io::{self, Write as _};

/// A name in results: fixed where they are measured, owned where they are read.
pub type Name = Cow<'static, str>;

/// A table of finished cells. The first column has names.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// The measured quantity.
    pub title: String,
    /// Heads of the columns.
    pub head: Vec<String>,
    /// Cells, row by row. A row with fewer cells than `head` ends early.
    pub rows: Vec<Vec<String>>,
    /// Lines below the table.
    pub notes: Vec<String>,
}

impl Sheet {
    /// Makes a table without rows.
    pub fn new<S: Into<String>>(
        title: impl Into<String>,
        head: impl IntoIterator<Item = S>,
    ) -> Sheet {
        let head = head.into_iter().map(Into::into).collect();
        Sheet { title: title.into(), head, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Returns the table with aligned columns.
    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column| {
            let cells = lines().filter_map(|line: &Vec<String>| line.get(column));
            cells.map(|cell: &String| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut out = format!("{}\n", self.title);
        for cells in lines() {
            let mut line = String::new();
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        self.notes.iter().for_each(|note| out.push_str(&format!("{note}\n")));
        out
    }

    /// Returns the table in HTML, its notes below.
    pub fn html(&self) -> String {
        let cells = |tag: &str, cells: &[String]| {
            let cell = |text: &String| format!("<{tag}>{}</{tag}>", escaped(text));
            format!("<tr>{}</tr>\n", cells.iter().map(cell).collect::<String>())
        };
        let mut out = String::new();
        if !self.rows.is_empty() {
            let rows: String = self.rows.iter().map(|row| cells("td", row)).collect();
            out += &format!("<table>\n{}{rows}</table>\n", cells("th", &self.head));
        }
        self.notes
            .iter()
            .for_each(|note| out += &format!("<p class=\"origin\">{}</p>\n", escaped(note)));
        out
    }

    /// Returns the table in Markdown, below its title.
    pub fn markdown(&self) -> String {
        format!("*{}*\n\n{}", self.title, self.lines())
    }

    /// Returns the table in Markdown without its title.
    pub fn lines(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut out = String::new();
        if !self.rows.is_empty() {
            out += &line(&self.head);
            out += &format!("|{}\n", " --- |".repeat(self.head.len()));
            self.rows.iter().for_each(|row| out += &line(row));
            out.push('\n');
        }
        self.notes.iter().for_each(|note| out += &format!("- {note}\n"));
        if !self.notes.is_empty() {
            out.push('\n');
        }
        out
    }
}

/// Returns a text with the marks of HTML replaced.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a rate in three digits or so.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// Writes to standard output.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_marked() {
        let mut sheet = Sheet::new("title", ["", "a", "long head"]);
        sheet.row(["row", "1.25", "2"]);
        sheet.notes.push("note".into());
        assert_eq!(sheet.text(), "title\n        a  long head\nrow  1.25          2\nnote\n");
        let marked = "*title*\n\n|  | a | long head |\n| --- | --- | --- |\n\
                      | row | 1.25 | 2 |\n\n- note\n\n";
        assert_eq!(sheet.markdown(), marked);
    }
}
