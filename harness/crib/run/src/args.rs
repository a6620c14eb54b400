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
  crib run examples/hello.yaml               run until every container has ended
  crib run pods/ more.yaml                   run the manifests of a directory and a file
  generate-pod | crib run -                  read manifests from standard input
  helm template . | crib run -               run the output of helm: Jobs, Deployments and so on
  crib run --timeout 30s examples/forever.yaml
  crib run --output json pod.yaml | jq -r 'select(.type == \"log\") | .text'
  crib run --watch pods/                     watch the files, and apply each change
  crib run --keep pod.yaml                   leave the pods running when the command exits
  crib run --name web pods/                  run in the background, until crib down web
  crib run --name web --wait pods/           run in the background, and wait for Ready pods

A foreground run continues until --timeout or Ctrl-C if a Deployment or another controller keeps pods running. A foreground \
run also continues until --timeout or Ctrl-C if a pod has restartPolicy Always or an image that cannot be pulled. A CronJob \
keeps a foreground run going until --timeout or Ctrl-C, unless the CronJob is suspended or --now is given. A Job that \
completes is a success, even if one of its pods failed. If the runtime rejects a pod's specification, the pod fails \
immediately. The first Ctrl-C ends the pods gracefully; the second Ctrl-C kills the pods after 2 s. A pod without \
terminationGracePeriodSeconds has a grace period of 10 s if Ctrl-C or `crib down` ends the pod, and otherwise 30 s, as in \
Kubernetes.
";

/// Run pods from manifests until all pods have ended, then remove the pods
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{}", exit::TABLE))]
pub struct RunArgs {
    /// Manifests: files, directories of *.yaml, *.yml and *.json files, or - for standard input
    #[arg(value_name = "FILE|DIR|-", required_unless_present = "filename")]
    manifests: Vec<PathBuf>,
    /// Manifests: a file, a directory or -, as in kubectl; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-")]
    filename: Vec<PathBuf>,
    /// Print only container output, warnings and errors
    #[arg(long, short, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// Print every event that a kubelet would record; by default, crib omits events that only repeat another output line
    #[arg(long, conflicts_with_all = ["quiet", "output"])]
    pub(crate) events: bool,
    /// Output format; with json, each line is an object of type transition, readiness, event, log or result
    #[arg(long, value_enum, default_value_t)]
    pub(crate) output: Output,
    /// End the pods after this time (1m30s, or 90 for 90 seconds) and exit with code 124
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Start one Job of each CronJob immediately, and ignore the schedules of CronJobs
    #[arg(long)]
    pub(crate) now: bool,
    /// Watch the manifest files and apply each change, until --timeout expires or Ctrl-C is pressed
    #[arg(long, conflicts_with = "keep")]
    pub(crate) watch: bool,
    /// Leave the pods and their runtime running when `crib run` exits, and print the commands that inspect and end the pods
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run the pods in the background under this name until `crib down NAME` or --timeout ends them; `crib run` exits when the
    /// pods have started
    #[arg(long, conflicts_with_all = ["keep", "output"])]
    pub(crate) name: Option<RunName>,
    /// With --name, exit when all pods are Ready or have succeeded; exit with code 1 if a pod can no longer succeed or become
    /// Ready
    #[arg(long, requires = "name")]
    pub(crate) wait: bool,
    /// Set for the process that runs in the background
    #[arg(long, hide = true, requires = "name")]
    pub(crate) detached: bool,
    #[command(flatten)]
    pub(crate) how: ManifestArgs,
    /// Add the images of this docker or OCI archive, OCI layout, or directory of archives and layouts; repeatable
    #[arg(long, value_name = "PATH")]
    pub(crate) image_archive: Vec<PathBuf>,
    /// Registry credentials: a Docker config.json for all pods, or manifests of Secrets that pods name in imagePullSecrets
    #[arg(long, value_name = "FILE")]
    pub(crate) pull_secrets: Option<PathBuf>,
    /// Isolation mode: root (namespaces created by root), rootless (namespaces in a user namespace), process (no namespaces) or
    /// auto (the strongest mode that the machine supports)
    #[arg(long, default_value_t = IsolationRequest::Auto)]
    pub(crate) isolation: IsolationRequest,
    /// Directory where the runtime keeps images for later runs, and from which it removes pods of earlier runs [default: a
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
