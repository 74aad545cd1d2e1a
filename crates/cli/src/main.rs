//! The program `extant`: ext4 images made, mounted, read, changed and recovered from the command
//! line.
//!
//! Called under the name of a helper of mount(8), umount(8) or mkfs(8), it behaves as those expect;
//! see [`helper`].
#![forbid(unsafe_code)]

mod arguments;
mod bad_blocks;
mod build;
mod cli;
mod commands;
mod context;
mod copy;
mod debugfs;
mod diff;
mod dumpe2fs;
mod e2image;
mod failure;
mod format;
mod fsck;
mod group_list;
mod helper;
mod holders;
mod host_claim;
mod image;
mod inherited;
mod interrupt;
mod json;
mod layout;
mod log;
mod mke2fs;
mod mounting;
mod ordered;
mod overwrite;
mod owner_names;
mod pages;
#[cfg(debug_assertions)]
mod planted;
mod process;
mod recovery;
mod remote;
mod sandbox;
mod script;
mod socket;
mod spill;
mod substitutes;
mod superblock_list;
mod table;
mod tell;
mod text;
mod tune2fs;
mod walk;

use mounting::keep;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    inherited::find();
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if args == [keep::NAME] {
        args = keep::arguments();
    }
    if args == [remote::NAME] {
        return remote::run();
    }
    if args.first().is_some_and(|name| name == socket::KEEPER) {
        return socket::keep(&args[1..]);
    }
    if args.first().is_some_and(|name| name == copy::keeper::NAME) {
        return copy::keeper::run(&args[1..]);
    }
    match helper::called(&args) {
        Some(helper) => helper.run(args),
        None => cli::run(args),
    }
}
