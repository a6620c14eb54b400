//! Requests and limits.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceFieldSelector, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

use super::{Check, Rule, names};

type Amounts = Option<BTreeMap<String, ApiQuantity>>;

/// Pod-level resources.
pub(super) fn of_pod(check: &mut Check, spec: &PodSpec) {
    for (name, amount) in spec.overhead.iter().flatten() {
        let field = format!("spec.overhead.limits[{name}]");
        amount_of(check, &field, name, amount);
    }
    let Some(resources) = &spec.resources else {
        return;
    };
    requirements(check, "spec.resources", resources, &|check, field, name| {
        if !matches!(name, "cpu" | "memory") && !name.starts_with("hugepages-") {
            check.one_of(field, name, &["cpu", "memory", "hugepages-*"]);
        }
    });
    if resources
        .claims
        .as_ref()
        .is_some_and(|claims| !claims.is_empty())
    {
        check.forbidden(
            "spec.resources.claims",
            "claims may not be set for Resources at pod-level",
        );
    }
}

/// Resources of a container.
pub(super) fn of_container(check: &mut Check, field: &str, container: &Container) {
    let Some(resources) = &container.resources else {
        return;
    };
    let field = format!("{field}.resources");
    requirements(check, &field, resources, &|check, field, name| {
        if let Some(expected) = names::qualified(name) {
            check.invalid(field, name, expected);
            return;
        }
        if name.contains('/') {
            return;
        }
        let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-");
        if !standard {
            check.invalid(
                field,
                name,
                "must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a domain",
            );
        }
    });
    let given = |list: &Amounts| {
        list.iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect::<BTreeSet<_>>()
    };
    let all: BTreeSet<String> = given(&resources.limits)
        .union(&given(&resources.requests))
        .cloned()
        .collect();
    if all.iter().any(|name| name.starts_with("hugepages-"))
        && !(all.contains("cpu") || all.contains("memory"))
    {
        check.forbidden(&field, "HugePages require cpu or memory");
    }
    let mut seen = BTreeSet::new();
    for (index, policy) in container_policies(container).iter().enumerate() {
        let list = field.replace(".resources", ".resizePolicy");
        check.one_of(&list, &policy.1, &["NotRequired", "RestartContainer"]);
        check.one_of(&list, &policy.0, &["cpu", "memory"]);
        if !seen.insert(policy.0.clone()) {
            check.error(Rule::Duplicate, format!("{list}[{index}]"), &policy.0, "");
        }
    }
}

fn container_policies(container: &Container) -> Vec<(String, String)> {
    let policies = container.resize_policy.iter().flatten();
    policies
        .map(|policy| (policy.resource_name.clone(), policy.restart_policy.clone()))
        .collect()
}

fn requirements(
    check: &mut Check,
    field: &str,
    resources: &ResourceRequirements,
    name_rule: &dyn Fn(&mut Check, String, &str),
) {
    for (list, amounts) in [
        ("limits", &resources.limits),
        ("requests", &resources.requests),
    ] {
        for (name, amount) in amounts.iter().flatten() {
            let item = format!("{field}.{list}[{name}]");
            name_rule(check, item.clone(), name);
            amount_of(check, &item, name, amount);
        }
    }
    let limit_of = |name: &str| {
        resources
            .limits
            .iter()
            .flatten()
            .find(|(limited, _)| *limited == name)
    };
    for (name, request) in resources.requests.iter().flatten() {
        let Ok(requested) = Quantity::parse(&request.0) else {
            continue;
        };
        let overcommit = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        match limit_of(name).map(|(_, limit)| (limit, Quantity::parse(&limit.0))) {
            None if !overcommit => check.required(
                format!("{field}.limits"),
                "must be set for resources that cannot be overcommitted",
            ),
            None | Some((_, Err(_))) => {}
            Some((limit, Ok(limited))) => {
                if !overcommit && requested != limited {
                    check.invalid(
                        format!("{field}.requests"),
                        &request.0,
                        format!("must be equal to {name} limit of {}", limit.0),
                    );
                } else if requested > limited {
                    check.invalid(
                        format!("{field}.requests"),
                        &request.0,
                        format!("must be less than or equal to {name} limit of {}", limit.0),
                    );
                }
            }
        }
    }
}

fn amount_of(check: &mut Check, field: &str, name: &str, amount: &ApiQuantity) {
    let quantity = match Quantity::parse(&amount.0) {
        Ok(quantity) => quantity,
        Err(error) => {
            check.invalid(field, &amount.0, error.to_string());
            return;
        }
    };
    if quantity.is_negative() {
        check.invalid(field, &amount.0, "must be greater than or equal to 0");
    }
    if let Some(page) = name
        .strip_prefix("hugepages-")
        .and_then(|size| Quantity::parse(size).ok())
        && page.value() > 0
        && quantity.value() % page.value() != 0
    {
        check.invalid(
            field,
            &amount.0,
            format!(
                "must be a whole multiple of the page size, {} bytes",
                page.value()
            ),
        );
    }
}

/// A resource field reference of a variable or file.
pub(super) fn field_ref(check: &mut Check, field: &str, from: &ResourceFieldSelector, env: bool) {
    if !env
        && from
            .container_name
            .as_deref()
            .unwrap_or_default()
            .is_empty()
    {
        check.required(format!("{field}.containerName"), "");
    } else if from.resource.is_empty() {
        check.required(format!("{field}.resource"), "");
        return;
    }
    let name = from.resource.as_str();
    let plain = [
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ];
    let huge = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if !huge && !from.resource.is_empty() {
        check.one_of(format!("{field}.resource"), name, &plain);
    }
    let divisor = from
        .divisor
        .as_ref()
        .map_or("0", |divisor| divisor.0.as_str());
    let allowed: &[&str] = if name.ends_with(".cpu") {
        &["0", "1m", "1"]
    } else {
        &[
            "0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
        ]
    };
    let known = huge || plain.contains(&name);
    if known && !allowed.contains(&divisor) {
        check.invalid(
            format!("{field}.divisor"),
            divisor,
            format!("must be one of {}", allowed[1..].join(", ")),
        );
    }
}
