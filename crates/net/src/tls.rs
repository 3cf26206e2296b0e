//! TLS by rustls, the same for every store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_core::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The largest certificate or key file that is read.
const FILE_MAX: u64 = 1024 * 1024;

/// Certificates for connections to a store, by path.
///
/// Without `ca`, the system's roots are trusted. `cert` and `key` come together and show who we are
/// (mTLS).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tls {
    /// Certificates of the authorities to trust, PEM, in place of the system's.
    pub ca: Option<PathBuf>,
    /// Our own certificate and what leads to its authority, PEM.
    pub cert: Option<PathBuf>,
    /// The key of our own certificate, PEM.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must bear, where it is not the host's.
    pub server_name: Option<String>,
}

/// The bytes of certificates and keys, read and parsed once.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pems {
    /// The authorities to trust, unless the system's.
    pub ca: Option<Vec<u8>>,
    /// Our own certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Pems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pems").finish_non_exhaustive()
    }
}

impl Tls {
    /// The system's roots, and no certificate of our own.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Reads the files, and sees that each holds what it should.
    ///
    /// # Errors
    ///
    /// `Config` naming the file that cannot be read or holds no certificate or key, or where one of
    /// `cert` and `key` is missing.
    pub fn pems(&self) -> Result<Pems> {
        let ca = self.ca.as_deref().map(read).transpose()?;
        if let (Some(pem), Some(path)) = (&ca, &self.ca) {
            certificates(pem, path)?;
        }
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let pair = (read(cert)?, read(key)?);
                certificates(&pair.0, cert)?;
                private_key(&pair.1, key)?;
                Some(pair)
            }
            (None, None) => None,
            (Some(_), None) => return Err(bad("`cert` is given without its `key`".into())),
            (None, Some(_)) => return Err(bad("`key` is given without its `cert`".into())),
        };
        Ok(Pems { ca, identity })
    }

    /// A rustls configuration.
    ///
    /// # Errors
    ///
    /// As [`Tls::pems`]; also `Config` where the system has no roots, or key and certificate do
    /// not belong together.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>> {
        let pems = self.pems()?;
        let roots = match (&pems.ca, &self.ca) {
            (Some(pem), Some(path)) => roots_of(pem, path)?,
            _ => system_roots()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| bad(e.to_string()).caused_by(e))?
            .with_root_certificates(roots);
        let config = match (&pems.identity, &self.cert, &self.key) {
            (Some((cert, key)), Some(cert_path), Some(key_path)) => {
                let chain = certificates(cert, cert_path)?;
                let key = private_key(key, key_path)?;
                builder.with_client_auth_cert(chain, key).map_err(|e| {
                    bad(format!("{} and {}: {e}", cert_path.display(), key_path.display()))
                        .caused_by(e)
                })?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let size = std::fs::metadata(path).map_err(|e| unreadable(path, e))?.len();
    if size > FILE_MAX {
        return Err(bad(format!("{} is larger than 1 MiB", path.display())));
    }
    std::fs::read(path).map_err(|e| unreadable(path, e))
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(bad(format!("{} holds no certificate in PEM", path.display()))),
    }
}

fn private_key(pem: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|_| bad(format!("{} holds no private key in PEM", path.display())))
}

fn roots_of(pem: &[u8], path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, path)? {
        roots.add(certificate).map_err(|e| {
            bad(format!("{} holds an unfit certificate: {e}", path.display())).caused_by(e)
        })?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(bad("the system has no trusted certificates".into())
            .advise("install ca-certificates, or name the authority with `?ca=PATH`"));
    }
    Ok(roots)
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    bad(format!("{} cannot be read: {error}", path.display())).caused_by(error)
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "set up TLS", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfit_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let mut tls = Tls { ca: Some(path.clone()), ..Tls::default() };
        let missing = tls.client_config().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Config);
        assert!(missing.to_string().contains("ca.pem"), "{missing}");
        std::fs::write(&path, "hello").unwrap();
        assert!(tls.client_config().unwrap_err().to_string().contains("no certificate"));
        tls.ca = None;
        tls.cert = Some(path);
        assert!(tls.client_config().unwrap_err().to_string().contains("without its `key`"));
    }
}
