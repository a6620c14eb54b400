//! The running keepers: one handle per sandbox.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Program, zygote::Zygote};
use crate::{
    id::SandboxId,
    keeper_client::{Deadlines, KeeperClient},
};

/// Handles by sandbox.
pub(crate) struct Pods {
    handles: Mutex<HashMap<SandboxId, Arc<Pod>>>,
    zygote: Zygote,
    deadlines: Deadlines,
}

/// A sandbox's keeper, with locks for operations on the sandbox.
pub(crate) struct Pod {
    pub(crate) keeper: KeeperClient,
    /// Held while the sandbox is stopped or removed.
    pub(crate) removal_lock: tokio::sync::Mutex<()>,
    /// Held while limits in the sandbox change.
    pub(crate) limits: tokio::sync::Mutex<()>,
}

impl Pods {
    /// An empty set; new keepers run `program`.
    pub(crate) fn new(program: Program, deadlines: Deadlines) -> Self {
        Self { handles: Mutex::default(), zygote: Zygote::new(program, deadlines), deadlines }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Pod>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keeper of a sandbox, while it runs.
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Pod>> {
        self.lock().get(id).cloned()
    }

    /// Removes the handle of a keeper that has ended.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    pub(super) fn insert(&self, id: &SandboxId, pod: Arc<Pod>) {
        self.lock().insert(id.clone(), pod);
    }

    /// The zygote, from which keepers are forked.
    pub(crate) fn zygote(&self) -> &Zygote {
        &self.zygote
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }
}

impl Pod {
    pub(super) fn new(keeper: KeeperClient) -> Self {
        Self {
            keeper,
            removal_lock: tokio::sync::Mutex::default(),
            limits: tokio::sync::Mutex::default(),
        }
    }
}
