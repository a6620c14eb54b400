//! Where a pod may run: node selector, affinity, tolerations, topology spread, scheduling gates.

use compact::Set;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::manifest::validate::{Check, Rule, names, selectors};

/// The scheduling constraints of a pod.
pub(crate) fn check(check: &mut Check, spec: &PodSpec) {
    check.keys("spec.nodeSelector", spec.node_selector.iter().flatten(), true);
    if let Some(affinity) = &spec.affinity {
        self::affinity(check, affinity);
    }
    tolerations(check, "spec.tolerations", spec.tolerations.as_deref().unwrap_or_default());
    spread(check, spec.topology_spread_constraints.as_deref().unwrap_or_default());
    gates(check, spec);
    if let Some(policy) = spec.preemption_policy.as_deref() {
        let field = "spec.preemptionPolicy";
        if policy.is_empty() {
            check.required(field, "");
        } else {
            check.one_of(field, policy, &["PreemptLowerPriority", "Never"]);
        }
    }
    if let Some(group) = &spec.scheduling_group {
        let field = "spec.schedulingGroup.podGroupName";
        match group.pod_group_name.as_deref() {
            Some(name) => check.formed(field, name, names::dns_subdomain),
            None => check.invalid(field, "", "must be given"),
        }
    }
}

fn gates(check: &mut Check, spec: &PodSpec) {
    let gates = spec.scheduling_gates.as_deref().unwrap_or_default();
    let mut seen = Set::new();
    for (index, gate) in gates.iter().enumerate() {
        let field = format!("spec.schedulingGates[{index}]");
        check.formed(&field, &gate.name, names::qualified);
        crate::manifest::validate::duplicate(check, &mut seen, field, &gate.name);
    }
    let node = spec.node_name.as_deref().unwrap_or_default();
    if !gates.is_empty() && !node.is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        check.forbidden("spec.nodeName", detail);
    }
}

fn affinity(check: &mut Check, affinity: &Affinity) {
    if let Some(node) = &affinity.node_affinity {
        node_affinity(check, node);
    }
    let (with, without) = (&affinity.pod_affinity, &affinity.pod_anti_affinity);
    let terms = [
        (
            "podAffinity",
            with.as_ref().map(|with| {
                (
                    &with.required_during_scheduling_ignored_during_execution,
                    &with.preferred_during_scheduling_ignored_during_execution,
                )
            }),
        ),
        (
            "podAntiAffinity",
            without.as_ref().map(|without| {
                (
                    &without.required_during_scheduling_ignored_during_execution,
                    &without.preferred_during_scheduling_ignored_during_execution,
                )
            }),
        ),
    ];
    for (name, terms) in terms {
        let Some((required, preferred)) = terms else {
            continue;
        };
        let field = format!("spec.affinity.{name}");
        let list = format!("{field}.requiredDuringSchedulingIgnoredDuringExecution");
        for (index, term) in required.iter().flatten().enumerate() {
            pod_term(check, &format!("{list}[{index}]"), term);
        }
        let list = format!("{field}.preferredDuringSchedulingIgnoredDuringExecution");
        for (index, term) in preferred.iter().flatten().enumerate() {
            weighted_term(check, &format!("{list}[{index}]"), term);
        }
    }
}

fn node_affinity(check: &mut Check, affinity: &NodeAffinity) {
    let field = "spec.affinity.nodeAffinity";
    if let Some(selector) = &affinity.required_during_scheduling_ignored_during_execution {
        let list =
            format!("{field}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        if selector.node_selector_terms.is_empty() {
            check.required(&list, "must have at least one node selector term");
        }
        for (index, term) in selector.node_selector_terms.iter().enumerate() {
            selectors::node_term(check, &format!("{list}[{index}]"), term, false);
        }
    }
    let preferred = &affinity.preferred_during_scheduling_ignored_during_execution;
    for (index, term) in preferred.iter().flatten().enumerate() {
        let field = format!("{field}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
        weight(check, &field, term.weight);
        let preference = format!("{field}.preference");
        selectors::node_term(check, &preference, &term.preference, true);
    }
}

fn weight(check: &mut Check, field: &str, weight: i32) {
    check.range(format!("{field}.weight"), i64::from(weight), 1, 100);
}

fn weighted_term(check: &mut Check, field: &str, term: &WeightedPodAffinityTerm) {
    weight(check, field, term.weight);
    let term_field = format!("{field}.podAffinityTerm");
    pod_term(check, &term_field, &term.pod_affinity_term);
}

fn pod_term(check: &mut Check, field: &str, term: &PodAffinityTerm) {
    let selector = term.label_selector.as_ref();
    selectors::labels(check, &format!("{field}.labelSelector"), selector);
    selectors::labels(
        check,
        &format!("{field}.namespaceSelector"),
        term.namespace_selector.as_ref(),
    );
    for name in term.namespaces.iter().flatten() {
        check.formed(format!("{field}.namespace"), name, names::dns_label);
    }
    label_keys(
        check,
        field,
        term.match_label_keys.as_deref().unwrap_or_default(),
        term.mismatch_label_keys.as_deref().unwrap_or_default(),
        selector,
    );
    let key = format!("{field}.topologyKey");
    if term.topology_key.is_empty() {
        check.required(&key, "must not be empty");
    }
    check.formed(key, &term.topology_key, names::qualified);
}

/// Keys whose values are taken from the pod's own labels.
fn label_keys(
    check: &mut Check,
    field: &str,
    matching: &[String],
    mismatching: &[String],
    selector: Option<&LabelSelector>,
) {
    for (name, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        let list = format!("{field}.{name}");
        if selector.is_none() {
            if !keys.is_empty() {
                check.forbidden(list, "must not be specified when labelSelector is not set");
            }
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            check.formed(format!("{list}[{index}]"), key, names::qualified);
        }
    }
    if let Some(selector) = selector {
        let mut seen: Set<&str> =
            selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).collect();
        for wanted in selector.match_expressions.iter().flatten() {
            let is_repeated = !seen.insert(&wanted.key);
            if let Some(index) = matching.iter().rposition(|key| *key == wanted.key)
                && is_repeated
            {
                let detail = "exists in both matchLabelKeys and labelSelector";
                check.invalid(format!("{field}[{index}]"), &wanted.key, detail);
            }
        }
    }
    for (index, key) in matching.iter().enumerate() {
        if mismatching.contains(key) {
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            check.invalid(format!("{field}.matchLabelKeys[{index}]"), key, detail);
        }
    }
}

fn spread(check: &mut Check, constraints: &[TopologySpreadConstraint]) {
    for (index, constraint) in constraints.iter().enumerate() {
        let field = format!("spec.topologySpreadConstraints[{index}]");
        positive(check, format!("{field}.maxSkew"), constraint.max_skew);
        if constraint.topology_key.is_empty() {
            check.required(format!("{field}.topologyKey"), "must not be empty");
        }
        let action = constraint.when_unsatisfiable.as_str();
        let known = ["DoNotSchedule", "ScheduleAnyway"];
        check.one_of(format!("{field}.whenUnsatisfiable"), action, &known);
        let kind = (&constraint.topology_key, &constraint.when_unsatisfiable);
        let later = constraints.iter().skip(index + 1);
        if later.into_iter().any(|other| (&other.topology_key, &other.when_unsatisfiable) == kind) {
            check.error(
                Rule::Duplicate,
                format!("{field}.{{topologyKey, whenUnsatisfiable}}"),
                format!("{{{}, {action}}}", constraint.topology_key),
                "",
            );
        }
        if let Some(domains) = constraint.min_domains {
            let field = format!("{field}.minDomains");
            positive(check, field.clone(), domains);
            if action != "DoNotSchedule" {
                let detail = "can only be used if whenUnsatisfiable is DoNotSchedule";
                check.invalid(field, domains, detail);
            }
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            let field = format!("{field}.{name}");
            check.maybe_one_of(field, policy.as_deref(), &["Honor", "Ignore"]);
        }
        let selector = constraint.label_selector.as_ref();
        let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
        label_keys(check, &field, keys, &[], selector);
        selectors::labels(check, &format!("{field}.labelSelector"), selector);
    }
}

fn positive(check: &mut Check, field: String, number: i32) {
    if number <= 0 {
        check.invalid(field, number, "must be greater than zero");
    }
}

/// Tolerations, of the spec or of an annotation.
pub(crate) fn tolerations(check: &mut Check, field: &str, tolerations: &[Toleration]) {
    for (index, toleration) in tolerations.iter().enumerate() {
        self::toleration(check, &format!("{field}[{index}]"), toleration);
    }
}

fn toleration(check: &mut Check, field: &str, toleration: &Toleration) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (key, operator, effect) =
        (text(&toleration.key), text(&toleration.operator), text(&toleration.effect));
    if !key.is_empty() {
        check.formed(format!("{field}.key"), &key, names::qualified);
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty";
        check.invalid(format!("{field}.operator"), &operator, detail);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "must be NoExecute when `tolerationSeconds` is set";
        check.invalid(format!("{field}.effect"), &effect, detail);
    }
    let value = text(&toleration.value);
    match operator.as_str() {
        "" | "Equal" => check.formed(format!("{field}.operator"), &value, names::label_value),
        "Exists" => {
            if !value.is_empty() {
                let detail = "value must be empty when `operator` is Exists";
                check.invalid(format!("{field}.operator"), value, detail);
            }
        }
        other => check.one_of(format!("{field}.operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        check.one_of(format!("{field}.effect"), &effect, &known);
    }
}
