//! The node's lease: the sign of life by which the controller-manager tells a live node from a lost one.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/component-helpers/apimachinery/lease/controller.go, pkg/util/node SetNodeOwnerFunc.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::heartbeat::closes_connections;
use super::registration;
use crate::chance::jittered;
use crate::client::{ApiClient, ApiError};
use crate::time::micros;

const NAMESPACE: &str = "kube-node-lease";
/// The renewals per lease duration.
const RENEWALS: u32 = 4;
const JITTER: f64 = 0.04;
/// The attempts per period.
const MAX_TRIES: usize = 5;
/// The first delay before it is created or read again, and the maximum.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(7);

fn path(name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}")
}

/// ◆ The renewed lease. `base` is its last state; null if it does not exist. The node owns it, if its uid is known.
fn renewed(
    base: &Value,
    name: &str,
    duration: Duration,
    node_uid: Option<&str>,
    now: Timestamp,
) -> Value {
    let mut lease = base.clone();
    if lease.is_null() {
        lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": NAMESPACE},
        });
    }
    lease["spec"]["holderIdentity"] = json!(name);
    lease["spec"]["leaseDurationSeconds"] = json!(duration.as_secs());
    lease["spec"]["renewTime"] = json!(micros(now));
    if let Some(uid) = node_uid {
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
        lease["metadata"]["ownerReferences"] = json!([owner]);
    }
    lease
}

/// Renews the lease with this duration. Never returns. The lease is created once the node exists.
pub(crate) async fn run(client: ApiClient, name: String, duration: Duration) {
    let lease = Lease::new(client, name, duration);
    let mut latest = Value::Null;
    loop {
        if latest.is_null() {
            latest = lease.ensure_with_retry().await;
        } else {
            latest = lease.renew(latest).await;
        }
        sleep(jittered(duration / RENEWALS, JITTER)).await;
    }
}

pub(super) struct Lease {
    client: ApiClient,
    path: String,
    name: String,
    duration: Duration,
}

impl Lease {
    pub(super) fn new(client: ApiClient, name: String, duration: Duration) -> Self {
        Self { client, path: path(&name), name, duration }
    }

    /// Creates or renews the lease, and retries until that succeeds.
    async fn ensure_with_retry(&self) -> Value {
        let mut wait = RETRY;
        loop {
            match self.ensure().await {
                Ok(lease) => return lease,
                Err(error) => self.log(&error, "failed to ensure the node's lease; will retry"),
            }
            sleep(wait).await;
            wait = wait.saturating_mul(2).min(RETRY_MAX);
        }
    }

    async fn ensure(&self) -> Result<Value, ApiError> {
        match self.client.get(&self.path, &[]).await {
            Ok(lease) => self.put(&lease).await,
            Err(error) if error.is_not_found() => {
                let node = self.node().await?;
                let lease = self.renewed(&Value::Null, Some(&node));
                let leases = self.path.trim_end_matches(&self.name).trim_end_matches('/');
                self.client.create(leases, &lease).await
            }
            Err(error) => Err(error),
        }
    }

    /// Renews the lease; returns null if it must be created again.
    pub(super) async fn renew(&self, mut latest: Value) -> Value {
        for tried in 0..MAX_TRIES {
            match self.put(&latest).await {
                Ok(lease) => return lease,
                Err(error) => {
                    self.log(&error, "failed to renew the node's lease");
                    if closes_connections(tried, &error) {
                        self.client.reconnect();
                    }
                    if error.is_conflict() {
                        latest = self.ensure_with_retry().await;
                    } else if error.is_not_found() {
                        return Value::Null;
                    }
                }
            }
        }
        latest
    }

    async fn put(&self, latest: &Value) -> Result<Value, ApiError> {
        let has_owner = latest["metadata"]["ownerReferences"]
            .as_array()
            .is_some_and(|owners| !owners.is_empty());
        // A lease that someone else made belongs to the node as soon as there is one.
        let node = if has_owner { None } else { self.node().await.ok() };
        let lease = self.renewed(latest, node.as_deref());
        self.client.replace(&self.path, &lease).await
    }

    fn renewed(&self, base: &Value, node_uid: Option<&str>) -> Value {
        renewed(base, &self.name, self.duration, node_uid, Timestamp::now())
    }

    async fn node(&self) -> Result<String, ApiError> {
        let node = self.client.get(&registration::path(&self.name), &[]).await?;
        Ok(node["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    fn log(&self, error: &ApiError, message: &str) {
        let error = error as &dyn std::error::Error;
        tracing::warn!(node = %self.name, error, "{message}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn renewal_keeps_the_version_and_names_the_owner_once() {
        let now = "2026-11-28T10:00:00Z".parse().unwrap();
        let usual = Duration::from_secs(40);
        let new = renewed(&Value::Null, "n", usual, Some("u"), now);
        assert_eq!(
            new["spec"],
            json!({"holderIdentity": "n", "leaseDurationSeconds": 40, "renewTime": "2026-11-28T10:00:00.000000Z"})
        );
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]);
        assert_eq!(new["metadata"]["ownerReferences"], owner);
        let mut base = new.clone();
        base["metadata"]["resourceVersion"] = json!("7");
        let later = "2026-11-28T10:00:10Z".parse().unwrap();
        let next = renewed(&base, "n", usual, None, later);
        assert_eq!(next["metadata"], base["metadata"]);
        assert_eq!(next["spec"]["renewTime"], "2026-11-28T10:00:10.000000Z");
    }
}
