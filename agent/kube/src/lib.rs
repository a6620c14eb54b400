//! A client of a cluster's API server, for the agent that is a node of it.
//!
//! | room | what |
//! |---|---|
//! | [`client`] | kubeconfigs, requests, and collections that are followed (list and watch) |

mod chance;
pub mod client;
