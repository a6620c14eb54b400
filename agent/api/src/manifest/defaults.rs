//! Applies the API server's defaults.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/v1/defaults.go.

mod resources;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, HTTPGetAction,
    LifecycleHandler, PersistentVolumeClaimSpec, PersistentVolumeSpec, Pod, PodSecurityContext,
    PodSpec, Probe, ResourceFieldSelector, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::image_name;

/// Applies all defaults to a pod.
pub(super) fn apply(pod: &mut Pod) {
    // An empty namespace counts as absent.
    if pod.metadata.namespace.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.namespace = Some("default".to_owned());
    }
    apply_spec(pod.spec.get_or_insert_default());
}

/// Sets the default service account of a pod without one, as the admission of an API server does: static pods have none.
///
/// Source: Kubernetes 1.36, plugin/pkg/admission/serviceaccount/admission.go.
pub fn service_account(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    let older = spec.service_account.clone().unwrap_or_default();
    text(&mut spec.service_account_name, &older);
    text(&mut spec.service_account_name, "default");
    spec.service_account.clone_from(&spec.service_account_name);
}

fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

fn number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(default);
    }
}

fn apply_spec(spec: &mut PodSpec) {
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    // A negative grace period means one second.
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
    // Deprecated alias of the same field.
    if let Some(account) = spec.service_account_name.clone().filter(|name| !name.is_empty()) {
        spec.service_account = Some(account);
    }
    let host_network = spec.host_network == Some(true);
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        apply_container(container, host_network);
    }
    resources::apply(spec);
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        text(&mut container.termination_message_path, "/dev/termination-log");
        text(&mut container.termination_message_policy, "File");
        let image = container.image.clone().unwrap_or_default();
        text(&mut container.image_pull_policy, pull_policy(&image));
        for variable in container.env.iter_mut().flatten() {
            apply_variable(variable);
        }
    }
    for volume in spec.volumes.iter_mut().flatten() {
        apply_volume(volume);
    }
}

fn apply_container(container: &mut Container, host_network: bool) {
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    let image = container.image.clone().unwrap_or_default();
    text(&mut container.image_pull_policy, pull_policy(&image));
    for port in container.ports.iter_mut().flatten() {
        apply_port(port, host_network);
    }
    for variable in container.env.iter_mut().flatten() {
        apply_variable(variable);
    }
    for probe in [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ]
    .into_iter()
    .flatten()
    {
        apply_probe(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
            apply_hook(hook);
        }
    }
    container.resources.get_or_insert_with(ResourceRequirements::default);
}

fn pull_policy(image: &str) -> &'static str {
    if image_name::is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn apply_port(port: &mut ContainerPort, host_network: bool) {
    text(&mut port.protocol, "TCP");
    if host_network && port.host_port.unwrap_or_default() == 0 {
        port.host_port = Some(port.container_port);
    }
}

fn apply_variable(variable: &mut EnvVar) {
    let Some(source) = &mut variable.value_from else {
        return;
    };
    if let Some(field) = &mut source.field_ref {
        text(&mut field.api_version, "v1");
    }
    if let Some(resource) = &mut source.resource_field_ref {
        apply_divisor(resource);
    }
    if let Some(file) = &mut source.file_key_ref {
        file.optional.get_or_insert(false);
    }
}

fn apply_divisor(resource: &mut ResourceFieldSelector) {
    let divisor = resource.divisor.get_or_insert_with(|| Quantity("0".to_owned()));
    resources::rewrite(divisor);
}

fn apply_downward_files(items: Option<&mut Vec<DownwardAPIVolumeFile>>) {
    for item in items.into_iter().flatten() {
        if let Some(field) = &mut item.field_ref {
            text(&mut field.api_version, "v1");
        }
        if let Some(resource) = &mut item.resource_field_ref {
            apply_divisor(resource);
        }
    }
}

fn apply_probe(probe: &mut Probe) {
    number(&mut probe.timeout_seconds, 1);
    number(&mut probe.period_seconds, 10);
    number(&mut probe.success_threshold, 1);
    number(&mut probe.failure_threshold, 3);
    if let Some(http) = &mut probe.http_get {
        apply_http(http);
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_with(String::new);
    }
}

fn apply_hook(hook: &mut LifecycleHandler) {
    if let Some(http) = &mut hook.http_get {
        apply_http(http);
    }
}

fn apply_http(http: &mut HTTPGetAction) {
    text(&mut http.path, "/");
    text(&mut http.scheme, "HTTP");
    if let IntOrString::String(name) = &http.port
        && name.is_empty()
    {
        http.port = IntOrString::Int(0);
    }
}

fn apply_volume(volume: &mut Volume) {
    if is_without_source(volume) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(path) = &mut volume.host_path {
        path.type_.get_or_insert_default();
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(0o644);
    }
    if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(0o644);
    }
    if let Some(api) = &mut volume.downward_api {
        api.default_mode.get_or_insert(0o644);
        apply_downward_files(api.items.as_mut());
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(0o644);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
            if let Some(api) = &mut source.downward_api {
                apply_downward_files(api.items.as_mut());
            }
        }
    }
    if let Some(image) = &mut volume.image {
        let reference = image.reference.clone().unwrap_or_default();
        text(&mut image.pull_policy, pull_policy(&reference));
    }
    if let Some(limit) = volume.empty_dir.as_mut().and_then(|dir| dir.size_limit.as_mut()) {
        resources::rewrite(limit);
    }
    if let Some(iscsi) = &mut volume.iscsi {
        text(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        text(&mut rbd.pool, "rbd");
        text(&mut rbd.user, "admin");
        text(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        disk.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
        disk.fs_type.get_or_insert_with(|| "ext4".to_owned());
        disk.read_only.get_or_insert(false);
        disk.kind.get_or_insert_with(|| "Shared".to_owned());
    }
    if let Some(scale_io) = &mut volume.scale_io {
        text(&mut scale_io.storage_mode, "ThinProvisioned");
        text(&mut scale_io.fs_type, "xfs");
    }
    if let Some(template) =
        volume.ephemeral.as_mut().and_then(|ephemeral| ephemeral.volume_claim_template.as_mut())
    {
        apply_claim(&mut template.spec);
    }
}

/// Applies all defaults to the spec of a claim.
pub(super) fn apply_claim(spec: &mut PersistentVolumeClaimSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    if let Some(amounts) = &mut spec.resources {
        resources::round(amounts.limits.as_mut());
        resources::round(amounts.requests.as_mut());
    }
}

/// Applies all defaults to the spec of a persistent volume.
pub(super) fn apply_persistent_volume(spec: &mut PersistentVolumeSpec) {
    text(&mut spec.persistent_volume_reclaim_policy, "Retain");
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    resources::round(spec.capacity.as_mut());
    if let Some(path) = &mut spec.host_path {
        path.type_.get_or_insert_default();
    }
}

/// Whether a volume has only a name.
fn is_without_source(volume: &Volume) -> bool {
    *volume == Volume { name: volume.name.clone(), ..Volume::default() }
}
