//! `crib attach`: attaches to a running container.

use crate::client::completion;
use crate::client::find::ContainerNameArgs;
use crate::commands::prelude::*;
use crate::objects::workload_pods::Best;
use crate::stream::{TransportArgs, join, standard};

/// Attach to a running container
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib attach web
  crib attach -it shell

`crib attach` exits when the container exits. With --interactive, `crib attach` also exits when standard input ends, unless \
the container has `stdinOnce: true` and no terminal. If standard input ends, a container with `stdinOnce: true` and no \
terminal reads end of file, and `crib attach` continues to print its output.

--interactive needs a container with `stdin: true`; --tty needs a container with `tty: true`."))]
pub(crate) struct AttachArgs {
    /// Container: id, id prefix or name; or a pod: web, pod/web; or an object that has pods: deploy/web, job/migrate, svc/web
    #[arg(add = completion::pods_and_containers())]
    container: String,
    #[command(flatten)]
    container_name: ContainerNameArgs,
    /// Namespace of the pod [default: any]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Pass standard input to the container
    #[arg(short, long, alias = "stdin")]
    interactive: bool,
    /// Attach to the container's terminal
    #[arg(short, long)]
    tty: bool,
    #[command(flatten)]
    streaming: TransportArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Attaches to the container.
pub(crate) async fn run(args: &AttachArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let (name, namespace) = (&args.container_name, args.namespace.as_deref());
    let found = find::container_of(&all, &args.container, name, namespace, Best::ToConnect);
    let find::SelectedContainer { cri, container, .. } = found.await?;
    to(cri, container.id, args.interactive, args.tty, args.streaming).await
}

/// Attaches to a container.
pub(super) async fn to(
    cri: &Cri,
    container_id: String,
    interactive: bool,
    tty: bool,
    streaming: TransportArgs,
) -> Result<Exit, CallError> {
    let streams = standard(interactive, tty);
    let request = v1::AttachRequest {
        container_id,
        stdin: streams.stdin,
        tty: streams.tty,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("Attach", client.attach(request)).await?;
    let url = answer.into_inner().url;
    join(&url, streams, streaming.transport()).await
}
