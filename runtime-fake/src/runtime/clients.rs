//! Checks the targets of stream server requests.

use super::{Error, Runtime, containers::wrong_state};
use crate::{
    container::ContainerState,
    id::{ContainerId, SandboxId},
    sandbox::SandboxState,
    store::Refused,
};

impl Runtime {
    /// The container that `id` names, if it is running.
    pub(crate) fn running(&self, id: &str, wanted: &'static str) -> Result<ContainerId, Error> {
        let state = self.store.state();
        let container = state.container(id)?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(container, wanted));
        }
        Ok(container.id.clone())
    }

    /// The sandbox that `id` names, if it is ready.
    pub(crate) fn ready(&self, id: &str, wanted: &'static str) -> Result<SandboxId, Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(id)?;
        if sandbox.state != SandboxState::Ready {
            let id = sandbox.id.clone();
            return Err(Refused::SandboxNotReady { id, wanted }.into());
        }
        Ok(sandbox.id.clone())
    }
}
