//! A doubly linked list whose items know their place, as lists of a kernel are.

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    before: usize,
    after: usize,
}

/// Entries with neighbors, and those that are free.
#[derive(Debug)]
pub struct Linked<T> {
    entries: Vec<Entry<T>>,
    free: Vec<usize>,
    len: usize,
}

/// The list's two ends meet at the first entry.
const ENDS: usize = 0;

impl<T> Linked<T> {
    pub fn new() -> Linked<T> {
        let ends = Entry { item: None, before: ENDS, after: ENDS };
        Linked { entries: vec![ends], free: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds an item in front of all others, and returns its place.
    pub fn add(&mut self, item: T) -> usize {
        let entry = Entry { item: Some(item), before: ENDS, after: ENDS };
        let at = self.free.pop().unwrap_or(self.entries.len());
        match self.entries.get_mut(at) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        self.len += 1;
        self.link(at);
        at
    }

    fn link(&mut self, at: usize) {
        let first = self.entries[ENDS].after;
        (self.entries[at].before, self.entries[at].after) = (ENDS, first);
        self.entries[first].before = at;
        self.entries[ENDS].after = at;
    }

    fn unlink(&mut self, at: usize) {
        let (before, after) = (self.entries[at].before, self.entries[at].after);
        self.entries[before].after = after;
        self.entries[after].before = before;
    }

    pub fn remove(&mut self, at: usize) -> Option<T> {
        self.unlink(at);
        self.free.push(at);
        self.len -= 1;
        self.entries[at].item.take()
    }

    /// Moves an item in front of all others.
    pub fn renew(&mut self, at: usize) {
        self.unlink(at);
        self.link(at);
    }

    pub fn get(&self, at: usize) -> Option<&T> {
        self.entries.get(at)?.item.as_ref()
    }

    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.entries.get_mut(at)?.item.as_mut()
    }

    /// Returns the items in no order.
    pub fn items_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.item.as_mut())
    }

    /// Goes through the places and items from the first to the last.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let mut at = ENDS;
        std::iter::from_fn(move || {
            at = self.entries[at].after;
            Some((at, self.entries[at].item.as_ref()?))
        })
    }
}
