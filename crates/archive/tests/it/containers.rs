//! Layouts and archives of images, those of umoci and skopeo among them.

use crate::bundle::{Image, archive, digest, layout, load, pack, paths, plain_image, write};
use crate::hosts::{assert_same, of_host, of_tree, run};
use extant_archive::{Container, Input, Loader, Platform, Selection};
use extant_image::Tree;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use std::fs::File;
use std::io::{Cursor, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

fn platform(text: &str) -> Selection {
    Selection { platform: Platform::parse(text), ..Selection::default() }
}

fn reference(text: &str) -> Selection {
    Selection { image: Some(text.into()), ..Selection::default() }
}

fn one_file(name: &str) -> Vec<u8> {
    archive(&[('f', name, name)])
}

#[test]
fn one_of_several_images_is_chosen() {
    let (one, two) = (plain_image(&[one_file("one")]), plain_image(&[one_file("two")]));
    let tagged = |image: &Image, name: &str| {
        let mut descriptor = image.manifest.clone();
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        descriptor
    };
    let index = vec![tagged(&one, "1.0"), tagged(&one, "first"), tagged(&two, "2.0")];
    let second = two.manifest["digest"].as_str().unwrap().to_string();
    let files = layout(vec![one, two], index);
    for (wanted, found) in [("1.0", "one=one"), ("first", "one=one"), (&second, "two=two")] {
        assert_eq!(paths(&load(&files, &reference(wanted)).unwrap()), [found]);
    }
    for selection in [Selection::default(), reference("3.0")] {
        let error = load(&files, &selection).unwrap_err();
        assert!(error.contains("--image; the layout has: 1.0, 2.0, first, sha256:"), "{error}");
    }
}

/// Indexes that name one index again and again: each blob is read once.
#[test]
fn indexes_are_read_once() {
    let image = plain_image(&[one_file("one")]);
    let kind = "application/vnd.oci.image.index.v1+json";
    let mut named = image.manifest.clone();
    let mut images = vec![image];
    for _ in 0..3 {
        let mut index = Image { files: Vec::new(), manifest: json!({}) };
        let bytes = json!({"schemaVersion": 2, "manifests": vec![named; 300]}).to_string();
        named = index.add(bytes.as_bytes(), kind);
        images.push(index);
    }
    let tree = load(&layout(images, vec![named]), &Selection::default()).unwrap();
    assert_eq!(paths(&tree), ["one=one"]);
}

#[test]
fn one_of_several_platforms_is_chosen() {
    let images: Vec<Image> = ["amd64", "arm64"]
        .iter()
        .map(|name| Image::new(&[(one_file(name), one_file(name))], name))
        .collect();
    let kind = "application/vnd.oci.image.index.v1+json";
    let manifests: Vec<_> = images.iter().map(|image| image.manifest.clone()).collect();
    let mut index = Image { files: Vec::new(), manifest: json!({}) };
    let bytes = json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests}).to_string();
    let top = index.add(bytes.as_bytes(), kind);
    let files = layout(images.into_iter().chain([index]).collect(), vec![top]);
    let found = paths(&load(&files, &platform("linux/arm64/v8")).unwrap());
    assert_eq!(found, ["arm64=arm64"]);
    for selection in [Selection::default(), platform("linux/riscv64")] {
        let error = load(&files, &selection).unwrap_err();
        assert!(error.contains("--platform; the image has: linux/amd64, linux/arm64"), "{error}");
    }
}

#[test]
fn changed_blobs_are_refused() {
    let image = || plain_image(&[one_file("a")]);
    let files = |image: Image| {
        let top = image.manifest.clone();
        layout(vec![image], vec![top])
    };
    let layer = one_file("a");
    let path = format!("blobs/{}", digest(&layer).replace(':', "/"));
    let change = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut files = files(image());
        edit(&mut files.iter_mut().find(|(name, _)| *name == path).unwrap().1);
        load(&files, &Selection::default()).unwrap_err()
    };
    assert!(change(&|bytes| bytes[0] = b'b').contains("the content has the digest"));
    assert!(change(&|bytes| bytes.push(0)).contains("the blob has 2049 bytes, not the 2048"));
    let mut missing = files(image());
    missing.retain(|(name, _)| *name != path);
    let error = load(&missing, &Selection::default()).unwrap_err();
    assert!(error.contains("the archive has no such file"), "{error}");
    // The uncompressed layer is another than the configuration says.
    let image = Image::new(&[(layer, one_file("b"))], "amd64");
    let error = load(&files(image), &Selection::default()).unwrap_err();
    assert!(error.contains("the content has the digest"), "{error}");
}

/// Layers are verified by other threads while they are read, some of them at a time.
#[test]
fn the_first_changed_layer_is_named_whatever_its_content_seems_to_be() {
    let names: Vec<String> = (100..170).map(|number| format!("file{number}")).collect();
    let packed = |layer: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(layer).unwrap();
        gzip.finish().unwrap()
    };
    let plain: Vec<_> = names.iter().map(|name| one_file(name)).collect();
    let layers: Vec<_> = plain.iter().map(|layer| (packed(layer), layer.clone())).collect();
    let image = Image::new(&layers, "amd64");
    let top = image.manifest.clone();
    let mut files = layout(vec![image], vec![top]);
    let found: Vec<_> = names.iter().map(|name| format!("{name}={name}")).collect();
    assert_eq!(paths(&load(&files, &Selection::default()).unwrap()), found);
    let blob = |number: usize| digest(&layers[number].0);
    for number in [68, 66, 3] {
        let path = format!("blobs/{}", blob(number).replace(':', "/"));
        let (_, bytes) = files.iter_mut().find(|(name, _)| *name == path).unwrap();
        // The type of the first block of compressed data.
        bytes[10] ^= 6;
        let error = load(&files, &Selection::default()).unwrap_err();
        let start = format!("layout: {}: the content has the digest", blob(number));
        assert!(error.starts_with(&start), "{error}");
    }
}

/// Layers as `umoci insert` writes them: padding and end mark are missing. Content is not.
#[test]
fn layers_may_lack_padding_and_end_mark_but_no_content() {
    let whole = archive(&[('f', "a", "first"), ('f', "b", "second")]);
    let content = whole.len() - 1024 - 512;
    let packed = |layer: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(layer).unwrap();
        gzip.finish().unwrap()
    };
    for missing in [0, 1, 100, 506, 507, 511] {
        let layer = whole[..content + 512 - missing].to_vec();
        for stored in [layer.clone(), packed(&layer)] {
            let image = Image::new(&[(stored, layer.clone())], "amd64");
            let top = image.manifest.clone();
            let found = load(&layout(vec![image], vec![top]), &Selection::default());
            match found {
                Ok(tree) if missing <= 506 => assert_eq!(paths(&tree), ["a=first", "b=second"]),
                Err(error) if missing > 506 => assert!(error.contains("truncated"), "{error}"),
                other => panic!("{missing}: {:?}", other.map(|tree| paths(&tree))),
            }
        }
    }
}

#[test]
fn hostile_documents_are_refused() {
    let load_with = |name: &str, text: &str| {
        let image = plain_image(&[one_file("a")]);
        let top = image.manifest.clone();
        let mut files = layout(vec![image], vec![top]);
        files.iter_mut().find(|(file, _)| file == name).unwrap().1 = text.as_bytes().to_vec();
        load(&files, &Selection::default()).unwrap_err()
    };
    let manifest = |digest: &str, size: u64| {
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let one = json!({"mediaType": kind, "digest": digest, "size": size});
        json!({"manifests": [one]}).to_string()
    };
    for (text, cause) in [
        (manifest("sha256:../../../etc/passwd", 1), "is not `sha256:` with 64 digits"),
        (manifest("sha512:00", 1), "is not `sha256:` with 64 digits"),
        (manifest(&format!("sha256:{}", "0".repeat(64)), 1), "no such file"),
        ("[".repeat(100_000), "no such document"),
        (format!("{{\"manifests\":[],\"x\":\"{}\"}}", "y".repeat(5 << 20)), "are the most"),
        ("{}".into(), "the layout has: none"),
    ] {
        let error = load_with("index.json", &text);
        assert!(error.contains(cause), "{error}");
    }
    let error = load_with("oci-layout", r#"{"imageLayoutVersion":"2.0"}"#);
    assert!(error.contains("unknown version"), "{error}");
}

fn load_directory(path: &Path) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let from = Container::Directory(path.into());
    let added = loader.add_oci("layout", from, &Selection::default());
    added.map(|()| tree).map_err(|error| error.to_string())
}

#[test]
fn symlinks_in_a_layout_are_not_followed() {
    let image = plain_image(&[one_file("a")]);
    let top = image.manifest.clone();
    let files = layout(vec![image], vec![top]);
    let (directory, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&files, directory.path());
    assert_eq!(paths(&load_directory(directory.path()).unwrap()), ["a=a"]);
    let blob = directory.path().join(&files[1].0);
    std::fs::rename(&blob, other.path().join("blob")).unwrap();
    symlink(other.path().join("blob"), &blob).unwrap();
    assert!(load_directory(directory.path()).unwrap_err().contains("a symlink"));
    std::fs::remove_file(&blob).unwrap();
    run("mkfifo", &[blob.to_str().unwrap()], other.path());
    assert!(load_directory(directory.path()).unwrap_err().contains("no regular file"));
    let blobs = directory.path().join("blobs");
    std::fs::rename(&blobs, other.path().join("blobs")).unwrap();
    symlink(other.path().join("blobs"), &blobs).unwrap();
    assert!(load_directory(directory.path()).is_err());
}

fn load_docker(files: &[(String, Vec<u8>)], selection: &Selection) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let from = Container::Archive(Input::Stream(Box::new(Cursor::new(pack(files)))));
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let added = loader.add_docker("archive", from, selection);
    added.map(|()| tree).map_err(|error| error.to_string())
}

#[test]
fn archives_of_docker_are_read_by_tag() {
    let layer = one_file("a");
    let config = json!({"os": "linux", "architecture": "amd64",
        "rootfs": {"diff_ids": [digest(&layer)]}})
    .to_string()
    .into_bytes();
    let name = format!("{}.json", digest(&config).strip_prefix("sha256:").unwrap());
    let entry =
        |tag: &str, path: &str| json!({"Config": name, "RepoTags": [tag, "b:2"], "Layers": [path]});
    let files = |images: serde_json::Value| {
        vec![
            (name.clone(), config.clone()),
            ("1/layer.tar".to_string(), layer.clone()),
            ("manifest.json".to_string(), images.to_string().into_bytes()),
        ]
    };
    let good = files(json!([entry("a:latest", "1/layer.tar"), entry("c:3", "1/layer.tar")]));
    for wanted in ["a", "a:latest", "c:3"] {
        assert_eq!(paths(&load_docker(&good, &reference(wanted)).unwrap()), ["a=a"], "{wanted}");
    }
    let error = load_docker(&good, &Selection::default()).unwrap_err();
    assert!(error.contains("the archive has: ") && error.contains("a:latest, b:2, c:3"), "{error}");
    let wrong = load_docker(&files(json!([entry("a", "1/layer.tar")])), &platform("linux/arm64"));
    assert!(wrong.unwrap_err().contains("for linux/amd64, not for linux/arm64"));
    for (path, cause) in [("../layer.tar", "leads out"), ("2/layer.tar", "no such file")] {
        let error = load_docker(&files(json!([entry("a", path)])), &Selection::default());
        assert!(error.unwrap_err().contains(cause));
    }
}

/// umoci does not close the archives of such layers.
#[test]
fn layers_that_umoci_inserts_are_read() {
    extant_testkit::need("umoci");
    let directory = TempDir::new().unwrap();
    let script = "set -e
        umoci init --layout layout; umoci new --image layout:tag
        printf 'first file' > one; mkdir -p two/below; printf second > two/below/file
        umoci insert --image layout:tag one /etc/one
        umoci insert --image layout:tag two /etc/two
        umoci insert --image layout:tag --whiteout /etc/one
        umoci unpack --image layout:tag bundle";
    run("sh", &["-c", script], directory.path());
    let mut tree = Tree::new();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let from = Container::Directory(directory.path().join("layout"));
    loader.add_oci("layout", from, &reference("tag")).unwrap();
    let all = ["etc", "etc/two", "etc/two/below", "etc/two/below/file=second"];
    assert_eq!(paths(&tree), all);
    // No layer has the directory `etc`, so each program gives it a time of its own.
    let (mut found, mut expected) =
        (of_tree(&tree), of_host(&directory.path().join("bundle/rootfs")));
    [&mut found, &mut expected].iter_mut().for_each(|listing| drop(listing.remove(&b"etc"[..])));
    assert_same(&found, &expected, "inserted");
}

#[test]
fn images_of_umoci_and_skopeo_equal_their_unpacked_form() {
    let directory = TempDir::new().unwrap();
    let script = "set -e
        umoci init --layout layout; umoci new --image layout:tag
        umoci unpack --image layout:tag bundle
        mkdir -p bundle/rootfs/usr/lib bundle/rootfs/etc; ln -s usr/lib bundle/rootfs/lib
        printf 1 > bundle/rootfs/etc/one; printf 2 > bundle/rootfs/etc/two
        ln bundle/rootfs/etc/one bundle/rootfs/usr/same
        setfattr -n user.key -v value bundle/rootfs/etc/two; chown 12:34 bundle/rootfs/etc/two
        head -c 300000 /dev/urandom > bundle/rootfs/usr/lib/large
        umoci repack --image layout:tag bundle; rm -rf bundle
        umoci unpack --image layout:tag bundle
        rm -r bundle/rootfs/etc; mkdir bundle/rootfs/etc; printf 3 > bundle/rootfs/etc/three
        rm bundle/rootfs/usr/lib/large; chmod 700 bundle/rootfs/usr
        umoci repack --image layout:tag bundle; rm -rf bundle
        umoci unpack --image layout:tag bundle
        skopeo --insecure-policy copy -q oci:layout:tag oci-archive:oci.tar:tag
        skopeo --insecure-policy copy -q oci:layout:tag docker-archive:docker.tar:name:tag";
    for program in ["umoci", "skopeo"] {
        extant_testkit::need(program);
    }
    run("sh", &["-c", script], directory.path());
    let expected = of_host(&directory.path().join("bundle/rootfs"));
    let path = |name: &str| directory.path().join(name);
    let archive =
        |name: &str| Container::Archive(Input::of(File::open(path(name)).unwrap()).unwrap());
    let cases = [
        ("layout", Container::Directory(path("layout")), "tag"),
        ("oci.tar", archive("oci.tar"), "tag"),
        ("docker.tar", archive("docker.tar"), "docker.io/library/name:tag"),
    ];
    for (name, from, wanted) in cases {
        let mut tree = Tree::new();
        let mut loader = Loader::new(&mut tree, std::env::temp_dir());
        let selection = reference(wanted);
        let added = match name {
            "docker.tar" => loader.add_docker(name, from, &selection),
            _ => loader.add_oci(name, from, &selection),
        };
        added.unwrap();
        assert_same(&of_tree(&tree), &expected, name);
    }
}
