//! Wrong usage, exit codes, help.

use crate::args;
use crate::program::{EXTANT, done, extant, refused};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch};
use std::os::unix::fs::PermissionsExt;

#[test]
fn wrong_usage_ends_with_2() {
    for wrong in [
        &args![][..],
        &args!["nonsense"],
        &args!["ls"],
        &args!["ls", "--nonsense", "x"],
        &args!["--threads", "0", "ls", "x"],
        &args!["mkdir", "-m", "9", "x", "/y"],
        &args!["put", "--owner", "me", "x", "y", "z"],
        &args!["get", "x", "/y"],
        &args!["mount", "-o", "nonsense", "x", "/"],
    ] {
        let printed = extant(wrong);
        assert_eq!(printed.code, 2, "{printed}");
        assert!(printed.stdout.is_empty() && !printed.stderr.is_empty(), "{printed}");
    }
}

#[test]
fn help_names_every_command() {
    let help = done(&args!["--help"]).text();
    for command in
        ["mkfs", "mount", "info", "ls", "tree", "stat", "cat", "get", "put", "rm", "mkdir", "recover", "stats"]
    {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command} in {help}");
        done(&args![command, "--help"]);
    }
    done(&args!["--version"]);
}

#[test]
fn measurements_are_another_program_beside_this_one() {
    let scratch = Scratch::new();
    let program = scratch.join("extant");
    std::fs::copy(EXTANT, &program).expect("a copy of the program");
    let told = args!["lab", "bench", "--runs", "3", "--help"];
    let alone = run(&program.to_string_lossy(), &told);
    assert_eq!(alone.code, 1, "{alone}");
    assert!(alone.errors().contains("extant-lab: it is not there"), "{alone}");

    let other = scratch.join("extant-lab");
    std::fs::write(&other, "#!/bin/sh\necho \"$@\"; exit 7\n").expect("a program");
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).expect("it may run");
    let beside = run(&program.to_string_lossy(), &told);
    assert_eq!((beside.code, beside.text().trim()), (7, "bench --runs 3 --help"), "{beside}");
}

#[test]
fn failures_say_what_and_where_and_end_with_1() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let blank = extant_testkit::Image::blank(1 << 20);
    refused(&args!["ls", "/no/such/image"], 1, "/no/such/image");
    refused(&args!["ls", image.path(), "/missing"], 1, "/missing: no such file or directory");
    refused(&args!["cat", image.path(), "/"], 1, "is a directory");
    refused(&args!["ls", blank.path()], 1, &blank.path().display().to_string());
    refused(&args!["rm", image.path(), "/lost+found"], 1, "/lost+found: is a directory");
    refused(&args!["rm", "-r", image.path(), "/"], 1, "root");
    refused(&args!["stats", "/"], 1, "nothing that extant serves");
    refused(&args!["mount", image.path(), "/no/such/dir"], 1, "/no/such/dir");
    image.assert_clean();
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let script = format!("{} find {} / | true", crate::program::EXTANT, image.path().display());
    let printed = extant_testkit::tool::run("sh", &["-c", &script]);
    assert!(!printed.errors().contains("panicked"), "{printed}");
}
