//! Has drivers mount and unmount volumes. What is mounted is on the disk, in records of a kubelet's form: an agent that was killed
//! leaves what its successor, or a kubelet, unmounts.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/{csi_attacher,csi_mounter}.go; pkg/kubelet/volumemanager/reconciler.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::machine::Machine;
use agent::storage::drivers::{
    DriverError, DriverStep, DriverUsage, DriverVolume, Expansion, MountedVolume,
};
use api::pod::Pod;
use tasks::spawn_blocking;
use tokio::time::timeout;

use crate::cluster::VolumeCluster;
use crate::grpc::{Driver, Publish, Stage};
use crate::locks::Locks;
use crate::names::{VolumeKey, is_file_name, target};
use crate::record::{self, Found, Record};
use crate::registry::Registry;
use crate::request::{Capabilities, DriverRules, Strings, Wanted};
use crate::sizes::Sizes;
use crate::tokens::Tokens;
use crate::uses::Uses;

/// How long the node's status may take to show that a volume is in use, before that is tried again.
const SHOWN: Duration = Duration::from_secs(10);

/// The volumes of a node.
pub(crate) struct Volumes {
    /// The agent's directory.
    pub(crate) root: PathBuf,
    node: String,
    pub(crate) registry: Arc<Registry>,
    pub(crate) cluster: Arc<dyn VolumeCluster>,
    machine: Arc<dyn Machine>,
    /// Of pods; who has one may take those of volumes.
    pub(crate) pods: Locks<PathBuf>,
    pub(crate) locks: Locks<VolumeKey>,
    tokens: Tokens,
    pub(crate) uses: Uses,
    pub(crate) sizes: Sizes,
}

/// What a driver is and can do, and how it is used.
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

    /// Mounts a volume for a pod, unless it is mounted. With `renews`, only one that is mounted, and that its driver wants to mount
    /// again.
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
        let set_up = |message: String| failed(DriverStep::SetUp, message);
        let wanted = Wanted::of(pod, volume)
            .filter(|wanted| is_file_name(&wanted.key.driver) && !wanted.key.handle.is_empty());
        let Some(wanted) = wanted else {
            return Err(set_up("its csi source names no driver and volume".to_owned()));
        };
        let target = target(pod_dir, &wanted.spec_name);
        let _before_the_end = self.pods.lock(&pod_dir.to_owned()).await;
        let _one_at_a_time = self.locks.lock(&wanted.key).await;
        let is_published = self.uses.is_published(&target);
        let expansion = Expansion::Unchanged;
        let mounted = MountedVolume { path: target.clone(), takes_group: false, expansion };
        if is_published && !renews {
            return Ok(mounted);
        }
        let found = self.cluster.driver(&wanted.key.driver).await;
        let found = found.map_err(|error| set_up(format!("failed to get CSIDriver: {error}")))?;
        let rules = DriverRules::of(found.as_ref());
        if renews && !rules.renews {
            return Ok(mounted);
        }
        let first_step = match wanted.persistent {
            Some(_) => DriverStep::MountDevice,
            None => DriverStep::SetUp,
        };
        let known = self.known(&wanted.key, rules).await;
        let known = known.map_err(|message| failed(first_step, message))?;
        known.rules.check(&wanted).map_err(|problem| {
            set_up(format!(
                "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {problem}"
            ))
        })?;
        let attaches = wanted.persistent.is_some() && known.rules.attaches;
        self.uses.want(&wanted.key, pod_dir, attaches);
        let context = match attaches {
            true => self.attached(&wanted.key).await.map_err(|message| DriverError {
                waits: true,
                ..failed(DriverStep::MountDevice, message)
            })?,
            false => Strings::new(),
        };
        let staging = match known.can.stages && wanted.persistent.is_some() {
            true => {
                let staging = wanted.key.staging(&self.root);
                if !renews {
                    let staged = self.stage(&known, &wanted, &staging, &context).await;
                    staged.map_err(|message| failed(DriverStep::MountDevice, message))?;
                }
                Some(staging)
            }
            false => None,
        };
        let publishing = Publishing { pod, wanted: &wanted, target: &target, staging, context };
        self.publish(&known, publishing, renews).await.map_err(set_up)?;
        let expansion = match renews {
            true => expansion,
            false => {
                let expanded = self.expand_mounted(&wanted, &target).await;
                expanded.map_err(|message| failed(DriverStep::ExpandMounted, message))?
            }
        };
        self.uses.published(&target);
        let takes_group = known.rules.takes_group(&wanted, known.can) && !renews;
        Ok(MountedVolume { takes_group, expansion, ..mounted })
    }

    /// Asks a registered driver what it can do.
    async fn known(&self, key: &VolumeKey, rules: DriverRules) -> Result<Known, String> {
        let endpoint = self.registry.endpoint(&key.driver).map_err(|error| {
            format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {error}")
        })?;
        let driver = Driver::at(endpoint);
        let can = driver.capabilities().await.map_err(|error| error.to_string())?;
        Ok(Known { driver, can, rules })
    }

    /// What the controller of a driver said when it attached the volume, or why the volume is not attached.
    async fn attached(&self, key: &VolumeKey) -> Result<Strings, String> {
        // Otherwise it may be detached while it is mounted.
        let name = key.unique_name();
        let shown = timeout(SHOWN, self.cluster.in_use_is_shown(&name)).await;
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

    /// Has a driver prepare a volume for the node, once.
    async fn stage(
        &self,
        known: &Known,
        wanted: &Wanted,
        staging: &Path,
        context: &Strings,
    ) -> Result<(), String> {
        if self.uses.is_staged(&wanted.key) {
            return Ok(());
        }
        let persistent = wanted.persistent.as_ref();
        let secret = persistent.and_then(|persistent| persistent.stage_secret.as_ref());
        let secrets = self.secrets(secret, "NodeStageSecretRef").await?;
        let (key, at) = (wanted.key.clone(), staging.to_owned());
        // Another file system may be there already, which may not answer.
        let making = move || make_directory(&at).and_then(|()| record::write_staged(&key, &at));
        let made = spawn_blocking(making).await.map_err(io::Error::other).flatten();
        made.map_err(|error| format!("failed to prepare {}: {error}", staging.display()))?;
        self.uses.may_be_staged(&wanted.key);
        let stage = Stage {
            handle: wanted.key.handle.clone(),
            publish_context: context.clone(),
            staging: staging.to_owned(),
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
                // Otherwise the driver may be at work, or have done it, and has to be asked to undo it.
                if error.is_final && self.remove_left(staging).is_ok() {
                    self.uses.unstaged(&wanted.key);
                }
                Err(error.to_string())
            }
        }
    }

    /// Has a driver mount a volume for a pod.
    async fn publish(
        &self,
        known: &Known,
        publishing: Publishing<'_>,
        renews: bool,
    ) -> Result<(), String> {
        let Publishing { pod, wanted, target, staging, context: publish_context } = publishing;
        let mut secrets =
            self.secrets(wanted.publish_secret.as_ref(), "NodePublishSecretRef").await?;
        let tokens = self.tokens.of(pod, &known.rules.tokens).await.map_err(|error| {
            format!(
                "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {error}"
            )
        })?;
        let mut context = wanted.context(&known.rules);
        match known.rules.tokens_are_secrets {
            true => secrets.extend(tokens),
            false => context.extend(tokens),
        }
        let directory = target.parent().unwrap_or(target);
        let may_be_mounted = renews || !matches!(record::read(directory), Found::Nothing);
        let made = make_directory(directory)
            .and_then(|()| record::write_published(wanted, target, &self.node));
        made.map_err(|error| format!("failed to prepare {}: {error}", directory.display()))?;
        let publish = Publish {
            handle: wanted.key.handle.clone(),
            publish_context,
            staging,
            target: target.to_owned(),
            capability: wanted.capability(known.can),
            readonly: wanted.readonly,
            secrets,
            context,
        };
        let Err(error) = known.driver.publish(publish).await else {
            return Ok(());
        };
        // One that was, or may have been, mounted before stays: containers may have it.
        if error.is_final && !may_be_mounted {
            let removed = self.remove_left(target);
            if let Err(error) = removed {
                tracing::warn!(target = %target.display(), error, "failed to remove what is left of a volume that was not mounted");
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

    /// Unmounts all volumes of the pod with this directory. Returns the first error; the others are logged.
    pub(crate) async fn unmount(&self, pod_dir: &Path) -> Result<(), DriverError> {
        // What mounts for the pod although nobody waits for it any more is unmounted too.
        let _after_mounts = self.pods.lock(&pod_dir.to_owned()).await;
        let failed = |volume: &Path, message: String| {
            let volume = volume.file_name().unwrap_or_default().to_string_lossy().into_owned();
            DriverError { step: DriverStep::TearDown, volume, message, waits: false }
        };
        let directories = record::of_pod(pod_dir).map_err(|error| {
            failed(pod_dir, format!("failed to read the volumes of {}: {error}", pod_dir.display()))
        })?;
        let mut first = None;
        for directory in directories {
            if let Err(message) = self.unmount_one(pod_dir, &directory).await {
                tracing::warn!(volume = %directory.display(), error = message, "failed to unmount volume; will retry");
                first.get_or_insert_with(|| failed(&directory, message));
            }
        }
        if let Some(error) = first {
            return Err(error);
        }
        if let Some(uid) = pod_dir.file_name() {
            self.tokens.forget(&uid.to_string_lossy());
        }
        for key in self.uses.forget(pod_dir) {
            if self.unstage_unused(&key).await.is_err() {
                // It is tried again beside the pod, which has ended.
                self.uses.retry_unstaging();
            }
        }
        Ok(())
    }

    /// Unmounts the volume that has, or may have, its record in this directory of a pod.
    async fn unmount_one(&self, pod_dir: &Path, directory: &Path) -> Result<(), String> {
        let mount = directory.join("mount");
        let key = match record::read(directory) {
            Found::Record(record) => record.key,
            // Nothing was ever mounted there, but by someone who keeps no records.
            Found::Nothing => return self.has_no_mounts(directory),
            Found::Unreadable(error) => {
                return self.has_no_mounts(directory).map_err(|mounted| {
                    format!(
                        "failed to read the record in {}: {error}; {mounted}",
                        directory.display()
                    )
                });
            }
        };
        let _one_at_a_time = self.locks.lock(&key).await;
        let endpoint = self.registry.endpoint(&key.driver).map_err(|error| {
            format!("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: {error}")
        })?;
        Driver::at(endpoint)
            .unpublish(&key.handle, &mount)
            .await
            .map_err(|error| format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {error}"))?;
        self.uses.unpublished(&mount);
        self.remove_left(&mount)?;
        self.uses.drop_use(&key, pod_dir);
        if !self.uses.is_used(&key) {
            self.sizes.forget(&key);
        }
        Ok(())
    }

    /// Has a driver measure a volume of the pod with this directory; `None`: it measures none, or the pod does not have it.
    pub(crate) async fn usage(
        &self,
        pod_dir: &Path,
        spec_name: &str,
    ) -> Result<Option<DriverUsage>, String> {
        let target = target(pod_dir, spec_name);
        let directory = target.parent().unwrap_or(&target);
        let recorded = || match record::read(directory) {
            Found::Record(Record { key, .. }) => Some(key),
            Found::Nothing | Found::Unreadable(_) => None,
        };
        let Some(key) = recorded() else {
            return Ok(None);
        };
        let _one_at_a_time = self.locks.lock(&key).await;
        // It may have been unmounted meanwhile.
        if recorded().as_ref() != Some(&key) {
            return Ok(None);
        }
        let driver = Driver::at(self.registry.endpoint(&key.driver)?);
        let can = driver.capabilities().await.map_err(|error| error.to_string())?;
        if !can.measures {
            return Ok(None);
        }
        let stats = driver.stats(&key.handle, &target).await;
        stats.map_err(|error| error.to_string())?.usage(can).map(Some)
    }

    /// Whether nothing is mounted in a directory, or what is.
    fn has_no_mounts(&self, directory: &Path) -> Result<(), String> {
        let mounts = self.machine.mounts_below(directory).map_err(|error| error.to_string())?;
        match mounts.first() {
            None => Ok(()),
            Some(mount) => Err(format!(
                "something is mounted at {}, and no record says by which driver: unmount it",
                mount.display()
            )),
        }
    }

    /// Removes a mount point and its record, unless something is mounted there.
    fn remove_left(&self, mount_point: &Path) -> Result<(), String> {
        // Looked for in the directory of the record, for the mount point may be on a file system that does not answer.
        let directory = mount_point.parent().unwrap_or(mount_point);
        let mounts = self.machine.mounts_below(directory).map_err(|error| error.to_string())?;
        if let Some(mount) = mounts.first() {
            return Err(format!("the driver has left {} mounted", mount.display()));
        }
        record::remove(mount_point)
            .map_err(|error| format!("failed to remove {}: {error}", mount_point.display()))
    }

    /// Has drivers undo their preparation of volumes that no pod uses any more. Returns whether something is left to do.
    pub(crate) async fn unstage_all_unused(&self) -> bool {
        let mut is_left = false;
        for key in self.uses.unused() {
            if let Err(error) = self.unstage_unused(&key).await {
                tracing::warn!(
                    driver = key.driver,
                    volume = key.handle,
                    error,
                    "failed to unstage volume; will retry"
                );
                is_left = true;
            }
        }
        is_left
    }

    async fn unstage_unused(&self, key: &VolumeKey) -> Result<(), String> {
        let _one_at_a_time = self.locks.lock(key).await;
        if !self.uses.is_unused(key) {
            return Ok(());
        }
        let staging = key.staging(&self.root);
        let endpoint = self.registry.endpoint(&key.driver)?;
        let unstaged = Driver::at(endpoint).unstage(&key.handle, &staging).await;
        unstaged.map_err(|error| {
            format!("kubernetes.io/csi: attacher.UnmountDevice failed: {error}")
        })?;
        self.remove_left(&staging)?;
        self.uses.unstaged(key);
        Ok(())
    }

    /// Finds what an earlier agent, or a kubelet, has had mounted.
    pub(crate) async fn find(&self) {
        let found = self.uses.find(&self.root);
        if let Err(error) = found {
            tracing::error!(%error, "failed to read the records of mounted volumes; no volume is unstaged");
        }
        for driver in self.uses.drivers_of_unknown_kind() {
            match self.cluster.driver(&driver).await {
                Ok(found) => {
                    let rules = DriverRules::of(found.as_ref());
                    self.uses.set_attaches(&driver, rules.attaches);
                }
                Err(error) => {
                    tracing::warn!(
                        driver,
                        error,
                        "failed to get CSIDriver; its volumes count as attached"
                    );
                }
            }
        }
        self.uses.show();
    }
}

/// A volume that is being mounted for a pod.
struct Publishing<'a> {
    pod: &'a Pod,
    wanted: &'a Wanted,
    target: &'a Path,
    staging: Option<PathBuf>,
    context: Strings,
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(path)
}
