//! Files with hash trees, through a mount.

use crate::served::Served;
use extant_testkit::debugfs;
use extant_testkit::tool::run;
use extant_testkit::verity::{Wanted, make};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

#[test]
fn they_are_verified_and_measured_and_not_written() {
    let content: Vec<u8> = (0..700_000u32).map(|n| (n / 7) as u8).collect();
    let files = [
        Wanted { name: "whole", content: &content, args: &[] },
        Wanted { name: "spoilt", content: &content, args: &["--hash-alg=sha512", "--salt=0123"] },
    ];
    let (image, measures) = make(64 << 20, 4096, &files);
    let place =
        debugfs::read(image.path(), "bmap /spoilt 100").trim().parse::<u64>().expect("a block");
    let disk = File::options().write(true).open(image.path()).expect("open");
    disk.write_all_at(b"other content", place * 4096).expect("write");
    drop(disk);
    let mut served = Served::of(image);
    assert!(fs::read(served.path("whole")).expect("whole") == content);
    let spoilt = File::open(served.path("spoilt")).expect("open");
    let mut block = [0; 4096];
    spoilt.read_exact_at(&mut block, 0).expect("the other blocks are whole");
    assert_eq!(
        spoilt.read_at(&mut block, 100 * 4096).expect_err("spoilt").raw_os_error(),
        Some(nix::libc::EIO)
    );
    for (file, measure) in files.iter().zip(&measures) {
        let printed = run("fsverity", &["measure".as_ref(), served.path(file.name).as_os_str()])
            .must_succeed();
        assert_eq!(printed.text().split(' ').next(), Some(measure.as_str()));
        let written = File::options().write(true).open(served.path(file.name));
        assert_eq!(written.expect_err("not written").raw_os_error(), Some(nix::libc::EPERM));
        let flags = run("lsattr", &[served.path(file.name)]).must_succeed().text();
        assert!(flags.split(' ').next().is_some_and(|flags| flags.contains('V')), "{flags}");
    }
    drop(spoilt);
    served.unmount();
}
