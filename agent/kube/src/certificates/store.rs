//! The files of a node's certificates, in a kubelet's layout.
//!
//! | file | what |
//! |---|---|
//! | `kubelet-client-2026-11-28-10-00-00.pem` | a certificate and its key |
//! | `kubelet-client-current.pem` | a symbolic link to the file in use |
//! | `kubelet-server-…` | the same for the serving certificate |
//! | `kubelet-client.key.tmp` | the key of the first request, until it is answered |
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/util/certificate/certificate_store.go.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A certificate file cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {}", path.display())]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The directory of the files.
#[derive(Clone, Debug)]
pub(crate) struct CertificateStore {
    directory: PathBuf,
    /// The prefix of the file names.
    prefix: &'static str,
}

/// The store of the client certificate.
pub(crate) fn client_store(directory: &Path) -> CertificateStore {
    CertificateStore::new(directory, "kubelet-client")
}

/// The store of the serving certificate.
pub(crate) fn server_store(directory: &Path) -> CertificateStore {
    CertificateStore::new(directory, "kubelet-server")
}

/// The path of the serving certificate and its key, which exists once the certificate is issued.
#[must_use]
pub fn server_certificate(directory: &Path) -> PathBuf {
    server_store(directory).current()
}

impl CertificateStore {
    fn new(directory: &Path, prefix: &'static str) -> Self {
        Self { directory: directory.to_owned(), prefix }
    }

    /// The symbolic link to the file in use.
    pub(crate) fn current(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.prefix))
    }

    fn key_file(&self) -> PathBuf {
        self.directory.join(format!("{}.key.tmp", self.prefix))
    }

    /// The key of the pending request, if there is one.
    pub(crate) fn pending_key(&self) -> Result<Option<String>, StoreError> {
        let path = self.key_file();
        match fs::read_to_string(&path) {
            Ok(known) => Ok(Some(known)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Saves the key of a pending request.
    pub(crate) fn save_pending_key(&self, key: &str) -> Result<(), StoreError> {
        write_private(&self.key_file(), key)
    }

    /// Removes the key of an answered request.
    pub(crate) fn remove_pending_key(&self) {
        // If the file remains, the next request uses its key.
        let _ = fs::remove_file(self.key_file());
    }

    /// Stores a certificate and its key, in PEM, and makes them the ones in use.
    pub(crate) fn put(
        &self,
        certificate: &str,
        key: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let at = now.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let path = self.directory.join(format!("{}-{at}.pem", self.prefix));
        write_private(&path, &format!("{}\n{key}", certificate.trim_end()))?;
        let (new, current) =
            (self.directory.join(format!("{}-updated.pem", self.prefix)), self.current());
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &new)(error));
            }
            Ok(()) | Err(_) => {}
        }
        symlink(&path, &new).map_err(failed("create", &new))?;
        fs::rename(&new, &current).map_err(failed("replace", &current))
    }
}

/// Atomically writes a file that only its owner may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), StoreError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        let mut directory = fs::DirBuilder::new();
        directory.recursive(true).mode(0o700).create(parent).map_err(failed("create", parent))?;
    }
    let new = path.with_extension("new");
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
    let mut file = file.map_err(failed("create", &new))?;
    file.write_all(text.as_bytes()).map_err(failed("write", &new))?;
    fs::rename(&new, path).map_err(failed("replace", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError { action, path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn current_file_is_a_link_to_the_last_certificate_with_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("pki");
        let store = client_store(&pki);
        assert_eq!(store.pending_key().unwrap(), None);
        store.save_pending_key("key").unwrap();
        assert_eq!(store.pending_key().unwrap().as_deref(), Some("key"));
        store.put("C1\n", "K1\n", "2026-11-28T10:00:00Z".parse().unwrap()).unwrap();
        store.remove_pending_key();
        let current = pki.join("kubelet-client-current.pem");
        assert_eq!(store.current(), current);
        assert_eq!(fs::read_to_string(&current).unwrap(), "C1\nK1\n");
        store.put("C2", "K2", "2026-11-28T11:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&current).unwrap(), "C2\nK2");
        let target = pki.join("kubelet-client-2026-11-28-11-00-00.pem");
        assert_eq!(fs::read_link(&current).unwrap(), target);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&pki), mode(&target)), (0o700, 0o600));
        // Two certificate files and the link.
        assert_eq!(fs::read_dir(&pki).unwrap().count(), 3);
    }
}
