//! Resource claims of a pod, and those that its containers use.

use compact::Set;
use k8s_openapi::api::core::v1::{PodResourceClaim, PodSpec, ResourceClaim};

use crate::manifest::validate::{Check, Rule, duplicate, names};

/// The claims of a pod. A mirror pod must not have any.
pub(super) fn of_pod(check: &mut Check, spec: &PodSpec, is_mirror: bool) {
    let mut seen = Set::new();
    for (index, claim) in spec.resource_claims.iter().flatten().enumerate() {
        if is_mirror {
            check.forbidden("", "static pods do not support resource claims");
        } else {
            one(check, &format!("spec.resourceClaims[{index}]"), claim, &mut seen);
        }
    }
}

fn one(check: &mut Check, field: &str, claim: &PodResourceClaim, seen: &mut Set<String>) {
    if claim.name.is_empty() {
        check.required(format!("{field}.name"), "");
    } else if seen.contains(&claim.name) {
        duplicate(check, seen, format!("{field}.name"), &claim.name);
    } else {
        check.formed(format!("{field}.name"), &claim.name, names::dns_label);
        seen.insert(claim.name.clone());
    }
    let given = [
        ("resourceClaimName", &claim.resource_claim_name),
        ("resourceClaimTemplateName", &claim.resource_claim_template_name),
    ];
    let count = given.iter().filter(|(_, name)| name.is_some()).count();
    if count != 1 {
        let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
        check.invalid(field, &claim.name, detail);
    }
    for (kind, name) in given {
        check.maybe_formed(format!("{field}.{kind}"), name.as_deref(), names::dns_subdomain);
    }
}

/// The claims that a container, or `spec.resources`, uses.
pub(super) fn used(check: &mut Check, field: &str, claims: &[ResourceClaim], spec: &PodSpec) {
    let declared = |name: &str| {
        let claims = spec.resource_claims.iter().flatten();
        claims.filter(|claim| !claim.name.is_empty()).any(|claim| claim.name == name)
    };
    // A whole claim is identified by its name, one of its requests by NAME/REQUEST.
    let mut seen = Set::new();
    for (index, claim) in claims.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let name = &claim.name;
        if name.is_empty() {
            check.required(field, "");
            continue;
        }
        if seen.contains(name) {
            check.error(Rule::Duplicate, &field, name, "");
        } else {
            let request = claim.request.as_deref().unwrap_or_default();
            let key = if request.is_empty() {
                name.clone()
            } else {
                check.formed(format!("{field}.request"), request, names::dns_label);
                format!("{name}/{request}")
            };
            let overlaps = request.is_empty()
                && seen.iter().any(|seen: &String| {
                    seen.split_once('/').is_some_and(|(claim, _)| claim == name)
                });
            if overlaps {
                check.error(Rule::Duplicate, &field, name, "");
                seen.insert(key);
            } else {
                duplicate(check, &mut seen, field.clone(), &key);
            }
        }
        if !declared(name) {
            let detail = "must be one of the names in spec.resourceClaims";
            check.error(Rule::NotFound, field, name, detail);
        }
    }
}
