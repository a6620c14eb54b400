//! Reads each termination message once and adds it to the observed state.

use std::sync::Arc;

use api::pod::Pod;

use crate::blocking::brief;
use crate::observed::{ContainerId, ContainerState, Observed};
use crate::storage::volumes::termination;

/// Messages of exited containers, appended to the runtime's own message.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// A list: a map has room for eleven at least.
    read: Vec<(ContainerId, String)>,
}

impl Messages {
    fn of(&self, id: &ContainerId) -> Option<&String> {
        let mut read = self.read.iter();
        read.find(|(read, _)| read == id).map(|(_, message)| message)
    }

    /// Returns the observed state with the messages of all exited containers.
    pub(super) fn read(&mut self, pod: &Pod, observed: &Arc<Observed>) -> Arc<Observed> {
        self.read.retain(|(id, _)| observed.containers.iter().any(|container| container.id == *id));
        let new: Vec<_> = observed
            .containers
            .iter()
            .filter(|seen| seen.state.exit().is_some() && self.of(&seen.id).is_none())
            .filter_map(|seen| Some((pod.container(&seen.name)?.1.clone(), seen.clone())))
            .collect();
        if !new.is_empty() {
            let found = brief(move || {
                let message = |(container, seen): &(_, crate::observed::ObservedContainer)| {
                    let exit = seen.state.exit()?;
                    let own = termination::message(container, seen, exit);
                    Some((seen.id.clone(), termination::joined(&exit.message, &own)))
                };
                new.iter().filter_map(message).collect::<Vec<_>>()
            });
            self.read.extend(found);
        }
        if self.read.iter().all(|(_, message)| message.is_empty()) {
            return Arc::clone(observed);
        }
        let mut with = Observed::clone(observed);
        for container in &mut with.containers {
            if let (ContainerState::Exited(exit), Some(message)) =
                (&mut container.state, self.of(&container.id))
            {
                exit.message.clone_from(message);
            }
        }
        Arc::new(with)
    }
}
