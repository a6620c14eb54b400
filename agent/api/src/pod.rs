//! An accepted pod: defaulted, validated, immutable and cheap to clone.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use compact::Set;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod as ApiPod, PodSpec, Volume};

/// The unique id of a pod (`metadata.uid`): names its directories, labels its sandboxes and containers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Creates an id. Any string is allowed, because manifests may set their own.
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        Self(uid.into())
    }

    /// The id as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names and priorities of the PriorityClasses of every cluster.
///
/// Source: Kubernetes 1.36, pkg/apis/scheduling/v1/helpers.go.
pub const SYSTEM_CLASSES: [(&str, i32); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// The list of the pod spec that a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// `spec.initContainers`, sidecars included.
    Init,
    /// `spec.containers`.
    App,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

/// `restartPolicy` of a pod or of a single container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Restart after every exit.
    Always,
    /// Restart after an exit code other than 0.
    OnFailure,
    /// Never restart.
    Never,
}

impl RestartPolicy {
    /// Returns the policy with this name; Always, the API's default, if it is absent.
    fn of(name: Option<&str>) -> Self {
        match name {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            Some(_) | None => Self::Always,
        }
    }

    /// The container's own policy, if it has one (Kubernetes 1.34, gate ContainerRestartRules).
    pub fn of_container(container: &Container) -> Option<Self> {
        container.restart_policy.as_deref().map(|name| Self::of(Some(name)))
    }
}

/// Whether this init container is a sidecar, which keeps running beside the app containers (`restartPolicy: Always`).
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

#[derive(Debug)]
struct Inner {
    uid: PodUid,
    origin: String,
    api: ApiPod,
    ephemeral: Vec<Container>,
}

/// A pod to run. [`crate::manifest::parse`] returns validated ones; clones share one allocation. Pods are equal if their API
/// objects are.
#[derive(Clone, Debug)]
pub struct Pod(Arc<Inner>);

impl PartialEq for Pod {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.api == other.0.api
    }
}

impl Pod {
    /// Whether both share one allocation, which is a faster check than equality.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wraps an API pod that is already defaulted and validated; one without a spec has no containers.
    pub fn new(api: ApiPod) -> Self {
        Self::of(api, String::new())
    }

    /// The same pod, read from `origin`, which is a file or a URL.
    #[must_use]
    pub fn with_origin(self, origin: &str) -> Self {
        let api = match Arc::try_unwrap(self.0) {
            Ok(inner) => inner.api,
            Err(shared) => shared.api.clone(),
        };
        Self::of(api, origin.to_owned())
    }

    fn of(api: ApiPod, origin: String) -> Self {
        let uid = PodUid::new(api.metadata.uid.clone().unwrap_or_default());
        let spec = api.spec.iter();
        let ephemeral = spec
            .flat_map(|spec| spec.ephemeral_containers.iter().flatten())
            .map(as_container)
            .collect();
        Self(Arc::new(Inner { uid, origin, api, ephemeral }))
    }

    /// The same pod with the ephemeral containers of another one.
    #[must_use]
    pub fn with_ephemeral_containers_of(&self, other: &Self) -> Self {
        let containers = &other.spec().ephemeral_containers;
        if self.spec().ephemeral_containers == *containers {
            return self.clone();
        }
        let mut api = self.api().clone();
        api.spec.get_or_insert_default().ephemeral_containers.clone_from(containers);
        Self::new(api).with_origin(self.origin())
    }

    /// The file or URL that the pod was read from; may be empty. Equality ignores it.
    pub fn origin(&self) -> &str {
        &self.0.origin
    }

    /// The whole API object.
    pub fn api(&self) -> &ApiPod {
        &self.0.api
    }

    /// The spec; empty if the object has none.
    pub fn spec(&self) -> &PodSpec {
        /// The spec of a pod without one.
        static EMPTY: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
        self.0.api.spec.as_ref().unwrap_or(&EMPTY)
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &PodUid {
        &self.0.uid
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.0.api.metadata.name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`; `default` where absent.
    pub fn namespace(&self) -> &str {
        self.0.api.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// `namespace/name`, for logs and messages.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    /// `name_namespace(uid)`, as the kubelet writes a pod in messages.
    pub fn long_name(&self) -> String {
        format!("{}_{}({})", self.name(), self.namespace(), self.uid())
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        pairs(self.0.api.metadata.labels.as_ref())
    }

    /// `metadata.annotations`.
    pub fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        pairs(self.0.api.metadata.annotations.as_ref())
    }

    /// `spec.initContainers`, in order.
    pub fn init_containers(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    /// `spec.containers`, in order.
    pub fn containers(&self) -> &[Container] {
        &self.spec().containers
    }

    /// `spec.ephemeralContainers`, in order, as ordinary containers.
    pub fn ephemeral_containers(&self) -> &[Container] {
        &self.0.ephemeral
    }

    /// Every container: init, app, ephemeral, each in spec order.
    pub fn all_containers(&self) -> impl Iterator<Item = (ContainerKind, &Container)> {
        let tagged = |kind| move |container| (kind, container);
        let init = self.init_containers().iter().map(tagged(ContainerKind::Init));
        let apps = self.containers().iter().map(tagged(ContainerKind::App));
        let ephemeral = self.ephemeral_containers().iter().map(tagged(ContainerKind::Ephemeral));
        init.chain(apps).chain(ephemeral)
    }

    /// The volumes that a container uses (Kubernetes 1.36, pkg/volume/util GetPodVolumeNames): other volumes are not prepared.
    pub fn mounted_volumes(&self) -> impl Iterator<Item = &Volume> {
        let mut used = Set::new();
        for (_, container) in self.all_containers() {
            let mounts = container.volume_mounts.iter().flatten();
            used.extend(mounts.map(|mount| mount.name.as_str()));
            let devices = container.volume_devices.iter().flatten();
            used.extend(devices.map(|device| device.name.as_str()));
        }
        let volumes = self.spec().volumes.iter().flatten();
        volumes.filter(move |volume| used.contains(volume.name.as_str()))
    }

    /// Whether a container mounts the volume with this name, and whether one uses it as a block device.
    pub fn uses_of_volume(&self, name: &str) -> (bool, bool) {
        let (mut is_mounted, mut is_device) = (false, false);
        for (_, container) in self.all_containers() {
            let mut mounts = container.volume_mounts.iter().flatten();
            is_mounted |= mounts.any(|mount| mount.name == name);
            let mut devices = container.volume_devices.iter().flatten();
            is_device |= devices.any(|device| device.name == name);
        }
        (is_mounted, is_device)
    }

    /// The init and app containers, each in spec order.
    pub fn init_and_apps(&self) -> impl Iterator<Item = &Container> {
        self.init_containers().iter().chain(self.containers())
    }

    /// Whether a container has this extended resource by the ResourceClaim that the scheduler has created for the pod, and not by a
    /// device plugin (Kubernetes 1.36, gate DRAExtendedResource; pkg/kubelet/cm/devicemanager/manager.go isDRAExtendedResource).
    pub fn has_by_claim(&self, container: &str, resource: &str) -> bool {
        let status = self.0.api.status.as_ref();
        let claim = status.and_then(|status| status.extended_resource_claim_status.as_ref());
        let mut mappings = claim.into_iter().flat_map(|claim| &claim.request_mappings);
        mappings.any(|it| (&*it.container_name, &*it.resource_name) == (container, resource))
    }

    /// The container with this name; names are unique across the three lists.
    pub fn container(&self, name: &str) -> Option<(ContainerKind, &Container)> {
        self.all_containers().find(|(_, container)| container.name == name)
    }

    /// `spec.restartPolicy`.
    pub fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy::of(self.spec().restart_policy.as_deref())
    }

    /// `spec.hostNetwork`.
    pub fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    /// `spec.terminationGracePeriodSeconds`, in seconds; 30 where absent.
    pub fn grace_seconds(&self) -> i64 {
        self.spec().termination_grace_period_seconds.unwrap_or(30)
    }

    /// Whether the pod is being deleted in the API server (`metadata.deletionTimestamp`).
    pub fn is_deleted(&self) -> bool {
        self.0.api.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has ended according to its source: an API server stores the status that an agent reported.
    pub fn has_ended(&self) -> bool {
        let status = self.0.api.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// Whether any field that its source controls has changed: a new status is not an update.
    pub fn is_updated_from(&self, old: &Self) -> bool {
        let (new, old_meta) = (&self.0.api.metadata, &old.0.api.metadata);
        self.spec() != old.spec()
            || new.labels != old_meta.labels
            || new.annotations != old_meta.annotations
            || new.deletion_timestamp != old_meta.deletion_timestamp
            || new.deletion_grace_period_seconds != old_meta.deletion_grace_period_seconds
    }

    /// Its source by the kubelet's name: `api`, `file` or `http` (annotation `kubernetes.io/config.source`).
    pub fn source(&self) -> Option<&str> {
        let mut annotations = self.annotations();
        let source = annotations.find(|(key, _)| *key == "kubernetes.io/config.source");
        source.map(|(_, value)| value)
    }

    /// Whether it is a static pod: its source is not an API server.
    pub fn is_static(&self) -> bool {
        self.source().is_some_and(|source| source != "api")
    }
}

fn pairs(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
}

pub(crate) fn as_container(from: &EphemeralContainer) -> Container {
    let from = from.clone();
    Container {
        args: from.args,
        command: from.command,
        env: from.env,
        env_from: from.env_from,
        image: from.image,
        image_pull_policy: from.image_pull_policy,
        lifecycle: from.lifecycle,
        liveness_probe: from.liveness_probe,
        name: from.name,
        ports: from.ports,
        readiness_probe: from.readiness_probe,
        resize_policy: from.resize_policy,
        resources: from.resources,
        restart_policy: from.restart_policy,
        restart_policy_rules: from.restart_policy_rules,
        security_context: from.security_context,
        startup_probe: from.startup_probe,
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        tty: from.tty,
        volume_devices: from.volume_devices,
        volume_mounts: from.volume_mounts,
        working_dir: from.working_dir,
    }
}
