//! The program under the names of e2fsck, beside e2fsck itself.

use crate::args;
use crate::program::EXTANT;
use crate::recovery::crashed;
use extant_testkit::tool::{Printed, run};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use std::ffi::OsString;
use std::path::Path;

/// The program under another name.
struct Named(Scratch);

impl Named {
    fn new() -> Named {
        let scratch = Scratch::new();
        for name in ["e2fsck", "fsck.ext4"] {
            std::os::unix::fs::symlink(EXTANT, scratch.join(name)).unwrap();
        }
        Named(scratch)
    }

    fn call(&self, name: &str, options: &[&str], image: &Path) -> Printed {
        let args: Vec<OsString> =
            options.iter().map(OsString::from).chain([image.into()]).collect();
        run(self.0.join(name).to_str().unwrap(), &args)
    }
}

fn after(commands: &[&str]) -> Image {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    for command in commands {
        debugfs::write(image.path(), command);
    }
    image
}

/// Images in several states. But for two cases the codes are those of e2fsck for the same options
/// on a copy, and images that were to be repaired are clean.
#[test]
fn exit_codes_are_those_of_e2fsck() {
    let named = Named::new();
    let images: [(&str, &dyn Fn() -> Image); 6] = [
        ("clean", &|| after(&[])),
        ("to be recovered", &|| crashed(FeatureSet::named("default"))),
        ("marked as damaged", &|| after(&["ssv state 2"])),
        ("mounted often", &|| after(&["ssv max_mnt_count 3", "ssv mnt_count 7"])),
        ("a wrong bitmap", &|| after(&["setb 5000"])),
        ("a name that leads nowhere", &|| after(&["write /etc/hostname f", "clri f"])),
    ];
    let mut differences = Vec::new();
    for (label, make) in images {
        let image = make();
        image.leave_unjudged("damage is made, and judged below");
        for options in [&["-n"][..], &["-fn"], &["-p"], &["-fp"], &["-y"], &["-fy", "-C0", "-v"]] {
            let (own, theirs) = (image.copy(), image.copy());
            own.leave_unjudged("judged below");
            theirs.leave_unjudged("of e2fsck");
            let printed = named.call("fsck.ext4", options, own.path());
            let args = options.iter().map(OsString::from).chain(args![theirs.path()]);
            let expected = run("e2fsck", &args.collect::<Vec<_>>());
            let code = match (label, options[0]) {
                // e2fsck -n does not replay the journal, not even in memory, and finds its traces.
                ("to be recovered", "-fn") => 0,
                // e2fsck -p removes a name, for which this program wants -y.
                ("a name that leads nowhere", "-fp") => 4,
                _ => expected.code,
            };
            if printed.code != code {
                differences.push(format!("{label}, {options:?}, not {code}: {printed}{expected}"));
            }
            if printed.code < 4 && ["-fp", "-fy"].contains(&options[0]) {
                own.assert_clean();
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn lines_and_refusals_are_those_of_e2fsck() {
    let named = Named::new();
    let image = after(&[]);
    let theirs = run("e2fsck", &args!["-p", image.path()]).text();
    assert_eq!(named.call("e2fsck", &["-p"], image.path()).text(), theirs);
    assert!(theirs.contains(": clean, 11/"), "{theirs}");
    for (options, code, words) in [
        (&["-p", "-y"][..], 16, "only one of"),
        (&["-c"], 16, "bad blocks"),
        (&["-Z"], 16, "unknown option -Z"),
        (&["-E", "unshare_blocks"], 16, "unshare_blocks"),
        (&["-p", "second.img"], 16, "one image"),
    ] {
        let printed = named.call("e2fsck", options, image.path());
        assert!(printed.code == code && printed.errors().contains(words), "{printed}");
    }
    let missing = named.call("e2fsck", &["-p"], Path::new("/nonexistent"));
    assert!(missing.code == 8 && missing.errors().contains("/nonexistent"), "{missing}");
    let damaged = after(&["setb 5000"]);
    damaged.leave_unjudged("it stays damaged");
    let bytes = damaged.bytes();
    let asked = named.call("e2fsck", &["-f"], damaged.path());
    assert!(asked.code == 4 && asked.errors().contains("-p repairs"), "{asked}");
    assert!(damaged.bytes() == bytes, "nothing was asked for");
    let dirty = crashed(FeatureSet::named("default"));
    dirty.leave_unjudged("it stays dirty");
    let bytes = dirty.bytes();
    let replayed = named.call("e2fsck", &["-n", "-E", "journal_only"], dirty.path());
    assert!(replayed.code == 0 && dirty.bytes() == bytes, "{replayed}");
    let asked = named.call("e2fsck", &[], dirty.path());
    assert!(asked.code == 0 && dirty.bytes() == bytes, "{asked}");
}
