//! Requests and limits.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceFieldSelector, ResourceRequirements};

use crate::manifest::validate::{Check, Rule, claims, names};
use crate::quantity::{self, Quantity};
use crate::totals::{self, Amounts, Kind, amount};

/// The rule that a resource's name violates, and what was expected.
type NameRule = fn(&str) -> Option<(Rule, &'static str)>;

/// Pod-level resources of the pod, and its overhead.
pub(crate) fn of_pod(check: &mut Check, spec: &PodSpec) {
    if let Some(overhead) = &spec.overhead {
        let overhead = ResourceRequirements {
            limits: Some(overhead.clone()),
            ..ResourceRequirements::default()
        };
        self::overhead(check, "spec.overhead", &overhead);
    }
    let Some(resources) = &spec.resources else {
        return;
    };
    let field = "spec.resources";
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        check.forbidden(field, "may not be set for a windows pod");
        return;
    }
    if let Some(used) = &resources.claims {
        let list = format!("{field}.claims");
        check.forbidden(&list, "claims may not be set for Resources at pod-level");
        claims::used(check, &list, used, spec);
    }
    requirements(check, field, resources, pod_name);
    consistency(check, spec, resources);
}

/// The overhead of pods, as limits.
pub(crate) fn overhead(check: &mut Check, field: &str, limits: &ResourceRequirements) {
    requirements(check, field, limits, container_name);
}

/// Pod-level resources must not be less than those of the containers.
fn consistency(check: &mut Check, spec: &PodSpec, resources: &ResourceRequirements) {
    for (kind, list) in [(Kind::Requests, "requests"), (Kind::Limits, "limits")] {
        for (name, sum) in totals::of_containers(spec, kind) {
            let own = kind.of(Some(resources)).and_then(|own| own.get(&name));
            let counts = kind == Kind::Requests || is_huge_page(&name);
            if let Some(own) = own.filter(|own| counts && amount(&sum) > amount(own)) {
                check.invalid(
                    format!("spec.resources.{list}[{name}]"),
                    &own.0,
                    format!(
                        "must be greater than or equal to the {list} of all containers, {}",
                        sum.0
                    ),
                );
            }
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let limits = Kind::Limits.of(container.resources.as_ref());
        for (name, limit) in limits.into_iter().flatten() {
            let own = resources.limits.as_ref().and_then(|own| own.get(name));
            if let Some(own) = own.filter(|own| amount(limit) > amount(own)) {
                check.invalid(
                    // The path as in the API server.
                    format!("spec.resources.containers[{index}][{name}].limits"),
                    &limit.0,
                    format!("must be less than or equal to pod limits of {}", own.0),
                );
            }
        }
    }
}

/// Resources of a container, and its resize policy.
pub(crate) fn of_container(check: &mut Check, field: &str, container: &Container, spec: &PodSpec) {
    if let Some(resources) = &container.resources {
        let field = format!("{field}.resources");
        requirements(check, &field, resources, container_name);
        let used = resources.claims.as_deref().unwrap_or_default();
        claims::used(check, &format!("{field}.claims"), used, spec);
    }
    let list = format!("{field}.resizePolicy");
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    for (index, policy) in policies.iter().enumerate() {
        let resource = policy.resource_name.as_str();
        let earlier = policies.iter().take(index);
        if earlier.into_iter().any(|earlier| earlier.resource_name == resource) {
            check.error(Rule::Duplicate, format!("{list}[{index}]"), resource, "");
        }
        let restart = policy.restart_policy.as_str();
        let known: [(&str, &[&str]); 2] =
            [(resource, &["cpu", "memory"]), (restart, &["NotRequired", "RestartContainer"])];
        for (value, known) in known {
            if value.is_empty() {
                check.required(&list, "");
            } else {
                check.one_of(&list, value, known);
            }
        }
        if spec.restart_policy.as_deref() == Some("Never") && restart != "NotRequired" {
            let detail = "must be NotRequired when the pod's `restartPolicy` is Never";
            check.invalid(&list, restart, detail);
        }
    }
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a name belongs to Kubernetes.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a name is that of a device plugin's resource.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified(&format!("requests.{name}")).is_none()
}

fn container_name(name: &str) -> Option<(Rule, &'static str)> {
    if let Some(expected) = names::qualified(name) {
        return Some((Rule::Invalid, expected));
    }
    let known = if name.contains('/') {
        is_native(name) || is_extended(name)
    } else {
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name)
    };
    let expected =
        "must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a domain";
    (!known).then_some((Rule::Invalid, expected))
}

/// The names that are also valid in a namespace's quota.
const STANDARD: &str = "cpu memory ephemeral-storage requests.cpu requests.memory requests.ephemeral-storage \
    limits.cpu limits.memory limits.ephemeral-storage pods resourcequotas services \
    replicationcontrollers secrets configmaps persistentvolumeclaims storage \
    requests.storage services.nodeports services.loadbalancers";

fn pod_name(name: &str) -> Option<(Rule, &'static str)> {
    if let Some(expected) = names::qualified(name) {
        return Some((Rule::Invalid, expected));
    }
    let huge = is_huge_page(name) || name.starts_with("requests.hugepages-");
    let expected = "expected one of cpu, memory, hugepages-<size>";
    if !name.contains('/') && !names::is_among(STANDARD, name) && !huge {
        return Some((Rule::Invalid, expected));
    }
    (!totals::is_for_pods(name)).then_some((Rule::NotSupported, expected))
}

fn requirements(
    check: &mut Check,
    field: &str,
    resources: &ResourceRequirements,
    name_rule: NameRule,
) {
    let lists: [(&str, Option<&Amounts>); 2] =
        [("limits", resources.limits.as_ref()), ("requests", resources.requests.as_ref())];
    let names = || {
        let all = lists.iter().filter_map(|(_, amounts)| *amounts).flatten();
        all.map(|(name, _)| name.as_str())
    };
    for (list, amounts) in lists {
        for (name, given) in amounts.into_iter().flatten() {
            let item = format!("{field}.{list}[{name}]");
            if let Some((rule, expected)) = name_rule(name) {
                check.error(rule, &item, name, expected);
            }
            amount_of(check, &item, name, &given.0);
        }
    }
    for (name, request) in resources.requests.iter().flatten() {
        let overcommit = is_native(name) && !is_huge_page(name);
        let limit = resources.limits.as_ref().and_then(|limits| limits.get(name));
        match limit {
            None if !overcommit => check.required(
                format!("{field}.limits"),
                "must be set for resources that cannot be overcommitted",
            ),
            None => {}
            Some(limit) => {
                let expected = if amount(request) != amount(limit) && !overcommit {
                    "equal to"
                } else if amount(request) > amount(limit) {
                    "less than or equal to"
                } else {
                    continue;
                };
                let detail = format!("must be {expected} {name} limit of {}", limit.0);
                check.invalid(format!("{field}.requests"), &request.0, detail);
            }
        }
    }
    if names().any(is_huge_page) && !names().any(|name| matches!(name, "cpu" | "memory")) {
        check.forbidden(field, "HugePages require cpu or memory");
    }
}

/// The resources that are whole numbers.
const COUNTED: &str = "pods resourcequotas services replicationcontrollers secrets configmaps \
    persistentvolumeclaims services.nodeports services.loadbalancers";

fn amount_of(check: &mut Check, field: &str, name: &str, text: &str) {
    let quantity = match Quantity::parse(text) {
        Ok(quantity) => quantity,
        Err(error) => {
            check.invalid(field, text, error.to_string());
            return;
        }
    };
    if quantity.is_negative() {
        check.invalid(field, text, "must be greater than or equal to 0");
    }
    let is_whole = quantity.milli_value() % 1000 == 0;
    if (names::is_among(COUNTED, name) || is_extended(name)) && !is_whole {
        check.invalid(field, text, "must be an integer");
    }
    if let Some(size) = name.strip_prefix("hugepages-")
        && !is_multiple(quantity, size)
    {
        let detail = format!("must be a whole multiple of the page size, {size}");
        check.invalid(field, text, detail);
    }
}

fn is_multiple(quantity: Quantity, page_size: &str) -> bool {
    Quantity::parse(page_size).is_ok_and(|page| {
        page.value() > 0 && page.milli_value() % 1000 == 0 && quantity.value() % page.value() == 0
    })
}

/// A resource field reference of a variable or file.
pub(crate) fn field_ref(check: &mut Check, field: &str, from: &ResourceFieldSelector, env: bool) {
    let name = from.resource.as_str();
    let container = from.container_name.as_deref().unwrap_or_default();
    let plain = [
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ];
    let huge = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if !env && container.is_empty() {
        check.required(format!("{field}.containerName"), "");
    } else if name.is_empty() {
        check.required(format!("{field}.resource"), "");
    } else if !huge {
        check.one_of(format!("{field}.resource"), name, &plain);
    }
    let Some(divisor) = from.divisor.as_ref().filter(|divisor| !amount(divisor).is_zero()) else {
        return;
    };
    let allowed: &[&str] = if name.ends_with(".cpu") {
        &["1m", "1"]
    } else {
        &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"]
    };
    let text = quantity::canonical(&divisor.0).map_or_else(|_| divisor.0.clone(), |it| it.text);
    if (huge || plain.contains(&name)) && !allowed.contains(&text.as_str()) {
        let detail = format!("must be one of {}", allowed.join(", "));
        check.invalid(format!("{field}.divisor"), text, detail);
    }
}
