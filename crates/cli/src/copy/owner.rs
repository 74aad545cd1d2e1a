//! Owners as numbers.

use extant_engine::Caller;

/// An owner and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Owner {
    /// Returns the owner as the creator of new inodes.
    pub fn caller(self) -> Caller<'static> {
        Caller { uid: self.uid, gid: self.gid, ..Caller::default() }
    }
}

/// Parses the number of a user or a group.
pub fn parse_id(text: &str) -> Result<u32, String> {
    // The greatest number stands for none in system calls.
    let number = text.parse().ok().filter(|id| *id != u32::MAX);
    number.ok_or_else(|| format!("{text} is no number of a user or group"))
}

/// Parses `UID:GID`.
pub fn parse_owner(text: &str) -> Result<Owner, String> {
    let numbers = text
        .split_once(':')
        .and_then(|(uid, gid)| Some((parse_id(uid).ok()?, parse_id(gid).ok()?)));
    let (uid, gid) = numbers.ok_or("an owner is two numbers, as in 1000:1000")?;
    Ok(Owner { uid, gid })
}

/// A map of owners or groups: `count` numbers from `from` on become those from `to` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    from: u32,
    to: u32,
    count: u32,
}

impl IdMap {
    /// Parses `FROM:TO` or `FROM:TO:COUNT`.
    ///
    /// # Errors
    /// The form, or a number beyond 32 bits.
    pub fn parse(text: &str) -> Result<IdMap, String> {
        let numbers: Option<Vec<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
        let (from, to, count) = match numbers.as_deref() {
            Some(&[from, to]) => (from, to, 1),
            Some(&[from, to, count]) if count > 0 => (from, to, count),
            _ => return Err("a map is FROM:TO or FROM:TO:COUNT, as in 0:100000:65536".into()),
        };
        match from.max(to).checked_add(count - 1) {
            Some(_) => Ok(IdMap { from, to, count }),
            None => Err("the numbers of a map end at 4294967295".into()),
        }
    }

    /// Maps a number by the first map that has it. Other numbers stay.
    pub fn apply(maps: &[IdMap], id: u32) -> u32 {
        let within = |map: &IdMap| {
            let at = id.checked_sub(map.from).filter(|at| *at < map.count)?;
            map.to.checked_add(at)
        };
        maps.iter().find_map(within).unwrap_or(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_ranges_of_which_the_first_counts() {
        let maps = ["0:100000:10", "5:1", "4294967295:7"].map(|text| IdMap::parse(text).unwrap());
        for (id, mapped) in [(0, 100_000), (5, 100_005), (9, 100_009), (10, 10), (u32::MAX, 7)] {
            assert_eq!(IdMap::apply(&maps, id), mapped, "{id}");
        }
        for bad in ["", "1", "1:2:0", "1:2:3:4", "a:b", "0:4294967295:2", "4294967295:0:2", "-1:0"]
        {
            assert!(IdMap::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn owners_are_two_numbers() {
        assert_eq!(parse_owner("0:4294967294"), Ok(Owner { uid: 0, gid: u32::MAX - 1 }));
        for bad in ["", "1", "1:", "root:root", "-1:0", "4294967296:0"] {
            assert!(parse_owner(bad).is_err(), "{bad}");
        }
    }
}
