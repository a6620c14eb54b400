//! The node's own addresses. They are looked up for each status: the network of a machine may change while the agent runs.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/nodestatus/setters.go NodeAddress.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent::local_node::node_address::{self, NodeAddressError};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a status waits for the resolver. What is found later is in a later status.
const WAIT: Duration = Duration::from_secs(1);

/// What a look-up finds.
type Found = Result<Vec<IpAddr>, NodeAddressError>;

/// Looks the addresses up, one time after another.
pub(crate) struct NodeAddresses {
    look_up: Arc<dyn Fn() -> Found + Send + Sync>,
    wait: Duration,
    state: Mutex<State>,
}

struct State {
    /// Those that were found last.
    last: Vec<String>,
    /// Why none were found the last time.
    problem: Option<NodeAddressError>,
    /// The look-up that a status did not wait for. There is no other one meanwhile.
    running: Option<JoinHandle<Found>>,
}

impl NodeAddresses {
    /// Those of a node that had the `first` ones at the start. Without `given` ones, its name is looked up.
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

    /// The addresses now; the last ones if none are found or the resolver is slow, as a kubelet leaves those of the status.
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
                    tracing::warn!(%error, last = ?state.last, "the node keeps its last addresses");
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
    async fn addresses_follow_the_machine_and_stay_while_it_has_none() {
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
    async fn slow_look_up_delays_no_status_and_its_result_is_in_a_later_one() {
        let (answer, resolver) = mpsc::channel();
        let resolver = std::sync::Mutex::new(resolver);
        let look_up = Arc::new(move || resolver.lock().unwrap().recv().unwrap());
        let mut addresses = NodeAddresses::with(look_up, first(), Duration::ZERO);
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        // One look-up runs, which takes the only answer.
        answer.send(new_address()).unwrap();
        addresses.wait = LONG;
        assert_eq!(addresses.now().await, ["192.0.2.7"]);
    }

    #[tokio::test]
    async fn refused_addresses_leave_the_last_ones() {
        let given = ["127.0.0.1".to_owned()];
        let addresses = NodeAddresses::new("192.0.2.9", &given, first());
        assert_eq!(addresses.now().await, ["192.0.2.1"]);
        // A name that is an address is the node's own.
        let mut addresses = NodeAddresses::new("192.0.2.9", &[], first());
        addresses.wait = LONG;
        assert_eq!(addresses.now().await, ["192.0.2.9"]);
    }
}
