//! The log of a batch: one JSON object a line for each finished job.

use crate::copy::output::parent;
use crate::failure::{At, Failure, Result};
use crate::json;
use crate::text::shown;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A log that is open for further records. No other process has it.
#[derive(Debug)]
pub struct Log {
    file: File,
    name: String,
}

/// The beginning of each record, whose members are sorted.
const HEAD: &[u8] = b"{\"command\":";

/// Most bytes of a record: more than those of its document and messages.
const MAX_RECORD: u64 = 16 << 20;

/// The exit codes of finished jobs by their commands. The last record counts.
pub type Ended = HashMap<Vec<u8>, i32>;

impl Log {
    /// Opens a log, or makes one, and reads its records. A last record that was written in part is
    /// removed.
    pub fn open(path: &Path) -> Result<(Log, Ended)> {
        let name = shown(path.as_os_str().as_bytes());
        let file = File::options().read(true).append(true).create(true).open(path).at(&name)?;
        if !file.metadata().at(&name)?.is_file() {
            return Err(Failure::new(format_args!("{name}: a log must be a regular file")));
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::new(format_args!("{name}: is in use; another batch writes to it"))
        })?;
        File::open(parent(path)).and_then(|dir| dir.sync_all()).at(&name)?;
        let mut log = Log { file, name };
        let ended = log.read()?;
        Ok((log, ended))
    }

    fn read(&mut self) -> Result<Ended> {
        let mut ended = Ended::new();
        let mut lines = BufReader::new(&self.file);
        let (mut line, mut number, mut end) = (Vec::new(), 0, 0);
        loop {
            line.clear();
            let len = lines.by_ref().take(MAX_RECORD).read_until(b'\n', &mut line).at(&self.name)?;
            number += 1;
            let is_cut = len > 0 && line.last() != Some(&b'\n');
            let is_record = line.iter().zip(HEAD).all(|(found, head)| found == head);
            if is_cut && (len as u64) < MAX_RECORD && (number > 1 || is_record) {
                self.file.set_len(end).at(&self.name)?;
                return Ok(ended);
            }
            if len == 0 {
                return Ok(ended);
            }
            let (command, code) = parse(&line).ok_or_else(|| {
                let name = &self.name;
                Failure::new(format_args!(
                    "{name}:{number}: no record of a batch; name another file"
                ))
            })?;
            ended.insert(command, code);
            end += len as u64;
        }
    }

    /// Adds a record, and returns when it is durable.
    pub fn append(&mut self, record: &Value) -> Result {
        let line = format!("{}\n", json::without_controls(&record.to_string()));
        self.file.write_all(line.as_bytes()).at(&self.name)?;
        self.file.sync_data().at(&self.name)
    }
}

/// Returns the command and the exit code of a record.
fn parse(line: &[u8]) -> Option<(Vec<u8>, i32)> {
    let Ok(Value::Object(object)) = serde_json::from_slice(line) else { return None };
    let code = i32::try_from(object.get("exit_code")?.as_i64()?).ok()?;
    Some((json::bytes(&object, "command")?, code))
}
