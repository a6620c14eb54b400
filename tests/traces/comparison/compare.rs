//! ◆ Compares an agent's calls with a kubelet's, with the strictness and the tolerances of README.md in the parent directory.

use std::collections::BTreeSet;

use crate::comparison::difference::{self, Difference};
use crate::operations::Operation;
use crate::probes::{self, Checks};
use crate::scenarios::steps::{Action, Step};

/// The tolerance, in seconds, for a call that directly follows an event.
const DIRECT: f64 = 2.0;
/// The same for a retry, and an additional share of the time that it waited.
const RETRY: (f64, f64) = (6.0, 0.2);
/// A call within this time after an event follows it directly.
const FOLLOWS: f64 = 3.0;
/// The maximum time between two calls of one sync.
const ONE_SYNC: f64 = 0.3;

/// A slow call may have delayed calls within this time after it.
const RECENT: f64 = 15.0;
/// The calls that start a pod.
const STARTING: [&str; 4] = ["RunPodSandbox", "PullImage", "CreateContainer", "StartContainer"];
/// The calls that may be slow in a runtime.
const SLOW: [&str; 5] =
    ["RunPodSandbox", "PullImage", "CreateContainer", "StartContainer", "StopPodSandbox"];

/// The calls of both sides in a scenario.
pub(crate) struct Sides<'a> {
    pub(crate) kubelet: &'a [Operation],
    pub(crate) crib: &'a [Operation],
    pub(crate) steps: &'a [Step],
    /// When the scenario fell behind for crib: from which time, and by how much.
    pub(crate) shifts: &'a [(f64, f64)],
    /// When the agent's process could not run, and for how long.
    pub(crate) stalls: &'a [(f64, f64)],
    /// When the pods were removed.
    pub(crate) removed_at: f64,
    /// When they were removed from crib.
    pub(crate) our_removal: f64,
    pub(crate) end: f64,
}

/// A call of the kubelet, and by how many seconds crib's call may come later (`tolerance`) or earlier.
struct Timed<'a> {
    operation: &'a Operation,
    tolerance: f64,
    earlier: f64,
}

impl Sides<'_> {
    /// Every difference.
    pub(crate) fn differences(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        let timed = self.timed();
        let all = timed.iter().map(|timed| timed.operation).chain(self.crib);
        let objects: BTreeSet<(&str, &str)> =
            all.map(|it| (it.pod.as_str(), it.object.as_str())).collect();
        for (pod, object) in objects {
            let kubelet: Vec<&Timed> = timed
                .iter()
                .filter(|it| it.operation.pod == pod && it.operation.object == object)
                .collect();
            let crib: Vec<&Operation> =
                self.crib.iter().filter(|it| it.pod == pod && it.object == object).collect();
            self.object(&format!("{pod} {object}"), &kubelet, &crib, &mut found);
        }
        let pods: BTreeSet<&str> = self.kubelet.iter().map(|it| it.pod.as_str()).collect();
        for pod in pods {
            self.starts(pod, &mut found);
            self.stops(pod, &mut found);
        }
        found
    }

    /// Compares the calls about one object, in order.
    fn object(
        &self,
        place: &str,
        kubelet: &[&Timed],
        crib: &[&Operation],
        found: &mut Vec<Difference>,
    ) {
        let of_kubelet: Vec<&Operation> = kubelet.iter().map(|it| it.operation).collect();
        let sides = (
            Checks { calls: &of_kubelet, removed_at: self.removed_at },
            Checks { calls: crib, removed_at: self.our_removal },
        );
        let starts = self.steps.iter().filter(|step| step.action == Action::StartAgent);
        probes::differences(place, &sides.0, &sides.1, starts.count(), found);
        let kubelet: Vec<&&Timed> = kubelet.iter().filter(|it| !it.operation.is_probe()).collect();
        let crib: Vec<&&Operation> = crib.iter().filter(|it| !it.is_probe()).collect();
        // A call close to the end may be on one side only.
        let kubelet_has: Vec<String> = kubelet.iter().map(|it| it.operation.summary()).collect();
        let crib_has: Vec<String> = crib.iter().map(|it| it.summary()).collect();
        let common = kubelet_has.iter().zip(&crib_has).take_while(|(a, b)| a == b).count();
        // If all calls of an object are missing, only the first one counts, because the others follow from it.
        let (missing, extra) = (kubelet.get(common..), crib.get(common..));
        let whole = common == 0 && (kubelet.is_empty() || crib.is_empty());
        let counted = if whole { 1 } else { usize::MAX };
        let missing = missing.unwrap_or_default().iter().take(counted);
        let extra = extra.unwrap_or_default().iter().take(counted);
        let late = missing.clone().all(|it| self.may_be_missing(it));
        let extra = extra.clone().all(|it| self.may_be_extra(it));
        if !(late && extra) {
            found.push(Difference {
                kind: "calls",
                place: place.to_owned(),
                kubelet: kubelet_has.join(", "),
                crib: crib_has.join(", "),
            });
        }
        for (kubelet, crib) in kubelet.iter().zip(&crib).take(common) {
            let place = format!("{place} {}", kubelet.operation.method);
            difference::values("config", &place, &kubelet.operation.config, &crib.config, found);
            let (wanted, ours) = (kubelet.operation.start, self.unshifted(crib.start));
            let late = kubelet.tolerance + self.spent_elsewhere(crib);
            let in_time = (wanted - kubelet.earlier..=wanted + late).contains(&ours);
            if !in_time && crib.method != "RemoveContainer" {
                found.push(Difference {
                    kind: "time",
                    place,
                    kubelet: format!("{wanted:.1} -{:.1} +{late:.1}", kubelet.earlier),
                    crib: format!("{ours:.1}"),
                });
            }
        }
    }

    /// In a pod, sandboxes and containers are created one after another.
    fn starts(&self, pod: &str, found: &mut Vec<Difference>) {
        let of = |all: &[Operation]| -> Vec<String> {
            let making = |it: &&Operation| it.pod == pod && STARTING.contains(&it.method.as_str());
            let own = all.iter().filter(making);
            own.map(|it| format!("{} {}", it.method, it.object)).collect()
        };
        let (kubelet, crib) = (of(self.kubelet), of(self.crib));
        let length = kubelet.len().min(crib.len());
        if kubelet[..length] != crib[..length] {
            found.push(Difference {
                kind: "order",
                place: pod.to_owned(),
                kubelet: kubelet.join(", "),
                crib: crib.join(", "),
            });
        }
        let making = self.crib.iter().filter(|it| {
            it.pod == pod && ["CreateContainer", "StartContainer"].contains(&it.method.as_str())
        });
        let making: Vec<&Operation> = making.collect();
        for pair in making.windows(2) {
            if let [first, second] = pair
                && second.start < first.end
            {
                found.push(Difference {
                    kind: "order",
                    place: format!("{pod} {} {}", second.object, second.method),
                    kubelet: format!("after {} {}", first.object, first.method),
                    crib: format!(
                        "{:.3}, before the end of that at {:.3}",
                        second.start, first.end
                    ),
                });
            }
        }
    }

    /// Sidecars are stopped after the other containers, and sandboxes last.
    fn stops(&self, pod: &str, found: &mut Vec<Difference>) {
        let stops = |all: &'_ [Operation]| -> Vec<Operation> {
            all.iter().filter(|it| it.pod == pod && it.method == "StopContainer").cloned().collect()
        };
        let (kubelet, crib) = (stops(self.kubelet), stops(self.crib));
        // A pod that is created again stops containers of the same name and attempt a second time.
        let ours = |of: &Operation| {
            let earlier = |it: &&Operation| it.object == of.object && it.start < of.start;
            let turn = kubelet.iter().filter(earlier).count();
            crib.iter().filter(|it| it.object == of.object).nth(turn)
        };
        for first in &kubelet {
            for second in kubelet
                .iter()
                .filter(|second| second.start - first.start > 1.0)
                .filter(|second| name_of(&second.object) != name_of(&first.object))
            {
                let (Some(our_first), Some(our_second)) = (ours(first), ours(second)) else {
                    continue;
                };
                let (wanted, gap) =
                    (second.start - first.start, our_second.start - our_first.start);
                if gap < wanted / 2.0 {
                    found.push(Difference {
                        kind: "order",
                        place: format!(
                            "{pod} StopContainer {} after {}",
                            second.object, first.object
                        ),
                        kubelet: format!("{wanted:.1} s"),
                        crib: format!("{gap:.1} s"),
                    });
                }
            }
        }
        for sandbox in self.crib.iter().filter(|it| it.pod == pod && it.method == "StopPodSandbox")
        {
            let before =
                crib.iter().filter(|stop| stop.start < sandbox.start && stop.end > sandbox.start);
            for stop in before {
                found.push(Difference {
                    kind: "order",
                    place: format!("{pod} StopPodSandbox {}", sandbox.object),
                    kubelet: format!("after {} has stopped", stop.object),
                    crib: format!("{:.3}, before {:.3}", sandbox.start, stop.end),
                });
            }
        }
    }

    /// The kubelet's calls with their tolerances. A step causes the calls that directly follow it. A call after a pause waited for
    /// something, so its tolerance grows with the pause.
    fn timed(&self) -> Vec<Timed<'_>> {
        let mut timed: Vec<Timed> = Vec::new();
        for operation in self.kubelet {
            let previous = timed.iter().rev().find(|it| {
                it.operation.pod == operation.pod || is_replaced(&it.operation.pod, &operation.pod)
            });
            // A starting call at the time of a removal belongs to an earlier sync.
            let makes = STARTING.contains(&operation.method.as_str());
            let causes = |step: &&Step| {
                step.action != Action::AwaitStatus && !(makes && step.action.is_removal())
            };
            let mut done = self.steps.iter().rev().filter(causes);
            let cause = done.find(|step| step.at <= operation.start + 0.1);
            let from_step = cause.map(|step| operation.start - step.at).filter(|after| {
                let since = operation.start - after;
                let is_next = previous.is_none_or(|previous| previous.operation.start < since);
                is_next && *after <= FOLLOWS
            });
            let tolerance = match previous {
                _ if from_step.is_some() => DIRECT,
                None => DIRECT,
                Some(previous) => {
                    let gap = operation.start - previous.operation.end;
                    let retried = !previous.operation.succeeded
                        || operation.method == "RunPodSandbox"
                        || operation.method == "PullImage"
                        || (operation.method == "CreateContainer" && operation.attempt() > 1);
                    match retried {
                        _ if gap <= ONE_SYNC => previous.tolerance,
                        _ if gap <= FOLLOWS => previous.tolerance + DIRECT,
                        true => previous.tolerance + RETRY.0 + RETRY.1 * gap.max(0.0),
                        false => previous.tolerance + DIRECT,
                    }
                }
            };
            // Such a call may come as early as its cause, however long a busy kubelet took.
            let inherited = previous.map_or(0.0, |previous| previous.earlier - previous.tolerance);
            let earlier = match from_step {
                Some(after) => tolerance.max(after),
                None => tolerance + inherited,
            };
            timed.push(Timed { operation, tolerance, earlier });
        }
        timed
    }

    /// The duration of the pod's slow calls shortly before an operation, because the runtimes differ, plus the time for which the
    /// machine was busy with something else.
    fn spent_elsewhere(&self, operation: &Operation) -> f64 {
        let shortly = operation.start - RECENT..=operation.start;
        let calls = self.crib.iter().filter(|it| {
            it.pod == operation.pod
                && shortly.contains(&it.end)
                && SLOW.contains(&it.method.as_str())
        });
        let calls: f64 = calls.map(|it| it.end - it.start).sum();
        let stalls = self.stalls.iter().filter(|(at, _)| shortly.contains(at));
        calls + stalls.map(|(_, stall)| stall).sum::<f64>()
    }

    /// Whether crib's call may be missing because it would come after the removal of the pods, or after the end.
    fn may_be_missing(&self, timed: &Timed) -> bool {
        let at = timed.operation.start;
        let latest = at + timed.tolerance;
        let before_removal = at < self.removed_at && latest > self.removed_at;
        let removal = timed.operation.method == "RemoveContainer" && latest > self.removed_at;
        before_removal || latest > self.end || removal
    }

    /// Whether the kubelet's call may be missing because it would come after the removal of the pods, or after the end.
    fn may_be_extra(&self, operation: &Operation) -> bool {
        let at = self.unshifted(operation.start);
        let tolerance = if operation.attempt() > 1 { RETRY.0 } else { DIRECT };
        // The remains of an attempt are removed after the next attempt has ended, which may be after the removal of the kubelet's
        // pods.
        let follows = |it: &&Operation| {
            it.pod == operation.pod
                && name_of(&it.object) == name_of(&operation.object)
                && it.attempt() > operation.attempt()
        };
        let is_left = operation.method == "RemoveContainer";
        at > self.removed_at - tolerance || (is_left && self.kubelet.iter().any(|it| follows(&it)))
    }

    fn unshifted(&self, at: f64) -> f64 {
        let passed = self.shifts.iter().rev().find(|(from, late)| at >= from + late);
        passed.map_or(at, |(_, late)| at - late)
    }
}

/// The name of a container; each of its attempts ends before the next one begins.
fn name_of(object: &str) -> &str {
    object.rsplit_once('/').map_or(object, |(name, _)| name)
}

/// Whether a pod replaced an earlier one of the same name.
fn is_replaced(earlier: &str, pod: &str) -> bool {
    let name = |pod: &str| pod.rsplit_once('#').map(|(name, _)| name.to_owned());
    name(earlier) == name(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A call about the second attempt of a container.
    fn call(method: &str, start: f64) -> Operation {
        Operation {
            pod: "p#0".to_owned(),
            object: "c/2".to_owned(),
            method: method.to_owned(),
            argument: String::new(),
            config: Value::Null,
            succeeded: true,
            start,
            end: start + 0.01,
        }
    }

    #[test]
    fn start_at_the_time_of_a_removal_is_as_late_as_its_sync() {
        let of = |start: f64, stop: f64| {
            let starts = [("CreateContainer", start), ("StartContainer", start + 0.04)];
            let all = [("StopContainer", 1.0)].into_iter().chain(starts);
            all.chain([("StopContainer", stop)])
                .map(|(method, at)| call(method, at))
                .collect::<Vec<_>>()
        };
        let written = Action::WriteManifests { documents: vec![0] };
        let steps = [(0.0, written), (25.0, Action::RemoveManifests)]
            .map(|(at, action)| Step { at, action });
        let kubelet = of(24.92, 25.1);
        let differences = |crib: &[Operation]| -> Vec<String> {
            let sides = Sides {
                kubelet: &kubelet,
                crib,
                steps: &steps,
                shifts: &[],
                stalls: &[],
                removed_at: 25.0,
                our_removal: 25.0,
                end: 60.0,
            };
            let found = sides.differences();
            found.iter().map(|found| format!("{} {}", found.kind, found.place)).collect()
        };
        assert_eq!(differences(&kubelet), [""; 0]);
        // A retry may be this much earlier, and the calls that it starts, too.
        assert_eq!(differences(&of(18.0, 25.1)), [""; 0]);
        let removal = differences(&of(24.92, 29.0));
        assert_eq!(removal, ["time p#0 c/2 StopContainer"]);
    }
}
