//! ◆ Which volume a claim is bound to: a matching PersistentVolume, or its own directory. Pure.
//!
//! Source: Kubernetes 1.36, component-helpers/storage/volume/pv_helpers.go and pkg/controller/volume/persistentvolume/index.go. The
//! directory stands for the volume that a storage class's provisioner creates: every class has one.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use compact::Map;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::quantity::Quantity;
use crate::selector::{self, matches_selector};
use crate::totals::amount;

/// The namespace and the name of a claim. `Display` formats it as `default/data`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ClaimName {
    /// The name of a claim in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The name of a claim object.
    #[must_use]
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or("default");
        Self::new(namespace, claim.metadata.name.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The binding of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The PersistentVolume of this name.
    Volume(String),
    /// Its own directory.
    Directory,
}

/// Why a claim is not bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbound {
    /// The volume in the claim's `volumeName` does not exist.
    #[error(
        "its volumeName {0:?} refers to no existing PersistentVolume: add this PersistentVolume, or leave volumeName out"
    )]
    NoVolume(String),
    /// The volume in the claim's `volumeName` is bound to another claim.
    #[error(
        "its volumeName refers to PersistentVolume {volume:?}, which is bound to claim {claim}"
    )]
    Taken {
        /// The volume.
        volume: String,
        /// The other claim.
        claim: ClaimName,
    },
    /// The volume in `volumeName`, or with a claimRef to the claim, does not match.
    #[error(
        "PersistentVolume {volume:?} is reserved for this claim, but cannot be bound: {mismatch}"
    )]
    Mismatch {
        /// The volume.
        volume: String,
        /// Why it does not match.
        mismatch: Mismatch,
    },
    /// No volume matches, and the claim requests no new one.
    #[error(
        "no PersistentVolume matches, and crib creates no volume for a claim whose storageClassName is empty: add a PersistentVolume, or \
         leave storageClassName out"
    )]
    NoClass,
    /// No volume matches, and a new one would not match either.
    #[error(
        "no PersistentVolume matches its selector, and crib creates no volume for a claim with a selector: add a PersistentVolume, or leave \
         selector out"
    )]
    Selector,
}

/// Why a volume does not match a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It is too small.
    #[error("its capacity is smaller than what the claim requests")]
    Capacity,
    /// It lacks an access mode.
    #[error("it lacks one of the claim's accessModes")]
    AccessModes,
    /// The classes differ.
    #[error("its storageClassName differs")]
    Class,
    /// The volume modes differ.
    #[error("its volumeMode differs")]
    VolumeMode,
    /// The claim's selector does not match its labels.
    #[error("the claim's selector does not match its labels")]
    Selector,
}

/// The bound claims, by the volumes' names.
pub type Bound = Map<String, ClaimName>;

/// Decides the binding of a claim, given the claims that are already bound to volumes.
///
/// # Errors
/// Why it is not bound.
pub fn bind(
    claim: &PersistentVolumeClaim,
    volumes: &[impl AsRef<PersistentVolume>],
    bound: &Bound,
) -> Result<Binding, Unbound> {
    let own = ClaimName::of(claim);
    let owner = |volume: &PersistentVolume| {
        let bound = bound.get(name_of(volume)).cloned();
        bound.or_else(|| reserved_for(volume))
    };
    let volumes = || volumes.iter().map(AsRef::as_ref);
    let spec = claim.spec.clone().unwrap_or_default();
    let binding = |volume: &PersistentVolume, mismatch: Option<Mismatch>| match mismatch {
        None => Ok(Binding::Volume(name_of(volume).to_owned())),
        Some(mismatch) => Err(Unbound::Mismatch { volume: name_of(volume).to_owned(), mismatch }),
    };
    if let Some(name) = spec.volume_name.filter(|name| !name.is_empty()) {
        let Some(volume) = volumes().find(|volume| name_of(volume) == name) else {
            return Err(Unbound::NoVolume(name));
        };
        return match owner(volume) {
            Some(other) if other != own => Err(Unbound::Taken { volume: name, claim: other }),
            // The selector only applies to the choice of a volume, and this volume is already chosen.
            _ => binding(volume, mismatches(claim, volume).find(not_of_selector)),
        };
    }
    if let Some(volume) = volumes().find(|volume| owner(volume).as_ref() == Some(&own)) {
        let counts =
            |mismatch: &Mismatch| matches!(mismatch, Mismatch::Capacity | Mismatch::VolumeMode);
        return binding(volume, mismatches(claim, volume).find(counts));
    }
    let best = volumes()
        .filter(|volume| owner(volume).is_none() && mismatches(claim, volume).next().is_none())
        .min_by_key(|volume| (modes(volume).len(), capacity(volume), name_of(volume)));
    if let Some(volume) = best {
        return Ok(Binding::Volume(name_of(volume).to_owned()));
    }
    if spec.storage_class_name.as_deref() == Some("") {
        return Err(Unbound::NoClass);
    }
    match spec.selector.as_ref().is_some_and(|selector| !selector::is_empty(selector)) {
        true => Err(Unbound::Selector),
        false => Ok(Binding::Directory),
    }
}

/// The bindings of claims.
pub type Bindings = Map<ClaimName, Result<Binding, Unbound>>;

/// The bindings of all claims, in the order of their names, those with `volumeName` first.
#[must_use]
pub fn bind_all(
    mut claims: Vec<Arc<PersistentVolumeClaim>>,
    volumes: &[Arc<PersistentVolume>],
    mut bound: Bound,
) -> (Bindings, Bound) {
    let names_volume = |claim: &PersistentVolumeClaim| {
        let spec = claim.spec.as_ref();
        let name = spec.and_then(|spec| spec.volume_name.as_deref());
        name.is_some_and(|name| !name.is_empty())
    };
    compact::sort_by_key(&mut claims, |claim| (!names_volume(claim), ClaimName::of(claim)));
    let mut all = Map::new();
    for claim in claims {
        let binding = bind(&claim, volumes, &bound);
        let name = ClaimName::of(&claim);
        if let Ok(Binding::Volume(volume)) = &binding {
            bound.insert(volume.clone(), name.clone());
        }
        all.insert(name, binding);
    }
    (all, bound)
}

/// Why a claim that gets its own directory matches none of the volumes: a sentence for each that may have been intended for it.
/// `bound` are the claims of volumes.
#[must_use]
pub fn mismatch_reasons(
    claim: &PersistentVolumeClaim,
    volumes: &[impl AsRef<PersistentVolume>],
    bound: &Bound,
) -> Vec<String> {
    let volumes = volumes.iter().map(AsRef::as_ref);
    let reasons = volumes.filter_map(|volume| {
        let name = name_of(volume);
        let owner = bound.get(name).cloned().or_else(|| reserved_for(volume));
        let reason = match (owner, mismatches(claim, volume).next()) {
            (None, mismatch) => mismatch?.to_string(),
            (Some(owner), None) => format!("it is bound to claim {owner}"),
            // The volume belongs to another claim, and would not match either.
            (Some(_), Some(_)) => return None,
        };
        Some(format!("{name:?}: {reason}"))
    });
    reasons.collect()
}

fn not_of_selector(mismatch: &Mismatch) -> bool {
    *mismatch != Mismatch::Selector
}

/// The claim in a volume's `claimRef`.
fn reserved_for(volume: &PersistentVolume) -> Option<ClaimName> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let namespace = claim.namespace.as_deref().filter(|name| !name.is_empty());
    Some(ClaimName::new(namespace.unwrap_or("default"), claim.name.clone().unwrap_or_default()))
}

/// Why a volume does not match a claim; nothing if it does.
fn mismatches(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> impl Iterator<Item = Mismatch> {
    let wanted = claim.spec.clone().unwrap_or_default();
    let offered = volume.spec.clone().unwrap_or_default();
    let requests = wanted.resources.and_then(|resources| resources.requests);
    let request = requests.and_then(|mut requests| requests.remove("storage"));
    let is_too_small = request.is_some_and(|request| capacity(volume) < Some(amount(&request)));
    let lacks_mode = {
        let mut modes_wanted = wanted.access_modes.iter().flatten();
        modes_wanted.any(|mode| !modes(volume).contains(mode))
    };
    let text = |text: Option<String>, default: &str| {
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    let has_other_class =
        text(wanted.storage_class_name, "") != text(offered.storage_class_name, "");
    let has_other_mode =
        text(wanted.volume_mode, "Filesystem") != text(offered.volume_mode, "Filesystem");
    let labels = volume.metadata.labels.clone().unwrap_or_default();
    let is_unselected =
        wanted.selector.is_some_and(|selector| !matches_selector(&selector, &labels));
    [
        is_too_small.then_some(Mismatch::Capacity),
        lacks_mode.then_some(Mismatch::AccessModes),
        has_other_class.then_some(Mismatch::Class),
        has_other_mode.then_some(Mismatch::VolumeMode),
        is_unselected.then_some(Mismatch::Selector),
    ]
    .into_iter()
    .flatten()
}

fn name_of(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

fn modes(volume: &PersistentVolume) -> &[String] {
    let spec = volume.spec.as_ref();
    let modes = spec.and_then(|spec| spec.access_modes.as_deref());
    modes.unwrap_or_default()
}

fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?;
    capacity.get("storage").map(amount)
}
