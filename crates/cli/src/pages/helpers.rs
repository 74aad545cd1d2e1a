//! The manual page of the helpers of mount(8) and umount(8).

use super::{DATE, MANUAL, PROGRAM, Page, entry, options, see_also};
use clap_mangen::roff::{Roff, bold, italic, roman};
use std::path::PathBuf;

/// The name of the page.
const NAME: &str = "mount.fuse.extant";

/// Other names of helpers; their pages refer to that one.
const OTHERS: [&str; 4] =
    ["mount.extant", "mount.fuseblk.extant", "umount.fuse.extant", "umount.fuse"];

/// Returns the page, and a reference for each other name.
pub fn pages(version: &str) -> Vec<Page> {
    let mut pages =
        vec![Page { path: path(NAME), content: helper(version).to_roff().into_bytes() }];
    let reference = format!(".so man8/{NAME}.8\n");
    pages.extend(
        OTHERS.map(|name| Page { path: path(name), content: reference.clone().into_bytes() }),
    );
    let mkfs = format!(".so man1/{PROGRAM}-mkfs.1\n");
    pages.push(Page { path: path("mkfs.extant"), content: mkfs.into_bytes() });
    pages
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("man/man8").join(format!("{name}.8"))
}

fn helper(version: &str) -> Roff {
    let mut roff = Roff::new();
    let source = format!("{PROGRAM} {version}");
    roff.control("TH", [NAME, "8", DATE, &source, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!(
        "{NAME}, mount.extant, umount.fuse.extant, umount.fuse - mount helpers of Extant"
    ))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold("mount -t fuse.extant"),
        roman(" [-o "),
        italic("options"),
        roman("] "),
        italic("image directory"),
    ]);
    roff.control("br", []);
    roff.text([bold("umount"), roman(" "), italic("directory")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "mount(8) runs the helper of the type fuse.extant to mount an ext4 file system through \
         FUSE. The image is a regular file or a block device, with @OFFSET or @pN for a part of \
         it. The helper is silent on success.",
    )]);
    roff.control("PP", []);
    roff.text([roman(
        "A file system that was not unmounted is recovered first, on its disk, also with ro, as \
         the kernel does; noload prevents that. An image that is in use by a server that is about \
         to end is waited for.",
    )]);
    roff.control("PP", []);
    roff.text([roman(
        "umount(8) runs umount.fuse.extant for a mount in its table, and umount.fuse for a \
         directory. Both return when the server has written everything. Mounts of other FUSE \
         servers are unmounted without a wait.",
    )]);
    roff.control("SH", ["OPTIONS"]);
    options::describe(&mut roff);
    roff.control("SH", ["EXIT STATUS"]);
    entry(&mut roff, "0", "Mounted, or unmounted.");
    entry(&mut roff, "1", "Wrong usage.");
    entry(
        &mut roff,
        "32",
        "The file system could not be mounted or unmounted, or an option is unknown.",
    );
    roff.control("SH", ["EXAMPLES"]);
    roff.text([roman("A line of fstab(5):")]);
    roff.control("PP", []);
    roff.control("EX", []);
    roff.text([roman("/srv/disk.img  /mnt/disk  fuse.extant  rw,noatime,nofail  0  0")]);
    roff.control("EE", []);
    see_also(&mut roff, &[("extant-mount", "1"), ("mount", "8"), ("umount", "8"), ("fstab", "5")]);
    roff
}
