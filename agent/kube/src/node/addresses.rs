//! The node's own addresses. Each status looks them up, because the machine's network may change while the agent runs.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodestatus/setters.go NodeAddress.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent::local_node::node_address::{self, NodeAddressError};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a status waits for the resolver. A later result goes into a later status.
const WAIT: Duration = Duration::from_secs(1);

/// The result of a lookup.
type Found = Result<Vec<IpAddr>, NodeAddressError>;

/// Looks up the node's addresses, one lookup at a time.
pub(crate) struct NodeAddresses {
    look_up: Arc<dyn Fn() -> Found + Send + Sync>,
    wait: Duration,
    state: Mutex<State>,
}

struct State {
    /// The last addresses found.
    last: Vec<String>,
    /// The error of the last lookup.
    problem: Option<NodeAddressError>,
    /// A lookup that timed out and still runs. The next call waits for it instead of starting another.
    running: Option<JoinHandle<Found>>,
}

impl NodeAddresses {
    /// Creates a lookup with the initial addresses `first`. If `given` is empty, it resolves the node's name.
    pub(crate) fn new(name: &str, given: &[String], first: Vec<String>) -> Self {
        let given: Vec<IpAddr> = given.iter().filter_map(|text| text.parse().ok()).collect();
        let name = name.to_owned();
        Self::with(Arc::new(move || node_address::look_up(&name, &given)), first, WAIT)
    }

    fn with(
        look_up: Arc<dyn Fn() -> Found + Send + Sync>,
        first: Vec<String>,
        wait: Duration,
    ) -> Self {
        let state = State { last: first, problem: None, running: None };
        Self { look_up, wait, state: Mutex::new(state) }
    }

    /// The current addresses; the last known ones if the lookup fails or times out, as in the kubelet.
    pub(crate) async fn now(&self) -> Vec<String> {
        let mut state = self.state.lock().await;
        let mut running = state.running.take().unwrap_or_else(|| {
            let look_up = Arc::clone(&self.look_up);
            tasks::spawn_blocking(move || look_up())
        });
        match timeout(self.wait, &mut running).await {
            Ok(Ok(Ok(found))) => {
                state.problem = None;
                state.last = found.iter().map(IpAddr::to_string).collect();
            }
            Ok(Ok(Err(error))) => {
                if state.problem.replace(error) != Some(error) {
                    tracing::warn!(%error, last = ?state.last, "failed to look up the node's addresses; keeping the last ones");
                }
            }
            Ok(Err(error)) => tracing::error!(%error, "failed to look up the node's addresses"),
            Err(_) => state.running = Some(running),
        }
        state.last.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::Ipv4Addr;
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn new_address() -> Found {
        Ok(vec![IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))])
    }

    fn first() -> Vec<String> {
        vec!["192.0.2.1".to_owned()]
    }

    #[tokio::test]
    async fn addresses_are_updated_and_kept_on_failure() {
        let none: Found = Err(NodeAddressError::NotFound);
        let found = Arc::new(std::sync::Mutex::new(none.clone()));
        let now = Arc::clone(&found);
        let look_up = Arc::new(move || now.lock().unwrap().clone());
        let addresses = NodeAddresses::with(look_up, first(), LONG);
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        *found.lock().unwrap() = new_address();
        assert_eq!(addresses.now().await, ["192.0.2.7"]);
        *found.lock().unwrap() = none;
        assert_eq!(addresses.now().await, ["192.0.2.7"]);
    }

    #[tokio::test]
    async fn slow_lookup_result_is_used_by_a_later_status() {
        let (answer, resolver) = mpsc::channel();
        let resolver = std::sync::Mutex::new(resolver);
        let look_up = Arc::new(move || resolver.lock().unwrap().recv().unwrap());
        let mut addresses = NodeAddresses::with(look_up, first(), Duration::ZERO);
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        // Only one lookup runs, so it takes the only answer.
        answer.send(new_address()).unwrap();
        addresses.wait = LONG;
        assert_eq!(addresses.now().await, ["192.0.2.7"]);
    }

    #[tokio::test]
    async fn failed_lookup_keeps_last_addresses() {
        let given = ["127.0.0.1".to_owned()];
        let addresses = NodeAddresses::new("192.0.2.9", &given, first());
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        // If the name is an IP address, it is the node's address.
        let mut addresses = NodeAddresses::new("192.0.2.9", &[], first());
        addresses.wait = LONG;
        assert_eq!(addresses.now().await, ["192.0.2.9"]);
    }
}
