//! ◆ Merge keys and patch strategies of the built-in types.
//!
//! Source: Kubernetes 1.36.2, the tags `patchStrategy` and `patchMergeKey` in staging/src/k8s.io/api/*/*/types.go,
//! staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go and
//! staging/src/k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/types.go. Tags inside the elements of lists that are
//! replaced whole have no effect and are left out: volumeClaimTemplates and containerStatuses, for instance.

use super::schema::{TypeSchema, UNTAGGED, list, object, replaced, retained, set};

/// Kinds of a group that have the same fields.
pub(super) struct Kinds {
    /// The API group; empty for the core group.
    group: &'static str,
    /// The versions of the group that have these kinds, separated by spaces.
    versions: &'static str,
    /// The names of the kinds, separated by spaces.
    kinds: &'static str,
    fields: &'static TypeSchema,
}

/// The type of a built-in kind that can be patched.
pub(super) fn type_of(api_version: &str, kind: &str) -> Option<&'static TypeSchema> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let has = |names: &str, name: &str| names.split(' ').any(|known| known == name);
    let found = KINDS.iter().find(|known| {
        known.group == group && has(known.versions, version) && has(known.kinds, kind)
    });
    found.map(|known| known.fields)
}

const fn kinds(
    group: &'static str,
    versions: &'static str,
    kinds: &'static str,
    fields: &'static TypeSchema,
) -> Kinds {
    Kinds { group, versions, kinds, fields }
}

/// The kinds of 1.36 that have metadata and can be patched.
pub(super) static KINDS: &[Kinds] = &[
    kinds(
        "",
        "v1",
        "ConfigMap Endpoints Event LimitRange PersistentVolume ResourceQuota Secret",
        &PLAIN,
    ),
    kinds("", "v1", "ComponentStatus", &COMPONENT_STATUS),
    kinds("", "v1", "Namespace PersistentVolumeClaim", &WITH_CONDITIONS),
    kinds("", "v1", "Node", &NODE),
    kinds("", "v1", "Pod", &POD),
    kinds("", "v1", "PodTemplate", &POD_TEMPLATE_OBJECT),
    kinds("", "v1", "ReplicationController", &WORKLOAD),
    kinds("", "v1", "Service", &SERVICE),
    kinds("", "v1", "ServiceAccount", &SERVICE_ACCOUNT),
    kinds("apps", "v1", "ControllerRevision", &PLAIN),
    kinds("apps", "v1", "DaemonSet ReplicaSet StatefulSet", &WORKLOAD),
    kinds("apps", "v1", "Deployment", &DEPLOYMENT),
    kinds("autoscaling", "v1", "HorizontalPodAutoscaler Scale", &PLAIN),
    kinds("autoscaling", "v2", "HorizontalPodAutoscaler", &WITH_CONDITIONS),
    kinds("batch", "v1", "CronJob", &CRON_JOB),
    kinds("batch", "v1", "Job", &WORKLOAD),
    kinds("policy", "v1", "PodDisruptionBudget", &POD_DISRUPTION_BUDGET),
    kinds(
        "admissionregistration.k8s.io",
        "v1 v1beta1 v1alpha1",
        "MutatingAdmissionPolicyBinding ValidatingAdmissionPolicyBinding",
        &PLAIN,
    ),
    kinds(
        "admissionregistration.k8s.io",
        "v1 v1beta1 v1alpha1",
        "MutatingAdmissionPolicy",
        &MUTATING_POLICY,
    ),
    kinds(
        "admissionregistration.k8s.io",
        "v1 v1beta1 v1alpha1",
        "ValidatingAdmissionPolicy",
        &VALIDATING_POLICY,
    ),
    kinds(
        "admissionregistration.k8s.io",
        "v1 v1beta1",
        "MutatingWebhookConfiguration ValidatingWebhookConfiguration",
        &WEBHOOK_CONFIGURATION,
    ),
    kinds("apiextensions.k8s.io", "v1", "CustomResourceDefinition", &PLAIN),
    kinds("apiregistration.k8s.io", "v1", "APIService", &WITH_CONDITIONS),
    kinds("certificates.k8s.io", "v1", "CertificateSigningRequest", &PLAIN),
    kinds("certificates.k8s.io", "v1beta1 v1alpha1", "ClusterTrustBundle", &PLAIN),
    kinds("certificates.k8s.io", "v1beta1", "PodCertificateRequest", &WITH_CONDITIONS),
    kinds("coordination.k8s.io", "v1 v1beta1", "Lease", &PLAIN),
    kinds("coordination.k8s.io", "v1beta1 v1alpha2", "LeaseCandidate", &PLAIN),
    kinds("discovery.k8s.io", "v1", "EndpointSlice", &PLAIN),
    kinds("events.k8s.io", "v1", "Event", &PLAIN),
    kinds(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "FlowSchema PriorityLevelConfiguration",
        &WITH_CONDITIONS,
    ),
    kinds("internal.apiserver.k8s.io", "v1alpha1", "StorageVersion", &PLAIN),
    kinds("networking.k8s.io", "v1", "Ingress IngressClass NetworkPolicy", &PLAIN),
    kinds("networking.k8s.io", "v1 v1beta1", "IPAddress", &PLAIN),
    kinds("networking.k8s.io", "v1 v1beta1", "ServiceCIDR", &WITH_CONDITIONS),
    kinds("node.k8s.io", "v1", "RuntimeClass", &PLAIN),
    kinds(
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole ClusterRoleBinding Role RoleBinding",
        &PLAIN,
    ),
    kinds("resource.k8s.io", "v1 v1beta2 v1beta1", "DeviceClass ResourceSlice", &PLAIN),
    kinds("resource.k8s.io", "v1 v1beta2 v1beta1", "ResourceClaim", &RESOURCE_CLAIM),
    kinds("resource.k8s.io", "v1 v1beta2 v1beta1", "ResourceClaimTemplate", &CLAIM_TEMPLATE),
    kinds("resource.k8s.io", "v1beta2 v1alpha3", "DeviceTaintRule", &WITH_CONDITIONS),
    kinds("resource.k8s.io", "v1alpha3", "ResourcePoolStatusRequest", &WITH_CONDITIONS),
    kinds("scheduling.k8s.io", "v1", "PriorityClass", &PLAIN),
    kinds("scheduling.k8s.io", "v1alpha2", "PodGroup", &POD_GROUP),
    kinds("scheduling.k8s.io", "v1alpha2", "Workload", &PLAIN),
    kinds("storage.k8s.io", "v1 v1beta1", "CSINode", &CSI_NODE),
    kinds(
        "storage.k8s.io",
        "v1",
        "CSIDriver CSIStorageCapacity StorageClass VolumeAttachment",
        &PLAIN,
    ),
    kinds("storage.k8s.io", "v1 v1beta1", "VolumeAttributesClass", &PLAIN),
    kinds("storagemigration.k8s.io", "v1beta1", "StorageVersionMigration", &WITH_CONDITIONS),
];

static METADATA: TypeSchema =
    TypeSchema(&[list("ownerReferences", "uid", &UNTAGGED), set("finalizers")]);

/// An object whose only tagged fields are in its metadata.
static PLAIN: TypeSchema = TypeSchema(&[object("metadata", &METADATA)]);

static CONDITIONS: TypeSchema = TypeSchema(&[list("conditions", "type", &UNTAGGED)]);

static WITH_CONDITIONS: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("status", &CONDITIONS)]);

static COMPONENT_STATUS: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), list("conditions", "type", &UNTAGGED)]);

static NODE: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &TypeSchema(&[set("podCIDRs")])),
    object("status", &NODE_STATUS),
]);

static NODE_STATUS: TypeSchema =
    TypeSchema(&[list("conditions", "type", &UNTAGGED), list("addresses", "type", &UNTAGGED)]);

static SERVICE: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &TypeSchema(&[list("ports", "port", &UNTAGGED)])),
    object("status", &CONDITIONS),
]);

static SERVICE_ACCOUNT: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), list("secrets", "name", &UNTAGGED)]);

static POD: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &POD_SPEC),
    object("status", &POD_STATUS),
]);

static POD_STATUS: TypeSchema = TypeSchema(&[
    list("conditions", "type", &UNTAGGED),
    list("hostIPs", "ip", &UNTAGGED),
    list("podIPs", "ip", &UNTAGGED),
    retained(list("resourceClaimStatuses", "name", &UNTAGGED)),
]);

static POD_SPEC: TypeSchema = TypeSchema(&[
    retained(list("volumes", "name", &VOLUME)),
    list("initContainers", "name", &CONTAINER),
    list("containers", "name", &CONTAINER),
    list("ephemeralContainers", "name", &CONTAINER),
    list("imagePullSecrets", "name", &UNTAGGED),
    list("hostAliases", "ip", &UNTAGGED),
    list("topologySpreadConstraints", "topologyKey", &UNTAGGED),
    list("schedulingGates", "name", &UNTAGGED),
    retained(list("resourceClaims", "name", &UNTAGGED)),
]);

/// `Container` and `EphemeralContainer`.
static CONTAINER: TypeSchema = TypeSchema(&[
    list("ports", "containerPort", &UNTAGGED),
    list("env", "name", &UNTAGGED),
    list("volumeMounts", "mountPath", &UNTAGGED),
    list("volumeDevices", "devicePath", &UNTAGGED),
]);

static VOLUME: TypeSchema = TypeSchema(&[object("ephemeral", &EPHEMERAL_VOLUME)]);

static EPHEMERAL_VOLUME: TypeSchema = TypeSchema(&[object("volumeClaimTemplate", &PLAIN)]);

/// `PodTemplateSpec`.
static POD_TEMPLATE: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("spec", &POD_SPEC)]);

static POD_TEMPLATE_OBJECT: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("template", &POD_TEMPLATE)]);

static WORKLOAD_SPEC: TypeSchema = TypeSchema(&[object("template", &POD_TEMPLATE)]);

/// A kind with a pod template and conditions.
static WORKLOAD: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &WORKLOAD_SPEC),
    object("status", &CONDITIONS),
]);

static DEPLOYMENT: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &DEPLOYMENT_SPEC),
    object("status", &CONDITIONS),
]);

static DEPLOYMENT_SPEC: TypeSchema =
    TypeSchema(&[object("template", &POD_TEMPLATE), retained(object("strategy", &UNTAGGED))]);

static CRON_JOB: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &TypeSchema(&[object("jobTemplate", &JOB_TEMPLATE)])),
]);

static JOB_TEMPLATE: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("spec", &WORKLOAD_SPEC)]);

static POD_DISRUPTION_BUDGET: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &TypeSchema(&[replaced("selector")])),
    object("status", &CONDITIONS),
]);

static MATCH_CONDITIONS: TypeSchema = TypeSchema(&[list("matchConditions", "name", &UNTAGGED)]);

static MUTATING_POLICY: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("spec", &MATCH_CONDITIONS)]);

static VALIDATING_POLICY: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("spec", &VALIDATING_POLICY_SPEC)]);

static VALIDATING_POLICY_SPEC: TypeSchema =
    TypeSchema(&[list("matchConditions", "name", &UNTAGGED), list("variables", "name", &UNTAGGED)]);

static WEBHOOK_CONFIGURATION: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), list("webhooks", "name", &MATCH_CONDITIONS)]);

static RESOURCE_CLAIM: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("status", &TypeSchema(&[list("reservedFor", "uid", &UNTAGGED)])),
]);

static CLAIM_TEMPLATE: TypeSchema =
    TypeSchema(&[object("metadata", &METADATA), object("spec", &PLAIN)]);

static POD_GROUP: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &TypeSchema(&[retained(list("resourceClaims", "name", &UNTAGGED))])),
    object("status", &POD_GROUP_STATUS),
]);

static POD_GROUP_STATUS: TypeSchema = TypeSchema(&[
    list("conditions", "type", &UNTAGGED),
    retained(list("resourceClaimStatuses", "name", &UNTAGGED)),
]);

static CSI_NODE: TypeSchema = TypeSchema(&[
    object("metadata", &METADATA),
    object("spec", &TypeSchema(&[list("drivers", "name", &UNTAGGED)])),
]);
