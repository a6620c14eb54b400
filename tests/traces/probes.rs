//! ◆ Compares how often probes run. The number depends on when a container started and ended, and on the ticks of its probes, so it
//! may differ accordingly.

use std::collections::BTreeSet;

use crate::comparison::difference::Difference;
use crate::operations::Operation;

/// The period of a probe, in seconds, if its checks do not show it: the default of manifests.
const PERIOD: f64 = 10.0;
/// The permitted difference in the number of checks: one at each end; or one in this many.
const ENDS: usize = 2;
const SHARE: usize = 5;
/// How much earlier or later an agent may first sync its pods after a restart, in seconds.
const AGAIN: f64 = 3.0;

/// The calls about one container on one side, until its pod was removed.
pub(crate) struct Checks<'a> {
    pub(crate) calls: &'a [&'a Operation],
    pub(crate) removed_at: f64,
}

impl Checks<'_> {
    /// The start times of a command's checks.
    fn times(&self, command: &str) -> Vec<f64> {
        let checks = self.calls.iter().filter(|call| call.is_probe() && call.argument == command);
        checks.map(|call| call.start).collect()
    }

    /// How long the container could be probed.
    fn lifetime(&self) -> f64 {
        let first = |method: &str| self.calls.iter().find(|call| call.method == method);
        let Some(started) = first("StartContainer") else {
            return 0.0;
        };
        let stopped = first("StopContainer").map_or(f64::MAX, |stop| stop.start);
        (stopped.min(self.removed_at) - started.end).max(0.0)
    }
}

/// The differences between both sides for one container. `agent_starts` is the number of agent restarts.
pub(crate) fn differences(
    place: &str,
    kubelet: &Checks<'_>,
    crib: &Checks<'_>,
    agent_starts: usize,
    found: &mut Vec<Difference>,
) {
    let commands: BTreeSet<&str> = [kubelet, crib]
        .into_iter()
        .flat_map(|side| side.calls)
        .filter(|call| call.is_probe())
        .map(|call| call.argument.as_str())
        .collect();
    for command in commands {
        let (wanted, ours) = (kubelet.times(command), crib.times(command));
        let period = period(&wanted).or_else(|| period(&ours)).unwrap_or(PERIOD);
        let (counted, our_count) = (wanted.len(), ours.len());
        // A container that ends before its first check has no checks.
        let too_short = |side: &Checks<'_>, count: usize| count == 0 && side.lifetime() < period;
        let longer = (kubelet.lifetime() - crib.lifetime()).abs() / period;
        let again = agent_starts as f64 * (AGAIN / period).ceil();
        let tolerance = ENDS.max(counted / SHARE) as f64 + longer.floor() + again;
        let has_none = counted == 0 || our_count == 0;
        let near = if has_none {
            too_short(kubelet, counted) || too_short(crib, our_count)
        } else {
            counted.abs_diff(our_count) as f64 <= tolerance
        };
        if !near {
            found.push(Difference {
                kind: "calls",
                place: format!("{place} ExecSync{command}"),
                kubelet: shown(&wanted),
                crib: shown(&ours),
            });
        }
    }
}

/// The number of checks, and their times.
fn shown(times: &[f64]) -> String {
    let at: Vec<String> = times.iter().map(|at| format!("{at:.1}")).collect();
    format!("{} times: {}", times.len(), at.join(" "))
}

/// The time between two checks: the median, because a result that changes readiness is followed by another check immediately.
fn period(times: &[f64]) -> Option<f64> {
    let mut gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn call(method: &str, start: f64) -> Operation {
        let argument = match method {
            "ExecSync" => " [\"true\"] timeout=1",
            _ => "",
        };
        Operation {
            pod: "p#0".to_owned(),
            object: "c/0".to_owned(),
            method: method.to_owned(),
            argument: argument.to_owned(),
            config: Value::Null,
            succeeded: true,
            start,
            end: start,
        }
    }

    /// A container that starts at 0, is checked at these times, and is stopped.
    fn container(checks: &[f64], stopped: f64) -> Vec<Operation> {
        let mut calls = vec![call("StartContainer", 0.0)];
        calls.extend(checks.iter().map(|at| call("ExecSync", *at)));
        calls.push(call("StopContainer", stopped));
        calls
    }

    fn agree(kubelet: &[Operation], crib: &[Operation]) -> bool {
        let (kubelet, crib): (Vec<_>, Vec<_>) = (kubelet.iter().collect(), crib.iter().collect());
        let side = |calls| Checks { calls, removed_at: 100.0 };
        let mut found = Vec::new();
        differences("p", &side(&kubelet), &side(&crib), 0, &mut found);
        found.is_empty()
    }

    #[test]
    fn number_of_checks_follows_lifetime_and_period() {
        let ten: Vec<f64> = (1..=10).map(|tick| f64::from(tick) * 2.0).collect();
        let kubelet = container(&ten, 21.0);
        assert!(agree(&kubelet, &container(&ten[..8], 21.0)), "one at either end");
        assert!(!agree(&kubelet, &container(&ten[..7], 21.0)));
        assert!(agree(&kubelet, &container(&ten[..6], 17.0)), "it ended earlier");
        assert!(!agree(&kubelet, &container(&[], 21.0)));
    }

    #[test]
    fn only_short_life_explains_that_there_is_no_check() {
        let kubelet = container(&[2.0, 4.0], 5.0);
        assert!(agree(&kubelet, &container(&[], 1.5)));
        assert!(!agree(&kubelet, &container(&[], 3.0)));
        assert!(agree(&container(&[], 1.0), &kubelet));
    }
}
