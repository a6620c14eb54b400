//! Certificate requests: creates a CertificateSigningRequest, and waits until a signer or administrator approves and signs it.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/util/certificate/csr/csr.go.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512_256};
use tokio::time::timeout;

use crate::client::{ApiClient, ApiError, Change, Reflector};

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The request yielded no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request could not be made.
    #[error("failed to make a certificate signing request")]
    Make(#[from] rcgen::Error),
    /// The API server rejected it.
    #[error("failed to create a certificate signing request")]
    Create(#[source] ApiError),
    /// It was not approved, or could not be signed.
    #[error("certificate signing request {name} was {what}: {message}")]
    Refused {
        /// The request's name.
        name: String,
        /// The outcome: denied, not signed or deleted.
        what: &'static str,
        /// The reason.
        message: String,
    },
    /// The request was not approved in time.
    #[error(
        "certificate signing request {name} has no certificate after {limit:?}: approve it with kubectl certificate approve {name}"
    )]
    TimedOut {
        /// The request's name.
        name: String,
        /// The time that the agent waited.
        limit: Duration,
    },
}

/// A certificate to request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateRequest {
    /// The signer's name.
    pub(crate) signer: &'static str,
    pub(crate) common_name: String,
    pub(crate) organization: &'static str,
    /// The server's DNS names and IP addresses.
    pub(crate) names: Vec<String>,
    pub(crate) usages: &'static [&'static str],
}

impl CertificateRequest {
    /// The client certificate of a node.
    pub(crate) fn client(node: &str) -> Self {
        Self {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            common_name: format!("system:node:{node}"),
            organization: "system:nodes",
            names: Vec::new(),
            usages: &["digital signature", "client auth"],
        }
    }

    /// The serving certificate of a node.
    pub(crate) fn server(node: &str, names: Vec<String>) -> Self {
        Self {
            signer: "kubernetes.io/kubelet-serving",
            common_name: format!("system:node:{node}"),
            organization: "system:nodes",
            names,
            usages: &["digital signature", "server auth"],
        }
    }

    /// ◆ The request's name, derived from the key and subject, so that a restarted agent finds its request again.
    pub(crate) fn name_from_digest(&self, key: &KeyPair) -> String {
        let parts = [self.common_name.as_str(), self.organization].into_iter();
        let parts = parts.chain(self.usages.iter().copied()).map(str::as_bytes);
        let mut hash = Sha512_256::new();
        for part in [key.subject_public_key_info().as_slice()].into_iter().chain(parts) {
            hash.update(BASE64_URL_SAFE_NO_PAD.encode(part));
            hash.update("|");
        }
        format!("node-csr-{}", BASE64_URL_SAFE_NO_PAD.encode(hash.finalize()))
    }

    fn signing_request(&self, key: &KeyPair) -> Result<String, rcgen::Error> {
        let mut params = CertificateParams::new(self.names.clone())?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, self.organization);
        params.distinguished_name.push(DnType::CommonName, self.common_name.clone());
        params.serialize_request(key)?.pem()
    }
}

/// ◆ The CertificateSigningRequest. Without a name, the server generates one that begins with `csr-`.
fn object(template: &CertificateRequest, request: &str, name: Option<&str>) -> Value {
    let metadata = match name {
        Some(name) => json!({"name": name}),
        None => json!({"generateName": "csr-"}),
    };
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": metadata,
        "spec": {
            "request": BASE64_STANDARD.encode(request),
            "signerName": template.signer,
            "usages": template.usages,
        },
    })
}

/// ◆ The outcome of a request; `None` while it is pending.
fn outcome(csr: &Value) -> Option<Result<String, (&'static str, String)>> {
    let conditions = csr["status"]["conditions"].as_array();
    let find =
        |kind: &str| conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
    for (kind, what) in [("Denied", "denied"), ("Failed", "not signed")] {
        if let Some(condition) = find(kind) {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            let message = format!("{} ({})", text("message"), text("reason"));
            return Some(Err((what, message)));
        }
    }
    find("Approved")?;
    let certificate = csr["status"]["certificate"].as_str().filter(|text| !text.is_empty())?;
    let decoded = BASE64_STANDARD.decode(certificate).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    Some(text.ok_or_else(|| ("not signed", "the certificate is not PEM".to_owned())))
}

/// Requests a certificate for this key, waits until it is signed, and returns it in PEM. If a request called `name` already
/// exists, this function waits for that request.
pub(crate) async fn request(
    client: &ApiClient,
    template: &CertificateRequest,
    key: &KeyPair,
    name: Option<&str>,
    limit: Duration,
) -> Result<String, RequestError> {
    let object = object(template, &template.signing_request(key)?, name);
    let created = match client.create(PATH, &object).await {
        Err(error) if error.is_already_exists() && name.is_some() => object,
        created => created.map_err(RequestError::Create)?,
    };
    let name = created["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    tracing::info!(csr = %name, signer = template.signer, "waiting for a certificate to be signed");
    let mut following =
        Reflector::new(client.clone(), PATH).with_fields(format!("metadata.name={name}"));
    let waiting = async {
        let mut is_known = false;
        loop {
            if let Change::Failed(error) = following.next().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(csr = %name, error, "failed to watch the certificate signing request; will retry");
                continue;
            }
            match following.objects().values().next() {
                Some(csr) => {
                    is_known = true;
                    if let Some(outcome) = outcome(csr) {
                        return outcome;
                    }
                }
                None if is_known => {
                    return Err(("deleted", "the object no longer exists".to_owned()));
                }
                None => {}
            }
        }
    };
    match timeout(limit, waiting).await {
        Ok(Ok(certificate)) => Ok(certificate),
        Ok(Err((what, message))) => Err(RequestError::Refused { name, what, message }),
        Err(_) => Err(RequestError::TimedOut { name, limit }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[test]
    fn request_names_signer_usages_and_subject() {
        let template = CertificateRequest::client("n1");
        let key = KeyPair::generate().unwrap();
        let name = template.name_from_digest(&key);
        assert!(name.starts_with("node-csr-") && name.len() == 9 + 43, "{name}");
        assert_eq!(template.name_from_digest(&key), name);
        assert_ne!(template.name_from_digest(&KeyPair::generate().unwrap()), name);
        let pem = template.signing_request(&key).unwrap();
        let object = object(&template, &pem, Some(&name));
        assert_eq!(object["metadata"], json!({"name": name}));
        let spec = &object["spec"];
        assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
        assert_eq!(spec["request"], BASE64_STANDARD.encode(&pem));
        let later = super::object(&template, &pem, None);
        assert_eq!(later["metadata"], json!({"generateName": "csr-"}));
    }

    #[rstest]
    #[case::new(json!({}), None)]
    #[case::approved(json!({"conditions": [{"type": "Approved"}]}), None)]
    #[case::unapproved(json!({"certificate": "UEVN"}), None)]
    #[case::signed(json!({"conditions": [{"type": "Approved"}], "certificate": "UEVN"}), Some(Ok("PEM")))]
    #[case::denied(
        json!({"conditions": [{"type": "Denied", "reason": "R", "message": "m"}]}),
        Some(Err(("denied", "m (R)")))
    )]
    #[case::failed(
        json!({"conditions": [{"type": "Approved"}, {"type": "Failed", "reason": "R", "message": "m"}]}),
        Some(Err(("not signed", "m (R)")))
    )]
    fn outcome_is_certificate_or_rejection(
        #[case] status: Value,
        #[case] expected: Option<Result<&str, (&'static str, &str)>>,
    ) {
        let found = outcome(&json!({"status": status}));
        let owned = expected.map(|expected| {
            expected.map(str::to_owned).map_err(|(what, message)| (what, message.to_owned()))
        });
        assert_eq!(found, owned);
    }
}
