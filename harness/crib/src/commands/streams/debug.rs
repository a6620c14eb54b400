//! `crib debug`: adds an ephemeral container to a pod of a `crib run`, and attaches to it.

use std::io::{self, IsTerminal as _};

use compact::Set;
use crib_base::run_socket::{Request, RunResponse};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, EnvVar, EphemeralContainer};

use super::attach;
use super::logs;
use crate::commands::prelude::*;
use crate::stream::TransportArgs;

mod profile;

use profile::Profile;

/// The interval at which the container's state is polled.
const POLL: Duration = Duration::from_millis(100);

/// Add an ephemeral container with debugging tools to a running pod
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib debug web -it --image busybox
  crib debug web -it --image crib.local/host --target nginx -- bash
  crib debug web --image busybox -c probe -- wget -O- localhost:8080
  crib debug web -it --image busybox --profile netadmin

`crib debug` adds an ephemeral container to a pod of `crib run`, as kubectl debug does. The ephemeral container shares the \
pod's network namespace and, with --target, the process namespace of the target container. The ephemeral container has the \
security context of kubectl's profile (with `general`, the capability SYS_PTRACE), is never restarted, and ends with the pod."))]
pub(crate) struct DebugArgs {
    /// Pod: name (web or shop/web) or id
    pod: String,
    /// Namespace of the pod [default: any]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Image of the container
    #[arg(long)]
    image: String,
    /// Command of the container [default: the image's command]
    #[arg(last = true)]
    command: Vec<String>,
    /// Pass the command as arguments to the image's entrypoint
    #[arg(long, requires = "command")]
    arguments_only: bool,
    /// Name of the container [default: debugger- and five random characters]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Security profile of the container
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Container of the pod whose process namespace the new container shares
    #[arg(long, value_name = "CONTAINER")]
    target: Option<String>,
    /// Environment variable; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = crate::client::select::label)]
    env: Vec<(String, String)>,
    /// When to pull the image [default: the Kubernetes default for the image's tag]
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: Option<String>,
    /// Attach to the container, and pass standard input to it
    #[arg(short = 'i', long = "stdin", alias = "interactive")]
    interactive: bool,
    /// Allocate a terminal
    #[arg(short, long, requires = "interactive")]
    tty: bool,
    /// Attach to the container [default: true with --stdin]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    attach: Option<bool>,
    /// Do not print informational messages
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    streaming: TransportArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Adds the container.
pub(crate) async fn run(args: &DebugArgs) -> Result<Exit, CallError> {
    if args.interactive && args.tty && !io::stdin().is_terminal() {
        let message =
            "standard input is not a terminal: leave out --tty, or run this in a terminal";
        return Err(CallError::Usage(message.to_owned()));
    }
    let all = args.connection.open_all()?;
    let text = find::in_namespace(&args.pod, args.namespace.as_deref());
    let (cri, pod) = find::pod(&all, &text).await?;
    let uid = pod.metadata.unwrap_or_default().uid;
    let name = args.container.clone().unwrap_or_else(generated_name);
    if !args.quiet {
        if args.container.is_none() {
            print(&format!("Defaulting debug container name to {name}."))?;
        }
        if let Some(target) = &args.target {
            print(&format!(
                "Targeting container {target:?}. If you don't see processes from this container it may be because the container \
                 runtime doesn't support this feature."
            ))?;
        }
    }
    let container = Box::new(container(args, &name));
    let added = cri.call_run(Request::AddEphemeralContainer { pod: uid.clone(), container })?;
    let added = added.ok_or_else(|| {
        let pod = &args.pod;
        CallError::Denied(format!(
            "pod {pod:?} does not belong to a crib run: containers can be added only to pods of `crib run`"
        ))
    })?;
    if let Some(why) = added.refused {
        return Err(CallError::Denied(format!("the container was not added: {why}")));
    }
    if !args.attach.unwrap_or(args.interactive) {
        return Ok(Exit::Success);
    }
    match started(cri, &uid, &name).await? {
        Started::Runs(id) => {
            if args.interactive && args.tty && !args.quiet {
                print_stderr("if there is no prompt, press enter");
            }
            attach::to(cri, id, args.interactive, args.tty, args.streaming).await
        }
        Started::HasEnded(id) => {
            logs::print_all(cri, &id).await?;
            Ok(Exit::Success)
        }
    }
}

fn container(args: &DebugArgs, name: &str) -> EphemeralContainer {
    let given = |words: bool| (words && !args.command.is_empty()).then(|| args.command.clone());
    let env = args.env.iter().map(|(name, value)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        ..EnvVar::default()
    });
    EphemeralContainer {
        name: name.to_owned(),
        image: Some(args.image.clone()),
        command: given(!args.arguments_only),
        args: given(args.arguments_only),
        env: (!args.env.is_empty()).then(|| env.collect()),
        image_pull_policy: args.image_pull_policy.clone(),
        stdin: args.interactive.then_some(true),
        // When piped input ends, the container's standard input is closed, but its output continues to the end.
        stdin_once: (args.interactive && !args.tty).then_some(true),
        tty: args.tty.then_some(true),
        target_container_name: args.target.clone(),
        security_context: args.profile.security_context(),
        ..EphemeralContainer::default()
    }
}

/// A generated name, which is unlikely to be in use; the run rejects one that is.
fn generated_name() -> String {
    let seed = format!("{} {}", std::process::id(), Timestamp::now());
    api::generated_names::generated_name("debugger-", &seed)
}

/// The state of a started container.
enum Started {
    Runs(String),
    HasEnded(String),
}

/// Waits until the container has started. Prints each reason for waiting once.
async fn started(cri: &Cri, uid: &str, name: &str) -> Result<Started, CallError> {
    let mut printed = Set::new();
    loop {
        let answer = cri.call_run(Request::Pods)?.ok_or(CallError::Lost)?;
        match progress_of(&answer, uid, name) {
            ContainerProgress::Started(started) => return Ok(started),
            ContainerProgress::Waiting(Some(why)) => {
                if printed.insert(why.clone()) {
                    print_stderr(&format!("container {name} is waiting: {why}"));
                }
            }
            ContainerProgress::Waiting(None) => {}
            ContainerProgress::Missing => {
                let what = "container";
                return Err(CallError::NotFound { what, name: name.to_owned() });
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The state of a container in the run's response.
enum ContainerProgress {
    Started(Started),
    /// Waiting, with the reason and message, if there is a message.
    Waiting(Option<String>),
    /// The pod does not exist.
    Missing,
}

fn progress_of(answer: &RunResponse, uid: &str, name: &str) -> ContainerProgress {
    let pods = &mut answer.pods.iter().map(|answer| &answer.pod);
    let Some(pod) = pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid)) else {
        return ContainerProgress::Missing;
    };
    let status = pod.status.as_ref();
    let mut statuses = status
        .and_then(|status| status.ephemeral_container_statuses.as_ref())
        .into_iter()
        .flatten();
    let Some(status) = statuses.find(|status| status.name == name) else {
        return ContainerProgress::Waiting(None);
    };
    let id = status.container_id.as_deref().unwrap_or_default();
    let id = id.rsplit_once("://").map_or(id, |(_, id)| id).to_owned();
    match status.state.clone().unwrap_or_default() {
        ContainerState { running: Some(_), .. } => ContainerProgress::Started(Started::Runs(id)),
        ContainerState { terminated: Some(_), .. } => {
            ContainerProgress::Started(Started::HasEnded(id))
        }
        ContainerState { waiting, .. } => {
            let waiting = waiting.unwrap_or_default();
            let reason = waiting.reason.unwrap_or_default();
            let message = waiting.message.filter(|message| !message.is_empty());
            ContainerProgress::Waiting(message.map(|message| format!("{reason}: {message}")))
        }
    }
}
