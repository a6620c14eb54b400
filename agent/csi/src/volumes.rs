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
use crate::place::{self, Place};
use crate::record::Found;
use crate::registry::Registry;
use crate::request::{Capabilities, DriverRules, Strings, Wanted};
use crate::sizes::Sizes;
use crate::tokens::Tokens;
use crate::uses::Uses;

/// The timeout for the node's status to list a volume as in use. The mount is then retried.
const SHOWN: Duration = Duration::from_secs(10);

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
struct Known {
    driver: Driver,
    can: Capabilities,
    rules: DriverRules,
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

    /// Mounts a volume for a pod, unless it is mounted. With `renews`, publishes a mounted volume again if its driver requires
    /// that.
    pub(crate) async fn mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
        renews: bool,
    ) -> Result<MountedVolume, DriverError> {
        let failed = |step, message: String| DriverError {
            step,
            volume: volume.spec_name.clone(),
            message,
            waits: false,
        };
        let Some(wanted) = Wanted::of(pod, volume).filter(Wanted::has_names) else {
            let message = "its csi source names no driver and volume".to_owned();
            return Err(failed(DriverStep::SetUp, message));
        };
        let steps = wanted.steps();
        let set_up = |message: String| failed(steps.publish, message);
        let place = Place::of(&self.root, pod_dir, &wanted);
        let _before_the_end = self.pods.lock(&pod_dir.to_owned()).await;
        let _one_at_a_time = self.locks.lock(&wanted.key.of_driver()).await;
        let is_published = self.uses.is_published(&place.target);
        let expansion = Expansion::Unchanged;
        let path = place.shown().to_owned();
        let is_device = wanted.key.device.is_some();
        let mounted = MountedVolume { path, is_device, takes_group: false, expansion };
        if is_published && !renews {
            return Ok(mounted);
        }
        let found = self.cluster.driver(&wanted.key.driver).await;
        let found = found.map_err(|error| set_up(format!("failed to get CSIDriver: {error}")))?;
        let rules = DriverRules::of(found.as_ref());
        if renews && !rules.renews {
            return Ok(mounted);
        }
        let known = self.known(&wanted.key, rules).await;
        let known = known.map_err(|message| failed(steps.first, message))?;
        known.rules.check(&wanted).map_err(|problem| {
            set_up(format!(
                "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {problem}"
            ))
        })?;
        let attaches = wanted.persistent.is_some() && known.rules.attaches;
        self.uses.want(&wanted.key, pod_dir, attaches);
        let context = match attaches {
            true => self
                .attached(&wanted.key)
                .await
                .map_err(|message| DriverError { waits: true, ..failed(steps.first, message) })?,
            false => Strings::new(),
        };
        let staging = match known.can.stages && wanted.persistent.is_some() {
            true => {
                if !renews {
                    let staged = self.stage(&known, &wanted, &context).await;
                    staged.map_err(|message| failed(steps.first, message))?;
                }
                Some(wanted.key.staging(&self.root))
            }
            false => None,
        };
        let publishing = Publishing { pod, wanted: &wanted, place: &place, staging, context };
        self.publish(&known, publishing, renews).await.map_err(set_up)?;
        let expansion = match renews {
            true => expansion,
            false => {
                let expanded = self.expand_mounted(&wanted, &place.target).await;
                expanded.map_err(|message| failed(steps.expand, message))?
            }
        };
        self.uses.published(&place.target);
        let takes_group = known.rules.takes_group(&wanted, known.can) && !renews;
        Ok(MountedVolume { takes_group, expansion, ..mounted })
    }

    /// Gets the capabilities of a registered driver.
    async fn known(&self, key: &VolumeKey, rules: DriverRules) -> Result<Known, String> {
        let driver = self.registry.driver(&key.driver).map_err(|error| {
            format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {error}")
        })?;
        let can = driver.capabilities().await.map_err(|error| error.to_string())?;
        Ok(Known { driver, can, rules })
    }

    /// The metadata of the attachment, or the reason that the volume is not attached.
    async fn attached(&self, key: &VolumeKey) -> Result<Strings, String> {
        // Until the node's status lists the volume, the controller may detach it.
        let name = key.unique_name();
        let shown = timeout(SHOWN, self.cluster.wait_until_reported_in_use(&name)).await;
        shown.map_err(|_| format!("the node's status does not show yet that {name} is in use"))?;
        let name = key.attachment(&self.node);
        let Some(attachment) = self.cluster.attachment(&name).await? else {
            return Err(format!("volume is not attached: there is no VolumeAttachment {name}"));
        };
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err("volume attachment is being deleted".to_owned());
        }
        let status = attachment.status.unwrap_or_default();
        match status.attached {
            true => Ok(status.attachment_metadata.unwrap_or_default()),
            false => {
                Err(status.attach_error.and_then(|error| error.message).unwrap_or_else(|| {
                    format!("volume is not attached yet (VolumeAttachment {name})")
                }))
            }
        }
    }

    /// Stages a volume, unless this agent has already staged it.
    async fn stage(&self, known: &Known, wanted: &Wanted, context: &Strings) -> Result<(), String> {
        if self.uses.is_staged(&wanted.key) {
            return Ok(());
        }
        let persistent = wanted.persistent.as_ref();
        let secret = persistent.and_then(|persistent| persistent.stage_secret.as_ref());
        let secrets = self.secrets(secret, "NodeStageSecretRef").await?;
        let staging = wanted.key.staging(&self.root);
        let (own, root, node) = (wanted.clone(), self.root.clone(), self.node.clone());
        // The staging path may be on a mounted file system that hangs.
        let making = move || place::prepare_staging(&own, &root, &node);
        let made = spawn_blocking(making).await.map_err(io::Error::other).flatten();
        made.map_err(|error| format!("failed to prepare {}: {error}", staging.display()))?;
        self.uses.may_be_staged(&wanted.key);
        let stage = Stage {
            handle: wanted.key.handle.clone(),
            publish_context: context.clone(),
            staging,
            capability: wanted.capability(known.can),
            secrets,
            context: wanted.attributes.clone(),
        };
        match known.driver.stage(stage).await {
            Ok(()) => {
                self.uses.staged(&wanted.key);
                Ok(())
            }
            Err(error) => {
                // After any other error the driver may be staging the volume or have staged it, so it must be unstaged.
                if error.is_final && self.remove_staging(&wanted.key).is_ok() {
                    self.uses.unstaged(&wanted.key);
                }
                Err(error.to_string())
            }
        }
    }

    /// Publishes a volume for a pod.
    async fn publish(
        &self,
        known: &Known,
        publishing: Publishing<'_>,
        renews: bool,
    ) -> Result<(), String> {
        let Publishing { pod, wanted, place, staging, context: publish_context } = publishing;
        let mut secrets =
            self.secrets(wanted.publish_secret.as_ref(), "NodePublishSecretRef").await?;
        // As in the kubelet, block volumes get no tokens.
        let rules = &known.rules.tokens[..];
        let wanted_tokens = if wanted.key.device.is_some() { &[] } else { rules };
        let tokens = self.tokens.of(pod, wanted_tokens).await.map_err(|error| {
            format!(
                "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {error}"
            )
        })?;
        let mut context = wanted.context(&known.rules);
        match known.rules.tokens_are_secrets {
            true => secrets.extend(tokens),
            false => context.extend(tokens),
        }
        let may_be_mounted = renews || !matches!(place.read(), Found::Nothing);
        let made = place.prepare(wanted, &self.node);
        made.map_err(|error| format!("failed to prepare {}: {error}", place.target.display()))?;
        let publish = Publish {
            handle: wanted.key.handle.clone(),
            publish_context,
            staging,
            target: place.target.clone(),
            capability: wanted.capability(known.can),
            readonly: wanted.readonly,
            secrets,
            context,
        };
        let Err(error) = known.driver.publish(publish).await else {
            return Ok(());
        };
        // Keep the mount point of a volume that was, or may have been, published before: containers may use it.
        if error.is_final && !may_be_mounted {
            let removed = self.remove_left(place);
            if let Err(error) = removed {
                tracing::warn!(target = %place.target.display(), error, "failed to remove what is left of a volume that was not mounted");
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
    wanted: &'a Wanted,
    place: &'a Place,
    staging: Option<PathBuf>,
    context: Strings,
}
