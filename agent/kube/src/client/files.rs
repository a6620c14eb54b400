//! The files that a kubeconfig names and other programs may replace: authorities, client certificate and key, and token.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/transport/transport.go (cachingCertificateLoader, and the gate
//! ClientsAllowCARotation, which is on), transport/token_source.go. client-go reads certificates again within five minutes, and a
//! token within one; this client checks the files before each request, once a second at most.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fetch::Identity;
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer};
use file_tree::named_text::{self, MOST};
use http::HeaderValue;

use super::error::ApiError;

/// The shortest interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The files of a connection, and their state at the last check.
#[derive(Debug, Default)]
pub(crate) struct Files {
    authority: Option<PathBuf>,
    /// The certificate and the key, if both are in files.
    identity: Option<(PathBuf, PathBuf)>,
    checked_at: Option<Instant>,
    used: Vec<Option<Stamp>>,
    /// The stamps of files that could not be used, so that each problem is logged once.
    rejected: Vec<Option<Stamp>>,
}

/// Identifies a version of a file: device, inode, size and modification time.
type Stamp = (u64, u64, u64, i64, i64);

/// The content of the files.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) authority: Option<Vec<CertificateDer<'static>>>,
    pub(crate) identity: Option<Identity>,
}

impl Files {
    /// Creates the record of a connection's files, which the caller reads next.
    pub(crate) fn new(authority: Option<PathBuf>, identity: Option<(PathBuf, PathBuf)>) -> Self {
        let mut files = Self { authority, identity, ..Self::default() };
        files.used = files.stamps();
        files
    }

    /// The new content if a file was replaced since the last call. Files that cannot be used, alone or together, are read again
    /// at each check.
    pub(crate) fn replaced(&mut self, now: Instant) -> Option<Content> {
        let is_due = self.checked_at.is_none_or(|at| now.duration_since(at) >= CHECK_INTERVAL);
        if self.used.is_empty() || !is_due {
            return None;
        }
        self.checked_at = Some(now);
        let stamps = self.stamps();
        if stamps == self.used {
            return None;
        }
        match self.content() {
            Ok(content) => {
                self.used = stamps;
                Some(content)
            }
            Err(problem) => {
                self.reject(stamps, &problem);
                None
            }
        }
    }

    /// Records that the last files cannot be used.
    pub(crate) fn reject_last(&mut self, problem: &str) {
        let stamps = std::mem::take(&mut self.used);
        // Without stamps, each check reads the files again until they can be used.
        self.used = stamps.iter().map(|_| None).collect();
        self.reject(stamps, problem);
    }

    /// Makes the next call check the files without delay.
    #[cfg(test)]
    pub(crate) fn check_immediately(&mut self) {
        self.checked_at = None;
    }

    fn reject(&mut self, stamps: Vec<Option<Stamp>>, problem: &str) {
        if self.rejected != stamps {
            tracing::warn!(
                problem,
                "failed to reload the files of the kubeconfig; the former ones stay in use"
            );
        }
        self.rejected = stamps;
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.authority.iter().chain(identity).map(|path| stamp(path)).collect()
    }

    fn content(&self) -> Result<Content, String> {
        let read = |path: &Path| {
            named_text::read_nonblocking(path, MOST)
                .map_err(|error| format!("failed to read {}: {error}", path.display()))
        };
        let authority = self.authority.as_deref().map(|path| {
            certificates(&read(path)?).map_err(|problem| format!("{}: {problem}", path.display()))
        });
        let identity = self.identity.as_ref().map(|(certificate, key)| {
            let found = identity(&read(certificate)?, &read(key)?);
            found.map_err(|problem| format!("{}: {problem}", certificate.display()))
        });
        Ok(Content { authority: authority.transpose()?, identity: identity.transpose()? })
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}

/// ◆ Parses a client certificate and its key, or returns the problem.
pub(crate) fn identity(certificate: &[u8], key: &[u8]) -> Result<Identity, String> {
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("client-key is not a PEM key: {error}"))?;
    let certificates = certificates(certificate);
    let certificates = certificates.map_err(|problem| format!("client-certificate {problem}"))?;
    Ok(Identity { certificates, key })
}

/// ◆ Parses PEM certificates, or returns the problem.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("has no PEM certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("has no valid PEM certificate: {error}")),
    }
}

/// A token file, and the last token.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    last: Mutex<Option<HeaderValue>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::default() }
    }

    /// The Authorization header with the token. If the file cannot be used, the last token applies.
    pub(crate) fn header(&self) -> Result<HeaderValue, ApiError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.read(), &*last) {
            (Ok(header), _) => Ok(last.insert(header).clone()),
            (Err(error), Some(last)) => {
                tracing::warn!(%error, "failed to read a token; the last one stays in use");
                Ok(last.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Discards the last token, which the server rejected.
    pub(crate) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn read(&self) -> Result<HeaderValue, ApiError> {
        let problem = |problem: String| {
            let path = self.path.display().to_string();
            ApiError::Token { path, problem }
        };
        let token = named_text::read_text_nonblocking(&self.path, MOST);
        let token = token.map_err(|error| problem(error.to_string()))?;
        let header = fetch::bearer(token.trim()).filter(|_| !token.trim().is_empty());
        header.ok_or_else(|| problem("no valid token".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn write(path: &Path, text: &str) {
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    #[test]
    fn replaced_files_are_reloaded_once_valid() {
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name));
        let pair = || rcgen::generate_simple_self_signed(["n1".to_owned()]).unwrap();
        let (first, second) = (pair(), pair());
        write(&certificate, &first.cert.pem());
        write(&key, &first.signing_key.serialize_pem());
        let mut files = Files::new(None, Some((certificate.clone(), key.clone())));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(files.replaced(at(0)).is_none());
        write(&certificate, &second.cert.pem());
        // The check interval has not passed.
        assert!(files.replaced(at(0)).is_none());
        write(&key, "");
        assert!(files.replaced(at(1)).is_none());
        write(&key, &second.signing_key.serialize_pem());
        let content = files.replaced(at(2)).unwrap();
        assert_eq!(content.identity.unwrap().certificates, [second.cert.der().clone()]);
        assert!(files.replaced(at(3)).is_none());
        files.reject_last("certificate and key do not match");
        assert!(files.replaced(at(4)).is_some());
        std::fs::remove_file(&key).unwrap();
        assert!(files.replaced(at(5)).is_none());
        assert!(Files::default().replaced(at(6)).is_none());
    }

    #[test]
    fn authority_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.crt");
        let made = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
        std::fs::write(&path, "").unwrap();
        let mut files = Files::new(Some(path.clone()), None);
        write(&path, &made.cert.pem());
        let content = files.replaced(Instant::now()).unwrap();
        assert_eq!(content.authority.unwrap(), [made.cert.der().clone()]);
    }

    #[test]
    fn token_file_without_end_is_refused() {
        let token = TokenFile::new("/dev/zero".into());
        let error = token.header().unwrap_err().to_string();
        assert_eq!(error, "failed to read token /dev/zero: it has more than 64 MiB");
    }

    #[test]
    fn unreadable_token_file_yields_last_token_unless_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = TokenFile::new(path.clone());
        assert!(token.header().is_err());
        write(&path, "one\n");
        assert_eq!(token.header().unwrap(), "Bearer one");
        write(&path, "two");
        assert_eq!(token.header().unwrap(), "Bearer two");
        write(&path, "");
        assert_eq!(token.header().unwrap(), "Bearer two");
        token.forget();
        assert!(token.header().is_err());
    }
}
