//! ◆ Finds errors of a client in its recorded calls.
//!
//! | rule | finding |
//! |---|---|
//! | `deadline-missing` | a call without a deadline: if the runtime hangs, it never ends |
//! | `polled-too-often` | the same query more than ten times within a second |
//! | `removed-object` | a call for a container or a sandbox after its removal |
//! | `stream-left-open` | a stream is opened again while an earlier one is still open |
//! | `create-before-sandbox` | CreateContainer before RunPodSandbox has returned |
//! | `start-before-create` | StartContainer before CreateContainer has returned |
//! | `started-twice` | StartContainer for a container that has already been started |
//! | `stopped-sandbox` | CreateContainer or StartContainer in a stopped sandbox |
//! | `remove-running-container` | RemoveContainer for a container that was neither stopped nor reported as exited |
//! | `remove-running-sandbox` | RemovePodSandbox without StopPodSandbox |
//!
//! The state of objects that were created before the recording is unknown; rules that depend on it do not apply to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

mod facts;
mod objects;

pub use facts::{CallFacts, SeenCalls};
use objects::Objects;

/// How often the same query may occur within [`WINDOW`]; the kubelet polls once a second.
const MAX_POLLS: usize = 10;
/// In seconds.
const WINDOW: f64 = 1.0;

/// The names of the rules.
pub const LINT_RULES: [&str; 10] = [
    "deadline-missing",
    "polled-too-often",
    "removed-object",
    "stream-left-open",
    "create-before-sandbox",
    "start-before-create",
    "started-twice",
    "stopped-sandbox",
    "remove-running-container",
    "remove-running-sandbox",
];

/// A violation of a rule by the client.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The name of the rule.
    pub rule: &'static str,
    /// The time, in seconds.
    pub at: f64,
    /// The number of the client's connection.
    pub connection: u64,
    /// A description of the violation.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, at, connection, what } = self;
        write!(f, "{at:.3} s  connection {connection}  {rule}: {what}")
    }
}

/// The errors of a client that made these calls, in chronological order.
#[must_use]
pub fn lint(calls: &[CallFacts]) -> Vec<Finding> {
    let mut findings = missing_deadlines(calls);
    findings.extend(polls(calls));
    findings.extend(open_streams(calls));
    findings.extend(order(calls));
    compact::sort_by(&mut findings, |a, b| a.at.total_cmp(&b.at));
    findings
}

fn finding(rule: &'static str, call: &CallFacts, what: String) -> Finding {
    Finding { rule, at: call.start, connection: call.connection, what }
}

/// One finding for each method, at its first call without a deadline.
fn missing_deadlines(calls: &[CallFacts]) -> Vec<Finding> {
    let mut without = BTreeMap::<&str, (&CallFacts, usize)>::new();
    for call in calls.iter().filter(|call| call.lacks_deadline()) {
        without.entry(&call.method).or_insert((call, 0)).1 += 1;
    }
    let findings = without.into_values().map(|(first, count)| {
        let times = if count == 1 { "once" } else { "times" };
        let count = if count == 1 { times.to_owned() } else { format!("{count} {times}") };
        let what = format!("{} without a deadline, {count}", first.method);
        finding("deadline-missing", first, what)
    });
    findings.collect()
}

/// One finding for each query, at the first call that exceeds the limit.
fn polls(calls: &[CallFacts]) -> Vec<Finding> {
    let mut recent = BTreeMap::<_, VecDeque<f64>>::new();
    let mut most = BTreeMap::<_, (&CallFacts, usize)>::new();
    for call in calls.iter().filter(|call| call.is_query()) {
        let key = (call.connection, &call.method, &call.request);
        let times = recent.entry(key).or_default();
        times.push_back(call.start);
        while times.front().is_some_and(|first| call.start - first > WINDOW) {
            times.pop_front();
        }
        if times.len() > MAX_POLLS {
            let (_, count) = most.entry(key).or_insert((call, 0));
            *count = times.len().max(*count);
        }
    }
    let findings = most.into_values().map(|(first, count)| {
        let (method, request) = (&first.method, &first.request);
        let what = format!("{method} {request} {count} times within {WINDOW} s");
        finding("polled-too-often", first, what)
    });
    findings.collect()
}

fn open_streams(calls: &[CallFacts]) -> Vec<Finding> {
    let mut open = BTreeMap::<_, f64>::new();
    let mut findings = Vec::new();
    for call in calls.iter().filter(|call| call.is_stream) {
        let key = (call.connection, &call.method, &call.request);
        let end = call.end.unwrap_or(f64::INFINITY);
        let until = open.entry(key).or_insert(f64::NEG_INFINITY);
        if call.start < *until {
            let what = format!("{} again while the first one is still running", call.method);
            findings.push(finding("stream-left-open", call, what));
        }
        *until = end.max(*until);
    }
    findings
}

/// Checks whether the calls follow the kubelet's order.
fn order(calls: &[CallFacts]) -> Vec<Finding> {
    let mut events: Vec<(f64, bool, &CallFacts)> = Vec::new();
    for call in calls {
        events.push((call.start, true, call));
        events.extend(call.end.map(|end| (end, false, call)));
    }
    // At equal times, responses come first: a call that begins then can use them.
    compact::sort_by(&mut events, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut objects = Objects::of(calls);
    let mut findings = Vec::new();
    let mut reported = BTreeSet::new();
    for (_, is_start, call) in events {
        if !is_start {
            objects.record_end(call);
            continue;
        }
        for (rule, what) in objects.record_start(call) {
            // Repeated violations are reported once.
            if reported.insert((rule, what.clone())) {
                findings.push(finding(rule, call, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests;
