//! The command line as it is written.

use crate::commands::*;
use crate::context::{Context, Global, report_usage};
use crate::failure::Result;
use clap::{CommandFactory, Parser, Subcommand};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;

/// ext4 in user space: makes, mounts, reads, changes and recovers ext4 images.
///
/// IMAGE is a regular file, a block device or the address of a network block device
/// (nbd://HOST/EXPORT); IMAGE@OFFSET and IMAGE@pN name a part of it. It is a raw image unless
/// --format says otherwise. Paths inside an image begin at its root. Commands that
/// read never write: an image that needs recovery is recovered in memory. Commands that write
/// recover first. Exit codes: 0 done, 1 failed, 2 wrong
/// usage; `check` and `repair` have those of fsck(8), `diff` has those of diff(1).
#[derive(Parser, Debug)]
#[command(name = "extant", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Mkfs(Box<mkfs::Args>),
    Build(Box<build::Args>),
    Mount(mount::Args),
    Mounts(mounts::Args),
    Umount(umount::Args),
    Info(info::Args),
    Ls(ls::Args),
    Tree(tree::Args),
    Stat(stat::Args),
    Cat(cat::Args),
    Find(find::Args),
    Du(du::Args),
    Hash(hash::Args),
    Diff(Box<diff::Args>),
    Get(get::Args),
    Put(put::Args),
    Export(export::Args),
    Rm(rm::Args),
    Mkdir(mkdir::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Mknod(mknod::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Truncate(truncate::Args),
    Setfattr(setfattr::Args),
    Utimes(utimes::Args),
    Apply(apply::Args),
    Recover(recover::Args),
    Check(check::Args),
    Debug(debug::Args),
    Repair(repair::Args),
    Resize(resize::Args),
    Trim(trim::Args),
    Clone(clone::Args),
    Overlay(overlay::Args),
    ServeNbd(serve_nbd::Args),
    Tune(Box<tune::Args>),
    Verity(verity::Args),
    Stats(stats::Args),
    Lab(lab::Args),
    Pages(pages::Args),
}

impl Command {
    fn run(&self, context: &Context) -> Result {
        match self {
            Command::Mkfs(args) => mkfs::run(args, context),
            Command::Build(args) => build::run(args, context),
            Command::Mount(args) => mount::run(args, context),
            Command::Mounts(args) => mounts::run(args, context),
            Command::Umount(args) => umount::run(args, context),
            Command::Info(args) => info::run(args, context),
            Command::Ls(args) => ls::run(args, context),
            Command::Tree(args) => tree::run(args, context),
            Command::Stat(args) => stat::run(args, context),
            Command::Cat(args) => cat::run(args, context),
            Command::Find(args) => find::run(args, context),
            Command::Du(args) => du::run(args, context),
            Command::Hash(args) => hash::run(args, context),
            Command::Diff(args) => diff::run(args, context),
            Command::Get(args) => get::run(args, context),
            Command::Put(args) => put::run(args, context),
            Command::Export(args) => export::run(args, context),
            Command::Rm(args) => rm::run(args, context),
            Command::Mkdir(args) => mkdir::run(args, context),
            Command::Mv(args) => mv::run(args, context),
            Command::Ln(args) => ln::run(args, context),
            Command::Mknod(args) => mknod::run(args, context),
            Command::Chmod(args) => chmod::run(args, context),
            Command::Chown(args) => chown::run(args, context),
            Command::Truncate(args) => truncate::run(args, context),
            Command::Setfattr(args) => setfattr::run(args, context),
            Command::Utimes(args) => utimes::run(args, context),
            Command::Apply(args) => apply::run(args, context),
            Command::Recover(args) => recover::run(args, context),
            Command::Check(args) => check::run(args, context),
            Command::Debug(args) => debug::run(args, context),
            Command::Repair(args) => repair::run(args, context),
            Command::Resize(args) => resize::run(args, context),
            Command::Trim(args) => trim::run(args, context),
            Command::Clone(args) => clone::run(args, context),
            Command::Overlay(args) => overlay::run(args, context),
            Command::ServeNbd(args) => serve_nbd::run(args, context),
            Command::Tune(args) => tune::run(args, context),
            Command::Verity(args) => verity::run(args, context),
            Command::Stats(args) => stats::run(args, context),
            Command::Lab(args) => lab::run(args, context),
            Command::Pages(args) => pages::run(args, Cli::command(), context),
        }
    }
}

/// Runs the command that `args` (the program's name first) ask for.
pub fn run(args: Vec<OsString>) -> ExitCode {
    // Errors of usage end the program here, with exit code 2.
    let wants_json = args.iter().any(|arg| arg == "--json");
    let cli = Cli::try_parse_from(args).unwrap_or_else(|error| {
        match (wants_json, error.use_stderr()) {
            (true, true) => report_usage(error.kind()),
            (true, false) => exit_with_help(&error),
            _ => {}
        }
        error.exit()
    });
    let context = Context::new(&cli.global);
    if !matches!(cli.command, Command::Mount(_)) {
        context.log_to_stderr();
    }
    match cli.command.run(&context) {
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
        Cli::command().debug_assert();
    }
}
