//! Bridges of daemons that were killed and whose state directory no longer exists: no daemon will take them over.
//!
//! Each bridge in the host's network namespace carries its owner as its alias. A daemon that starts removes the bridges of owners
//! that cannot be restarted.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::bridging::subnet_lock::SubnetLocks;
use crate::links::link_query::LinkFacts;
use crate::links::netlink::{Netlink, NetlinkError};
use crate::links::requests::{self, Link};
use crate::netfilter::nat;

/// The longest alias of a link, in bytes (linux/if_link.h, IFALIASZ without its end).
const LONGEST: usize = 255;

/// The daemon that a bridge belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The mount namespace in which `state_dir` is: in another mount namespace it may only seem missing.
    mount_namespace: u64,
    /// The subnet whose lock the daemon holds while it runs.
    subnet: String,
    state_dir: PathBuf,
}

impl Owner {
    /// This process, with its subnet; `None` if the kernel does not report its mount namespace.
    pub(crate) fn own(subnet: String, state_dir: &Path) -> Option<Self> {
        Some(Self { mount_namespace: mount_namespace()?, subnet, state_dir: state_dir.to_owned() })
    }

    /// The alias of the bridge; `None` if the state directory's path is too long for one.
    pub(crate) fn alias(&self) -> Option<String> {
        let state_dir = self.state_dir.to_str()?;
        let alias = format!("crib {} {} {state_dir}", self.mount_namespace, self.subnet);
        (alias.len() <= LONGEST).then_some(alias)
    }

    /// ◆ The owner in an alias; `None` for the alias of another program.
    fn parse(alias: &str) -> Option<Self> {
        let mut words = alias.strip_prefix("crib ")?.splitn(3, ' ');
        let owner = Self {
            mount_namespace: words.next()?.parse().ok()?,
            subnet: words.next()?.to_owned(),
            state_dir: words.next()?.into(),
        };
        owner.state_dir.is_absolute().then_some(owner)
    }
}

fn mount_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/mnt").ok()?.ino())
}

/// The bridges without ports whose owners have no state directory.
fn orphans(
    links: &[LinkFacts],
    mount_namespace: u64,
    exists: impl Fn(&Path) -> bool,
) -> Vec<(&LinkFacts, Owner)> {
    let has_ports = |index| links.iter().any(|link| link.controller == Some(index));
    let bridges = links.iter().filter(|l| l.bridge && !has_ports(l.index));
    let owned = bridges.filter_map(|link| Some((link, Owner::parse(link.alias.as_deref()?)?)));
    owned
        .filter(|(_, owner)| owner.mount_namespace == mount_namespace && !exists(&owner.state_dir))
        .collect()
}

/// Whether the directory may exist: only the error "not found" proves that it does not.
fn may_exist(path: &Path) -> bool {
    !matches!(path.try_exists(), Ok(false))
}

/// Removes the orphaned bridges among `links`, with their packet rules.
pub(crate) fn remove(
    netlink: &mut Netlink,
    locks: &SubnetLocks,
    links: &[LinkFacts],
) -> Result<(), NetlinkError> {
    let Some(mount_namespace) = mount_namespace() else {
        return Ok(());
    };
    for (bridge, owner) in orphans(links, mount_namespace, may_exist) {
        // A running daemon holds the lock, even if its state directory was removed.
        let Ok(Some(lock)) = locks.take(&owner.subnet) else {
            continue;
        };
        tracing::info!(bridge = bridge.name, state_dir = %owner.state_dir.display(), "removing orphaned bridge");
        netlink.batch(&[requests::delete(Link::Index(bridge.index))])?;
        nat::remove_tables(&bridge.name);
        drop(lock);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn owner(state_dir: &str) -> Owner {
        Owner { mount_namespace: 7, subnet: "10.200.0.0/20".into(), state_dir: state_dir.into() }
    }

    fn bridge(index: u32, alias: Option<String>) -> LinkFacts {
        LinkFacts {
            index,
            name: format!("b{index}"),
            bridge: true,
            controller: None,
            operational: true,
            forwarding: false,
            alias,
        }
    }

    #[test]
    fn alias_is_parsed_as_written() {
        let owner = owner("/var/lib/my crib");
        let alias = owner.alias().unwrap();
        assert_eq!(alias, "crib 7 10.200.0.0/20 /var/lib/my crib");
        assert_eq!(Owner::parse(&alias), Some(owner));
    }

    #[rstest]
    #[case::other_program("my bridge")]
    #[case::no_number("crib x 10.200.0.0/20 /s")]
    #[case::no_directory("crib 7 10.200.0.0/20")]
    #[case::relative("crib 7 10.200.0.0/20 s")]
    fn alias_of_other_program_has_no_owner(#[case] alias: &str) {
        assert_eq!(Owner::parse(alias), None);
    }

    #[test]
    fn long_state_directory_gets_no_alias() {
        assert_eq!(owner(&"/x".repeat(200)).alias(), None);
    }

    #[rstest]
    #[case::there("/proc/self", true)]
    #[case::gone("/nowhere/state", false)]
    #[case::unknown("/proc/self/status/state", true)]
    fn directory_may_exist_unless_it_is_not_found(#[case] path: &str, #[case] expected: bool) {
        assert_eq!(may_exist(Path::new(path)), expected);
    }

    #[test]
    fn only_bridge_without_ports_and_state_directory_is_orphan() {
        let mut port = bridge(20, owner("/gone").alias());
        port.bridge = false;
        port.controller = Some(3);
        let links = [
            bridge(1, owner("/gone").alias()),
            bridge(2, owner("/there").alias()),
            bridge(3, owner("/gone").alias()),
            bridge(4, None),
            port,
        ];
        let found = |namespace| {
            let found = orphans(&links, namespace, |path| path == Path::new("/there"));
            found.iter().map(|(link, _)| link.index).collect::<Vec<_>>()
        };
        assert_eq!(found(7), [1]);
        assert_eq!(found(8), [0; 0]);
    }
}
