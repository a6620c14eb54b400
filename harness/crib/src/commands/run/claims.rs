//! ◆ Which claims the pods of a run use, and what is wrong with them. Pure.

use std::collections::BTreeMap;

use agent::claims::{Bound, ClaimName, bind, bind_all};
use agent::objects::Objects;
use agent::pod::Pod;

/// The claims that pods mount, each once.
pub(super) fn used<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Vec<ClaimName> {
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

/// Why claims that exist would be bound to nothing, each in a sentence.
pub(super) fn problems(claims: &[ClaimName], objects: &dyn Objects) -> Vec<String> {
    let (all, bound) = bind_all(objects, Bound::new());
    let volumes = objects.persistent_volumes();
    // Those of StatefulSets are bound when their pods start.
    let later = claims.iter().filter(|name| !all.contains_key(name));
    let later: BTreeMap<ClaimName, _> = later
        .filter_map(|name| {
            let claim = objects.persistent_volume_claim(&name.namespace, &name.name)?;
            Some((name.clone(), bind(&claim, &volumes, &bound)))
        })
        .collect();
    let all = all.into_iter().chain(later);
    all.filter_map(|(name, binding)| {
        let reason = binding.err()?;
        Some(format!(
            "persistentvolumeclaim {name} has no volume: {reason}"
        ))
    })
    .collect()
}
