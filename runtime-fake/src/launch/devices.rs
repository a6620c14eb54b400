//! ◆ Decides the host devices of a container. Pure.

use std::path::Path;

use cri::v1::Device;
use keeper::contract::plan::IsolationMode;
use keeper::contract::plan::{DevicePlan, HostDevice};

use crate::launch::{Invalid, invalid, paths};

/// The letters of a permission; all three if empty.
pub(crate) fn access(permissions: &str, name: &str) -> Result<String, Invalid> {
    if permissions.is_empty() {
        return Ok("rwm".to_owned());
    }
    if permissions.chars().all(|c| "rwm".contains(c)) {
        return Ok(permissions.to_owned());
    }
    invalid(format!("devices: permissions {permissions:?} (of {name}) are some of r, w and m"))
}

/// Validates a request for a device.
pub(crate) fn check(device: &Device) -> Result<(), Invalid> {
    let absolute = |path: &str| Path::new(path).is_absolute() && !path.contains('\0');
    if !absolute(&device.host_path) {
        return invalid(format!(
            "devices: host_path {:?} is not an absolute path",
            device.host_path
        ));
    }
    if !device.container_path.is_empty() && !absolute(&device.container_path) {
        return invalid(format!(
            "devices: container_path {:?} (of {}) is not an absolute path",
            device.container_path, device.host_path
        ));
    }
    paths::path("devices: host_path", &device.host_path)?;
    paths::path("devices: container_path", &device.container_path)?;
    access(&device.permissions, &device.host_path).map(drop)
}

/// The plans for a request and the devices found: one device, or all of a directory.
pub(crate) fn requested(
    device: &Device,
    found: Vec<HostDevice>,
) -> Result<Vec<DevicePlan>, Invalid> {
    let access = access(&device.permissions, &device.host_path)?;
    let at =
        if device.container_path.is_empty() { &device.host_path } else { &device.container_path };
    let plan = |found: HostDevice| DevicePlan {
        // Joining an empty path would append a slash.
        path: if found.below.as_os_str().is_empty() {
            at.into()
        } else {
            Path::new(at).join(found.below)
        },
        host: found.host,
        node: found.node,
        access: access.clone(),
    };
    Ok(found.into_iter().map(plan).collect())
}

/// The devices to create. Without a mount namespace, the host's devices exist already, at their own paths only.
pub(crate) fn for_isolation(
    isolation: IsolationMode,
    devices: Vec<DevicePlan>,
) -> Result<Vec<DevicePlan>, Invalid> {
    if isolation != IsolationMode::Process {
        return Ok(devices);
    }
    match devices.iter().find(|d| d.path != d.host) {
        None => Ok(Vec::new()),
        Some(device) => invalid(format!(
            "devices: {} cannot be at {}, because isolation `process` has no mount namespaces",
            device.host.display(),
            device.path.display()
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use keeper::contract::plan::{DeviceKind, DeviceNode};
    use rstest::rstest;

    use super::*;

    fn device(host: &str, container: &str, permissions: &str) -> Device {
        Device {
            host_path: host.into(),
            container_path: container.into(),
            permissions: permissions.into(),
        }
    }

    fn found(host: &str, below: &str) -> HostDevice {
        HostDevice {
            below: below.into(),
            host: host.into(),
            node: DeviceNode {
                kind: DeviceKind::Character,
                major: 1,
                minor: 3,
                file_mode: 0o666,
                uid: 0,
                gid: 0,
            },
        }
    }

    #[rstest]
    #[case::renamed(
        device("/dev/null", "/dev/nothing", "r"),
        found("/dev/null", ""),
        "/dev/nothing",
        "r"
    )]
    #[case::as_on_the_host(device("/dev/null", "", ""), found("/dev/null", ""), "/dev/null", "rwm")]
    #[case::of_a_directory(
        device("/dev/x", "/dev/y", "mrw"),
        found("/dev/x/a/b", "a/b"),
        "/dev/y/a/b",
        "mrw"
    )]
    fn device_plan_has_path_and_permissions(
        #[case] device: Device,
        #[case] found: HostDevice,
        #[case] path: &str,
        #[case] access: &str,
    ) {
        check(&device).unwrap();
        let plans = requested(&device, vec![found]).unwrap();
        assert_eq!((plans[0].path.to_str(), plans[0].access.as_str()), (Some(path), access));
    }

    #[rstest]
    #[case::relative(device("dev/null", "/dev/null", "r"), "host_path \"dev/null\"")]
    #[case::relative_inside(device("/dev/null", "null", "r"), "container_path \"null\"")]
    #[case::nul(device("/dev/null\0", "/dev/null", "r"), "not an absolute path")]
    #[case::letters(device("/dev/null", "/dev/null", "rx"), "some of r, w and m")]
    fn invalid_device_is_refused(#[case] device: Device, #[case] expected: &str) {
        assert!(check(&device).unwrap_err().0.contains(expected));
    }

    #[test]
    fn device_keeps_host_path_without_mount_namespace() {
        let plans = |container| {
            let device = device("/dev/null", container, "r");
            requested(&device, vec![found("/dev/null", "")]).unwrap()
        };
        assert_eq!(for_isolation(IsolationMode::Process, plans("")), Ok(Vec::new()));
        assert!(for_isolation(IsolationMode::Process, plans("/dev/other")).is_err());
        assert_eq!(for_isolation(IsolationMode::Rootless, plans("/dev/other")).unwrap().len(), 1);
    }
}
