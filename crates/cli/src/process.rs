//! Processes of this program that act for another one.

use crate::failure::{At, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// This program, even if its file was replaced meanwhile.
pub fn program() -> PathBuf {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() {
        own
    } else {
        std::env::args_os().next().unwrap_or_else(|| OsString::from("extant")).into()
    }
}

/// Leaves signals to the process that this one acts for: that asks for the acts that they demand,
/// and its end ends this one.
pub fn leave_signals() -> Result {
    rustix::process::setsid().at("cannot start a session")?;
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).at("signals")?;
    }
    Ok(())
}
