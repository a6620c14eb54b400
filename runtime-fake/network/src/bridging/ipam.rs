//! ◆ Allocates the addresses of one subnet to sandboxes.
//!
//! The network address, the gateway (`.1`) and the broadcast address are never allocated. Addresses that were never allocated
//! come first, in ascending order; then freed addresses, least recently freed first. So a freed address is reused as late as
//! possible, and a client of the old pod does not reach a new one by accident.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::bridging::subnet::BridgeSubnet as _;

/// The addresses of one subnet and the sandboxes that hold them.
#[derive(Debug, Clone)]
pub(crate) struct Ipam {
    subnet: Ipv4Net,
    /// The end (exclusive) of the addresses for pods.
    end: Ipv4Addr,
    by_sandbox: BTreeMap<String, Ipv4Addr>,
    by_address: BTreeMap<Ipv4Addr, String>,
    /// Freed addresses, each with the number of frees before it.
    freed: BTreeMap<Ipv4Addr, u64>,
    frees: u64,
    /// The highest restored address. A restarted daemon begins above it, because a lower one may have been freed very recently.
    floor: Ipv4Addr,
}

/// Why no address was allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// Every address is allocated.
    #[error(
        "all {capacity} addresses of {subnet} are held by pods; remove a pod or configure a larger subnet"
    )]
    Exhausted {
        /// The subnet.
        subnet: Ipv4Net,
        /// The number of its addresses for pods.
        capacity: u32,
    },
    /// The sandbox has an address already.
    #[error("sandbox {sandbox:?} already holds {address}; detach it first")]
    AlreadyHeld {
        /// The sandbox id.
        sandbox: String,
        /// Its address.
        address: Ipv4Addr,
    },
    /// Another sandbox has the address.
    #[error("{address} of sandbox {sandbox:?} is held by sandbox {holder:?}")]
    Conflict {
        /// The sandbox id.
        sandbox: String,
        /// The address.
        address: Ipv4Addr,
        /// The sandbox that has it.
        holder: String,
    },
    /// The address is not for pods of this subnet.
    #[error("{address} of sandbox {sandbox:?} is not a pod address of {subnet}")]
    Foreign {
        /// The sandbox id.
        sandbox: String,
        /// The address.
        address: Ipv4Addr,
        /// The subnet.
        subnet: Ipv4Net,
    },
}

impl Ipam {
    /// All addresses of the subnet are free.
    #[cfg(test)]
    pub(crate) fn new(subnet: Ipv4Net) -> Ipam {
        Ipam::with_numbers(subnet, u8::MAX)
    }

    /// Uses only the addresses whose host part fits into `bits`: pods have addresses with the same host numbers in
    /// another, smaller subnet.
    pub(crate) fn with_numbers(subnet: Ipv4Net, bits: u8) -> Ipam {
        let more = 1u32.checked_shl(bits.into()).unwrap_or(u32::MAX);
        let end = subnet.network().to_bits().saturating_add(more);
        Ipam {
            end: Ipv4Addr::from_bits(end).min(subnet.broadcast()),
            subnet,
            by_sandbox: BTreeMap::new(),
            by_address: BTreeMap::new(),
            freed: BTreeMap::new(),
            frees: 0,
            floor: subnet.gateway(),
        }
    }

    /// The number of addresses for pods.
    pub(crate) fn capacity(&self) -> u32 {
        // The network, gateway and broadcast addresses are not for pods; subnets of /31 and /32 have none left.
        (self.end.to_bits() - self.subnet.network().to_bits()).saturating_sub(2)
    }

    /// The sandboxes that have an address.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &str> {
        self.by_sandbox.keys().map(String::as_str)
    }

    /// The number of allocated addresses.
    pub(crate) fn held(&self) -> usize {
        self.by_sandbox.len()
    }

    /// The address of the sandbox.
    pub(crate) fn address_of(&self, sandbox: &str) -> Option<Ipv4Addr> {
        self.by_sandbox.get(sandbox).copied()
    }

    /// Allocates the next free address to the sandbox.
    pub(crate) fn allocate(&mut self, sandbox: &str) -> Result<Ipv4Addr, IpamError> {
        if let Some(address) = self.address_of(sandbox) {
            return Err(IpamError::AlreadyHeld { sandbox: sandbox.to_owned(), address });
        }
        let address = self.next_free().ok_or_else(|| IpamError::Exhausted {
            subnet: self.subnet,
            capacity: self.capacity(),
        })?;
        self.hold(sandbox, address);
        Ok(address)
    }

    /// Restores an address that an earlier daemon allocated to the sandbox.
    pub(crate) fn restore(&mut self, sandbox: &str, address: Ipv4Addr) -> Result<(), IpamError> {
        let sandbox = sandbox.to_owned();
        if !self.is_for_pods(address) {
            return Err(IpamError::Foreign { sandbox, address, subnet: self.subnet });
        }
        if let Some(address) = self.address_of(&sandbox) {
            return Err(IpamError::AlreadyHeld { sandbox, address });
        }
        if let Some(holder) = self.by_address.get(&address) {
            return Err(IpamError::Conflict { holder: holder.clone(), sandbox, address });
        }
        self.hold(&sandbox, address);
        self.floor = self.floor.max(address);
        Ok(())
    }

    /// Frees the address of the sandbox and returns it; `None` if it has none.
    pub(crate) fn free(&mut self, sandbox: &str) -> Option<Ipv4Addr> {
        let address = self.by_sandbox.remove(sandbox)?;
        self.by_address.remove(&address);
        self.freed.insert(address, self.frees);
        self.frees += 1;
        Some(address)
    }

    fn hold(&mut self, sandbox: &str, address: Ipv4Addr) {
        self.freed.remove(&address);
        self.by_sandbox.insert(sandbox.to_owned(), address);
        self.by_address.insert(address, sandbox.to_owned());
    }

    fn is_for_pods(&self, address: Ipv4Addr) -> bool {
        self.subnet.gateway() < address && address < self.end
    }

    fn next_free(&self) -> Option<Ipv4Addr> {
        let gateway = self.subnet.gateway().to_bits();
        let end = self.end.to_bits();
        let above = self.floor.to_bits().saturating_add(1);
        (above..end)
            .chain(gateway.saturating_add(1)..end.min(above))
            .map(Ipv4Addr::from_bits)
            .find(|address| {
                !self.by_address.contains_key(address) && !self.freed.contains_key(address)
            })
            .or_else(|| {
                let longest_free = self.freed.iter().min_by_key(|(_, freed)| **freed)?;
                Some(*longest_free.0)
            })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use std::collections::BTreeSet;

    fn ipam(subnet: &str) -> Ipam {
        Ipam::new(subnet.parse().unwrap())
    }

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn allocate_ascends_and_reuses_freed_addresses_last() {
        let mut ipam = ipam("10.0.0.0/29");
        assert_eq!(ipam.allocate("a").unwrap(), ip("10.0.0.2"));
        assert_eq!(ipam.allocate("b").unwrap(), ip("10.0.0.3"));
        assert_eq!(ipam.free("b"), Some(ip("10.0.0.3")));
        assert_eq!(ipam.free("b"), None);
        assert_eq!(ipam.allocate("c").unwrap(), ip("10.0.0.4"));
        assert_eq!(ipam.allocate("d").unwrap(), ip("10.0.0.5"));
        assert_eq!(ipam.allocate("e").unwrap(), ip("10.0.0.6"));
        assert_eq!(ipam.allocate("f").unwrap(), ip("10.0.0.3"));
        let error = ipam.allocate("g").unwrap_err();
        assert_eq!(
            error.to_string(),
            "all 5 addresses of 10.0.0.0/29 are held by pods; remove a pod or configure a larger subnet"
        );
    }

    #[rstest]
    #[case("10.0.0.0/24", 253)]
    #[case("10.0.0.0/30", 1)]
    #[case("10.0.0.0/31", 0)]
    #[case("10.0.0.0/32", 0)]
    #[case("255.255.255.254/31", 0)]
    fn capacity_counts_assignable_addresses(#[case] subnet: &str, #[case] capacity: u32) {
        let mut ipam = ipam(subnet);
        assert_eq!(ipam.capacity(), capacity);
        let given = (0..).take_while(|i| ipam.allocate(&format!("p{i}")).is_ok());
        assert_eq!(given.count(), capacity as usize);
    }

    #[test]
    fn allocate_gives_sandbox_one_address() {
        let mut ipam = ipam("10.0.0.0/24");
        ipam.allocate("a").unwrap();
        assert!(matches!(ipam.allocate("a"), Err(IpamError::AlreadyHeld { .. })));
    }

    #[rstest]
    #[case("b", "10.0.0.9", "is held by sandbox \"a\"")]
    #[case("a", "10.0.0.10", "already holds 10.0.0.9")]
    #[case("b", "10.0.0.1", "is not a pod address")]
    #[case("b", "10.0.0.0", "is not a pod address")]
    #[case("b", "10.0.0.255", "is not a pod address")]
    #[case("b", "10.0.1.5", "is not a pod address")]
    fn restore_rejects_conflicting_addresses(
        #[case] sandbox: &str,
        #[case] address: &str,
        #[case] part: &str,
    ) {
        let mut ipam = ipam("10.0.0.0/24");
        ipam.restore("a", ip("10.0.0.9")).unwrap();
        let error = ipam.restore(sandbox, ip(address)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(ipam.held(), 1);
    }

    #[test]
    fn allocate_continues_above_restored_addresses() {
        let mut ipam = ipam("10.0.0.0/24");
        ipam.restore("a", ip("10.0.0.9")).unwrap();
        assert_eq!(ipam.allocate("b").unwrap(), ip("10.0.0.10"));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(u8),
        Free(u8),
        Restore(u8, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..24).prop_map(Step::Allocate),
            (0u8..24).prop_map(Step::Free),
            (0u8..24, any::<u8>()).prop_map(|(s, a)| Step::Restore(s, a)),
        ]
    }

    #[test]
    fn capacity_is_limited_by_subnet_of_other_family() {
        // With a subnet as small as /28 in the other family: 16 addresses, including the network's and the gateway's.
        let mut ipam = Ipam::with_numbers("10.0.0.0/16".parse().unwrap(), 4);
        assert_eq!(ipam.capacity(), 14);
        for number in 2..16 {
            let address = ipam.allocate(&number.to_string()).unwrap();
            assert_eq!(address, Ipv4Addr::new(10, 0, 0, number));
        }
        assert!(ipam.allocate("more").is_err());
    }

    #[test]
    fn thousands_of_pods_get_distinct_addresses() {
        let mut ipam = ipam("10.0.0.0/20");
        let given: BTreeSet<Ipv4Addr> =
            (0..4093).map(|n| ipam.allocate(&n.to_string()).unwrap()).collect();
        assert_eq!((given.len(), ipam.capacity()), (4093, 4093));
        assert!(ipam.allocate("more").is_err());
        ipam.free("77").unwrap();
        assert_eq!(ipam.allocate("more").unwrap(), ip("10.0.0.79"));
    }

    proptest! {
        #[test]
        fn allocate_never_repeats_held_addresses(steps in prop::collection::vec(step(), 0..200)) {
            let mut ipam = ipam("10.0.0.0/28");
            let mut model: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
            let mut just_freed = None;
            for step in steps {
                match step {
                    Step::Allocate(s) => {
                        let s = s.to_string();
                        match ipam.allocate(&s) {
                            Ok(address) => {
                                prop_assert!(!model.values().any(|held| *held == address));
                                prop_assert!(ipam.is_for_pods(address));
                                // An address freed just before comes back only when it is the only one left.
                                if just_freed == Some(address) {
                                    prop_assert_eq!(model.len() + 1, ipam.capacity() as usize);
                                }
                                model.insert(s, address);
                            }
                            Err(IpamError::AlreadyHeld { .. }) => prop_assert!(model.contains_key(&s)),
                            Err(IpamError::Exhausted { .. }) => prop_assert_eq!(model.len(), 13),
                            Err(other) => prop_assert!(false, "{other}"),
                        }
                        just_freed = None;
                    }
                    Step::Free(s) => {
                        let s = s.to_string();
                        just_freed = ipam.free(&s);
                        prop_assert_eq!(just_freed, model.remove(&s));
                    }
                    Step::Restore(s, a) => {
                        let (s, address) = (s.to_string(), Ipv4Addr::new(10, 0, 0, a));
                        if ipam.restore(&s, address).is_ok() {
                            prop_assert!(!model.values().any(|held| *held == address));
                            model.insert(s, address);
                        }
                        just_freed = None;
                    }
                }
                prop_assert_eq!(ipam.held(), model.len());
                prop_assert_eq!(model.values().collect::<BTreeSet<_>>().len(), model.len());
            }
        }
    }
}
