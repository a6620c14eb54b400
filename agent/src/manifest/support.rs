//! Reports the fields of valid pods that the agent does not support; none is ignored silently.
//!
//! A field is fatal if ignoring it would change what runs; otherwise it is a warning.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

/// An unsupported field.
pub(super) struct Unsupported {
    pub(super) field: String,
    pub(super) message: String,
    pub(super) fatal: bool,
}

#[derive(Default)]
struct Collector(Vec<Unsupported>);

impl Collector {
    fn fatal(&mut self, field: String, message: &str) {
        self.0.push(Unsupported {
            field,
            message: message.to_owned(),
            fatal: true,
        });
    }

    fn warn(&mut self, field: String, message: &str) {
        self.0.push(Unsupported {
            field,
            message: message.to_owned(),
            fatal: false,
        });
    }
}

/// Collects the unsupported fields of a pod.
pub(super) fn unsupported_fields(pod: &Pod) -> Vec<Unsupported> {
    let mut found = Collector::default();
    let Some(spec) = &pod.spec else {
        return found.0;
    };
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        of_volume(&mut found, index, volume);
    }
    for (list, containers) in [
        ("initContainers", spec.init_containers.as_deref()),
        ("containers", Some(&*spec.containers)),
    ] {
        for (index, container) in containers.into_iter().flatten().enumerate() {
            of_container(&mut found, &format!("spec.{list}[{index}]"), container);
        }
    }
    let is_given = |list: Option<usize>| list.is_some_and(|length| length > 0);
    if is_given(spec.ephemeral_containers.as_ref().map(Vec::len)) {
        found.fatal(
            "spec.ephemeralContainers".to_owned(),
            "not supported yet: they can only be added to a running pod",
        );
    }
    if spec.host_users == Some(false) {
        found.fatal(
            "spec.hostUsers".to_owned(),
            "user namespaces are not supported yet",
        );
    }
    if is_given(spec.resource_claims.as_ref().map(Vec::len)) {
        found.fatal("spec.resourceClaims".to_owned(), "not supported yet");
    }
    if spec.active_deadline_seconds.is_some() {
        found.fatal(
            "spec.activeDeadlineSeconds".to_owned(),
            "not supported yet: the pod would not be stopped in time",
        );
    }
    if is_given(spec.image_pull_secrets.as_ref().map(Vec::len)) {
        found.warn(
            "spec.imagePullSecrets".to_owned(),
            "ignored without an API server: images are pulled without credentials",
        );
    }
    if is_given(spec.readiness_gates.as_ref().map(Vec::len)) {
        found.warn(
            "spec.readinessGates".to_owned(),
            "cannot be met without an API server: the pod will never be Ready",
        );
    }
    found.0
}

fn of_volume(found: &mut Collector, index: usize, volume: &Volume) {
    let path = |kind: &str| format!("spec.volumes[{index}].{kind}");
    let supported = Volume {
        name: volume.name.clone(),
        empty_dir: volume.empty_dir.clone(),
        host_path: volume.host_path.clone(),
        ..Volume::default()
    };
    if supported != *volume {
        let kind = [
            ("configMap", volume.config_map.is_some()),
            ("secret", volume.secret.is_some()),
            ("projected", volume.projected.is_some()),
            ("downwardAPI", volume.downward_api.is_some()),
            (
                "persistentVolumeClaim",
                volume.persistent_volume_claim.is_some(),
            ),
            ("ephemeral", volume.ephemeral.is_some()),
            ("image", volume.image.is_some()),
            ("csi", volume.csi.is_some()),
            ("nfs", volume.nfs.is_some()),
        ]
        .into_iter()
        .find_map(|(kind, is)| is.then_some(kind));
        let field = kind.map_or_else(|| format!("spec.volumes[{index}]"), path);
        found.fatal(
            field,
            "this kind of volume is not supported yet, expected emptyDir or hostPath",
        );
    }
    if let Some(dir) = &volume.empty_dir {
        if dir
            .medium
            .as_deref()
            .is_some_and(|medium| medium.starts_with("HugePages"))
        {
            found.fatal(path("emptyDir.medium"), "huge pages are not supported yet");
        } else if dir.medium.as_deref() == Some("Memory") {
            found.warn(
                path("emptyDir.medium"),
                "not supported yet: uses a directory on disk",
            );
        }
        if dir.size_limit.is_some() {
            found.warn(path("emptyDir.sizeLimit"), "the size is not limited yet");
        }
    }
}

fn of_container(found: &mut Collector, path: &str, container: &Container) {
    if container.restart_policy.as_deref() == Some("Always")
        && container.startup_probe.is_some()
        && path.contains("init")
    {
        found.fatal(
            format!("{path}.startupProbe"),
            "probes are not supported yet: the containers after it would never start",
        );
        return;
    }
    let probes = [
        (
            "livenessProbe",
            &container.liveness_probe,
            "probes are not supported yet: the container is never restarted for this",
        ),
        (
            "readinessProbe",
            &container.readiness_probe,
            "probes are not supported yet: the container is ready as soon as it runs",
        ),
        (
            "startupProbe",
            &container.startup_probe,
            "probes are not supported yet: the container is started as soon as it runs",
        ),
    ];
    for (name, probe, message) in probes {
        if probe.is_some() {
            found.warn(format!("{path}.{name}"), message);
        }
    }
    if let Some(lifecycle) = &container.lifecycle {
        if lifecycle.post_start.is_some() {
            found.fatal(
                format!("{path}.lifecycle.postStart"),
                "hooks are not supported yet",
            );
        }
        if lifecycle.pre_stop.is_some() {
            found.fatal(
                format!("{path}.lifecycle.preStop"),
                "hooks are not supported yet",
            );
        }
    }
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let Some(source) = &variable.value_from else {
            continue;
        };
        let sources = [
            (
                "configMapKeyRef",
                source.config_map_key_ref.as_ref().map(|key| key.optional),
            ),
            (
                "secretKeyRef",
                source.secret_key_ref.as_ref().map(|key| key.optional),
            ),
            (
                "fileKeyRef",
                source.file_key_ref.as_ref().map(|key| key.optional),
            ),
        ];
        for (kind, optional) in sources {
            if optional.is_some_and(|optional| optional != Some(true)) {
                found.fatal(
                    format!("{path}.env[{index}].valueFrom.{kind}"),
                    "not supported yet without an API server (ignored with optional: true)",
                );
            }
        }
    }
    for (index, from) in container.env_from.iter().flatten().enumerate() {
        let sources = [
            (
                "configMapRef",
                from.config_map_ref.as_ref().map(|source| source.optional),
            ),
            (
                "secretRef",
                from.secret_ref.as_ref().map(|source| source.optional),
            ),
        ];
        for (kind, optional) in sources {
            if optional.is_some_and(|optional| optional != Some(true)) {
                found.fatal(
                    format!("{path}.envFrom[{index}].{kind}"),
                    "not supported yet without an API server (ignored with optional: true)",
                );
            }
        }
    }
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        for (name, part) in [
            ("subPath", &mount.sub_path),
            ("subPathExpr", &mount.sub_path_expr),
        ] {
            if part.as_deref().is_some_and(|part| !part.is_empty()) {
                found.fatal(
                    format!("{path}.volumeMounts[{index}].{name}"),
                    "sub-paths of volumes are not supported yet",
                );
            }
        }
    }
    if container
        .volume_devices
        .as_ref()
        .is_some_and(|devices| !devices.is_empty())
    {
        found.fatal(
            format!("{path}.volumeDevices"),
            "block devices are not supported yet",
        );
    }
}
