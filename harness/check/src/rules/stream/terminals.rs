//! Rules for terminals: controlling terminals, /dev/console and sizes.

use harness::streaming::Command;

use crate::prelude::*;
use crate::rules::stream::{TERMINAL, TRANSPORTS, attach, ended, exec, read_until, shell, write};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STR-002": "The size that an Exec client sends becomes the size of the command's terminal.",
        KUBELET, tags ["kubelet", "stream", "tty"], calls [Exec],
        terminal_is_resized given [container], faults ["Exec request drop tty", "Exec drop url"];
    Should "CRI-STR-017": "The terminal of a container or Exec command is its controlling terminal, so that /dev/tty refers to this terminal.",
        CONTAINERD, tags ["stream", "tty"], calls [CreateContainer, Exec],
        terminal_is_controlling, faults [
            "CreateContainer request drop config.tty",
            "Exec request drop tty",
            "Exec drop url",
        ];
    Must "CRI-STR-018": "The size that an Attach client sends becomes the size of the container's terminal.",
        KUBELET, tags ["kubelet", "stream", "tty"], calls [Attach],
        terminal_of_container_is_resized given [pod], faults [
            "CreateContainer request drop config.tty",
            "Attach drop url",
        ];
    Should "CRI-STR-020": "In a container with a terminal, /dev/console is the terminal (OCI runtime-spec), because init systems write to /dev/console.",
        CONTAINERD, tags ["tty"], calls [CreateContainer],
        terminal_is_console given [namespaces], faults [
            "CreateContainer request drop config.tty",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"exit 8\"]",
        ];
};

async fn terminal_is_console(x: &Context) -> Verdict {
    let text = "[ -t 1 ] || exit 9; [ -c /dev/console ] || exit 8; echo shown >/dev/console || exit 7; exit 5";
    let pod = x.pod().await?;
    let mut config = x.script("c", text);
    config.tty = true;
    let id = pod.start(config).await?;
    let status = x.exited(&id).await?;
    let what = "the exit code of a container that writes to /dev/console";
    equal(what, &status.exit_code, &5)?;
    in_log(x, &pod, "/dev/console").await
}

/// Waits until the log has the line "shown", which was written to a file.
async fn in_log(x: &Context, pod: &Pod, file: &str) -> Verdict {
    x.until(&format!("the line written to {file} in the log"), async || {
        let lines = x.lines(pod);
        // A terminal also ends its lines with a carriage return, which some runtimes keep.
        match lines.iter().any(|line| line.text.trim_end() == "shown") {
            true => Ok(()),
            false => Err(lines),
        }
    })
    .await
}

async fn terminal_is_controlling(x: &Context) -> Verdict {
    let text =
        "[ -t 1 ] || exit 9; [ -c /dev/tty ] || exit 8; echo shown >/dev/tty || exit 7; exit 5";
    let pod = x.pod().await?;
    let mut config = x.script("c", text);
    config.tty = true;
    let id = pod.start(config).await?;
    let status = x.exited(&id).await?;
    let what = "the exit code of a container that writes to /dev/tty";
    equal(what, &status.exit_code, &5)?;
    in_log(x, &pod, "/dev/tty").await?;
    let other = pod.start(x.forever("d")).await?;
    // The command exits after the client has read all output: some runtimes lose output that is read too late.
    let text = text.replace("; exit 5", "; read line; exit 5");
    let mut command = shell(x, &other, &text, TERMINAL).await?;
    read_until(x, &mut command.stdout, "shown\r\n").await?;
    write(&command, b"\n").await?;
    let what = "the end of the stream of an Exec that writes to /dev/tty";
    equal(what, &ended(x, command).await?, &Ok(5))
}

async fn terminal_of_container_is_resized(x: &Context, pod: Pod) -> Verdict {
    // The container prints the terminal's size until it is stopped.
    let mut config = x.script("c", "while :; do stty size || exit 9; sleep 0.1; done");
    config.stdin = true;
    config.tty = true;
    let id = pod.start(config).await?;
    let attached = attach(x, &id, TERMINAL).await?;
    sizes_arrive(x, attached).await
}

async fn terminal_is_resized(x: &Context, id: String) -> Verdict {
    for transport in TRANSPORTS {
        // The command prints the terminal's size until the stream is closed.
        let script = "while :; do stty size || exit 9; sleep 0.1; done";
        let cmd = ["/bin/sh", "-c", script];
        let command = exec(x, &id, &cmd, TERMINAL, transport).await?;
        sizes_arrive(x, command).await?;
    }
    Ok(())
}

/// Sends sizes to a command that prints its terminal's size repeatedly, and waits until it prints each of them.
async fn sizes_arrive(x: &Context, mut command: Command) -> Verdict {
    read_until(x, &mut command.stdout, "\n").await?;
    let sizes = present(command.sizes.take(), "the protocol", "a stream for sizes", "none")?;
    for (width, height) in [(77, 33), (140, 20)] {
        if let Err(error) = sizes.send(width, height).await {
            return failed("a size", "to be accepted", format!("{error:?}"));
        }
        let expected = format!("{height} {width}\r\n");
        read_until(x, &mut command.stdout, &expected).await?;
    }
    Ok(())
}
