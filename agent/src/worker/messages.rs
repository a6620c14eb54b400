//! Reads each termination message once and adds it to the observed state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::blocking::brief;
use crate::observed::{ContainerId, ContainerState, Observed};
use crate::pod::Pod;
use crate::volumes::termination;

/// Messages of exited containers, appended to the runtime's own message.
#[derive(Debug, Default)]
pub(super) struct Messages {
    read: BTreeMap<ContainerId, String>,
}

impl Messages {
    /// Returns the observed state with the messages of all exited containers.
    pub(super) fn read(&mut self, pod: &Pod, observed: &Arc<Observed>) -> Arc<Observed> {
        self.read.retain(|id, _| {
            observed
                .containers
                .iter()
                .any(|container| container.id == *id)
        });
        let new: Vec<_> = observed
            .containers
            .iter()
            .filter(|seen| seen.state.exit().is_some() && !self.read.contains_key(&seen.id))
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
        if self.read.values().all(String::is_empty) {
            return Arc::clone(observed);
        }
        let mut with = Observed::clone(observed);
        for container in &mut with.containers {
            if let (ContainerState::Exited(exit), Some(message)) =
                (&mut container.state, self.read.get(&container.id))
            {
                exit.message.clone_from(message);
            }
        }
        Arc::new(with)
    }
}
