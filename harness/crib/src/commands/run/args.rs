//! What can be typed after `crib run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use runtime_fake::IsolationWish;

use crate::args::{Output, duration};
use crate::exit;

const EXAMPLES: &str = "Examples:
  crib run examples/hello.yaml               until every container has ended
  crib run pods/ more.yaml                   the manifests of a directory, and a file
  generate-pod | crib run -                  from standard input
  crib run --timeout 30s examples/forever.yaml
  crib run --output json pod.yaml | jq -r 'select(.type == \"log\") | .text'
  crib run --keep pod.yaml                   leave the pods when the command ends

A pod whose containers are restarted for ever (restartPolicy Always), or whose image cannot be pulled, \
runs until --timeout or Ctrl-C. The first Ctrl-C ends the pods gracefully, the second kills them at once.
";

/// Run the pods of manifests, show them, clean up
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{}", exit::TABLE))]
pub(crate) struct RunArgs {
    /// Manifests: files, directories of *.yaml, *.yml and *.json files, or - for standard input
    #[arg(value_name = "FILE|DIR|-", required = true)]
    pub(crate) manifests: Vec<PathBuf>,
    /// Print only what the containers print, and what goes wrong
    #[arg(long, short, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// What standard output looks like; json is one object a line: transition, log, result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) output: Output,
    /// End the pods after this time (90, 1.5s, 1m30s), with exit code 124
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Leave the pods with a runtime of their own when the command ends, and say how to look at them and end them
    #[arg(long)]
    pub(crate) keep: bool,
    /// Take unknown fields of manifests as warnings
    #[arg(long)]
    pub(crate) lenient: bool,
    /// An image archive (docker or OCI), an OCI layout, or a directory of them; can be given several times
    #[arg(long, value_name = "PATH")]
    pub(crate) image_archive: Vec<PathBuf>,
    /// How pods are separated from the host: auto, root, rootless or process
    #[arg(long, default_value_t = IsolationWish::Auto)]
    pub(crate) isolation: IsolationWish,
    /// Keep images in this directory, so that the next run has them; other pods with their state in it are removed
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}
