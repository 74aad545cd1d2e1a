//! Sets of single units: models for the tests of the faster structures.

use crate::Run;

/// A set of units.
#[derive(Debug, Clone)]
pub struct Units(Vec<bool>);

impl Units {
    pub fn new(len: usize) -> Units {
        Units(vec![false; len])
    }

    pub fn has(&self, unit: u32) -> bool {
        self.0.get(unit as usize).is_some_and(|has| *has)
    }

    /// Returns whether each unit of the run exists and is in the set (`are`) or not in it.
    pub fn all(&self, run: Run, are: bool) -> bool {
        let part = self.0.get(run.start as usize..run.start as usize + run.len as usize);
        part.is_some_and(|part| part.iter().all(|has| *has == are))
    }

    pub fn set(&mut self, run: Run, to: bool) {
        self.0[run.start as usize..run.end() as usize].fill(to);
    }

    /// Returns the maximal runs within groups of `group_len` units.
    pub fn runs(&self, group_len: u32) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for unit in (0..self.0.len() as u32).filter(|unit| self.has(*unit)) {
            match runs.last_mut() {
                Some(run) if run.end() == unit && !unit.is_multiple_of(group_len) => run.len += 1,
                _ => runs.push(Run { start: unit, len: 1 }),
            }
        }
        runs
    }
}
