//! Converts messages of the device plugin API. Only this file, `plugin` and `registration` name its wire types.

use std::collections::{BTreeMap, HashMap};

use agent::pod_spec::spec::{DeviceSpec, MountSpec};
use compact::Map;
use cri::codec::Message as _;
use cri::deviceplugin as wire;

use super::affinity::Device;
use super::inventory::Usage;

/// The health value of a usable device.
const HEALTHY: &str = "Healthy";

/// The devices of a list.
pub(super) fn devices(list: wire::ListAndWatchResponse) -> Map<String, Device> {
    let device = |device: wire::Device| {
        let nodes = device.topology.into_iter().flat_map(|topology| topology.nodes);
        let nodes = nodes.map(|node| node.id).collect();
        (device.id, Device { healthy: device.health == HEALTHY, nodes })
    };
    list.devices.into_iter().map(device).collect()
}

/// The container settings in a response.
pub(super) fn usage(response: wire::ContainerAllocateResponse) -> Usage {
    let mount = |mount: wire::Mount| MountSpec {
        name: mount.container_path.clone(),
        container_path: mount.container_path,
        host_path: mount.host_path.into(),
        readonly: mount.read_only,
        ..MountSpec::default()
    };
    let device = |device: wire::DeviceSpec| DeviceSpec {
        container_path: device.container_path,
        host_path: device.host_path,
        permissions: device.permissions,
    };
    Usage {
        envs: response.envs.into_iter().collect(),
        mounts: response.mounts.into_iter().map(mount).collect(),
        devices: response.devices.into_iter().map(device).collect(),
        annotations: response.annotations.into_iter().collect(),
        cdi_devices: response.cdi_devices.into_iter().map(|device| device.name).collect(),
    }
}

/// Encodes a plugin's response for a checkpoint.
pub(super) fn encode(usage: &Usage) -> Vec<u8> {
    let map = |map: &BTreeMap<String, String>| -> HashMap<String, String> {
        map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mount = |mount: &MountSpec| wire::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.to_string_lossy().into_owned(),
        read_only: mount.readonly,
    };
    let device = |device: &DeviceSpec| wire::DeviceSpec {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    };
    let cdi = |name: &String| wire::CdiDevice { name: name.clone() };
    let response = wire::ContainerAllocateResponse {
        envs: map(&usage.envs),
        mounts: usage.mounts.iter().map(mount).collect(),
        devices: usage.devices.iter().map(device).collect(),
        annotations: map(&usage.annotations),
        cdi_devices: usage.cdi_devices.iter().map(cdi).collect(),
    };
    response.encode_to_vec()
}

/// Decodes the response in a checkpoint; `None` if it is malformed.
pub(super) fn decode(bytes: &[u8]) -> Option<Usage> {
    wire::ContainerAllocateResponse::decode(bytes).ok().map(usage)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn usage_survives_a_checkpoint() {
        let text = str::to_owned;
        let usage = Usage {
            envs: BTreeMap::from([(text("A"), text("1"))]),
            mounts: vec![MountSpec {
                name: text("/in"),
                container_path: text("/in"),
                host_path: "/out".into(),
                readonly: true,
                ..MountSpec::default()
            }],
            devices: vec![DeviceSpec {
                container_path: text("/dev/a"),
                host_path: text("/dev/b"),
                permissions: text("rw"),
            }],
            annotations: BTreeMap::from([(text("k"), text("v"))]),
            cdi_devices: vec![text("v.com/c=d")],
        };
        assert_eq!(decode(&encode(&usage)).unwrap(), usage);
        assert_eq!(decode(b"\xff"), None);
    }
}
