//! Layers and images of containers that tests make.

use extant_archive::{Container, Input, Loader, Selection};
use extant_image::{EntryKind, Tree};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{Cursor, Write};
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// An archive with these members: `d`irectory, `f`ile, sym`l`ink, `h`ard link, `w`hiteout device.
pub fn archive(members: &[(char, &str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, data) in members {
        let mut header = Header::new_ustar();
        let (kind, target) = match kind {
            'd' => (EntryType::Directory, false),
            'f' => (EntryType::Regular, false),
            'l' => (EntryType::Symlink, true),
            'h' => (EntryType::Link, true),
            'w' => (EntryType::Char, false),
            other => panic!("{other}"),
        };
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        if target {
            header.as_mut_bytes()[157..157 + data.len()].copy_from_slice(data.as_bytes());
        } else {
            header.set_size(data.len() as u64);
        }
        header.set_cksum();
        builder.append(&header, if target { &[][..] } else { data.as_bytes() }).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An archive with one directory that has an extended attribute, and a file in it.
pub fn opaque_by_attribute(attribute: &str, directory: &str, file: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let attribute = format!("SCHILY.xattr.{attribute}");
    builder.append_pax_extensions([(attribute.as_str(), &b"y"[..])]).unwrap();
    let mut all = builder.into_inner().unwrap();
    all.truncate(all.len() - 1024);
    all.extend(archive(&[('d', directory, ""), ('f', file, "new")]));
    all
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// An image with its blobs.
pub struct Image {
    pub files: Vec<(String, Vec<u8>)>,
    pub manifest: Value,
}

impl Image {
    /// Makes an image of layers: bytes as stored, and uncompressed.
    pub fn new(layers: &[(Vec<u8>, Vec<u8>)], architecture: &str) -> Image {
        let mut image = Image { files: Vec::new(), manifest: json!({}) };
        let ids: Vec<String> = layers.iter().map(|(_, plain)| digest(plain)).collect();
        let config = json!({
            "os": "linux", "architecture": architecture,
            "rootfs": {"type": "layers", "diff_ids": ids},
        });
        let config =
            image.add(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
        let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
        let layers: Vec<Value> = layers.iter().map(|(stored, _)| image.add(stored, kind)).collect();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers,
        });
        image.manifest = image.add(manifest.to_string().as_bytes(), kind);
        image
    }

    /// Adds a blob; returns its descriptor.
    pub fn add(&mut self, bytes: &[u8], kind: &str) -> Value {
        let digest = digest(bytes);
        self.files.push((format!("blobs/{}", digest.replace(':', "/")), bytes.to_vec()));
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    }
}

/// Makes an image of uncompressed layers.
pub fn plain_image(layers: &[Vec<u8>]) -> Image {
    let layers: Vec<_> = layers.iter().map(|layer| (layer.clone(), layer.clone())).collect();
    Image::new(&layers, "amd64")
}

/// Returns the files of a layout with these entries of its index.
pub fn layout(images: Vec<Image>, index: Vec<Value>) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = images.into_iter().flat_map(|image| image.files).collect();
    let index = json!({"schemaVersion": 2, "manifests": index});
    files.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
    files.push(("index.json".into(), index.to_string().into_bytes()));
    files
}

pub fn write(files: &[(String, Vec<u8>)], to: &Path) {
    for (name, bytes) in files {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
    }
}

/// Packs files into an archive.
pub fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Loads an OCI layout from an archive in memory.
pub fn load(files: &[(String, Vec<u8>)], selection: &Selection) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let from = Container::Archive(Input::Stream(Box::new(Cursor::new(pack(files)))));
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let added = loader.add_oci("layout", from, selection);
    added.map(|()| tree).map_err(|error| error.to_string())
}

/// Returns the paths of a tree, with the content of files and the targets of symlinks.
pub fn paths(tree: &Tree) -> Vec<String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let line = |entry: extant_image::TreeEntry| match &entry.kind {
        EntryKind::File(_) => {
            format!("{}={}", shown(&entry.path), shown(&tree.read(&entry.path).unwrap()))
        }
        EntryKind::Symlink(target) => format!("{}->{}", shown(&entry.path), shown(target)),
        _ => shown(&entry.path),
    };
    tree.walk().map(line).collect()
}
