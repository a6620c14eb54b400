//! Tests of crib's own behaviour as a CRI server, through its socket. The rules of `crib check` cover the behaviour that clients
//! see of any runtime; `runtime_keeps_every_rule` runs them.
//!
//! Each test starts its own runtime, so tests run in parallel. Each test is also a leak test: dropping a runtime checks for
//! leftovers.
#![allow(clippy::unwrap_used)]

mod create;
mod proxy;
mod sandbox;
mod support;

mod files {
    //! Files and mounts of containers.

    pub(crate) mod accounts;
    pub(crate) mod propagation;
    pub(crate) mod tree_removal;
    pub(crate) mod volumes;
}

mod guard {
    //! Actions that must be impossible for containers, images and clients.

    pub(crate) mod authority;
    pub(crate) mod confinement;
    pub(crate) mod file_permissions;
    pub(crate) mod hostile_input;
    pub(crate) mod inheritance;
    pub(crate) mod malformed;
    pub(crate) mod robustness;
    pub(crate) mod seccomp;
    pub(crate) mod security;
    pub(crate) mod security_modules;
    pub(crate) mod shared_pids;
    pub(crate) mod socket_access;
    pub(crate) mod string_validation;
    pub(crate) mod userns;
}

mod images {
    //! Images, and how they are pulled.

    pub(crate) mod image;
    pub(crate) mod image_names;
    pub(crate) mod pull;
}

mod networking {
    //! Networks of pods.

    pub(crate) mod cni;
    pub(crate) mod egress;
    pub(crate) mod host_ports;
    pub(crate) mod network;
    pub(crate) mod packet_rules;
}

mod processes {
    //! Processes of containers: starts, exits, streams and logs.

    pub(crate) mod behave;
    pub(crate) mod exec;
    pub(crate) mod interrupted_calls;
    pub(crate) mod logs;
    pub(crate) mod namespaces;
    pub(crate) mod process_streams;
    pub(crate) mod state_machine;
    pub(crate) mod stop;
    pub(crate) mod streaming;
    pub(crate) mod terminal;
    pub(crate) mod unresponsive_keepers;
}

mod protocol {
    //! The protocol itself: frames, lists, events, and the rules of `crib check`.

    pub(crate) mod events;
    pub(crate) mod grpc_framing;
    pub(crate) mod http2;
    pub(crate) mod id_prefixes;
    pub(crate) mod rules;
    pub(crate) mod verbose_status;
}

mod resources {
    //! Cgroups, devices, memory and full disks.

    pub(crate) mod cgroup_lifecycle;
    pub(crate) mod cgroups;
    pub(crate) mod devices;
    pub(crate) mod full_disk;
    pub(crate) mod memory_volumes;
    pub(crate) mod metrics;
}

mod restarts {
    //! State that survives restarts, kills and power cuts.

    pub(crate) mod checkpoint;
    pub(crate) mod churn;
    pub(crate) mod power_cut;
    pub(crate) mod records;
    pub(crate) mod recovery;
}

use std::io::Write as _;

use crate::support::*;

/// Lists them on standard error, bypassing the test runner's capture, as lines `missing: NEED: REASON`.
#[test]
fn missing_needs_have_reasons_of_one_line() {
    for need in Need::ALL {
        let Some(reason) = need.missing() else { continue };
        let _ = writeln!(std::io::stderr(), "missing: {need:?}: {reason}");
        assert_eq!(reason.lines().count(), 1, "{need:?}: {reason:?}");
    }
    assert_ne!(Need::Cgroups.missing().is_some(), Need::NoCgroups.missing().is_some());
}
