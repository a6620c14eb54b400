//! The records of containers, by their ids and by their sandboxes.

use std::{borrow::Borrow, ops::Index, sync::Arc};

use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};

use crate::{
    container::Container,
    id::{ContainerId, SandboxId},
};

/// The records of containers. A clone is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Containers {
    by_id: RedBlackTreeMapSync<ContainerId, Arc<Container>>,
    by_sandbox: RedBlackTreeSetSync<(SandboxId, ContainerId)>,
}

impl Containers {
    pub(crate) fn by_id(&self) -> &RedBlackTreeMapSync<ContainerId, Arc<Container>> {
        &self.by_id
    }

    pub(crate) fn get<Q>(&self, id: &Q) -> Option<&Arc<Container>>
    where
        Q: Ord + ?Sized,
        ContainerId: Borrow<Q>,
    {
        self.by_id.get(id)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Container>> {
        self.by_id.values()
    }

    /// The containers of a sandbox.
    pub(crate) fn of(&self, sandbox: &SandboxId) -> impl Iterator<Item = &Arc<Container>> {
        let from = (sandbox.clone(), ContainerId::from_record(""));
        let sandbox = sandbox.clone();
        self.by_sandbox
            .range(from..)
            .take_while(move |(of, _)| *of == sandbox)
            .filter_map(|(_, id)| self.by_id.get(id))
    }

    /// A record to change. The caller must not change its ids.
    pub(super) fn get_mut(&mut self, id: &ContainerId) -> Option<&mut Arc<Container>> {
        self.by_id.get_mut(id)
    }

    pub(crate) fn insert(&mut self, container: Arc<Container>) {
        let of_sandbox = (container.sandbox.clone(), container.id.clone());
        self.by_sandbox.insert_mut(of_sandbox);
        self.by_id.insert_mut(container.id.clone(), container);
    }

    pub(super) fn remove(&mut self, id: &ContainerId) -> Option<Arc<Container>> {
        let container = self.by_id.get(id)?.clone();
        self.by_id.remove_mut(id);
        let of_sandbox = (container.sandbox.clone(), container.id.clone());
        self.by_sandbox.remove_mut(&of_sandbox);
        Some(container)
    }
}

impl Index<&ContainerId> for Containers {
    type Output = Arc<Container>;

    fn index(&self, id: &ContainerId) -> &Self::Output {
        &self.by_id[id]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::container::ContainerState;

    fn container(sandbox: &str, id: &str) -> Arc<Container> {
        let sandbox = SandboxId::from_record(sandbox);
        Arc::new(Container::of_test(id, sandbox, ContainerState::Running))
    }

    #[test]
    fn containers_of_a_sandbox_are_found_without_those_of_others() {
        let mut containers = Containers::default();
        for (sandbox, id) in [("a", "4"), ("b", "3"), ("b", "1"), ("ba", "2")] {
            containers.insert(container(sandbox, id));
        }
        containers.remove(&ContainerId::from_record("3"));
        let of = |sandbox: &str| {
            let sandbox = SandboxId::from_record(sandbox);
            let ids: Vec<&str> = containers.of(&sandbox).map(|c| c.id.as_str()).collect();
            ids.join(" ")
        };
        assert_eq!([of("a"), of("b"), of("ba"), of("c")], ["4", "1", "2", ""]);
        assert_eq!(containers.values().count(), 3);
    }
}
