//! The merge keys and patch strategies of the built-in types.

use rstest::rstest;

use super::super::lists::type_of;
use super::super::schema::{FieldSchema, Strategy, TypeSchema};

/// The field at a path, of which every field but the last holds an object or a list of objects.
fn field(mut fields: &'static TypeSchema, path: &str) -> FieldSchema {
    let mut found = fields.field("");
    for name in path.split('.') {
        found = fields.field(name);
        fields = found.fields;
    }
    found
}

/// The tags of Kubernetes 1.36.2: `patchStrategy` and `patchMergeKey`.
fn tags(field: FieldSchema) -> String {
    let strategy = match (field.strategy, field.retain_keys) {
        (Strategy::Default, false) => "",
        (Strategy::Default, true) => "retainKeys",
        (Strategy::Merge, false) => "merge",
        (Strategy::Merge, true) => "merge,retainKeys",
        (Strategy::Replace, _) => "replace",
    };
    [strategy, field.merge_key.unwrap_or_default()].join(" ").trim().to_owned()
}

#[rstest]
#[case("v1", "ConfigMap", "metadata.ownerReferences", "merge uid")]
#[case("v1", "ConfigMap", "metadata.finalizers", "merge")]
#[case("v1", "ConfigMap", "metadata.managedFields", "")]
#[case("v1", "Pod", "spec.containers", "merge name")]
#[case("v1", "Pod", "spec.initContainers", "merge name")]
#[case("v1", "Pod", "spec.ephemeralContainers", "merge name")]
#[case("v1", "Pod", "spec.containers.ports", "merge containerPort")]
#[case("v1", "Pod", "spec.containers.env", "merge name")]
#[case("v1", "Pod", "spec.containers.envFrom", "")]
#[case("v1", "Pod", "spec.containers.args", "")]
#[case("v1", "Pod", "spec.containers.volumeMounts", "merge mountPath")]
#[case("v1", "Pod", "spec.initContainers.volumeDevices", "merge devicePath")]
#[case("v1", "Pod", "spec.ephemeralContainers.env", "merge name")]
#[case("v1", "Pod", "spec.volumes", "merge,retainKeys name")]
#[case("v1", "Pod", "spec.volumes.ephemeral.volumeClaimTemplate.metadata.finalizers", "merge")]
#[case("v1", "Pod", "spec.volumes.projected.sources", "")]
#[case("v1", "Pod", "spec.imagePullSecrets", "merge name")]
#[case("v1", "Pod", "spec.hostAliases", "merge ip")]
#[case("v1", "Pod", "spec.topologySpreadConstraints", "merge topologyKey")]
#[case("v1", "Pod", "spec.schedulingGates", "merge name")]
#[case("v1", "Pod", "spec.resourceClaims", "merge,retainKeys name")]
#[case("v1", "Pod", "spec.tolerations", "")]
#[case("v1", "Pod", "status.conditions", "merge type")]
#[case("v1", "Pod", "status.podIPs", "merge ip")]
#[case("v1", "Pod", "status.hostIPs", "merge ip")]
#[case("v1", "Pod", "status.resourceClaimStatuses", "merge,retainKeys name")]
#[case("v1", "Pod", "status.containerStatuses", "")]
#[case("v1", "PodTemplate", "template.spec.containers", "merge name")]
#[case("v1", "Node", "spec.podCIDRs", "merge")]
#[case("v1", "Node", "spec.taints", "")]
#[case("v1", "Node", "status.addresses", "merge type")]
#[case("v1", "Node", "status.conditions", "merge type")]
#[case("v1", "Node", "status.images", "")]
#[case("v1", "Namespace", "status.conditions", "merge type")]
#[case("v1", "Service", "spec.ports", "merge port")]
#[case("v1", "Service", "status.conditions", "merge type")]
#[case("v1", "ServiceAccount", "secrets", "merge name")]
#[case("v1", "ServiceAccount", "imagePullSecrets", "")]
#[case("v1", "PersistentVolumeClaim", "status.conditions", "merge type")]
#[case("v1", "PersistentVolume", "metadata.finalizers", "merge")]
#[case("v1", "ReplicationController", "spec.template.spec.volumes", "merge,retainKeys name")]
#[case("v1", "Endpoints", "subsets", "")]
#[case("v1", "ComponentStatus", "conditions", "merge type")]
#[case("apps/v1", "Deployment", "spec.strategy", "retainKeys")]
#[case("apps/v1", "Deployment", "spec.template.metadata.finalizers", "merge")]
#[case("apps/v1", "Deployment", "spec.template.spec.containers.env", "merge name")]
#[case("apps/v1", "Deployment", "status.conditions", "merge type")]
#[case("apps/v1", "ReplicaSet", "status.conditions", "merge type")]
#[case("apps/v1", "DaemonSet", "spec.updateStrategy", "")]
#[case("apps/v1", "StatefulSet", "spec.volumeClaimTemplates", "")]
#[case("batch/v1", "Job", "spec.template.spec.containers.ports", "merge containerPort")]
#[case("batch/v1", "CronJob", "spec.jobTemplate.metadata.ownerReferences", "merge uid")]
#[case("batch/v1", "CronJob", "spec.jobTemplate.spec.template.spec.containers", "merge name")]
#[case("autoscaling/v1", "HorizontalPodAutoscaler", "status.conditions", "")]
#[case("autoscaling/v2", "HorizontalPodAutoscaler", "status.conditions", "merge type")]
#[case("policy/v1", "PodDisruptionBudget", "spec.selector", "replace")]
#[case("policy/v1", "PodDisruptionBudget", "status.conditions", "merge type")]
#[case("networking.k8s.io/v1", "Ingress", "spec.rules", "")]
#[case("networking.k8s.io/v1", "ServiceCIDR", "status.conditions", "merge type")]
#[case("discovery.k8s.io/v1", "EndpointSlice", "endpoints", "")]
#[case("rbac.authorization.k8s.io/v1", "Role", "rules", "")]
#[case("storage.k8s.io/v1", "CSINode", "spec.drivers", "merge name")]
#[case("resource.k8s.io/v1", "ResourceClaim", "status.reservedFor", "merge uid")]
#[case("resource.k8s.io/v1", "ResourceClaimTemplate", "spec.metadata.finalizers", "merge")]
#[case("scheduling.k8s.io/v1alpha2", "PodGroup", "spec.resourceClaims", "merge,retainKeys name")]
#[case(
    "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicy",
    "spec.variables",
    "merge name"
)]
#[case(
    "admissionregistration.k8s.io/v1",
    "MutatingWebhookConfiguration",
    "webhooks.matchConditions",
    "merge name"
)]
fn fields_have_the_tags_of_kubernetes(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] path: &str,
    #[case] expected: &str,
) {
    assert_eq!(tags(field(type_of(api_version, kind).unwrap(), path)), expected);
}

#[rstest]
#[case("example.com/v1", "Widget")]
#[case("v1", "Widget")]
#[case("v2", "Pod")]
#[case("apps/v1beta1", "Deployment")]
#[case("extensions/v1beta1", "Ingress")]
#[case("core/v1", "Pod")]
#[case("", "")]
fn unknown_kinds_have_no_schema(#[case] api_version: &str, #[case] kind: &str) {
    assert!(type_of(api_version, kind).is_none());
}
