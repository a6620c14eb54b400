//! ◆ Jobs and CronJobs. Pure.

use crib_base::columns::age::age;
use crib_base::columns::fields::{
    field, flag, list, number, or, selector, text, text_or, time as timestamp,
};
use jiff::Timestamp;
use serde_json::Value;

use super::{UNSET, controller, metadata, names, number_or_unset, time};
use crate::commands::runs::describe::lines::{Lines, NONE};
use crate::commands::runs::describe::template;

/// The number of characters after which a list of indexes is cut, at the next comma.
const INDEXES: usize = 50;

/// Adds a Job.
pub(super) fn job(lines: &mut Lines, object: &Value, _: &[Value], _: Timestamp) {
    names(lines, object);
    let selected = field(object, "/spec/selector").map(|_| selector(object, "/spec/selector"));
    lines.field(0, "Selector", &selected.unwrap_or_default());
    metadata(lines, object);
    controller(lines, object);
    let set = |pointer: &str| field(object, pointer).map(|_| number(object, pointer).to_string());
    lines.some(0, "Parallelism", set("/spec/parallelism").as_deref());
    lines.field(0, "Completions", &number_or_unset(object, "/spec/completions"));
    lines.some(0, "Completion Mode", Some(text(object, "/spec/completionMode")));
    let suspend = field(object, "/spec/suspend").map(Value::to_string);
    lines.some(0, "Suspend", suspend.as_deref());
    lines.some(0, "Backoff Limit", set("/spec/backoffLimit").as_deref());
    let ttl = set("/spec/ttlSecondsAfterFinished");
    lines.some(0, "TTL Seconds After Finished", ttl.as_deref());
    lines.some(0, "Start Time", time(object, "/status/startTime").as_deref());
    lines.some(0, "Completed At", time(object, "/status/completionTime").as_deref());
    let (start, end) =
        (timestamp(object, "/status/startTime"), timestamp(object, "/status/completionTime"));
    let duration = start.zip(end).map(|(start, end)| age(start, end));
    lines.some(0, "Duration", duration.as_deref());
    deadline(lines, object, "/spec/activeDeadlineSeconds");
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let ready = set("/status/ready").map(|ready| format!(" ({ready} Ready)")).unwrap_or_default();
    let (active, succeeded, failed) = (status("active"), status("succeeded"), status("failed"));
    let counts = format!("{active} Active{ready} / {succeeded} Succeeded / {failed} Failed");
    lines.field(0, "Pods Statuses", &counts);
    if text(object, "/spec/completionMode") == "Indexed" {
        lines.field(0, "Completed Indexes", &indexes(text(object, "/status/completedIndexes")));
    }
    template::add(lines, object, "/spec/template");
}

/// Adds a CronJob.
pub(super) fn cron_job(lines: &mut Lines, object: &Value, _: &[Value], _: Timestamp) {
    names(lines, object);
    metadata(lines, object);
    lines.field(0, "Schedule", text(object, "/spec/schedule"));
    lines.field(0, "Concurrency Policy", &text_or(object, "/spec/concurrencyPolicy", "Allow"));
    let suspend = if flag(object, "/spec/suspend") { "True" } else { "False" };
    lines.field(0, "Suspend", suspend);
    lines.field(0, "Time Zone", &text_or(object, "/spec/timeZone", UNSET));
    let history = number_or_unset(object, "/spec/successfulJobsHistoryLimit");
    lines.field(0, "Successful Job History Limit", &history);
    let history = number_or_unset(object, "/spec/failedJobsHistoryLimit");
    lines.field(0, "Failed Job History Limit", &history);
    match field(object, "/spec/startingDeadlineSeconds") {
        Some(_) => deadline_as(lines, "Starting", object, "/spec/startingDeadlineSeconds"),
        None => lines.field(0, "Starting Deadline Seconds", UNSET),
    }
    let job = "/spec/jobTemplate/spec";
    let selected = format!("{job}/selector");
    let selected = field(object, &selected).map(|_| selector(object, &selected));
    lines.field(0, "Selector", selected.as_deref().unwrap_or(UNSET));
    let parallelism = number_or_unset(object, &format!("{job}/parallelism"));
    lines.field(0, "Parallelism", &parallelism);
    let completions = number_or_unset(object, &format!("{job}/completions"));
    lines.field(0, "Completions", &completions);
    deadline(lines, object, &format!("{job}/activeDeadlineSeconds"));
    template::add(lines, object, &format!("{job}/template"));
    let last = time(object, "/status/lastScheduleTime");
    lines.field(0, "Last Schedule Time", last.as_deref().unwrap_or(UNSET));
    let active = list(object, "/status/active").iter().map(|job| text(job, "/name"));
    let active = active.collect::<Vec<_>>().join(", ");
    lines.field(0, "Active Jobs", &or(active, NONE));
}

/// Adds the active deadline of a Job, if it is set.
fn deadline(lines: &mut Lines, object: &Value, pointer: &str) {
    if field(object, pointer).is_some() {
        deadline_as(lines, "Active", object, pointer);
    }
}

fn deadline_as(lines: &mut Lines, which: &str, object: &Value, pointer: &str) {
    let seconds = format!("{}s", number(object, pointer));
    lines.field(0, &format!("{which} Deadline Seconds"), &seconds);
}

/// The completed indexes; a long list is cut.
fn indexes(all: &str) -> String {
    let end = all.char_indices().find(|(at, character)| *at >= INDEXES && *character == ',');
    match end {
        Some((at, _)) => format!("{},...", &all[..at]),
        None => or(all.to_owned(), NONE),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::described;
    use super::*;

    /// The lines before the pod template, and those after it.
    fn without_template(text: &str) -> String {
        let (head, rest) = text.split_once("Pod Template:\n").unwrap();
        let rest = rest.lines().filter(|line| !line.starts_with(' '));
        head.to_owned() + &rest.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn job_has_fields_of_kubectl() {
        let object = json!({
            "kind": "Job",
            "metadata": {
                "name": "migrate", "namespace": "shop",
                "ownerReferences": [{"kind": "CronJob", "name": "tick", "controller": true}],
            },
            "spec": {
                "selector": {"matchLabels": {"a": "b"}}, "parallelism": 2, "completions": 3,
                "completionMode": "Indexed", "suspend": false, "backoffLimit": 6,
                "ttlSecondsAfterFinished": 9, "activeDeadlineSeconds": 60, "template": {},
            },
            "status": {
                "startTime": "2026-01-02T03:04:05Z", "completionTime": "2026-01-02T03:04:12Z",
                "ready": 0, "succeeded": 3, "completedIndexes": "0-2",
            },
        });
        let expected = "Name:                        migrate
Namespace:                   shop
Selector:                    a=b
Labels:                      <none>
Annotations:                 <none>
Controlled By:               CronJob/tick
Parallelism:                 2
Completions:                 3
Completion Mode:             Indexed
Suspend:                     false
Backoff Limit:               6
TTL Seconds After Finished:  9
Start Time:                  Fri, 02 Jan 2026 03:04:05 +0000
Completed At:                Fri, 02 Jan 2026 03:04:12 +0000
Duration:                    7s
Active Deadline Seconds:     60s
Pods Statuses:               0 Active (0 Ready) / 3 Succeeded / 0 Failed
Completed Indexes:           0-2
Events:            <none>";
        assert_eq!(without_template(&described(&object, &[])), expected);
    }

    #[test]
    fn cron_job_has_fields_of_kubectl() {
        let mut object = json!({
            "kind": "CronJob",
            "metadata": {"name": "tick", "namespace": "shop"},
            "spec": {
                "schedule": "* * * * *", "concurrencyPolicy": "Forbid", "suspend": true,
                "successfulJobsHistoryLimit": 3,
                "jobTemplate": {"spec": {"parallelism": 2, "template": {}}},
            },
            "status": {"active": [{"name": "tick-1"}, {"name": "tick-2"}]},
        });
        let expected = "Name:                          tick
Namespace:                     shop
Labels:                        <none>
Annotations:                   <none>
Schedule:                      * * * * *
Concurrency Policy:            Forbid
Suspend:                       True
Time Zone:                     <unset>
Successful Job History Limit:  3
Failed Job History Limit:      <unset>
Starting Deadline Seconds:     <unset>
Selector:                      <unset>
Parallelism:                   2
Completions:                   <unset>
Last Schedule Time:  <unset>
Active Jobs:         tick-1, tick-2
Events:              <none>";
        assert_eq!(without_template(&described(&object, &[])), expected);
        object["spec"]["startingDeadlineSeconds"] = json!(30);
        object["status"] = json!({"lastScheduleTime": "2026-01-02T03:04:05Z"});
        let text = described(&object, &[]);
        for line in [
            "Starting Deadline Seconds:     30s",
            "Last Schedule Time:  Fri, 02 Jan 2026 03:04:05 +0000",
            "Active Jobs:         <none>",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[rstest]
    #[case("", "<none>")]
    #[case("0-2,5", "0-2,5")]
    fn short_list_of_indexes_is_complete(#[case] all: &str, #[case] expected: &str) {
        assert_eq!(indexes(all), expected);
    }

    #[test]
    fn long_list_of_indexes_is_cut_after_a_comma() {
        let all = "100,".repeat(13) + "7";
        assert_eq!(indexes(&all), format!("{}...", "100,".repeat(13)));
    }
}
