//! ◆ The input and output of credential plugins. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go and
//! staging/src/k8s.io/client-go/pkg/apis/clientauthentication/v1/types.go.

use fetch::Identity;
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer};
use http::HeaderValue;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

/// The supported API versions. A kubeconfig names one.
pub(crate) const VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// A plugin's credential.
#[derive(Debug)]
pub(crate) struct Credential {
    /// The Authorization header.
    pub(crate) header: Option<HeaderValue>,
    /// The client's certificate.
    pub(crate) identity: Option<Identity>,
    /// The expiry; `None`: the credential is used until the server rejects it.
    pub(crate) expires_at: Option<Timestamp>,
}

impl Credential {
    pub(crate) fn is_valid(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|expires_at| now <= expires_at)
    }
}

/// The value of `KUBERNETES_EXEC_INFO`: not interactive, with the cluster if the kubeconfig requests that.
pub(crate) fn exec_info(version: &str, cluster: Option<&Value>) -> String {
    let mut exec_info = json!({
        "kind": "ExecCredential",
        "apiVersion": version,
        "spec": {"interactive": false},
    });
    if let Some(cluster) = cluster {
        exec_info["spec"]["cluster"] = cluster.clone();
    }
    exec_info.to_string()
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: String,
    client_certificate_data: String,
    client_key_data: String,
}

/// Parses a plugin's output in this version.
pub(crate) fn parse(printed: &[u8], version: &str) -> Result<Credential, String> {
    let answer: ExecCredential = serde_json::from_slice(printed)
        .map_err(|error| format!("output is not an ExecCredential: {error}"))?;
    if answer.kind != "ExecCredential" || answer.api_version != version {
        return Err(format!(
            "expected an ExecCredential of version {version}, got {:?} of {:?}",
            answer.kind, answer.api_version
        ));
    }
    let Some(status) = answer.status else {
        return Err("output has no status".to_owned());
    };
    let expires_at = status.expiration_timestamp.map(|text| {
        text.parse::<Timestamp>().map_err(|_| format!("expirationTimestamp {text:?} is not a time"))
    });
    let header = match status.token.as_str() {
        "" => None,
        token => Some(
            fetch::bearer(token)
                .ok_or("the token contains characters that are invalid in a header")?,
        ),
    };
    let identity = match (status.client_certificate_data.as_str(), status.client_key_data.as_str())
    {
        ("", "") if header.is_none() => {
            return Err("output has neither a token nor a certificate with its key".to_owned());
        }
        ("", "") => None,
        ("", _) | (_, "") => {
            return Err("output has only one of clientCertificateData and clientKeyData".to_owned());
        }
        (certificates, key) => Some(identity(certificates.as_bytes(), key.as_bytes())?),
    };
    Ok(Credential { header, identity, expires_at: expires_at.transpose()? })
}

fn identity(certificates: &[u8], key: &[u8]) -> Result<Identity, String> {
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("clientKeyData is not a PEM key: {error}"))?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(certificates)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("clientCertificateData is not a PEM certificate: {error}"))?;
    match certificates.is_empty() {
        true => Err("clientCertificateData has no PEM certificate".to_owned()),
        false => Ok(Identity { certificates, key }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    const V1: &str = VERSIONS[0];

    fn answer(status: &str) -> String {
        format!(r#"{{"apiVersion":"{V1}","kind":"ExecCredential","status":{status}}}"#)
    }

    #[test]
    fn plugin_is_told_the_version_and_the_cluster() {
        let cluster = json!({"server": "https://h"});
        let exec_info: Value = serde_json::from_str(&exec_info(V1, Some(&cluster))).unwrap();
        assert_eq!(exec_info["apiVersion"], V1);
        assert_eq!(
            exec_info["spec"],
            json!({"interactive": false, "cluster": {"server": "https://h"}})
        );
    }

    #[test]
    fn token_is_good_until_its_end() {
        let text = answer(r#"{"token": "t", "expirationTimestamp": "2026-11-28T10:00:00Z"}"#);
        let found = parse(text.as_bytes(), V1).unwrap();
        assert_eq!(found.header.as_ref().unwrap(), "Bearer t");
        assert!(found.is_valid("2026-11-28T10:00:00Z".parse().unwrap()));
        assert!(!found.is_valid("2026-11-28T10:00:01Z".parse().unwrap()));
        let unlimited = parse(answer(r#"{"token": "t"}"#).as_bytes(), V1).unwrap();
        assert!(unlimited.is_valid(Timestamp::MAX));
    }

    #[test]
    fn credential_has_certificate_and_key() {
        let made = rcgen::generate_simple_self_signed(["n".to_owned()]).unwrap();
        let status = json!({
            "clientCertificateData": made.cert.pem(),
            "clientKeyData": made.signing_key.serialize_pem(),
        });
        let found = parse(answer(&status.to_string()).as_bytes(), V1).unwrap();
        assert_eq!(found.identity.unwrap().certificates, [made.cert.der().clone()]);
    }

    #[rstest]
    #[case::nothing("", "output is not an ExecCredential: ")]
    #[case::version(
        r#"{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":{"token":"t"}}"#,
        "expected an ExecCredential of version client.authentication.k8s.io/v1, got"
    )]
    #[case::no_status(
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}"#,
        "output has no status"
    )]
    #[case::empty(&answer("{}"), "output has neither a token")]
    #[case::half(&answer(r#"{"clientKeyData": "k"}"#), "output has only one of clientCertificateData")]
    #[case::key(&answer(r#"{"clientKeyData": "k", "clientCertificateData": "c"}"#), "clientKeyData is not a PEM key")]
    #[case::time(&answer(r#"{"token": "t", "expirationTimestamp": "soon"}"#), "expirationTimestamp \"soon\" is not a time")]
    fn read_rejects_malformed_credentials(#[case] text: &str, #[case] problem: &str) {
        let error = parse(text.as_bytes(), V1).unwrap_err();
        assert!(error.starts_with(problem), "{error}");
    }
}
