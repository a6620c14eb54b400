//! Mounts and block devices of containers.

use compact::Set;
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use crate::manifest::validate::pod::Volumes;
use crate::manifest::validate::{Check, Rule, names};

/// The mounts and devices of a container.
pub(crate) fn check(check: &mut Check, field: &str, container: &Container, volumes: &Volumes<'_>) {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    // The API server omits the index of some of these paths; do the same.
    let list = format!("{field}.volumeMounts");
    let mut paths = Set::new();
    for (index, mount) in mounts.iter().enumerate() {
        let item = format!("{list}[{index}]");
        one_mount(check, &item, &list, mount, volumes, container);
        let path = mount.mount_path.as_str();
        if !paths.insert(path) {
            check.invalid(format!("{item}.mountPath"), path, "must be unique");
        }
        if devices.iter().any(|device| device.name == mount.name) {
            let detail = "must not already exist in volumeDevices";
            check.invalid(format!("{item}.name"), &mount.name, detail);
        }
        if devices.iter().any(|device| device.device_path == path) {
            let detail = "must not already exist as a path in volumeDevices";
            check.invalid(format!("{item}.mountPath"), path, detail);
        }
    }
    let (mut known, mut paths) = (Set::new(), Set::new());
    for (index, device) in devices.iter().enumerate() {
        let item = format!("{field}.volumeDevices[{index}]");
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        let (name_field, path_field) = (format!("{item}.name"), format!("{item}.devicePath"));
        if name.is_empty() {
            check.required(&name_field, "");
        } else if !known.insert(name) {
            check.invalid(&name_field, name, "must be unique");
        }
        match volumes.get(name) {
            None => check.error(Rule::NotFound, &name_field, name, ""),
            Some(volume) if volume.persistent_volume_claim.is_some() => {}
            Some(volume) if volume.ephemeral.is_some() => {}
            Some(_) => {
                let detail = "can only use volumes of a persistentVolumeClaim";
                check.invalid(&name_field, name, detail);
            }
        }
        check.nonempty(&path_field, path);
        if paths.contains(path) {
            check.invalid(&path_field, path, "must be unique");
        }
        if names::no_backsteps(path).is_some() {
            check.formed(&path_field, path, names::no_backsteps);
        } else {
            paths.insert(path);
        }
        if mounts.iter().any(|mount| mount.name == name) {
            let detail = "must not already exist in volumeMounts";
            check.invalid(&name_field, name, detail);
        }
        if mounts.iter().any(|mount| mount.mount_path == path) {
            let detail = "must not already exist as a path in volumeMounts";
            check.invalid(&path_field, path, detail);
        }
    }
}

fn one_mount(
    check: &mut Check,
    item: &str,
    list: &str,
    mount: &VolumeMount,
    volumes: &Volumes<'_>,
    container: &Container,
) {
    check.nonempty(format!("{item}.name"), &mount.name);
    if !volumes.contains_key(mount.name.as_str()) {
        let detail = "no volume in spec.volumes has this name";
        check.error(Rule::NotFound, format!("{item}.name"), &mount.name, detail);
    }
    check.nonempty(format!("{item}.mountPath"), &mount.mount_path);
    let (part, expression) = (
        mount.sub_path.as_deref().unwrap_or_default(),
        mount.sub_path_expr.as_deref().unwrap_or_default(),
    );
    check.formed(format!("{list}.subPath"), part, names::inner_path);
    if !part.is_empty() && !expression.is_empty() {
        let detail = "subPathExpr and subPath are mutually exclusive";
        check.invalid(format!("{item}.subPathExpr"), expression, detail);
    }
    check.formed(format!("{list}.subPathExpr"), expression, names::inner_path);
    if let Some(propagation) = mount.mount_propagation.as_deref() {
        let known = ["Bidirectional", "HostToContainer", "None"];
        check.one_of(format!("{list}.mountPropagation"), propagation, &known);
        let privileged =
            container.security_context.as_ref().is_some_and(|own| own.privileged == Some(true));
        if propagation == "Bidirectional" && !privileged {
            let detail = "Bidirectional is available only to privileged containers";
            check.forbidden(format!("{list}.mountPropagation"), detail);
        }
    }
    if let Some(recursive) = mount.recursive_read_only.as_deref() {
        recursive_read_only(check, &format!("{list}.recursiveReadOnly"), mount, recursive);
    }
}

fn recursive_read_only(check: &mut Check, field: &str, mount: &VolumeMount, recursive: &str) {
    check.one_of(field, recursive, &["Disabled", "IfPossible", "Enabled"]);
    if !matches!(recursive, "IfPossible" | "Enabled") {
        return;
    }
    if mount.read_only != Some(true) {
        check.forbidden(field, "may only be specified when readOnly is true");
    }
    if mount.mount_propagation.as_deref().is_some_and(|propagation| propagation != "None") {
        let detail = "may only be specified when mountPropagation is None or not specified";
        check.forbidden(field, detail);
    }
}
