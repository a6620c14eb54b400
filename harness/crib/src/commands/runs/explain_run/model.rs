//! ◆ The explanation as data; `--output json` prints its JSON form.

use std::collections::BTreeMap;

use agent::objects::ObjectMap;
use agent::pod_spec::nested_mounts;
use api::manifest::{Problem, Workload, WorkloadObject};
use api::pod::{ContainerKind, Pod, is_sidecar};
use api::qos::qos_class;
use cluster::controllers::pod_capacity::{self, MAX_PODS};
use crib_run::Inputs;
use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, HTTPGetAction, Probe, ResourceRequirements, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::claims::BoundClaims;
use super::services::{self, ExplainedService};

/// The whole explanation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explained {
    pub(super) pods: Vec<ExplainedPod>,
    pub(super) services: Vec<ExplainedService>,
    /// ConfigMaps and Secrets, such as `configmap default/settings`.
    pub(super) objects: Vec<String>,
    /// Fields without effect, which `crib run` does not mention.
    pub(super) no_effect: Vec<FieldLocation>,
    /// The warnings of `crib run`.
    pub(super) warnings: Vec<String>,
}

/// A field in a manifest.
#[derive(Debug, Serialize)]
pub(super) struct FieldLocation {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) path: String,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedPod {
    /// The workload that creates pods of this kind, such as `deployment default/web`; `None` for a pod of a manifest.
    pub(super) controller: Option<String>,
    /// The schedule of a CronJob, such as `*/5 * * * * (UTC)`.
    pub(super) schedule: Option<String>,
    /// The number of pods that run concurrently.
    pub(super) count: i32,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) file: String,
    pub(super) restart_policy: String,
    pub(super) grace_seconds: i64,
    pub(super) qos_class: &'static str,
    pub(super) host_network: bool,
    pub(super) volumes: Vec<ExplainedVolume>,
    /// In their start order.
    pub(super) containers: Vec<ExplainedContainer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedVolume {
    pub(super) name: String,
    /// Such as `ConfigMap settings`.
    pub(super) source: String,
    /// The binding of its claim; `None` without a claim.
    pub(super) bound_to: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedContainer {
    pub(super) name: String,
    /// `init`, `sidecar` or `app`.
    pub(super) kind: &'static str,
    pub(super) image: String,
    pub(super) image_pull_policy: String,
    /// Replaces the image's entrypoint.
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) ports: Vec<String>,
    /// The names of variables, and of objects in envFrom.
    pub(super) env: Vec<String>,
    pub(super) mounts: Vec<ExplainedMount>,
    pub(super) requests: BTreeMap<String, String>,
    pub(super) limits: BTreeMap<String, String>,
    pub(super) probes: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExplainedMount {
    pub(super) path: String,
    pub(super) volume: String,
    pub(super) sub_path: Option<String>,
    pub(super) read_only: bool,
}

impl Explained {
    /// Explains what `crib run` would do with `inputs`.
    pub(super) fn of(inputs: &Inputs) -> Self {
        let claims = BoundClaims::of(inputs);
        let bare = inputs.pods.iter().map(|of| pod(of, &claims));
        let created = inputs.workloads.iter().map(|of| created(of, &claims));
        Self {
            pods: bare.chain(created).collect(),
            services: services::all(inputs),
            objects: inputs.object_names.clone(),
            no_effect: inputs.no_effect.iter().map(place).collect(),
            warnings: {
                let examples = inputs.workloads.iter().map(Workload::example);
                let pods = inputs.pods.iter().map(Pod::clone).chain(examples);
                let below = pods.flat_map(|pod| impossible_mounts(&pod, &inputs.objects));
                let without_room = without_room(&inputs.workloads);
                inputs.warnings.iter().cloned().chain(without_room).chain(below).collect()
            },
        }
    }
}

fn place(problem: &Problem) -> FieldLocation {
    FieldLocation {
        file: problem.file.clone(),
        line: problem.line,
        column: problem.column,
        path: problem.path.clone(),
        reason: problem.message.clone(),
    }
}

/// Messages about workloads with more concurrent pods than the node allows.
fn without_room(workloads: &[Workload]) -> Vec<String> {
    let mut left = MAX_PODS;
    let mut lines = Vec::new();
    for workload in workloads {
        let wanted = usize::try_from(count(workload)).unwrap_or_default();
        // A CronJob starts its pods later, when other pods may have ended.
        let is_later = matches!(workload.object, WorkloadObject::CronJob(_));
        let placed = wanted.min(if is_later { MAX_PODS } else { left.max(1) });
        if !is_later {
            left = left.saturating_sub(placed);
        }
        if wanted > placed {
            let (name, sentence) =
                (workload.full_name(), pod_capacity::unplaced_message(wanted - placed));
            lines.push(format!("{name}: {sentence}"));
        }
    }
    lines
}

/// Messages about mounts of a pod that cannot succeed.
fn impossible_mounts(pod: &Pod, objects: &ObjectMap) -> Vec<String> {
    let of_container = |container: &Container| {
        let line = |(inner, outer): (&VolumeMount, &VolumeMount), why: &str| {
            format!(
                "pod {}/{}: container {} cannot be created: its mount {} is below {}, {why}",
                pod.namespace(),
                pod.name(),
                container.name,
                inner.mount_path,
                outer.mount_path
            )
        };
        let empty = nested_mounts::impossible(pod, container).into_iter();
        let files = nested_mounts::files_over_directories(pod, container, objects).into_iter();
        empty
            .map(|mounts| line(mounts, "which is read-only and empty"))
            .chain(files.map(|mounts| {
                line(mounts, "where its mount point is a directory, but it is a file")
            }))
            .collect::<Vec<_>>()
    };
    pod.all_containers().flat_map(|(_, container)| of_container(container)).collect()
}

/// The number of pods that a workload runs concurrently.
fn count(workload: &Workload) -> i32 {
    let count = match &workload.object {
        WorkloadObject::Deployment(object) => object.spec.as_ref().and_then(|spec| spec.replicas),
        WorkloadObject::ReplicaSet(object) => object.spec.as_ref().and_then(|spec| spec.replicas),
        WorkloadObject::ReplicationController(object) => {
            object.spec.as_ref().and_then(|spec| spec.replicas)
        }
        WorkloadObject::StatefulSet(object) => object.spec.as_ref().and_then(|spec| spec.replicas),
        WorkloadObject::Job(object) => object.spec.as_ref().and_then(pods_of_job),
        WorkloadObject::CronJob(object) => {
            object.spec.job_template.spec.as_ref().and_then(pods_of_job)
        }
        WorkloadObject::DaemonSet(_) => None,
    };
    count.unwrap_or(1)
}

/// The pods that a workload creates.
fn created(workload: &Workload, claims: &BoundClaims) -> ExplainedPod {
    ExplainedPod {
        controller: Some(workload.full_name()),
        schedule: schedule(&workload.object),
        count: count(workload),
        ..pod(&workload.example(), claims)
    }
}

fn pods_of_job(spec: &JobSpec) -> Option<i32> {
    let (parallelism, completions) = (spec.parallelism, spec.completions);
    parallelism.map(|pods| completions.map_or(pods, |completions| completions.min(pods)))
}

/// The schedule of a CronJob as text.
fn schedule(object: &WorkloadObject) -> Option<String> {
    let WorkloadObject::CronJob(object) = object else {
        return None;
    };
    let spec = &object.spec;
    let zone = spec.time_zone.as_deref().unwrap_or("UTC");
    let suspended = if spec.suspend == Some(true) { ", suspended" } else { "" };
    Some(format!("{} ({zone}){suspended}", spec.schedule))
}

fn pod(pod: &Pod, claims: &BoundClaims) -> ExplainedPod {
    let spec = pod.spec();
    // Init containers first, in their order.
    let containers = pod
        .all_containers()
        .filter(|(kind, _)| *kind != ContainerKind::Ephemeral)
        .map(|(kind, of)| container(kind, of))
        .collect();
    ExplainedPod {
        controller: None,
        schedule: None,
        count: 1,
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        file: pod.origin().to_owned(),
        restart_policy: spec.restart_policy.clone().unwrap_or_default(),
        grace_seconds: pod.grace_seconds(),
        qos_class: qos_class(pod).as_str(),
        host_network: pod.host_network(),
        volumes: spec
            .volumes
            .iter()
            .flatten()
            .map(|of| volume(of, pod.namespace(), claims))
            .collect(),
        containers,
    }
}

fn container(kind: ContainerKind, of: &Container) -> ExplainedContainer {
    let kind = match kind {
        ContainerKind::Init if is_sidecar(of) => "sidecar",
        ContainerKind::Init => "init",
        ContainerKind::App | ContainerKind::Ephemeral => "app",
    };
    let amounts = |given: fn(&ResourceRequirements) -> &Option<BTreeMap<String, Quantity>>| {
        let all = of.resources.as_ref().and_then(|all| given(all).as_ref());
        all.into_iter()
            .flatten()
            .map(|(name, Quantity(amount))| (name.clone(), amount.clone()))
            .collect()
    };
    let names = of.env.iter().flatten().map(|variable| variable.name.clone());
    ExplainedContainer {
        name: of.name.clone(),
        kind,
        image: of.image.clone().unwrap_or_default(),
        image_pull_policy: of.image_pull_policy.clone().unwrap_or_default(),
        command: of.command.clone().unwrap_or_default(),
        args: of.args.clone().unwrap_or_default(),
        ports: ports(of),
        env: of.env_from.iter().flatten().map(env_from).chain(names).collect(),
        mounts: of.volume_mounts.iter().flatten().map(mount).collect(),
        requests: amounts(|all| &all.requests),
        limits: amounts(|all| &all.limits),
        probes: [
            ("startup", &of.startup_probe),
            ("readiness", &of.readiness_probe),
            ("liveness", &of.liveness_probe),
        ]
        .into_iter()
        .filter_map(|(name, given)| Some((name, probe(given.as_ref()?))))
        .collect(),
    }
}

fn ports(of: &Container) -> Vec<String> {
    let all = of.ports.iter().flatten();
    all.map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let inside = format!("{}/{protocol}", port.container_port);
        match port.host_port {
            Some(host) => match port.host_ip.as_deref() {
                None | Some("") => format!("{inside} as host port {host}"),
                Some(address) => format!("{inside} as host port {address}:{host}"),
            },
            None => inside,
        }
    })
    .collect()
}

fn env_from(source: &EnvFromSource) -> String {
    let map = source.config_map_ref.as_ref();
    let secret = source.secret_ref.as_ref();
    let map = map.map(|map| format!("all of ConfigMap {}", map.name));
    map.or_else(|| secret.map(|secret| format!("all of Secret {}", secret.name)))
        .unwrap_or_default()
}

fn mount(of: &VolumeMount) -> ExplainedMount {
    ExplainedMount {
        path: of.mount_path.clone(),
        volume: of.name.clone(),
        sub_path: of.sub_path_expr.clone().or_else(|| of.sub_path.clone()),
        read_only: of.read_only == Some(true),
    }
}

fn volume(of: &Volume, namespace: &str, claims: &BoundClaims) -> ExplainedVolume {
    let claim = of.persistent_volume_claim.as_ref();
    ExplainedVolume {
        bound_to: claim.and_then(|claim| claims.get(namespace, &claim.claim_name)),
        name: of.name.clone(),
        source: source(of),
    }
}

fn source(of: &Volume) -> String {
    if let Some(map) = &of.config_map {
        return format!("ConfigMap {}", map.name);
    }
    if let Some(secret) = &of.secret {
        return format!("Secret {}", secret.secret_name.as_deref().unwrap_or_default());
    }
    if let Some(host) = &of.host_path {
        return format!("{} of the host", host.path);
    }
    if let Some(claim) = &of.persistent_volume_claim {
        return format!("PersistentVolumeClaim {}", claim.claim_name);
    }
    if of.ephemeral.is_some() {
        return "an ephemeral claim, deleted with the pod".to_owned();
    }
    if let Some(image) = &of.image {
        return format!("image {}", image.reference.as_deref().unwrap_or_default());
    }
    if let Some(projected) = &of.projected {
        let parts: Vec<String> = projected.sources.iter().flatten().map(part).collect();
        return parts.join(", ");
    }
    if of.downward_api.is_some() {
        return "fields of the pod".to_owned();
    }
    match of.empty_dir.as_ref().and_then(|dir| dir.medium.as_deref()) {
        None | Some("") => "an empty directory".to_owned(),
        Some(medium) => format!("an empty directory ({medium})"),
    }
}

fn part(of: &VolumeProjection) -> String {
    if let Some(map) = &of.config_map {
        return format!("ConfigMap {}", map.name);
    }
    if let Some(secret) = &of.secret {
        return format!("Secret {}", secret.name);
    }
    match &of.service_account_token {
        Some(_) => "a token of its service account".to_owned(),
        None => "fields of the pod".to_owned(),
    }
}

fn probe(of: &Probe) -> String {
    let action = if let Some(http) = &of.http_get {
        http_get(http)
    } else if let Some(tcp) = &of.tcp_socket {
        format!("a connection to port {}", port(&tcp.port))
    } else if let Some(grpc) = &of.grpc {
        format!("gRPC on port {}", grpc.port)
    } else {
        let command = of.exec.as_ref().and_then(|exec| exec.command.clone());
        command.unwrap_or_default().join(" ")
    };
    format!("{action} every {} s", of.period_seconds.unwrap_or(10))
}

fn http_get(of: &HTTPGetAction) -> String {
    let scheme = of.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let path = of.path.as_deref().unwrap_or("/");
    format!("GET {scheme}://:{}{path}", port(&of.port))
}

fn port(of: &IntOrString) -> String {
    match of {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}
