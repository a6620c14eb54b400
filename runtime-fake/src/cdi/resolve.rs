//! ◆ Resolves device names to container edits. Pure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cri::v1::{Mount, MountPropagation};
use keeper::contract::plan::DeviceKind;

use super::{
    edit::ProcessEdits,
    spec::{Name, Spec, SpecEdits, SpecMount, SpecNode},
};
use crate::launch::{Invalid, devices};

/// The specifications of all files, and the errors of broken ones.
#[derive(Debug, Default)]
pub(super) struct Registry {
    specs: Vec<Entry>,
    broken: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    strength: usize,
    path: PathBuf,
    spec: Spec,
}

impl Registry {
    /// Adds a file. The error of a broken one is kept: it may define a device that is not found.
    pub(super) fn add(&mut self, strength: usize, path: &Path, spec: Result<Spec, String>) {
        match spec {
            Ok(spec) => self.specs.push(Entry { strength, path: path.to_owned(), spec }),
            Err(error) => self.broken.push(format!("{} is broken: {error}", path.display())),
        }
    }

    /// The specification of `name`, from the directory with the highest precedence.
    fn find(&self, name: &Name) -> Result<(usize, &SpecEdits), Invalid> {
        let describing = self.specs.iter().enumerate().filter_map(|(index, entry)| {
            let device = entry.spec.devices.iter().find(|d| d.name == name.device)?;
            (entry.spec.kind == name.kind).then_some((index, entry, &device.container_edits))
        });
        let describing: Vec<_> = describing.collect();
        let strongest = describing.iter().map(|(_, entry, _)| entry.strength).max();
        let mut best =
            describing.into_iter().filter(|(_, entry, _)| Some(entry.strength) == strongest);
        match (best.next(), best.next()) {
            (Some((index, _, edits)), None) => Ok((index, edits)),
            (Some((_, first, _)), Some((_, second, _))) => Err(Invalid(format!(
                "CDI: the device {name} is described twice, by {} and {}",
                first.path.display(),
                second.path.display()
            ))),
            (None, _) => {
                let broken: String = self.broken.iter().map(|b| format!("; {b}")).collect();
                Err(Invalid(format!("CDI: no specification describes the device {name}{broken}")))
            }
        }
    }
}

/// The edits to a container for its devices.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Edits {
    pub(crate) process: ProcessEdits,
    pub(crate) nodes: Vec<NodeEdit>,
    pub(crate) mounts: Vec<Mount>,
}

/// A device's node, as far as the specification defines it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeEdit {
    pub(crate) path: PathBuf,
    pub(crate) host: PathBuf,
    pub(crate) kind: Option<DeviceKind>,
    pub(crate) numbers: Option<(u32, u32)>,
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) access: String,
}

/// The edits for `names`: for each file its common edits once, then the edits of each device.
pub(super) fn edits_of(registry: &Registry, names: &[Name]) -> Result<Edits, Invalid> {
    let mut edits = Edits::default();
    let mut seen = Vec::new();
    for name in names {
        let (index, own) = registry.find(name)?;
        if !seen.contains(&index) {
            seen.push(index);
            edits.add(name, &registry.specs[index].spec.container_edits)?;
        }
        edits.add(name, own)?;
    }
    Ok(edits)
}

impl Edits {
    fn add(&mut self, name: &Name, edits: &SpecEdits) -> Result<(), Invalid> {
        let wrong = |what: String| Invalid(format!("CDI: the device {name} {what}"));
        if let Some(hook) = edits.hooks.first() {
            return Err(wrong(format!(
                "needs the hook {} ({}), and hooks, programs that run on the host, are not supported",
                hook.hook_name, hook.path
            )));
        }
        if edits.intel_rdt.is_some() {
            return Err(wrong("needs intelRdt, which is not supported".to_owned()));
        }
        for pair in &edits.env {
            let named = pair.split_once('=').is_some_and(|(name, _)| !name.is_empty());
            if !named || pair.contains('\0') {
                return Err(wrong(format!("has {pair:?} for a variable")));
            }
            self.process.env.push(pair.clone());
        }
        for node in &edits.device_nodes {
            self.nodes.push(node_edit(name, node)?);
        }
        for mount in &edits.mounts {
            self.mounts.push(mount_of(mount).map_err(wrong)?);
        }
        // Group 0 is skipped, as in CDI: a device must not grant it.
        self.process.additional_gids.extend(edits.additional_gids.iter().filter(|gid| **gid != 0));
        Ok(())
    }
}

fn node_edit(name: &Name, node: &SpecNode) -> Result<NodeEdit, Invalid> {
    let wrong = |what: String| Err(Invalid(format!("CDI: the device {name} {what}")));
    let kind = match node.kind.as_deref() {
        None | Some("") => None,
        Some("c" | "u") => Some(DeviceKind::Character),
        Some("b") => Some(DeviceKind::Block),
        Some(other) => return wrong(format!("has a node of type {other:?}: c, u or b")),
    };
    if !node.path.is_absolute() {
        return wrong(format!("has a node at {:?}, not an absolute path", node.path));
    }
    let host = node.host_path.clone().filter(|p| !p.as_os_str().is_empty());
    let permissions = node.permissions.as_deref().unwrap_or_default();
    Ok(NodeEdit {
        path: node.path.clone(),
        host: host.unwrap_or_else(|| node.path.clone()),
        kind,
        numbers: node.major.filter(|major| *major != 0).zip(Some(node.minor.unwrap_or(0))),
        mode: node.file_mode.map(|mode| mode & 0o7777),
        uid: node.uid,
        gid: node.gid,
        access: devices::access(permissions, &node.path.display().to_string())?,
    })
}

fn mount_of(mount: &SpecMount) -> Result<Mount, String> {
    let mut made = Mount {
        host_path: mount.host_path.clone(),
        container_path: mount.container_path.clone(),
        ..Default::default()
    };
    if !matches!(mount.kind.as_str(), "" | "bind" | "none") {
        return Err(format!(
            "has a mount of type {:?} at {}: only files and directories of the host can be mounted",
            mount.kind, mount.container_path
        ));
    }
    let propagations = BTreeMap::from([
        ("private", MountPropagation::PropagationPrivate),
        ("slave", MountPropagation::PropagationHostToContainer),
        ("shared", MountPropagation::PropagationBidirectional),
    ]);
    for option in &mount.options {
        let plain = option.strip_prefix('r').unwrap_or(option);
        match option.as_str() {
            "bind" | "rbind" | "rw" | "suid" | "dev" | "exec" | "relatime" => {}
            "ro" => made.readonly = true,
            "rro" => (made.readonly, made.recursive_read_only) = (true, true),
            _ => match propagations.get(plain) {
                Some(propagation) => made.set_propagation(*propagation),
                None => made.mount_options.push(option.clone()),
            },
        }
    }
    Ok(made)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
