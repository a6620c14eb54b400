//! ◆ Chooses the backend of each connection: round robin, or the same one for the same client (session affinity).

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddrV4},
    time::Instant,
};

use super::table::Backends;

/// Limit on the clients whose backends are remembered.
const CLIENTS: usize = 10_000;

/// The choices for one balancer.
#[derive(Debug, Default)]
pub(super) struct BackendSelector {
    turn: usize,
    chosen: HashMap<IpAddr, (SocketAddrV4, Instant)>,
}

impl BackendSelector {
    /// The backends in the order of the attempts to connect.
    pub(super) fn order(
        &mut self,
        backends: &Backends,
        client: IpAddr,
        now: Instant,
    ) -> Vec<SocketAddrV4> {
        let mut order = backends.list.clone();
        if order.is_empty() {
            return order;
        }
        let turn = self.turn % order.len();
        self.turn = self.turn.wrapping_add(1);
        order.rotate_left(turn);
        let Some(affinity) = backends.affinity else {
            return order;
        };
        let is_recent = |at: Instant| now.duration_since(at) < affinity;
        if let Some((backend, at)) = self.chosen.get(&client)
            && is_recent(*at)
            && let Some(position) = order.iter().position(|other| other == backend)
        {
            order.rotate_left(position);
        }
        if self.chosen.len() >= CLIENTS {
            self.chosen.retain(|_, (_, at)| is_recent(*at));
        }
        if self.chosen.len() < CLIENTS
            && let Some(first) = order.first()
        {
            self.chosen.insert(client, (*first, now));
        }
        order
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn backends(affinity: Option<u64>) -> Backends {
        let port = |port| SocketAddrV4::new([10, 0, 0, 2].into(), port);
        Backends { list: [1, 2, 3].map(port).into(), affinity: affinity.map(Duration::from_secs) }
    }

    fn ports(order: &[SocketAddrV4]) -> Vec<u16> {
        order.iter().map(SocketAddrV4::port).collect()
    }

    #[test]
    fn backends_rotate_and_all_are_candidates() {
        let (mut selector, now) = (BackendSelector::default(), Instant::now());
        let client = IpAddr::from([10, 0, 0, 9]);
        let orders: Vec<Vec<u16>> =
            (0..4).map(|_| ports(&selector.order(&backends(None), client, now))).collect();
        assert_eq!(orders, [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
        assert_eq!(selector.order(&Backends::default(), client, now), []);
    }

    #[test]
    fn affinity_keeps_backend_until_expiry_or_removal() {
        let (mut selector, start) = (BackendSelector::default(), Instant::now());
        let [one, two] = [[10, 0, 0, 8], [10, 0, 0, 9]].map(IpAddr::from);
        let mut first = |client, backends: &Backends, seconds| {
            let now = start + Duration::from_secs(seconds);
            selector.order(backends, client, now)[0].port()
        };
        let all = backends(Some(10));
        assert_eq!([first(one, &all, 0), first(two, &all, 0)], [1, 2]);
        // Each connection restarts the affinity timeout.
        let again = [9, 18, 20].map(|seconds| first(one, &all, seconds));
        assert_eq!(again, [1, 1, 1]);
        assert_ne!(first(two, &all, 10), 2);
        let mut fewer = all.clone();
        fewer.list.remove(0);
        assert_ne!(first(one, &fewer, 21), 1);
    }
}
