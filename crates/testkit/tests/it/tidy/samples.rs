//! Each rule fails on a small tree made up for it.

use std::collections::BTreeMap;

use super::prose::{Prose, comments};
use super::ratchets::lowered;
use super::report::Report;
use super::rules::Rules;
use super::source::{Files, Kind, Root, Workspace};

/// Violations of `rule` in the crate `made`, whose library has `files` below `crates/made`.
fn violations(rule: &str, rules: &str, files: &[(&str, &str)]) -> Vec<String> {
    let rules = Rules::parse(rules);
    found(&rules, &report(&rules, files)).remove(rule).expect("the rule exists")
}

fn found(rules: &Rules, report: &Report) -> BTreeMap<&'static str, Vec<String>> {
    rules.violations(report)
}

fn report(rules: &Rules, files: &[(&str, &str)]) -> Report {
    let files: Files = files
        .iter()
        .map(|(path, text)| (format!("crates/made/{path}"), (*text).to_owned()))
        .collect();
    let root = Root {
        package: "made".to_owned(),
        kind: Kind::Library,
        file: "crates/made/src/lib.rs".to_owned(),
    };
    Report::of(&Workspace::new(files, vec![root]), rules)
}

const CIRCLE: [(&str, &str); 4] = [
    ("src/lib.rs", "mod low; mod high; pub use high::Top;"),
    ("src/low.rs", "use super::Top; pub struct Base; fn f(_: Top) {}"),
    ("src/high/mod.rs", "mod inner; pub struct Top;"),
    ("src/high/inner.rs", "fn f() { matches!(crate::low::Base, _) }"),
];

#[test]
fn circle_is_found_through_exports_macros_and_nested_modules() {
    let expected = ["made -> high -> low: 1, allowed: 0", "made -> low -> high: 1, allowed: 0"];
    assert_eq!(violations("circles", "", &CIRCLE), expected);
}

#[test]
fn listed_circle_is_allowed_and_unused_exception_is_not() {
    let rules = "[order]\nmade = ['low', 'high']\n[circles.made]\nhigh = ['low']\nlow = ['high']";
    assert!(violations("circles", rules, &CIRCLE).is_empty());
    assert!(violations("order", rules, &CIRCLE).is_empty());
    let open = [CIRCLE[0], ("src/low.rs", "pub struct Base;"), CIRCLE[2], CIRCLE[3]];
    assert_eq!(violations("circles", rules, &open).len(), 2);
}

#[test]
fn use_of_a_higher_module_is_found_in_groups_and_not_in_tests() {
    let rules = "[order]\nmade = ['low', 'high']";
    let with =
        |low| [("src/lib.rs", "mod low; mod high;"), ("src/low.rs", low), ("src/high.rs", "")];
    let used = with("fn f() { use crate::{high::{self, Top as T}}; }");
    let expected = ["crates/made/src/low.rs:1: low uses high, which is above it"];
    assert_eq!(violations("order", rules, &used), expected);
    for test in [
        "#[cfg(test)] mod tests { use crate::high; }",
        "#[cfg(all(test, not(loom)))] use crate::high;",
        "impl S { #[cfg(test)] fn f() { crate::high::g() } }",
        "/// `crate::high::g()`\nfn f() { \"crate::high\"; }",
    ] {
        assert!(violations("order", rules, &with(test)).is_empty(), "{test}");
    }
}

#[test]
fn order_knows_each_module_and_no_other() {
    let files = [("src/lib.rs", "mod low { fn f() {} } mod new;"), ("src/new.rs", "")];
    let found = violations("order", "[order]\nmade = ['low', 'gone']", &files);
    assert_eq!(
        found,
        ["made: the order lacks the module new", "made: the order has no use for gone"]
    );
}

#[test]
fn files_outside_of_all_module_trees_are_lost() {
    let found = violations("lost_files", "", &[("src/lib.rs", "mod a;"), ("src/b.rs", "")]);
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn unsafe_code_in_a_wrong_place_is_found() {
    let files = [("src/lib.rs", "mod a;"), ("src/a.rs", "// unsafe {\nfn f() { unsafe { g() } }")];
    assert_eq!(violations("unsafe", "", &files), ["crates/made/src/a.rs:2"]);
    let rules = "[places.unsafe]\n'crates/made/src/a.rs' = 'r'\n'crates/made/src/lib.rs' = 'r'";
    let unused = "unused exception: crates/made/src/lib.rs";
    assert_eq!(violations("unsafe", rules, &files), [unused]);
    let folder = "[places.unsafe]\n'crates/made/src' = 'r'";
    assert!(violations("unsafe", folder, &files).is_empty());
}

#[test]
fn device_write_in_a_wrong_place_is_found() {
    let text = "fn f() {\nd.write_all_at(&[0; 2], at(1, 2))?;\nd.discard(slice);\nd.discard(1, \
    2,);\n\
                Plug::new(d) }";
    let found = violations("device_writes", "", &[("src/lib.rs", text)]);
    let lines = [2, 4, 5].map(|line| format!("crates/made/src/lib.rs:{line}"));
    assert_eq!(found, lines);
}

#[test]
fn byte_order_outside_of_format_is_found() {
    let text = "fn f() { u32::from_le_bytes(b) }\n#[test]\nfn g() { u32::from_le_bytes(b) }";
    let found = violations("byte_order", "", &[("src/lib.rs", text)]);
    assert_eq!(found, ["crates/made/src/lib.rs:1"]);
}

#[test]
fn long_function_and_long_file_are_found() {
    let function = |lines: usize| format!("/// D\nfn f(\n) {{\n{}}}", "g();\n".repeat(lines - 3));
    let of = |rule, text: String| violations(rule, "", &[("src/lib.rs", &text)]);
    assert!(of("functions", function(69)).is_empty());
    assert_eq!(of("functions", function(70)), ["crates/made/src/lib.rs::f: 70, allowed: 0"]);
    assert!(of("files", "// x\n".repeat(699)).is_empty());
    assert_eq!(of("files", "// x\n".repeat(700)), ["crates/made/src/lib.rs: 700, allowed: 0"]);
}

#[test]
fn words_and_long_lines_are_counted_in_comments_and_pages() {
    let source = "//! What is\n/* /* nobody */ Who */ const A: &str = r#\"// what\"#; // what's\n\
                  fn f<'a>(c: char) { c == '\"' || c == '/'; \"\\\"// what\" } // somebody";
    assert_eq!(comments(source).len(), 4, "{:?}", comments(source));
    let prose = Prose::of_source(source);
    assert_eq!((prose.what, prose.who, prose.words), (2, 3, 7));
    let page = format!("what\n```\nwho {0}\n```\n| who {0} |\n{0}\n", "x".repeat(101));
    let prose = Prose::of_page(&page);
    assert_eq!((prose.what, prose.who, prose.long_lines), (1, 0, 1));
    let found = violations("what", "[what]\nmade = 1", &[("src/lib.rs", "// what\n// what")]);
    assert_eq!(found, ["made: 2, allowed: 1"]);
}

#[test]
fn exports_are_counted_through_exports_of_private_modules() {
    let text = "mod a; pub mod b { pub use super::a::inner::*; pub(crate) struct No; }\n\
                pub use a::{One, two as Two}; pub use other::Foreign;";
    let a = "pub struct One; pub fn two() {} pub struct Hidden; pub mod inner { pub enum E {} }";
    let rules = Rules::parse("");
    let report = report(&rules, &[("src/lib.rs", text), ("src/a.rs", a)]);
    let exports = &report.crates["made"].exports;
    let names: Vec<&str> = exports.own.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["One", "two", "E"]);
    assert_eq!(exports.len(), 4);
    assert_eq!(found(&rules, &report)["exports"], ["made: 4, allowed: 0"]);
}

#[test]
fn calls_that_panic_and_unfinished_code_are_counted() {
    let text = "fn f() { a.unwrap(); b.expect(\"x\"); panic!(\"y\"); a.unwrap_or(1); todo!() }\n\
                #[cfg(test)] fn g() { a.unwrap() }";
    assert_eq!(violations("panics", "", &[("src/lib.rs", text)]), ["made: 4, allowed: 0"]);
    assert_eq!(violations("panics", "tools = ['made']", &[("src/lib.rs", text)]).len(), 0);
    assert_eq!(violations("unfinished", "", &[("src/lib.rs", text)]).len(), 1);
}

#[test]
fn broken_links_and_headings_are_found() {
    let page = "# A `b` c\n[x](src/lib.rs) [y](#a-b-c) [z](src) [w](https://example.org/)\n\
                [bad](gone.md) [bad](#d)";
    let found = violations("links", "", &[("src/lib.rs", ""), ("page.md", page)]);
    assert_eq!(found, ["crates/made/page.md:3: gone.md", "crates/made/page.md:3: #d"]);
}

#[test]
fn pages_name_existing_members_of_types() {
    let page = "`Lock::take`, `m::Lock::let_go`, `lock::gone`\n```\n`Lock::gone`\n```";
    let source = ("src/lib.rs", "struct Lock; impl Lock { fn take() {} }");
    let found = violations("named_members", "", &[source, ("page.md", page)]);
    assert_eq!(found, ["crates/made/page.md:1: m::Lock::let_go"]);
}

#[test]
fn stored_numbers_fall_and_do_not_rise() {
    let text = "# why\n[what]\nmade = 2 # note\ngone = 1\n[who]\nmade = 0\n[circles.made]\n\
                a = ['b', 'c']\nd = ['e']\n";
    let number = |path: &[&str], n| (path.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(), n);
    let measured = BTreeMap::from([
        number(&["what", "made"], 1),
        number(&["who", "made"], 5),
        number(&["circles", "made", "a", "b"], 1),
        number(&["functions", "new"], 99),
    ]);
    let expected = "# why\n[what]\nmade = 1 # note\n[who]\nmade = 0\n[circles.made]\na = ['b']\n";
    assert_eq!(lowered(text, &measured), expected);
}

#[test]
fn lower_measurement_asks_to_store_it() {
    let found = violations("what", "[what]\nmade = 2", &[("src/lib.rs", "// what")]);
    assert_eq!(found, ["made: 1, stored: 2: run `make tidy` to store the lower number"]);
}
