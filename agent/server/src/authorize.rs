//! Authorizes users with SubjectAccessReviews, whose results are cached.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go InstallAuthFilter.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube_node::client::ApiClient;
use serde_json::json;

use super::expiring::ExpiringCache;
use super::subject::User;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The key of a review: user, verb and subresource.
type AccessReview = (User, &'static str, &'static str);

/// The reason that authorization failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unauthorized {
    /// The user lacks the permission.
    #[error(
        "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n"
    )]
    Forbidden {
        /// The user.
        user: String,
        /// The verb.
        verb: &'static str,
        /// The subresources, any one of which would have sufficed.
        subresources: String,
    },
    /// The API server was unreachable, or its answer is inconclusive.
    #[error(
        "Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})"
    )]
    Unknown {
        /// The user.
        user: String,
        /// The verb.
        verb: &'static str,
        /// The subresource.
        subresource: &'static str,
    },
}

/// The authorization mode.
#[derive(Debug)]
pub(crate) enum Authorizer {
    /// Allows everything.
    AlwaysAllow,
    /// Delegates to the API server.
    Webhook(Box<AccessReviewer>),
}

/// Reviews permissions with the API server, and caches the results.
#[derive(Debug)]
pub(crate) struct AccessReviewer {
    pub(crate) client: Option<ApiClient>,
    pub(crate) node: String,
    /// The lifetime of a cached permission.
    pub(crate) allowed_ttl: Duration,
    /// The lifetime of a cached denial.
    pub(crate) denied_ttl: Duration,
    pub(crate) cache: Mutex<ExpiringCache<AccessReview, bool>>,
}

impl Authorizer {
    /// Checks that the user may use the verb on one of these subresources of the node.
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
    /// Whether the request is allowed; `None` if the API server gives no answer.
    async fn review(&self, review_key: AccessReview) -> Option<bool> {
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&review_key, Instant::now()) {
            return Some(*known);
        }
        let client = self.client.as_ref()?;
        let (user, verb, subresource) = &review_key;
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
        let answer = match client.review(REVIEWS, &request).await {
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
        let ttl = if allowed { self.allowed_ttl } else { self.denied_ttl };
        let now = Instant::now();
        lock().insert(review_key, allowed, now + ttl, now);
        Some(allowed)
    }
}
