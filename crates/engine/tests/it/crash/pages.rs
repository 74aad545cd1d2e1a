//! Images as shared pages: a state takes memory only for its differences, and so does writing it to
//! the file that a program examines.

use extant_blocks::{BlockDevice, Op};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

pub(crate) type Page = [u8; PAGE];

/// The contents of a device: a whole number of pages.
#[derive(Clone, Debug)]
pub(crate) struct Pages(Vec<Arc<Page>>);

impl Pages {
    pub fn new(bytes: &[u8]) -> Pages {
        assert!(bytes.len().is_multiple_of(PAGE), "an image ends within a page");
        let page = |chunk: &[u8]| Arc::new(Page::try_from(chunk).expect("a whole page"));
        Pages(bytes.chunks(PAGE).map(page).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len() * PAGE
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.0.iter().for_each(|page| bytes.extend_from_slice(&page[..]));
        bytes
    }

    /// A range within one page.
    pub fn part(&self, at: usize, len: usize) -> &[u8] {
        &self.0[at / PAGE][at % PAGE..][..len]
    }

    pub fn part_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut Arc::make_mut(&mut self.0[at / PAGE])[at % PAGE..][..len]
    }

    /// Returns the pages that differ from those of `since`, by their numbers.
    pub fn changed<'a>(&'a self, since: &'a Pages) -> impl Iterator<Item = (usize, &'a Page)> {
        let pairs = self.0.iter().zip(&since.0).enumerate();
        pairs.filter(|(_, (new, old))| !Arc::ptr_eq(new, old)).map(|(nr, (new, _))| (nr, &**new))
    }

    /// Calls `f` for the part of a range in each page, with the page, the range within it, and the
    /// part's place in a buffer.
    fn each_part(at: usize, len: usize, mut f: impl FnMut(usize, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let within = (at + done) % PAGE;
            let count = (PAGE - within).min(len - done);
            f((at + done) / PAGE, within, done..done + count);
            done += count;
        }
    }
}

/// A device that starts from shared pages and copies those that are written to.
#[derive(Debug)]
pub(crate) struct PageDevice(RwLock<Pages>);

impl PageDevice {
    pub fn new(pages: Pages) -> PageDevice {
        PageDevice(RwLock::new(pages))
    }

    /// Returns the current contents.
    pub fn pages(&self) -> Pages {
        self.0.read().expect("no panic").clone()
    }

    fn check(&self, pages: &Pages, op: Op, offset: u64, len: usize) -> io::Result<usize> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= pages.len() as u64);
        let kind =
            if op == Op::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::InvalidInput };
        inside.then_some(offset as usize).ok_or_else(|| kind.into())
    }
}

impl BlockDevice for PageDevice {
    fn len(&self) -> u64 {
        self.0.read().expect("no panic").len() as u64
    }

    fn name(&self) -> String {
        "pages in memory".into()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let pages = self.0.read().expect("no panic");
        let at = self.check(&pages, Op::Read, offset, buf.len())?;
        Pages::each_part(at, buf.len(), |nr, within, of_buffer| {
            let count = of_buffer.len();
            buf[of_buffer].copy_from_slice(&pages.0[nr][within..within + count]);
        });
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut pages = self.0.write().expect("no panic");
        let at = self.check(&pages, Op::Write, offset, data.len())?;
        Pages::each_part(at, data.len(), |nr, within, of_data| {
            let count = of_data.len();
            Arc::make_mut(&mut pages.0[nr])[within..within + count].copy_from_slice(&data[of_data]);
        });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A file that holds one image after the other. Only differing pages are written.
#[derive(Debug)]
pub(crate) struct Copy {
    path: PathBuf,
    held: Option<Pages>,
}

impl Copy {
    pub fn new(path: PathBuf) -> Copy {
        Copy { path, held: None }
    }

    /// Makes the file hold these pages.
    pub fn put(&mut self, pages: &Pages) -> &Path {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)
            .expect("a file");
        match self.held.take().filter(|held| held.len() == pages.len()) {
            Some(held) => {
                let write =
                    |(nr, page): (usize, &Page)| file.write_all_at(page, (nr * PAGE) as u64);
                pages.changed(&held).try_for_each(write).expect("room for an image");
            }
            None => {
                file.set_len(pages.len() as u64).expect("room for an image");
                file.write_all_at(&pages.to_vec(), 0).expect("room for an image");
            }
        }
        self.held = Some(pages.clone());
        &self.path
    }

    /// Reads the file, which another program may have written to.
    pub fn read(&mut self) -> Pages {
        let bytes = std::fs::read(&self.path).expect("readable");
        let pages = match self.held.take().filter(|held| held.len() == bytes.len()) {
            Some(mut held) => {
                for (page, now) in held.0.iter_mut().zip(bytes.chunks(PAGE)) {
                    if **page != *now {
                        *page = Arc::new(Page::try_from(now).expect("a whole page"));
                    }
                }
                held
            }
            None => Pages::new(&bytes),
        };
        self.held = Some(pages.clone());
        pages
    }

    /// Drops the known contents, since another program may have written to the file. Its changes
    /// are not read.
    pub fn forget(&mut self) {
        self.held = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_testkit::Scratch;

    #[test]
    fn a_device_leaves_the_pages_it_started_from() {
        let pages = Pages::new(&[1; 3 * PAGE]);
        let device = PageDevice::new(pages.clone());
        device.write_all_at(&[2; 10], PAGE as u64 - 5).unwrap();
        assert!(pages.to_vec() == [1; 3 * PAGE]);
        let now = device.pages();
        assert_eq!(now.changed(&pages).map(|(nr, _)| nr).collect::<Vec<_>>(), [0, 1]);
        let mut buf = [0; 12];
        device.read_exact_at(&mut buf, PAGE as u64 - 6).unwrap();
        assert_eq!(buf, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        assert!(device.write_all_at(&[0; 2], 3 * PAGE as u64 - 1).is_err());
    }

    #[test]
    fn a_copy_holds_the_last_image_and_later_writes() {
        let scratch = Scratch::new();
        let mut copy = Copy::new(scratch.join("copy"));
        let mut pages = Pages::new(&[1; 2 * PAGE]);
        copy.put(&pages);
        pages.part_mut(PAGE, 3).fill(9);
        let path = copy.put(&pages).to_owned();
        assert!(std::fs::read(&path).unwrap() == pages.to_vec());
        File::options().write(true).open(&path).unwrap().write_all_at(&[7], 5).unwrap();
        assert_eq!(copy.read().part(4, 3), [1, 7, 1]);
        copy.put(&pages);
        assert!(std::fs::read(&path).unwrap() == pages.to_vec());
        copy.forget();
        assert!(copy.read().to_vec() == pages.to_vec());
    }
}
