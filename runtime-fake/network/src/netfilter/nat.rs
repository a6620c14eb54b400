//! The packet rules of one daemon: traffic from pods to other hosts is masqueraded, and traffic from other
//! machines to host ports is redirected to the pods, keeping its source address.
//!
//! The rules are in a table with the bridge's name, which exists as long as the bridge and is always replaced as a whole. They
//! need packet forwarding, which the host's administrator enables: without it there is no table, pods reach only the host and
//! each other, and the forwarder alone serves host ports. The forwarder also serves them alone if a forward chain of another
//! table drops by default, because it would drop a redirected packet.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use crate::netfilter::Nfnetlink;
use crate::netfilter::conntrack;
use crate::netfilter::nft::{self, PodSubnet, PortRule, Rules};

/// The rules of one daemon, and their inputs.
#[derive(Debug)]
pub struct Nat {
    bridge: String,
    subnets: Vec<PodSubnet>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ports: BTreeMap<String, Vec<PortRule>>,
    /// The rules in the kernel; `None` until the first transaction.
    applied: Option<Option<Rules>>,
    complained: bool,
    nfnetlink: Nfnetlink,
}

impl Nat {
    /// Rules for the pods of `subnets` on `bridge`; `ports` are the rules of existing sandboxes.
    pub fn open(
        bridge: &str,
        subnets: &[(IpAddr, u8)],
        ports: BTreeMap<String, Vec<PortRule>>,
    ) -> Self {
        let subnets = subnets
            .iter()
            .map(|(network, prefix_len)| PodSubnet { network: *network, prefix_len: *prefix_len });
        let nat = Self {
            bridge: bridge.to_owned(),
            subnets: subnets.collect(),
            state: Mutex::new(State { ports, ..State::default() }),
        };
        nat.change(|_| ());
        nat
    }

    /// Adds the rules of an attached sandbox.
    pub fn add(&self, sandbox: &str, ports: Vec<PortRule>) {
        self.change(|known| {
            if !ports.is_empty() {
                known.insert(sandbox.to_owned(), ports);
            }
        });
    }

    /// Removes the rules of a detached sandbox.
    pub fn remove(&self, sandbox: &str) {
        let mut gone = Vec::new();
        self.change(|known| gone = known.remove(sandbox).unwrap_or_default());
        let by_udp = gone.iter().filter(|rule| rule.transport == 17);
        let pods: Vec<IpAddr> = by_udp.map(|rule| rule.pod).collect();
        if !pods.is_empty()
            && let Err(error) = flush_conntrack(&pods)
        {
            tracing::debug!(%error, "failed to flush conntrack entries");
        }
    }

    /// Whether the kernel accepted the rules, so that packets of pods reach other hosts.
    pub fn is_applied(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(state.applied, Some(Some(_)))
    }

    /// Removes the table.
    pub fn close(self) {
        let state = self.state.into_inner();
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = state.nfnetlink.transact(&nft::remove(&self.bridge)) {
            tracing::debug!(%error, "failed to remove packet rules");
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<PortRule>>)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.ports);
        let forwarding = Forwarding::look(&mut state.nfnetlink);
        let wanted = self.wanted(&state.ports, forwarding);
        if state.applied.as_ref() == Some(&wanted) {
            return;
        }
        let transaction = match &wanted {
            Some(rules) => nft::replace(rules),
            None => nft::remove(&self.bridge),
        };
        match state.nfnetlink.transact(&transaction) {
            Ok(()) => state.applied = Some(wanted),
            // Host ports still work, through the forwarder.
            Err(error) if wanted.is_some() && !state.complained => {
                state.complained = true;
                tracing::warn!(%error, "failed to set packet rules; pods cannot reach other hosts");
            }
            Err(_) => {}
        }
    }

    /// The rules for the families that the host forwards; `None` if the table would be empty.
    fn wanted(
        &self,
        ports: &BTreeMap<String, Vec<PortRule>>,
        forwarding: Forwarding,
    ) -> Option<Rules> {
        let forwards = |address: &IpAddr| match address {
            IpAddr::V4(_) => forwarding.v4,
            IpAddr::V6(_) => forwarding.v6,
        };
        let subnets: Vec<PodSubnet> =
            self.subnets.iter().filter(|subnet| forwards(&subnet.network)).copied().collect();
        let ports = ports
            .values()
            .flatten()
            .filter(|rule| forwards(&rule.pod) && !forwarding.dropped(&rule.pod))
            .cloned()
            .collect();
        (!subnets.is_empty()).then(|| Rules { bridge: self.bridge.clone(), subnets, ports })
    }
}

/// Whether this host forwards packets.
#[derive(Debug, Clone, Copy)]
struct Forwarding {
    v4: bool,
    v6: bool,
    /// A forward chain of some table drops by default.
    drops_v4: bool,
    drops_v6: bool,
}

impl Forwarding {
    /// Reads the settings of the calling thread's network namespace.
    fn look(nfnetlink: &mut Nfnetlink) -> Self {
        let on = |path| std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0");
        let (mut drops_v4, mut drops_v6) = (false, false);
        // On an error, such as a kernel without nf_tables, assume that there are no chains.
        let _ = nfnetlink.exchange(&nft::list_chains(), true, |kind, payload| {
            if let Some((v4, v6)) = nft::drops(kind, payload) {
                drops_v4 |= v4;
                drops_v6 |= v6;
            }
        });
        Self {
            v4: on("/proc/sys/net/ipv4/ip_forward"),
            v6: on("/proc/sys/net/ipv6/conf/all/forwarding"),
            drops_v4,
            drops_v6,
        }
    }

    fn dropped(self, address: &IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.drops_v4,
            IpAddr::V6(_) => self.drops_v6,
        }
    }
}

/// Removes the tables of a bridge, if there are any.
pub(crate) fn remove_tables(bridge: &str) {
    for transaction in [nft::remove(bridge), nft::remove_of(nft::BRIDGE, bridge)] {
        if let Err(error) = Nfnetlink::default().transact(&transaction) {
            tracing::debug!(%error, bridge, "failed to remove packet rules");
        }
    }
}

/// The names of the nf_tables tables, of every family, of the calling thread's network namespace.
///
/// # Errors
/// When the kernel has no nf_tables, or the request fails.
pub fn tables() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    Nfnetlink::default().exchange(&nft::list(), true, |kind, payload| {
        names.extend(nft::table_name(kind, payload));
    })?;
    Ok(names)
}

/// Flushes the conntrack entries of UDP flows to removed pods.
fn flush_conntrack(pods: &[IpAddr]) -> io::Result<()> {
    let mut told = Vec::new();
    let mut nfnetlink = Nfnetlink::default();
    nfnetlink.exchange(&conntrack::list(), true, |kind, payload| {
        told.extend(conntrack::deletion(kind, payload, pods));
    })?;
    // A missing entry has ended meanwhile.
    for message in &told {
        drop(nfnetlink.transact(message));
    }
    Ok(())
}
