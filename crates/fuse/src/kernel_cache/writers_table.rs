//! The files that are open for writing as words, for another server that goes on with them.
//!
//! A file that another server adopts counts as one whose number of blocks the kernel does not know,
//! and of which it has pages: both cost a notice at most.

use super::writers::{Refused, Writers, Written, lock};
use crate::types::NodeId;
use extant_engine::Errno;
use std::time::{Duration, Instant, SystemTime};

/// Words of a file before its gaps: inode, opens, those without O_APPEND, floor plus one or 0,
/// seconds and nanoseconds of the first open, error of new writes or 0, free blocks at that time.
const HEAD: usize = 8;

/// Largest number of descriptors of a file.
const MAX_OPENS: u64 = 1 << 32;

/// Errors of new writes; another one becomes the first of these.
const REFUSALS: [Errno; 4] = [Errno::Io, Errno::NoSpc, Errno::DQuot, Errno::RoFs];

impl Writers {
    /// Returns the words of each file, and the inodes with wrong times in the kernel.
    pub fn table(&self) -> (Vec<Vec<u64>>, Vec<u64>) {
        let inodes = self.shards.iter().flat_map(|shard| {
            let files = lock(shard);
            files.iter().map(|(ino, written)| written.words(*ino)).collect::<Vec<_>>()
        });
        (inodes.collect(), lock(&self.wrong).iter().copied().collect())
    }

    /// Goes on with the files of another server. Returns each with its number of descriptors; 0
    /// where opens are not seen.
    pub fn adopt(&self, files: &[Vec<u64>], wrong: &[u64]) -> Vec<(NodeId, u64)> {
        wrong.iter().for_each(|ino| self.wrong(NodeId(*ino)));
        let adopted = files.iter().filter_map(|words| {
            let (ino, written) = Written::of_words(words)?;
            let opens = written.opens;
            if opens == 0 {
                self.wrote(ino, Instant::now());
            } else {
                self.shard(ino).insert(ino.0, written);
            }
            Some((ino, opens))
        });
        adopted.collect()
    }
}

impl Written {
    fn words(&self, ino: u64) -> Vec<u64> {
        let since = self.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let floor = self.floor.map_or(0, |floor| floor.saturating_add(1));
        let (seconds, nanos) = (since.as_secs(), since.subsec_nanos().into());
        let (why, free) = self.refused.map_or((0, 0), |it| (it.why as u64, it.free));
        let head = [ino, self.opens, self.plain, floor, seconds, nanos, why, free];
        let gaps = self.gaps.iter().flat_map(|gap| [gap.start, gap.end]);
        head.into_iter().chain(gaps).collect()
    }

    fn of_words(words: &[u64]) -> Option<(NodeId, Written)> {
        let (head, gaps) = words.split_first_chunk::<HEAD>()?;
        let [ino, opens, plain, floor, seconds, nanos, why, free] = *head;
        let opens = opens.min(MAX_OPENS);
        let since = Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos));
        let since = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
        let gaps = gaps.as_chunks::<2>().0.iter().take(super::writers::GAPS);
        let mut written = Written::new();
        (written.opens, written.plain) = (opens, plain.min(opens));
        written.floor = floor.checked_sub(1);
        let known = REFUSALS.into_iter().find(|known| *known as u64 == why);
        written.refused = (why != 0).then(|| Refused { why: known.unwrap_or(REFUSALS[0]), free });
        written.gaps = gaps.map(|[start, end]| *start..*end).collect();
        written.since = since.unwrap_or(written.since);
        Some((NodeId(ino), written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_another_server_are_as_they_were() {
        let (writers, ino) = (Writers::default(), NodeId(12));
        writers.open(ino, true);
        writers.open(ino, true);
        writers.set_floor(ino, Some(0));
        writers.filled(ino, 300..400, 100);
        writers.wrong(NodeId(13));
        assert!(writers.refuse(ino, Errno::NoSpc, 7));
        let (files, wrong) = writers.table();
        let next = Writers::default();
        assert_eq!(next.adopt(&files, &wrong), [(ino, 2)]);
        assert_eq!(next.table(), (files, wrong));
        assert!(next.is_free(ino, &(100..300), 400) && next.is_wrong(NodeId(13)));
        assert_eq!(next.floor(ino, 50), 0);
        assert_eq!(next.refused(ino, || 7), Some(Errno::NoSpc));
        assert!(!next.close(ino, true) && next.close(ino, true));
        assert!(next.outdates_pages(ino), "the kernel may have pages");
        assert!(next.adopt(&[vec![1, 2, 3]], &[]).is_empty(), "words are missing");
    }
}
