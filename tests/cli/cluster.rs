//! `crib agent --kubeconfig`: a node of a cluster, whose API server is in the test.

pub(crate) mod api_server;
pub(crate) mod credentials;
pub(crate) mod csi;
pub(crate) mod csi_devices;
pub(crate) mod csi_driver;
pub(crate) mod csi_expansion;
pub(crate) mod csi_scene;
pub(crate) mod csi_stats;
pub(crate) mod dra;
pub(crate) mod eviction;
pub(crate) mod faults;
pub(crate) mod joined;
pub(crate) mod kubeadm;
pub(crate) mod mirrors;
pub(crate) mod node;
pub(crate) mod objects;
pub(crate) mod pods;
pub(crate) mod server;
pub(crate) mod server_client;
pub(crate) mod server_handlers;
pub(crate) mod server_streams;
pub(crate) mod services;
pub(crate) mod several_nodes;
pub(crate) mod stats;
pub(crate) mod volumes;
