//! Manifests as sources, beside the programs that write and read them: bsdtar and umoci.

use crate::args;
use crate::program::{EXTANT, done, refused};
use extant_testkit::Scratch;
use extant_testkit::e2fsck;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{Printed, run};
use extant_testkit::tree::Manifest;
use std::fs;
use std::path::Path;

/// Runs a script in a directory.
fn script(directory: &Path, script: &str) -> Printed {
    let script = format!("cd {}; PATH=$PATH:/usr/sbin; {script}", directory.display());
    run("bash", &["-euc".to_owned(), script])
}

fn kernel_tree(image: &Path) -> Manifest {
    e2fsck::check(image).assert_clean();
    let mount = Mount::new(image, "ro");
    let tree = Manifest::walk(mount.path()).without("lost+found");
    mount.unmount();
    tree
}

#[test]
fn manifests_of_bsdtar_make_the_same_tree() {
    let scratch = Scratch::new();
    script(
        scratch.path(),
        "mkdir -p top/a/b; cd top; echo 1 > a/one; ln a/one a/b/two; ln -s one a/link
        mkfifo a/fifo; mknod a/null c 1 3; mknod a/disk b 8 1; chown 7:8 a/one; chmod 4711 a/one
        echo x > 'a/with blanks # and \\'; echo y > $'a/new\\nline'; truncate -s 90K a/hole
        printf x >> a/hole; touch -d 1969-12-31T23:59:57.5Z a/fifo
        touch -d @5.000000007 a/b; : > a/none
        bsdtar -cf ../list --format=mtree --options=mtree:all .",
    )
    .must_succeed();
    let call = format!("cd top; {EXTANT} build ../image ../list");
    script(scratch.path(), &call).must_succeed();
    let (expected, found) =
        (Manifest::walk(&scratch.join("top")), kernel_tree(&scratch.join("image")));
    expected.assert_same(&found);
}

/// bsdtar makes an archive of a manifest, whose tree must have the same digest.
#[test]
fn manifests_mean_the_same_to_bsdtar() {
    let scratch = Scratch::new();
    script(
        scratch.path(),
        "echo content > content; : > empty
        cat > list <<'END'
#mtree
/set type=file uid=3 gid=4 mode=0644 time=1000000000.5
. type=dir mode=0755
    etc type=dir mode=0750
        motd contents=content
        none contents=empty size=0
        a\\040b type=link link=../c\\134d mode=0777
    ..
    dev type=dir mode=0755
        null type=char device=native,1,3 mode=0666
        pipe type=fifo
    ..
./full/path type=dir mode=0700 uid=0
./full/path/file mode=0600 contents=content
END
        bsdtar -cf list.tar @list",
    )
    .must_succeed();
    script(scratch.path(), &format!("{EXTANT} build one mtree:list; {EXTANT} build two list.tar"))
        .must_succeed();
    // Missing directories have other times.
    let hash = |name: &str| done(&args!["hash", scratch.join(name), "--ignore", "times"]).text();
    assert_eq!(
        hash("one"),
        hash("two"),
        "{}",
        done(&args!["diff", scratch.join("one"), scratch.join("two")]).text()
    );
    kernel_tree(&scratch.join("one"));
    // Standard input, laid over a directory.
    script(scratch.path(), &format!("mkdir d; : > d/f; {EXTANT} build three d mtree:- < list"))
        .must_succeed();
    let tree = kernel_tree(&scratch.join("three"));
    assert!(tree.nodes.contains_key(&b"f"[..]) && tree.nodes.contains_key(&b"etc/motd"[..]));
    fs::write(scratch.join("bad"), "#mtree\n./x type=dir\n./y owner=me\n").unwrap();
    refused(&args!["build", scratch.join("four"), scratch.join("bad")], 1, "bad: line 3: ");
    assert!(!scratch.join("four").exists());
}

/// umoci lists a bundle, with extended attributes.
#[test]
fn manifests_of_umoci_make_the_same_tree() {
    let scratch = Scratch::new();
    script(
        scratch.path(),
        "mkdir -p top/usr/bin; echo tool > top/usr/bin/tool; chmod 4755 top/usr/bin/tool
        ln -s usr/bin top/bin; chown 5:6 top/usr
        setfattr -n user.origin -v 0x00ff top/usr; setfattr -n security.capability \\
            -v 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA= top/usr/bin/tool
        umoci init --layout oci; umoci new --image oci:x; umoci insert --image oci:x top /
        umoci unpack --image oci:x bundle; cp bundle/*.mtree list; cat list",
    )
    .must_succeed();
    let call = format!("cd bundle/rootfs; {EXTANT} build ../../image mtree:../../list");
    script(scratch.path(), &call).must_succeed();
    let mut expected = Manifest::walk(&scratch.join("bundle/rootfs"));
    let mut found = kernel_tree(&scratch.join("image"));
    // Its times have whole seconds, as those of archives.
    for tree in [&mut expected, &mut found] {
        tree.nodes.values_mut().for_each(|node| node.mtime = (node.mtime.0, 0));
    }
    expected.assert_same(&found);
}
