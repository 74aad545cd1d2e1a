//! Small reads of a client, by windows.

use crate::ahead::{Plan, SMALL, WINDOW, parts};
use crate::client::Client;
use extant_sync::Arc;
use std::io;
use std::time::Instant;

impl Client {
    /// Reads a range, with its windows if it is small, and passes its parts to `put` with their
    /// places in it.
    pub fn read_ahead(
        &self,
        offset: u64,
        len: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        if len as u64 > SMALL || u64::from(self.export.min_block) > SMALL {
            return self.read(offset, len, put);
        }
        for (number, part) in parts(offset..offset + len as u64) {
            let place = (part.start - offset) as usize;
            let within = (part.start % WINDOW) as usize..((part.end - 1) % WINDOW + 1) as usize;
            match self.window(number)?.as_ref().and_then(|window| window.get(within)) {
                Some(data) => put(place, data),
                None => {
                    let len = (part.end - part.start) as usize;
                    self.read(part.start, len, |at, data| put(place + at, data))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the content of a window, unless the read in it is far from others, or the window
    /// cannot be read: its parts may be readable.
    fn window(&self, number: u64) -> io::Result<Option<Arc<Vec<u8>>>> {
        let (mut core, _) = self.up(Instant::now())?;
        let mark = (core.current, core.log.next());
        match core.ahead.plan(number) {
            Plan::Kept(window) => return Ok(Some(window)),
            Plan::Alone => return Ok(None),
            Plan::Window => drop(core),
        }
        let start = number * WINDOW;
        let len = WINDOW.min(self.export.size - start) as usize;
        let mut window = vec![0; len];
        let copy = |at: usize, data: &[u8]| {
            if let Some(place) = window.get_mut(at..at + data.len()) {
                place.copy_from_slice(data);
            }
        };
        if self.read(start, len, copy).is_err() {
            return Ok(None);
        }
        let window = Arc::new(window);
        let mut core = self.core.lock();
        // A write since then may be newer than the data, and a new session starts without any.
        if (core.current, core.log.next()) == mark {
            core.ahead.keep(number, window.clone());
        }
        Ok(Some(window))
    }
}
