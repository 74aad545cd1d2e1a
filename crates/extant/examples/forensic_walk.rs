//! Reads all of a damaged or torn image, changes nothing, and goes on after each error.
//!
//! `cargo run --features mkfs --example forensic_walk DISK.img`

use extant::{FileType, Fs};
use std::io::{self, Write};

/// The sum of a walk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Entries of directories.
    pub entries: u64,
    /// Bytes of files that could be read.
    pub bytes: u64,
    /// Parts of files that have a place on the device.
    pub extents: u64,
    /// Errors, with their places.
    pub errors: Vec<String>,
}

/// Walks through a tree, reads each file, and writes a line for each entry.
pub fn examine(fs: &Fs, out: &mut impl Write) -> io::Result<Findings> {
    let mut findings = Findings::default();
    for entry in fs.walk("/")? {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                findings.errors.push(error.to_string());
                continue;
            }
        };
        findings.entries += 1;
        let path = String::from_utf8_lossy(&entry.path);
        writeln!(out, "{} {:?} {path}", entry.entry.inode, entry.entry.file_type)?;
        if entry.entry.file_type == FileType::Regular
            && let Err(error) = read(fs, &entry, &mut findings)
        {
            findings.errors.push(format!("{path}: {error}"));
        }
    }
    Ok(findings)
}

/// Reads a file by its inode: its path may lead elsewhere in a damaged tree.
fn read(fs: &Fs, entry: &extant::WalkEntry, findings: &mut Findings) -> extant::Result<()> {
    let file = fs.inode(entry.entry.inode)?.file(&extant::FileOptions::new())?;
    let mut buf = vec![0; 1 << 16];
    for extent in file.extents() {
        let extent = extent?;
        findings.extents += u64::from(extent.place.is_some());
        // Holes of a file that claims any length are not read.
        let end = (extent.offset + extent.len).min(file.len());
        let mut at = extent.offset;
        while at < end {
            let n = file.read_at(&mut buf[..(end - at).min(1 << 16) as usize], at)?;
            if n == 0 {
                break;
            }
            at += n as u64;
            findings.bytes += n as u64;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(image) = std::env::args().nth(1) else {
        return Err("usage: forensic_walk DISK.img".into());
    };
    let fs = Fs::options().read_only().lenient().open(image)?;
    println!("{:?}", fs.recovery());
    println!("{:#?}", examine(&fs, &mut io::stdout().lock())?);
    Ok(())
}
