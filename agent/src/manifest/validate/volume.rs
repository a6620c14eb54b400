//! Volumes: names, exactly one source each, and the rules of each kind of source.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, ProjectedVolumeSource, Volume,
};

use super::declared::{Kind, Volumes};
use super::{Check, duplicate, env, names, resources};

/// Validates all volumes of a pod; returns the valid ones by name.
pub(super) fn all(check: &mut Check, volumes: &[Volume]) -> Volumes {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = format!("spec.volumes[{index}]");
        let before = check.errors.len();
        if volume.name.is_empty() {
            check.required(format!("{field}.name"), "");
        } else {
            check.formed(format!("{field}.name"), &volume.name, names::dns_label);
            duplicate(check, &mut seen, format!("{field}.name"), &volume.name);
        }
        source(check, &field, volume);
        if check.errors.len() == before || !volume.name.is_empty() {
            let claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
            found.insert(
                volume.name.clone(),
                if claim { Kind::Claim } else { Kind::Other },
            );
        }
    }
    found
}

fn source(check: &mut Check, field: &str, volume: &Volume) {
    let mut sources = 0;
    let mut first = |check: &mut Check, name: &str, given: bool| {
        if given {
            if sources > 0 {
                check.forbidden(
                    format!("{field}.{name}"),
                    "may not specify more than 1 volume type",
                );
            }
            sources += 1;
        }
        given && sources == 1
    };
    if first(check, "emptyDir", volume.empty_dir.is_some())
        && let Some(limit) = volume
            .empty_dir
            .as_ref()
            .and_then(|dir| dir.size_limit.as_ref())
        && !crate::quantity::Quantity::parse(&limit.0).is_ok_and(|limit| !limit.is_negative())
    {
        check.forbidden(
            format!("{field}.emptyDir.sizeLimit"),
            "must be a valid resource quantity",
        );
    }
    if first(check, "hostPath", volume.host_path.is_some())
        && let Some(path) = &volume.host_path
    {
        host_path(check, &format!("{field}.hostPath"), path);
    }
    if first(check, "secret", volume.secret.is_some())
        && let Some(secret) = &volume.secret
    {
        let field = format!("{field}.secret");
        if secret.secret_name.as_deref().unwrap_or_default().is_empty() {
            check.required(format!("{field}.secretName"), "");
        }
        mode(check, &format!("{field}.defaultMode"), secret.default_mode);
        items(check, &field, secret.items.as_deref());
    }
    if first(check, "configMap", volume.config_map.is_some())
        && let Some(map) = &volume.config_map
    {
        let field = format!("{field}.configMap");
        if map.name.is_empty() {
            check.required(format!("{field}.name"), "");
        }
        mode(check, &format!("{field}.defaultMode"), map.default_mode);
        items(check, &field, map.items.as_deref());
    }
    if first(check, "downwardAPI", volume.downward_api.is_some())
        && let Some(api) = &volume.downward_api
    {
        let field = format!("{field}.downwardAPI");
        mode(check, &format!("{field}.defaultMode"), api.default_mode);
        for file in api.items.iter().flatten() {
            downward_file(check, &field, file);
        }
    }
    if first(check, "projected", volume.projected.is_some())
        && let Some(projected) = &volume.projected
    {
        self::projected(check, &format!("{field}.projected"), projected);
    }
    if first(check, "nfs", volume.nfs.is_some())
        && let Some(nfs) = &volume.nfs
    {
        if nfs.server.is_empty() {
            check.required(format!("{field}.nfs.server"), "");
        }
        if !nfs.path.starts_with('/') {
            check.invalid(
                format!("{field}.nfs.path"),
                &nfs.path,
                "must be an absolute path",
            );
        }
    }
    if first(
        check,
        "persistentVolumeClaim",
        volume.persistent_volume_claim.is_some(),
    ) && volume
        .persistent_volume_claim
        .as_ref()
        .is_some_and(|claim| claim.claim_name.is_empty())
    {
        check.required(format!("{field}.persistentVolumeClaim.claimName"), "");
    }
    if first(check, "csi", volume.csi.is_some())
        && let Some(csi) = &volume.csi
    {
        if csi.driver.is_empty() {
            check.required(format!("{field}.csi.driver"), "");
        } else {
            check.formed(
                format!("{field}.csi.driver"),
                &csi.driver.to_lowercase(),
                names::dns_subdomain,
            );
        }
    }
    if first(check, "ephemeral", volume.ephemeral.is_some())
        && volume
            .ephemeral
            .as_ref()
            .is_some_and(|ephemeral| ephemeral.volume_claim_template.is_none())
    {
        check.required(format!("{field}.ephemeral.volumeClaimTemplate"), "");
    }
    first(check, "image", volume.image.is_some());
}

fn host_path(check: &mut Check, field: &str, path: &HostPathVolumeSource) {
    if path.path.is_empty() {
        check.required(format!("{field}.path"), "");
    } else {
        check.formed(format!("{field}.path"), &path.path, names::no_backsteps);
    }
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

fn mode(check: &mut Check, field: &str, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        check.invalid(
            field,
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        );
    }
}

fn items(check: &mut Check, field: &str, items: Option<&[KeyToPath]>) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        let field = format!("{field}.items[{index}]");
        if item.key.is_empty() {
            check.required(format!("{field}.key"), "");
        }
        file_path(check, &format!("{field}.path"), &item.path);
        mode(check, &format!("{field}.mode"), item.mode);
    }
}

fn file_path(check: &mut Check, field: &str, path: &str) {
    if path.is_empty() {
        check.required(field, "");
        return;
    }
    check.formed(field, path, names::inner_path);
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
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
    file_path(check, &format!("{field}.path"), &file.path);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(from), None) => {
            env::field_ref(
                check,
                &format!("{field}.fieldRef"),
                &from.field_path,
                &VOLUME_FIELDS,
            );
        }
        (None, Some(from)) => {
            resources::field_ref(check, &format!("{field}.resourceFieldRef"), from, false)
        }
        (Some(_), Some(_)) => check.invalid(
            field,
            "resource",
            "fieldRef and resourceFieldRef cannot be specified together",
        ),
        (None, None) => check.required(field, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(check, &format!("{field}.mode"), file.mode);
}

fn projected(check: &mut Check, field: &str, projected: &ProjectedVolumeSource) {
    mode(
        check,
        &format!("{field}.defaultMode"),
        projected.default_mode,
    );
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let item = format!("{field}.sources[{index}]");
        let given = [
            source.secret.is_some(),
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            check.forbidden(&item, "may not specify more than 1 volume type per source");
        }
        if let Some(secret) = &source.secret {
            items(check, &format!("{item}.secret"), secret.items.as_deref());
        }
        if let Some(map) = &source.config_map {
            items(check, &format!("{item}.configMap"), map.items.as_deref());
        }
        if let Some(token) = &source.service_account_token {
            let seconds = token.expiration_seconds.unwrap_or(3600);
            if seconds < 600 {
                let field = format!("{item}.serviceAccountToken.expirationSeconds");
                check.invalid(
                    field,
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            }
            if token.path.is_empty() {
                check.required(format!("{field}.path"), "");
            }
        }
    }
}
