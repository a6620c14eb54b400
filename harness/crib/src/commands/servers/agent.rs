//! `crib agent`: keeps the pods of manifests or of a cluster running on any CRI runtime.

use std::path::{Path, PathBuf};

use agent::local_node::kubelet_config::{self, Document};
use clap::Args;
use crib_base::args::UnixEndpoint;
use crib_base::exit::Exit;
use crib_base::named_text;
use crib_base::report::message_to_exit;

mod cgroups;
mod cluster;
mod images;
pub(super) mod lock_file;
mod logs;
mod node;
pub(super) mod pairs;
mod process;
mod server;
pub(super) mod settings;
mod source;
pub(super) mod start;
mod status_ports;
mod systemd;

use settings::Settings;
use start::Start;

/// Run pods on a CRI runtime, from manifests or from a cluster's API server
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib agent --runtime-endpoint unix:///run/crib/crib.sock --manifests /etc/crib/manifests
  crib agent --runtime-endpoint unix:///run/crib.sock --manifest-mode kubelet --manifests pods/
  crib agent --runtime-endpoint unix:///run/crib.sock --kubeconfig node.kubeconfig --adopt-node

The agent runs the pods of all manifests, recreates a pod when its manifest changes, and ends a pod when its manifest is \
removed. Pods keep running when the agent exits; the next agent with the same directories adopts the pods. By default, the \
agent ends a pod without a manifest only if the agent itself started the pod. With --adopt-node, the agent ends every pod \
without a manifest; use this flag only if no other client uses the runtime. SIGTERM or SIGINT ends the agent within 10 s; a \
second signal ends the agent immediately.

A flag that the kubelet also has keeps the kubelet's name. `crib kubelet` runs the same agent with all of the kubelet's \
flags and defaults. A flag takes precedence over the corresponding field in the --config file.")]
pub(crate) struct AgentArgs {
    /// The runtime's CRI endpoint
    #[arg(
        long,
        value_name = "unix:///PATH",
        env = "CONTAINER_RUNTIME_ENDPOINT",
        required_unless_present = "config"
    )]
    runtime_endpoint: Option<UnixEndpoint>,
    /// KubeletConfiguration file; the agent warns about fields that it ignores, and rejects values that it does not support
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// Runs until a signal. Must be called while the process has a single thread.
pub(crate) fn run(args: AgentArgs) -> Result<Exit, Exit> {
    let file = args.config.as_deref().map(read_config).transpose();
    let (document, unknown) = message_to_exit(file, Exit::BadInput)?.unwrap_or_default();
    let checked = kubelet_config::check(&document);
    let checked =
        message_to_exit(checked.map_err(|all| format!("--config: {all}")), Exit::BadInput)?;
    Start::new(args.runtime_endpoint, args.settings, checked, unknown).run()
}

/// The fields that a KubeletConfiguration file sets, and the names of unknown fields.
fn read_config(path: &Path) -> Result<(Document, Vec<String>), String> {
    let text = named_text::read_text(path)
        .map_err(|error| format!("failed to read --config {}: {error}", path.display()))?;
    let file = kubelet_config::parse(&text)
        .map_err(|error| format!("--config {}: {error}", path.display()))?;
    let document = kubelet_config::normalized(&file.document);
    let document = document.map_err(|error| format!("--config {}: {error}", path.display()))?;
    Ok((document, file.unknown))
}
