//! Links in Markdown pages, tests and members of types that pages name, and images of tests that
//! nothing checks.

use std::collections::BTreeSet;

use super::functions;
use super::prose::outside_code;
use super::source::{Files, Workspace, normal};

/// Links to files, folders or headings that do not exist.
pub fn broken_links(files: &Files) -> Vec<String> {
    let mut broken = Vec::new();
    for (page, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in outside_code(text) {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            for target in targets.filter(|target| !target.contains("://")) {
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let file = match file {
                    "" => page.clone(),
                    _ => normal(&format!("{folder}/{file}")),
                };
                if !leads_somewhere(files, &file, heading) {
                    broken.push(format!("{page}:{number}: {target}"));
                }
            }
        }
    }
    broken
}

fn leads_somewhere(files: &Files, path: &str, heading: &str) -> bool {
    let folder = format!("{path}/");
    match files.get(path) {
        Some(text) if path.ends_with(".md") && !heading.is_empty() => {
            outside_code(text).any(|(_, line)| line.starts_with('#') && anchor(line) == heading)
        }
        Some(_) => true,
        None => path.is_empty() || files.keys().any(|file| file.starts_with(&folder)),
    }
}

/// The anchor that pages have for a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Tests that the tables of `COMPAT.md` name as `module::test` and that no crate has.
pub fn missing_tests(space: &Workspace) -> Vec<String> {
    let page = space.files.get("COMPAT.md").map_or("", String::as_str);
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter_map(|name| {
        let (module, test) = name.split_once("::")?;
        let is_module = module.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_module.then_some((module, test))
    });
    let modules = space.targets.iter().flat_map(|target| &target.modules);
    let tests: BTreeSet<(String, String)> = modules
        .filter(|module| module.file.contains("/tests/it/"))
        .flat_map(|module| {
            let names = functions::tests(&module.items);
            let of_path = |name: String| module.path.iter().map(move |m| (m.clone(), name.clone()));
            names.into_iter().flat_map(of_path).collect::<Vec<_>>()
        })
        .collect();
    named
        .filter(|(module, test)| !tests.contains(&((*module).to_owned(), (*test).to_owned())))
        .map(|(module, test)| format!("COMPAT.md: {module}::{test}"))
        .collect()
}

/// Members of types that pages name as `Type::member`, where no source file has such a word.
pub fn missing_members(files: &Files) -> Vec<String> {
    let sources = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = sources.flat_map(|(_, text)| text.split(|c| !is_part(c))).collect();
    let mut missing = Vec::new();
    for (page, text) in files.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (number, line) in outside_code(text) {
            for name in line.split('`').skip(1).step_by(2) {
                let Some((owner, member)) = name.rsplit_once("::") else { continue };
                let is_type =
                    owner.rsplit("::").next().unwrap_or("").starts_with(char::is_uppercase);
                if is_type && member.chars().all(is_part) && !words.contains(member) {
                    missing.push(format!("{page}:{number}: {name}"));
                }
            }
        }
    }
    missing
}

/// Files whose tests hold devices or temporary directories that are not checked when they are
/// dropped, as `Scratch`, `Image` and `Memory` are.
pub fn image_holders(files: &Files) -> BTreeSet<String> {
    let places = ["tempfile::", "temp_dir()", "MemDevice::", "SparseDevice::", "PageDevice::new"];
    let of_tests =
        files.iter().filter(|(path, _)| path.ends_with(".rs") && path.starts_with("crates/"));
    of_tests
        .filter(|(path, text)| {
            let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
            let own = text.split_once("#[cfg(test)]").map_or("", |(_, own)| own);
            let tests = if is_test { text } else { own };
            places.iter().any(|place| tests.contains(place))
        })
        .map(|(path, _)| path.clone())
        .collect()
}
