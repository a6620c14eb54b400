//! Looks up the host devices that containers request, by path or through CDI.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cri::v1::{ContainerConfig, Device};
use keeper::contract::host;
use keeper::contract::plan::{DeviceNode, DevicePlan, HostDevice};

use super::{Error, Runtime, blocking};
use crate::{
    cdi::{self, Edits, NodeEdit, PlanEdits},
    launch::{Invalid, devices},
};

/// The devices of a container.
#[derive(Default)]
pub(super) struct ResolvedDevices {
    /// The devices requested by path.
    pub(super) requested: Vec<DevicePlan>,
    /// The plan edits of the requested CDI devices.
    pub(super) edits: PlanEdits,
}

impl Runtime {
    /// Resolves the devices that `config` requests.
    pub(super) async fn devices(&self, config: &ContainerConfig) -> Result<ResolvedDevices, Error> {
        let names = cdi::names(config)?;
        if names.is_empty() && config.devices.is_empty() {
            return Ok(ResolvedDevices::default());
        }
        let (directories, requests) = (self.config.cdi_dirs.clone(), config.devices.clone());
        blocking(move || {
            let edits = cdi::edits(&directories, &names)?;
            Ok(ResolvedDevices { requested: requested(&requests)?, edits: found(edits)? })
        })
        .await
    }
}

fn requested(requests: &[Device]) -> Result<Vec<DevicePlan>, Invalid> {
    let mut all: Vec<DevicePlan> = Vec::new();
    for device in requests {
        devices::check(device)?;
        let found = look(Path::new(&device.host_path))?;
        let new = devices::requested(device, found)?;
        // The later of two devices for one path wins.
        all.retain(|old| new.iter().all(|n| n.path != old.path));
        all.extend(new);
    }
    Ok(all)
}

/// Completes `edits` with the nodes and mounts on the host.
fn found(edits: Edits) -> Result<PlanEdits, Invalid> {
    // A missing mount source means that the device is missing: do not create a directory instead.
    if let Some(missing) = edits.mounts.iter().find(|m| !Path::new(&m.host_path).exists()) {
        return Err(Invalid(format!(
            "CDI: there is no {} on the host to be mounted at {}",
            missing.host_path, missing.container_path
        )));
    }
    Ok(PlanEdits {
        process: edits.process,
        devices: edits.nodes.iter().map(node).collect::<Result<_, _>>()?,
        mounts: edits.mounts,
    })
}

/// The device at `path`, or the devices below it.
fn look(path: &Path) -> Result<Vec<HostDevice>, Invalid> {
    let wrong = |error: &io::Error| {
        Invalid(format!("devices: failed to look at {} on the host: {error}", path.display()))
    };
    // Links are followed on the host, as for mounts.
    let real = fs::canonicalize(path).map_err(|e| wrong(&e))?;
    let meta = fs::metadata(&real).map_err(|e| wrong(&e))?;
    if meta.is_dir() {
        return host::devices_below(&real).map_err(|e| wrong(&e));
    }
    let Some(node) = host::device_node(&meta) else {
        return Err(Invalid(format!(
            "devices: {} is neither a device nor a directory of devices",
            path.display()
        )));
    };
    Ok(vec![HostDevice { below: PathBuf::new(), host: real, node }])
}

/// A node of a specification; missing fields are taken from the host.
fn node(edit: &NodeEdit) -> Result<DevicePlan, Invalid> {
    let found = if let (Some(kind), Some((major, minor))) = (edit.kind, edit.numbers) {
        DeviceNode { kind, major, minor, file_mode: 0, uid: 0, gid: 0 }
    } else {
        let meta = fs::metadata(&edit.host).map_err(|error| {
            Invalid(format!(
                "CDI: failed to look at the device {} on the host: {error}",
                edit.host.display()
            ))
        })?;
        host::device_node(&meta)
            .filter(|node| edit.kind.is_none_or(|kind| kind == node.kind))
            .ok_or_else(|| {
                Invalid(format!(
                    "CDI: {} of the host is not the kind of device that the specification says",
                    edit.host.display()
                ))
            })?
    };
    Ok(DevicePlan {
        path: edit.path.clone(),
        host: edit.host.clone(),
        node: DeviceNode {
            // The defaults of runc.
            file_mode: edit.mode.unwrap_or(0o666),
            uid: edit.uid.unwrap_or(0),
            gid: edit.gid.unwrap_or(0),
            ..found
        },
        access: edit.access.clone(),
    })
}
