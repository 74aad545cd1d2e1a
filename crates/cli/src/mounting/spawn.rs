//! Starting the process that serves: this program again, in a session of its own. It is a new
//! program and no fork, since a process with threads cannot fork safely.

use super::announce::listen;
use super::{Plan, offer};
use crate::context::Context;
use crate::failure::{At, Result};
use crate::log::SYSLOG;
use crate::process::program;
use clap::ValueEnum;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts the server with the arguments of `mount`, or hands the image over to a service. Returns
/// once the image is mounted.
pub fn start(plan: &Plan, lists: &[String], context: &Context) -> Result {
    if plan.options.service.is_some() {
        return offer::start(plan, lists, context);
    }
    let mut command = Command::new(program());
    // For ps(1), with the image and the directory among the arguments.
    command.arg0("extant");
    command.args(arguments(plan, lists)).arg("--announce");
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

/// Returns the arguments of a server or its keeper, without the image and the directory.
pub fn arguments(plan: &Plan, lists: &[String]) -> Vec<OsString> {
    let mut arguments = ["mount", "--foreground", "--subtype"].map(OsString::from).to_vec();
    arguments.push(plan.subtype.clone().into());
    arguments.extend(lists.iter().flat_map(|list| ["-o".into(), list.into()]));
    let patience = plan.patience.to_possible_value();
    let patience = patience.map(|patience| ["--patience".into(), patience.get_name().into()]);
    arguments.extend(patience.into_iter().flatten());
    if plan.options.threads > 0 {
        arguments.extend(["--threads".into(), plan.options.threads.to_string().into()]);
    }
    let log = plan.log.iter().flat_map(|log| ["--log".into(), log.clone().into_os_string()]);
    arguments.extend(log);
    if plan.syslog != Path::new(SYSLOG) {
        arguments.extend(["--syslog".into(), plan.syslog.clone().into_os_string()]);
    }
    arguments.extend((0..plan.verbose).map(|_| "-v".into()));
    arguments.extend(plan.traces.iter().map(|target| format!("--trace={target}").into()));
    arguments.extend(plan.succeeds.then(|| "--succeed".into()));
    arguments.extend(plan.adopts.iter().map(|mount| format!("--adopts={mount}").into()));
    let file = plan.image_file.iter();
    arguments.extend(file.map(|file| format!("--image-file={file}").into()));
    arguments
}
