//! The authorities that verify client certificates. The file is read again when another program replaces it.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_cafile_content.go (gate
//! ReloadKubeletClientCAFile). The kubelet watches the file and compares it each minute. This server checks it at each use, so
//! that a change applies to the next connection.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::server::danger::ClientCertVerifier;

use super::{TlsError, client_verifier};

/// Identifies a version of a file: device, inode, size and modification time.
type Stamp = (u64, u64, u64, i64, i64);

/// The authorities in a file.
#[derive(Debug)]
pub(crate) struct ClientAuthority {
    file: PathBuf,
    /// Whether to read the file again when it changes.
    reloads: bool,
    now: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    stamp: Option<Stamp>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthority {
    /// Reads the file.
    pub(crate) fn new(file: PathBuf, reloads: bool) -> Result<Self, TlsError> {
        let stamp = stamp(&file);
        let now = Current { stamp, verifier: client_verifier(&file)? };
        Ok(Self { file, reloads, now: Mutex::new(now) })
    }

    /// The current verifier of client certificates. It is replaced only if the file changes.
    pub(crate) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = if self.reloads { stamp(&self.file) } else { None };
        if stamp.is_some() && stamp != now.stamp {
            // An invalid file is not read again until it changes.
            now.stamp = stamp;
            match client_verifier(&self.file) {
                Ok(verifier) => {
                    tracing::info!(file = %self.file.display(), "reloaded the client CA file");
                    now.verifier = verifier;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "failed to reload the client CA file; the former CAs stay in use"
                    );
                }
            }
        }
        Arc::clone(&now.verifier)
    }
}

/// `None` if the file is missing, because a program may be replacing it.
fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair,
    };
    use rustls::pki_types::{CertificateDer, UnixTime};

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn issuer() -> Issuer {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "clients");
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn client_of(issuer: &Issuer) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().clone()
    }

    /// Replaces the file with a new one, so that its inode differs.
    fn replace(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, path).unwrap();
    }

    /// Whether each client is verified.
    fn verified(authority: &ClientAuthority, clients: &[CertificateDer<'static>]) -> Vec<bool> {
        let verifier = authority.verifier();
        let is_good = |client| verifier.verify_client_cert(client, &[], UnixTime::now()).is_ok();
        clients.iter().map(is_good).collect()
    }

    #[test]
    fn replaced_file_is_used_unless_invalid() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        let (first, second) = (issuer(), issuer());
        let clients = [client_of(&first), client_of(&second)];
        replace(&file, &first.pem());
        let authority = ClientAuthority::new(file.clone(), true).unwrap();
        assert_eq!(verified(&authority, &clients), [true, false]);
        assert!(Arc::ptr_eq(&authority.verifier(), &authority.verifier()), "read once");
        replace(&file, &second.pem());
        assert_eq!(verified(&authority, &clients), [false, true]);
        for broken in ["", "no certificate\n"] {
            replace(&file, broken);
            assert_eq!(verified(&authority, &clients), [false, true], "{broken:?}");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(verified(&authority, &clients), [false, true]);
        replace(&file, &(first.pem() + &second.pem()));
        assert_eq!(verified(&authority, &clients), [true, true]);
    }

    #[test]
    fn file_is_read_once_without_the_gate() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        let (first, second) = (issuer(), issuer());
        let clients = [client_of(&first), client_of(&second)];
        replace(&file, &first.pem());
        let authority = ClientAuthority::new(file.clone(), false).unwrap();
        replace(&file, &second.pem());
        assert_eq!(verified(&authority, &clients), [true, false]);
    }
}
