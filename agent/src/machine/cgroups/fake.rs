//! Cgroups for tests.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use compact::{Map, Set};

use super::{CgroupValues, ControlGroups};

/// Clones share the cgroups.
#[derive(Clone, Default)]
pub(crate) struct FakeCgroups(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    groups: Map<String, CgroupValues>,
    calls: Vec<String>,
    refused: Option<io::ErrorKind>,
    refused_values: bool,
    busy: usize,
    missing_controllers: Vec<String>,
    /// The number of changes that still succeed; `None`: unlimited.
    left: Option<usize>,
}

impl State {
    /// Makes a change, or fails as if the agent had been killed.
    fn change(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the agent was killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl FakeCgroups {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The paths of all cgroups.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.state().groups.keys().cloned().collect()
    }

    /// The values of a cgroup.
    pub(crate) fn values(&self, path: &str) -> Option<CgroupValues> {
        self.state().groups.get(path).cloned()
    }

    /// The calls so far that create or remove a cgroup.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Adds a cgroup that this agent did not create.
    pub(crate) fn add_existing(&self, path: &str) {
        self.state().groups.insert(path.to_owned(), CgroupValues::default());
    }

    /// Makes later creations of cgroups fail with this error, or succeed again.
    pub(crate) fn fail_creation(&self, kind: Option<io::ErrorKind>) {
        self.state().refused = kind;
    }

    /// Makes later changes of values fail, or succeed again.
    pub(crate) fn fail_changes(&self, refused: bool) {
        self.state().refused_values = refused;
    }

    /// Makes these controllers unusable from now on.
    pub(crate) fn set_missing_controllers(&self, controllers: &[&str]) {
        self.state().missing_controllers =
            controllers.iter().map(|name| (*name).to_owned()).collect();
    }

    /// Makes all changes after this many fail, as if the agent had been killed; `None`: no more failures.
    pub(crate) fn fail_after(&self, changes: Option<usize>) {
        self.state().left = changes;
    }

    /// Makes this many removals fail because killed processes still exist.
    pub(crate) fn set_busy(&self, times: usize) {
        self.state().busy = times;
    }
}

fn add(values: &mut CgroupValues, new: &CgroupValues) {
    values.cpu_shares = new.cpu_shares.or(values.cpu_shares);
    values.cpu_quota = new.cpu_quota.or(values.cpu_quota);
    values.memory = new.memory.or(values.memory);
    values.pids = new.pids.or(values.pids);
    values.huge_pages.extend(new.huge_pages.clone());
    values.unified.extend(new.unified.clone());
}

impl ControlGroups for FakeCgroups {
    fn missing_controllers(&self) -> Vec<String> {
        self.state().missing_controllers.clone()
    }

    fn make(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        let mut state = self.state();
        if let Some(kind) = state.refused {
            return Err(kind.into());
        }
        state.change()?;
        if !state.groups.contains_key(path) {
            state.calls.push(format!("make {path}"));
        }
        add(state.groups.entry(path.to_owned()).or_default(), values);
        Ok(())
    }

    fn set(&self, path: &str, values: &CgroupValues) -> io::Result<()> {
        let mut state = self.state();
        if state.refused_values {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        state.change()?;
        let group = state.groups.get_mut(path).ok_or(io::ErrorKind::NotFound)?;
        add(group, values);
        Ok(())
    }

    fn exists(&self, path: &str) -> bool {
        self.state().groups.contains_key(path)
    }

    fn children(&self, path: &str) -> io::Result<Set<String>> {
        let state = self.state();
        let below = state.groups.keys().filter_map(|group| group.strip_prefix(path));
        let names = below.filter_map(|rest| rest.strip_prefix('/')?.split('/').next());
        Ok(names.map(str::to_owned).collect())
    }

    fn memory_usage(&self, _path: &str) -> Option<i64> {
        Some(1 << 20)
    }

    fn destroy(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.groups.contains_key(path) {
            if state.busy > 0 {
                state.busy -= 1;
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            state.change()?;
            state.calls.push(format!("destroy {path}"));
            state.groups.remove(path);
        }
        Ok(())
    }

    fn remove_empty(&self, path: &str) {
        let mut state = self.state();
        let below = format!("{path}/");
        if state.change().is_err() {
            return;
        }
        if !state.groups.keys().any(|group| group.starts_with(&below)) {
            state.groups.remove(path);
        }
    }
}
