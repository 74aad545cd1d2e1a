//! Stored numbers that only fall: comparison with measurements, and storing of lower ones.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, Item, TableLike, Value};

/// Numbers by their path in `tidy.toml`. A string in a list is the last part of a path, with 1.
pub type Ratchets = BTreeMap<Vec<String>, u64>;

/// The tables of `tidy.toml` that have ratchets.
pub const TABLES: [&str; 9] = [
    "circles",
    "functions",
    "files",
    "exports",
    "shared_names",
    "panics",
    "what",
    "who",
    "long_lines",
];

/// The ratchets of `tidy.toml`.
pub fn stored(text: &str) -> Ratchets {
    let document: DocumentMut = text.parse().expect("tidy.toml is valid");
    let mut found = Ratchets::new();
    for table in TABLES {
        if let Some(item) = document.get(table) {
            collect(item, &mut vec![table.to_owned()], &mut found);
        }
    }
    found
}

fn collect(item: &Item, path: &mut Vec<String>, found: &mut Ratchets) {
    if let Some(number) = item.as_integer() {
        found.insert(path.clone(), u64::try_from(number).unwrap_or(0));
    }
    for name in item.as_array().into_iter().flatten().filter_map(Value::as_str) {
        found.insert([path.as_slice(), &[name.to_owned()]].concat(), 1);
    }
    for (name, item) in item.as_table_like().into_iter().flat_map(TableLike::iter) {
        path.push(name.to_owned());
        collect(item, path, found);
        path.pop();
    }
}

/// Differences between the stored and the measured numbers of a table.
pub fn compare(table: &str, stored: &Ratchets, measured: &Ratchets) -> Vec<String> {
    let of_table = |ratchets: &Ratchets| -> Ratchets {
        let own = ratchets.iter().filter(|(path, _)| path[0] == table);
        own.map(|(path, number)| (path.clone(), *number)).collect()
    };
    let (stored, measured) = (of_table(stored), of_table(measured));
    let paths: std::collections::BTreeSet<_> = stored.keys().chain(measured.keys()).collect();
    let mut found = Vec::new();
    for path in paths {
        let name = path[1..].join(" -> ");
        let limit = stored.get(path).copied().unwrap_or(0);
        let number = measured.get(path).copied().unwrap_or(0);
        if number > limit {
            found.push(format!("{name}: {number}, allowed: {limit}"));
        } else if number < limit {
            found.push(format!(
                "{name}: {number}, stored: {limit}: run `make tidy` to store the lower number"
            ));
        }
    }
    found
}

/// The text of `tidy.toml` with the measured numbers where they are lower. None is raised.
pub fn lowered(text: &str, measured: &Ratchets) -> String {
    let mut document: DocumentMut = text.parse().expect("tidy.toml is valid");
    for table in TABLES {
        if let Some(item) = document.get_mut(table) {
            lower(item, &mut vec![table.to_owned()], measured);
        }
    }
    document.to_string()
}

/// Lowers the numbers below `item`. Returns whether any are left.
fn lower(item: &mut Item, path: &mut Vec<String>, measured: &Ratchets) -> bool {
    if let Some(number) = item.as_integer() {
        let now = measured.get(path).copied().unwrap_or(0);
        if now < u64::try_from(number).unwrap_or(0)
            && let Some(value) = item.as_value_mut()
        {
            let decor = value.decor().clone();
            *value = Value::from(i64::try_from(now).unwrap_or(i64::MAX));
            *value.decor_mut() = decor;
        }
        return now > 0;
    }
    if let Some(list) = item.as_array_mut() {
        list.retain(|value| {
            let name = value.as_str().unwrap_or_default().to_owned();
            measured.contains_key(&[path.as_slice(), &[name]].concat())
        });
        return !list.is_empty();
    }
    let Some(table) = item.as_table_like_mut() else { return true };
    let names: Vec<String> = table.iter().map(|(name, _)| name.to_owned()).collect();
    for name in names {
        path.push(name.clone());
        let is_left = table.get_mut(&name).is_some_and(|item| lower(item, path, measured));
        path.pop();
        if !is_left {
            table.remove(&name);
        }
    }
    !table.is_empty()
}
