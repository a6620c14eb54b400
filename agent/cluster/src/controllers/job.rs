//! ◆ Plans a Job: pods until enough have succeeded or too many have failed. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/job/job_controller.go.

mod failure;
mod indexes;
mod success;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobSpec;

use super::backoff;
use super::owned::{Action, Outcome, OwnedPod, Plan, Reason, earlier};
use failure::Verdict;

/// The delay after the first failed pod.
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(10);
/// The maximum delay between failed pods.
const LONGEST_DELAY: SignedDuration = SignedDuration::from_mins(10);

/// The numbers of a Job's succeeded and failed pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Succeeded pods; for an Indexed Job, succeeded indexes.
    pub succeeded: usize,
    /// Pods that failed without a rule that ignores it, or that ran when their Job failed.
    pub failed: usize,
}

/// Counts the ended pods.
#[must_use]
pub fn counts(job: &JobSpec, pods: &[OwnedPod]) -> JobCounts {
    let succeeded = if is_indexed(job) {
        indexes::succeeded(pods).len()
    } else {
        pods.iter().filter(|pod| pod.has_succeeded()).count()
    };
    let failed = pods.iter().filter(|pod| pod.has_failed());
    let failed = failed.filter(|pod| failure::verdict(job, pod) != Verdict::Ignored);
    // Kubernetes 1.36, trackJobStatusAndRemoveFinalizers: rules do not apply to pods that ran until then.
    let ended = pods.iter().filter(|pod| pod.failed_with_job);
    JobCounts { succeeded, failed: failed.count() + ended.count() }
}

/// Plans a Job that began at `started` and has these pods; at most `capacity` new ones start now.
pub fn plan(
    job: &JobSpec,
    started: Timestamp,
    pods: &[OwnedPod],
    capacity: usize,
    now: Timestamp,
) -> Plan {
    let counts = counts(job, pods);
    let deadline = job
        .active_deadline_seconds
        .filter(|_| !is_suspended(job))
        .and_then(|seconds| started.checked_add(SignedDuration::from_secs(seconds)).ok());
    if let Some(reason) = failed(job, pods, counts, deadline, now) {
        return Plan::over(pods, "its job failed", Outcome::Failed(reason));
    }
    if let Some(message) = success::met(job, pods) {
        let reason = Reason::new("SuccessPolicy", message);
        return Plan::over(pods, "its job succeeded", Outcome::Complete(reason));
    }
    let active = pods.iter().filter(|pod| pod.is_active()).count();
    let is_complete = match job.completions {
        // One succeeded pod means that the work is done; the others end by themselves.
        None => counts.succeeded > 0 && active == 0,
        Some(completions) => counts.succeeded >= count(completions),
    };
    if is_complete {
        let message = "Reached expected number of succeeded pods";
        let reason = Reason::new("CompletionsReached", message);
        return Plan::over(pods, "its job is complete", Outcome::Complete(reason));
    }
    let mut plan = manage(job, counts, active, pods, capacity, now);
    plan.again = earlier(plan.again, deadline);
    plan
}

/// Why the Job has failed.
fn failed(
    job: &JobSpec,
    pods: &[OwnedPod],
    counts: JobCounts,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> Option<Reason> {
    let rule = pods.iter().filter(|pod| pod.has_failed()).find_map(|pod| {
        match failure::verdict(job, pod) {
            Verdict::JobFails(message) => Some(message),
            Verdict::Counted | Verdict::Ignored | Verdict::IndexFails => None,
        }
    });
    if let Some(message) = rule {
        return Some(Reason::new("PodFailurePolicy", message));
    }
    if counts.failed > backoff_limit(job) || failure::restarted_too_often(job, pods) {
        let message = "Job has reached the specified backoff limit";
        return Some(Reason::new("BackoffLimitExceeded", message));
    }
    if deadline.is_some_and(|deadline| deadline <= now) {
        let message = "Job was active longer than specified deadline";
        return Some(Reason::new("DeadlineExceeded", message));
    }
    if !is_indexed(job) || job.backoff_limit_per_index.is_none() {
        return None;
    }
    let failed = indexes::failed(job, pods).len();
    let most = job.max_failed_indexes.map(count);
    if most.is_some_and(|most| failed > most) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return Some(Reason::new("MaxFailedIndexesExceeded", message));
    }
    let all = count(job.completions.unwrap_or_default());
    (failed > 0 && failed + counts.succeeded >= all)
        .then(|| Reason::new("FailedIndexes", "Job has failed indexes"))
}

/// Creates missing pods and deletes superfluous ones.
fn manage(
    job: &JobSpec,
    counts: JobCounts,
    active: usize,
    pods: &[OwnedPod],
    capacity: usize,
    now: Timestamp,
) -> Plan {
    if is_suspended(job) {
        return Plan::over(pods, "its job is suspended", Outcome::Open);
    }
    let parallelism = count(job.parallelism.unwrap_or(1));
    let wanted = match job.completions {
        None if counts.succeeded > 0 => active,
        None => parallelism,
        Some(completions) => count(completions).saturating_sub(counts.succeeded).min(parallelism),
    };
    if active > wanted {
        let youngest = pods.iter().rev().filter(|pod| pod.is_active());
        let surplus = youngest.take(active - wanted);
        let surplus = surplus.map(|pod| pod.delete("its job has enough pods"));
        return Plan::open(surplus.collect(), None);
    }
    let missing = wanted - active;
    if missing == 0 {
        return Plan::open(Vec::new(), None);
    }
    if job.backoff_limit_per_index.is_none() {
        let (failures, last) = failures_in_a_row(pods.iter());
        let until = backoff::until(failures, last, FIRST_DELAY, LONGEST_DELAY, now);
        if until.is_some() {
            return Plan::open(Vec::new(), until);
        }
    }
    let placed = missing.min(capacity);
    let unplaced = missing - placed;
    if !is_indexed(job) {
        let create = (0..placed).map(|_| Action::Create(None));
        return Plan { unplaced, ..Plan::open(create.collect(), None) };
    }
    let pending = indexes::pending(job, pods, placed);
    let (mut create, mut again) = (Vec::new(), None);
    for index in pending {
        let until = if job.backoff_limit_per_index.is_some() {
            let own = pods.iter().filter(|pod| pod.index == Some(index));
            let failed: Vec<&OwnedPod> = own.filter(|pod| pod.has_failed()).collect();
            let last = failed.iter().filter_map(|pod| pod.ended).max();
            backoff::until(failed.len(), last, FIRST_DELAY, LONGEST_DELAY, now)
        } else {
            None
        };
        match until {
            Some(_) => again = earlier(again, until),
            None => create.push(Action::Create(Some(index))),
        }
    }
    Plan { unplaced, ..Plan::open(create, again) }
}

/// The number of pods that failed since the last success, and the time of the last failure.
fn failures_in_a_row<'a>(pods: impl Iterator<Item = &'a OwnedPod>) -> (usize, Option<Timestamp>) {
    let (mut failures, mut succeeded) = (Vec::new(), None);
    for pod in pods {
        if pod.has_succeeded() {
            succeeded = succeeded.max(pod.ended);
        } else if pod.has_failed() {
            failures.extend(pod.ended);
        }
    }
    failures.retain(|ended| succeeded.is_none_or(|succeeded| *ended > succeeded));
    (failures.len(), failures.iter().max().copied())
}

fn is_indexed(job: &JobSpec) -> bool {
    job.completion_mode.as_deref() == Some("Indexed")
}

/// Whether it has no pods until its manifest changes.
#[must_use]
pub fn is_suspended(job: &JobSpec) -> bool {
    job.suspend == Some(true)
}

/// `spec.backoffLimit`: 6 if absent, and unlimited with a limit per index.
fn backoff_limit(job: &JobSpec) -> usize {
    match job.backoff_limit {
        Some(limit) => count(limit),
        None if job.backoff_limit_per_index.is_some() => usize::MAX,
        None => 6,
    }
}

/// Converts a validated number, which is not negative.
fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}
