//! The recipes of docs/guide.md: the commands of each run on real images.
//!
//! A recipe is a section of the page with blocks of shell commands. Its test prepares the files
//! that the text names, runs all blocks as one script in their directory, and checks the result.
//! The recipe with blocks of `bash` needs a cluster of Ceph: `scripts/ceph.sh` runs it.
//! Images that remain there are judged at the end ([`Scratch`]).

use crate::args;
use crate::program::{EXTANT, done, is_mount};
use crate::recovery::crashed;
use crate::unprivileged::{Fuse, as_user, belongs_to_user, home};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{Printed, run};
use extant_testkit::tree::Manifest;
use extant_testkit::{FeatureSet, Image, Scratch, debugfs, dumpe2fs};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The page.
const GUIDE: &str = include_str!("../../../../docs/guide.md");

/// The commands of each recipe by its title.
fn recipes() -> BTreeMap<&'static str, String> {
    let mut recipes: BTreeMap<&str, String> = BTreeMap::new();
    let (mut title, mut is_shell) = ("", false);
    for line in GUIDE.lines() {
        match line.strip_prefix("## ") {
            _ if line.starts_with("```") => is_shell = line == "```sh",
            Some(heading) if !is_shell => title = heading,
            _ if is_shell => {
                let script = recipes.entry(title).or_default();
                script.push_str(line);
                script.push('\n');
            }
            _ => {}
        }
    }
    recipes
}

/// A directory with a recipe's script and files.
struct Recipe {
    home: Scratch,
}

impl Recipe {
    /// The recipe of this title in a directory that the user of [`as_user`] owns.
    fn of(title: &str) -> Recipe {
        let home = home();
        let script = recipes().remove(title).unwrap_or_else(|| panic!("no recipe `{title}`"));
        fs::write(home.join("recipe.sh"), script).expect("the script is written");
        fs::create_dir(home.join("work")).expect("an empty directory");
        Recipe { home }
    }

    /// The path of a file of the recipe.
    fn file(&self, name: &str) -> PathBuf {
        self.home.join("work").join(name)
    }

    /// Copies the image there, as a file of the user's.
    fn has(&self, name: &str, image: &Image) {
        fs::copy(image.path(), self.file(name)).expect("a copy of the image");
        image.leave_unjudged("its copy is changed");
    }

    /// Makes an image of the tree `rootfs`.
    fn has_disk(&self) {
        tree(&self.file("rootfs"));
        done(&args!["mkfs", "-q", self.file("disk.img"), "256M"]);
        done(&args!["put", self.file("disk.img"), self.file("rootfs"), "/"]);
    }

    /// Runs the commands as root.
    fn run(&self) -> Printed {
        let dir = self.home.path().display();
        let script =
            format!("cd {dir}/work; PATH={dir}:$PATH:/usr/sbin:/sbin; exec sh -eux ../recipe.sh");
        run("sh", &["-euc", &script]).must_succeed()
    }

    /// Runs the commands as a user without privileges, to whom all files belong.
    fn run_as_user(&self, fuse: Fuse) -> Printed {
        let all = format!("find {} -exec chown -h 65534:65534 {{}} +", self.home.path().display());
        run("sh", &["-c", &all]).must_succeed();
        belongs_to_user(&self.file(""));
        let script = "PATH=$PATH:/usr/sbin:/sbin; cd work; exec sh -eux ../recipe.sh";
        as_user(&self.home, fuse, script).must_succeed()
    }

    /// The tree of an image as the kernel shows it, without the directory that mkfs makes.
    fn kernel_tree(&self, name: &str) -> Manifest {
        let mount = Mount::new(&self.file(name), "ro");
        let tree = Manifest::walk(mount.path()).without("lost+found").without_root();
        mount.unmount();
        tree
    }
}

/// A small tree with files of each kind.
fn tree(root: &Path) {
    let script = "mkdir -p etc/conf.d srv
        echo host >etc/hostname; echo a=1 >etc/app.conf
        ln -s ../app.conf etc/conf.d/a.conf; ln etc/hostname etc/same
        mkfifo srv/fifo; mknod srv/null c 1 3; truncate -s 1M srv/hole; printf x >>srv/hole
        setfattr -n user.origin -v made etc/app.conf; setfacl -m u:7:r etc/app.conf
        chown 7:8 etc/same; chmod 750 srv";
    fs::create_dir_all(root).expect("a directory");
    run("sh", &["-euc", &format!("cd {}; {script}", root.display())]).must_succeed();
}

#[test]
fn build_an_image_as_mke2fs() {
    let recipe = Recipe::of("Build an image as mke2fs");
    tree(&recipe.file("rootfs"));
    recipe.run();
    let header = dumpe2fs::header(&recipe.file("old.img"));
    assert_eq!(header.value("Filesystem revision #"), "0 (original)");
}

#[test]
fn each_recipe_has_a_test() {
    let tests = include_str!("guide.rs");
    let recipes = recipes();
    assert!(recipes.len() >= 9, "{recipes:?}");
    for title in recipes.keys() {
        assert!(tests.contains(&format!("Recipe::of(\"{title}\")")), "no test of `{title}`");
    }
}

#[test]
fn an_image_is_made_from_a_directory() {
    let recipe = Recipe::of("Make an image from a directory");
    tree(&recipe.file("rootfs"));
    recipe.run();
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    source.assert_same(&recipe.kernel_tree("disk.img"));
    let small = Mount::new(&recipe.file("small.img"), "ro");
    assert_eq!(fs::read(small.join("etc/hostname")).expect("a file"), b"builder\n");
    let same = fs::metadata(small.join("etc/same")).expect("a file");
    assert_eq!((same.uid(), same.gid()), (0, 0));
    small.unmount();
}

#[test]
fn an_image_of_the_exact_size_is_built() {
    let recipe = Recipe::of("Build an image of the exact size");
    tree(&recipe.file("rootfs"));
    fs::write(recipe.file("rootfs/left.tmp"), "out").expect("a file");
    recipe.run_as_user(Fuse::Root);
    let disk = Mount::new(&recipe.file("disk.img"), "");
    fs::write(disk.join("large"), vec![1; 20 << 20]).expect("the free space");
    let same = fs::metadata(disk.join("etc/same")).expect("a file");
    assert_eq!((same.uid(), disk.join("left.tmp").exists()), (0, false));
    disk.unmount();
    let both = recipe.kernel_tree("both.img");
    for path in ["app.conf", "etc/app.conf", "left.tmp"] {
        assert!(both.nodes.contains_key(path.as_bytes()), "{path}");
    }
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    let streamed = recipe.kernel_tree("streamed.img");
    assert!(streamed.nodes.keys().eq(source.nodes.keys()), "{streamed:?}");
    let feigned = recipe.kernel_tree("feigned.img");
    assert_eq!(feigned.nodes[&b"etc"[..]].uid, 7);
}

#[test]
fn the_files_of_an_image_are_listed() {
    let recipe = Recipe::of("List the files of an image");
    tree(&recipe.file("rootfs"));
    recipe.run_as_user(Fuse::Root);
    let listed = recipe.kernel_tree("listed.img");
    assert!(listed.nodes.values().all(|node| (node.uid, node.gid) == (0, 0)));
    assert!(listed.nodes.contains_key(&b"dev/null"[..]) && listed.nodes.len() == 6, "{listed:?}");
}

#[test]
fn an_image_is_sealed() {
    let recipe = Recipe::of("Seal an image");
    recipe.has_disk();
    recipe.run();
}

#[test]
fn a_disk_is_made_from_a_container_image() {
    let recipe = Recipe::of("Make a disk from a container image");
    recipe.has_disk();
    let (disk, layout) = (recipe.file("disk.img"), recipe.file("layout"));
    done(&args!["export", &disk, "--oci", &layout]);
    fs::remove_file(&disk).expect("the disk is made anew");
    recipe.run_as_user(Fuse::Root);
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    let owned = |mut tree: Manifest| {
        // The test gives all files to the user after the layout was made.
        tree.nodes.values_mut().for_each(|node| (node.uid, node.gid) = (0, 0));
        tree
    };
    owned(source).assert_same(&owned(recipe.kernel_tree("disk.img")));
}

#[test]
fn readers_look_inside() {
    let recipe = Recipe::of("Look inside");
    recipe.has_disk();
    let before = fs::read(recipe.file("disk.img")).expect("the image");
    let printed = recipe.run_as_user(Fuse::Root);
    for text in ["app.conf", "host\n", "/etc/conf.d/a.conf", "UUID"] {
        assert!(printed.text().contains(text), "`{text}`: {printed}");
    }
    for document in ["stat.json", "info.json"] {
        let text = fs::read(recipe.file(document)).expect("a document");
        serde_json::from_slice::<serde_json::Value>(&text).expect("JSON");
    }
    assert!(before == fs::read(recipe.file("disk.img")).expect("the image"), "reading wrote");
}

#[test]
fn a_torn_disk_is_recovered() {
    let recipe = Recipe::of("Recover a torn disk");
    recipe.has("torn.img", &crashed(FeatureSet::named("orphan_file")));
    let printed = recipe.run_as_user(Fuse::Root);
    assert!(printed.errors().contains("replayed"), "{printed}");
    assert!(printed.errors().contains("freed 1 "), "{printed}");
}

#[test]
fn a_disk_is_checked() {
    let recipe = Recipe::of("Check a disk");
    recipe.has("disk.img", &crashed(FeatureSet::named("orphan_file")));
    let damaged = FeatureSet::named("default").make_sized(12 << 20);
    debugfs::write(damaged.path(), "set_inode_field <2> links_count 9");
    damaged.leave_unjudged("it is damaged");
    recipe.has("damaged.img", &damaged);
    recipe.home.leave_unjudged("work/damaged.img", "it is damaged");
    let printed = recipe.run();
    assert!(printed.text().contains("journal-replayed"), "{printed}");
    assert!(printed.text().contains("link-count, inode 2"), "{printed}");
    assert!(printed.text().contains("damaged.img has damage"), "{printed}");
    let json = fs::read_to_string(recipe.file("findings.json")).expect("a document");
    assert!(json.contains("\"link-count\""), "{json}");
}

/// Wrong counts, and a directory that lost an inode.
#[test]
fn a_broken_disk_is_repaired() {
    let recipe = Recipe::of("Repair a broken disk");
    let broken = FeatureSet::named("default").make_sized(12 << 20);
    debugfs::write(broken.path(), "mkdir kept");
    debugfs::write(broken.path(), "mkdir gone");
    debugfs::write(broken.path(), "clri gone");
    recipe.has("broken.img", &broken);
    let printed = recipe.run();
    assert!(printed.errors().contains("nothing was changed"), "{printed}");
    assert!(
        printed.text().contains("kept") && printed.text().contains("remove-entry"),
        "{printed}"
    );
    assert!(recipe.file("broken.undo").exists());
}

#[test]
fn free_space_goes_back_to_the_host() {
    let recipe = Recipe::of("Give free space back to the host");
    recipe.has_disk();
    let disk = recipe.file("disk.img");
    fs::write(recipe.file("large"), vec![1; 30 << 20]).expect("a file");
    done(&args!["put", &disk, recipe.file("large"), "/large"]);
    done(&args!["rm", &disk, "/large"]);
    let before = fs::metadata(&disk).expect("the disk").blocks();
    let printed = recipe.run_as_user(Fuse::Root);
    assert!(printed.errors().contains("would have freed"), "{printed}");
    let after = fs::metadata(&disk).expect("the disk").blocks();
    assert!(before - after > (30 << 20) / 512, "{before} {after}: {printed}");
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    let found = recipe.kernel_tree("disk.img");
    assert_eq!(source.nodes.len(), found.nodes.len());
}

#[test]
fn an_image_is_made_larger() {
    let recipe = Recipe::of("Make an image larger");
    recipe.has_disk();
    let len = || fs::metadata(recipe.file("disk.img")).expect("the disk").len();
    let (before, tree) = (len(), recipe.kernel_tree("disk.img"));
    recipe.run_as_user(Fuse::Root);
    assert_eq!(len(), before + (512 << 20));
    tree.assert_same(&recipe.kernel_tree("disk.img"));
}

#[test]
fn a_mount_is_made_larger() {
    let recipe = Recipe::of("Make a mount larger");
    recipe.has_disk();
    fs::create_dir(recipe.file("mnt")).expect("a directory");
    let len = || fs::metadata(recipe.file("disk.img")).expect("the disk").len();
    let (before, tree) = (len(), recipe.kernel_tree("disk.img"));
    recipe.run_as_user(Fuse::Everybody);
    assert_eq!(len(), before + (512 << 20));
    tree.assert_same(&recipe.kernel_tree("disk.img"));
}

#[test]
fn an_image_shrinks_in_its_place() {
    let recipe = Recipe::of("Shrink an image in its place");
    recipe.has_disk();
    let tree = recipe.kernel_tree("disk.img");
    recipe.run_as_user(Fuse::Root);
    let len = fs::metadata(recipe.file("disk.img")).expect("the disk").len();
    assert!(len < 100 << 20, "{len}");
    tree.assert_same(&recipe.kernel_tree("disk.img"));
}

#[test]
fn many_disks_are_checked() {
    let recipe = Recipe::of("Work on many disks");
    fs::create_dir(recipe.file("disks")).expect("a directory");
    for (name, damaged) in [("good", false), ("a bad one", true)] {
        let image = FeatureSet::named("default").make_sized(16 << 20);
        if damaged {
            debugfs::write(image.path(), "set_inode_field <2> links_count 9");
        }
        recipe.has(&format!("disks/{name}.img"), &image);
    }
    let printed = recipe.run();
    assert!(printed.errors().contains("2 jobs: 1 done, 1 failed"), "{printed}");
    let text = printed.text();
    assert!(text.starts_with("some have damage\n{\"command\":\"check 'disks/a bad one"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    fs::remove_file(recipe.file("disks/a bad one.img")).expect("the disk");
}

#[test]
fn features_of_an_old_image_are_switched() {
    let recipe = Recipe::of("Switch features of an old image");
    tree(&recipe.file("rootfs"));
    let image = Image::mke2fs_from(64 << 20, &["-t", "ext3"], &recipe.file("rootfs"));
    recipe.has("disk.img", &image);
    let before = recipe.kernel_tree("disk.img");
    let printed = recipe.run();
    assert!(printed.text().contains("metadata_csum"), "{printed}");
    recipe.kernel_tree("disk.img").assert_same(&before);
    let dump = dumpe2fs::header(&recipe.file("disk.img"));
    assert_eq!(dump.value("Total journal size"), "8M");
    assert!(dump.features().contains("orphan_file") && dump.features().contains("extent"));
}

#[test]
fn an_image_is_cloned() {
    let recipe = Recipe::of("Clone an image");
    recipe.has_disk();
    recipe.run_as_user(Fuse::Root);
    let source = recipe.kernel_tree("disk.img");
    source.assert_same(&recipe.kernel_tree("second.img"));
    source.assert_same(&recipe.kernel_tree("first.img"));
}

#[test]
fn a_base_image_is_forked() {
    let recipe = Recipe::of("Fork a base image");
    recipe.has_disk();
    recipe.run();
    let mount = Mount::new(&recipe.file("disk.img"), "ro");
    assert_eq!(fs::read(mount.join("etc/hostname")).expect("a file"), b"first\n");
    assert_eq!(fs::read(mount.join("srv/new")).expect("a file"), b"new\n");
    mount.unmount();
    run("qemu-img", &args!["check", recipe.file("built.qcow2")]).must_succeed();
}

#[test]
fn a_fork_is_served_to_a_machine() {
    let recipe = Recipe::of("Boot a virtual machine from a fork");
    recipe.has_disk();
    let printed = recipe.run();
    assert!(printed.errors().contains("vm.sock"), "{printed}");
    assert!(recipe.file("vm.qcow2").exists() && !recipe.file("vm.sock").exists());
}

#[test]
fn a_disk_is_used_over_the_network() {
    let recipe = Recipe::of("Use a disk over the network");
    recipe.has_disk();
    recipe.run();
    let found = done(&args!["cat", recipe.file("disk.img"), "/srv/new"]).text();
    assert_eq!(found, "new\n");
    assert!(!recipe.file("disk.sock").exists());
}

#[test]
fn images_are_kept_in_an_object_store() {
    let recipe = Recipe::of("Keep images in an object store");
    recipe.has_disk();
    let printed = recipe.run();
    assert!(printed.text().contains("host\n") && printed.text().ends_with("other\n"), "{printed}");
    recipe.kernel_tree("copy.img").assert_same(&recipe.kernel_tree("disk.img"));
}

#[test]
fn files_of_a_dirty_image_are_changed() {
    let recipe = Recipe::of("Change files on a dirty image");
    recipe.has("torn.img", &crashed(FeatureSet::named("default")));
    fs::write(recipe.file("app.conf"), "a=2\n").expect("a file");
    let printed = recipe.run_as_user(Fuse::Root);
    assert!(printed.errors().contains("replayed"), "{printed}");
    let mount = Mount::new(&recipe.file("torn.img"), "ro");
    let conf = fs::metadata(mount.join("app.conf")).expect("a file");
    assert_eq!((conf.uid(), conf.mode() & 0o7777), (0, 0o600));
    assert_eq!(fs::read(mount.join("srv/data/first")).expect("a file"), vec![1; 5000]);
    assert!(!mount.join("f2").exists() && mount.join("f4").exists());
    mount.unmount();
}

#[test]
fn many_files_are_changed_at_once() {
    let recipe = Recipe::of("Change many files at once, or none");
    recipe.has_disk();
    fs::create_dir(recipe.file("release")).expect("a directory");
    fs::write(recipe.file("release/bin"), "2").expect("a file");
    let image = recipe.file("disk.img");
    done(&args!["mkdir", "-p", &image, "/srv/app", "/srv/cache/old"]);
    let printed = recipe.run_as_user(Fuse::Root);
    assert!(printed.errors().contains("edits:8: chmod 600 /srv/missing: "), "{printed}");
    let mount = Mount::new(&image, "ro");
    assert_eq!(fs::read(mount.join("srv/app/bin")).expect("a file"), b"2");
    assert!(mount.join("srv/app 1").is_dir());
    let cache = fs::metadata(mount.join("srv/cache")).expect("a directory");
    assert_eq!((cache.uid(), cache.mode() & 0o7777), (1000, 0o700));
    assert_eq!(fs::read_dir(mount.join("srv/cache")).expect("a directory").count(), 0);
    mount.unmount();
}

#[test]
fn a_user_mounts_without_root() {
    let recipe = Recipe::of("Mount without root");
    recipe.run_as_user(Fuse::Everybody);
    let mount = Mount::new(&recipe.file("disk.img"), "ro");
    assert_eq!(fs::read(mount.join("file")).expect("a file"), b"text\n");
    mount.unmount();
}

#[test]
fn a_mount_outlives_its_server() {
    let recipe = Recipe::of("Keep a mount when its server is killed");
    let printed = recipe.run_as_user(Fuse::Everybody);
    assert!(printed.text().ends_with("text\n"), "{printed}");
    assert_eq!(done(&args!["cat", recipe.file("disk.img"), "/file"]).text(), "text\n");
}

#[test]
fn a_mount_outlives_its_program() {
    let recipe = Recipe::of("Upgrade the program under a mount");
    let printed = recipe.run_as_user(Fuse::Everybody);
    assert!(printed.text().ends_with("before\nafter\n"), "{printed}");
}

#[test]
fn a_service_mounts() {
    let recipe = Recipe::of("Mount by a service without privileges");
    recipe.run();
    let text = done(&args!["cat", "--wait", recipe.file("disk.img"), "/lost+found/file"]).text();
    assert_eq!(text, "text\n");
}

/// The commands run in a namespace of mounts whose system directories take changes that end with
/// it; the program is installed there.
#[test]
fn a_disk_is_mounted_at_boot() {
    let recipe = Recipe::of("Mount at boot");
    recipe.has_disk();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let script = format!(
        "set -eux; mount --make-rprivate /; mkdir {home}/layers
        for dir in /etc /usr/local $(realpath /sbin); do
            layer={home}/layers/$(basename $dir); mkdir -p $layer/upper $layer/work
            mount -t overlay overlay -o lowerdir=$dir,upperdir=$layer/upper,workdir=$layer/work $dir
        done
        mount -t tmpfs none /run; mount -t tmpfs none /mnt; mount --bind {home}/work /srv
        {source}/scripts/install.sh install {EXTANT}
        SYSTEMD_OFFLINE=1 sh -eux {home}/recipe.sh
        cat /etc/systemd/system/multi-user.target.wants/extant@disk.service",
        home = recipe.home.path().display()
    );
    let printed = run("unshare", &["--mount", "sh", "-c", &script]).must_succeed();
    assert!(printed.text().contains("fuse.extant"), "{printed}");
    assert!(printed.text().contains("ExecStart=/usr/local/bin/extant mount"), "{printed}");
    assert!(!is_mount(&recipe.file("")) && !Path::new("/mnt/disk").exists());
}

#[test]
fn equal_trees_have_equal_digests() {
    let recipe = Recipe::of("Compare trees by a digest");
    recipe.has_disk();
    let printed = recipe.run();
    assert!(printed.text().starts_with("sha256:"), "{printed}");
}

#[test]
fn an_image_is_made_smaller() {
    let recipe = Recipe::of("Make an image smaller, with other blocks");
    recipe.has_disk();
    recipe.run_as_user(Fuse::Root);
    recipe.kernel_tree("disk.img").assert_same(&recipe.kernel_tree("small.img"));
    let [small, disk] = ["small.img", "disk.img"].map(|name| fs::metadata(recipe.file(name)));
    assert!(small.expect("an image").len() < disk.expect("an image").len() / 8);
}

#[test]
fn two_disks_are_compared() {
    let recipe = Recipe::of("Compare two disks");
    recipe.has_disk();
    let printed = recipe.run_as_user(Fuse::Root);
    for line in ["changed /etc/app.conf: ", "removed /srv/null\n", "changed /srv: mtime "] {
        assert!(printed.text().contains(line), "`{line}`: {printed}");
    }
    let text = fs::read(recipe.file("diff.json")).expect("a document");
    let changes: Vec<serde_json::Value> = serde_json::from_slice(&text).expect("JSON");
    let paths: Vec<_> = changes.iter().filter_map(|change| change["path"].as_str()).collect();
    assert_eq!(paths, ["/etc/app.conf", "/srv/null"]);
}

#[test]
fn the_difference_of_two_disks_is_a_layer() {
    let recipe = Recipe::of("Ship the difference of two disks");
    recipe.has_disk();
    let printed = recipe.run_as_user(Fuse::Root);
    assert!(printed.text().contains("diff_id sha256:"), "{printed}");
    recipe.kernel_tree("disk.img").assert_same(&recipe.kernel_tree("new.img"));
}

#[test]
fn a_container_image_is_made() {
    let recipe = Recipe::of("Make a container image from a disk");
    recipe.has_disk();
    let printed = recipe.run();
    assert!(printed.text().contains("diff_id sha256:"), "{printed}");
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    let found = Manifest::walk(&recipe.file("bundle/rootfs")).without_root();
    source.without_times().assert_same(&found.without_times());
}

#[test]
fn files_are_copied_out_with_attributes() {
    let recipe = Recipe::of("Copy out with attributes");
    recipe.has_disk();
    let printed = recipe.run();
    let source = Manifest::walk(&recipe.file("rootfs/etc")).without_root();
    source.assert_same(&Manifest::walk(&recipe.file("saved")).without_root());
    assert_eq!(fs::read(recipe.file("hostname")).expect("a file"), b"host\n");
    assert!(printed.text().contains('5'), "{printed}");
}

#[test]
fn archives_go_out_and_in() {
    let recipe = Recipe::of("Tar in and out");
    recipe.has_disk();
    recipe.run();
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    source.assert_same(&recipe.kernel_tree("copy.img"));
    run("gzip", &["-t".as_ref(), recipe.file("etc.tar.gz").as_os_str()]).must_succeed();
}

#[test]
fn a_damaged_image_is_read() {
    let recipe = Recipe::of("Read a damaged image");
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    tree(&recipe.file("rootfs"));
    fs::write(recipe.file("rootfs/etc/up-up-name"), "").expect("a file");
    done(&args!["put", image.path(), recipe.file("rootfs"), "/"]);
    image.replace(b"up-up-name", b"../../name");
    recipe.has("damaged.img", &image);
    recipe.home.leave_unjudged("work/damaged.img", "a name in it is damaged");
    let lost = Image::mke2fs(40 << 20, &["-t", "ext4", "-b", "1024"]);
    done(&args!["put", lost.path(), recipe.file("rootfs"), "/"]);
    lost.leave_unjudged("its start is lost");
    let start = fs::File::options().write(true).open(lost.path()).expect("an image");
    start.write_all_at(&[0; 4096], 0).expect("its start");
    recipe.has("lost.img", &lost);
    let printed = recipe.run();
    assert_eq!(fs::read(recipe.file("rescued/etc/hostname")).expect("a file"), b"host\n");
    assert!(printed.text().contains("superblock-replaced"), "{printed}");
    for text in ["the list is incomplete", "some files are missing"] {
        assert!(printed.text().contains(text), "`{text}`: {printed}");
    }
    assert_eq!(fs::read(recipe.file("saved/etc/hostname")).expect("a file"), b"host\n");
    assert!(image.bytes() == fs::read(recipe.file("damaged.img")).expect("it"), "reading wrote");
}

#[test]
fn metadata_is_sent() {
    let recipe = Recipe::of("Send the metadata of a broken disk");
    let image = Image::mke2fs(32 << 20, &["-t", "ext4"]);
    tree(&recipe.file("rootfs"));
    fs::write(recipe.file("rootfs/a-secret-name"), "confidential").expect("a file");
    done(&args!["put", image.path(), recipe.file("rootfs"), "/"]);
    debugfs::write(image.path(), "set_inode_field /etc/hostname links_count 9");
    recipe.has("broken.img", &image);
    for name in ["broken.img", "metadata.img"] {
        recipe.home.leave_unjudged(format!("work/{name}"), "it is damaged");
    }
    recipe.run();
    let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    let (all, sent) = (image.bytes(), fs::read(recipe.file("metadata.img")).expect("an image"));
    for text in [&b"a-secret-name"[..], b"confidential"] {
        assert!(has(&all, text) && !has(&sent, text));
    }
    assert!(fs::read_to_string(recipe.file("there")).expect("findings").contains("link"));
}

#[test]
fn a_partition_holds_a_file_system() {
    /// The first and only partition begins after 2048 sectors and has 126,976.
    const PARTITION: [u8; 16] = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0xf0, 1, 0];
    let recipe = Recipe::of("Use a partition");
    tree(&recipe.file("rootfs"));
    let disk = fs::File::create(recipe.file("disk.img")).expect("a disk");
    disk.set_len(64 << 20).expect("its length");
    disk.write_all_at(&PARTITION, 446).expect("its partition");
    disk.write_all_at(&[0x55, 0xaa], 510).expect("its mark");
    let printed = recipe.run();
    assert!(printed.text().contains("hostname"), "{printed}");
    let bytes = fs::read(recipe.file("disk.img")).expect("the disk");
    assert!(bytes[446..462] == PARTITION && bytes[512..1 << 20].iter().all(|byte| *byte == 0));
    fs::write(recipe.file("part.img"), &bytes[1 << 20..(1 << 20) + 126_976 * 512]).expect("a part");
    let source = Manifest::walk(&recipe.file("rootfs")).without_root();
    source.assert_same(&recipe.kernel_tree("part.img"));
}

#[test]
fn a_deleted_file_is_looked_at() {
    let recipe = Recipe::of("Look at a deleted file");
    let image = FeatureSet::named("default").make_sized(64 << 20);
    let mount = Mount::new(image.path(), "rw");
    fs::create_dir(mount.join("letters")).expect("a directory");
    fs::write(mount.join("kept"), "kept").expect("a file");
    fs::write(mount.join("letters/draft"), "dear reader").expect("a file");
    run("sync", &["-f".as_ref(), mount.path().as_os_str()]).must_succeed();
    fs::remove_file(mount.join("letters/draft")).expect("a removal");
    mount.unmount();
    recipe.has("used.img", &image);
    let printed = recipe.run().text();
    assert!(printed.contains("path=/letters/draft"), "{printed}");
    let files = fs::read_dir(recipe.file("rescued")).expect("a directory").flatten();
    let contents: Vec<Vec<u8>> = files.map(|file| fs::read(file.path()).expect("a file")).collect();
    assert!(contents.contains(&b"dear reader".to_vec()), "{contents:?}");
}
