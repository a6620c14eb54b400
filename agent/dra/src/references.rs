//! ◆ The ResourceClaims that a pod and its containers name, and whether the pod may use them. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/dynamic-resource-allocation/resourceclaim, pkg/kubelet/cm/dra/manager.go prepareResources and
//! GetResources.

use api::pod::Pod;
use api::totals::amount;
use compact::Set;
use k8s_openapi::api::core::v1::{Container, PodExtendedResourceClaimStatus, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;

/// A ResourceClaim that a pod uses, in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) name: String,
    /// The claim was generated for the pod from a template: the pod must own it.
    pub(crate) is_owned: bool,
}

/// A container's use of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) claim: String,
    /// The claim's requests whose devices the container gets; an empty name means all requests.
    pub(crate) requests: Vec<String>,
}

/// The claims of a pod without duplicates. A claim whose status has no name is not needed.
pub(crate) fn of_pod(pod: &Pod) -> Result<Vec<Reference>, String> {
    let mut found: Vec<Reference> = Vec::new();
    for claim in pod.spec().resource_claims.iter().flatten() {
        found.extend(reference(pod, claim)?);
    }
    let extended = extended(pod).map(|status| status.resource_claim_name.clone());
    found.extend(extended.map(|name| Reference { name, is_owned: false }));
    let mut names = Set::new();
    found.retain(|reference| names.insert(reference.name.clone()));
    Ok(found)
}

/// The claims that a container uses.
pub(crate) fn of_container(pod: &Pod, container: &Container) -> Result<Vec<Use>, String> {
    let mut found = Vec::new();
    let resources = container.resources.as_ref();
    let named: Vec<_> =
        resources.iter().flat_map(|resources| resources.claims.iter().flatten()).collect();
    for claim in pod.spec().resource_claims.iter().flatten() {
        let of_claim = named.iter().filter(|named| named.name == claim.name);
        let requests: Vec<String> =
            of_claim.map(|named| named.request.clone().unwrap_or_default()).collect();
        if requests.is_empty() {
            continue;
        }
        let named = reference(pod, claim)?;
        found.extend(named.map(|reference| Use { claim: reference.name, requests }));
    }
    if let Some(status) = extended(pod) {
        let requested = resources.and_then(|resources| resources.requests.as_ref());
        let is_requested = |name: &String| {
            let quantity = requested.and_then(|requests| requests.get(name));
            quantity.is_some_and(|quantity| !amount(quantity).is_zero())
        };
        let own = status.request_mappings.iter().filter(|mapping| {
            mapping.container_name == container.name && is_requested(&mapping.resource_name)
        });
        let requests: Vec<String> = own.map(|mapping| mapping.request_name.clone()).collect();
        if !requests.is_empty() {
            found.push(Use { claim: status.resource_claim_name.clone(), requests });
        }
    }
    Ok(found)
}

/// The claims that a container names, each with its name in the container's status: `claim:gpu/large`
/// (pkg/kubelet/cm/dra/manager.go UpdateAllocatedResourcesStatus).
pub(crate) fn named(pod: &Pod, container: &Container) -> Vec<(String, Use)> {
    let resources = container.resources.iter();
    let mut found: Vec<(String, Use)> = Vec::new();
    for named in resources.flat_map(|resources| resources.claims.iter().flatten()) {
        let mut claims = pod.spec().resource_claims.iter().flatten();
        let Some(claim) = claims.find(|claim| claim.name == named.name) else { continue };
        let Ok(Some(reference)) = reference(pod, claim) else { continue };
        let request = named.request.as_deref().unwrap_or_default();
        let label = match request {
            "" => format!("claim:{}", named.name),
            request => format!("claim:{}/{request}", named.name),
        };
        // Devices belong to a request, not to a subrequest such as `large/first`.
        let request = request.split('/').next().unwrap_or_default().to_owned();
        found.push((label, Use { claim: reference.name, requests: vec![request] }));
    }
    found
}

/// The claim that the scheduler has created for the pod's extended resources.
fn extended(pod: &Pod) -> Option<&PodExtendedResourceClaimStatus> {
    pod.api().status.as_ref()?.extended_resource_claim_status.as_ref()
}

/// The ResourceClaim behind a claim of the pod; `None` if none is needed.
fn reference(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<Reference>, String> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(Reference { name: name.clone(), is_owned: false }));
    }
    let of = format!("pod \"{}/{}\"", pod.namespace(), pod.name());
    if claim.resource_claim_template_name.is_none() {
        let name = &claim.name;
        return Err(format!(
            "{of}, spec.resourceClaim {name:?}: none of the supported fields are set"
        ));
    }
    let status = pod.api().status.as_ref();
    let mut made = status.iter().flat_map(|it| it.resource_claim_statuses.iter().flatten());
    match made.find(|made| made.name == claim.name) {
        Some(made) => {
            let name = made.resource_claim_name.clone();
            Ok(name.map(|name| Reference { name, is_owned: true }))
        }
        None => Err(format!("{of}: ResourceClaim not created yet")),
    }
}

/// Checks that the pod may use a claim.
pub(crate) fn check(pod: &Pod, claim: &ResourceClaim, reference: &Reference) -> Result<(), String> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (text(&claim.metadata.namespace), text(&claim.metadata.name));
    let of = format!("Pod {}/{}", pod.namespace(), pod.name());
    if reference.is_owned {
        if namespace != pod.namespace() {
            return Err(format!(
                "ResourceClaim {namespace}/{name} is not in the same namespace as {of}"
            ));
        }
        let mut owners = claim.metadata.owner_references.iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true));
        if controller.is_none_or(|owner| owner.uid != pod.uid().as_str()) {
            return Err(format!(
                "ResourceClaim {namespace}/{name} was not created for {of} (Pod is not owner)"
            ));
        }
    }
    let status = claim.status.as_ref();
    let mut reserved = status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !reserved.any(|consumer| consumer.uid == pod.uid().as_str()) {
        return Err(format!(
            "pod {} ({}) is not allowed to use ResourceClaim {} ({})",
            pod.name(),
            pod.uid(),
            reference.name,
            text(&claim.metadata.uid)
        ));
    }
    Ok(())
}

/// The drivers of a claim's allocation.
pub(crate) fn drivers(claim: &ResourceClaim) -> Result<Set<String>, String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let Some(allocation) = allocation else {
        let name = claim.metadata.name.clone().unwrap_or_default();
        return Err(format!("ResourceClaim {name}: not allocated"));
    };
    let devices = allocation.devices.iter();
    let results = devices.flat_map(|devices| devices.results.iter().flatten());
    Ok(results.map(|result| result.driver.clone()).collect())
}

#[cfg(test)]
mod tests;
