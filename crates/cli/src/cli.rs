//! The command line as it is written.

use crate::commands::*;
use crate::context::{Context, Global, report_usage};
use crate::failure::Result;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

/// ext4 in user space: makes, mounts, reads, changes and recovers ext4 images.
///
/// IMAGE is a regular file, a block device or the address of a network block device
/// (nbd://HOST/EXPORT), or for reading of an image in an object store (s3://BUCKET/DIR/NAME);
/// IMAGE@OFFSET and IMAGE@pN name a part of it. It is a raw image unless
/// --format says otherwise. Paths inside an image begin at its root. Commands that
/// read never write: an image that needs recovery is recovered in memory. Commands that write
/// recover first. Exit codes: 0 done, 1 failed, 2 wrong
/// usage; `check` and `repair` have those of fsck(8), `diff` has those of diff(1).
#[derive(Parser, Debug)]
#[command(name = "extant", version, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
}

/// A command.
struct Command {
    word: &'static str,
    arguments: fn(clap::Command) -> clap::Command,
    prepare: fn(&ArgMatches) -> std::result::Result<Prepared, clap::Error>,
}

/// A command with its arguments.
type Prepared = Box<dyn FnOnce(&Context) -> Result>;

/// Commands of modules, which have the same names unless others are told, and may take more than
/// their arguments.
macro_rules! commands {
    ($($module:ident $(= $word:literal)? $(($more:expr))?,)*) => {
        [$(Command {
            word: commands!(@word $module $($word)?),
            arguments: $module::Args::augment_args,
            prepare: |matches| {
                let args = $module::Args::from_arg_matches(matches)?;
                Ok(Box::new(move |context: &Context| $module::run(&args, $($more,)? context)))
            },
        }),*]
    };
    (@word $module:ident) => { stringify!($module) };
    (@word $module:ident $word:literal) => { $word };
}

/// All commands, in the order of the help.
static COMMANDS: &[Command] = &commands![
    mkfs,
    build,
    mount,
    mounts,
    umount,
    upgrade,
    info,
    ls,
    tree,
    stat,
    cat,
    find,
    du,
    hash,
    diff,
    get,
    put,
    export,
    rm,
    mkdir,
    mv,
    ln,
    mknod,
    chmod,
    chown,
    truncate,
    setfattr,
    utimes,
    apply,
    batch(name),
    recover,
    check,
    debug,
    repair,
    resize,
    trim,
    clone,
    push,
    pull,
    overlay,
    serve_nbd = "serve-nbd",
    serve_vhost = "serve-vhost",
    serve,
    tune,
    verity,
    stats,
    lab,
    pages(command()),
];

impl Command {
    /// Returns the command that the first word of a command line names, which may be the value of
    /// an option, too.
    fn named(args: &[OsString]) -> Option<&'static Command> {
        let word = args.iter().skip(1).find(|arg| !arg.as_bytes().starts_with(b"-"))?;
        COMMANDS.iter().find(|command| command.word == word)
    }
}

/// Returns the whole command line.
fn command() -> clap::Command {
    with(COMMANDS)
}

/// Returns the command line with some commands.
fn with(commands: &[Command]) -> clap::Command {
    let described = |command: &Command| (command.arguments)(clap::Command::new(command.word));
    Cli::command().subcommands(commands.iter().map(described))
}

/// Parses a command line. To describe the command that it names takes a tenth of the time of
/// describing all, which serve for help and for errors.
fn parse(args: &[OsString]) -> std::result::Result<(Global, &'static str, Prepared), clap::Error> {
    let named = Command::named(args).map(std::slice::from_ref);
    let parsed = named.and_then(|only| parse_as(only, args).ok());
    parsed.map_or_else(|| parse_as(COMMANDS, args), Ok)
}

/// Returns the command of a command line.
fn name(args: &[OsString]) -> std::result::Result<&'static str, clap::Error> {
    parse(args).map(|(_, name, _)| name)
}

fn parse_as(
    commands: &'static [Command],
    args: &[OsString],
) -> std::result::Result<(Global, &'static str, Prepared), clap::Error> {
    let mut described = with(commands);
    let matches = described.try_get_matches_from_mut(args)?;
    let chosen = matches.subcommand().and_then(|(word, matches)| {
        Some((commands.iter().find(|command| command.word == word)?, matches))
    });
    let (command, chosen) =
        chosen.ok_or_else(|| described.error(ErrorKind::MissingSubcommand, "no command"))?;
    let global = Global::from_arg_matches(&matches).map_err(|e| e.format(&mut described))?;
    let prepared = (command.prepare)(chosen).map_err(|e| e.format(&mut described))?;
    Ok((global, command.word, prepared))
}

/// Runs the command that `args` (the program's name first) ask for.
pub fn run(args: Vec<OsString>) -> ExitCode {
    // Errors of usage end the program here, with exit code 2.
    let wants_json = args.iter().any(|arg| arg == "--json");
    let (global, name, command) = parse(&args).unwrap_or_else(|error| {
        match (wants_json, error.use_stderr()) {
            (true, true) => report_usage(error.kind()),
            (true, false) => exit_with_help(&error),
            _ => {}
        }
        error.exit()
    });
    let context = Context::new(&global);
    if !["mount", "serve"].contains(&name) {
        context.log_to_stderr();
    }
    match global.follow().and_then(|()| command(&context)) {
        Ok(()) => context.success(),
        Err(failure) => failure.report(&context),
    }
}

/// Prints help, or the version, as a JSON document.
fn exit_with_help(error: &clap::Error) -> ! {
    let printed = Context::for_json().document(&json!({ "help": error.to_string() }));
    std::process::exit(i32::from(printed.is_err()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_value_that_names_a_command_is_no_command() {
        let line = ["extant", "--trace", "ls", "info", "image"].map(OsString::from);
        let (_, name, _) = parse(&line).map_err(|e| e.to_string()).expect("it is right");
        assert_eq!(name, "info");
        let wrong = ["extant", "--threads", "ls", "info", "image"].map(OsString::from);
        let error = parse(&wrong).err().expect("a wrong number");
        assert!(error.to_string().contains("--threads"), "{error}");
    }
}
