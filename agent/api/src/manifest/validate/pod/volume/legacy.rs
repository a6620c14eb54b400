//! Volumes of single vendors and protocols.

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CephFSVolumeSource,
    CinderVolumeSource, FCVolumeSource, FlexVolumeSource, FlockerVolumeSource,
    GCEPersistentDiskVolumeSource, GitRepoVolumeSource, ISCSIVolumeSource, LocalObjectReference,
    QuobyteVolumeSource, RBDVolumeSource, ScaleIOVolumeSource, StorageOSVolumeSource,
};

use crate::manifest::validate::{Check, Rule, names};

/// Reports required strings that are empty.
pub(super) fn required(check: &mut Check, field: &str, texts: &[(&str, &str)]) {
    for (name, text) in texts {
        check.nonempty(format!("{field}.{name}"), text);
    }
}

fn secret(check: &mut Check, field: &str, secret: Option<&LocalObjectReference>) {
    if secret.is_some_and(|secret| secret.name.is_empty()) {
        check.required(format!("{field}.secretRef.name"), "");
    }
}

fn partition(check: &mut Check, field: &str, partition: Option<i32>) {
    let partition = i64::from(partition.unwrap_or_default());
    check.range(format!("{field}.partition"), partition, 0, 255);
}

pub(super) fn git_repo(check: &mut Check, field: &str, repo: &GitRepoVolumeSource) {
    required(check, field, &[("repository", &repo.repository)]);
    let directory = repo.directory.as_deref().unwrap_or_default();
    check.formed(format!("{field}.directory"), directory, names::inner_path);
}

pub(super) fn gce_disk(check: &mut Check, field: &str, disk: &GCEPersistentDiskVolumeSource) {
    // The path as in the API server.
    let field = field.replace("gcePersistentDisk", "persistentDisk");
    required(check, &field, &[("pdName", &disk.pd_name)]);
    partition(check, &field, disk.partition);
}

pub(super) fn aws_disk(check: &mut Check, field: &str, disk: &AWSElasticBlockStoreVolumeSource) {
    required(check, field, &[("volumeID", &disk.volume_id)]);
    partition(check, field, disk.partition);
}

pub(super) fn iscsi(check: &mut Check, field: &str, iscsi: &ISCSIVolumeSource) {
    required(check, field, &[("targetPortal", &iscsi.target_portal), ("iqn", &iscsi.iqn)]);
    if !iscsi.iqn.is_empty() {
        check.formed(format!("{field}.iqn"), &iscsi.iqn, iscsi_name);
    }
    check.range(format!("{field}.lun"), i64::from(iscsi.lun), 0, 255);
    let authenticates =
        iscsi.chap_auth_discovery == Some(true) || iscsi.chap_auth_session == Some(true);
    if authenticates && iscsi.secret_ref.is_none() {
        check.required(format!("{field}.secretRef"), "");
    }
    check.maybe_formed(
        format!("{field}.initiatorname"),
        iscsi.initiator_name.as_deref(),
        iscsi_name,
    );
}

/// `iqn.YYYY-MM.DOMAIN:NAME`, `eui.` and 16 or `naa.` and 32 letters or digits.
fn iscsi_name(text: &str) -> Option<&'static str> {
    let of_length = |id: &str, length: usize| {
        // The separator of the prefix may be any character.
        let id: String = id.chars().skip(1).collect();
        id.len() == length && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let is_valid = if text.starts_with("iqn") {
        is_iqn(text)
    } else if let Some(id) = text.strip_prefix("eui") {
        of_length(id, 16)
    } else if let Some(id) = text.strip_prefix("naa") {
        of_length(id, 32)
    } else {
        return Some("must start with iqn, eui, or naa");
    };
    (!is_valid).then_some("must be a valid iSCSI name")
}

fn is_iqn(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("iqn.") else {
        return false;
    };
    let Some((date, rest)) = rest.split_at_checked(7) else {
        return false;
    };
    let is_date = date.bytes().enumerate().all(|(place, byte)| match place {
        4 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let (authority, name) = rest.split_once(':').unwrap_or((rest, ""));
    let Some(authority) = authority.strip_prefix('.') else {
        return false;
    };
    let is_authority = !authority.is_empty()
        && authority
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
    let is_name = !name.is_empty()
        && !name.contains([',', ';', '*', '&', '$', '|'])
        && !name.bytes().any(|byte| byte.is_ascii_whitespace());
    is_date && is_authority && is_name
}

pub(super) fn flocker(check: &mut Check, field: &str, volume: &FlockerVolumeSource) {
    let name = volume.dataset_name.as_deref().unwrap_or_default();
    let uuid = volume.dataset_uuid.as_deref().unwrap_or_default();
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => check.required(field, "one of datasetName and datasetUUID is required"),
        (false, false) => check.invalid(
            field,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        ),
        (true, false) | (false, true) => {}
    }
    if name.contains('/') {
        check.invalid(format!("{field}.datasetName"), name, "must not contain '/'");
    }
}

pub(super) fn rbd(check: &mut Check, field: &str, volume: &RBDVolumeSource) {
    if volume.monitors.is_empty() {
        check.required(format!("{field}.monitors"), "");
    }
    required(check, field, &[("image", &volume.image)]);
}

pub(super) fn cinder(check: &mut Check, field: &str, volume: &CinderVolumeSource) {
    required(check, field, &[("volumeID", &volume.volume_id)]);
    secret(check, field, volume.secret_ref.as_ref());
}

pub(super) fn cephfs(check: &mut Check, field: &str, volume: &CephFSVolumeSource) {
    if volume.monitors.is_empty() {
        check.required(format!("{field}.monitors"), "");
    }
}

pub(super) fn quobyte(check: &mut Check, field: &str, volume: &QuobyteVolumeSource) {
    let expected = "must be a host:port pair or multiple pairs separated by commas";
    let registry = format!("{field}.registry");
    if volume.registry.is_empty() {
        check.required(registry, expected);
    } else if volume.tenant.as_ref().is_some_and(|tenant| tenant.len() >= 65) {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        check.required(format!("{field}.tenant"), detail);
    } else if !volume.registry.split(',').all(is_host_and_port) {
        check.invalid(registry, &volume.registry, expected);
    }
    required(check, field, &[("volume", &volume.volume)]);
}

fn is_host_and_port(text: &str) -> bool {
    match text.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .and_then(|(_, port)| port.strip_prefix(':'))
            .is_some_and(|port| !port.contains([':', '[', ']'])),
        None => text.matches(':').count() == 1 && !text.contains(['[', ']']),
    }
}

pub(super) fn fc(check: &mut Check, field: &str, volume: &FCVolumeSource) {
    let count = |list: &Option<Vec<String>>| list.as_ref().map_or(0, Vec::len);
    let (names, ids) = (count(&volume.target_wwns), count(&volume.wwids));
    let list = format!("{field}.targetWWNs");
    if names == 0 && ids == 0 {
        check.required(&list, "must specify either targetWWNs or wwids, but not both");
    }
    if names != 0 && ids != 0 {
        check.invalid(list, "", "targetWWNs and wwids can not be specified simultaneously");
    }
    if names != 0 {
        match volume.lun {
            None => {
                check.required(format!("{field}.lun"), "lun is required if targetWWNs is specified")
            }
            Some(lun) => check.range(format!("{field}.lun"), i64::from(lun), 0, 255),
        }
    }
}

pub(super) fn flex(check: &mut Check, field: &str, volume: &FlexVolumeSource) {
    required(check, field, &[("driver", &volume.driver)]);
    for (key, _) in volume.options.iter().flatten() {
        let namespace = key.split_once('/').map_or(key.as_str(), |(first, _)| first);
        let namespace = format!(".{}", namespace.to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            check.invalid(format!("{field}.options[{key}]"), key, detail);
        }
    }
}

pub(super) fn azure_disk(check: &mut Check, field: &str, disk: &AzureDiskVolumeSource) {
    required(check, field, &[("diskName", &disk.disk_name), ("diskURI", &disk.disk_uri)]);
    let known = ["None", "ReadOnly", "ReadWrite"];
    check.maybe_one_of(format!("{field}.cachingMode"), disk.caching_mode.as_deref(), &known);
    let kind = disk.kind.as_deref();
    check.maybe_one_of(format!("{field}.kind"), kind, &["Dedicated", "Managed", "Shared"]);
    let prefix = match kind {
        Some("Managed") => "/subscriptions/",
        Some(_) => "https://",
        None => return,
    };
    if !disk.disk_uri.starts_with(prefix) {
        let detail = format!("must start with {prefix}");
        check.error(Rule::NotSupported, format!("{field}.diskURI"), &disk.disk_uri, detail);
    }
}

pub(super) fn scale_io(check: &mut Check, field: &str, volume: &ScaleIOVolumeSource) {
    let name = volume.volume_name.as_deref().unwrap_or_default();
    required(
        check,
        field,
        &[("gateway", &volume.gateway), ("system", &volume.system), ("volumeName", name)],
    );
}

pub(super) fn storageos(check: &mut Check, field: &str, volume: &StorageOSVolumeSource) {
    let name = volume.volume_name.as_deref().unwrap_or_default();
    required(check, field, &[("volumeName", name)]);
    let namespace = volume.volume_namespace.as_deref().unwrap_or_default();
    for (part, text) in [("volumeName", name), ("volumeNamespace", namespace)] {
        if !text.is_empty() {
            check.formed(format!("{field}.{part}"), text, names::dns_label);
        }
    }
    secret(check, field, volume.secret_ref.as_ref());
}
