//! Tables of plans of CronJobs, all of them at 12:00:30.
#![allow(clippy::unwrap_used, reason = "tests")]

use api::manifest::schedule;
use rstest::rstest;

use super::*;

const NOW: &str = "2026-01-01T12:00:30Z";

fn at(time: &str) -> Timestamp {
    format!("2026-01-01T{time}Z").parse().unwrap()
}

fn timetable(text: &str) -> Timetable {
    Timetable { schedule: schedule::parse(text).unwrap(), zone: TimeZone::UTC }
}

fn runs(states: &[CronRunState]) -> Vec<CronRun> {
    let numbered = states.iter().enumerate();
    numbered.map(|(number, state)| CronRun { name: number.to_string(), state: *state }).collect()
}

fn planned(spec: &CronJobSpec, schedule: &str, last: &str, states: &[CronRunState]) -> CronPlan {
    let since = (at("00:00:00"), (!last.is_empty()).then(|| at(last)));
    plan(spec, &timetable(schedule), since, &runs(states), NOW.parse().unwrap())
}

#[rstest]
#[case::due("0 * * * *", "11:00:00", Some("12:00:00"), "13:00:00")]
#[case::done("0 * * * *", "12:00:00", None, "13:00:00")]
#[case::not_yet("30 * * * *", "11:30:00", None, "12:30:00")]
#[case::never_started("0 12 * * *", "", Some("12:00:00"), "2026-01-02T12:00:00Z")]
#[case::only_the_last_of_many("* * * * *", "11:50:00", Some("12:00:00"), "12:01:00")]
#[case::uneven_distances("0 3,4,11 * * *", "01:00:00", Some("11:00:00"), "2026-01-02T03:00:00Z")]
#[case::every_counts_from_the_last("@every 7m", "11:40:00", Some("11:54:00"), "12:07:30")]
fn job_is_started_for_the_last_time_that_has_come(
    #[case] schedule: &str,
    #[case] last: &str,
    #[case] start: Option<&str>,
    #[case] again: &str,
) {
    let plan = planned(&CronJobSpec::default(), schedule, last, &[]);
    assert_eq!(plan.start, start.map(at));
    let again = again.parse().unwrap_or_else(|_| at(again));
    assert_eq!(plan.again, Some(again));
    assert!(!plan.missed_many);
}

#[rstest]
#[case::many("* * * * *", "09:00:00", None, true)]
#[case::deadline_forgets_them("* * * * *", "09:00:00", Some(600), false)]
#[case::few("* * * * *", "11:00:00", None, false)]
fn more_than_100_missed_start_times_are_reported(
    #[case] schedule: &str,
    #[case] last: &str,
    #[case] deadline: Option<i64>,
    #[case] many: bool,
) {
    let spec = CronJobSpec { starting_deadline_seconds: deadline, ..CronJobSpec::default() };
    let plan = planned(&spec, schedule, last, &[]);
    assert_eq!(plan.missed_many, many);
    assert_eq!(plan.start, Some(at("12:00:00")));
}

#[rstest]
#[case::in_time(Some(40), Some("12:00:00"))]
#[case::too_late(Some(20), None)]
#[case::no_deadline(None, Some("12:00:00"))]
fn job_is_started_until_its_deadline(#[case] deadline: Option<i64>, #[case] start: Option<&str>) {
    let spec = CronJobSpec { starting_deadline_seconds: deadline, ..CronJobSpec::default() };
    let plan = planned(&spec, "0 * * * *", "11:00:00", &[]);
    assert_eq!(plan.start, start.map(at));
}

#[rstest]
#[case::allow("Allow", Some("12:00:00"), &[], false)]
#[case::forbid("Forbid", None, &[], true)]
#[case::replace("Replace", Some("12:00:00"), &["1"], false)]
fn active_job_decides_by_concurrency_policy(
    #[case] policy: &str,
    #[case] start: Option<&str>,
    #[case] deleted: &[&str],
    #[case] missed: bool,
) {
    let spec =
        CronJobSpec { concurrency_policy: Some(policy.to_owned()), ..CronJobSpec::default() };
    let states = [CronRunState::Complete, CronRunState::Active];
    let plan = planned(&spec, "0 * * * *", "11:00:00", &states);
    assert_eq!(plan.start, start.map(at));
    let names: Vec<&str> = plan.delete.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, deleted);
    let skipped = missed.then(|| (at("12:00:00"), MissedReason::JobActive("1".to_owned())));
    assert_eq!(plan.missed, skipped);
}

#[test]
fn suspended_cron_job_starts_nothing_and_forgets_ended_jobs() {
    let spec = CronJobSpec { suspend: Some(true), ..CronJobSpec::default() };
    let states = [CronRunState::Failed, CronRunState::Failed];
    let plan = planned(&spec, "* * * * *", "11:00:00", &states);
    assert_eq!((plan.start, plan.again), (None, None));
    assert_eq!(plan.delete.len(), 1);
}

#[rstest]
#[case::defaults(None, None, &["0", "3", "1"])]
#[case::none_stays(Some(0), Some(0), &["0", "3", "4", "6", "7", "1", "2"])]
#[case::all_stay(Some(9), Some(9), &[])]
fn oldest_ended_jobs_are_removed_beyond_the_limits(
    #[case] successful: Option<i32>,
    #[case] failed: Option<i32>,
    #[case] gone: &[&str],
) {
    use CronRunState::{Active, Complete, Failed};
    let spec = CronJobSpec {
        successful_jobs_history_limit: successful,
        failed_jobs_history_limit: failed,
        suspend: Some(true),
        ..CronJobSpec::default()
    };
    // Five succeeded: 0, 3, 4, 6 and 7; two failed: 1 and 2.
    let states = [Complete, Failed, Failed, Complete, Complete, Active, Complete, Complete];
    let plan = planned(&spec, "* * * * *", "11:00:00", &states);
    let names: Vec<&str> = plan.delete.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, gone);
}

#[test]
fn impossible_schedule_starts_nothing() {
    let plan = planned(&CronJobSpec::default(), "0 0 31 2 *", "", &[]);
    assert_eq!(plan, CronPlan::default());
}

#[test]
fn job_has_the_minutes_since_the_epoch_in_its_name() {
    assert_eq!(job_name("backup", at("00:00:00")), "backup-29453760");
}
