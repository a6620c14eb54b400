//! Resolves a container's references to other objects: images mounted as volumes, and the container whose process namespace it
//! joins.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cri::v1::{ContainerConfig, Mount, NamespaceMode};
use image::{ImageStore, Rootfs};
use keeper::contract::plan::{MountPlan, MountSource, RootPlan};

use super::{Error, Runtime, containers::wrong_state};
use crate::{container::ContainerState, launch::Invalid, sandbox::Sandbox};

/// The images that mounts name, by the name in the request.
pub(super) struct HeldImages {
    pub(super) ids: BTreeMap<String, String>,
    pub(super) roots: BTreeMap<String, RootPlan>,
}

/// Holds the images that `mounts` name, for the container `holder`. A missing image is skipped.
pub(super) fn hold(
    images: &ImageStore,
    holder: &str,
    mounts: &[Mount],
) -> Result<HeldImages, Error> {
    let (mut ids, mut roots) = (BTreeMap::new(), BTreeMap::new());
    for image in mounts.iter().filter_map(|mount| mount.image.as_ref()) {
        let Some(record) = images.status(&image.image) else {
            continue;
        };
        let root = match images.hold(holder, &record.id.to_string())? {
            Rootfs::Host => RootPlan::Host,
            Rootfs::Layers { lower } => RootPlan::Layers(lower),
        };
        ids.insert(image.image.clone(), record.id.to_string());
        roots.insert(image.image.clone(), root);
    }
    Ok(HeldImages { ids, roots })
}

/// Sets the IDs of the images in the mounts (CRI v1, ImageSpec.image_ref).
pub(super) fn name_images(config: &mut ContainerConfig, ids: &BTreeMap<String, String>) {
    for image in config.mounts.iter_mut().filter_map(|m| m.image.as_mut()) {
        if let Some(id) = ids.get(&image.image) {
            image.image_ref.clone_from(id);
        }
    }
}

/// The directories where images with several layers are mounted.
pub(super) fn directories(mounts: &[MountPlan]) -> impl Iterator<Item = PathBuf> {
    mounts.iter().filter_map(|mount| match &mount.source {
        MountSource::Image { layers, at, .. } if layers.len() > 1 => Some(at.clone()),
        MountSource::Image { .. }
        | MountSource::Host(_)
        | MountSource::SubPath { .. }
        | MountSource::Memory { .. }
        | MountSource::Own => None,
    })
}

/// Copies images with several layers to the directories where overlayfs would have mounted them.
pub(super) fn copy(images: &ImageStore, mounts: &mut [MountPlan]) -> Result<(), Error> {
    for mount in mounts {
        if let MountSource::Image { layers, at, .. } = &mut mount.source
            && layers.len() > 1
        {
            images.copy(layers, Path::new(at))?;
            *layers = vec![at.clone()];
        }
    }
    Ok(())
}

impl Runtime {
    /// The container whose process namespace `config` joins, if it joins one: a running container of the same pod.
    pub(super) fn target(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Option<String>, Error> {
        let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
        let options = context.and_then(|c| c.namespace_options.as_ref());
        let wanted =
            options.filter(|o| o.pid == NamespaceMode::Target as i32).map_or("", |o| &o.target_id);
        if wanted.is_empty() {
            return Ok(None);
        }
        let target = self.store.state().container(wanted)?.clone();
        if target.sandbox != sandbox.id {
            return Err(Invalid(format!(
                "the target container {wanted} is in another pod sandbox ({}): only one of the same can be joined",
                target.sandbox
            ))
            .into());
        }
        if target.state != ContainerState::Running {
            return Err(wrong_state(
                &target,
                "only a running container's process namespace can be joined",
            ));
        }
        Ok(Some(target.id.to_string()))
    }
}
