//! ◆ The claims that the pods of a run use, and problems with them. Pure.

use agent::objects::ObjectMap;
use api::claims::{Binding, Bindings, Bound, ClaimName, bind, bind_all, mismatch_reasons};
use api::pod::Pod;

/// The claims that pods mount, without duplicates.
pub(crate) fn used<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<ClaimName> {
    let mut claims: Vec<ClaimName> = pods
        .into_iter()
        .flat_map(|pod| {
            let volumes = pod.spec().volumes.iter().flatten();
            let sources = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
            sources.map(|source| ClaimName::new(pod.namespace(), source.claim_name.clone()))
        })
        .collect();
    claims.sort();
    claims.dedup();
    claims
}

/// The bindings of the existing claims and of `claims`, and the resulting claims of each volume.
pub fn bindings(claims: &[ClaimName], objects: &ObjectMap) -> (Bindings, Bound) {
    let volumes = objects.persistent_volumes();
    let (mut all, mut bound) = bind_all(objects.persistent_volume_claims(), &volumes, Bound::new());
    // The claims of StatefulSets are bound when their pods start.
    for name in claims {
        if all.contains_key(name) {
            continue;
        }
        let Some(claim) = objects.persistent_volume_claim(&name.namespace, &name.name) else {
            continue;
        };
        let binding = bind(&claim, &volumes, &bound);
        if let Ok(Binding::Volume(volume)) = &binding {
            bound.insert(volume.clone(), name.clone());
        }
        all.insert(name.clone(), binding);
    }
    (all, bound)
}

/// Messages about existing claims that cannot be bound.
pub(crate) fn problems(claims: &[ClaimName], objects: &ObjectMap) -> Vec<String> {
    let (all, _) = bindings(claims, objects);
    all.into_iter()
        .filter_map(|(name, binding)| {
            let reason = binding.err()?;
            Some(format!("persistentvolumeclaim {name} has no volume: {reason}"))
        })
        .collect()
}

/// Messages about claims that get a directory although there are PersistentVolumes.
pub(crate) fn warnings(claims: &[ClaimName], objects: &ObjectMap) -> Vec<String> {
    let (all, bound) = bindings(claims, objects);
    let volumes = objects.persistent_volumes();
    all.into_iter()
        .filter(|(_, binding)| *binding == Ok(Binding::Directory))
        .filter_map(|(name, _)| {
            let claim = objects.persistent_volume_claim(&name.namespace, &name.name)?;
            let reasons = mismatch_reasons(&claim, &volumes, &bound).join("; ");
            (!reasons.is_empty()).then(|| {
                format!(
                    "persistentvolumeclaim {name} gets its own directory, because it matches no PersistentVolume \
                     ({reasons}): change the claim or a PersistentVolume, or leave the PersistentVolumes out"
                )
            })
        })
        .collect()
}
