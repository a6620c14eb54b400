//! Volumes: names, exactly one source each, and the rules of each kind of source.

pub(crate) mod claim;
mod legacy;
mod projected;

use compact::{Map, Set};
use k8s_openapi::api::core::v1::{
    CSIVolumeSource, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, NFSVolumeSource,
    Volume,
};

use crate::manifest::validate::pod::Volumes;
use crate::manifest::validate::pod::container;
use crate::manifest::validate::pod::env;
use crate::manifest::validate::pod::resources;
use crate::manifest::validate::{Check, duplicate, names};
use crate::quantity::Quantity;

/// Validates all volumes of a pod; returns the valid ones by name.
pub(crate) fn all<'a>(check: &mut Check, pod_name: &str, volumes: &'a [Volume]) -> Volumes<'a> {
    let mut found = Map::new();
    let mut seen = Set::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = format!("spec.volumes[{index}]");
        let before = check.errors.len();
        source(check, &field, volume);
        let name = format!("{field}.name");
        if volume.name.is_empty() {
            check.required(name, "");
        } else {
            check.formed(&name, &volume.name, names::dns_label);
            if seen.contains(&volume.name) {
                duplicate(check, &mut seen, name, &volume.name);
            }
        }
        if volume.ephemeral.is_some() && !pod_name.is_empty() && !volume.name.is_empty() {
            check.formed(
                format!("{field}.name"),
                &format!("{pod_name}-{}", volume.name),
                names::dns_subdomain,
            );
        }
        if check.errors.len() == before {
            seen.insert(volume.name.clone());
            found.insert(volume.name.as_str(), volume);
        }
        let claim = volume.persistent_volume_claim.as_ref();
        let is_made =
            claim.is_some_and(|claim| is_made_for_pod(&claim.claim_name, pod_name, volumes));
        if let Some(claim) = claim.filter(|_| is_made) {
            check.invalid(
                format!("{field}.persistentVolumeClaim.claimName"),
                &claim.claim_name,
                "must not reference a claim that is created for an ephemeral volume",
            );
        }
    }
    found
}

fn is_made_for_pod(claim: &str, pod_name: &str, volumes: &[Volume]) -> bool {
    let own = claim.strip_prefix(pod_name).and_then(|rest| rest.strip_prefix('-'));
    !pod_name.is_empty()
        && volumes
            .iter()
            .filter(|volume| volume.ephemeral.is_some())
            .any(|volume| own == Some(volume.name.as_str()))
}

/// The check of one source, given the path of its volume.
type SourceCheck<'a> = Box<dyn Fn(&mut Check, &str) + 'a>;

/// A kind of source: its field, and its check if the volume has it.
type Source<'a> = (&'static str, Option<SourceCheck<'a>>);

/// Wraps the check of a source.
fn given<'a, T>(
    source: &'a Option<T>,
    name: &'static str,
    check: fn(&mut Check, &str, &T),
) -> Source<'a> {
    let source = source.as_ref();
    (
        name,
        source.map(|source| -> SourceCheck<'a> {
            Box::new(move |found, field| check(found, &format!("{field}.{name}"), source))
        }),
    )
}

/// Checks the source of a volume, in the order of the API server: only the first source is used.
fn source(check: &mut Check, field: &str, volume: &Volume) {
    let sources: [Source<'_>; 30] = [
        given(&volume.empty_dir, "emptyDir", |check, field, dir| {
            let limit = dir.size_limit.as_ref();
            if limit.is_some_and(|limit| !is_amount(&limit.0)) {
                check.forbidden(format!("{field}.sizeLimit"), "must be a valid resource quantity");
            }
        }),
        given(&volume.host_path, "hostPath", host_path),
        given(&volume.git_repo, "gitRepo", legacy::git_repo),
        given(&volume.gce_persistent_disk, "gcePersistentDisk", legacy::gce_disk),
        given(&volume.aws_elastic_block_store, "awsElasticBlockStore", legacy::aws_disk),
        given(&volume.secret, "secret", |check, field, secret| {
            check.nonempty(
                format!("{field}.secretName"),
                secret.secret_name.as_deref().unwrap_or_default(),
            );
            mode(check, &format!("{field}.defaultMode"), secret.default_mode);
            items(check, field, secret.items.as_deref());
        }),
        given(&volume.nfs, "nfs", nfs),
        given(&volume.iscsi, "iscsi", legacy::iscsi),
        given(&volume.glusterfs, "glusterfs", |check, field, it| {
            legacy::required(check, field, &[("endpoints", &it.endpoints), ("path", &it.path)]);
        }),
        given(&volume.flocker, "flocker", legacy::flocker),
        given(&volume.persistent_volume_claim, "persistentVolumeClaim", |check, field, claim| {
            check.nonempty(format!("{field}.claimName"), &claim.claim_name);
        }),
        given(&volume.rbd, "rbd", legacy::rbd),
        given(&volume.cinder, "cinder", legacy::cinder),
        given(&volume.cephfs, "cephfs", legacy::cephfs),
        given(&volume.quobyte, "quobyte", legacy::quobyte),
        given(&volume.downward_api, "downwardAPI", |check, field, api| {
            mode(check, &format!("{field}.defaultMode"), api.default_mode);
            for file in api.items.iter().flatten() {
                downward_file(check, field, file);
            }
        }),
        given(&volume.fc, "fc", legacy::fc),
        given(&volume.flex_volume, "flexVolume", legacy::flex),
        given(&volume.config_map, "configMap", |check, field, map| {
            check.nonempty(format!("{field}.name"), &map.name);
            mode(check, &format!("{field}.defaultMode"), map.default_mode);
            items(check, field, map.items.as_deref());
        }),
        given(&volume.azure_file, "azureFile", |check, field, it| {
            legacy::required(
                check,
                field,
                &[("secretName", &it.secret_name), ("shareName", &it.share_name)],
            );
        }),
        given(&volume.vsphere_volume, "vsphereVolume", |check, field, it| {
            legacy::required(check, field, &[("volumePath", &it.volume_path)]);
        }),
        given(&volume.photon_persistent_disk, "photonPersistentDisk", |check, field, it| {
            legacy::required(check, field, &[("pdID", &it.pd_id)]);
        }),
        given(&volume.portworx_volume, "portworxVolume", |check, field, it| {
            legacy::required(check, field, &[("volumeID", &it.volume_id)]);
        }),
        given(&volume.azure_disk, "azureDisk", legacy::azure_disk),
        given(&volume.storageos, "storageos", legacy::storageos),
        given(&volume.projected, "projected", projected::check),
        given(&volume.scale_io, "scaleIO", legacy::scale_io),
        given(&volume.csi, "csi", csi),
        given(&volume.ephemeral, "ephemeral", claim::ephemeral),
        given(&volume.image, "image", |check, field, image| {
            // A kubelet accepts an image without a reference; pulling it fails.
            let policy = image.pull_policy.as_deref();
            container::pull_policy(check, format!("{field}.pullPolicy"), policy);
        }),
    ];
    let mut given = sources.into_iter().filter_map(|(name, source)| Some((name, source?)));
    match given.next() {
        Some((_, first)) => first(check, field),
        None => check.required(field, "must specify a volume type"),
    }
    for (name, _) in given {
        // The API server's names for two of them differ from the fields'.
        let name = match name {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            name => name,
        };
        check.forbidden(format!("{field}.{name}"), "may not specify more than 1 volume type");
    }
    if let Some(iscsi) = &volume.iscsi
        && iscsi.initiator_name.is_some()
        && volume.name.len() + 1 + iscsi.target_portal.len() > 64
    {
        check.invalid(
            format!("{field}.name"),
            &volume.name,
            "<volume name>:<iscsi.targetPortal> must have at most 64 characters if iscsi.initiatorName is given",
        );
    }
}

fn is_amount(text: &str) -> bool {
    Quantity::parse(text).is_ok_and(|amount| !amount.is_negative())
}

pub(crate) fn host_path(check: &mut Check, field: &str, path: &HostPathVolumeSource) {
    if path.path.is_empty() {
        check.required(format!("{field}.path"), "");
        return;
    }
    check.formed(format!("{field}.path"), &path.path, names::no_backsteps);
    let known = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    check.maybe_one_of(format!("{field}.type"), path.type_.as_deref(), &known);
}

fn nfs(check: &mut Check, field: &str, nfs: &NFSVolumeSource) {
    check.nonempty(format!("{field}.server"), &nfs.server);
    check.nonempty(format!("{field}.path"), &nfs.path);
    if !nfs.path.starts_with('/') {
        check.invalid(format!("{field}.path"), &nfs.path, "must be an absolute path");
    }
}

fn csi(check: &mut Check, field: &str, csi: &CSIVolumeSource) {
    let driver = format!("{field}.driver");
    if csi.driver.is_empty() {
        check.required(driver, "");
    } else {
        if csi.driver.len() > 63 {
            let detail = "may not be more than 63 bytes";
            check.error(crate::manifest::validate::Rule::TooLong, &driver, &csi.driver, detail);
        }
        check.formed(driver, &csi.driver.to_lowercase(), names::dns_subdomain);
    }
    if let Some(secret) = &csi.node_publish_secret_ref {
        if secret.name.is_empty() {
            check.required(format!("{field}.nodePublishSecretRef.name"), "");
        } else {
            check.formed(format!("{field}.name"), &secret.name, names::dns_subdomain);
        }
    }
}

fn mode(check: &mut Check, field: &str, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        check.invalid(field, mode, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

fn items(check: &mut Check, field: &str, items: Option<&[KeyToPath]>) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        let field = format!("{field}.items[{index}]");
        check.nonempty(format!("{field}.key"), &item.key);
        check.nonempty(format!("{field}.path"), &item.path);
        file_path(check, &format!("{field}.path"), &item.path);
        mode(check, &format!("{field}.mode"), item.mode);
    }
}

/// The path of a file in a volume.
fn file_path(check: &mut Check, field: &str, path: &str) {
    check.formed(field, path, names::inner_path);
    if path.starts_with("..") && !path.starts_with("../") {
        check.invalid(field, path, "must not start with '..'");
    }
}

const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

fn downward_file(check: &mut Check, field: &str, file: &DownwardAPIVolumeFile) {
    check.nonempty(format!("{field}.path"), &file.path);
    file_path(check, &format!("{field}.path"), &file.path);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(from), resource) => {
            env::field_ref(check, &format!("{field}.fieldRef"), from, &VOLUME_FIELDS);
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef cannot be specified together";
                check.invalid(field, "resource", detail);
            }
        }
        (None, Some(from)) => {
            resources::field_ref(check, &format!("{field}.resourceFieldRef"), from, false)
        }
        (None, None) => check.required(field, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(check, &format!("{field}.mode"), file.mode);
}
