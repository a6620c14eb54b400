//! TLS without verification: a probe checks only that a server answers.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, InvalidMessage, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::error::Problem;
use crate::checks::dialer::{self, Connection};

/// Accepts every certificate.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn config() -> Result<Arc<ClientConfig>, Error> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        .with_no_client_auth();
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

/// Does the handshake on a connection.
pub(super) async fn wrap(
    plain: Box<dyn Connection>,
    host: &str,
) -> Result<Box<dyn Connection>, Problem> {
    let config = config().map_err(|error| Problem::Tls(error.to_string()))?;
    let name = host.split('%').next().unwrap_or_default().to_owned();
    let name = ServerName::try_from(name).map_err(|error| Problem::Tls(error.to_string()))?;
    let stream = TlsConnector::from(config).connect(name, plain).await.map_err(|error| {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Problem::PlainHttp,
            Some(cause) => Problem::Tls(format!("tls: {cause}")),
            None if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Problem::Tls("EOF".to_owned())
            }
            None => Problem::Tls(dialer::go_error_text(&error)),
        }
    })?;
    Ok(Box::new(stream))
}
