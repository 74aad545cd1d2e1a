//! Network block devices with TLS, as images and as servers.

use crate::args;
use crate::contained::{of_threads, process};
use crate::program::{Server, done, extant, json, refused};
use crate::remotes::{Serving, tree};
use extant_testkit::tool::run;
use extant_testkit::{Authority, Scratch, Validity, e2fsck};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

fn authority(scratch: &Scratch, name: &str) -> Authority {
    let authority = Authority::new(scratch.join(name));
    authority.sign("server", "DNS:localhost", Validity::Now);
    authority.sign("client", "DNS:client", Validity::Now);
    authority
}

fn nbdkit(scratch: &Scratch, file: &Path, authority: &Authority) -> Serving {
    let dir = authority.dir().display();
    let tls = args!["--tls=require", format!("--tls-certificates={dir}"), "--tls-verify-peer"];
    Serving::nbdkit(scratch, file, &tls)
}

fn address(server: &Serving, authority: &Authority) -> String {
    let (socket, dir) = (server.socket.display(), authority.dir().display());
    format!("nbds+unix:///?socket={socket}&tls-certificates={dir}")
}

#[test]
fn commands_take_an_address_with_tls() {
    let scratch = Scratch::new();
    let (own, other) = (authority(&scratch, "authority"), authority(&scratch, "other"));
    let (top, file) = (tree(&scratch), scratch.file("disk", 64 << 20));
    let server = nbdkit(&scratch, &file, &own);
    let at = address(&server, &own);
    done(&args!["build", "-F", &at, &top, "--free", "16M"]);
    assert_eq!(done(&args!["cat", &at, "/file"]).text(), "of the tree");
    assert_eq!(done(&args!["--no-sandbox", "cat", &at, "/file"]).text(), "of the tree");
    done(&args!["put", &at, top.join("file"), "/again"]);
    for command in ["info", "check", "repair", "hash"] {
        done(&args![command, &at]);
    }
    let plain = format!("nbd+unix:///?socket={}", server.socket.display());
    refused(&args!["ls", &plain], 1, "use nbds:// in the address");
    refused(&args!["ls", address(&server, &other)], 1, "no authority that is trusted here");
    refused(&args!["ls", format!("{at}&tls-hostname=else")], 1, "is not for else");
    refused(&args!["ls", format!("{plain}&tls-hostname=else")], 1, "belong to nbds://");
    let missing = format!("{}&tls-certificates=/none", at.split_once('&').unwrap().0);
    refused(&args!["ls", missing], 1, "/none/ca-cert.pem: No such file");
    drop(server);
    done(&args!["check", &file]);
}

#[test]
fn a_mount_with_tls_survives_servers_that_are_killed() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let file = scratch.file("disk", 128 << 20);
    let mut server = nbdkit(&scratch, &file, &authority);
    let at = PathBuf::from(address(&server, &authority));
    done(&args!["mkfs", &at]);
    let top = tree(&scratch);
    let mount = Server::start(&at, "rw");
    let stats = json(&args!["stats", mount.dir()]);
    assert_eq!(stats["sandbox"]["landlock"], "all", "{stats}");
    let process = process(mount.dir());
    for round in 0..3 {
        let dir = mount.dir().join(round.to_string());
        run("cp", &args!["-r", &top, &dir]).must_succeed();
        if round % 2 == 0 {
            run("sync", &args!["-f", &dir]).must_succeed();
        }
        server.kill();
        // Files that are gone or changed meanwhile have no effect: the sandbox opens none.
        if round == 0 {
            std::fs::remove_file(authority.dir().join("client-key.pem")).unwrap();
        }
        server = nbdkit(&scratch, &file, &authority);
        run("cp", &args!["-r", &top, dir.join("again")]).must_succeed();
    }
    let calls = of_threads(&process, "Seccomp:");
    assert!(calls.len() > 2 && calls.iter().all(|value| value == "2"), "{calls:?}");
    mount.unmount();
    drop(server);
    e2fsck::check(&file).assert_clean();
    for round in 0..3 {
        let path = format!("/{round}/again/dir/large");
        assert!(done(&args!["cat", &file, path]).stdout == vec![7; 5 << 20]);
    }
}

#[test]
fn an_image_is_served_with_tls() {
    let scratch = Scratch::new();
    let authority = authority(&scratch, "authority");
    let image = scratch.join("image");
    done(&args!["build", &image, tree(&scratch), "--free", "16M"]);
    let options =
        |more: &[OsString]| [&args!["--tls-certificates", authority.dir()][..], more].concat();
    for more in [&args!["--read-only"][..], &args!["--tls-verify-peer"]] {
        let server = Serving::own(&scratch, &image, &options(more));
        let at = address(&server, &authority);
        assert_eq!(done(&args!["cat", &at, "/file"]).text(), "of the tree");
        let copy = scratch.join("copy");
        run("nbdcopy", &args![format!("{at}&tls-hostname=localhost"), &copy]).must_succeed();
        assert!(std::fs::read(&copy).unwrap() == std::fs::read(&image).unwrap());
        let plain = format!("nbd+unix:///?socket={}", server.socket.display());
        refused(&args!["ls", &plain], 1, "use nbds:// in the address");
        server.end();
    }
    let socket = scratch.join("new");
    let serve = args!["serve-nbd", &image, "--socket", &socket];
    let missing = args!["--tls-certificates", scratch.join("none")];
    refused(&[&serve[..], &missing].concat(), 1, "server-cert.pem: No such file");
    assert_eq!(extant(&[&serve[..], &args!["--tls-verify-peer"]].concat()).code, 2);
    assert!(!socket.exists());
}
