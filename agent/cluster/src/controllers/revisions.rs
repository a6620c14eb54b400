//! ◆ The ReplicaSets of a Deployment: one for its template, and one for each earlier template. Pure.
//!
//! A controller's pods refer to them as their owners. They affect no decision, and only show the progress of a rollout.
//!
//! Source: Kubernetes 1.36, getNewReplicaSet of pkg/controller/deployment/sync.go, SetNewReplicaSetAnnotations and
//! SetReplicasAnnotations of util/deployment_util.go, cleanupDeployment of sync.go.

use std::collections::{BTreeMap, BTreeSet};

use api::manifest::{Workload, WorkloadObject, to_json};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value, json};

use super::owned::OwnedPod;
use super::rollout;
use super::status::{Counts, of_replica_set};

/// The label of a template's hash.
const HASH: &str = "pod-template-hash";
/// An API server's default of `revisionHistoryLimit`.
const DEFAULT_LIMIT: i32 = 10;
/// kubectl's annotations of a Deployment, which are not copied to a ReplicaSet.
const NOT_COPIED: [&str; 3] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
    "deprecated.deployment.rollback.to",
];

/// The templates of a Deployment so far, the current one last.
#[derive(Clone, Debug, Default)]
pub(super) struct Revisions {
    all: Vec<Revision>,
}

#[derive(Clone, Debug)]
struct Revision {
    hash: String,
    number: u64,
    template: PodTemplateSpec,
    /// The annotations of the Deployment while the template was the current one.
    annotations: BTreeMap<String, String>,
}

impl Revisions {
    /// Makes the template with this hash the current one, and removes old ones without pods.
    pub(super) fn observe(&mut self, deployment: &Deployment, hash: &str, pods: &[OwnedPod]) {
        let Some(spec) = &deployment.spec else {
            return;
        };
        if self.all.last().is_none_or(|last| last.hash != hash) {
            let number = self.all.iter().map(|revision| revision.number).max().unwrap_or(0) + 1;
            // A template that is used again keeps its ReplicaSet.
            self.all.retain(|revision| revision.hash != hash);
            let (hash, annotations) = (hash.to_owned(), BTreeMap::new());
            self.all.push(Revision { hash, number, template: spec.template.clone(), annotations });
        }
        if let Some(current) = self.all.last_mut() {
            current.annotations = deployment.metadata.annotations.clone().unwrap_or_default();
        }
        let limit = usize::try_from(spec.revision_history_limit.unwrap_or(DEFAULT_LIMIT));
        let most = limit.unwrap_or_default().saturating_add(1);
        let used: BTreeSet<&str> = pods.iter().map(|pod| pod.revision.as_str()).collect();
        let mut surplus = self.all.len().saturating_sub(most);
        self.all.retain(|revision| {
            let goes = surplus > 0 && revision.hash != hash && !used.contains(&*revision.hash);
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// The ReplicaSets, with their statuses.
    pub(super) fn objects(
        &self,
        workload: &Workload,
        pods: &[OwnedPod],
        now: Timestamp,
    ) -> Vec<Value> {
        let WorkloadObject::Deployment(deployment) = &workload.object else {
            return Vec::new();
        };
        let present = self.all.last().map(|revision| revision.hash.as_str());
        let has_old = pods.iter().any(|pod| pod.is_active() && Some(&*pod.revision) != present);
        let all = self.all.iter().map(|revision| {
            // Pods that wait for a back-off count as wanted.
            let is_settled = Some(revision.hash.as_str()) == present && !has_old;
            revision.object(deployment, workload, pods, is_settled, now)
        });
        all.collect()
    }
}

impl Revision {
    fn object(
        &self,
        deployment: &Deployment,
        workload: &Workload,
        pods: &[OwnedPod],
        is_settled: bool,
        now: Timestamp,
    ) -> Value {
        let spec = deployment.spec.clone().unwrap_or_default();
        let own = pods.iter().filter(|pod| pod.revision == self.hash);
        let counts = Counts::of_pods(own, &self.hash, spec.min_ready_seconds, now);
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        let hash = (HASH.to_owned(), Value::String(self.hash.clone()));
        let mut template = to_json(&self.template);
        let labels = &mut template["metadata"]["labels"];
        let mut with_hash = labels.as_object().cloned().unwrap_or_default();
        with_hash.extend([hash.clone()]);
        *labels = Value::Object(with_hash.clone());
        let mut selector = to_json(&spec.selector);
        let mut chosen = selector["matchLabels"].as_object().cloned().unwrap_or_default();
        chosen.extend([hash]);
        selector["matchLabels"] = Value::Object(chosen);
        let metadata = workload.metadata();
        let uid = metadata.uid.as_deref().unwrap_or_default();
        let mut status = of_replica_set(&counts);
        // The store counts the changes of the spec.
        status["observedGeneration"] = json!(1);
        if let Some(fields) = status.as_object_mut() {
            fields.retain(|field, value| field == "replicas" || *value != 0);
        }
        let mut object = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": format!("{}-{}", workload.name(), self.hash),
                "namespace": workload.namespace(),
                "uid": format!("{uid}-{}", self.hash),
                "labels": with_hash,
                "annotations": self.annotations(&spec, wanted),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name(), "uid": uid,
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "replicas": if is_settled { wanted } else { counts.replicas },
                "selector": selector, "template": template,
            },
            "status": status,
        });
        if let Some(seconds) = spec.min_ready_seconds.filter(|seconds| *seconds != 0) {
            object["spec"]["minReadySeconds"] = json!(seconds);
        }
        object
    }

    fn annotations(&self, spec: &DeploymentSpec, wanted: usize) -> Map<String, Value> {
        let mut annotations = Map::new();
        for (name, value) in &self.annotations {
            if !NOT_COPIED.contains(&name.as_str()) {
                annotations.insert(name.clone(), Value::String(value.clone()));
            }
        }
        let most = wanted + rollout::max_surge(spec, wanted);
        for (name, number) in [
            ("revision", self.number.to_string()),
            ("desired-replicas", wanted.to_string()),
            ("max-replicas", most.to_string()),
        ] {
            let name = format!("deployment.kubernetes.io/{name}");
            annotations.insert(name, Value::String(number));
        }
        annotations
    }
}
