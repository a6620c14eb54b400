//! ◆ Describes the future bindings of a run's claims. Pure.

use agent::objects::ObjectMap;
use agent::storage::claim_directories::ClaimDirectories;
use api::claims::{Binding, ClaimName};
use compact::Map;
use crib_run::{Inputs, bindings};

/// Descriptions of the bindings, by claim.
pub(super) struct BoundClaims(Map<ClaimName, String>);

impl BoundClaims {
    pub(super) fn of(inputs: &Inputs) -> Self {
        let directories = ClaimDirectories::new(inputs.volumes_dir.clone());
        let (all, _) = bindings(&inputs.claims, &inputs.objects);
        let known = all.into_iter().filter_map(|(name, binding)| {
            let words = match binding.ok()? {
                Binding::Volume(volume) => of_volume(&volume, &inputs.objects),
                Binding::Directory => {
                    format!("the directory {}", directories.path(&name).display())
                }
            };
            Some((name, words))
        });
        Self(known.collect())
    }

    /// The description of a claim's binding.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<String> {
        self.0.get(&ClaimName::new(namespace, name)).cloned()
    }
}

/// A PersistentVolume, and its path on this machine.
fn of_volume(name: &str, objects: &ObjectMap) -> String {
    let volumes = objects.persistent_volumes();
    let mut named = volumes.iter().filter(|volume| volume.metadata.name.as_deref() == Some(name));
    let spec = named.next().and_then(|volume| volume.spec.as_ref());
    let host = spec.and_then(|spec| spec.host_path.as_ref().map(|source| &source.path));
    let local = spec.and_then(|spec| spec.local.as_ref().map(|source| &source.path));
    match host.or(local) {
        Some(path) => format!("PersistentVolume {name}, {path} of the host"),
        None => format!("PersistentVolume {name}"),
    }
}
