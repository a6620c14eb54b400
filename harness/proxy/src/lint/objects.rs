//! ◆ The states of sandboxes and containers during a recording, and the calls that violate the kubelet's order.

use std::collections::BTreeMap;

use super::facts::CallFacts;

/// The calls that may be repeated after a removal (api.proto: they are idempotent).
const IDEMPOTENT: [&str; 4] =
    ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"];

/// The sandboxes and containers of a recording.
#[derive(Debug)]
pub(super) struct Objects {
    /// When each object was created, by id. Objects from before the recording are missing.
    created_at: BTreeMap<String, f64>,
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
}

#[derive(Debug, Default)]
struct Sandbox {
    is_ours: bool,
    is_stopped: bool,
    is_removed: bool,
}

#[derive(Debug, Default)]
struct Container {
    sandbox: Option<String>,
    /// A StartContainer call is pending or has succeeded.
    is_started: bool,
    /// The container was stopped or reported as exited.
    has_ended: bool,
    is_removed: bool,
}

impl Objects {
    pub(super) fn of(calls: &[CallFacts]) -> Self {
        let created_at = calls.iter().filter_map(|call| {
            let id = call.created_id.clone()?;
            Some((id, call.end?))
        });
        Self {
            created_at: created_at.collect(),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
        }
    }

    /// The rules that a beginning call violates, each with a description.
    pub(super) fn record_start(&mut self, call: &CallFacts) -> Vec<(&'static str, String)> {
        let mut broken = self.uses_removed(call);
        let method = call.method.as_str();
        let is_early = |id: &Option<String>| {
            let created_at = id.as_ref().and_then(|id| self.created_at.get(id));
            created_at.is_some_and(|created_at| call.start < *created_at)
        };
        match method {
            "CreateContainer" if is_early(&call.sandbox) => {
                let what = "CreateContainer before RunPodSandbox has answered".to_owned();
                broken.push(("create-before-sandbox", what));
            }
            "StartContainer" if is_early(&call.container) => {
                let what = "StartContainer before CreateContainer has answered".to_owned();
                broken.push(("start-before-create", what));
            }
            _ => {}
        }
        let id = call.container.clone().unwrap_or_default();
        let in_sandbox = match method {
            "CreateContainer" => call.sandbox.clone(),
            "StartContainer" => self.containers.get(&id).and_then(|c| c.sandbox.clone()),
            _ => None,
        };
        if let Some((sandbox, state)) = in_sandbox.and_then(|id| {
            let state = self.sandboxes.get(&id)?;
            Some((id, state))
        }) && state.is_stopped
            && !state.is_removed
        {
            let what = format!("{method} in sandbox {sandbox}, which was stopped");
            broken.push(("stopped-sandbox", what));
        }
        match method {
            "StartContainer" => {
                let container = self.containers.entry(id.clone()).or_default();
                if std::mem::replace(&mut container.is_started, true) {
                    broken.push(("started-twice", format!("StartContainer {id} again")));
                }
            }
            "RemoveContainer" => {
                let container = self.containers.get(&id);
                if container.is_some_and(|one| one.is_started && !one.has_ended && !one.is_removed)
                {
                    let what = format!("RemoveContainer {id}, which was not stopped");
                    broken.push(("remove-running-container", what));
                }
            }
            "RemovePodSandbox" => {
                let id = call.sandbox.clone().unwrap_or_default();
                let sandbox = self.sandboxes.get(&id);
                if sandbox.is_some_and(|one| one.is_ours && !one.is_stopped && !one.is_removed) {
                    let what = format!("RemovePodSandbox {id}, which was not stopped");
                    broken.push(("remove-running-sandbox", what));
                }
            }
            _ => {}
        }
        broken
    }

    fn uses_removed(&self, call: &CallFacts) -> Vec<(&'static str, String)> {
        if IDEMPOTENT.contains(&call.method.as_str()) {
            return Vec::new();
        }
        let container = call.container.iter().filter(|id| {
            let container = self.containers.get(*id);
            container.is_some_and(|container| container.is_removed)
        });
        let sandbox = call.sandbox.iter().filter(|id| {
            let sandbox = self.sandboxes.get(*id);
            sandbox.is_some_and(|sandbox| sandbox.is_removed)
        });
        let removed = container.chain(sandbox);
        let what = removed.map(|id| format!("{} {id}, which was removed", call.method));
        what.map(|what| ("removed-object", what)).collect()
    }

    /// Records the results of a call.
    pub(super) fn record_end(&mut self, call: &CallFacts) {
        for id in &call.exited {
            self.containers.entry(id.clone()).or_default().has_ended = true;
        }
        let container = call.container.clone().unwrap_or_default();
        let sandbox = call.sandbox.clone().unwrap_or_default();
        match (call.method.as_str(), call.is_success) {
            ("RunPodSandbox", true) => {
                let id = call.created_id.clone().unwrap_or_default();
                self.sandboxes.entry(id).or_default().is_ours = true;
            }
            ("CreateContainer", true) => {
                let id = call.created_id.clone().unwrap_or_default();
                self.containers.entry(id).or_default().sandbox = Some(sandbox);
            }
            // A failed call may be retried.
            ("StartContainer", false) => {
                self.containers.entry(container).or_default().is_started = false;
            }
            ("StopContainer", true) => {
                self.containers.entry(container).or_default().has_ended = true;
            }
            ("RemoveContainer", true) => {
                self.containers.entry(container).or_default().is_removed = true;
            }
            ("StopPodSandbox", true) => {
                self.sandboxes.entry(sandbox.clone()).or_default().is_stopped = true;
                for one in self.of_sandbox(&sandbox) {
                    one.has_ended = true;
                }
            }
            ("RemovePodSandbox", true) => {
                self.sandboxes.entry(sandbox.clone()).or_default().is_removed = true;
                for one in self.of_sandbox(&sandbox) {
                    one.is_removed = true;
                }
            }
            _ => {}
        }
    }

    fn of_sandbox(&mut self, id: &str) -> impl Iterator<Item = &mut Container> {
        let all = self.containers.values_mut();
        all.filter(move |container| container.sandbox.as_deref() == Some(id))
    }
}
