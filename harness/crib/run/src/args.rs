//! Arguments of `crib run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crib_base::args::{Output, duration};
use crib_base::dirs::{SeccompProfileArgs, VolumesDirArgs};
use crib_base::live::RunName;
use crib_base::{exit, live};
use runtime_fake::IsolationRequest;

use crate::input::inputs::ManifestArgs;

const EXAMPLES: &str = "Examples:
  crib run examples/hello.yaml               until every container has ended
  crib run pods/ more.yaml                   the manifests of a directory, and a file
  generate-pod | crib run -                  from standard input
  helm template . | crib run -               the output of helm: Jobs, Deployments and so on
  crib run --timeout 30s examples/forever.yaml
  crib run --output json pod.yaml | jq -r 'select(.type == \"log\") | .text'
  crib run --watch pods/                     watch the files, and apply each change
  crib run --keep pod.yaml                   leave the pods running when the command exits
  crib run --name web pods/                  in the background, until crib down web
  crib run --name web --wait pods/           in the background; return when the pods are Ready

A run in the foreground continues until --timeout or Ctrl-C if it has one of these: a CronJob (unless it is suspended or \
--now is given), a Deployment or another controller that keeps its pods running, a pod with restartPolicy Always, or a \
pod whose image cannot be pulled. A Job that completes is a success, even if one of its pods failed. A pod whose \
specification the runtime rejects fails immediately. The first Ctrl-C ends the pods gracefully; the second kills them \
after 2 s. A pod without terminationGracePeriodSeconds has a grace period of 10 s when Ctrl-C or `crib down` ends it, \
and otherwise 30 s, as in Kubernetes.
";

/// Run the pods of manifests until they end, then clean up
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{}", exit::TABLE))]
pub struct RunArgs {
    /// Manifests: files, directories of *.yaml, *.yml and *.json files, or - for standard input
    #[arg(value_name = "FILE|DIR|-", required_unless_present = "filename")]
    manifests: Vec<PathBuf>,
    /// Manifests given as an option, as with kubectl; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-")]
    filename: Vec<PathBuf>,
    /// Print only container output, warnings and errors
    #[arg(long, short, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// Print all events that the kubelet would record; by default, events that only repeat another output line are omitted
    #[arg(long, conflicts_with_all = ["quiet", "output"])]
    pub(crate) events: bool,
    /// Output format; json prints one object per line, of type transition, readiness, event, log or result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) output: Output,
    /// End the pods after this time (1m30s, or 90 for 90 seconds) and exit with code 124
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Start one Job of each CronJob immediately, and ignore the schedules
    #[arg(long)]
    pub(crate) now: bool,
    /// Watch the manifest files, and apply each change, until --timeout or Ctrl-C
    #[arg(long, conflicts_with = "keep")]
    pub(crate) watch: bool,
    /// Leave the pods and their runtime running when the command exits, and print how to inspect and end them
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run in the background under this name until `crib down NAME` or --timeout; the command exits when the pods have started
    #[arg(long, conflicts_with_all = ["keep", "output"])]
    pub(crate) name: Option<RunName>,
    /// With --name, exit when all pods are Ready or have succeeded; exit with code 1 if a pod can no longer become
    /// Ready or succeed
    #[arg(long, requires = "name")]
    pub(crate) wait: bool,
    /// Set for the process that runs in the background
    #[arg(long, hide = true, requires = "name")]
    pub(crate) detached: bool,
    #[command(flatten)]
    pub(crate) how: ManifestArgs,
    /// Provide the images of an archive (docker or OCI), an OCI layout, or a directory of archives and layouts; repeatable
    #[arg(long, value_name = "PATH")]
    pub(crate) image_archive: Vec<PathBuf>,
    /// Registry credentials: Docker's config.json, which applies to all pods, or manifests of Secrets that pods name in
    /// imagePullSecrets
    #[arg(long, value_name = "FILE")]
    pub(crate) pull_secrets: Option<PathBuf>,
    /// Isolation mode: root (namespaces created by root), rootless (namespaces in a user namespace), process (no namespaces) or
    /// auto (the strongest that the machine supports)
    #[arg(long, default_value_t = IsolationRequest::Auto)]
    pub(crate) isolation: IsolationRequest,
    /// Directory where the runtime keeps images for later runs; pods that an earlier run left there are removed [default: a
    /// temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) seccomp_profiles: SeccompProfileArgs,
    #[command(flatten)]
    pub(crate) volumes: VolumesDirArgs,
    /// Directory where other commands find the runtimes of runs
    #[arg(long, hide = true, default_value_os_t = live::directory())]
    pub(crate) live_dir: PathBuf,
}

impl RunArgs {
    /// All manifests: the arguments, then those of `-f`.
    pub(crate) fn manifests(&self) -> Vec<PathBuf> {
        self.manifests.iter().chain(&self.filename).cloned().collect()
    }
}
