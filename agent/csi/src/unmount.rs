//! Unmounts volumes through their drivers: unpublishes those of ended pods, and unstages those that no pod uses.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/{csi_attacher,csi_mounter,csi_block}.go; pkg/kubelet/volumemanager/reconciler.

use std::path::Path;

use agent::storage::drivers::{DriverError, DriverStep, DriverUsage, remove_tree};

use crate::names::{VolumeKey, device_targets};
use crate::paths::{self, VolumePaths};
use crate::record::Found;
use crate::request::DriverSettings;
use crate::volumes::Volumes;

impl Volumes {
    /// Unmounts all volumes of the pod with this directory. Returns the first error; the others are logged.
    pub(crate) async fn unmount(&self, pod_dir: &Path) -> Result<(), DriverError> {
        // A mount operation may still run after its caller was dropped. Wait for it, so that its volume is unmounted too.
        let _after_mounts = self.pods.lock(&pod_dir.to_owned()).await;
        let failed = |step, volume: &Path, message: String| {
            let volume = volume.file_name().unwrap_or_default().to_string_lossy().into_owned();
            DriverError { step, volume, message, waits: false, is_exhausted: false }
        };
        let places = paths::of_pod(&self.root, pod_dir).map_err(|error| {
            let message = format!("failed to read the volumes of {}: {error}", pod_dir.display());
            failed(DriverStep::TearDown, pod_dir, message)
        })?;
        let mut first = None;
        for paths in places {
            if let Err(message) = self.unmount_one(pod_dir, &paths).await {
                let (step, volume) = paths.teardown();
                tracing::warn!(volume = %volume.display(), error = message, "failed to unmount volume; will retry");
                first.get_or_insert_with(|| failed(step, volume, message));
            }
        }
        if let Some(error) = first {
            return Err(error);
        }
        if let Some(uid) = pod_dir.file_name() {
            self.tokens.forget(&uid.to_string_lossy());
        }
        for key in self.uses.forget(pod_dir) {
            self.remove_unused_device(&key).await;
        }
        for key in self.uses.unused() {
            if self.unstage_unused(&key).await.is_err() {
                // The upkeep task retries it.
                self.uses.retry_unstaging();
            }
        }
        Ok(())
    }

    /// Unpublishes the volume that is, or may be, published at this location of a pod.
    async fn unmount_one(&self, pod_dir: &Path, paths: &VolumePaths) -> Result<(), String> {
        let key = match paths.read() {
            Found::Record(record) => record.key,
            // The agent never mounted there. Another program may have.
            Found::Missing => return self.has_no_mounts(paths),
            Found::Unreadable(error) => {
                return self.has_no_mounts(paths).map_err(|mounted| {
                    let (_, volume) = paths.teardown();
                    format!("failed to read the record of {}: {error}; {mounted}", volume.display())
                });
            }
        };
        {
            let _one_at_a_time = self.locks.lock(&key.of_driver()).await;
            let driver = self.registry.driver(&key.driver).map_err(|error| {
                format!("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: {error}")
            })?;
            let unpublished = driver.unpublish(&key.handle, &paths.target).await;
            unpublished.map_err(|error| {
                format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {error}")
            })?;
            self.uses.unpublished(&paths.target);
            self.remove_left(paths)?;
            self.uses.remove_use(&key, pod_dir);
            if !self.uses.is_used(&key) {
                self.sizes.forget(&key);
            }
        }
        self.remove_unused_device(&key).await;
        Ok(())
    }

    /// Checks that nothing is mounted at a location.
    fn has_no_mounts(&self, paths: &VolumePaths) -> Result<(), String> {
        let mounts = self.machine.mounts_below(paths.may_have_mounts());
        match mounts.map_err(|error| error.to_string())?.first() {
            None => Ok(()),
            Some(mount) => Err(format!(
                "no record names the driver of the mount at {}: unmount it",
                mount.display()
            )),
        }
    }

    /// Checks that a driver has left no mounts in a directory.
    fn has_left_no_mounts(&self, directory: &Path) -> Result<(), String> {
        let mounts = self.machine.mounts_below(directory).map_err(|error| error.to_string())?;
        match mounts.first() {
            None => Ok(()),
            Some(mount) => Err(format!("driver left {} mounted", mount.display())),
        }
    }

    /// Removes the files at a location, unless something is mounted there.
    pub(crate) fn remove_left(&self, paths: &VolumePaths) -> Result<(), String> {
        self.has_left_no_mounts(paths.may_have_mounts())?;
        let removed = paths.remove();
        removed.map_err(|error| format!("failed to remove {}: {error}", paths.target.display()))
    }

    /// Removes the files of a staged volume, unless something is mounted there.
    pub(crate) fn remove_staging(&self, key: &VolumeKey) -> Result<(), String> {
        let staging = key.staging(&self.root);
        match &key.device {
            None => self.has_left_no_mounts(staging.parent().unwrap_or(&staging))?,
            Some(name) => {
                self.has_left_no_mounts(&staging)?;
                self.has_left_no_mounts(&device_targets(&self.root, name))?;
            }
        }
        let removed = paths::remove_staging(key, &self.root);
        removed.map_err(|error| format!("failed to remove {}: {error}", staging.display()))
    }

    /// Removes the directories of a block device that no pod uses and that is not staged.
    async fn remove_unused_device(&self, key: &VolumeKey) {
        let Some(name) = &key.device else {
            return;
        };
        let _one_at_a_time = self.locks.lock(&key.of_driver()).await;
        if self.uses.is_used(key) || self.uses.is_maybe_staged(key) {
            return;
        }
        let removed = self.has_left_no_mounts(&device_targets(&self.root, name));
        let removed = removed.and_then(|()| {
            paths::remove_device(&self.root, name).map_err(|error| error.to_string())
        });
        if let Err(error) = removed {
            tracing::warn!(volume = name, error, "failed to clean up a block device");
        }
    }

    /// Unstages all volumes that no pod uses. Returns whether a retry is necessary.
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
        let _one_at_a_time = self.locks.lock(&key.of_driver()).await;
        if !self.uses.is_unused(key) {
            return Ok(());
        }
        let staging = key.staging(&self.root);
        let driver = self.registry.driver(&key.driver)?;
        let unstaged = driver.unstage(&key.handle, &staging).await;
        unstaged.map_err(|error| {
            format!("kubernetes.io/csi: attacher.UnmountDevice failed: {error}")
        })?;
        if key.device.is_some() {
            self.has_left_no_mounts(&staging)?;
            // Drivers may leave files next to a device.
            let removed = remove_tree(&staging);
            removed.map_err(|error| format!("failed to remove {}: {error}", staging.display()))?;
        }
        self.remove_staging(key)?;
        self.uses.unstaged(key);
        Ok(())
    }

    /// Gets the usage of a volume in the pod with this directory; `None` if the driver does not measure volumes, or the pod does
    /// not have it.
    pub(crate) async fn usage(
        &self,
        pod_dir: &Path,
        spec_name: &str,
    ) -> Result<Option<DriverUsage>, String> {
        let places = [
            VolumePaths::of_mount(pod_dir, spec_name),
            VolumePaths::of_device(&self.root, pod_dir, spec_name),
        ];
        let found = places.into_iter().find_map(|paths| Some((paths.key()?, paths)));
        let Some((key, paths)) = found else {
            return Ok(None);
        };
        let _one_at_a_time = self.locks.lock(&key.of_driver()).await;
        // The volume may have been unpublished meanwhile.
        if paths.key().as_ref() != Some(&key) {
            return Ok(None);
        }
        let driver = self.registry.driver(&key.driver)?;
        let capabilities = driver.capabilities().await.map_err(|error| error.to_string())?;
        if !capabilities.measures {
            return Ok(None);
        }
        let stats = driver.stats(&key.handle, &paths.target).await;
        stats.map_err(|error| error.to_string())?.usage(capabilities).map(Some)
    }

    /// Finds the volumes that an earlier agent or a kubelet has mounted.
    pub(crate) async fn find(&self) {
        let found = self.uses.find(&self.root).and_then(|()| paths::recorded_devices(&self.root));
        match found {
            Ok(devices) => {
                for key in devices {
                    self.remove_unused_device(&key).await;
                }
            }
            Err(error) => {
                tracing::error!(%error, "failed to read the records of mounted volumes; not unstaging any");
            }
        }
        for driver in self.uses.drivers_without_attach_setting() {
            match self.cluster.driver(&driver).await {
                Ok(found) => {
                    let settings = DriverSettings::of(found.as_ref());
                    self.uses.set_attaches(&driver, settings.attaches);
                }
                Err(error) => {
                    tracing::warn!(
                        driver,
                        error,
                        "failed to get CSIDriver; assuming that its volumes are attached"
                    );
                }
            }
        }
        self.uses.report_in_use();
    }
}
