//! The library as programs in C see it.

use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const STRICT: [&str; 5] = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"];

/// The directory of the library, beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    let dir = program.parent().expect("a directory").to_owned();
    assert!(dir.join("libextant_capi.so").exists(), "no library in {}", dir.display());
    dir
}

/// Compiles a program that finds the library where it lies.
fn compile(scratch: &Scratch, source: &str) -> PathBuf {
    let program = scratch.join(source.rsplit_once('/').expect("a folder").1.trim_end_matches(".c"));
    let dir = library();
    let named = scratch.join("libextant.so.0");
    if !named.exists() {
        std::os::unix::fs::symlink(dir.join("libextant_capi.so"), &named).expect("a link");
    }
    let include = format!("-I{HERE}/include");
    let source = format!("{HERE}/{source}");
    let path = format!("-Wl,-rpath,{}", scratch.join("").display());
    let mut args = vec!["-g", "-O1", "-D_DEFAULT_SOURCE", &include, &source, "-o"];
    args.splice(0..0, STRICT);
    let (program_text, named) = (program.display().to_string(), named.display().to_string());
    args.extend([program_text.as_str(), named.as_str(), &path, "-lpthread"]);
    run("cc", &args).must_succeed();
    program
}

/// Runs a program under valgrind, which ends with an error for wrong accesses and lost memory.
fn under_valgrind(program: &Path, args: &[&str]) -> String {
    let program = program.display().to_string();
    let options = [
        "-q",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
    ];
    let all = [&options[..], &[&program], args].concat();
    run("valgrind", &all).must_succeed().text()
}

fn functions_of_sources() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(format!("{HERE}/src")).expect("sources") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        for item in syn::parse_file(&text).expect("Rust").items {
            if let syn::Item::Fn(function) = item
                && function.sig.abi.is_some()
            {
                names.insert(function.sig.ident.to_string());
            }
        }
    }
    names
}

/// Names that are followed by a bracket.
fn called(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let before = text.match_indices('(').map(|(at, _)| {
        let start = text[..at].rfind(|c| !is_name(c)).map_or(0, |place| place + 1);
        text[start..at].to_owned()
    });
    before.filter(|name| name.starts_with("extant_")).collect()
}

#[test]
fn the_header_has_all_functions_and_a_program_calls_each() {
    let names = functions_of_sources();
    assert!(names.len() > 40, "{names:?}");
    let read = |path: &str| fs::read_to_string(format!("{HERE}/{path}")).expect(path);
    let header = called(&read("include/extant.h"));
    assert_eq!(names, names.intersection(&header).cloned().collect(), "of the header");
    let used = called(&read("tests/c/all.c"));
    assert_eq!(names, names.intersection(&used).cloned().collect(), "of tests/c/all.c");
}

#[test]
fn every_function_does_its_work_without_an_error_of_memory() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "tests/c/all.c");
    let image = scratch.join("all.img");
    let text = under_valgrind(&program, &[&image.display().to_string()]);
    assert_eq!(text, "all done\n");
    let made = Image::holding(&fs::read(&image).expect("an image"));
    assert!(made.bytes().len() == 32 << 20);
}

#[test]
fn examples_run_without_an_error_of_memory() {
    let scratch = Scratch::new();
    assert_eq!(under_valgrind(&compile(&scratch, "examples/memory.c"), &[]), "hello\n");
    let image = FeatureSet::named("default").make();
    let list = compile(&scratch, "examples/list.c");
    let text = under_valgrind(&list, &[&image.path().display().to_string()]);
    assert!(text.contains(" /lost+found\n"), "{text}");
    let list = list.display().to_string();
    let refused = run(&list, &["/nowhere"]);
    assert!(refused.code == 1 && refused.errors().contains("/nowhere"), "{refused}");
}

/// Programs in C++ include the header, too.
#[test]
fn the_header_is_cpp_too() {
    let header = format!("{HERE}/include/extant.h");
    run(
        "c++",
        &["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", &header],
    )
    .must_succeed();
}
