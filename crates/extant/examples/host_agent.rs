//! A host agent: changes a guest's disk through an overlay, and leaves the base image as it is.
//!
//! `cargo run --features mkfs --example host_agent BASE.img NAME` recovers a copy of the guest's
//! file system in memory, gives the guest a host name and prints its log.

use extant::{BlockDevice, Fs};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of a page of the overlay.
const PAGE: u64 = 4096;

/// A device of the program's own: a base that never changes, and changed pages in memory.
#[derive(Debug)]
pub struct Overlay {
    base: Arc<dyn BlockDevice>,
    pages: RwLock<HashMap<u64, Box<[u8]>>>,
}

impl Overlay {
    /// An overlay without changes.
    pub fn new(base: Arc<dyn BlockDevice>) -> Overlay {
        Overlay { base, pages: RwLock::default() }
    }

    /// Bytes of memory for changed pages.
    pub fn changed(&self) -> u64 {
        self.pages.read().unwrap_or_else(PoisonError::into_inner).len() as u64 * PAGE
    }

    fn check(&self, offset: u64, len: usize, kind: io::ErrorKind) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(kind.into()),
        }
    }

    fn base_page(&self, number: u64) -> io::Result<Box<[u8]>> {
        let mut page = vec![0; PAGE as usize].into_boxed_slice();
        let start = number * PAGE;
        let len = (self.len() - start).min(PAGE) as usize;
        self.base.read_exact_at(&mut page[..len], start)?;
        Ok(page)
    }
}

impl BlockDevice for Overlay {
    fn len(&self) -> u64 {
        self.base.len()
    }

    fn name(&self) -> String {
        format!("overlay of {}", self.base.name())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len(), io::ErrorKind::UnexpectedEof)?;
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let n = (PAGE as usize - within).min(buf.len() - done);
            let part = &mut buf[done..done + n];
            match pages.get(&(at / PAGE)) {
                Some(page) => part.copy_from_slice(&page[within..within + n]),
                None => self.base.read_exact_at(part, at)?,
            }
            done += n;
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, data.len(), io::ErrorKind::InvalidInput)?;
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let n = (PAGE as usize - within).min(data.len() - done);
            let page = match pages.entry(at / PAGE) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(page) => page.insert(self.base_page(at / PAGE)?),
            };
            page[within..within + n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
        Ok(())
    }

    /// Discarded pages stay.
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    /// Memory has nothing to make durable.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Sets the guest's host name in the overlay, and gives the guest's log.
pub fn run(base: Arc<dyn BlockDevice>, name: &str) -> extant::Result<(Arc<Overlay>, Vec<u8>)> {
    let overlay = Arc::new(Overlay::new(base));
    let fs = Fs::options().open_on(overlay.clone())?;
    fs.create_dir_all("/etc")?;
    fs.write("/etc/hostname", name)?;
    let log = fs.read("/var/log/messages")?;
    fs.unmount()?;
    Ok((overlay, log))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(base), Some(name)) = (args.next(), args.next()) else {
        return Err("usage: host_agent BASE.img NAME".into());
    };
    let base = extant::device::FileDeviceOptions::new(base).read_only(true).open()?;
    let (overlay, log) = run(Arc::new(base), &name)?;
    println!("{}", String::from_utf8_lossy(&log));
    println!("{} bytes changed", overlay.changed());
    Ok(())
}
