//! ◆ Deployments, ReplicaSets, ReplicationControllers, DaemonSets and StatefulSets, except for their templates. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/apps/validation/validation.go; of ReplicationControllers pkg/apis/core/v1/defaults.go and
//! pkg/apis/core/validation/validation.go.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::manifest::validate::{Check, FieldError, metadata, names, rollouts, selectors, storage};
use crate::selector::{self, matches_selector};

/// An API server's default of `progressDeadlineSeconds`.
const PROGRESS_DEADLINE: i32 = 600;
const RESTARTS: &str = "spec.template.spec.restartPolicy";

/// Validates a Deployment.
pub(in crate::manifest) fn deployment(object: &Deployment) -> Vec<FieldError> {
    let mut check = start(&object.metadata);
    let Some(spec) = &object.spec else {
        return check.errors;
    };
    let numbers = [
        ("replicas", spec.replicas),
        ("minReadySeconds", spec.min_ready_seconds),
        ("revisionHistoryLimit", spec.revision_history_limit),
        ("progressDeadlineSeconds", spec.progress_deadline_seconds),
    ];
    check.not_negative("spec", &numbers);
    pods(&mut check, &spec.selector, Some(&spec.template));
    if let Some(strategy) = &spec.strategy {
        rollouts::deployment(&mut check, strategy);
    }
    let deadline = spec.progress_deadline_seconds.unwrap_or(PROGRESS_DEADLINE);
    if deadline >= 0 && deadline <= spec.min_ready_seconds.unwrap_or_default() {
        let field = "spec.progressDeadlineSeconds";
        check.invalid(field, deadline, "must be greater than minReadySeconds");
    }
    check.errors
}

/// Validates a ReplicaSet.
pub(in crate::manifest) fn replica_set(object: &ReplicaSet) -> Vec<FieldError> {
    let mut check = start(&object.metadata);
    if let Some(spec) = &object.spec {
        let fields = [("replicas", spec.replicas), ("minReadySeconds", spec.min_ready_seconds)];
        check.not_negative("spec", &fields);
        pods(&mut check, &spec.selector, spec.template.as_ref());
    }
    check.errors
}

/// Sets absent selectors and labels of a ReplicationController to the labels of its template.
pub(in crate::manifest) fn default_replication_controller(object: &mut ReplicationController) {
    let Some(spec) = &mut object.spec else {
        return;
    };
    let template = spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|metadata| metadata.labels.clone());
    let Some(labels) = labels.filter(|labels| !labels.is_empty()) else {
        return;
    };
    if spec.selector.as_ref().is_none_or(BTreeMap::is_empty) {
        spec.selector = Some(labels.clone());
    }
    if object.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty) {
        object.metadata.labels = Some(labels);
    }
}

/// Validates a ReplicationController.
pub(in crate::manifest) fn replication_controller(
    object: &ReplicationController,
) -> Vec<FieldError> {
    let mut check = start(&object.metadata);
    if let Some(spec) = &object.spec {
        let fields = [("replicas", spec.replicas), ("minReadySeconds", spec.min_ready_seconds)];
        check.not_negative("spec", &fields);
        let selector =
            LabelSelector { match_labels: spec.selector.clone(), ..LabelSelector::default() };
        pods(&mut check, &selector, spec.template.as_ref());
    }
    check.errors
}

/// Validates a DaemonSet.
pub(in crate::manifest) fn daemon_set(object: &DaemonSet) -> Vec<FieldError> {
    let mut check = start(&object.metadata);
    if let Some(spec) = &object.spec {
        let fields = [
            ("minReadySeconds", spec.min_ready_seconds),
            ("revisionHistoryLimit", spec.revision_history_limit),
        ];
        check.not_negative("spec", &fields);
        pods(&mut check, &spec.selector, Some(&spec.template));
        if let Some(strategy) = &spec.update_strategy {
            rollouts::daemon_set(&mut check, strategy);
        }
    }
    check.errors
}

/// Validates a StatefulSet.
pub(in crate::manifest) fn stateful_set(object: &StatefulSet) -> Vec<FieldError> {
    let mut check = start(&object.metadata);
    if let Some(spec) = &object.spec {
        let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
        let fields = [
            ("replicas", spec.replicas),
            ("minReadySeconds", spec.min_ready_seconds),
            ("revisionHistoryLimit", spec.revision_history_limit),
            ("ordinals.start", start),
        ];
        check.not_negative("spec", &fields);
        pods(&mut check, &spec.selector, Some(&spec.template));
        check.maybe_one_of(
            "spec.podManagementPolicy",
            spec.pod_management_policy.as_deref().filter(|policy| !policy.is_empty()),
            &["OrderedReady", "Parallel"],
        );
        storage::templates(&mut check, spec);
        if let Some(strategy) = &spec.update_strategy {
            rollouts::stateful_set(&mut check, strategy);
        }
        if let Some(name) = spec.service_name.as_deref().filter(|name| !name.is_empty()) {
            check.formed("spec.serviceName", name, names::dns_subdomain);
        }
        // Each pod's host name is the set's name with its ordinal.
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let first = i64::from(start.unwrap_or_default());
        let last = first + i64::from(spec.replicas.unwrap_or(1).max(1)) - 1;
        let longest = format!("{name}-{last}");
        if names::dns_subdomain(name).is_none()
            && let Some(expected) = names::dns_label(&longest)
        {
            let detail = format!("invalid as the host name of a pod: {expected}");
            check.invalid("metadata.name", longest, detail);
        }
    }
    check.errors
}

fn start(metadata: &ObjectMeta) -> Check {
    let mut check = Check::default();
    metadata::check(&mut check, metadata);
    check
}

/// Checks the selector, and the common rules for the pods of all these kinds.
fn pods(check: &mut Check, selector: &LabelSelector, template: Option<&PodTemplateSpec>) {
    const FIELD: &str = "spec.selector";
    let none = BTreeMap::new();
    let metadata = template.and_then(|template| template.metadata.as_ref());
    let labels = metadata.and_then(|metadata| metadata.labels.as_ref());
    let labels = labels.unwrap_or(&none);
    let before = check.errors.len();
    selectors::labels(check, FIELD, Some(selector));
    if selector::is_empty(selector) {
        check.required(FIELD, "the controller selects its pods by these labels");
    } else if check.errors.len() == before && !matches_selector(selector, labels) {
        let field = "spec.template.metadata.labels";
        check.invalid(field, "", "`selector` does not match template `labels`");
    }
    let spec = template.and_then(|template| template.spec.as_ref());
    if let Some(spec) = spec {
        let policy = spec.restart_policy.as_deref().unwrap_or("Always");
        check.one_of(RESTARTS, policy, &["Always"]);
        if spec.active_deadline_seconds.is_some() {
            let field = "spec.template.spec.activeDeadlineSeconds";
            check.forbidden(
                field,
                "pods of this kind have no deadline, because they never complete",
            );
        }
    }
}
