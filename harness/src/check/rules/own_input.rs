//! Rules of what commands read from and of their terminals: the end of an input that there is none of, the controlling terminal,
//! its size, and the local address of a forwarded port.

use tonic::Code;

use super::port_forward::{echoes, ports, said_bye, served};
use super::stream::{TERMINAL, TRANSPORTS, attach, ended, exec, read_until, shell, write};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal, equal_output, failed};
use crate::check::rule::sources::{CONTAINERD, CRIO, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::streaming::{Command, Transport};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-EXE-022",
        severity: Severity::Must,
        says: "A command of ExecSync that reads its standard input finds the end of it at once.",
        source: KUBELET,
        tags: &["kubelet", "probe", "exec"],
        calls: &["ExecSync"],
        faults: &[
            "ExecSync fail DEADLINE_EXCEEDED",
            "ExecSync set exit_code 1",
            "ExecSync set stdout \"b3RoZXIK\"",
        ],
        body: |x| Box::pin(input_of_command_is_empty(x)),
    },
    Rule {
        id: "CRI-STR-002",
        severity: Severity::Must,
        says: "The size that a client sends becomes the size of the command's terminal.",
        source: KUBELET,
        tags: &["kubelet", "stream", "tty"],
        calls: &["Exec"],
        faults: &["Exec request drop tty", "Exec drop url"],
        body: |x| Box::pin(terminal_is_resized(x)),
    },
    Rule {
        id: "CRI-STR-017",
        severity: Severity::Should,
        says: "The terminal of a container, and that of an Exec, is the controlling one of its processes: /dev/tty leads to it.",
        source: CONTAINERD,
        tags: &["stream", "tty"],
        calls: &["CreateContainer", "Exec"],
        faults: &[
            "CreateContainer request drop config.tty",
            "Exec request drop tty",
            "Exec drop url",
        ],
        body: |x| Box::pin(terminal_is_controlling(x)),
    },
    Rule {
        id: "CRI-STR-018",
        severity: Severity::Must,
        says: "The size that a client of Attach sends becomes the size of the container's terminal.",
        source: KUBELET,
        tags: &["kubelet", "stream", "tty"],
        calls: &["Attach"],
        faults: &["CreateContainer request drop config.tty", "Attach drop url"],
        body: |x| Box::pin(terminal_of_container_is_resized(x)),
    },
    Rule {
        id: "CRI-STR-019",
        severity: Severity::Should,
        says: "PortForward reaches a server that listens on ::1 alone.",
        source: CRIO,
        tags: &["stream", "network"],
        calls: &["PortForward"],
        faults: &[
            "PortForward drop url",
            "PortForward request set pod_sandbox_id \"none\"",
        ],
        body: |x| Box::pin(ipv6_port_is_forwarded(x)),
    },
];

async fn input_of_command_is_empty(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let answer = match x.client.exec(&id, ["/bin/sh", "-c", "cat"], 10).await {
        Err(status) if status.code() == Code::DeadlineExceeded => {
            return failed(
                "cat by ExecSync with a timeout of 10 s",
                "to end at once",
                status.message(),
            );
        }
        answer => answer?,
    };
    equal_output("stderr of cat", &answer.stderr, b"")?;
    equal_output("stdout of cat", &answer.stdout, b"")?;
    equal("the exit code of cat", &answer.exit_code, &0)
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
    x.until("what was written to /dev/tty in the log", async || {
        let lines = x.lines(&pod, &id);
        // A terminal ends its lines with a carriage return too, which some runtimes keep.
        match lines.iter().any(|line| line.text.trim_end() == "shown") {
            true => Ok(()),
            false => Err(lines),
        }
    })
    .await?;
    let other = pod.start(x.forever("d")).await?;
    // It ends when all of it was read: some runtimes lose what is read too late.
    let text = text.replace("; exit 5", "; read line; exit 5");
    let mut command = shell(x, &other, &text, TERMINAL).await?;
    read_until(x, &mut command.stdout, "shown\r\n").await?;
    write(&command, b"\n").await?;
    let what = "the end of the stream of an Exec that writes to /dev/tty";
    equal(what, &ended(x, command).await?, &Ok(5))
}

async fn terminal_of_container_is_resized(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    // It tells its size until it is stopped.
    let mut config = x.script("c", "while :; do stty size || exit 9; sleep 0.1; done");
    config.stdin = true;
    config.tty = true;
    let id = pod.start(config).await?;
    let attached = attach(x, &id, TERMINAL).await?;
    sizes_arrive(x, attached).await
}

async fn terminal_is_resized(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    for transport in TRANSPORTS {
        // It tells its size until it is told to end.
        let script = "while :; do stty size || exit 9; sleep 0.1; done";
        let cmd = ["/bin/sh", "-c", script];
        let command = exec(x, &id, &cmd, TERMINAL, transport).await?;
        sizes_arrive(x, command).await?;
    }
    Ok(())
}

/// Sends sizes to a command that tells its terminal's size again and again, and waits until it tells each.
async fn sizes_arrive(x: &Context, mut command: Command) -> Verdict {
    read_until(x, &mut command.stdout, "\n").await?;
    let Some(sizes) = command.sizes.take() else {
        return failed("the protocol", "a stream for sizes", "none");
    };
    for (width, height) in [(77, 33), (140, 20)] {
        if let Err(error) = sizes.tell(width, height).await {
            return failed("a size", "to be taken", format!("{error:?}"));
        }
        let expected = format!("{height} {width}\r\n");
        read_until(x, &mut command.stdout, &expected).await?;
    }
    Ok(())
}

/// A server on ::1 that returns what it gets, and then `bye`. It needs no module of Perl's.
const SERVER: &str = r#"command -v perl >/dev/null || { echo no perl; echo ready; exit; }
exec perl -e '$| = 1; $SIG{CHLD} = "IGNORE"; sub lacking { print "no ::1\nready\n"; exit } socket(S, 10, 1, 0) or lacking();
bind(S, pack("S n N a16 N", 10, 0, 0, ("\0" x 15) . "\1", 0)) or lacking();
listen(S, 9) or die; (undef, $port) = unpack("S n", getsockname(S)); print "port=$port\nready\n";
while (accept(C, S)) { if (fork) { close C; next } while (sysread C, $t, 4096) { syswrite C, $t } syswrite C, "bye"; exit }'"#;

/// Whether `localhost` is also `::1` on this machine: some runtimes look the name up.
fn localhost_is_ipv6() -> bool {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let mut lines = hosts.lines().map(str::split_whitespace);
    lines.any(|mut words| words.next() == Some("::1") && words.any(|word| word == "localhost"))
}

async fn ipv6_port_is_forwarded(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let port = served(x, &pod, SERVER).await?;
    let ports = ports(x, &pod, port, Transport::Spdy).await?;
    match echoes(x, &ports, port, "hello").await {
        Err(Outcome::Fail { seen, .. }) if !localhost_is_ipv6() => Err(Outcome::Diverges(format!(
            "a server on ::1 is not reached where /etc/hosts does not say that ::1 is localhost: {seen}"
        ))),
        said => said_bye(said?),
    }
}
