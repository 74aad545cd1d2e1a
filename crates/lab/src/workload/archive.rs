//! A tree in the order of an archive: directories before their entries, with the distribution of
//! sizes in `/usr`.

use super::filler;
use extant_sync::SplitMix64;

/// Largest file.
const MAX_SIZE: u64 = 256 << 10;

/// Regular files in a directory.
const FILES_IN_DIRECTORY: usize = 9;

/// Regular files for each symlink.
const FILES_PER_LINK: usize = 12;

/// Kind of an entry.
#[derive(Clone, Debug)]
pub enum What {
    /// A directory.
    Directory,
    /// A file of this many bytes, from this place of [`Archive::data`].
    File(usize, usize),
    /// A symlink.
    Symlink(Vec<u8>),
}

/// One name.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its path.
    pub path: Vec<u8>,
    /// Its kind.
    pub what: What,
    /// Modification time, in seconds since 1970.
    pub mtime: i64,
}

/// A tree to be unpacked.
#[derive(Clone, Debug)]
pub struct Archive {
    /// Entries; parents come first.
    pub entries: Vec<Entry>,
    /// Files are pieces of this.
    pub data: Vec<u8>,
}

impl Archive {
    /// A tree with `files` regular files below `top`, the same each time.
    pub fn new(top: &str, files: usize) -> Archive {
        let mut random = SplitMix64::new(files as u64);
        let mut archive = Archive { entries: Vec::new(), data: filler(MAX_SIZE as usize * 2) };
        archive.add(top.into(), What::Directory);
        let mut dirs = vec![top.to_owned()];
        for n in 0..files {
            if n % FILES_IN_DIRECTORY == 0 {
                // Parents among the recent ones: a tree that is neither flat nor a chain.
                let span = dirs.len().min(40) as u64;
                let parent = &dirs[dirs.len() - 1 - random.below(span) as usize];
                let depth = parent.bytes().filter(|b| *b == b'/').count();
                let parent = if depth > 8 { &dirs[0] } else { parent };
                let dir = format!("{parent}/dir{n}");
                archive.add(dir.clone().into(), What::Directory);
                dirs.push(dir);
            }
            let dir = &dirs[dirs.len() - 1];
            let size = size(&mut random);
            let from = random.below(MAX_SIZE) as usize;
            archive.add(format!("{dir}/file{n}.dat").into(), What::File(from, size));
            if n % FILES_PER_LINK == 0 {
                archive.add(
                    format!("{dir}/link{n}").into(),
                    What::Symlink(format!("file{n}.dat").into()),
                );
            }
        }
        archive
    }

    fn add(&mut self, path: Vec<u8>, what: What) {
        let mtime = 1_500_000_000 + self.entries.len() as i64;
        self.entries.push(Entry { path, what, mtime });
    }
}

/// Sizes in even shares of each power of two, few large ones: about 10 KiB on average.
fn size(random: &mut SplitMix64) -> usize {
    let bits = random.below(10) + 6;
    let wide = if random.below(40) == 0 { bits + 3 } else { bits };
    ((1 << wide) + random.below(1 << wide)).min(MAX_SIZE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn parents_come_first_and_names_once() {
        let archive = Archive::new("tree", 3000);
        let mut seen: HashSet<&[u8]> = HashSet::new();
        for entry in &archive.entries {
            if let Some(at) = entry.path.iter().rposition(|b| *b == b'/') {
                assert!(
                    seen.contains(&entry.path[..at]),
                    "{}",
                    String::from_utf8_lossy(&entry.path)
                );
            }
            assert!(seen.insert(&entry.path));
        }
    }

    #[test]
    fn files_lie_within_the_data_and_have_a_usual_size() {
        let archive = Archive::new("tree", 3000);
        let mut total = 0;
        for entry in &archive.entries {
            if let What::File(from, size) = entry.what {
                assert!(from + size <= archive.data.len());
                total += size;
            }
        }
        let mean = total / 3000;
        assert!((6_000..20_000).contains(&mean), "{mean}");
    }
}
