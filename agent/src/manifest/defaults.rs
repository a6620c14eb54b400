//! Applies the API server's defaults.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/v1/defaults.go.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, HTTPGetAction, LifecycleHandler, Pod,
    PodSecurityContext, PodSpec, Probe, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Applies all defaults to a pod.
pub(super) fn apply(pod: &mut Pod) {
    // An empty namespace counts as absent.
    if pod
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        pod.metadata.namespace = Some("default".to_owned());
    }
    apply_spec(pod.spec.get_or_insert_default());
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
    spec.security_context
        .get_or_insert_with(PodSecurityContext::default);
    // A negative grace period means one second.
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
    // Deprecated alias of the same field.
    if let Some(account) = spec
        .service_account_name
        .clone()
        .filter(|name| !name.is_empty())
    {
        spec.service_account = Some(account);
    }
    if let Some(resources) = &mut spec.resources {
        let requested = |name: &str| {
            let all = spec
                .containers
                .iter()
                .chain(spec.init_containers.iter().flatten());
            all.filter_map(|container| container.resources.as_ref())
                .any(|resources| {
                    [&resources.requests, &resources.limits]
                        .into_iter()
                        .flatten()
                        .any(|list| list.contains_key(name))
                })
        };
        apply_pod_resources(resources, requested);
    }
    let host_network = spec.host_network == Some(true);
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        apply_container(container, host_network);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        text(
            &mut container.termination_message_path,
            "/dev/termination-log",
        );
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
    text(
        &mut container.termination_message_path,
        "/dev/termination-log",
    );
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
        for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop]
            .into_iter()
            .flatten()
        {
            apply_hook(hook);
        }
    }
    let resources = container
        .resources
        .get_or_insert_with(ResourceRequirements::default);
    apply_resources(resources);
    if let Some(security) = &mut container.security_context {
        // Leave it absent: absent means Default.
        if security.proc_mount.as_deref() == Some("") {
            security.proc_mount = None;
        }
    }
}

/// `Always` for an image without a tag or with the tag `latest`, unless it has a digest; else `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    if image.contains('@') {
        return "IfNotPresent";
    }
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
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
        resource
            .divisor
            .get_or_insert_with(|| Quantity("0".to_owned()));
    }
    if let Some(file) = &mut source.file_key_ref {
        file.optional.get_or_insert(false);
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

/// A request defaults to the limit.
fn apply_resources(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests
            .entry(name.clone())
            .or_insert_with(|| limit.clone());
    }
}

/// The same for pod-level resources, except those that the containers request: their sum applies.
fn apply_pod_resources(resources: &mut ResourceRequirements, requested: impl Fn(&str) -> bool) {
    let Some(limits) = &resources.limits else {
        return;
    };
    for (name, limit) in limits {
        let huge = name.starts_with("hugepages-");
        if huge || (matches!(name.as_str(), "cpu" | "memory") && !requested(name)) {
            resources
                .requests
                .get_or_insert_default()
                .entry(name.clone())
                .or_insert_with(|| limit.clone());
        }
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
        for item in api.items.iter_mut().flatten() {
            if let Some(field) = &mut item.field_ref {
                text(&mut field.api_version, "v1");
            }
            if let Some(resource) = &mut item.resource_field_ref {
                resource
                    .divisor
                    .get_or_insert_with(|| Quantity("0".to_owned()));
            }
        }
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(0o644);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
            for item in source
                .downward_api
                .iter_mut()
                .flat_map(|api| api.items.iter_mut().flatten())
            {
                if let Some(field) = &mut item.field_ref {
                    text(&mut field.api_version, "v1");
                }
            }
        }
    }
    if let Some(image) = &mut volume.image {
        let reference = image.reference.clone().unwrap_or_default();
        text(&mut image.pull_policy, pull_policy(&reference));
    }
    if let Some(iscsi) = &mut volume.iscsi {
        text(&mut iscsi.iscsi_interface, "default");
    }
}

/// Whether a volume has only a name.
fn is_without_source(volume: &Volume) -> bool {
    *volume
        == Volume {
            name: volume.name.clone(),
            ..Volume::default()
        }
}
