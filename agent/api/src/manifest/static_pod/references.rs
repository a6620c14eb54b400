//! ◆ References that a static pod must not have, because it works without an API server. Pure.
//!
//! Source: Kubernetes 1.36, pkg/api/pod/util.go (gate PreventStaticPodAPIReferences).

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, Pod, PodSpec, ProjectedVolumeSource, Volume, VolumeProjection,
};

/// A reference to an object of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// The list or field that contains it.
    pub(super) field: &'static str,
    /// The resource, as the kubelet names it.
    pub(super) resource: &'static str,
}

/// The first reference to an object of the API server, in the kubelet's order.
pub(super) fn to_api_objects(pod: &Pod) -> Option<Reference> {
    let spec = pod.spec.as_ref()?;
    let found = |field, resource| Some(Reference { field, resource });
    let account = |name: &Option<String>| is_given(name.as_deref().unwrap_or_default());
    if account(&spec.service_account_name) || account(&spec.service_account) {
        return found("spec.serviceAccountName", "serviceaccounts");
    }
    let pull_secrets = spec.image_pull_secrets.iter().flatten();
    if pull_secrets.map(|secret| &secret.name).any(is_given) {
        return found("spec.imagePullSecrets", "secrets");
    }
    if variables(spec).any(|(from, variable)| variable_secret(from, variable).is_some_and(is_given))
    {
        return found("spec.containers", "secrets");
    }
    let volumes = || spec.volumes.iter().flatten();
    if volumes().any(|volume| volume_secrets(volume).into_iter().any(is_given)) {
        return found("spec.volumes", "secrets");
    }
    if variables(spec)
        .any(|(from, variable)| variable_config_map(from, variable).is_some_and(is_given))
    {
        return found("spec.containers", "configmaps");
    }
    if volumes().any(|volume| volume_config_maps(volume).into_iter().any(is_given)) {
        return found("spec.volumes", "configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return found("spec.resourceClaims", "resourceclaims");
    }
    volumes().find_map(volume_resource).and_then(|resource| found("spec.volumes", resource))
}

/// The first reference that a static pod may not have even if it may refer to API objects.
pub(super) fn to_unsupported_objects(pod: &Pod) -> Option<Reference> {
    let spec = pod.spec.as_ref()?;
    let volumes = spec.volumes.iter().flatten();
    let mut sources = volumes.flat_map(|volume| projections(volume.projected.as_ref()));
    if sources.any(|source| source.cluster_trust_bundle.is_some()) {
        return Some(Reference { field: "spec.volumes", resource: "clustertrustbundles" });
    }
    let has_claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    has_claims.then_some(Reference { field: "spec.resourceClaims", resource: "resourceclaims" })
}

/// An empty name refers to nothing.
fn is_given(name: impl AsRef<str>) -> bool {
    !name.as_ref().is_empty()
}

/// Every `envFrom` and every `env` of every container.
fn variables(spec: &PodSpec) -> impl Iterator<Item = (Option<&EnvFromSource>, Option<&EnvVar>)> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let own = containers.map(|container| (&container.env_from, &container.env));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    own.chain(ephemeral.map(|container| (&container.env_from, &container.env))).flat_map(
        |(from, env)| {
            let from = from.iter().flatten().map(|from| (Some(from), None));
            from.chain(env.iter().flatten().map(|variable| (None, Some(variable))))
        },
    )
}

fn variable_secret<'a>(
    from: Option<&'a EnvFromSource>,
    variable: Option<&'a EnvVar>,
) -> Option<&'a str> {
    let source = variable.and_then(|variable| variable.value_from.as_ref());
    let key = source.and_then(|source| source.secret_key_ref.as_ref());
    let whole = from.and_then(|from| from.secret_ref.as_ref());
    key.map(|key| key.name.as_str()).or_else(|| whole.map(|secret| secret.name.as_str()))
}

fn variable_config_map<'a>(
    from: Option<&'a EnvFromSource>,
    variable: Option<&'a EnvVar>,
) -> Option<&'a str> {
    let source = variable.and_then(|variable| variable.value_from.as_ref());
    let key = source.and_then(|source| source.config_map_key_ref.as_ref());
    let whole = from.and_then(|from| from.config_map_ref.as_ref());
    key.map(|key| key.name.as_str()).or_else(|| whole.map(|map| map.name.as_str()))
}

/// The sources of a projected volume.
fn projections(
    projected: Option<&ProjectedVolumeSource>,
) -> impl Iterator<Item = &VolumeProjection> {
    projected.into_iter().flat_map(|projected| projected.sources.iter().flatten())
}

/// The secrets that a volume refers to.
fn volume_secrets(volume: &Volume) -> Vec<&str> {
    let local = [
        volume.cephfs.as_ref().map(|source| &source.secret_ref),
        volume.cinder.as_ref().map(|source| &source.secret_ref),
        volume.flex_volume.as_ref().map(|source| &source.secret_ref),
        volume.rbd.as_ref().map(|source| &source.secret_ref),
        volume.iscsi.as_ref().map(|source| &source.secret_ref),
        volume.storageos.as_ref().map(|source| &source.secret_ref),
        volume.csi.as_ref().map(|source| &source.node_publish_secret_ref),
    ];
    let mut names: Vec<&str> =
        local.into_iter().flatten().flatten().map(|secret| secret.name.as_str()).collect();
    names.extend(volume.scale_io.as_ref().map(|source| source.secret_ref.name.as_str()));
    names.extend(volume.azure_file.as_ref().map(|source| source.secret_name.as_str()));
    names.extend(volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()));
    names.extend(
        projections(volume.projected.as_ref())
            .filter_map(|source| source.secret.as_ref())
            .map(|secret| secret.name.as_str()),
    );
    names
}

/// The config maps that a volume refers to.
fn volume_config_maps(volume: &Volume) -> Vec<&str> {
    let own = volume.config_map.as_ref().map(|source| source.name.as_str());
    own.into_iter()
        .chain(
            projections(volume.projected.as_ref())
                .filter_map(|source| source.config_map.as_ref())
                .map(|map| map.name.as_str()),
        )
        .collect()
}

/// The resource that a volume needs from the API server, whatever names it has.
fn volume_resource(volume: &Volume) -> Option<&'static str> {
    let own = [
        (volume.config_map.is_some(), "configmaps (via configmap volumes)"),
        (volume.secret.is_some(), "secrets (via secret volumes)"),
        (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
        (volume.glusterfs.is_some(), "endpoints (via glusterFS volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "persistentvolumeclaims (via ephemeral volumes)"),
        (volume.azure_file.is_some(), "secrets (via azureFile volumes)"),
    ];
    let projected = || {
        projections(volume.projected.as_ref()).find_map(|source| {
            let kinds = [
                (source.config_map.is_some(), "configmaps (via projected volumes)"),
                (source.secret.is_some(), "secrets (via projected volumes)"),
                (source.service_account_token.is_some(), "serviceaccounts (via projected volumes)"),
                (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
                (source.pod_certificate.is_some(), "podcertificates"),
            ];
            first(&kinds)
        })
    };
    first(&own).or_else(projected)
}

fn first(kinds: &[(bool, &'static str)]) -> Option<&'static str> {
    kinds.iter().find_map(|(is, resource)| is.then_some(*resource))
}
