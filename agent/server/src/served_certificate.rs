//! The serving certificate. It is read again when another program replaces its files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::tls::{KeyPairFiles, TlsError, certificates, provider, read};

/// The modification times of the certificate and the key.
type Stamp = (SystemTime, SystemTime);

/// A serving certificate in files.
#[derive(Debug)]
pub(crate) struct ServedCertificate {
    files: KeyPairFiles,
    /// A cluster-signed certificate and its key, which replaces `files` once it exists.
    signed: Option<PathBuf>,
    /// Whether `files` are read again when they change.
    reloads: bool,
    now: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    stamp: Option<Stamp>,
    certificate: Arc<CertifiedKey>,
}

impl ServedCertificate {
    /// Reads the files. With `reloads`, they are read again when they change.
    pub(crate) fn new(
        files: KeyPairFiles,
        signed: Option<PathBuf>,
        reloads: bool,
    ) -> Result<Self, TlsError> {
        let served = current(&files, signed.as_ref());
        let stamp = stamp(&served);
        let now = Current { stamp, certificate: load(&served)? };
        Ok(Self { files, signed, reloads, now: Mutex::new(now) })
    }

    /// The current certificate, read again if a file has changed.
    fn now(&self) -> Arc<CertifiedKey> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let served = current(&self.files, self.signed.as_ref());
        let is_signed = served.certificate != self.files.certificate;
        let stamp = if self.reloads || is_signed { stamp(&served) } else { None };
        if stamp.is_some() && stamp != now.stamp {
            // An invalid file is not read again until it changes.
            now.stamp = stamp;
            match load(&served) {
                Ok(certificate) => {
                    tracing::info!(file = %served.certificate.display(), "serving a new certificate");
                    now.certificate = certificate;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "failed to reload the server certificate; still serving the former one"
                    );
                }
            }
        }
        Arc::clone(&now.certificate)
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

/// The files to serve.
fn current(files: &KeyPairFiles, signed: Option<&PathBuf>) -> KeyPairFiles {
    match signed.filter(|signed| signed.exists()) {
        Some(signed) => KeyPairFiles { certificate: signed.clone(), key: signed.clone() },
        None => files.clone(),
    }
}

/// The modification times of the files, through symbolic links; `None` if one is missing, because a program may be replacing it.
fn stamp(files: &KeyPairFiles) -> Option<Stamp> {
    let changed = |path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    Some((changed(&files.certificate)?, changed(&files.key)?))
}

fn load(files: &KeyPairFiles) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|error| TlsError::Read { path: files.key.clone(), problem: error.to_string() })?;
    let certificate = CertifiedKey::from_der(chain, key, &provider());
    let certificate =
        certificate.map_err(|source| TlsError::Use { path: files.certificate.clone(), source })?;
    Ok(Arc::new(certificate))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn write(path: &Path, text: &str, age: u64) {
        fs::write(path, text).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 - age);
        fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn replaced_files_are_served_unless_invalid() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let files = KeyPairFiles { certificate: path("c"), key: path("k") };
        let make = || rcgen::generate_simple_self_signed(["n".to_owned()]).unwrap();
        let (first, second, third) = (make(), make(), make());
        write(&files.certificate, &first.cert.pem(), 50);
        write(&files.key, &first.signing_key.serialize_pem(), 50);
        let signed = path("signed");
        let served = ServedCertificate::new(files.clone(), Some(signed.clone()), true).unwrap();
        let shown = || served.now().cert[0].clone();
        assert_eq!(shown(), *first.cert.der());
        // The key does not match the certificate.
        write(&files.key, &second.signing_key.serialize_pem(), 40);
        assert_eq!(shown(), *first.cert.der());
        write(&files.certificate, &second.cert.pem(), 30);
        assert_eq!(shown(), *second.cert.der());
        fs::remove_file(&files.certificate).unwrap();
        assert_eq!(shown(), *second.cert.der());
        write(&signed, &(third.cert.pem() + &third.signing_key.serialize_pem()), 20);
        assert_eq!(shown(), *third.cert.der());
    }

    #[test]
    fn only_signed_certificate_is_reloaded_without_the_gate() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let files = KeyPairFiles { certificate: path("c"), key: path("k") };
        let make = || rcgen::generate_simple_self_signed(["n".to_owned()]).unwrap();
        let (first, second, third) = (make(), make(), make());
        write(&files.certificate, &first.cert.pem(), 50);
        write(&files.key, &first.signing_key.serialize_pem(), 50);
        let signed = path("signed");
        let served = ServedCertificate::new(files.clone(), Some(signed.clone()), false).unwrap();
        let shown = || served.now().cert[0].clone();
        write(&files.certificate, &second.cert.pem(), 30);
        write(&files.key, &second.signing_key.serialize_pem(), 30);
        assert_eq!(shown(), *first.cert.der());
        write(&signed, &(third.cert.pem() + &third.signing_key.serialize_pem()), 20);
        assert_eq!(shown(), *third.cert.der());
    }
}
