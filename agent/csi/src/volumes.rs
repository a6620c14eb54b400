//! Mounts volumes through their drivers. The state is on disk, in records of the kubelet's format, so that a restarted agent or a
//! kubelet can unmount the volumes of an agent that was killed.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/{csi_attacher,csi_mounter}.go; pkg/kubelet/volumemanager/reconciler.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::machine::Machine;
use agent::storage::drivers::{DriverError, DriverStep, DriverVolume, Expansion, MountedVolume};
use api::pod::Pod;
use tasks::spawn_blocking;
use tokio::time::timeout;

use crate::cluster::VolumeCluster;
use crate::grpc::{Driver, Publish, Stage};
use crate::locks::Locks;
use crate::names::VolumeKey;
use crate::paths::{self, VolumePaths};
use crate::record::Found;
use crate::registry::Registry;
use crate::request::{Capabilities, DriverSettings, PodVolume, Strings};
use crate::sizes::Sizes;
use crate::tokens::Tokens;
use crate::uses::Uses;

/// The timeout for the node's status to list a volume as in use. The mount is then retried.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The code of an attachment's error if the node cannot attach another volume of the driver (RESOURCE_EXHAUSTED).
const RESOURCE_EXHAUSTED: i32 = 8;

/// Why a volume is not attached.
struct NotAttached {
    message: String,
    /// Whether the node cannot attach another volume of the driver.
    is_exhausted: bool,
}

impl From<String> for NotAttached {
    fn from(message: String) -> Self {
        Self { message, is_exhausted: false }
    }
}

/// The volumes of a node.
pub(crate) struct Volumes {
    /// The agent's directory.
    pub(crate) root: PathBuf,
    node: String,
    pub(crate) registry: Arc<Registry>,
    pub(crate) cluster: Arc<dyn VolumeCluster>,
    pub(crate) machine: Arc<dyn Machine>,
    /// The locks of pods. Take a pod's lock before those of volumes.
    pub(crate) pods: Locks<PathBuf>,
    /// The locks of volumes, by driver and handle.
    pub(crate) locks: Locks<(String, String)>,
    pub(crate) tokens: Tokens,
    pub(crate) uses: Uses,
    pub(crate) sizes: Sizes,
}

/// A driver, its capabilities and its settings.
struct DriverInfo {
    driver: Driver,
    capabilities: Capabilities,
    settings: DriverSettings,
}

impl Volumes {
    pub(crate) fn new(
        root: PathBuf,
        node: String,
        cluster: Arc<dyn VolumeCluster>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        Self {
            uses: Uses::new(Arc::clone(&cluster)),
            tokens: Tokens::new(Arc::clone(&cluster)),
            registry: Arc::default(),
            sizes: Sizes::default(),
            pods: Locks::default(),
            locks: Locks::default(),
            root,
            node,
            cluster,
            machine,
        }
    }

    /// Mounts a volume for a pod, unless it is mounted. With `republishes`, publishes a mounted volume again if its driver requires
    /// that.
    pub(crate) async fn mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
        republishes: bool,
    ) -> Result<MountedVolume, DriverError> {
        let failed = |step, message: String| DriverError {
            step,
            volume: volume.spec_name.clone(),
            message,
            waits: false,
            is_exhausted: false,
        };
        let Some(pod_volume) = PodVolume::of(pod, volume).filter(PodVolume::has_names) else {
            let message = "csi source has no driver or volumeHandle".to_owned();
            return Err(failed(DriverStep::SetUp, message));
        };
        let steps = pod_volume.steps();
        let set_up = |message: String| failed(steps.publish, message);
        let paths = VolumePaths::of(&self.root, pod_dir, &pod_volume);
        let _before_the_end = self.pods.lock(&pod_dir.to_owned()).await;
        let _one_at_a_time = self.locks.lock(&pod_volume.key.of_driver()).await;
        let is_published = self.uses.is_published(&paths.target);
        let expansion = Expansion::Unchanged;
        let path = paths.container_path().to_owned();
        let is_device = pod_volume.key.device.is_some();
        let (is_new, takes_group) = (false, false);
        let mounted = MountedVolume { path, is_device, is_new, takes_group, expansion };
        if is_published && !republishes {
            return Ok(mounted);
        }
        let found = self.cluster.driver(&pod_volume.key.driver).await;
        let found = found.map_err(|error| set_up(format!("failed to get CSIDriver: {error}")))?;
        let settings = DriverSettings::of(found.as_ref());
        if republishes && !settings.republishes {
            return Ok(mounted);
        }
        let driver_info = self.driver_info(&pod_volume.key, settings).await;
        let driver_info = driver_info.map_err(|message| failed(steps.first, message))?;
        driver_info.settings.check(&pod_volume).map_err(|problem| {
            set_up(format!(
                "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {problem}"
            ))
        })?;
        let attaches = pod_volume.persistent.is_some() && driver_info.settings.attaches;
        self.uses.add_use(&pod_volume.key, pod_dir, attaches);
        let context = match attaches {
            true => {
                let attached = self.attached(&pod_volume.key, &driver_info.settings).await;
                attached.map_err(|NotAttached { message, is_exhausted }| DriverError {
                    waits: true,
                    is_exhausted,
                    ..failed(steps.first, message)
                })?
            }
            false => Strings::new(),
        };
        let staging = match driver_info.capabilities.stages && pod_volume.persistent.is_some() {
            true => {
                if !republishes {
                    let staged = self.stage(&driver_info, &pod_volume, &context).await;
                    staged.map_err(|message| failed(steps.first, message))?;
                }
                Some(pod_volume.key.staging(&self.root))
            }
            false => None,
        };
        let publishing =
            Publishing { pod, pod_volume: &pod_volume, paths: &paths, staging, context };
        self.publish(&driver_info, publishing, republishes).await.map_err(set_up)?;
        let expansion = match republishes {
            true => expansion,
            false => {
                let expanded = self.expand_mounted(&pod_volume, &paths.target).await;
                expanded.map_err(|message| failed(steps.expand, message))?
            }
        };
        self.uses.published(&paths.target);
        let takes_group =
            driver_info.settings.takes_group(&pod_volume, driver_info.capabilities) && !republishes;
        Ok(MountedVolume { is_new: !republishes, takes_group, expansion, ..mounted })
    }

    /// Gets the capabilities of a registered driver.
    async fn driver_info(
        &self,
        key: &VolumeKey,
        settings: DriverSettings,
    ) -> Result<DriverInfo, String> {
        let driver = self.registry.driver(&key.driver).map_err(|error| {
            format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {error}")
        })?;
        let capabilities = driver.capabilities().await.map_err(|error| error.to_string())?;
        Ok(DriverInfo { driver, capabilities, settings })
    }

    /// The metadata of the attachment, or the reason that the volume is not attached. If the node cannot attach another volume
    /// of the driver, the driver's limit is updated.
    async fn attached(
        &self,
        key: &VolumeKey,
        settings: &DriverSettings,
    ) -> Result<Strings, NotAttached> {
        // Until the node's status lists the volume, the controller may detach it.
        let name = key.unique_name();
        let reported =
            timeout(REPORT_TIMEOUT, self.cluster.wait_until_reported_in_use(&name)).await;
        reported.map_err(|_| format!("volume {name} is not in the node's volumesInUse yet"))?;
        let name = key.attachment(&self.node);
        let Some(attachment) = self.cluster.attachment(&name).await? else {
            return Err(format!("volume is not attached: VolumeAttachment {name} not found").into());
        };
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err("volume attachment is being deleted".to_owned().into());
        }
        let status = attachment.status.unwrap_or_default();
        if status.attached {
            return Ok(status.attachment_metadata.unwrap_or_default());
        }
        let error = status.attach_error.unwrap_or_default();
        let is_exhausted = settings.updates_limit && error.error_code == Some(RESOURCE_EXHAUSTED);
        if is_exhausted {
            self.update_limit(&key.driver).await;
        }
        let not_yet = || format!("volume is not attached yet (VolumeAttachment {name})");
        Err(NotAttached { message: error.message.unwrap_or_else(not_yet), is_exhausted })
    }

    /// Stages a volume, unless this agent has already staged it.
    async fn stage(
        &self,
        driver_info: &DriverInfo,
        pod_volume: &PodVolume,
        context: &Strings,
    ) -> Result<(), String> {
        if self.uses.is_staged(&pod_volume.key) {
            return Ok(());
        }
        let persistent = pod_volume.persistent.as_ref();
        let secret = persistent.and_then(|persistent| persistent.stage_secret.as_ref());
        let secrets = self.secrets(secret, "NodeStageSecretRef").await?;
        let staging = pod_volume.key.staging(&self.root);
        let (own, root, node) = (pod_volume.clone(), self.root.clone(), self.node.clone());
        // The staging path may be on a mounted file system that hangs.
        let making = move || paths::prepare_staging(&own, &root, &node);
        let made = spawn_blocking(making).await.map_err(io::Error::other).flatten();
        made.map_err(|error| format!("failed to prepare {}: {error}", staging.display()))?;
        self.uses.begin_staging(&pod_volume.key);
        let stage = Stage {
            handle: pod_volume.key.handle.clone(),
            publish_context: context.clone(),
            staging,
            capability: pod_volume.capability(driver_info.capabilities),
            secrets,
            context: pod_volume.attributes.clone(),
        };
        match driver_info.driver.stage(stage).await {
            Ok(()) => {
                self.uses.staged(&pod_volume.key);
                Ok(())
            }
            Err(error) => {
                // After any other error the driver may be staging the volume or have staged it, so it must be unstaged.
                if error.is_final && self.remove_staging(&pod_volume.key).is_ok() {
                    self.uses.unstaged(&pod_volume.key);
                }
                Err(error.to_string())
            }
        }
    }

    /// Publishes a volume for a pod.
    async fn publish(
        &self,
        driver_info: &DriverInfo,
        publishing: Publishing<'_>,
        republishes: bool,
    ) -> Result<(), String> {
        let Publishing { pod, pod_volume, paths, staging, context: publish_context } = publishing;
        let mut secrets =
            self.secrets(pod_volume.publish_secret.as_ref(), "NodePublishSecretRef").await?;
        // As in the kubelet, block volumes get no tokens.
        let driver_tokens = &driver_info.settings.tokens[..];
        let wanted_tokens = if pod_volume.key.device.is_some() { &[] } else { driver_tokens };
        let tokens = self.tokens.of(pod, wanted_tokens).await.map_err(|error| {
            format!(
                "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {error}"
            )
        })?;
        let mut context = pod_volume.context(&driver_info.settings);
        match driver_info.settings.tokens_are_secrets {
            true => secrets.extend(tokens),
            false => context.extend(tokens),
        }
        let may_be_mounted = republishes || !matches!(paths.read(), Found::Missing);
        let made = paths.prepare(pod_volume, &self.node);
        made.map_err(|error| format!("failed to prepare {}: {error}", paths.target.display()))?;
        let publish = Publish {
            handle: pod_volume.key.handle.clone(),
            publish_context,
            staging,
            target: paths.target.clone(),
            capability: pod_volume.capability(driver_info.capabilities),
            readonly: pod_volume.readonly,
            secrets,
            context,
        };
        let Err(error) = driver_info.driver.publish(publish).await else {
            return Ok(());
        };
        // Keep the mount point of a volume that was, or may have been, published before: containers may use it.
        if error.is_final && !may_be_mounted {
            let removed = self.remove_left(paths);
            if let Err(error) = removed {
                tracing::warn!(target = %paths.target.display(), error, "failed to clean up a volume that was not mounted");
            }
        }
        Err(error.to_string())
    }

    pub(crate) async fn secrets(
        &self,
        secret: Option<&(String, String)>,
        field: &str,
    ) -> Result<Strings, String> {
        let Some((namespace, name)) = secret else {
            return Ok(Strings::new());
        };
        let found = self.cluster.secret(namespace, name).await.map_err(|error| {
            format!(
                "fetching {field} {namespace}/{name} failed: kubernetes.io/csi: failed to find the secret {name} in the namespace \
                 {namespace} with error: {error}"
            )
        })?;
        let data = found.data.into_iter().flatten();
        Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
    }
}

/// The parameters of publishing a volume for a pod.
struct Publishing<'a> {
    pod: &'a Pod,
    pod_volume: &'a PodVolume,
    paths: &'a VolumePaths,
    staging: Option<PathBuf>,
    context: Strings,
}
