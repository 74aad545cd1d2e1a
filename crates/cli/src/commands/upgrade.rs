//! `extant upgrade`: the program as it is now goes on with a mount.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::log::SYSLOG;
use crate::mounting::options::Options;
use crate::mounting::{Patience, Plan, directory, upgrade};
use crate::table::HeldMount;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Let this version of the program go on with a mount, without unmounting
///
/// Programs that use the mount notice nothing but a short pause: files stay open, also those
/// without a name, with their locks. If the new server fails, the old one goes on. Its options are
/// taken over, but for those that give power or name files: name these again.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where the image is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// More options, as of `mount`
    #[arg(short, long, value_name = "OPTS")]
    options: Vec<String>,
    /// File for the new server's messages, instead of the machine's log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Socket of the machine's log
    #[arg(long, hide = true, value_name = "PATH", default_value = SYSLOG)]
    syslog: PathBuf,
    /// The type shows as fuse.SUBTYPE, or fuseblk.SUBTYPE
    #[arg(long, hide = true, default_value = "extant")]
    subtype: String,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let own = (!context.sandbox).then(|| String::from("no_sandbox"));
    let lists: Vec<String> = args.options.iter().cloned().chain(own).collect();
    let mut options = Options::parse(lists.iter().map(String::as_str)).map_err(Failure::usage)?;
    options.threads = context.threads.unwrap_or(options.threads);
    let dir = directory(&args.dir)?;
    let name = dir.as_os_str().as_bytes();
    let image = HeldMount::of(&dir).at_path(name)?.mount().source.clone();
    let absolute = |path: &PathBuf| std::path::absolute(path).at_path(path.as_os_str().as_bytes());
    let mut plan = Plan {
        image,
        dir,
        options,
        lists,
        lacks_files: false,
        subtype: args.subtype.clone(),
        log: args.log.as_ref().map(absolute).transpose()?,
        traces: context.traces.clone(),
        syslog: args.syslog.clone(),
        patience: Patience::Short,
        verbose: context.verbose,
        replaces: false,
        succeeds: true,
        adopts: None,
        kept: false,
        image_file: None,
        owner: None,
    };
    upgrade::run(&mut plan, context)?;
    plan.tell(context)
}
