//! The state of a server as a table, for another one that goes on with its connection.
//!
//! A table is a list of words of 64 bits: [`FORM`], single values, and lists with their lengths
//! before them. Holds of inodes (lookups of the kernel) and orphans are the engine's part
//! ([`HeldInodes`]). The table lacks all that another server can find out again.
//!
//! A server that parsed a hostile image may have been taken over, so its table counts as hostile.

use super::{Server, UpgradeHook};
use crate::kernel_cache::notices::PendingNotices;
use crate::options::MountOptions;
use extant_engine::device::BlockDevice;
use extant_engine::{Errno, Error, Fs, HeldInodes};
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The first word. The number is that of the form of the table.
const FORM: u64 = u64::from_ne_bytes(*b"extant\0\x02");

/// The state of a server whose file system is closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerTable {
    held: Arc<HeldInodes>,
    negotiated: Negotiated,
    remounted_read_only: bool,
    /// Age of the mount in milliseconds.
    age: u64,
    /// Number of opens.
    opened: u64,
    told: Vec<[u64; 3]>,
    written: Vec<Vec<u64>>,
    wrong: Vec<u64>,
    pending: PendingNotices,
}

/// Agreements of server and kernel, for the whole life of the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Negotiated {
    writeback: bool,
    acl: bool,
    id_maps: bool,
    fast_opens: bool,
    as_root: bool,
    /// The image was opened for reading only.
    read_only: bool,
}

impl ServerTable {
    /// Returns the table as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = Words(vec![FORM, self.negotiated.word()]);
        words.0.extend([self.remounted_read_only.into(), self.age, self.opened]);
        words.put(self.held.holds.iter().flat_map(|(ino, holds)| [*ino, *holds]));
        words.put(self.held.errors.iter().flat_map(|(ino, word)| [*ino, *word]));
        words.put(self.told.iter().flatten().copied());
        words.put(self.wrong.iter().copied());
        words.put(self.pending.waiting.iter().flat_map(|(ino, blocks)| [*ino, *blocks]));
        words.put(self.pending.leaving.iter().flat_map(|(ino, most)| [*ino, *most]));
        words.put(self.pending.outdated.iter().copied());
        self.written.iter().for_each(|file| words.put(file.iter().copied()));
        words.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Decodes a table; `None` if the bytes are none of this form.
    pub fn from_bytes(bytes: &[u8]) -> Option<ServerTable> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let [FORM, negotiated, remounted, age, opened, lists @ ..] = &words[..] else {
            return None;
        };
        let mut lists = Lists(lists);
        let held = HeldInodes { holds: pairs(lists.take()?), errors: pairs(lists.take()?) };
        let told = lists.take()?.as_chunks::<3>().0.to_vec();
        let wrong = lists.take()?.to_vec();
        let pending = PendingNotices {
            waiting: pairs(lists.take()?),
            leaving: pairs(lists.take()?),
            outdated: lists.take()?.to_vec(),
        };
        let mut written = Vec::new();
        while !lists.0.is_empty() {
            written.push(lists.take()?.to_vec());
        }
        rest.is_empty().then_some(ServerTable {
            held: Arc::new(held),
            negotiated: Negotiated::of(*negotiated),
            remounted_read_only: *remounted != 0,
            age: *age,
            opened: *opened,
            told,
            written,
            wrong,
            pending,
        })
    }

    /// Returns the part of the engine.
    pub fn held(&self) -> &Arc<HeldInodes> {
        &self.held
    }
}

impl Negotiated {
    fn all(&self) -> [bool; 6] {
        let Negotiated { writeback, acl, id_maps, fast_opens, as_root, read_only } = *self;
        [writeback, acl, id_maps, fast_opens, as_root, read_only]
    }

    fn word(self) -> u64 {
        (0..).zip(self.all()).map(|(bit, set)| u64::from(set) << bit).sum()
    }

    fn of(word: u64) -> Negotiated {
        let bit = |bit: u32| word >> bit & 1 != 0;
        Negotiated {
            writeback: bit(0),
            acl: bit(1),
            id_maps: bit(2),
            fast_opens: bit(3),
            as_root: bit(4),
            read_only: bit(5),
        }
    }
}

/// Words that are written.
struct Words(Vec<u64>);

impl Words {
    /// Appends a list.
    fn put(&mut self, list: impl Iterator<Item = u64>) {
        let place = self.0.len();
        self.0.push(0);
        self.0.extend(list);
        self.0[place] = (self.0.len() - place - 1) as u64;
    }
}

/// Lists that are read.
struct Lists<'a>(&'a [u64]);

impl<'a> Lists<'a> {
    fn take(&mut self) -> Option<&'a [u64]> {
        let (len, rest) = self.0.split_first()?;
        let (list, rest) = rest.split_at_checked(usize::try_from(*len).ok()?)?;
        self.0 = rest;
        Some(list)
    }
}

fn pairs(list: &[u64]) -> Vec<(u64, u64)> {
    list.as_chunks::<2>().0.iter().map(|[first, second]| (*first, *second)).collect()
}

impl Server {
    /// Makes everything durable before a handover.
    ///
    /// # Errors
    /// Those of [`Fs::prepare_hand_over`].
    pub fn prepare_hand_over(&self) -> Result<(), Error> {
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner);
        fs.as_ref().map_or(Err(Errno::Stale.into()), Fs::prepare_hand_over)
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// Those of [`Fs::sync`]; `ESTALE` once the file system is closed.
    pub fn sync(&self) -> Result<(), Error> {
        self.ops.sync()
    }

    /// Returns the device, which outlives the file system then.
    ///
    /// # Errors
    /// Those of [`Fs::device`].
    pub fn device(&self) -> Result<Arc<dyn BlockDevice>, Error> {
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner);
        fs.as_ref().map_or(Err(Errno::Stale.into()), Fs::device)
    }

    /// Returns another descriptor of the image's file.
    ///
    /// # Errors
    /// Those of [`Fs::share_file`].
    pub fn share_file(&self) -> Result<File, Error> {
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner);
        fs.as_ref().map_or(Err(Errno::Stale.into()), Fs::share_file)
    }

    /// Closes the file system and returns the state. No request may run, and none must follow. The
    /// state is complete also if the result is an error, which is one of [`Fs::hand_over`].
    pub fn hand_over(&self) -> (ServerTable, Result<(), Error>) {
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pending = self.notices.take();
        let (held, closed) = match fs {
            Some(fs) => fs.hand_over(),
            None => (HeldInodes::default(), Err(Errno::Stale.into())),
        };
        let (opened, told) = self.descriptors.table();
        let (written, wrong) = self.writers.table();
        let table = ServerTable {
            held: Arc::new(held),
            negotiated: self.negotiated(),
            remounted_read_only: self.remounted_read_only.load(Ordering::Acquire),
            age: self.about.begin.elapsed().as_millis() as u64,
            opened,
            told,
            written,
            wrong,
            pending,
        };
        (table, closed)
    }

    /// Closes a file system of which nothing was served.
    pub fn leave(&self) {
        self.notices.stop();
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, Err(error))) = fs.map(Fs::hand_over) {
            tracing::error!("the file system could not be closed: {error}");
        }
    }

    /// Queues notices of the server before, once this one is connected.
    pub fn put_notices(&self, pending: &PendingNotices) {
        self.notices.put(pending);
    }

    fn negotiated(&self) -> Negotiated {
        Negotiated {
            writeback: self.writeback,
            acl: self.acl,
            id_maps: self.id_maps,
            fast_opens: self.fast_opens,
            as_root: self.view.as_root,
            read_only: self.read_only,
        }
    }

    /// Creates a server that goes on with the connection of another one. `fs` has adopted the holds
    /// of the table.
    ///
    /// # Errors
    /// The options differ in the owners that the mount shows; a thread cannot be started. The file
    /// system is closed then.
    pub fn adopting(fs: Fs, options: &MountOptions, table: &ServerTable) -> io::Result<Adopting> {
        let negotiated = table.negotiated;
        if options.view.as_root != negotiated.as_root {
            let text = "another process cannot go on with a mount that shows other owners";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // The image was searched before, and has not changed since.
        let options = MountOptions { fast_opens: Some(false), ..options.clone() };
        let (mut server, outcome) = Server::new(fs, &options)?;
        server.writeback = negotiated.writeback;
        server.acl = negotiated.acl;
        server.id_maps = negotiated.id_maps;
        server.fast_opens = negotiated.fast_opens;
        server.about.fast_opens = negotiated.fast_opens;
        server.read_only = negotiated.read_only;
        *server.remounted_read_only.get_mut() = table.remounted_read_only;
        let age = Duration::from_millis(table.age);
        server.about.begin = Instant::now().checked_sub(age).unwrap_or(server.about.begin);
        server.descriptors.adopt(table.opened, &table.told);
        let mut left = MAX_OPENS;
        for (ino, opens) in server.writers.adopt(&table.written, &table.wrong) {
            let opens = opens.max(1).min(left);
            left -= opens;
            if let Ok(node) = server.node(ino) {
                (0..opens).for_each(|_| server.ops.open_hint(&node));
            }
        }
        Ok(Adopting { server, outcome, pending: table.pending.clone() })
    }

    /// Takes the parts of the server before that threads of this process share.
    pub fn follow(&mut self, before: &Server) {
        self.interrupts = before.interrupts.clone();
        self.upgrade = before.upgrade.clone();
    }

    /// Sets the function that begins a handover. The first call counts.
    pub fn when_upgraded(&self, begin: UpgradeHook) {
        let _ = self.upgrade.set(begin);
    }

    /// Begins a handover to a process. Returns the number of the descriptor that it takes.
    pub(super) fn begin_upgrade(&self, process: u32) -> Result<u64, Error> {
        let begin = self.upgrade.get().ok_or(Errno::OpNotSupp)?;
        (begin.0)(process).map_err(Error::Io)
    }
}

/// Descriptors that count as open for writing, of all files. A table may invent any number.
const MAX_OPENS: u64 = 1 << 20;

/// A server that goes on with the connection of another one.
pub struct Adopting {
    /// The server, which is not connected yet.
    pub server: Server,
    /// Gets the result of the final unmount.
    pub outcome: Receiver<Result<(), Error>>,
    /// Notices that the other one has not sent.
    pub pending: PendingNotices,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::{Handler, Invalidation};
    use crate::types::NodeId;
    use extant_engine::OpenOptions;
    use extant_testkit::FeatureSet;
    use std::sync::mpsc::channel;

    fn table() -> ServerTable {
        ServerTable {
            held: Arc::new(HeldInodes {
                holds: vec![(12, 3), (13, u64::MAX)],
                errors: vec![(13, 1 << 32 | 5)],
            }),
            negotiated: Negotiated { writeback: true, fast_opens: true, ..Default::default() },
            remounted_read_only: true,
            age: 100,
            opened: 9,
            told: vec![[12, 1 << 32, 4]],
            written: vec![vec![12, 1, 1, 0, 5, 6], vec![13, 1, 0, 0, 5, 6, 100, 200]],
            wrong: vec![15],
            pending: PendingNotices {
                waiting: vec![(12, 1)],
                leaving: vec![(13, 4)],
                outdated: vec![14],
            },
        }
    }

    #[test]
    fn tables_come_back_as_they_were() {
        for table in [table(), ServerTable::default()] {
            assert_eq!(ServerTable::from_bytes(&table.to_bytes()), Some(table));
        }
        let all = Negotiated::of(u64::MAX);
        assert_eq!((all.all(), all.word()), ([true; 6], 0b11_1111));
    }

    #[test]
    fn tables_of_a_hostile_server_are_refused_or_read() {
        let bytes = table().to_bytes();
        for cut in 0..bytes.len() {
            let _ = ServerTable::from_bytes(&bytes[..cut]);
        }
        for at in (0..bytes.len()).step_by(8) {
            let mut changed = bytes.clone();
            changed[at..at + 8].copy_from_slice(&u64::MAX.to_ne_bytes());
            let _ = ServerTable::from_bytes(&changed);
        }
        assert_eq!(ServerTable::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(ServerTable::from_bytes(&[]), None);
    }
    #[test]
    fn notices_that_another_server_has_not_sent_are_sent() {
        let image = FeatureSet::named("default").make();
        let open = || Fs::open(image.path(), &OpenOptions::new()).expect("an image");
        let (first, _outcome) = Server::new(open(), &MountOptions::default()).expect("a server");
        // Without a connection none is sent; the notice of pages is due at once.
        let pending = PendingNotices { outdated: vec![2], ..PendingNotices::default() };
        first.put_notices(&PendingNotices { waiting: vec![(2, 1)], ..Default::default() });
        let (mut table, closed) = first.hand_over();
        closed.expect("its end");
        table.pending = pending;
        let adopting = Server::adopting(open(), &MountOptions::default(), &table);
        let Adopting { server, pending, .. } = adopting.expect("a server");
        std::thread::sleep(Duration::from_millis(20));
        let (sender, told) = channel();
        server.connect(Box::new(move |notice| {
            let _ = sender.send(matches!(notice, Invalidation::Pages(NodeId(2), ..)));
            Ok(())
        }));
        server.put_notices(&pending);
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true));
        server.leave();
    }
}
