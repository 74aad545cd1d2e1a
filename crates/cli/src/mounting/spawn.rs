//! Starting the process that serves: this program again, in a session of its own. It is a new
//! program and no fork, since a process with threads cannot fork safely.

use super::Plan;
use super::announce::listen;
use crate::context::Context;
use crate::failure::{At, Result};
use crate::log::SYSLOG;
use crate::process::program;
use clap::ValueEnum;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts the server with the arguments of `mount` and returns once it has mounted the image.
pub fn start(plan: &Plan, lists: &[String], context: &Context) -> Result {
    let mut command = Command::new(program());
    // For ps(1), with the image and the directory among the arguments.
    command.arg0("extant");
    command.args(arguments(plan, lists)).arg("--announce");
    if let Some(patience) = plan.patience.to_possible_value() {
        command.arg("--patience").arg(patience.get_name());
    }
    if let Some(threads) = context.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    if let Some(log) = &plan.log {
        command.arg("--log").arg(log);
    }
    if plan.syslog != Path::new(SYSLOG) {
        command.arg("--syslog").arg(&plan.syslog);
    }
    command.args((0..context.verbose).map(|_| "-v"));
    command.args(plan.traces.iter().map(|target| format!("--trace={target}")));
    command.arg("--").arg(&plan.image).arg(&plan.dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    extant_fuse::keep_descriptors_from_children().at("/proc/self/fd")?;
    let mut child = command.spawn().at("cannot start the server")?;
    let Some(pipe) = child.stdout.take() else { return Ok(()) };
    let heard = listen(pipe, &plan.image, context);
    if heard.is_err() {
        // It ends by itself; its exit code says no more than its message.
        let _ = child.wait();
    }
    heard
}

/// Returns the arguments of a server, without the image and the directory.
pub fn arguments(plan: &Plan, lists: &[String]) -> Vec<OsString> {
    let mut arguments = ["mount", "--foreground", "--subtype"].map(OsString::from).to_vec();
    arguments.push(plan.subtype.clone().into());
    arguments.extend(lists.iter().flat_map(|list| ["-o".into(), list.into()]));
    arguments
}
