//! `crib attach`: joins this terminal with a running container.

use clap::Args;
use cri::v1;

use crate::client::{Connection, find, finish, with_codes};
use crate::exit::Exit;
use crate::stream::{Over, join, standard};

/// Show what a running container writes from now on, and give it input
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib attach web
  crib attach -it shell

Ends when the container does. Input is for containers that were made with one, a terminal for those with one."))]
pub(crate) struct AttachArgs {
    /// The container: its id, the beginning of one, or its name
    container: String,
    /// Give it this command's standard input
    #[arg(short, long)]
    interactive: bool,
    /// Its streams are a terminal
    #[arg(short, long)]
    tty: bool,
    #[command(flatten)]
    over: Over,
    #[command(flatten)]
    connection: Connection,
}

/// Attaches.
pub(crate) fn run(args: &AttachArgs) -> Exit {
    finish(async {
        let cri = args.connection.open()?;
        let container = find::container(&cri, &args.container).await?;
        let streams = standard(args.interactive, args.tty);
        let request = v1::AttachRequest {
            container_id: container.id,
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let mut client = cri.runtime.runtime.clone();
        let answer = cri.call("Attach", client.attach(request)).await?;
        let url = answer.into_inner().url;
        join(&url, streams, args.over.transport()).await
    })
}
