//! The server's certificate and key, from files or self-signed, and the verification of client certificates.
//!
//! As in the kubelet, a client may present any certificate: one of another authority authenticates nobody, but the handshake
//! succeeds.

mod client_authority;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use file_tree::named_text::{self, MOST};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ALL_VERSIONS, DigitallySignedStruct, DistinguishedName as Subject, Error, RootCertStore,
    ServerConfig, SignatureScheme, SupportedCipherSuite,
};
use tokio_rustls::TlsAcceptor;

use super::Settings;
pub(crate) use client_authority::ClientAuthority;

/// The certificate or the client authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file cannot be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No certificate can be generated.
    #[error("failed to generate a certificate")]
    Make(#[from] rcgen::Error),
    /// The certificate cannot be served.
    #[error("failed to use the certificate {}", path.display())]
    Use {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The authority cannot verify certificates.
    #[error("failed to use the client authority {}: {problem}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The certificate and its intermediate authorities, in PEM.
    pub certificate: PathBuf,
    /// The key, in PEM.
    pub key: PathBuf,
}

impl KeyPairFiles {
    /// The files in a directory. Generates a certificate for these names unless one exists.
    ///
    /// # Errors
    /// If the certificate cannot be generated or written.
    pub fn own(directory: &Path, names: &[String]) -> Result<Self, TlsError> {
        let files =
            Self { certificate: directory.join("kubelet.crt"), key: directory.join("kubelet.key") };
        if files.certificate.exists() && files.key.exists() {
            return Ok(files);
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        let name = names.first().cloned().unwrap_or_default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let made = params.self_signed(&key)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Write { path, source }
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        write(&files.key, &key.serialize_pem()).map_err(failed(&files.key))?;
        write(&files.certificate, &made.pem()).map_err(failed(&files.certificate))?;
        Ok(files)
    }
}

/// Atomically writes a file that only its owner may read.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

/// A verifier of client certificates with the authorities in a file.
pub(crate) fn client_verifier(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let problem = |problem: String| TlsError::Authority { path: path.to_owned(), problem };
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| problem(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let built: Arc<dyn ClientCertVerifier> =
        verifier.build().map_err(|error| problem(error.to_string()))?;
    Ok(built)
}

/// The TLS settings of new connections, with the current certificate and client authorities.
pub(crate) struct Tls {
    served: Arc<dyn ResolvesServerCert>,
    authority: Option<Arc<ClientAuthority>>,
    settings: Settings,
    last: Mutex<Last>,
}

/// The last acceptor, and the verifier whose authorities it sends to clients.
struct Last {
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    acceptor: TlsAcceptor,
}

impl Tls {
    pub(crate) fn new(
        served: Arc<dyn ResolvesServerCert>,
        authority: Option<Arc<ClientAuthority>>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let verifier = authority.as_ref().map(|authority| authority.verifier());
        let acceptor = acceptor(Arc::clone(&served), verifier.as_ref(), settings)?;
        let last = Mutex::new(Last { verifier, acceptor });
        Ok(Self { served, authority, settings: settings.clone(), last })
    }

    /// The acceptor for the next client. It must send the current authorities: clients such as Go's present only certificates of
    /// these.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(authority) = &self.authority {
            let verifier = authority.verifier();
            let is_named = last.verifier.as_ref().is_some_and(|last| Arc::ptr_eq(last, &verifier));
            if !is_named {
                match acceptor(Arc::clone(&self.served), Some(&verifier), &self.settings) {
                    Ok(acceptor) => *last = Last { verifier: Some(verifier), acceptor },
                    Err(error) => tracing::warn!(%error, "failed to reload TLS"),
                }
            }
        }
        last.acceptor.clone()
    }
}

/// Creates an acceptor that serves the certificate, and requests a client certificate if there is a verifier.
fn acceptor(
    served: Arc<dyn ResolvesServerCert>,
    verifier: Option<&Arc<dyn ClientCertVerifier>>,
    settings: &Settings,
) -> Result<TlsAcceptor, Error> {
    let versions = if settings.requires_tls_1_3 { &[&TLS13][..] } else { ALL_VERSIONS };
    let provider = with_suites(&settings.cipher_suites);
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let config = match verifier {
        Some(verifier) => {
            let any = AnyCertificate(Arc::clone(verifier));
            config.with_client_cert_verifier(Arc::new(any))
        }
        None => config.with_no_client_auth(),
    };
    let mut config = config.with_cert_resolver(served);
    // Upgrades need HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A provider with these TLS 1.2 cipher suites and all of TLS 1.3; without names, with all suites.
fn with_suites(names: &[String]) -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    if names.is_empty() {
        return Arc::new(provider);
    }
    let is_named = |suite: &SupportedCipherSuite| {
        let own = format!("{:?}", suite.suite());
        // Go uses shorter names for these.
        let short = own.strip_suffix("_SHA256").filter(|own| own.ends_with("_POLY1305"));
        names.iter().any(|name| *name == own || Some(name.as_str()) == short)
    };
    provider.cipher_suites.retain(|suite| suite.tls13().is_some() || is_named(suite));
    Arc::new(provider)
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads a PEM file, which another program may replace.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    named_text::read_nonblocking(path, MOST)
        .map_err(|error| TlsError::Read { path: path.to_owned(), problem: error.to_string() })
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let problem = |problem: String| TlsError::Read { path: path.to_owned(), problem };
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| problem(error.to_string()))?;
    if found.is_empty() {
        return Err(problem("no certificate in the file".to_owned()));
    }
    Ok(found)
}

/// Accepts any certificate whose key the client has. Each request verifies the certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[Subject] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use rustls::client::ResolvesClientCert;
    use rustls::pki_types::ServerName;
    use rustls::sign::CertifiedKey;
    use rustls::{ClientConfig, SignatureScheme};
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::served_certificate::ServedCertificate;
    use crate::{Authorization, Handlers};

    #[test]
    fn suites_of_tls_1_2_are_chosen_by_name() {
        let count = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let provider = with_suites(&names);
            let of_1_2 = provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none());
            let all = provider.cipher_suites.len();
            (of_1_2.count(), all)
        };
        assert_eq!(count(&[]), (6, 9));
        assert_eq!(count(&["TLS_AES_128_GCM_SHA256"]), (0, 3));
        let two =
            ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"];
        assert_eq!(count(&two), (2, 5));
    }

    #[test]
    fn self_signed_certificate_is_generated_once_with_private_mode() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let names = ["n1".to_owned(), "127.0.0.1".to_owned()];
        let files = KeyPairFiles::own(&pki, &names).unwrap();
        let first = fs::read(&files.certificate).unwrap();
        let mode = fs::metadata(&files.key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&pki).unwrap().count(), 2);
        assert_eq!(certificates(&files.certificate).unwrap().len(), 1);
        assert_eq!(KeyPairFiles::own(&pki, &names).unwrap(), files);
        assert_eq!(fs::read(&files.certificate).unwrap(), first);
        // As after a process that was killed before it wrote the certificate.
        fs::remove_file(&files.certificate).unwrap();
        KeyPairFiles::own(&pki, &names).unwrap();
        client_verifier(&files.certificate).map(drop).unwrap();
    }

    #[test]
    fn unusable_file_error_has_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty");
        fs::write(&empty, "").unwrap();
        let error = client_verifier(&empty).unwrap_err().to_string();
        let expected = format!("failed to read {}: no certificate in the file", empty.display());
        assert_eq!(error, expected);
    }

    /// A client without a certificate, which records the number of authorities that the server sends.
    #[derive(Debug, Default)]
    struct Named(Mutex<Vec<usize>>);

    impl ResolvesClientCert for Named {
        fn resolve(
            &self,
            authorities: &[&[u8]],
            _: &[SignatureScheme],
        ) -> Option<Arc<CertifiedKey>> {
            self.0.lock().unwrap().push(authorities.len());
            None
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn handshake_sends_current_client_authorities() {
        let dir = tempfile::tempdir().unwrap();
        let files = KeyPairFiles::own(&dir.path().join("pki"), &["n1".to_owned()]).unwrap();
        let file = dir.path().join("ca.crt");
        let authority =
            || rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem();
        fs::write(&file, authority()).unwrap();
        let settings = Settings {
            address: ([127, 0, 0, 1], 0).into(),
            any_port: false,
            certificate: files.clone(),
            reloads_certificate: true,
            signed: None,
            client_authority: Some(file.clone()),
            reloads_client_authority: true,
            reads_user_ids: true,
            anonymous: false,
            token_reviews: None,
            authorization: Authorization::AlwaysAllow,
            requires_tls_1_3: false,
            cipher_suites: Vec::new(),
            handlers: Handlers::default(),
        };
        let served = Arc::new(ServedCertificate::new(files.clone(), None, true).unwrap());
        let known = Arc::new(ClientAuthority::new(file.clone(), true).unwrap());
        let tls = Tls::new(served, Some(known), &settings).unwrap();

        let mut roots = RootCertStore::empty();
        roots.add(certificates(&files.certificate).unwrap().remove(0)).unwrap();
        let named = Arc::new(Named::default());
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let resolver: Arc<dyn ResolvesClientCert> = named.clone();
        let connector = TlsConnector::from(Arc::new(config.with_client_cert_resolver(resolver)));
        let shake_hands = async || {
            let (client, server) = tokio::io::duplex(1 << 16);
            let name = ServerName::try_from("n1").unwrap();
            let accepting = tls.acceptor();
            let (connected, accepted) =
                tokio::join!(connector.connect(name, client), accepting.accept(server));
            (connected.unwrap(), accepted.unwrap())
        };
        drop(shake_hands().await);
        // The file's length changes.
        fs::write(&file, authority() + &authority()).unwrap();
        drop(shake_hands().await);
        assert_eq!(*named.0.lock().unwrap(), [1, 2]);
    }
}
