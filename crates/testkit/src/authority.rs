//! Authorities that sign certificates, by openssl(1).

use crate::tool::run;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// An authority, with the files of one server and of its clients in one directory, under the names
/// of nbdkit and libnbd.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
}

/// The dates of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// For some days from now on.
    Now,
    /// In 2020.
    Past,
    /// In 2999.
    Future,
}

impl Authority {
    /// Makes an authority in a directory, which is made: `ca-cert.pem`.
    pub fn new(dir: PathBuf) -> Authority {
        fs::create_dir(&dir).expect("a new directory");
        let authority = Authority { dir };
        let place = authority.dir.display();
        let config = format!(
            "[ca]\ndefault_ca = own\n[own]\ndatabase = {place}/index\nserial = {place}/serial\n\
             crlnumber = {place}/crlnumber\nnew_certs_dir = {place}\ndefault_md = sha256\n\
             default_crl_days = 30\npolicy = any\nunique_subject = no\n[any]\n\
             commonName = supplied\n"
        );
        for (file, content) in
            [("config", &*config), ("index", ""), ("serial", "01\n"), ("crlnumber", "01\n")]
        {
            fs::write(authority.dir.join(file), content).expect("a file");
        }
        authority.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=authority",
            "-days",
            "30",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout",
            "/ca-key.pem",
            "-out",
            "/ca-cert.pem",
        ]);
        authority
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs openssl; arguments such as `/request`, but `/CN=x`, are files of the directory.
    fn openssl(&self, args: &[&str]) {
        let whole = |arg: &&str| match arg.strip_prefix('/') {
            Some(name) if !name.contains('=') => self.dir.join(name).into_os_string(),
            _ => OsString::from(arg),
        };
        run("openssl", &args.iter().map(whole).collect::<Vec<_>>()).must_succeed();
    }

    /// Signs a certificate: `ROLE-cert.pem` with `ROLE-key.pem`, where ROLE is `server` or
    /// `client`. `names` are those of the host, such as `DNS:localhost,IP:127.0.0.1`.
    pub fn sign(&self, role: &str, names: &str, validity: Validity) {
        let purpose = format!("extendedKeyUsage = {role}Auth\nsubjectAltName = {names}\n");
        fs::write(self.dir.join("extensions"), purpose).expect("a file");
        let (key, cert) = (format!("/{role}-key.pem"), format!("/{role}-cert.pem"));
        let subject = format!("/CN={role}");
        let new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", &subject, "-out", "/request"];
        self.openssl(&[&new[..], &["-keyout", &key]].concat());
        let own = ["ca", "-config", "/config", "-batch", "-notext", "-cert", "/ca-cert.pem"];
        let files = ["-keyfile", "/ca-key.pem", "-in", "/request", "-extfile", "/extensions"];
        let dates: &[&str] = match validity {
            Validity::Now => &["-days", "30"],
            Validity::Past => &["-startdate", "20200101000000Z", "-enddate", "20200201000000Z"],
            Validity::Future => &["-startdate", "29990101000000Z", "-enddate", "29990201000000Z"],
        };
        self.openssl(&[&own[..], &files, dates, &["-out", &cert]].concat());
    }

    /// Revokes the certificate of a role: `ca-crl.pem`.
    pub fn revoke(&self, role: &str) {
        let own = ["ca", "-config", "/config", "-cert", "/ca-cert.pem", "-keyfile", "/ca-key.pem"];
        self.openssl(&[&own[..], &["-revoke", &format!("/{role}-cert.pem")]].concat());
        self.openssl(&[&own[..], &["-gencrl", "-out", "/ca-crl.pem"]].concat());
    }
}
