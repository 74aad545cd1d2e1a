//! The programs in `examples`, on real images.

use extant::device::{BackingSpec, ImageFormat, ImageSpec};
use extant::{BlockDevice, Fs, mkfs};
use extant_testkit::{Memory, Scratch};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

macro_rules! examples {
    ($($name:ident $path:literal),*) => {$(
        #[path = $path]
        #[allow(dead_code, reason = "`main` is not called here")]
        mod $name;
    )*};
}

examples!(
    host_agent "../../examples/host_agent.rs", http_server "../../examples/http_server.rs",
    build_from_tar "../../examples/build_from_tar.rs",
    forensic_walk "../../examples/forensic_walk.rs", many_images "../../examples/many_images.rs",
    qcow2_overlay "../../examples/qcow2_overlay.rs"
);

fn image() -> Arc<Memory> {
    let device = Arc::new(Memory::new(32 << 20));
    let fs = Fs::options().create_on(device.clone(), &mkfs::Options::default()).unwrap();
    fs.create_dir_all("/var/log").unwrap();
    fs.write("/var/log/messages", b"booted\n").unwrap();
    fs.unmount().unwrap();
    device
}

#[test]
fn the_host_agent_changes_its_overlay_and_not_the_base() {
    let base = image();
    let before = base.to_vec();
    let (overlay, log) = host_agent::run(base.clone(), "guest").unwrap();
    assert_eq!(log, b"booted\n");
    assert!(overlay.changed() > 0 && before == base.to_vec());
    let fs = Fs::options().read_only().open_on(overlay).unwrap();
    assert_eq!(fs.read("/etc/hostname").unwrap(), b"guest");
    fs.unmount().unwrap();
}

#[test]
fn the_overlay_in_a_file_is_opened_by_its_specification() {
    let scratch = Scratch::new();
    let (base, overlay) = (scratch.join("base.img"), scratch.join("new.qcow2"));
    let before = image().to_vec();
    std::fs::write(&base, &before).unwrap();
    let bytes = qcow2_overlay::fork(&base, &overlay, "guest").unwrap();
    assert!(bytes > 0 && bytes < 8 << 20, "{bytes}");
    // The new file must be empty.
    let error = qcow2_overlay::fork(&base, &overlay, "guest").unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
    assert!(std::fs::read(&base).unwrap() == before);
    let mut spec = ImageSpec { format: ImageFormat::Qcow2, ..ImageSpec::whole(&overlay) };
    let error = Fs::options().read_only().open_image(&spec).unwrap_err().to_string();
    assert!(error.contains("is not opened by this name alone"), "{error}");
    spec.backing = vec![BackingSpec { path: base, format: ImageFormat::Raw }];
    let fs = Fs::options().read_only().open_image(&spec).unwrap();
    assert_eq!(fs.read("/etc/hostname").unwrap(), b"guest");
    fs.unmount().unwrap();
}

#[test]
fn the_http_server_answers_files_directories_and_absent_names() {
    let fs = Fs::options().read_only().open_on(image()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let get = |path: &str| {
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.0\r\n").unwrap();
        http_server::answer(&fs, listener.accept().unwrap().0).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    };
    assert_eq!(get("/var/log/messages"), "HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nbooted\n");
    assert!(get("/var").ends_with("\r\n\r\nlog\n"));
    assert!(get("/absent").starts_with("HTTP/1.0 404 Not Found\r\n"));
    fs.unmount().unwrap();
}

#[test]
fn the_builder_makes_a_tree_from_an_archive() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(300_000);
    header.set_mode(0o4755);
    header.set_uid(1000);
    header.set_gid(100);
    header.set_mtime(1_234_567);
    let mut content = vec![0; 300_000];
    content[..4].copy_from_slice(b"text");
    archive.append_data(&mut header.clone(), "bin/program", &*content).unwrap();
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Symlink);
    archive.append_link(&mut header.clone(), "bin/link", "program").unwrap();
    header.set_entry_type(tar::EntryType::Link);
    archive.append_link(&mut header, "bin/again", "bin/program").unwrap();
    let archive = archive.into_inner().unwrap();

    let device = Arc::new(Memory::new(32 << 20));
    assert_eq!(build_from_tar::build(&*archive, device.clone()).unwrap(), 3);
    let fs = Fs::options().read_only().open_on(device).unwrap();
    assert!(fs.read("/bin/link").unwrap() == content);
    let metadata = fs.metadata("/bin/again").unwrap();
    assert_eq!((metadata.permissions(), metadata.uid(), metadata.gid()), (0o4755, 1000, 100));
    assert_eq!((metadata.links(), metadata.modified().sec), (2, 1_234_567));
    assert!(metadata.sectors() * 512 < 200_000, "zeroes are holes");
    fs.unmount().unwrap();
}

#[test]
fn the_forensic_walk_counts_and_goes_on_after_damage() {
    let fs = Fs::options().read_only().open_on(image()).unwrap();
    let findings = forensic_walk::examine(&fs, &mut std::io::sink()).unwrap();
    assert_eq!((findings.entries, findings.bytes, findings.extents), (4, 7, 1));
    assert!(findings.errors.is_empty());
    fs.unmount().unwrap();

    let mut bytes = image().to_vec();
    // In the directory, and in the log's copy of it, which may be the first on the device.
    let is_name = |at: &usize| bytes[*at..].starts_with(b"messages");
    let names: Vec<_> = (0..bytes.len()).filter(is_name).collect();
    assert!(!names.is_empty());
    names.into_iter().for_each(|name| bytes[name] = b'M');
    let damaged = Arc::new(extant::device::MemDevice::from_bytes(&bytes));
    let fs = Fs::options().read_only().open_on(damaged).unwrap();
    let findings = forensic_walk::examine(&fs, &mut std::io::sink()).unwrap();
    assert_eq!((findings.entries, findings.errors.len()), (3, 1), "{findings:?}");
    fs.unmount().unwrap();
}

#[test]
fn many_images_get_the_same_file() {
    let mut devices: Vec<Arc<dyn BlockDevice>> = (0..9).map(|_| image() as _).collect();
    devices.push(Arc::new(extant::device::MemDevice::new(1 << 20)));
    let done = many_images::distribute(&devices, "/var/motd", b"hello");
    assert!(done[..9].iter().all(Result::is_ok) && done[9].is_err(), "{done:?}");
    for device in &devices[..9] {
        let fs = Fs::options().read_only().open_on(device.clone()).unwrap();
        assert_eq!(fs.read("/var/motd").unwrap(), b"hello");
        fs.unmount().unwrap();
    }
}
