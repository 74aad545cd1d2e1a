//! The rules over this repository.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::Tidy;

/// Measured once, as plain data, for all tests.
static VIOLATIONS: LazyLock<BTreeMap<&str, Vec<String>>> =
    LazyLock::new(|| Tidy::read().violations());

fn assert_kept(rule: &str) {
    let found = &VIOLATIONS[rule];
    assert!(found.is_empty(), "crates/testkit/tidy.toml, {rule}:\n{}", found.join("\n"));
}

macro_rules! rules_are_kept {
    ($($test:ident: $($rule:literal),+;)+) => {
        $(#[test]
        fn $test() {
            $(assert_kept($rule);)+
        })+

        /// A rule without a test would never fail.
        #[test]
        fn every_rule_has_a_test() {
            let tested = [$($($rule),+),+];
            assert!(VIOLATIONS.keys().all(|rule| tested.contains(rule)));
        }
    };
}

rules_are_kept! {
    modules_use_lower_modules: "order", "circles";
    every_file_belongs_to_a_module_tree: "lost_files";
    unsafe_code_stays_in_its_files: "unsafe";
    byte_order_is_the_format_crates_concern: "byte_order";
    devices_are_written_in_known_modules: "device_writes";
    functions_and_files_are_short: "functions", "files";
    exports_do_not_grow: "exports", "shared_names";
    production_code_does_not_panic: "panics";
    prose_is_plain: "what", "who", "long_lines";
    links_lead_to_files_and_headings: "links";
    tests_named_in_tables_exist: "named_tests";
    members_named_in_pages_exist: "named_members";
    images_of_tests_are_checked: "unchecked_images";
    crates_of_others_are_allowed_and_explained: "dependencies";
    no_code_is_unfinished: "unfinished";
    the_public_surface_is_stored: "public_surface";
    signatures_are_made_of_exported_types: "unnamed";
    public_types_may_grow: "exhaustive";
    fallible_functions_name_their_errors: "error_sections";
}

#[test]
fn the_table_has_each_crate_and_storing_changes_nothing() {
    let tidy = Tidy::read();
    let table = tidy.table();
    for name in ["extant", "extant-format", "extant-testkit"] {
        assert!(table.contains(&format!("| {name} | ")), "{name}:\n{table}");
    }
    assert_eq!(tidy.lowered(), tidy.text, "run `make tidy` to store lower numbers");
}
