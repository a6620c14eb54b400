//! Gets service accounts, and requests their tokens, which the server issues for a pod.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/token/token_manager.go; staging/src/k8s.io/api/authentication/v1 TokenRequest.

use agent::cluster::{IssuedToken, TokenRequest};
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::{Value, json};

use crate::client::ApiClient;

/// ◆ The request for a token that is valid while the pod exists.
fn body(request: &TokenRequest) -> Value {
    let mut spec = json!({
        "expirationSeconds": request.seconds,
        "boundObjectRef": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": request.pod,
            "uid": request.uid.as_str(),
        },
    });
    if let Some(audience) = &request.audience {
        spec["audiences"] = json!([audience]);
    }
    let mut body =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    if let Some(uid) = &request.account_uid {
        body["metadata"] = json!({"uid": uid});
    }
    body
}

/// ◆ Parses the issued token.
fn issued(answer: &Value) -> Option<IssuedToken> {
    let status = &answer["status"];
    Some(IssuedToken {
        text: status["token"].as_str()?.to_owned(),
        expires_at: status["expirationTimestamp"].as_str()?.parse().ok()?,
    })
}

fn path(namespace: &str, account: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}")
}

/// Gets a service account. The error is text.
pub(crate) async fn service_account(
    client: &ApiClient,
    namespace: &str,
    name: &str,
) -> Result<ServiceAccount, String> {
    let answer = client.get(&path(namespace, name), &[]).await;
    let answer = answer.map_err(|error| error.to_string())?;
    serde_json::from_value(answer).map_err(|error| error.to_string())
}

/// Requests a token. The error is text.
pub(crate) async fn issue(
    client: &ApiClient,
    request: &TokenRequest,
) -> Result<IssuedToken, String> {
    let TokenRequest { namespace, account, .. } = request;
    let path = format!("{}/token", path(namespace, account));
    let answer = client.create(&path, &body(request)).await;
    let answer = answer.map_err(|error| error.to_string())?;
    issued(&answer).ok_or_else(|| "the API server's response has no token".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use api::pod::PodUid;

    use super::*;

    #[test]
    fn token_is_bound_to_its_pod() {
        let mut request = TokenRequest {
            uid: PodUid::new("u"),
            pod: "web".to_owned(),
            namespace: "ns".to_owned(),
            account: "robot".to_owned(),
            account_uid: None,
            audience: None,
            seconds: 3607,
        };
        let spec = body(&request)["spec"].clone();
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u"});
        assert_eq!(spec, json!({"expirationSeconds": 3607, "boundObjectRef": bound}));
        request.audience = Some("vault".to_owned());
        assert_eq!(body(&request)["spec"]["audiences"], json!(["vault"]));
        assert_eq!(body(&request).get("metadata"), None);
        request.account_uid = Some("a1".to_owned());
        assert_eq!(body(&request)["metadata"], json!({"uid": "a1"}));
    }

    #[test]
    fn answer_has_a_token_and_its_end() {
        let answer =
            json!({"status": {"token": "t", "expirationTimestamp": "2026-11-28T10:00:00Z"}});
        let issued = issued(&answer).unwrap();
        assert_eq!(issued.text, "t");
        assert_eq!(issued.expires_at, "2026-11-28T10:00:00Z".parse().unwrap());
        assert!(super::issued(&json!({"status": {}})).is_none());
    }
}
