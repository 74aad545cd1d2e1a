//! What the compiler does not check: who may call whom inside the engine, where unsafe code,
//! on-disk offsets and device writes may stand, how long functions and files may be, that links in
//! documents lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};

/// The engine's rooms from bottom to top; a room may use those before it.
const ROOMS: [&str; 17] = [
    "error", "bounds", "volume", "mmp", "groups", "inode", "alloc", "orphan", "quota", "store",
    "extent", "xattr", "dir", "file", "vfs", "ops", "mkfs",
];

/// Edges that go upward on purpose: a type of the lower rooms carries state or a handle of the
/// named one.
const UPWARD: [(&str, &str, &str); 6] = [
    ("inode", "store", "an inode is loaded and frozen through the lower rooms as one"),
    ("alloc", "inode", "the goal of a new inode depends on its parent"),
    ("orphan", "store", "the legacy list rewrites its neighbours' inodes"),
    ("orphan", "inode", "a record belongs to an inode in memory"),
    ("inode", "alloc", "a preallocation is kept with its inode"),
    ("inode", "file", "visible size"),
];

/// Longest function, in lines. Lower it when the longest one shrinks.
const MAX_FUNCTION: usize = 90;

/// Longest file without its tests, in lines.
const MAX_FILE: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace exists")
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                todo.push(path);
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Source files of all crates, tests left out, with their text up to their own tests.
fn sources() -> Vec<(PathBuf, String)> {
    let all = files(&root().join("crates"), ".rs");
    let of_tests =
        |p: &Path| p.components().any(|c| c.as_os_str() == "tests") || p.ends_with("tests.rs");
    let production = all.into_iter().filter(|p| !of_tests(p));
    production
        .map(|p| {
            let text = fs::read_to_string(&p).expect("a readable file");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
            (p, text)
        })
        .collect()
}

fn fail_if_any(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn calls_between_rooms_go_downward() {
    let engine = root().join("crates/extant/src");
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let Ok(inside) = path.strip_prefix(&engine) else { continue };
        let first =
            inside.components().next().map(|c| c.as_os_str().to_string_lossy().replace(".rs", ""));
        let Some(own) = first.and_then(|name| ROOMS.iter().position(|r| *r == name)) else {
            continue;
        };
        for (above, room) in ROOMS.iter().enumerate().skip(own + 1) {
            let allowed = UPWARD.iter().any(|(from, to, _)| *from == ROOMS[own] && to == room);
            let used = text
                .lines()
                .filter(|l| !l.trim_start().starts_with("//"))
                .any(|l| l.contains(&format!("crate::{room}::")));
            if used && !allowed && above > own {
                wrong.push(format!("{} uses {room}", inside.display()));
            }
        }
    }
    fail_if_any("a lower room uses a higher one", wrong);
}

#[test]
fn unsafe_code_stays_in_its_place() {
    let allowed = [
        "crates/sync/",
        "crates/fuse/src/clone",
        "crates/fuse/src/control",
        "crates/fuse/src/ring/slot",
        "crates/fuse/tests/it/handles",
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let name = path.strip_prefix(root()).expect("inside").display().to_string();
        let has = text.lines().any(|l| {
            !l.trim_start().starts_with("//")
                && (l.contains("unsafe {") || l.contains("unsafe fn") || l.contains("unsafe impl"))
        });
        if has && !allowed.iter().any(|a| name.starts_with(a)) {
            wrong.push(name);
        }
    }
    fail_if_any("unsafe code outside its crates", wrong);
}

#[test]
fn bytes_of_the_disk_are_read_in_format_only() {
    let allowed = [
        "crates/format/",
        "crates/blocks/src/file/partition",
        "crates/testkit/",
        "crates/hostile/",
        "crates/lab/",
        "crates/fuse/src/ioctl.rs",
        "crates/cli/",
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let name = path.strip_prefix(root()).expect("inside").display().to_string();
        let uses = ["from_le_bytes", "from_be_bytes", "to_le_bytes", "to_be_bytes"]
            .iter()
            .any(|w| text.contains(w));
        if uses && !allowed.iter().any(|a| name.starts_with(a)) {
            wrong.push(name);
        }
    }
    fail_if_any("bytes are put together outside of format", wrong);
}

#[test]
fn functions_and_files_fit_in_the_head() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let lines = text.lines().count();
        if lines > MAX_FILE {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
        for (name, length) in functions(&text) {
            if length > MAX_FUNCTION {
                wrong.push(format!("{}: fn {name}: {length} lines", path.display()));
            }
        }
    }
    fail_if_any("too long", wrong);
}

/// Names and lengths of functions, by indentation: rustfmt closes a function in the column where it
/// opened.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(at) = line.find("fn ") else { continue };
        if line.trim_start().starts_with("//")
            || !line[..at].chars().all(|c| c.is_ascii_alphanumeric() || " ()_".contains(c))
        {
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = lines[start..].iter().position(|l| {
            l.strip_prefix(indent).is_some_and(|rest| rest == "}" || rest.starts_with("} "))
        });
        let name: String =
            line[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        found.push((name, end.unwrap_or(0) + 1));
    }
    found
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for path in files(&root(), ".md") {
        let text = fs::read_to_string(&path).expect("a readable file");
        let dir = path.parent().expect("a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !dir.join(file).exists() {
                wrong.push(format!("{}: {target}", path.display()));
            }
        }
    }
    fail_if_any("links that lead nowhere", wrong);
}

/// Where tests have devices or temporary directories that judge nothing in the end, and why.
const UNJUDGED: [(&str, &str); 24] = [
    ("blocks/tests/it", "devices and partitions; no file system is written to"),
    ("format/tests/it", "images are parsed"),
    ("journal/tests/it", "a log alone is no file system"),
    ("hostile/tests/it", "images are damaged"),
    ("extant/tests/it/hostile.rs", "images are damaged"),
    ("extant/tests/it/structures.rs", "images are damaged"),
    ("extant/tests/it/verity.rs", "a superblock is damaged"),
    (
        "extant/tests/it/mkfs.rs",
        "60 TiB, whose bitmaps are read in the test; and requests that are refused",
    ),
    (
        "extant/tests/it/crash/scene.rs",
        "states of power cuts: `examine` has each judged, some by all",
    ),
    ("extant/tests/it/crash/examine.rs", "states of power cuts: each is judged, some by all"),
    (
        "extant/tests/it/crash/recovery.rs",
        "states of power cuts: `examine` has each judged, some by all",
    ),
    ("extant/tests/it/crash/pages.rs", "no file system"),
    ("extant/tests/it/crash/campaign.rs", "a file of counts"),
    ("extant/tests/it/dying/mod.rs", "devices that fail: each is judged, some by all"),
    ("extant/tests/it/dying/work.rs", "what `dying` begins with"),
    ("extant/tests/it/order/mod.rs", "histories: each is judged, some by all"),
    ("extant/tests/it/order/faults.rs", "histories: each is judged, some by all"),
    ("extant/tests/it/scarce.rs", "allocations that fail: each is judged, some by all"),
    ("extant/src/alloc/inodes/bits.rs", "bitmaps alone"),
    (
        "extant/src/alloc/tests/harness.rs",
        "what is allocated belongs to no file; where it does, the image is written and judged",
    ),
    ("extant/src/extent/raw.rs", "extents alone"),
    ("extant/src/groups/tests.rs", "descriptors alone"),
    ("extant/src/mkfs/output.rs", "requests alone"),
    ("extant/src/orphan/file/tests.rs", "orphan blocks alone"),
];

/// What tests have images in: `Scratch`, `Image` and `Memory` judge what was written to them when
/// they go. Whatever else holds an image is named above.
#[test]
fn images_of_tests_are_judged() {
    let places = ["tempfile::", "temp_dir()", "MemDevice::", "SparseDevice::", "PageDevice::new"];
    let crates =
        ["blocks/tests", "format/tests", "journal/tests", "hostile/tests", "extant", "fuse", "cli"];
    let of_tests = crates.iter().flat_map(|name| files(&root().join("crates").join(name), ".rs"));
    let holds = |path: &Path| {
        let text = fs::read_to_string(path).expect("a readable file");
        let is_test =
            path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
        let own = text.split_once("#[cfg(test)]").map_or("", |(_, own)| own);
        let tests = if is_test { &text } else { own };
        places.iter().any(|place| tests.contains(place))
    };
    let holders: Vec<PathBuf> = of_tests.filter(|path| holds(path)).collect();
    let is_row_of =
        |known: &str, path: &Path| path.to_string_lossy().contains(&format!("crates/{known}"));
    let unknown =
        holders.iter().filter(|path| !UNJUDGED.iter().any(|(known, _)| is_row_of(known, path)));
    fail_if_any(
        "images that nobody judges",
        unknown.map(|path| path.display().to_string()).collect(),
    );
    let stale =
        UNJUDGED.iter().filter(|(known, _)| !holders.iter().any(|path| is_row_of(known, path)));
    fail_if_any("rows of nothing", stale.map(|(known, _)| (*known).to_owned()).collect());
}

#[test]
fn nothing_is_left_undone_in_words() {
    let words = ["todo!(", "unimplemented!(", "FIXME", "XXX:", "dbg!("];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for word in words {
            if text.contains(word) && !path.ends_with("hygiene.rs") {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    fail_if_any("left undone", wrong);
}

/// Every test that `COMPAT.md` names is a function (or made by a macro) of that module of some
/// crate's integration tests.
#[test]
fn tests_that_are_named_exist() {
    let text = fs::read_to_string(root().join("COMPAT.md")).expect("a readable file");
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let names: Vec<&str> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .filter(|name| is_test_name(name))
        .collect();
    assert!(names.len() > 30, "the tables name tests");
    let sources: Vec<(PathBuf, String)> = files(&root().join("crates"), ".rs")
        .into_iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "it"))
        .map(|path| (path.clone(), fs::read_to_string(path).expect("a readable file")))
        .collect();
    let missing = names
        .into_iter()
        .filter(|name| !sources.iter().any(|(path, text)| has_test(path, text, name)));
    fail_if_any("tests that do not exist", missing.map(str::to_owned).collect());
}

fn is_test_name(name: &str) -> bool {
    name.split_once("::")
        .is_some_and(|(module, _)| module.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

fn has_test(path: &Path, text: &str, name: &str) -> bool {
    let Some((module, test)) = name.split_once("::") else { return false };
    let in_file = path.file_stem().is_some_and(|stem| stem == module);
    let in_folder = path.parent().and_then(Path::file_name).is_some_and(|folder| folder == module);
    let made =
        ["", "pub "].iter().any(|public| text.contains(&format!("#[test]\n{public}fn {test}(")))
            || text.contains(&format!("    {test} = \""));
    (in_file || in_folder) && made
}
