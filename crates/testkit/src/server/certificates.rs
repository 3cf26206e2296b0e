//! Certificates for servers that speak TLS, made anew for each test.

use std::path::{Path, PathBuf};

use super::{Place, Program, find};

/// An authority, a server's and a client's certificate, and those of a stranger.
///
/// The server's is for `localhost` and 127.0.0.1. Names of the files: the certificate of each, and
/// beside it its key.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Makes them in the folder of a place, once: later calls find them.
    ///
    /// # Panics
    ///
    /// If the program `openssl` is not installed, or fails.
    pub fn at(place: &Place) -> Certificates {
        let made = Certificates { folder: place.folder().to_owned() };
        if !made.server().exists() {
            made.authority(place, "ca", "/CN=leasehold test authority");
            made.authority(place, "stranger", "/CN=somebody else");
            made.signed(place, "client", "/CN=leasehold", "extendedKeyUsage=clientAuth");
            let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\n\
                         extendedKeyUsage=serverAuth,clientAuth";
            made.signed(place, "server", "/CN=localhost", names);
        }
        made
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The server's certificate.
    pub fn server(&self) -> PathBuf {
        self.folder.join("server.pem")
    }

    /// The client's certificate, of the common name `leasehold`.
    pub fn client(&self) -> PathBuf {
        self.folder.join("client.pem")
    }

    /// An authority that has signed none of them.
    pub fn stranger(&self) -> PathBuf {
        self.folder.join("stranger.pem")
    }

    /// The key that belongs to a certificate.
    pub fn key(certificate: &Path) -> PathBuf {
        certificate.with_extension("key")
    }

    fn authority(&self, place: &Place, name: &str, subject: &str) {
        place.run(
            &openssl(&["req", "-x509", "-nodes", "-days", "30", "-subj", subject])
                .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
                .args(["-addext", "keyUsage=critical,keyCertSign,cRLSign"])
                .arg("-keyout")
                .arg(self.folder.join(format!("{name}.key")))
                .arg("-out")
                .arg(self.folder.join(format!("{name}.pem"))),
        );
    }

    fn signed(&self, place: &Place, name: &str, subject: &str, extensions: &str) {
        let file = |end: &str| self.folder.join(format!("{name}.{end}"));
        place.write(&format!("{name}.ext"), extensions);
        place.run(
            &openssl(&["req", "-new", "-nodes", "-subj", subject])
                .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
                .arg("-keyout")
                .arg(file("key"))
                .arg("-out")
                .arg(file("csr")),
        );
        place.run(
            &openssl(&["x509", "-req", "-days", "30", "-CAcreateserial"])
                .arg("-in")
                .arg(file("csr"))
                .arg("-CA")
                .arg(self.ca())
                .arg("-CAkey")
                .arg(Certificates::key(&self.ca()))
                .arg("-extfile")
                .arg(file("ext"))
                .arg("-out")
                .arg(file("pem")),
        );
    }
}

fn openssl(args: &[&str]) -> Program {
    Program::new(find(&["openssl"])).args(args)
}
