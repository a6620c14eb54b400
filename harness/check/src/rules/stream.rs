//! Rules for the streams of Exec and Attach, over SPDY and over WebSockets.

pub(crate) mod exec;
pub(crate) mod exited_container;
pub(crate) mod port_forward;
pub(crate) mod terminals;
pub(crate) mod urls;

use harness::streaming::{self, Command, CommandError, Inlet, Streams, Transport};

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STR-001": "Exec with tty connects the command's standard streams to a terminal, over SPDY and over WebSocket.",
        CRITEST, tags ["kubelet", "stream", "tty"], calls [Exec],
        exec_has_terminal given [container], faults ["Exec request drop tty", "Exec drop url"];
    Must "CRI-STR-003": "Exec carries 1 MiB in each direction at the same time without loss.",
        KUBELET, tags ["kubelet", "stream"], calls [Exec],
        exec_carries_every_byte given [container], faults [
            "Exec request drop stdin",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"tr a b\"]",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"head -c 70000\"]",
        ];
    Must "CRI-STR-004": "Exec carries standard input to the command over WebSocket.",
        KUBELET, tags ["stream"], calls [Exec],
        stdin_reaches_command_over_websocket given [container], faults ["Exec request drop stdin", "Exec drop url"];
    Must "CRI-STR-005": "An Exec stream ends with the command's exit code, or with an error if the command does not exist.",
        KUBELET, tags ["kubelet", "stream", "exit"], calls [Exec],
        exit_codes_are_carried given [container], faults [
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"exit 1\"]",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"exit 0\"]",
        ];
    Must "CRI-STR-006": "An Exec stream ends when the container is stopped.",
        CRIO, tags ["kubelet", "stream", "signal"], calls [Exec, StopContainer],
        exec_ends_with_container given [container], faults ["StopContainer swallow", "Exec drop url"];
    Must "CRI-STR-007": "Attach carries standard output and standard error of a container separately.",
        CRITEST, tags ["kubelet", "stream"], calls [Attach],
        attach_keeps_outputs_apart given [pod], faults [
            "CreateContainer request set config.tty true",
            "CreateContainer request drop config.stdin",
            "Attach drop url",
        ];
    Should "CRI-STR-008": "Two clients attached concurrently both receive the output, and both streams end when the container exits.",
        KUBELET, tags ["stream", "concurrency"], calls [Attach],
        both_attached_get_output given [pod], faults ["Attach after 1 drop url", "Attach after 1 answer UNAVAILABLE"];
    Should "CRI-STR-009": "With stdin_once, the container's standard input is closed when the first attached client closes its standard input.",
        API, tags ["kubelet", "stream"], calls [Attach, CreateContainer],
        stdin_once_ends_with_client given [pod], faults [
            "CreateContainer request drop config.stdin_once",
            "CreateContainer request drop config.stdin",
        ];
    Must "CRI-STR-010": "Attach to a container with a terminal carries the terminal's input and output.",
        CRITEST, tags ["kubelet", "stream", "tty"], calls [Attach, CreateContainer],
        attach_has_terminal given [pod], faults [
            "CreateContainer request drop config.tty",
            "CreateContainer request drop config.stdin",
        ];
    Should "CRI-STR-014": "An Exec URL works only once, so that a leaked URL cannot run another command.",
        CONTAINERD, tags ["stream", "security"], calls [Exec],
        url_serves_once given [container], faults ["Exec drop url", "Exec answer UNKNOWN"];
};

pub(crate) const TRANSPORTS: [Transport; 2] = [Transport::Spdy, Transport::WebSocket];
pub(crate) const OUTPUTS: Streams =
    Streams { stdin: false, stdout: true, stderr: true, tty: false };
pub(crate) const BOTH_WAYS: Streams =
    Streams { stdin: true, stdout: true, stderr: false, tty: false };
pub(crate) const TERMINAL: Streams = Streams { tty: true, ..BOTH_WAYS };

async fn open(url: &str, streams: Streams, transport: Transport) -> Verdict<Command> {
    match streaming::command(url, streams, transport).await {
        Ok(command) => Ok(command),
        Err(error) => {
            failed(format!("the URL over {transport:?}"), "a stream", format!("{url}: {error:?}"))
        }
    }
}

pub(crate) async fn exec(
    x: &Context,
    id: &str,
    cmd: &[&str],
    streams: Streams,
    transport: Transport,
) -> Verdict<Command> {
    let request = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(|word| (*word).to_owned()).collect(),
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        tty: streams.tty,
    };
    let answer = x.client.runtime.clone().exec(request).await?;
    open(&answer.into_inner().url, streams, transport).await
}

pub(crate) async fn shell(
    x: &Context,
    id: &str,
    script: &str,
    streams: Streams,
) -> Verdict<Command> {
    let cmd = ["/bin/sh", "-c", script];
    exec(x, id, &cmd, streams, Transport::Spdy).await
}

pub(crate) async fn attach(x: &Context, id: &str, streams: Streams) -> Verdict<Command> {
    let request = v1::AttachRequest {
        container_id: id.to_owned(),
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        tty: streams.tty,
    };
    let answer = x.client.runtime.clone().attach(request).await?;
    open(&answer.into_inner().url, streams, Transport::Spdy).await
}

/// Reads until a word arrives; returns everything that was read.
pub(crate) async fn read_until(
    x: &Context,
    inlet: &mut Option<Inlet>,
    word: &str,
) -> Verdict<String> {
    let mut all = Vec::new();
    let reading = async {
        while let Some(bytes) = match inlet {
            Some(inlet) => inlet.next().await,
            None => None,
        } {
            all.extend_from_slice(&bytes);
            if String::from_utf8_lossy(&all).contains(word) {
                return true;
            }
        }
        false
    };
    let found = tokio::time::timeout(x.shared.wait_limit, reading).await;
    let text = String::from_utf8_lossy(&all).into_owned();
    match found {
        Ok(true) => Ok(text),
        Ok(false) => failed("the output up to its end", format!("{word:?}"), text),
        Err(_) => failed("the output so far", format!("{word:?}"), text),
    }
}

/// Writes to standard input. The future does not hold a reference to the command, which is not `Sync`.
pub(crate) fn write<'a>(
    command: &'a Command,
    bytes: &[u8],
) -> impl Future<Output = Verdict> + use<'a> {
    let writing = command.write(bytes);
    async move {
        match writing.await {
            Ok(()) => Ok(()),
            Err(error) => failed("standard input", "to be accepted", format!("{error:?}")),
        }
    }
}

pub(crate) async fn ended(x: &Context, command: Command) -> Verdict<Result<i32, CommandError>> {
    match tokio::time::timeout(x.shared.wait_limit, command.ended()).await {
        Ok(ended) => Ok(ended),
        Err(_) => failed("the stream", "to end", "no end"),
    }
}

async fn url_serves_once(x: &Context, id: String) -> Verdict {
    let request = v1::ExecRequest {
        container_id: id,
        cmd: ["/bin/sh", "-c", "exit 6"].map(str::to_owned).into(),
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    let url = x.client.runtime.clone().exec(request).await?.into_inner().url;
    let command = open(&url, OUTPUTS, Transport::Spdy).await?;
    equal("the end of the stream", &ended(x, command).await?, &Ok(6))?;
    let again = streaming::command(&url, OUTPUTS, Transport::Spdy).await;
    match again {
        Err(_) => Ok(()),
        Ok(command) => match ended(x, command).await? {
            Err(_) => Ok(()),
            Ok(code) => failed("a used URL", "an error", format!("exit code {code}")),
        },
    }
}

async fn exec_has_terminal(x: &Context, id: String) -> Verdict {
    for transport in TRANSPORTS {
        let script = "test -t 0 && test -t 1 && test -t 2 && echo terminal; exit 4";
        let cmd = ["/bin/sh", "-c", script];
        let mut command = exec(x, &id, &cmd, TERMINAL, transport).await?;
        let text = read_until(x, &mut command.stdout, "\n").await?;
        let what = format!("the output over {transport:?}");
        equal(&what, text.as_str(), "terminal\r\n")?;
        let code = ended(x, command).await?;
        equal("the end of the stream", &code, &Ok(4))?;
    }
    Ok(())
}

/// The output of `cat` for these bytes over Exec, and whether the stream ended in time.
async fn returned(x: &Context, id: &str, bytes: &[u8]) -> Verdict<(Vec<u8>, bool, Command)> {
    let mut command = shell(x, id, "cat", BOTH_WAYS).await?;
    let (stdin, stdout) = (command.stdin.take(), command.stdout.take());
    let (Some(stdin), Some(mut stdout)) = (stdin, stdout) else {
        return failed("the streams", "standard input and output", "not both");
    };
    let sending = async {
        for piece in bytes.chunks(10_000) {
            if stdin.send(piece.to_vec().into()).await.is_err() {
                break;
            }
        }
        stdin.end().await;
    };
    let mut back = Vec::new();
    let receiving = async {
        while let Some(piece) = stdout.next().await {
            back.extend_from_slice(&piece);
        }
    };
    let both = async { tokio::join!(sending, receiving) };
    let done = tokio::time::timeout(x.shared.wait_limit, both).await.is_ok();
    Ok((back, done, command))
}

async fn exec_carries_every_byte(x: &Context, id: String) -> Verdict {
    const TRIES: usize = 4;
    let bytes: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
    let mut cut = Vec::new();
    // containerd 2.4 sometimes loses the end.
    while cut.len() < TRIES {
        let (back, done, command) = returned(x, &id, &bytes).await?;
        let mut pairs = back.iter().zip(&bytes);
        let first = pairs.position(|(back, sent)| back != sent);
        let expected = "every byte, and the end";
        let holds = done && first.is_none() && back.len() <= bytes.len();
        ensure(holds, "the output of cat for 1048576 bytes", expected, (back.len(), first, done))?;
        if back.len() < bytes.len() {
            cut.push(back.len());
            continue;
        }
        equal("the end of the stream", &ended(x, command).await?, &Ok(0))?;
        return match cut.is_empty() {
            true => Ok(()),
            false => diverges(format!("cat sometimes returns fewer than 1048576 bytes: {cut:?}")),
        };
    }
    failed("the output of cat for 1048576 bytes, four times", "every byte", format!("{cut:?}"))
}

async fn stdin_reaches_command_over_websocket(x: &Context, id: String) -> Verdict {
    // The command does not need the end of its input, which some WebSocket protocols cannot signal.
    let cmd = ["/bin/sh", "-c", "read line; echo \"got $line\"; exit 6"];
    let mut command = exec(x, &id, &cmd, BOTH_WAYS, Transport::WebSocket).await?;
    write(&command, b"hello\n").await?;
    let text = read_until(x, &mut command.stdout, "\n").await?;
    equal("standard output", text.as_str(), "got hello\n")?;
    equal("the end of the stream", &ended(x, command).await?, &Ok(6))
}

async fn exit_codes_are_carried(x: &Context, id: String) -> Verdict {
    for transport in TRANSPORTS {
        for code in [0, 1, 200] {
            let script = format!("exit {code}");
            let cmd = ["/bin/sh", "-c", &script];
            let command = exec(x, &id, &cmd, OUTPUTS, transport).await?;
            let what = format!("the end of the stream over {transport:?}");
            equal(&what, &ended(x, command).await?, &Ok(code))?;
        }
        let missing = exec(x, &id, &["/no/such/command"], OUTPUTS, transport).await?;
        // Some runtimes report an exit code, as a shell does.
        if ended(x, missing).await? == Ok(0) {
            return failed("a missing command", "an error", "success");
        }
    }
    Ok(())
}

async fn exec_ends_with_container(x: &Context, id: String) -> Verdict {
    let mut command = shell(x, &id, "echo up; exec sleep 1000", OUTPUTS).await?;
    read_until(x, &mut command.stdout, "up\n").await?;
    x.client.stop(&id, 0).await?;
    ended(x, command).await.map(drop)
}

async fn attach_keeps_outputs_apart(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.script("c", "echo ready; read line; echo out; echo err >&2; read line");
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    let streams = Streams { stderr: true, ..BOTH_WAYS };
    let mut attached = attach(x, &id, streams).await?;
    write(&attached, b"go\n").await?;
    let out = read_until(x, &mut attached.stdout, "\n").await?;
    let err = read_until(x, &mut attached.stderr, "\n").await?;
    equal("standard output", out.as_str(), "out\n")?;
    equal("standard error", err.as_str(), "err\n")
}

async fn both_attached_get_output(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.script("c", "echo ready; while read line; do echo \"got $line\"; done");
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    let mut first = attach(x, &id, BOTH_WAYS).await?;
    // A client is attached once it receives its own input.
    write(&first, b"1\n").await?;
    read_until(x, &mut first.stdout, "got 1\n").await?;
    let mut second = attach(x, &id, BOTH_WAYS).await?;
    write(&second, b"2\n").await?;
    read_until(x, &mut second.stdout, "got 2\n").await?;
    read_until(x, &mut first.stdout, "got 2\n").await?;
    write(&first, b"3\n").await?;
    read_until(x, &mut first.stdout, "got 3\n").await?;
    read_until(x, &mut second.stdout, "got 3\n").await?;
    x.client.stop(&id, 0).await?;
    ended(x, first).await?.ok();
    ended(x, second).await.map(drop)
}

async fn stdin_once_ends_with_client(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.script("c", "echo ready; cat; exit 21");
    config.stdin = true;
    config.stdin_once = true;
    let id = x.start_ready(&pod, config).await?;
    let mut attached = attach(x, &id, BOTH_WAYS).await?;
    write(&attached, b"hello\n").await?;
    read_until(x, &mut attached.stdout, "hello\n").await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    attached.end_stdin().await;
    let status = x.exited(&id).await?;
    equal("the exit code", &status.exit_code, &21)
}

async fn attach_has_terminal(x: &Context, pod: Pod) -> Verdict {
    let script =
        "test -t 0 || exit 9; echo ready; read line; echo \"got $line\"; read line; exit 5";
    let mut config = x.script("c", script);
    config.stdin = true;
    config.tty = true;
    let id = pod.start(config).await?;
    x.until("the first line in the log", async || {
        let lines = x.lines(&pod);
        match lines.iter().any(|line| line.text.trim_end() == "ready") {
            true => Ok(()),
            false => Err(lines),
        }
    })
    .await?;
    let mut attached = attach(x, &id, TERMINAL).await?;
    write(&attached, b"hello\n").await?;
    // The terminal echoes the input, too.
    read_until(x, &mut attached.stdout, "got hello\r\n").await?;
    write(&attached, b"\n").await?;
    let status = x.exited(&id).await?;
    equal("the exit code", &status.exit_code, &5)
}

pub(crate) const ATTACH_STDIN: &[Rule] = rules! {
    Must "CRI-STR-015": "Without stdin_once, a container's standard input stays open when an attached client leaves, and accepts input from the next client.",
        API, tags ["kubelet", "stream"], calls [Attach],
        input_stays_open given [pod], faults [
            "CreateContainer request set config.stdin_once true",
            "Attach after 1 answer UNKNOWN",
            "Attach after 1 drop url",
        ];
    Should "CRI-STR-026": "With stdin_once, an attached client that has closed its input still receives the output, as kubectl run -i requires.",
        KUBELET, tags ["kubelet", "stream"], calls [Attach],
        output_comes_after_input given [pod], faults [
            "Attach drop url",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo ready; cat >/dev/null; exit 7\"]",
        ];
};

async fn output_comes_after_input(x: &Context, pod: Pod) -> Verdict {
    let text = "echo ready; cat >/dev/null; sleep 1; echo after; sleep 1000";
    let mut config = x.script("c", text);
    config.stdin = true;
    config.stdin_once = true;
    let id = x.start_ready(&pod, config).await?;
    let mut attached = attach(x, &id, BOTH_WAYS).await?;
    write(&attached, b"typed\n").await?;
    attached.end_stdin().await;
    read_until(x, &mut attached.stdout, "after\n").await?;
    Ok(())
}

async fn input_stays_open(x: &Context, pod: Pod) -> Verdict {
    let text = "echo ready; while read line; do echo \"got $line\"; done; exit 21";
    let mut config = x.script("c", text);
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    for typed in ["first", "second", "third"] {
        let mut attached = attach(x, &id, BOTH_WAYS).await?;
        write(&attached, format!("{typed}\n").as_bytes()).await?;
        read_until(x, &mut attached.stdout, &format!("got {typed}\n")).await?;
        // The end of a client's input does not end the container's.
        attached.end_stdin().await;
    }
    x.container_is(&id, ContainerState::ContainerRunning).await
}
