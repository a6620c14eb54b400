//! ◆ CronJobs: their defaults and their validation, except for the pods of their Jobs. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/batch/validation/validation.go and pkg/apis/batch/v1/defaults.go.

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec};

use super::super::schedule;
use crate::manifest::validate::{Check, FieldError, Rule, job, metadata};

/// The maximum length of a name: its Jobs' names have a hyphen and ten digits more.
const LONGEST_NAME: usize = 52;

/// Sets absent fields as an API server does.
pub(in crate::manifest) fn apply_defaults(spec: &mut CronJobSpec) {
    if spec.concurrency_policy.as_deref().is_none_or(str::is_empty) {
        spec.concurrency_policy = Some("Allow".to_owned());
    }
    spec.suspend.get_or_insert(false);
    spec.successful_jobs_history_limit.get_or_insert(3);
    spec.failed_jobs_history_limit.get_or_insert(1);
}

/// Validates a defaulted CronJob.
pub(in crate::manifest) fn cron_job(object: &CronJob) -> Vec<FieldError> {
    let mut check = Check::default();
    metadata::check(&mut check, &object.metadata);
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if name.len() > LONGEST_NAME {
        let detail = format!("must be no more than {LONGEST_NAME} characters");
        check.invalid("metadata.name", name, detail);
    }
    let spec = &object.spec;
    times(&mut check, spec);
    let numbers = [
        ("startingDeadlineSeconds", spec.starting_deadline_seconds),
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit.map(i64::from)),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit.map(i64::from)),
    ];
    check.not_negative("spec", &numbers);
    let known = ["Allow", "Forbid", "Replace"];
    check.maybe_one_of("spec.concurrencyPolicy", spec.concurrency_policy.as_deref(), &known);
    if let Some(template) = &spec.job_template.spec {
        let at = "spec.jobTemplate.spec";
        job::spec(&mut check, at, template);
        // `job::spec` has rejected a selector without `manualSelector`.
        if template.manual_selector == Some(true) {
            let detail = "a CronJob generates the selectors of its Jobs: leave it out";
            let field = format!("{at}.manualSelector");
            check.error(Rule::NotSupported, field, "true", detail);
        }
    }
    check.errors
}

fn times(check: &mut Check, spec: &CronJobSpec) {
    let text = spec.schedule.as_str();
    if text.is_empty() {
        check.required("spec.schedule", "such as \"*/5 * * * *\"");
    } else if text.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        check.invalid("spec.schedule", text, detail);
    } else if let Err(error) = schedule::parse(text) {
        check.invalid("spec.schedule", text, error.to_string());
    }
    if let Some(zone) = &spec.time_zone
        && let Err(error) = schedule::zone(Some(zone))
    {
        check.invalid("spec.timeZone", zone, error.to_string());
    }
}
