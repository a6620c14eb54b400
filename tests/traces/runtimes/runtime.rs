//! The runtime of a scenario's node: crib's, or containerd.

use std::collections::BTreeSet;
use std::path::PathBuf;

use harness::{Client, Runtime};
use registry::Registry;

use crate::runtimes::containerd::Containerd;

/// The kind of a node's runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeKind {
    Crib,
    Containerd,
}

/// A runtime in the node's directory.
pub(crate) enum NodeRuntime {
    Crib(Box<Runtime>),
    Containerd(Box<Containerd>),
}

impl NodeRuntime {
    /// Starts a runtime that pulls images of these hosts from a registry.
    pub(crate) async fn start(
        kind: RuntimeKind,
        registry: &Registry,
        hosts: &BTreeSet<String>,
    ) -> Self {
        match kind {
            RuntimeKind::Crib => {
                let mut options = Runtime::with().durable();
                for host in hosts {
                    let mirror = format!("--registry-mirror={host}={}", registry.url());
                    options = options.argument(mirror);
                }
                Self::Crib(Box::new(options.start().await.unwrap()))
            }
            RuntimeKind::Containerd => {
                Self::Containerd(Box::new(Containerd::start(registry, hosts).await))
            }
        }
    }

    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Crib(runtime) => &runtime.client,
            Self::Containerd(containerd) => &containerd.client,
        }
    }

    /// The node's directory.
    pub(crate) fn root(&self) -> PathBuf {
        match self {
            Self::Crib(runtime) => runtime.root(),
            Self::Containerd(containerd) => containerd.root(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        match self {
            Self::Crib(runtime) => runtime.socket(),
            Self::Containerd(containerd) => containerd.socket(),
        }
    }

    /// Stops the daemon. Its pods keep running.
    pub(crate) async fn stop(&mut self) {
        match self {
            Self::Crib(runtime) => drop(runtime.stop().await),
            Self::Containerd(containerd) => containerd.stop().await,
        }
    }

    /// Kills the daemon. Its pods keep running.
    pub(crate) async fn kill(&mut self) {
        match self {
            Self::Crib(runtime) => runtime.kill9().await,
            Self::Containerd(containerd) => containerd.stop().await,
        }
    }

    pub(crate) async fn restart(&mut self) {
        match self {
            Self::Crib(runtime) => runtime.restart().await.unwrap(),
            Self::Containerd(containerd) => containerd.restart().await,
        }
    }

    /// Stops the daemon and its pods. An error describes what is left.
    pub(crate) async fn end(self) -> Result<(), String> {
        match self {
            Self::Crib(runtime) => {
                let ended = tokio::task::spawn_blocking(move || drop(runtime)).await;
                ended.map_err(|error| {
                    let message = error.into_panic();
                    let message = message.downcast_ref::<String>().map_or("", String::as_str);
                    format!("the runtime left something: {message}")
                })
            }
            Self::Containerd(containerd) => containerd.end().await,
        }
    }
}
