//! ◆ Plans a CronJob: a Job at each of its times, as far as earlier Jobs allow it. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/cronjob/cronjob_controllerv2.go and utils.go.

#[cfg(test)]
mod tests;

use api::manifest::schedule::Schedule;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::CronJobSpec;

/// The number of missed times from which on the CronJob reports too many.
const MANY: i64 = 100;
/// The default number of successful Jobs that are kept.
const SUCCESSFUL_HISTORY: i32 = 3;
/// The default number of failed Jobs that are kept.
const FAILED_HISTORY: i32 = 1;

/// The times of a CronJob.
#[derive(Clone, Debug)]
pub struct Timetable {
    /// Its schedule.
    pub schedule: Schedule,
    /// The schedule's time zone.
    pub zone: TimeZone,
}

/// A Job of a CronJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronRun {
    /// The Job's name.
    pub name: String,
    /// Its state.
    pub state: CronRunState,
}

/// The state of a Job of a CronJob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CronRunState {
    /// It has more to do.
    Active,
    /// It succeeded.
    Complete,
    /// It failed.
    Failed,
}

/// Why no Job is started for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissedReason {
    /// The time is further in the past than `startingDeadlineSeconds`.
    TooLate,
    /// This Job is still running, and only one may run.
    JobActive(String),
}

/// The next actions for a CronJob.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CronPlan {
    /// A Job to start, for this time.
    pub start: Option<Timestamp>,
    /// Names of Jobs to end and remove, and why.
    pub delete: Vec<(String, &'static str)>,
    /// A time for which no Job is started.
    pub missed: Option<(Timestamp, MissedReason)>,
    /// Whether so many times were missed that the clock may be wrong.
    pub missed_many: bool,
    /// When the plan changes by time alone.
    pub again: Option<Timestamp>,
}

/// Plans a CronJob that was created at `created` and started its last Job for the time `last`. `runs` are its Jobs, oldest first.
pub fn plan(
    spec: &CronJobSpec,
    timetable: &Timetable,
    (created, last): (Timestamp, Option<Timestamp>),
    runs: &[CronRun],
    now: Timestamp,
) -> CronPlan {
    let mut plan = CronPlan { delete: history(spec, runs), ..CronPlan::default() };
    if spec.suspend == Some(true) {
        return plan;
    }
    plan.again = timetable.next(now);
    let deadline = spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let earliest = earliest(last.unwrap_or(created), deadline, now);
    let due = timetable.most_recent(earliest, now);
    plan.missed_many = due.missed > MANY;
    let Some(time) = due.time.filter(|time| last != Some(*time)) else {
        return plan;
    };
    if deadline.is_some_and(|deadline| now.duration_since(time) > deadline) {
        plan.missed = Some((time, MissedReason::TooLate));
        return plan;
    }
    let active = runs.iter().filter(|run| run.state == CronRunState::Active);
    let mut active = active.peekable();
    match (spec.concurrency_policy.as_deref(), active.peek()) {
        (Some("Forbid"), Some(run)) => {
            plan.missed = Some((time, MissedReason::JobActive(run.name.clone())));
            return plan;
        }
        (Some("Replace"), _) => {
            let replaced = active.map(|run| (run.name.clone(), "replaced by the next job"));
            plan.delete.extend(replaced);
        }
        _ => {}
    }
    plan.start = Some(time);
    plan
}

/// The name of the Job for a time.
#[must_use]
pub fn job_name(cron_job: &str, time: Timestamp) -> String {
    format!("{cron_job}-{}", time.as_second() / 60)
}

/// The earliest time to search: earlier ones are past the deadline.
fn earliest(from: Timestamp, deadline: Option<SignedDuration>, now: Timestamp) -> Timestamp {
    let limit = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
    limit.map_or(from, |limit| limit.max(from))
}

/// The oldest ended Jobs, beyond those that are kept.
fn history(spec: &CronJobSpec, runs: &[CronRun]) -> Vec<(String, &'static str)> {
    let of = |state: CronRunState, limit: Option<i32>, default: i32| {
        let ended = runs.iter().filter(move |run| run.state == state);
        let limit = usize::try_from(limit.unwrap_or(default)).unwrap_or_default();
        let surplus = ended.clone().count().saturating_sub(limit);
        ended.take(surplus).map(|run| (run.name.clone(), "its cronjob keeps no more ended jobs"))
    };
    let successful = spec.successful_jobs_history_limit;
    let failed = spec.failed_jobs_history_limit;
    of(CronRunState::Complete, successful, SUCCESSFUL_HISTORY)
        .chain(of(CronRunState::Failed, failed, FAILED_HISTORY))
        .collect()
}

/// The most recent time of the schedule.
struct Due {
    time: Option<Timestamp>,
    /// The approximate number of times since the last Job.
    missed: i64,
}

impl Timetable {
    /// The first time after `after`.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.next(after, &self.zone)
    }

    /// The last time after `from` that is not after `now`, found by iteration.
    fn last_until(&self, from: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let mut last = None;
        let mut next = self.next(from);
        while let Some(found) = next.filter(|next| *next <= now) {
            last = Some(found);
            next = self.next(found);
        }
        last
    }

    /// The last time after `earliest` that is not after `now`.
    fn most_recent(&self, earliest: Timestamp, now: Timestamp) -> Due {
        let none = Due { time: None, missed: 0 };
        let Some(first) = self.next(earliest).filter(|first| *first <= now) else {
            return none;
        };
        let second = self.next(first);
        let Some(second) = second.filter(|second| *second <= now) else {
            let time = Some(first);
            return Due { time, missed: 0 };
        };
        // The interval of the first two yields the approximate number. All times from two intervals before the estimate are
        // checked.
        let distance = second.duration_since(first).as_secs().max(1);
        let missed = now.duration_since(first).as_secs() / distance + 1;
        let skipped = SignedDuration::from_secs((missed - 2) * distance);
        let from = first.checked_add(skipped).unwrap_or(first);
        // With irregular intervals there may be no time in the rest.
        let time = self.last_until(from, now);
        let time = time.or_else(|| self.last_until(first, now));
        Due { time, missed }
    }
}
