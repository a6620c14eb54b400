//! ◆ Builds the requests to drivers, from the volume, the pod, the driver's CSIDriver object and its capabilities. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_mounter.go SetUpAt, csi_attacher.go MountDevice, csi_util.go.

use std::collections::BTreeMap;

use agent::storage::drivers::{DriverSource, DriverStep, DriverVolume};
use api::pod::Pod;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};

use crate::names::{VolumeKey, inline_handle, is_file_name};

/// Strings by name: attributes, contexts, secrets.
pub(crate) type Strings = BTreeMap<String, String>;

/// The capabilities of a driver's node service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// It stages volumes (STAGE_UNSTAGE_VOLUME).
    pub(crate) stages: bool,
    /// It supports the single-node access modes for one and for several writers (SINGLE_NODE_MULTI_WRITER).
    pub(crate) several_writers: bool,
    /// It applies the pod's `fsGroup` itself (VOLUME_MOUNT_GROUP).
    pub(crate) applies_fs_group: bool,
    /// It measures volumes (GET_VOLUME_STATS).
    pub(crate) measures: bool,
    /// Its measurements include the volume's condition (VOLUME_CONDITION).
    pub(crate) has_condition: bool,
    /// It expands volumes (EXPAND_VOLUME).
    pub(crate) expands: bool,
}

/// The settings of a driver: its CSIDriver object, or the defaults without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DriverSettings {
    /// The lifecycle modes; `None` without an object.
    modes: Option<Vec<String>>,
    /// Volumes must be attached to the node before they are mounted.
    pub(crate) attaches: bool,
    shows_pods: bool,
    groups: GroupPolicy,
    /// The service account tokens that the driver gets.
    pub(crate) tokens: Vec<TokenRequest>,
    /// The tokens are passed as secrets, not in the volume context.
    pub(crate) tokens_are_secrets: bool,
    /// Volumes are published again periodically (`requiresRepublish`).
    pub(crate) republishes: bool,
    /// The driver's limit is updated, and pods that exceed it are rejected (`nodeAllocatableUpdatePeriodSeconds`).
    pub(crate) updates_limit: bool,
}

/// Whether the agent changes the group of a volume's files to the pod's `fsGroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GroupPolicy {
    /// If the volume has a file system type, and its access mode is for a single node.
    #[default]
    ReadWriteOnceWithFsType,
    Always,
    Never,
}

impl DriverSettings {
    /// The settings in this object.
    pub(crate) fn of(driver: Option<&CSIDriver>) -> Self {
        let Some(driver) = driver else {
            return Self { attaches: true, ..Self::default() };
        };
        let spec = &driver.spec;
        let groups = match spec.fs_group_policy.as_deref() {
            Some("File") => GroupPolicy::Always,
            Some("None") => GroupPolicy::Never,
            Some(_) | None => GroupPolicy::ReadWriteOnceWithFsType,
        };
        Self {
            // The API server's default.
            modes: Some(
                spec.volume_lifecycle_modes.clone().unwrap_or_else(|| vec![PERSISTENT.to_owned()]),
            ),
            attaches: spec.attach_required != Some(false),
            shows_pods: spec.pod_info_on_mount == Some(true),
            groups,
            tokens: spec.token_requests.clone().unwrap_or_default(),
            tokens_are_secrets: spec.service_account_token_in_secrets == Some(true),
            republishes: spec.requires_republish == Some(true),
            updates_limit: spec.node_allocatable_update_period_seconds.is_some_and(|it| it > 0),
        }
    }

    /// Checks that the driver supports the volume's lifecycle mode. Errors are in the kubelet's words.
    pub(crate) fn check(&self, volume: &PodVolume) -> Result<(), String> {
        let (mode, driver) = (volume.mode(), &volume.key.driver);
        match &self.modes {
            None if volume.persistent.is_some() => Ok(()),
            None => Err(format!(
                "volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)"
            )),
            Some(modes) if modes.iter().any(|supported| supported == mode) => Ok(()),
            Some(modes) => {
                let modes: Vec<String> = modes.iter().map(|mode| format!("{mode:?}")).collect();
                let modes = modes.join(" ");
                Err(format!(
                    "volume mode {mode:?} not supported by driver {driver} (only supports [{modes}])"
                ))
            }
        }
    }

    /// Whether the agent must change the group of the volume's files.
    pub(crate) fn takes_group(&self, volume: &PodVolume, capabilities: Capabilities) -> bool {
        let is_for_one_node = match &volume.persistent {
            Some(persistent) => persistent
                .access_modes
                .iter()
                .any(|mode| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod")),
            None => true,
        };
        let wants = match self.groups {
            GroupPolicy::Never => false,
            GroupPolicy::Always => true,
            GroupPolicy::ReadWriteOnceWithFsType => !volume.fs_type.is_empty() && is_for_one_node,
        };
        let has_files = volume.key.device.is_none();
        has_files
            && wants
            && volume.group.is_some()
            && !volume.readonly
            && !capabilities.applies_fs_group
    }
}

/// The lifecycle modes: of inline volumes, and of PersistentVolumes.
const EPHEMERAL: &str = "Ephemeral";
const PERSISTENT: &str = "Persistent";

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodVolume {
    pub(crate) key: VolumeKey,
    pub(crate) spec_name: String,
    pub(crate) fs_type: String,
    pub(crate) attributes: Strings,
    pub(crate) readonly: bool,
    /// The pod's `fsGroup`.
    pub(crate) group: Option<i64>,
    /// Namespace and name of the secret for publishing.
    pub(crate) publish_secret: Option<(String, String)>,
    /// `None` for an inline volume.
    pub(crate) persistent: Option<Persistent>,
    pod: Strings,
}

/// The steps of mounting a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) first: DriverStep,
    pub(crate) publish: DriverStep,
    pub(crate) expand: DriverStep,
}

/// The fields of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Persistent {
    pub(crate) access_modes: Vec<String>,
    pub(crate) mount_options: Vec<String>,
    /// Namespace and name of the secret for staging.
    pub(crate) stage_secret: Option<(String, String)>,
    /// Namespace and name of the secret for expansion.
    pub(crate) expand_secret: Option<(String, String)>,
    /// The bound claim, if the volume has a capacity.
    pub(crate) claimed: Option<Claimed>,
}

/// The claim of a volume, which may request an expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The volume's capacity, as the API has it.
    pub(crate) capacity: String,
}

impl Claimed {
    fn of(volume: &PersistentVolumeSpec) -> Option<Self> {
        let claim = volume.claim_ref.as_ref()?;
        let capacity = volume.capacity.as_ref()?.get("storage")?.0.clone();
        Some(Self { namespace: claim.namespace.clone()?, name: claim.name.clone()?, capacity })
    }

    /// The volume's capacity; zero if it is malformed.
    pub(crate) fn capacity(&self) -> Quantity {
        Quantity::parse(&self.capacity).unwrap_or(Quantity::ZERO)
    }
}

impl PodVolume {
    /// The volume of a pod; `None` if it is not a CSI volume.
    pub(crate) fn of(pod: &Pod, volume: &DriverVolume) -> Option<Self> {
        let security = pod.spec().security_context.as_ref();
        let group = security.and_then(|security| security.fs_group);
        let (spec_name, readonly) = (volume.spec_name.clone(), volume.readonly);
        Some(match &volume.source {
            DriverSource::Inline(source) => {
                let handle = inline_handle(pod.uid().as_str(), &spec_name);
                let secret = source.node_publish_secret_ref.as_ref();
                Self {
                    key: VolumeKey { driver: source.driver.clone(), handle, device: None },
                    spec_name,
                    fs_type: source.fs_type.clone().unwrap_or_default(),
                    attributes: source.volume_attributes.clone().unwrap_or_default(),
                    readonly,
                    group,
                    publish_secret: secret
                        .map(|secret| (pod.namespace().to_owned(), secret.name.clone())),
                    persistent: None,
                    pod: pod_info(pod, true),
                }
            }
            DriverSource::Persistent(volume) => {
                let spec = volume.spec.as_ref()?;
                let source: &CSIPersistentVolumeSource = spec.csi.as_ref()?;
                let secret = |reference: &Option<k8s_openapi::api::core::v1::SecretReference>| {
                    let reference = reference.as_ref()?;
                    Some((reference.namespace.clone()?, reference.name.clone()?))
                };
                let is_device = spec.volume_mode.as_deref() == Some("Block");
                Self {
                    key: VolumeKey {
                        driver: source.driver.clone(),
                        handle: source.volume_handle.clone(),
                        device: is_device.then(|| spec_name.clone()),
                    },
                    spec_name,
                    fs_type: source.fs_type.clone().unwrap_or_default(),
                    attributes: source.volume_attributes.clone().unwrap_or_default(),
                    readonly,
                    group,
                    publish_secret: secret(&source.node_publish_secret_ref),
                    persistent: Some(Persistent {
                        access_modes: spec.access_modes.clone().unwrap_or_default(),
                        mount_options: spec.mount_options.clone().unwrap_or_default(),
                        stage_secret: secret(&source.node_stage_secret_ref),
                        expand_secret: secret(&source.node_expand_secret_ref),
                        claimed: Claimed::of(spec),
                    }),
                    pod: pod_info(pod, false),
                }
            }
        })
    }

    /// Whether the names of driver, volume and device are present and cannot escape their directories.
    pub(crate) fn has_names(&self) -> bool {
        let VolumeKey { driver, handle, device } = &self.key;
        let is_name = |name: &String| is_file_name(name);
        is_name(driver) && !handle.is_empty() && device.iter().all(is_name)
    }

    /// The names of the steps for this volume.
    pub(crate) fn steps(&self) -> Steps {
        use DriverStep::{ExpandMapped, ExpandMounted, MapDevice, MountDevice, SetUp, SetUpDevice};
        let (first, publish, expand) = match (&self.key.device, &self.persistent) {
            (Some(_), _) => (SetUpDevice, MapDevice, ExpandMapped),
            (None, Some(_)) => (MountDevice, SetUp, ExpandMounted),
            (None, None) => (SetUp, SetUp, ExpandMounted),
        };
        Steps { first, publish, expand }
    }

    /// The lifecycle mode, as in records and messages.
    pub(crate) fn mode(&self) -> &'static str {
        if self.persistent.is_some() { PERSISTENT } else { EPHEMERAL }
    }

    /// The volume capability for a driver with these capabilities.
    pub(crate) fn capability(&self, capabilities: Capabilities) -> Capability {
        let persistent = self.persistent.as_ref();
        let mode = persistent.and_then(|persistent| persistent.access_modes.first());
        let access = access(mode.map_or("ReadWriteOnce", String::as_str), capabilities);
        let kind = match self.key.device {
            Some(_) => AccessKind::Block,
            None => AccessKind::Mount {
                fs_type: self.fs_type.clone(),
                flags: persistent
                    .map(|persistent| persistent.mount_options.clone())
                    .unwrap_or_default(),
                group: self
                    .group
                    .filter(|_| capabilities.applies_fs_group)
                    .map(|group| group.to_string()),
            },
        };
        Capability { access, kind }
    }

    /// The volume context: the attributes and, if the driver requests it, the pod's fields. It has no tokens.
    pub(crate) fn context(&self, settings: &DriverSettings) -> Strings {
        let mut context = self.attributes.clone();
        if settings.shows_pods {
            context.extend(self.pod.clone());
        }
        context
    }
}

/// The fields of a pod for a driver.
fn pod_info(pod: &Pod, is_ephemeral: bool) -> Strings {
    let account = pod.spec().service_account_name.clone().unwrap_or_default();
    [
        ("pod.name", pod.name().to_owned()),
        ("pod.namespace", pod.namespace().to_owned()),
        ("pod.uid", pod.uid().to_string()),
        ("serviceAccount.name", account),
        ("ephemeral", is_ephemeral.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (format!("csi.storage.k8s.io/{name}"), value))
    .collect()
}

/// A volume capability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Capability {
    pub(crate) access: AccessMode,
    pub(crate) kind: AccessKind,
}

impl Capability {
    /// The same capability without a group.
    pub(crate) fn without_group(mut self) -> Self {
        if let AccessKind::Mount { group, .. } = &mut self.kind {
            *group = None;
        }
        self
    }
}

/// The access type of a volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AccessKind {
    /// A block device.
    Block,
    /// A file system.
    Mount {
        /// Empty: the driver's default.
        fs_type: String,
        flags: Vec<String>,
        /// The group that the driver applies.
        group: Option<String>,
    },
}

/// The access mode of a volume, by its CSI name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    Unknown,
    SingleNodeWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReaderOnly,
    MultiNodeMultiWriter,
}

fn access(mode: &str, capabilities: Capabilities) -> AccessMode {
    match (mode, capabilities.several_writers) {
        ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => AccessMode::SingleNodeWriter,
        ("ReadWriteOnce", true) => AccessMode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => AccessMode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => AccessMode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => AccessMode::MultiNodeMultiWriter,
        (_, _) => AccessMode::Unknown,
    }
}

#[cfg(test)]
#[path = "request/tests.rs"]
mod tests;

#[cfg(test)]
pub(crate) mod fixtures {
    use super::{Persistent, PodVolume, Strings, VolumeKey};

    /// A block volume of the PersistentVolume of this name.
    pub(crate) fn wanted_device(name: &str) -> PodVolume {
        let (driver, handle) = ("d".to_owned(), "h".to_owned());
        PodVolume {
            key: VolumeKey { driver, handle, device: Some(name.to_owned()) },
            spec_name: name.to_owned(),
            fs_type: String::new(),
            attributes: Strings::new(),
            readonly: false,
            group: None,
            publish_secret: None,
            persistent: Some(Persistent::default()),
            pod: Strings::new(),
        }
    }
}
