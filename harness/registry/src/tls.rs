//! Makes a certificate for a registry on this machine, with an authority of its own.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

/// Why generating the certificate failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    /// Generating the key or the certificate failed.
    #[error("failed to make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The certificate cannot be served.
    #[error("failed to serve the certificate")]
    Serve(#[from] rustls::Error),
}

/// A TLS acceptor, and the authority's certificate in PEM.
pub(super) fn acceptor(address: IpAddr) -> Result<(TlsAcceptor, String), TlsError> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let name = &mut authority.distinguished_name;
    name.push(DnType::CommonName, "crib registry");
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let mut leaf = CertificateParams::new(names)?;
    let own = SanType::IpAddress(address);
    if !address.is_unspecified() && !leaf.subject_alt_names.contains(&own) {
        leaf.subject_alt_names.push(own);
    }
    let key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&key, &issuer)?;
    let secret = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], secret)?;
    Ok((TlsAcceptor::from(Arc::new(config)), issuer.pem()))
}
