//! `extant mount`: an image served through FUSE.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::format::FormatArgs;
use crate::log::SYSLOG;
use crate::mounting::announce::Audience;
use crate::mounting::options::{Options, help};
use crate::mounting::same_image::ImageFile;
use crate::mounting::{Patience, Plan, Remounted, anew, keep, place, serve, spawn};
use crate::remote;
use extant_engine::device::ImageFormat;
use extant_fuse::{InheritedDescriptors, MountIdentity};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Mount an image through FUSE; returns when it is mounted. umount(8) ends it.
#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub struct Args {
    /// Image file or block device, with @OFFSET or @pN for a part of it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Where to mount it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    stored: FormatArgs,
    /// Options, with commas between them
    #[arg(short, long, value_name = "OPTS")]
    options: Vec<String>,
    /// Stay, and serve from this process; Ctrl-C unmounts
    #[arg(short, long)]
    foreground: bool,
    /// File for the server's messages, instead of the machine's log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Socket of the machine's log
    #[arg(long, hide = true, value_name = "PATH", default_value = SYSLOG)]
    syslog: PathBuf,
    /// Wait until no other program uses the image
    #[arg(long)]
    wait: bool,
    /// How long to wait for an image in use
    #[arg(long, hide = true, value_enum, default_value_t, conflicts_with = "wait")]
    patience: Patience,
    /// The type shows as fuse.SUBTYPE, or fuseblk.SUBTYPE
    #[arg(long, hide = true, default_value = "extant")]
    subtype: String,
    /// Mount and unmount for the server at the other ends of standard input and output
    #[arg(long, hide = true, requires = "foreground", conflicts_with = "announce")]
    keep: bool,
    /// The process that started this one listens on standard output
    #[arg(long, hide = true, requires = "foreground")]
    announce: bool,
    /// The process that mounts and unmounts is at the other ends of standard input and output
    #[arg(long, hide = true, requires = "foreground", conflicts_with_all = ["announce", "keep"])]
    kept: bool,
    /// Go on with the mount that is there, whose server hands it over
    #[arg(long, hide = true, requires = "foreground", conflicts_with = "kept")]
    succeed: bool,
    /// That mount
    #[arg(long, hide = true, value_name = "IDENTITY")]
    adopts: Option<MountIdentity>,
    /// The image must be this file
    #[arg(long, hide = true, value_name = "DEVICE:INODE:DISK")]
    image_file: Option<ImageFile>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let lists = args.lists(context);
    let mut options = Options::parse(lists.iter().map(String::as_str)).map_err(Failure::usage)?;
    options.threads = context.threads.unwrap_or(options.threads);
    let mut plan = args.plan(options, lists, context)?;
    plan.check()?;
    let needs_background = plan.options.restart || plan.options.service.is_some();
    if needs_background && args.foreground && !(args.announce || args.keep || args.kept) {
        return Err(Failure::usage(
            "mount options restart and service are for servers in the background: leave out \
             --foreground",
        ));
    }
    if args.keep {
        return keep::run(&plan);
    }
    if plan.options.remount {
        return match crate::mounting::remount(&mut plan)? {
            Remounted::Done => Ok(()),
            Remounted::OpenedForReading => anew::mount(&plan, context),
        }
        .and_then(|()| plan.tell(context));
    }
    if !args.foreground {
        spawn::start(&plan, &plan.lists, context)?;
        return plan.tell(context);
    }
    if plan.options.service.is_some() {
        // The keeper hands the image over again.
        keep::start_log(&plan)?;
        let started = leave_caller().and_then(|()| spawn::start(&plan, &plan.lists, context));
        return started.or_else(|failure| Audience::Log.failed(failure));
    }
    // A server that is taken over would have the open files of its caller.
    InheritedDescriptors::find().at("/proc/self/fd")?.close(|_| false);
    let level = match context.verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    serve::run(&plan, &args.audience(context)?, level)
}

/// Leaves terminal and directory of the process that started this one.
fn leave_caller() -> Result {
    // It was started as /proc/self/exe: its short name would be `exe`.
    rustix::thread::set_name(c"extant").at("the name of the process")?;
    // Signals of the terminal that it was started from are not meant for it.
    rustix::process::setsid().at("cannot start a session")?;
    std::env::set_current_dir("/").at("/")
}

impl Args {
    /// Returns the lists of options.
    fn lists(&self, context: &Context) -> Vec<String> {
        let own = (!context.sandbox).then(|| String::from("no_sandbox"));
        let format = ImageFormat::from(self.stored.format);
        let format = (format != ImageFormat::Raw).then(|| format!("format={}", format.name()));
        let backing = self.stored.backing.iter().map(|backing| format!("backing={backing}"));
        let all = self.options.iter().cloned().chain(own);
        all.chain(format).chain(backing).collect()
    }

    /// Returns to whom the server talks, after it has left its caller, if it does.
    fn audience(&self, context: &Context) -> Result<Audience> {
        if self.kept {
            leave_caller()?;
            return Ok(Audience::Log);
        }
        if !self.announce {
            return Ok(Audience::Terminal(context.clone()));
        }
        leave_caller()?;
        // Until it is mounted, Ctrl-C there ends this one too: opening may wait for minutes.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .at("signals")?;
        Ok(Audience::Parent)
    }

    fn plan(&self, options: Options, lists: Vec<String>, context: &Context) -> Result<Plan> {
        let absolute =
            |path: &PathBuf| std::path::absolute(path).at_path(path.as_os_str().as_bytes());
        let mut files = self.stored.backing.iter().map(|backing| &backing.path);
        if let Some(file) = files.find(|file| file.as_os_str().as_bytes().contains(&b',')) {
            let file = file.display();
            return Err(Failure::usage(format_args!(
                "{file}: a mount takes no backing file with a comma in its name; rename it, or \
                 name a symlink to it"
            )));
        }
        let image = remote::absolute(&self.image)?;
        let (dir, replaces) = place(&self.dir, &image, &options, &self.subtype)?;
        Ok(Plan {
            lacks_files: false,
            image,
            dir,
            options: options.for_image(&self.image).with_absolute_paths()?,
            lists,
            subtype: self.subtype.clone(),
            log: self.log.as_ref().map(absolute).transpose()?,
            traces: context.traces.clone(),
            syslog: self.syslog.clone(),
            patience: if self.wait { Patience::Long } else { self.patience },
            verbose: context.verbose,
            replaces,
            succeeds: self.succeed,
            adopts: self.adopts,
            kept: self.kept,
            image_file: self.image_file,
            owner: None,
        })
    }
}
