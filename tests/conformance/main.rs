//! The promises of a Container Runtime Interface server, tested through its socket: one file for each group of calls.
//!
//! Each test starts its own runtime, so tests run in parallel. Each test is also a leak test: dropping a runtime checks for
//! leftovers. `CRI_ENDPOINT=unix:///…` tests another runtime instead (with `CRI_IMAGE`, an image that it can pull, with the
//! usual commands). Tests that kill, restart or configure the runtime still use crib.
#![allow(clippy::unwrap_used)]

mod accounts;
mod authority;
mod behave;
mod cgroup_lifecycle;
mod cgroups;
mod checkpoint;
mod churn;
mod cni;
mod confinement;
mod create;
mod devices;
mod egress;
mod events;
mod exec;
mod file_permissions;
mod full_disk;
mod grpc_framing;
mod host_ports;
mod hostile_input;
mod http2;
mod id_prefixes;
mod image;
mod image_names;
mod image_volumes;
mod inheritance;
mod interrupted_calls;
mod keeper_death;
mod list_streams;
mod logs;
mod malformed;
mod memory_volumes;
mod metrics;
mod mounts;
mod namespaces;
mod network;
mod packet_rules;
mod power_cut;
mod process_streams;
mod propagation;
mod proxy;
mod pull;
mod records;
mod recovery;
mod robustness;
mod rules;
mod runtime_handlers;
mod sandbox;
mod seccomp;
mod security;
mod security_modules;
mod shared_pids;
mod socket_access;
mod state_machine;
mod stats;
mod stop;
mod streaming;
mod string_validation;
mod support;
mod terminal;
mod tree_removal;
mod unresponsive_keepers;
mod userns;
mod verbose_status;
mod volumes;
mod zygote;
