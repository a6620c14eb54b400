//! ◆ Jobs: their defaults and their validation. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/batch/validation/validation.go and pkg/apis/batch/v1/defaults.go.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec, PodFailurePolicyRule, SuccessPolicyRule};
use k8s_openapi::api::core::v1::PodSpec;

use crate::manifest::validate::{Check, FieldError, Rule, metadata, names, selectors};
use crate::selector;

/// The maximum number of indexes of an Indexed Job with policies for single indexes.
const MOST_INDEXES: i64 = 100_000;

/// Sets absent fields as an API server does.
pub(in crate::manifest) fn apply_defaults(job: &mut JobSpec) {
    if job.completions.is_none() && job.parallelism.is_none() {
        job.completions = Some(1);
    }
    job.parallelism.get_or_insert(1);
    job.completion_mode.get_or_insert_with(|| "NonIndexed".to_owned());
    job.suspend.get_or_insert(false);
    for rule in job.pod_failure_policy.iter_mut().flat_map(|policy| &mut policy.rules) {
        for pattern in rule.on_pod_conditions.iter_mut().flatten() {
            pattern.status.get_or_insert_with(|| "True".to_owned());
        }
    }
}

/// Removes the selector that a cluster's Job controller generated, as `kubectl get -o yaml` prints it: each Job gets its own.
/// Returns whether there was one.
pub(in crate::manifest) fn remove_generated_selector(job: &mut JobSpec) -> bool {
    let generated = ["batch.kubernetes.io/controller-uid", "controller-uid"];
    let is_generated = job.selector.as_ref().is_some_and(|selector| {
        let mut pairs = selector.match_labels.iter().flatten();
        let no_expressions = selector.match_expressions.iter().flatten().next().is_none();
        let is_given = !selector::is_empty(selector);
        is_given && no_expressions && pairs.all(|(key, _)| generated.contains(&key.as_str()))
    });
    let is_removed = is_generated && job.manual_selector != Some(true);
    if is_removed {
        job.selector = None;
    }
    is_removed
}

/// Checks a selector that the author chose.
fn manual_selector(check: &mut Check, spec: &JobSpec) {
    let Some(wanted) = &spec.selector else {
        return check.required("spec.selector", "because manualSelector is true");
    };
    let none = BTreeMap::new();
    let metadata = spec.template.metadata.as_ref();
    let labels = metadata.and_then(|metadata| metadata.labels.as_ref()).unwrap_or(&none);
    selectors::labels(check, "spec.selector", Some(wanted));
    if !selector::matches_selector(wanted, labels) {
        let detail = "`selector` does not match template `labels`";
        check.invalid("spec.template.metadata.labels", "", detail);
    }
}

/// Validates a defaulted Job, except for its template.
pub(in crate::manifest) fn job(job: &Job) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &job.metadata);
    let none = JobSpec::default();
    let spec = job.spec.as_ref().unwrap_or(&none);
    self::spec(&mut check, "spec", spec);
    if spec.manual_selector == Some(true) {
        manual_selector(&mut check, spec);
    }
    let name = job.metadata.name.as_deref().unwrap_or_default();
    if spec.manual_selector != Some(true) && (64..=253).contains(&name.len()) {
        let detail = "must be no more than 63 characters, because it is a label of the pods";
        check.invalid("metadata.name", name, detail);
    } else if is_indexed(spec)
        && let Some(completions) = spec.completions.filter(|completions| *completions > 0)
    {
        // Each pod's host name is the Job's name with its index.
        let longest = format!("{name}-{}", completions - 1);
        if names::dns_subdomain(name).is_none()
            && let Some(expected) = names::dns_label(&longest)
        {
            check.invalid(
                "metadata.name",
                longest,
                format!("invalid as the host name of a pod: {expected}"),
            );
        }
    }
    check.errors
}

fn is_indexed(job: &JobSpec) -> bool {
    job.completion_mode.as_deref() == Some("Indexed")
}

/// The fields of a Job, which is at `at`.
pub(super) fn spec(check: &mut Check, at: &str, job: &JobSpec) {
    let field = |name: &str| format!("{at}.{name}");
    let numbers = [
        ("parallelism", job.parallelism.map(i64::from)),
        ("completions", job.completions.map(i64::from)),
        ("activeDeadlineSeconds", job.active_deadline_seconds),
        ("backoffLimit", job.backoff_limit.map(i64::from)),
        ("backoffLimitPerIndex", job.backoff_limit_per_index.map(i64::from)),
        ("maxFailedIndexes", job.max_failed_indexes.map(i64::from)),
        ("ttlSecondsAfterFinished", job.ttl_seconds_after_finished.map(i64::from)),
    ];
    check.not_negative(at, &numbers);
    let known = ["Indexed", "NonIndexed"];
    check.maybe_one_of(field("completionMode"), job.completion_mode.as_deref(), &known);
    check.maybe_one_of(
        field("podReplacementPolicy"),
        job.pod_replacement_policy.as_deref(),
        &["Failed", "TerminatingOrFailed"],
    );
    let spec = job.template.spec.as_ref();
    let policy = spec.and_then(|spec: &PodSpec| spec.restart_policy.as_deref());
    let known = ["OnFailure", "Never"];
    check.one_of(field("template.spec.restartPolicy"), policy.unwrap_or_default(), &known);
    if job.selector.is_some() && job.manual_selector != Some(true) {
        check.forbidden(field("selector"), "the controller sets it");
    }
    if job.managed_by.as_deref().is_some_and(|by| by != "kubernetes.io/job-controller") {
        check.forbidden(field("managedBy"), "crib has only the built-in Job controller");
    }
    indexes(check, at, job);
    policies(check, at, job, policy == Some("Never"));
}

/// Checks the fields about a Job's indexes.
fn indexes(check: &mut Check, at: &str, job: &JobSpec) {
    let field = |name: &str| format!("{at}.{name}");
    if is_indexed(job) {
        if job.completions.is_none() {
            let why = "when completion mode is Indexed";
            check.required(field("completions"), why);
        }
        let parallelism = i64::from(job.parallelism.unwrap_or_default());
        if parallelism > MOST_INDEXES {
            let detail = format!(
                "must be less than or equal to {MOST_INDEXES} when completion mode is Indexed"
            );
            check.invalid(field("parallelism"), parallelism, detail);
        }
        let completions = i64::from(job.completions.unwrap_or_default());
        if completions > MOST_INDEXES && job.backoff_limit_per_index.is_some() {
            let detail = format!(
                "must be less than or equal to {MOST_INDEXES} when backoffLimitPerIndex is set"
            );
            check.invalid(field("completions"), completions, detail);
        }
    } else {
        let needs = [
            ("backoffLimitPerIndex", job.backoff_limit_per_index.is_some()),
            ("successPolicy", job.success_policy.is_some()),
        ];
        for (name, _) in needs.into_iter().filter(|(_, is_set)| *is_set) {
            check.invalid(field(name), "", "requires indexed completion mode");
        }
    }
    if job.max_failed_indexes.is_some() && job.backoff_limit_per_index.is_none() {
        let why = "when maxFailedIndexes is specified";
        check.required(field("backoffLimitPerIndex"), why);
    }
}

fn policies(check: &mut Check, at: &str, job: &JobSpec, is_never_restarted: bool) {
    if let Some(policy) = &job.pod_failure_policy {
        let field = format!("{at}.podFailurePolicy");
        if !is_never_restarted {
            let detail = "only \"Never\" is supported with a podFailurePolicy";
            check.invalid(format!("{at}.template.spec.restartPolicy"), "", detail);
        }
        if job.pod_replacement_policy.as_deref() == Some("TerminatingOrFailed") {
            let detail = "only \"Failed\" is supported with a podFailurePolicy";
            check.invalid(format!("{at}.podReplacementPolicy"), "TerminatingOrFailed", detail);
        }
        if policy.rules.len() > 20 {
            let detail = "must have at most 20 items";
            check.error(Rule::TooMany, format!("{field}.rules"), "", detail);
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            failure_rule(check, &format!("{field}.rules[{index}]"), job, rule);
        }
    }
    if let Some(policy) = &job.success_policy {
        let field = format!("{at}.successPolicy.rules");
        match policy.rules.len() {
            0 => check.required(field.clone(), "at least one rule must be specified"),
            1..=20 => {}
            _ => check.error(Rule::TooMany, field.clone(), "", "must have at most 20 items"),
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            success_rule(check, &format!("{field}[{index}]"), job, rule);
        }
    }
}

fn failure_rule(check: &mut Check, field: &str, job: &JobSpec, rule: &PodFailurePolicyRule) {
    let known = ["Count", "FailIndex", "FailJob", "Ignore"];
    check.one_of(format!("{field}.action"), &rule.action, &known);
    if rule.action == "FailIndex" && job.backoff_limit_per_index.is_none() {
        let detail = "requires the backoffLimitPerIndex to be set";
        check.invalid(format!("{field}.action"), "FailIndex", detail);
    }
    match (&rule.on_exit_codes, &rule.on_pod_conditions) {
        (Some(_), Some(patterns)) if !patterns.is_empty() => {
            let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
            check.invalid(field, "", detail);
        }
        (None, patterns) if patterns.as_ref().is_none_or(Vec::is_empty) => {
            let detail = "specifying one of OnExitCodes and OnPodConditions is required";
            check.invalid(field, "", detail);
        }
        _ => {}
    }
    if let Some(codes) = &rule.on_exit_codes {
        let field = format!("{field}.onExitCodes");
        check.one_of(format!("{field}.operator"), &codes.operator, &["In", "NotIn"]);
        let spec = job.template.spec.as_ref();
        let known = |name: &String| {
            let of = |spec: &PodSpec| {
                let inits = spec.init_containers.iter().flatten();
                inits.chain(&spec.containers).any(|container| container.name == *name)
            };
            spec.is_some_and(of)
        };
        if let Some(name) = codes.container_name.as_ref().filter(|name| !known(name)) {
            let detail = "must be one of the container or initContainer names in the pod template";
            check.invalid(format!("{field}.containerName"), name, detail);
        }
        match codes.values.len() {
            0 => check.invalid(format!("{field}.values"), "", "at least one value is required"),
            1..=255 => {}
            _ => check.error(
                Rule::TooMany,
                format!("{field}.values"),
                "",
                "must have at most 255 items",
            ),
        }
        if !codes.values.is_sorted() {
            let values: Vec<String> = codes.values.iter().map(i32::to_string).collect();
            check.invalid(format!("{field}.values"), values.join(", "), "must be ordered");
        }
        for (index, code) in codes.values.iter().enumerate() {
            let place = format!("{field}.values[{index}]");
            if codes.values.iter().take(index).any(|other| other == code) {
                check.error(Rule::Duplicate, place, code, "");
            } else if *code == 0 && codes.operator == "In" {
                check.invalid(place, code, "must not be 0 for the In operator");
            }
        }
    }
    for (index, pattern) in rule.on_pod_conditions.iter().flatten().enumerate() {
        let field = format!("{field}.onPodConditions[{index}]");
        check.formed(format!("{field}.type"), &pattern.type_, names::qualified);
        let known = ["False", "True", "Unknown"];
        check.maybe_one_of(format!("{field}.status"), pattern.status.as_deref(), &known);
    }
}

fn success_rule(check: &mut Check, field: &str, job: &JobSpec, rule: &SuccessPolicyRule) {
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        check.required(field, detail);
    }
    let completions = job.completions.unwrap_or_default();
    if let Some(count) = rule.succeeded_count.filter(|count| !(1..=completions).contains(count)) {
        let detail = format!("must be between 1 and {completions}, the specified completions");
        check.invalid(format!("{field}.succeededCount"), count, detail);
    }
    if let Some(text) = &rule.succeeded_indexes {
        let parsed = super::super::indexes::parse(text);
        let all = u32::try_from(completions).unwrap_or_default();
        if parsed.is_none_or(|indexes| indexes.iter().any(|index| *index >= all)) {
            let detail = format!("must be indexes below {all} in rising order, such as 0,2-4");
            check.invalid(format!("{field}.succeededIndexes"), text, detail);
        }
    }
}
