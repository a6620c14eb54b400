//! ◆ Carries out the plans of CronJobs: starts and deletes Jobs. Pure.

use api::manifest::{Workload, WorkloadObject, schedule};
use jiff::{Timestamp, Zoned};
use k8s_openapi::api::batch::v1::{CronJobSpec, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::controller::Controller;
use super::cron_job::{self, CronPlan, CronRun, CronRunState, MissedReason, Timetable, job_name};
use super::owned::{Outcome, earlier};
use super::{Changes, CronStarts};
use api::generated_names::GeneratedNames;

/// The annotation of a Job with its scheduled time.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// The annotation of a manually started Job.
const BY_HAND: (&str, &str) = ("cronjob.kubernetes.io/instantiate", "manual");

/// One CronJob.
#[derive(Debug)]
pub(super) struct Cron {
    workload: Workload,
    spec: CronJobSpec,
    timetable: Timetable,
    starts: CronStarts,
    created: Timestamp,
    /// The time of the last Job.
    last: Option<Timestamp>,
    /// The last reported time without a Job.
    reported_missed: Option<Timestamp>,
    reported_many_missed: bool,
    /// Whether its first time was reported.
    is_announced: bool,
    /// The time of its next Job.
    next: Option<Timestamp>,
}

impl Cron {
    /// `None` for an object of another kind, or one that was not validated.
    pub(super) fn new(workload: Workload, starts: CronStarts, now: Timestamp) -> Option<Self> {
        let WorkloadObject::CronJob(object) = &workload.object else {
            return None;
        };
        let spec = object.spec.clone();
        let timetable = Timetable {
            schedule: schedule::parse(&spec.schedule).ok()?,
            zone: schedule::zone(spec.time_zone.as_deref()).ok()?,
        };
        Some(Self {
            workload,
            spec,
            timetable,
            starts,
            created: now,
            last: None,
            reported_missed: None,
            reported_many_missed: false,
            is_announced: false,
            next: None,
        })
    }

    pub(super) fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Applies a new version of the object.
    pub(super) fn update(&mut self, workload: Workload, now: Timestamp) {
        if let Some(changed) = Self::new(workload, self.starts, now) {
            *self = Self {
                created: self.created,
                last: self.last,
                reported_missed: self.reported_missed,
                ..changed
            };
        }
    }

    /// The time of its next Job, if known.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Whether it will start further Jobs.
    pub(super) fn is_open(&self) -> bool {
        match self.starts {
            CronStarts::Scheduled => self.spec.suspend != Some(true),
            CronStarts::Now => self.last.is_none(),
        }
    }

    /// Decides, given its Jobs in `all`, and carries out the decision. Returns the controller of a new Job.
    pub(super) fn sync(
        &mut self,
        all: &mut [Controller],
        names: &mut GeneratedNames,
        now: Timestamp,
        changes: &mut Changes,
    ) -> Option<Controller> {
        let plan = match self.starts {
            CronStarts::Scheduled => {
                let since = (self.created, self.last);
                cron_job::plan(&self.spec, &self.timetable, since, &self.runs(all), now)
            }
            CronStarts::Now => {
                CronPlan { start: self.last.is_none().then_some(now), ..CronPlan::default() }
            }
        };
        self.next = plan.again;
        changes.again = earlier(changes.again, plan.again);
        self.report_missed(&plan, changes);
        for (name, why) in &plan.delete {
            let job = all
                .iter_mut()
                .find(|job| self.owns(job) && !job.is_deleted() && job.workload().name() == name);
            if let Some(job) = job {
                job.delete(why, changes);
            }
        }
        let time = plan.start?;
        self.last = Some(time);
        let job = self.job(time, names);
        let (name, job_name) = (self.workload.full_name(), job.name());
        changes.messages.push(format!("{name} starts job {job_name}"));
        Some(Controller::new(job, now))
    }

    fn report_missed(&mut self, plan: &CronPlan, changes: &mut Changes) {
        let name = self.workload.full_name();
        if !self.is_announced && self.starts == CronStarts::Scheduled {
            self.is_announced = true;
            changes.messages.push(match plan.again {
                Some(time) => {
                    let time = rfc3339(&time.to_zoned(self.timetable.zone.clone()));
                    format!("{name} starts its next Job at {time}; crib run --now starts one now")
                }
                None if self.spec.suspend == Some(true) => {
                    format!("{name} is suspended and starts no job; crib run --now starts one now")
                }
                None => format!("{name} starts no job: its schedule names no day that exists"),
            });
        }
        if let Some((time, missed)) = &plan.missed
            && self.reported_missed != Some(*time)
        {
            self.reported_missed = Some(*time);
            changes.problems.push(match missed {
                MissedReason::TooLate => {
                    format!("{name} starts no job for {time}: its startingDeadlineSeconds are over")
                }
                MissedReason::JobActive(job) => {
                    format!("{name} starts no job for {time} yet: job {job} still runs (concurrencyPolicy Forbid)")
                }
            });
        }
        if plan.missed_many && !self.reported_many_missed {
            changes.problems.push(format!(
                "{name} has too many missed start times: set or decrease spec.startingDeadlineSeconds, or check the clock"
            ));
        }
        self.reported_many_missed = plan.missed_many;
    }

    fn runs(&self, all: &[Controller]) -> Vec<CronRun> {
        let own = all.iter().filter(|job| self.owns(job) && !job.is_deleted());
        own.map(|job| CronRun {
            name: job.workload().name().to_owned(),
            state: match job.outcome() {
                Outcome::Open => CronRunState::Active,
                Outcome::Complete(_) => CronRunState::Complete,
                Outcome::Failed(_) => CronRunState::Failed,
            },
        })
        .collect()
    }

    /// Whether it started the Job.
    pub(super) fn owns(&self, job: &Controller) -> bool {
        let mut owners = job.workload().metadata().owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == self.workload.metadata().uid.as_ref())
    }

    /// The Job for a time.
    fn job(&self, time: Timestamp, names: &mut GeneratedNames) -> Workload {
        let cron_job = &self.workload;
        let name = job_name(cron_job.name(), time);
        let uid = cron_job.metadata().uid.clone().unwrap_or_default();
        let template = self.spec.job_template.clone();
        let mut metadata = template.metadata.unwrap_or_default();
        let annotations = metadata.annotations.get_or_insert_default();
        match self.starts {
            CronStarts::Scheduled => {
                let time = time.to_zoned(self.timetable.zone.clone());
                annotations.insert(SCHEDULED.to_owned(), rfc3339(&time));
            }
            CronStarts::Now => {
                annotations.insert(BY_HAND.0.to_owned(), BY_HAND.1.to_owned());
            }
        }
        let metadata = ObjectMeta {
            uid: Some(names.uid(&uid, &name)),
            name: Some(name),
            namespace: Some(cron_job.namespace().to_owned()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: Some(vec![OwnerReference {
                api_version: "batch/v1".to_owned(),
                kind: "CronJob".to_owned(),
                name: cron_job.name().to_owned(),
                uid,
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        };
        Workload {
            object: WorkloadObject::Job(Job { metadata, spec: template.spec, status: None }),
            origin: cron_job.origin.clone(),
        }
    }
}

/// In Go's format, with a `Z` for UTC.
fn rfc3339(time: &Zoned) -> String {
    let zone = if time.offset().is_zero() { "Z" } else { "%:z" };
    time.strftime(&format!("%Y-%m-%dT%H:%M:%S{zone}")).to_string()
}
