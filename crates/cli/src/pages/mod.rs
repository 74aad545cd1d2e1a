//! Manual pages and completions of shells, made from the definition of the command line.
//!
//! Each command has a page `extant-COMMAND(1)`; `extant(1)` lists them. `mount.fuse.extant(8)`
//! describes the helpers of mount(8) and umount(8), and the other names of helpers refer to it.

mod helpers;
mod options;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::PathBuf;

/// The name of the program.
const PROGRAM: &str = "extant";

/// The title of the manual, in the header of each page.
const MANUAL: &str = "Extant Manual";

/// The date of each page: none, so that the same program has the same pages. Not empty, since the
/// fields after an empty one would take its place.
const DATE: &str = " ";

/// Exit codes of commands.
const EXIT_CODES: [(&str, &str); 3] = [
    ("0", "Done."),
    ("1", "Failed; the message names the object and the cause."),
    ("2", "Wrong usage."),
];

/// A file below `share`.
pub struct Page {
    /// Its path, relative to `share`.
    pub path: PathBuf,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// Makes the pages and completions of the program that `command` describes.
pub fn all(command: Command) -> Vec<Page> {
    let mut pages = manual(command.clone());
    pages.extend(completions(command));
    pages
}

fn completions(mut command: Command) -> impl Iterator<Item = Page> {
    let shells = [
        (Shell::Bash, "bash-completion/completions/extant"),
        (Shell::Zsh, "zsh/site-functions/_extant"),
        (Shell::Fish, "fish/vendor_completions.d/extant.fish"),
    ];
    shells.into_iter().map(move |(shell, path)| {
        let mut content = Vec::new();
        clap_complete::generate(shell, &mut command, PROGRAM, &mut content);
        Page { path: path.into(), content }
    })
}

fn manual(command: Command) -> Vec<Page> {
    let mut command = command.disable_help_subcommand(true);
    // Hands the options of all commands down to each.
    command.build();
    let commands: Vec<&Command> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    let mut pages: Vec<Page> = commands.iter().map(|sub| command_page(sub)).collect();
    let others: Vec<String> =
        commands.iter().map(|sub| format!("{PROGRAM}-{}", sub.get_name())).collect();
    pages.push(program_page(&command, &others));
    pages.extend(helpers::pages(command.get_version().unwrap_or_default()));
    pages
}

fn command_page(command: &Command) -> Page {
    let mut roff = Roff::new();
    if command.get_name() == "mount" {
        roff.control("SH", ["MOUNT OPTIONS"]);
        options::describe(&mut roff);
    }
    exit_status(&mut roff);
    see_also(&mut roff, &[("extant", "1"), ("mount.fuse.extant", "8")]);
    // `help` shows the text of mount options after all others; here it is a section.
    page(command.clone().after_help(None::<&str>), &roff)
}

fn program_page(command: &Command, others: &[String]) -> Page {
    let mut roff = Roff::new();
    exit_status(&mut roff);
    let mut also: Vec<(&str, &str)> = others.iter().map(|name| (name.as_str(), "1")).collect();
    also.extend([("mount.fuse.extant", "8"), ("mke2fs", "8"), ("e2fsck", "8"), ("ext4", "5")]);
    see_also(&mut roff, &also);
    page(command.clone(), &roff)
}

/// Returns the page of a command, with further sections at its end.
fn page(command: Command, more: &Roff) -> Page {
    let source = format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.version(None::<&str>)).date(DATE).source(source).manual(MANUAL);
    let mut rendered = Vec::new();
    // Writing to memory does not fail.
    let _ = man.render(&mut rendered);
    let mut content = ascii(&String::from_utf8_lossy(&rendered)).into_bytes();
    content.extend_from_slice(more.to_roff().as_bytes());
    Page { path: PathBuf::from("man/man1").join(man.get_filename()), content }
}

/// Returns the text in ASCII, with escapes of roff for other characters: formatters assume another
/// encoding than UTF-8 unless they are told.
fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            plain.push(character)
        } else {
            plain.push_str(&format!("\\[u{:04X}]", u32::from(character)))
        }
    }
    plain
}

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        entry(roff, code, meaning);
    }
}

/// An entry of a list: a term and its explanation.
fn entry(roff: &mut Roff, term: &str, explanation: &str) {
    roff.control("TP", []);
    roff.text([bold(term)]);
    roff.text([roman(explanation)]);
}

fn see_also(roff: &mut Roff, pages: &[(&str, &str)]) {
    roff.control("SH", ["SEE ALSO"]);
    for (place, (name, section)) in pages.iter().enumerate() {
        let comma = if place + 1 == pages.len() { "" } else { "," };
        roff.control("BR", [*name, &format!("({section}){comma}")]);
    }
}
