//! Figures of long runs, in a file that each run appends to: the counts of each campaign and the
//! seeds tried. Reports are made from it, and a run continues after the last seed.
//!
//! A line has a campaign, a seed and counts (`name=number`), separated by tabs. Opening the file
//! shortens it: lines of a campaign are summed, except that counts whose name begins with `most`
//! become their maximum. Lines after the last failure stay separate, so that the amount of work
//! since then is known.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// The sums of a campaign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The seed after the last one.
    pub next: u64,
    /// Counts by name.
    pub numbers: BTreeMap<String, u64>,
}

impl Sums {
    fn add(&mut self, seed: u64, numbers: impl Iterator<Item = (String, u64)>) {
        self.next = self.next.max(seed + 1);
        for (name, number) in numbers {
            let most = name.starts_with("most ");
            let sum = self.numbers.entry(name).or_default();
            *sum = if most { number.max(*sum) } else { *sum + number };
        }
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let told: Vec<String> =
            self.numbers.iter().map(|(name, number)| format!("{number} {name}")).collect();
        f.write_str(&told.join(", "))
    }
}

/// The file of figures: the one in `EXTANT_FIGURES`, or none; the figures then last as long as the
/// run.
#[derive(Debug)]
pub struct Figures {
    path: Option<PathBuf>,
    sums: BTreeMap<String, Sums>,
    /// Counts up to the last failure, and since then.
    parts: BTreeMap<String, [Option<Sums>; 2]>,
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

impl Figures {
    /// Reads the file, and rewrites it with one or two lines for each campaign.
    pub fn open() -> Figures {
        let path = std::env::var_os("EXTANT_FIGURES").map(PathBuf::from);
        let text =
            path.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let mut figures = Figures { path, sums: BTreeMap::new(), parts: BTreeMap::new() };
        text.lines().for_each(|line| figures.read(line));
        if let Some(path) = &figures.path {
            std::fs::write(path, figures.lines())
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        figures
    }

    fn read(&mut self, line: &str) {
        let mut words = line.split('\t');
        let (Some(campaign), Some(Ok(seed))) = (words.next(), words.next().map(str::parse)) else {
            return;
        };
        let number = |word: &str| {
            word.split_once('=').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)))
        };
        let numbers: BTreeMap<String, u64> = words.filter_map(number).collect();
        self.count(campaign, seed, numbers);
    }

    fn count(&mut self, campaign: &str, seed: u64, numbers: BTreeMap<String, u64>) {
        let [failed, since] = self.parts.entry(campaign.into()).or_default();
        let fails = numbers.get("failures").is_some_and(|count| *count > 0);
        if fails && let Some(before) = since.take() {
            failed.get_or_insert_default().add(before.next - 1, before.numbers.into_iter());
        }
        let part = if fails { failed } else { since };
        part.get_or_insert_default().add(seed, numbers.clone().into_iter());
        self.sums.entry(campaign.into()).or_default().add(seed, numbers.into_iter());
    }

    /// Returns the shortened content of the file.
    fn lines(&self) -> String {
        let of = |(name, parts): (&String, &[Option<Sums>; 2])| -> String {
            parts.iter().flatten().map(|sums| line(name, sums.next - 1, &sums.numbers)).collect()
        };
        self.parts.iter().map(of).collect()
    }

    /// Returns the first untried seed of the campaign.
    pub fn next_seed(&self, campaign: &str) -> u64 {
        self.sums.get(campaign).map_or(0, |sums| sums.next)
    }

    /// Returns the counts of the campaign as text, including earlier runs.
    pub fn told(&self, campaign: &str) -> String {
        self.sums.get(campaign).map_or_else(String::new, Sums::to_string)
    }

    /// Adds the counts of a seed.
    pub fn add(&mut self, campaign: &str, seed: u64, numbers: &[(&str, u64)]) {
        let numbers =
            BTreeMap::from_iter(numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)));
        if let Some(path) = &self.path {
            let file = std::fs::File::options().append(true).create(true).open(path);
            let written =
                file.and_then(|mut file| file.write_all(line(campaign, seed, &numbers).as_bytes()));
            written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        self.count(campaign, seed, numbers);
    }
}

fn line(campaign: &str, seed: u64, numbers: &BTreeMap<String, u64>) -> String {
    let told: String = numbers.iter().map(|(name, number)| format!("\t{name}={number}")).collect();
    format!("{campaign}\t{seed}{told}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed_up() {
        let mut figures = Figures { path: None, sums: BTreeMap::new(), parts: BTreeMap::new() };
        figures.read("cuts\t7\tstates=10\tfailures=0");
        figures.read("cuts\t9\tstates=5\tfailures=1");
        figures.read("mutants\t3\ttried=1");
        figures.read("not a line");
        figures.read("inputs\t0\ttried=5\tmost edges=70");
        figures.add("inputs", 0, &[("tried", 6), ("most edges", 60)]);
        assert_eq!(figures.told("inputs"), "70 most edges, 11 tried");
        figures.add("cuts", 8, &[("states", 2)]);
        assert_eq!(figures.next_seed("cuts"), 10);
        assert_eq!(figures.told("cuts"), "1 failures, 17 states");
        assert_eq!(figures.next_seed("mutants"), 4);
        let lines = "cuts\t9\tfailures=1\tstates=15\ncuts\t8\tstates=2\n\
            inputs\t0\tmost edges=70\ttried=11\nmutants\t3\ttried=1\n";
        assert_eq!(figures.lines(), lines);
    }
}
