//! Wrong usage, exit codes, help.

use crate::args;
use crate::program::{EXTANT, done, extant, refused};
use extant_testkit::tool::{install, run};
use extant_testkit::{FeatureSet, Scratch};

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
    for command in [
        "mkfs", "mount", "info", "ls", "tree", "stat", "cat", "get", "put", "rm", "mkdir",
        "recover", "check", "trim", "clone", "stats",
    ] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(command)),
            "{command} in {help}"
        );
        done(&args![command, "--help"]);
    }
    done(&args!["--version"]);
}

#[test]
fn measurements_are_another_program_beside_this_one() {
    let scratch = Scratch::new();
    let program = scratch.join("extant");
    install(EXTANT.as_ref(), &program);
    let told = args!["lab", "bench", "--runs", "3", "--help"];
    let alone = run(&program.to_string_lossy(), &told);
    assert_eq!(alone.code, 1, "{alone}");
    assert!(alone.errors().contains("extant-lab: it is not there"), "{alone}");

    let script = scratch.join("script");
    std::fs::write(&script, "#!/bin/sh\necho \"$@\"; exit 7\n").expect("a script");
    install(&script, &scratch.join("extant-lab"));
    let beside = run(&program.to_string_lossy(), &told);
    assert_eq!((beside.code, beside.text().trim()), (7, "bench --runs 3 --help"), "{beside}");
}

#[test]
fn failures_name_call_and_object_and_end_with_1() {
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

#[test]
fn failures_are_json_documents_where_those_are_wanted() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let failed = |args: &[std::ffi::OsString], code: i32| -> serde_json::Value {
        let mut all = args.to_vec();
        all.push("--json".into());
        let printed = extant(&all);
        assert_eq!(printed.code, code, "{printed}");
        let document: serde_json::Value =
            serde_json::from_slice(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"));
        assert_eq!(document["error"]["exit_code"], code, "{document}");
        document
    };
    let missing = &failed(&args!["ls", image.path(), "/missing"], 1)["error"];
    assert_eq!((&missing["path"], &missing["errno"]), (&"/missing".into(), &2.into()), "{missing}");
    assert!(missing["message"].as_str().unwrap().contains("no such file"), "{missing}");
    let absent = &failed(&args!["info", "/no/such/image"], 1)["error"];
    assert_eq!(
        (&absent["code"], &absent["path"], &absent["errno"]),
        (&"io".into(), &"/no/such/image".into(), &2.into())
    );
    assert_eq!(failed(&args!["mkfs", "/no/such/image"], 2)["error"]["code"], "usage");
    assert_eq!(failed(&args!["ls", "--nonsense"], 2)["error"]["code"], "usage");
    let mounted = &failed(&args!["mount", image.path(), "/no/such/dir"], 1)["error"];
    assert!(mounted["message"].as_str().unwrap().contains("/no/such/dir"), "{mounted}");
    let removed = failed(&args!["rm", image.path(), "/missing", "/lost+found"], 1);
    assert_eq!(removed["errors"][0]["errno"], 2, "{removed}");
    assert_eq!(removed["changed"], serde_json::json!([]), "{removed}");
    let made = failed(&args!["mkdir", image.path(), "/made", "/missing/made"], 1);
    assert_eq!(made["changed"][0]["path"], "/made", "{made}");
    assert_eq!(made["error"]["path"], "/missing/made", "{made}");
    // A superblock that is damaged has its place. Only readers go on.
    let mut bytes = image.bytes();
    bytes[1024 + 4] ^= 1;
    std::fs::write(image.path(), &bytes).unwrap();
    let corrupt = &failed(&args!["mkdir", image.path(), "/d"], 1)["error"];
    assert_eq!(
        (&corrupt["code"], &corrupt["errno"]),
        (&"corrupt".into(), &117.into()),
        "{corrupt}"
    );
    assert_eq!(
        (&corrupt["place"]["structure"], &corrupt["place"]["field"]),
        (&"superblock".into(), &"checksum".into())
    );
    bytes[1024 + 4] ^= 1;
    std::fs::write(image.path(), &bytes).unwrap();
}

#[test]
fn help_of_mount_has_its_options() {
    for arguments in [&args!["help", "mount"][..], &args!["mount", "--help"]] {
        let help = done(arguments).text();
        for option in [
            "journal_path=",
            "errors=",
            "transport=",
            "allow_idmap",
            "noblkdev",
            "nostrictatime",
            "delalloc",
        ] {
            assert!(help.contains(option), "{option} in {help}");
        }
    }
}
