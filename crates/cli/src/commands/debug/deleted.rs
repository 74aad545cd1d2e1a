//! Deleted files, and the recovery of their content from blocks that are still free.

use super::DeletedArgs;
use super::out::{Out, Record};
use crate::failure::{At, Result};
use crate::sandbox::FileCalls;
use crate::sandbox::command::Preparation;
use crate::text::{mode, shown, type_name};
use extant_check::debug::{ContentPiece, DeletedFile, DeletedSource, FoundNames, Inspector};
use extant_engine::Timestamp;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Permissions of recovered files: their former readers are not known to the machine.
const MODE: u32 = 0o600;

/// Makes the directory of a recovery, and lets a sandbox make files in it.
pub fn prepare(dir: &Path, sandbox: Preparation) -> Result<Preparation> {
    let name = dir.as_os_str().as_bytes();
    if !dir.is_dir() {
        std::fs::create_dir(dir).at_path(name)?;
    }
    Ok(sandbox.beneath(dir, FileCalls::Making))
}

/// Prints deleted files, and recovers them if a directory is given.
pub fn deleted(inspector: &Inspector, args: &DeletedArgs, out: &mut Out) -> io::Result<()> {
    let log = inspector.journal().ok();
    let (all, problems) = inspector.deleted_inodes();
    for ino in args.inodes.iter().filter(|ino| !all.contains(ino)) {
        out.problem(&format!("inode {ino} is not that of a deleted file"))?;
    }
    let is_wanted = |ino: &u32| args.inodes.is_empty() || args.inodes.contains(ino);
    let wanted: BTreeSet<u32> = all.iter().copied().filter(is_wanted).collect();
    let names = inspector.names(&wanted, true, log.as_ref());
    let mut written = Ok(());
    // Blocks of files that were deleted later are theirs, whether these are wanted or not.
    inspector.deleted_files(&all, log.as_ref(), &mut |file| {
        if wanted.contains(&file.slot.ino) {
            written = one(inspector, file, (&names, args.into.as_deref()), out);
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written?;
    out.problems(&problems)
}

/// Prints a deleted file, and recovers it.
fn one(
    inspector: &Inspector,
    file: &DeletedFile,
    (names, into): (&FoundNames, Option<&Path>),
    out: &mut Out,
) -> io::Result<()> {
    let (slot, inode) = (&file.slot, &file.inode);
    let ftype = slot.inode.file_type();
    let source = match file.source {
        None => "none".into(),
        Some(DeletedSource::Inode) => "inode".to_owned(),
        Some(DeletedSource::Transaction(sequence)) => format!("transaction {sequence}"),
    };
    let mut record = Record::new()
        .with("inode", slot.ino)
        .time("deleted", Timestamp::new(slot.inode.dtime.into(), 0))
        .with("type", type_name(ftype))
        .with("mode_text", mode(ftype, slot.inode.mode))
        .with("uid", slot.inode.uid)
        .with("size", inode.size)
        .with("blocks", file.blocks)
        .with("free", file.free)
        .with("map", source)
        .with("complete", file.is_complete());
    let name = names.names.iter().find(|name| name.ino == slot.ino);
    if let Some(name) = name {
        record = record.bytes("path", &names.path(name));
    }
    let mut problem = None;
    if let Some(dir) = into.filter(|_| slot.inode.is_regular() && file.has_content()) {
        let target = dir.join(format!("inode-{}", slot.ino));
        let shown = shown(target.as_os_str().as_bytes());
        match recover(inspector, file, &target) {
            Ok(missing) => {
                record = record
                    .bytes("recovered", target.as_os_str().as_bytes())
                    .with("missing_bytes", missing);
                if missing > 0 || !file.is_complete() {
                    let message = "parts are missing, which are zeroes in the file";
                    problem = Some(format!("{shown}: {message}"));
                }
            }
            Err(error) => problem = Some(format!("{shown}: {error}")),
        }
    }
    out.line(&record)?;
    problem.map_or(Ok(()), |problem| out.problem(&problem))
}

/// Writes the content of a deleted file to a new file. Returns the number of missing bytes.
fn recover(inspector: &Inspector, file: &DeletedFile, target: &Path) -> io::Result<u64> {
    let mut out = File::options().write(true).create_new(true).mode(MODE).open(target)?;
    let mut len = 0u64;
    let missing = inspector.deleted_content(file, &mut |piece| {
        let piece_len = match piece {
            ContentPiece::Data(bytes) => {
                out.write_all(bytes)?;
                bytes.len() as u64
            }
            ContentPiece::Hole(hole) => {
                let end = len.saturating_add(hole);
                io::Seek::seek(&mut out, io::SeekFrom::Start(end))?;
                hole
            }
        };
        len = len.saturating_add(piece_len);
        Ok(())
    })?;
    out.set_len(len)?;
    out.sync_all()?;
    Ok(missing)
}
