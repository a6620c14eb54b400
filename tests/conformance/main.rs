//! What a Container Runtime Interface server promises, checked through its socket: one file for each family of calls.
//!
//! Each test has a runtime of its own, so they run at the same time; each is a leak test too, because a runtime that is
//! dropped looks for what is left of it. `CRI_ENDPOINT=unix:///…` checks another runtime instead (with `CRI_IMAGE`, an
//! image that it can pull, with the usual commands); what kills, restarts or configures the runtime still uses crib.
#![allow(clippy::unwrap_used)]

mod accounts;
mod authority;
mod cgroup_life;
mod cgroups;
mod checkpoint;
mod cni;
mod confinement;
mod create;
mod devices;
mod events;
mod exec;
mod full_disk;
mod handlers;
mod host_ports;
mod hostile;
mod http2;
mod ids;
mod image;
mod image_names;
mod image_volumes;
mod inherited;
mod killed;
mod lists;
mod logs;
mod malformed;
mod metrics;
mod mounts;
mod namespaces;
mod network;
mod nonsense;
mod owner;
mod packets;
mod power_cut;
mod private;
mod process_streams;
mod propagation;
mod pull;
mod races;
mod records;
mod recovery;
mod sandbox;
mod seccomp;
mod security;
mod security_modules;
mod shared_pids;
mod silent_keepers;
mod stats;
mod stop;
mod storm;
mod streaming;
mod strings;
mod support;
mod survivors;
mod terminal;
mod trees;
mod userns;
mod verbose;
mod volumes;
mod wire;
