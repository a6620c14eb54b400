//! ◆ When an Indexed Job has succeeded before all its indexes have: `successPolicy`. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/job/success_policy.go.

use api::manifest::indexes::parse;
use k8s_openapi::api::batch::v1::JobSpec;

use super::super::owned::OwnedPod;
use super::{count, indexes};

/// The message for the first rule that is met.
pub(super) fn met(job: &JobSpec, pods: &[OwnedPod]) -> Option<String> {
    let rules = &job.success_policy.as_ref()?.rules;
    let succeeded = indexes::succeeded(pods);
    if succeeded.is_empty() {
        return None;
    }
    let met = rules.iter().position(|rule| {
        let enough = rule.succeeded_count.map(count);
        match rule.succeeded_indexes.as_deref().map(parse) {
            Some(Some(required)) => {
                let done = required.intersection(&succeeded).count();
                done == required.len() || enough.is_some_and(|enough| done >= enough)
            }
            Some(None) => false,
            None => enough.is_some_and(|enough| succeeded.len() >= enough),
        }
    });
    met.map(|index| format!("Matched rules at index {index}"))
}
