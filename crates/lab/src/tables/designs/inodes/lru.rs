//! The list of unused inodes: an item on the list is added again each time its last reference is
//! dropped.

use super::THREADS;
use extant_measure::grid::Grid;
use extant_measure::options::Options;
use extant_measure::timing::{Limit, run_threads};
use extant_sync::list_lru::{Link, ListLru};
use extant_sync::{CachePadded, Level, Mutex, Sharded};
use std::io;

/// Items of each thread.
const ITEMS: usize = 64;

/// Measures both.
pub fn grid(options: &Options) -> io::Result<Grid> {
    let columns = ["lock first", "look first"];
    let mut grid = Grid::new("list of unused inodes: adding what is on it", "adds/s", &columns, 1);
    let rows = options.rows(&THREADS, &[("on it already", ())]);
    options.fill(&mut grid, &rows, |(threads, ()), column| {
        // A list whose lock is taken before it looks.
        let locked = Sharded::new(|_| Mutex::new(Level::InodeBody, ListLru::new()));
        let looking = ListLru::new();
        let links: Vec<CachePadded<Vec<Link>>> = (0..*threads)
            .map(|_| CachePadded::new((0..ITEMS).map(|_| Link::new()).collect()))
            .collect();
        let done = run_threads(*threads, Limit::time(options.window()), |thread, n| {
            let link = &links[thread][n as usize % ITEMS];
            if column == 0 {
                locked.local().lock().add(link, n as u32)
            } else {
                looking.add(link, n as u32)
            };
            Ok(())
        })?;
        let linked = links.iter().all(|own| own[0].is_linked());
        let count: usize = locked.iter().map(|list| list.lock().count()).sum();
        if !linked || count + looking.count() > ITEMS * threads {
            return Err(io::Error::other("an item is on it twice or not at all"));
        }
        Ok(done.rate())
    })?;
    Ok(grid)
}
