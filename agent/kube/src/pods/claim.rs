//! The PersistentVolumeClaims that pods name, and the volumes that are bound to them.
//!
//! The node authorizer allows a node to get both by name, but not to watch them: the agent polls a claim, at a lower rate once it
//! is bound.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go getPVCExtractPV, getPVSpec.

use std::sync::Arc;
use std::time::Duration;

use agent::objects::BoundClaim;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::watch_targets::{FIRST_ANSWERS, FORBIDDEN_RETRY, WatchResult, WatchTarget};
use crate::chance::jittered;
use crate::client::{ApiClient, ApiError};

/// The poll intervals of a claim that cannot be used, and of a bound one.
const UNBOUND_POLL: Duration = Duration::from_secs(2);
const BOUND_POLL: Duration = Duration::from_secs(60);
const JITTER: f64 = 0.2;

/// The finalizer that protects a claim in use. A deleted claim without it must not be used.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Polls a claim. Its last known state stays while the server is unreachable.
pub(super) async fn poll_claim(
    client: ApiClient,
    namespace: String,
    name: String,
    watched: WatchTarget,
    answers: mpsc::UnboundedSender<(WatchTarget, WatchResult)>,
) {
    let mut last = None;
    let patient_until = Instant::now() + FIRST_ANSWERS;
    loop {
        let found = bound(&client, &namespace, &name).await;
        if last.is_none()
            && matches!(found, Err(Unusable::Forbidden(_)))
            && Instant::now() + FORBIDDEN_RETRY <= patient_until
        {
            sleep(FORBIDDEN_RETRY).await;
            continue;
        }
        let is_bound = found.is_ok();
        let answer = match found {
            Ok(found) => Some(Ok(found)),
            Err(Unusable::Unavailable(error)) => {
                tracing::warn!(claim = %format_args!("{namespace}/{name}"), error = &error as &dyn std::error::Error, "failed to get the claim of a pod; will retry");
                let first = || format!("failed to fetch PVC from API server: {error}");
                last.is_none().then(|| Err(first()))
            }
            Err(Unusable::Forbidden(reason) | Unusable::Refused(reason)) => Some(Err(reason)),
        };
        if let Some(answer) = answer.filter(|answer| last.as_ref() != Some(answer)) {
            last = Some(answer.clone());
            if answers.send((watched.clone(), WatchResult::Claim(answer))).is_err() {
                return;
            }
        }
        sleep(jittered(if is_bound { BOUND_POLL } else { UNBOUND_POLL }, JITTER)).await;
    }
}

/// The reason that a claim cannot be used.
enum Unusable {
    /// The request failed without an answer about the claim.
    Unavailable(ApiError),
    /// The server forbids the request, perhaps because it does not know the pod yet.
    Forbidden(String),
    /// A reason in the kubelet's words.
    Refused(String),
}

impl Unusable {
    /// Converts the error of a request for `what`.
    fn of(error: ApiError, what: &str) -> Self {
        let is_forbidden = error.is_forbidden();
        if let ApiError::Refused { code: 400..=499, message, .. } = error {
            let reason = format!("failed to fetch {what} from API server: {message}");
            return if is_forbidden { Self::Forbidden(reason) } else { Self::Refused(reason) };
        }
        Self::Unavailable(error)
    }
}

async fn bound(client: &ApiClient, namespace: &str, name: &str) -> Result<BoundClaim, Unusable> {
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
    let claim: PersistentVolumeClaim = object(client, &path, "PVC").await?;
    let volume = volume_of(&claim).map_err(Unusable::Refused)?;
    let what = format!("PV {volume}");
    let path = format!("/api/v1/persistentvolumes/{volume}");
    let volume: PersistentVolume = object(client, &path, &what).await?;
    check(&volume, &claim).map_err(Unusable::Refused)?;
    Ok(BoundClaim { claim: Arc::new(claim), volume: Arc::new(volume) })
}

async fn object<T: DeserializeOwned>(
    client: &ApiClient,
    path: &str,
    what: &str,
) -> Result<T, Unusable> {
    let value = client.get(path, &[]).await.map_err(|error| Unusable::of(error, what))?;
    serde_json::from_value(value)
        .map_err(|error| Unusable::Unavailable(ApiError::Malformed(error.to_string())))
}

/// ◆ The name of the volume that a claim is bound to; an error if the claim is not bound or cannot be used.
fn volume_of(claim: &PersistentVolumeClaim) -> Result<&str, String> {
    let metadata = &claim.metadata;
    let mut finalizers = metadata.finalizers.iter().flatten();
    if metadata.deletion_timestamp.is_some() && !finalizers.any(|it| it == PROTECTION) {
        return Err("PVC is being deleted".to_owned());
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err("PVC is not bound".to_owned());
    }
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let volume = volume.filter(|name| !name.is_empty());
    volume.ok_or_else(|| "PVC has empty pvc.Spec.VolumeName".to_owned())
}

/// ◆ Checks that the volume is bound to the claim as well.
fn check(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let bound = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some(bound) = bound else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let uid = |uid: &Option<String>| uid.clone().unwrap_or_default();
    let (bound, expected) = (uid(&bound.uid), uid(&claim.metadata.uid));
    if bound != expected {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {bound} does not point to claim.UID {expected}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn claim(metadata: Value, status: Value, volume: &str) -> PersistentVolumeClaim {
        let claim = json!({"metadata": metadata, "spec": {"volumeName": volume}, "status": status});
        serde_json::from_value(claim).unwrap()
    }

    #[rstest]
    #[case::bound(json!({}), "Bound", "pv", Ok("pv"))]
    #[case::pending(json!({}), "Pending", "pv", Err("PVC is not bound"))]
    #[case::unnamed(json!({}), "Bound", "", Err("PVC has empty pvc.Spec.VolumeName"))]
    #[case::deleted(json!({"deletionTimestamp": "2026-11-28T10:00:00Z"}), "Bound", "pv", Err("PVC is being deleted"))]
    #[case::protected(json!({"deletionTimestamp": "2026-11-28T10:00:00Z", "finalizers": [PROTECTION]}), "Bound", "pv", Ok("pv"))]
    fn claim_is_usable_once_it_is_bound(
        #[case] metadata: Value,
        #[case] phase: &str,
        #[case] volume: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let claim = claim(metadata, json!({"phase": phase}), volume);
        assert_eq!(volume_of(&claim), expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case::of_the_claim(json!({"claimRef": {"uid": "u"}}), None)]
    #[case::unbound(json!({}), Some("found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"))]
    #[case::of_another(json!({"claimRef": {"uid": "v"}}), Some("found PV object pv but its pv.Spec.ClaimRef.UID v does not point to claim.UID u"))]
    fn volume_is_bound_to_the_claim_of_the_uid(
        #[case] spec: Value,
        #[case] expected: Option<&str>,
    ) {
        let claim = claim(json!({"uid": "u"}), json!({"phase": "Bound"}), "pv");
        let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
        let volume = serde_json::from_value(volume).unwrap();
        assert_eq!(check(&volume, &claim).err().as_deref(), expected);
    }
}
