//! The network that pods are connected to.

use std::{
    fs::File,
    net::IpAddr,
    os::fd::{AsFd as _, OwnedFd},
};

use super::Error;
use crate::{
    id::SandboxId,
    isolation::Isolation,
    net::{Bridge, BridgeConfig, NetError, loopback_up, private_netns},
};

/// A bridge, or why there is none.
pub(crate) enum Network {
    /// Pods get an address on it.
    Bridge(Bridge),
    /// Pods share the host's network, each with a loopback address of its own: there are no network namespaces.
    Host,
    /// Pods have a loopback interface only.
    Loopback {
        /// Why.
        reason: String,
    },
}

impl Network {
    /// Opens the network of `isolation`. `name` is the bridge's; `existing` are the sandboxes that are connected;
    /// `private` is the namespace of an earlier daemon's bridge.
    pub(crate) fn open(
        isolation: Isolation,
        name: &str,
        existing: &[(String, IpAddr)],
        private: Option<OwnedFd>,
    ) -> Self {
        let opened = match isolation {
            Isolation::Process => return Self::Host,
            Isolation::Root => Bridge::open(BridgeConfig::new(name), existing),
            Isolation::Rootless { .. } => {
                private
                    .map_or_else(private_netns, Ok)
                    .and_then(|namespace| {
                        let config = BridgeConfig {
                            namespace: Some(namespace),
                            ..BridgeConfig::new(name)
                        };
                        Bridge::open(config, existing)
                    })
            }
        };
        match opened {
            Ok(bridge) => Self::Bridge(bridge),
            Err(error) => {
                let reason = crate::chain(&error);
                tracing::warn!(%reason, "no bridge: pods get a loopback interface only");
                Self::Loopback { reason }
            }
        }
    }

    /// Connects the network namespace of process `pid`.
    pub(crate) fn attach(&self, id: &SandboxId, pid: i32) -> Result<Vec<IpAddr>, Error> {
        let fail = |source| Error::Net {
            what: "set up",
            source,
        };
        let namespace = || {
            File::open(format!("/proc/{pid}/ns/net"))
                .map_err(super::io("open the pod's network namespace"))
        };
        match self {
            Self::Host => Ok(vec![own_loopback(id)]),
            Self::Loopback { .. } => {
                loopback_up(namespace()?.as_fd()).map_err(fail)?;
                Ok(vec![IpAddr::from([127, 0, 0, 1])])
            }
            Self::Bridge(bridge) => Ok(vec![
                bridge
                    .attach(id.as_str(), namespace()?.as_fd())
                    .map_err(fail)?
                    .ip,
            ]),
        }
    }

    /// Disconnects a sandbox; it need not be connected.
    pub(crate) fn detach(&self, id: &SandboxId) -> Result<(), Error> {
        match self {
            Self::Bridge(bridge) => bridge.detach(id.as_str()).map_err(|source| Error::Net {
                what: "take down",
                source,
            }),
            Self::Host | Self::Loopback { .. } => Ok(()),
        }
    }

    /// A descriptor of the namespace that the bridge lives in, if that is not the host's: it ends with the last one.
    pub(crate) fn pin(&self) -> Option<OwnedFd> {
        match self {
            Self::Bridge(bridge) => bridge
                .namespace()
                .and_then(|fd| fd.try_clone_to_owned().ok()),
            Self::Host | Self::Loopback { .. } => None,
        }
    }

    /// Takes the bridge away if no pod is connected.
    pub(crate) fn close(self) {
        if let Self::Bridge(bridge) = self
            && let Err(error) = bridge.close()
            && !matches!(error, NetError::StillAttached { .. })
        {
            tracing::warn!(error = crate::chain(&error), "the bridge stays");
        }
    }
}

/// An address of 127.0.0.0/8 for a sandbox, made of its random id: never 127.0.x.x, where the host's own services are.
fn own_loopback(id: &SandboxId) -> IpAddr {
    let number = u32::from_str_radix(id.as_str().get(..6).unwrap_or_default(), 16).unwrap_or(1);
    let [_, a, b, c] = number.to_be_bytes();
    IpAddr::from([127, a.max(1), b, c.clamp(1, 254)])
}
