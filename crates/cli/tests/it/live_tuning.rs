//! Label and UUID of a live mount: programs go on to write, and all checksums stay valid.

use crate::args;
use crate::program::{Server, done, json, refused};
use extant_testkit::kernel::Mount;
use extant_testkit::{Image, dumpe2fs};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const UUID: &str = "30313233-3435-3637-3839-616263646566";
const OTHER: &str = "40414243-4445-4647-4849-616263646566";

fn image(features: &str) -> Image {
    Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", features])
}

#[test]
fn a_mount_gets_another_uuid_under_its_writers() {
    let image = image("^metadata_csum_seed");
    let server = Server::start(image.path(), "rw");
    fs::write(server.dir().join("before"), "text").expect("space");
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut files = 0;
            while files < 40 || !ends.load(Ordering::Acquire) && files < 1000 {
                let name = server.dir().join(format!("f{files}"));
                fs::write(&name, vec![1; 3000]).expect("space");
                fs::File::open(&name).and_then(|file| file.sync_all()).expect("a sync");
                files += 1;
            }
        });
        let document = json(&args!["tune", "--uuid", UUID, "--label", "live", server.dir()]);
        assert_eq!(document["changed"], serde_json::json!(["label", "uuid"]), "{document}");
        assert_eq!(document["uuid"], UUID, "{document}");
        // Programs that read the image see it at once.
        let dump = dumpe2fs::header(image.path());
        assert_eq!(dump.value("Filesystem UUID"), UUID);
        assert_eq!(dump.value("Filesystem volume name"), "live");
        // By the image, as by the directory.
        done(&args!["tune", "--uuid", OTHER, image.path()]);
        ends.store(true, Ordering::Release);
        writer.join().expect("no panic");
    });
    server.unmount();
    image.assert_clean();
    let dump = dumpe2fs::header(image.path());
    assert_eq!(dump.value("Filesystem UUID"), OTHER);
    assert!(dump.features().contains("metadata_csum_seed"));
    let kernel = Mount::new(image.path(), "");
    assert_eq!(fs::read(kernel.join("before")).expect("a file"), b"text");
    fs::write(kernel.join("after"), "text").expect("space");
    kernel.unmount();
    image.assert_clean();
}

/// The server is killed behind the change: the replay of the log keeps it.
#[test]
fn a_uuid_of_a_killed_server_stays() {
    let image = image("^metadata_csum_seed");
    let server = Server::start(image.path(), "rw");
    done(&args!["tune", "--uuid", UUID, server.dir()]);
    fs::write(server.dir().join("file"), "text").expect("space");
    let mut server = server;
    server.signal("KILL");
    server.end();
    done(&args!["recover", image.path()]);
    image.assert_clean();
    assert_eq!(dumpe2fs::header(image.path()).value("Filesystem UUID"), UUID);
}

#[test]
fn what_a_mount_keeps_is_refused_with_the_remedy() {
    let sums = image("^metadata_csum,uninit_bg");
    let server = Server::start(sums.path(), "rw");
    for (options, words) in [
        (["--uuid", UUID], "uninit_bg"),
        (["--label", "seventeen bytes!!"], "at most 16"),
        (["--features", "quota"], "umount"),
        (["--reserved-percent", "1"], "umount"),
    ] {
        let args = args!["tune", options[0], options[1], server.dir()];
        let code = if words == "at most 16" { 2 } else { 1 };
        refused(&args, code, words);
    }
    done(&args!["tune", "--label", "sixteen bytes!!!", server.dir()]);
    server.unmount();
    sums.assert_clean();
    let server = Server::start(sums.path(), "ro");
    refused(&args!["tune", "--label", "x", server.dir()], 1, "remount,rw");
    server.unmount();
    assert_eq!(dumpe2fs::header(sums.path()).value("Filesystem volume name"), "sixteen bytes!!!");
}
