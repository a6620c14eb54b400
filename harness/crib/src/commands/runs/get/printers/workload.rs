//! ◆ The columns of objects with pod templates. Pure.

use serde_json::Value;

use super::TableOptions;
use crib_base::columns::NONE;
use crib_base::columns::age::age;
use crib_base::columns::fields::{
    UNSET, age_of, containers, count, field, has_condition, is_terminating, number, pairs,
    selector, since, text_or, time,
};

/// The additional cells of `-o wide`.
fn template(object: &Value, containers_at: &str, selector_at: &str) -> [String; 3] {
    let [names, images] = containers(object, containers_at);
    [names, images, selector(object, selector_at)]
}

fn of_set(mut cells: Vec<String>, object: &Value) -> Vec<String> {
    cells.extend(template(object, "/spec/template/spec/containers", "/spec/selector"));
    cells
}

fn status(object: &Value, field: &str) -> String {
    number(object, &format!("/status/{field}")).to_string()
}

/// The desired number of replicas. The API server sets the default.
fn replicas(object: &Value) -> i64 {
    match field(object, "/spec/replicas") {
        Some(_) => number(object, "/spec/replicas"),
        None => 1,
    }
}

pub(super) fn deployment(object: &Value, options: TableOptions) -> Vec<String> {
    let cells = vec![
        format!("{}/{}", status(object, "readyReplicas"), replicas(object)),
        status(object, "updatedReplicas"),
        status(object, "availableReplicas"),
        age_of(object, options.now),
    ];
    of_set(cells, object)
}

pub(super) fn replica_set(object: &Value, options: TableOptions) -> Vec<String> {
    of_set(replica_counts(object, options), object)
}

/// Its selector is a map of labels, not a LabelSelector.
pub(super) fn replication_controller(object: &Value, options: TableOptions) -> Vec<String> {
    let mut cells = replica_counts(object, options);
    cells.extend(containers(object, "/spec/template/spec/containers"));
    cells.push(pairs(object, "/spec/selector"));
    cells
}

fn replica_counts(object: &Value, options: TableOptions) -> Vec<String> {
    vec![
        replicas(object).to_string(),
        status(object, "replicas"),
        status(object, "readyReplicas"),
        age_of(object, options.now),
    ]
}

pub(super) fn stateful_set(object: &Value, options: TableOptions) -> Vec<String> {
    let ready = format!("{}/{}", status(object, "readyReplicas"), replicas(object));
    of_set(vec![ready, age_of(object, options.now)], object)
}

pub(super) fn daemon_set(object: &Value, options: TableOptions) -> Vec<String> {
    let cells = vec![
        status(object, "desiredNumberScheduled"),
        status(object, "currentNumberScheduled"),
        status(object, "numberReady"),
        status(object, "updatedNumberScheduled"),
        status(object, "numberAvailable"),
        pairs(object, "/spec/template/spec/nodeSelector"),
        age_of(object, options.now),
    ];
    of_set(cells, object)
}

pub(super) fn job(object: &Value, options: TableOptions) -> Vec<String> {
    let succeeded = number(object, "/status/succeeded");
    let parallelism = number(object, "/spec/parallelism");
    let completions = match field(object, "/spec/completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let end = time(object, "/status/completionTime").unwrap_or(options.now);
    let duration = time(object, "/status/startTime").map(|start| age(start, end));
    let cells = vec![
        job_status(object).to_owned(),
        completions,
        duration.unwrap_or_default(),
        age_of(object, options.now),
    ];
    of_set(cells, object)
}

fn job_status(object: &Value) -> &'static str {
    let has = |kind| has_condition(object, kind);
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if is_terminating(object) => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

pub(super) fn cron_job(object: &Value, options: TableOptions) -> Vec<String> {
    let last = "/status/lastScheduleTime";
    let suspended = match field(object, "/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    };
    let mut cells = vec![
        text_or(object, "/spec/schedule", ""),
        text_or(object, "/spec/timeZone", NONE),
        suspended.to_owned(),
        count(object, "/status/active").to_string(),
        field(object, last).map_or_else(|| NONE.to_owned(), |_| since(object, last, options.now)),
        age_of(object, options.now),
    ];
    cells.extend(template(
        object,
        "/spec/jobTemplate/spec/template/spec/containers",
        "/spec/jobTemplate/spec/selector",
    ));
    cells
}
