//! What a user may do: asked of the API server by SubjectAccessReviews, whose answers count for a while.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go InstallAuthFilter.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube_node::client::ApiClient;
use serde_json::json;

use super::expiring::Expiring;
use super::subject::User;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// What is asked about: a user, a verb and a subresource.
type Question = (User, &'static str, &'static str);

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unauthorized {
    /// The user may not do that.
    #[error(
        "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n"
    )]
    Forbidden {
        /// Who.
        user: String,
        /// What.
        verb: &'static str,
        /// To what, any one of which had been enough.
        subresources: String,
    },
    /// The API server did not say.
    #[error(
        "Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})"
    )]
    Unknown {
        /// Who.
        user: String,
        /// What.
        verb: &'static str,
        /// To what.
        subresource: &'static str,
    },
}

/// Who decides.
#[derive(Debug)]
pub(crate) enum Authorizer {
    /// Nobody: all may do everything.
    AlwaysAllow,
    /// The API server.
    Webhook(Box<AccessReviewer>),
}

/// Asks the API server about rights, and remembers the answers.
#[derive(Debug)]
pub(crate) struct AccessReviewer {
    pub(crate) client: Option<ApiClient>,
    pub(crate) node: String,
    /// How long a permission counts.
    pub(crate) keep_allowed: Duration,
    /// How long a refusal counts.
    pub(crate) keep_refused: Duration,
    pub(crate) known: Mutex<Expiring<Question, bool>>,
}

impl Authorizer {
    /// Whether a user may do something to one of these subresources of the node.
    pub(crate) async fn check(
        &self,
        user: &User,
        verb: &'static str,
        subresources: &[&'static str],
    ) -> Result<(), Unauthorized> {
        let Self::Webhook(reviewer) = self else {
            return Ok(());
        };
        for subresource in subresources {
            match reviewer.review((user.clone(), verb, subresource)).await {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => {
                    let user = user.name.clone();
                    return Err(Unauthorized::Unknown { user, verb, subresource });
                }
            }
        }
        let (user, subresources) = (user.name.clone(), subresources.join(" "));
        Err(Unauthorized::Forbidden { user, verb, subresources })
    }
}

impl AccessReviewer {
    /// Whether it is allowed; `None` if the API server does not say.
    async fn review(&self, question: Question) -> Option<bool> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&question, Instant::now()) {
            return Some(*known);
        }
        let client = self.client.as_ref()?;
        let (user, verb, subresource) = &question;
        let request = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "uid": user.uid,
                "groups": user.groups,
                "extra": user.extra,
                "resourceAttributes": {
                    "verb": verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": subresource,
                    "name": self.node,
                },
            },
        });
        let answer = match client.create(REVIEWS, &request).await {
            Ok(answer) => answer,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    user = user.name,
                    verb,
                    subresource,
                    error,
                    "failed to review access"
                );
                return None;
            }
        };
        let allowed = answer["status"]["allowed"] == true;
        let keep = if allowed { self.keep_allowed } else { self.keep_refused };
        let now = Instant::now();
        lock().insert(question, allowed, now + keep, now);
        Some(allowed)
    }
}
