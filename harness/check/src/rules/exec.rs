//! Rules of ExecSync, and of the streams of Exec and Attach.

pub(crate) mod arguments;

use harness::streaming::{self, Streams, Transport};
use tokio::time::Instant;

use crate::prelude::*;
use crate::rules::sandbox::UNKNOWN;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-EXE-001": "ExecSync returns standard output and standard error separately, byte for byte, and logs neither.",
        CRITEST, tags ["kubelet", "probe"], calls [ExecSync],
        exec_sync_returns_both_outputs given [pod, container], faults [
            "ExecSync drop stdout",
            "ExecSync drop stderr",
            "ExecSync set stdout \"b3V0Cg==\"",
        ];
    Must "CRI-EXE-002": "ExecSync of a failing command succeeds and returns its exit code.",
        KUBELET, tags ["kubelet", "probe", "exit"], calls [ExecSync],
        exec_sync_returns_exit_code, faults ["ExecSync drop exit_code", "ExecSync fail UNKNOWN"];
    Must "CRI-EXE-003": "ExecSync kills the command at its timeout and returns DEADLINE_EXCEEDED, the only error that the kubelet counts as a failed probe.",
        CRITEST, tags ["kubelet", "probe", "time"], calls [ExecSync],
        exec_sync_ends_with_its_timeout, faults [
            "ExecSync if request timeout = \"1\" request drop timeout",
            "ExecSync if request timeout = \"1\" recode DEADLINE_EXCEEDED OK",
            "ExecSync if request timeout = \"1\" answer DEADLINE_EXCEEDED",
            "ExecSync recode DEADLINE_EXCEEDED INTERNAL",
            "ExecSync if request.timeout == 1 request set timeout 5",
            "ExecSync if request.timeout == 3 request set timeout 1",
            "ExecSync if request.timeout == 3 request set timeout 9",
        ];
    Must "CRI-EXE-004": "ExecSync in an unknown container is refused.",
        API, tags ["codes"], calls [ExecSync],
        exec_in_unknown_container_is_refused, faults ["ExecSync swallow"];
    Must "CRI-EXE-005": "ExecSync in a container that is not running is refused.",
        API, tags ["kubelet", "state"], calls [ExecSync],
        exec_in_container_that_does_not_run_is_refused given [pod], faults [
            "ExecSync swallow",
            "ExecSync after 1 swallow",
        ];
    Must "CRI-EXE-006": "ExecSync runs its command with the container's environment and working directory.",
        API, tags ["process"], calls [ExecSync],
        exec_has_environment_of_container given [pod], faults [
            "CreateContainer request drop config.envs",
            "CreateContainer request drop config.working_dir",
        ];
    Must "CRI-EXE-010": "The URL that Exec returns serves the command's output and exit code over SPDY, which the kubelet uses.",
        KUBELET, tags ["kubelet", "stream"], calls [Exec],
        exec_streams(Transport::Spdy), faults [
            "Exec drop url",
            "Exec set url \"http://127.0.0.1:1/exec/none\"",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"exit 7\"]",
        ];
    Should "CRI-EXE-011": "The URL that Exec returns serves the command's output and exit code over WebSocket.",
        KUBELET, tags ["stream"], calls [Exec],
        exec_streams(Transport::WebSocket), faults [
            "Exec drop url",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"exit 7\"]",
        ];
    Must "CRI-EXE-012": "Exec forwards standard input to the command, including the end of file.",
        CRITEST, tags ["kubelet", "stream"], calls [Exec],
        exec_carries_stdin, faults ["Exec request drop stdin"];
    Must "CRI-EXE-013": "Exec without any stream, or with both a terminal and standard error, is refused.",
        API, tags ["input", "stream"], calls [Exec],
        exec_with_bad_streams_is_refused, faults ["Exec request set stdout true", "Exec request drop stderr"];
    Must "CRI-EXE-014": "Attach forwards standard input to a running container, and returns only output that the container writes after the client attached.",
        CRITEST, tags ["kubelet", "stream"], calls [Attach],
        attach_carries_both_ways given [pod], faults ["Attach drop url", "CreateContainer request drop config.stdin"];
    Must "CRI-EXE-015": "Exec and Attach of an unknown container, and PortForward of an unknown sandbox, are refused.",
        API, tags ["codes", "stream"], calls [Exec, Attach, PortForward],
        streams_of_unknown_objects_are_refused, faults [
            "Exec swallow",
            "Attach swallow",
            "PortForward swallow",
        ];
    Must "CRI-EXE-016": "ExecSync without a timeout, or with a long timeout, runs a command to its end; if signal N kills the command, the exit code is 128 + N.",
        API, tags ["kubelet", "time", "exit"], calls [ExecSync],
        exec_sync_without_timeout_has_no_limit, faults [
            "ExecSync request set timeout 1",
            "ExecSync if request.timeout == 0 request set timeout 10",
            "ExecSync if request.timeout == 31536000 request set timeout 10",
            "ExecSync set exit_code 9",
            "ExecSync set exit_code -1",
        ];
    Must "CRI-EXE-022": "An ExecSync command that reads standard input reads end of file immediately.",
        KUBELET, tags ["kubelet", "probe", "exec"], calls [ExecSync],
        input_of_command_is_empty given [container], faults [
            "ExecSync fail DEADLINE_EXCEEDED",
            "ExecSync set exit_code 1",
            "ExecSync set stdout \"b3RoZXIK\"",
        ];
};

async fn running(x: &Context) -> Verdict<String> {
    let pod = x.pod().await?;
    x.running(&pod).await
}

async fn exec_sync_returns_both_outputs(x: &Context, pod: Pod, id: String) -> Verdict {
    let answer =
        x.client.exec(&id, ["/bin/sh", "-c", "printf 'out\\000\\377'; printf err >&2"], 10).await?;
    equal_output("stdout", &answer.stdout, b"out\0\xff")?;
    equal_output("stderr", &answer.stderr, b"err")?;
    equal("exit_code", &answer.exit_code, &0)?;
    let log = std::fs::read_to_string(x.log_path(&pod)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    ensure(lines.len() == 1, "the container's log", "only its own line", &lines)
}

async fn exec_sync_returns_exit_code(x: &Context) -> Verdict {
    let id = running(x).await?;
    let answer = x.client.exec(&id, ["/bin/sh", "-c", "exit 42"], 10).await?;
    equal("exit_code", &answer.exit_code, &42)
}

async fn exec_sync_ends_with_its_timeout(x: &Context) -> Verdict {
    let id = running(x).await?;
    tokio::try_join!(exec_sync_ends_after(x, &id, 1), exec_sync_ends_after(x, &id, 3)).map(drop)
}

async fn exec_sync_ends_after(x: &Context, id: &str, timeout: u32) -> Verdict {
    let began = Instant::now();
    // The script appends to the file instead of truncating it: when the runtime kills it during its second write, a truncated file
    // could be empty.
    let seconds = "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14";
    let script = format!("for s in {seconds}; do echo $s >>/tmp/{timeout}-seconds; sleep 1; done");
    let what = format!("ExecSync of a command that takes 15 s, with a timeout of {timeout} s");
    let answer = x.client.exec(id, ["/bin/sh", "-c", &script], timeout.into()).await;
    let status = refused(&what, answer)?;
    let took = began.elapsed().as_secs_f64();
    let least = f64::from(timeout) - 0.1;
    let in_time = (least..least + 8.0).contains(&took);
    ensure(in_time, &what, &format!("to take between {least} and {} s", least + 8.0), took)?;
    equal("the code", &status.code(), &Code::DeadlineExceeded)?;
    let processes = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done";
    x.until("the command to end at its timeout", async || {
        let all = x.client.sh(id, processes).await.map_err(|status| status.to_string())?;
        let ours = format!("14; do echo $s >>/tmp/{timeout}-");
        match all.lines().find(|line| line.contains(&ours)) {
            None => Ok(()),
            Some(_) => Err(all),
        }
    })
    .await?;
    let ran = x.client.sh(id, &format!("cat /tmp/{timeout}-seconds")).await?;
    let what =
        format!("the lines that a command with a timeout of {timeout} s wrote, one each second");
    let most = timeout + 3;
    let in_time = (1..=most as usize).contains(&ran.lines().count());
    ensure(in_time, &what, &format!("1 to {most}"), ran)
}

async fn exec_in_unknown_container_is_refused(x: &Context) -> Verdict {
    let answer = x.client.exec(UNKNOWN, ["/bin/sh"], 10).await;
    refused("ExecSync in an unknown container", answer).map(drop)
}

async fn exec_in_container_that_does_not_run_is_refused(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.script("c", "exit 0")).await?;
    let command = ["/bin/sh", "-c", "true"];
    refused("ExecSync in a created container", x.client.exec(&id, command, 10).await)?;
    x.client.start(&id).await?;
    x.exited(&id).await?;
    refused("ExecSync in an exited container", x.client.exec(&id, command, 10).await).map(drop)
}

async fn exec_has_environment_of_container(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.working_dir = "/tmp".to_owned();
    config.envs.push(v1::KeyValue { key: "CHECKED".to_owned(), value: b"yes".to_vec() });
    let id = pod.start(config).await?;
    let output = x.client.sh(&id, "echo \"$CHECKED $PWD\"").await?;
    equal("the environment of the command", output.as_str(), "yes /tmp\n")
}

async fn exec_url(x: &Context, id: &str, command: &str, stdin: bool) -> Verdict<String> {
    let request = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: ["/bin/sh", "-c", command].map(str::to_owned).into(),
        stdin,
        stdout: true,
        stderr: !stdin,
        tty: false,
    };
    Ok(x.client.runtime.clone().exec(request).await?.into_inner().url)
}

async fn exec_streams(x: &Context, transport: Transport) -> Verdict {
    let id = running(x).await?;
    // Nothing is sent for a while.
    let script = "echo out; sleep 2; echo err >&2; exit 7";
    let url = exec_url(x, &id, script, false).await?;
    let wanted = Streams { stdout: true, stderr: true, ..Streams::default() };
    let mut command = match streaming::command(&url, wanted, transport).await {
        Ok(command) => command,
        Err(error) => return failed("the URL of Exec", "a stream", format!("{url}: {error:?}")),
    };
    let (stdout, stderr) =
        tokio::join!(streaming::text(&mut command.stdout), streaming::text(&mut command.stderr));
    equal("standard output", stdout.as_str(), "out\n")?;
    equal("standard error", stderr.as_str(), "err\n")?;
    match command.ended().await {
        Ok(code) => equal("the exit code", &code, &7),
        Err(error) => failed("the end of the stream", "the exit code 7", format!("{error:?}")),
    }
}

async fn exec_carries_stdin(x: &Context) -> Verdict {
    let id = running(x).await?;
    let url = exec_url(x, &id, "cat; echo end", true).await?;
    let wanted = Streams { stdin: true, stdout: true, ..Streams::default() };
    let mut command = match streaming::command(&url, wanted, Transport::Spdy).await {
        Ok(command) => command,
        Err(error) => return failed("the URL of Exec", "a stream", format!("{url}: {error:?}")),
    };
    if let Err(error) = command.write(b"hello\n").await {
        return failed("standard input", "to be accepted", format!("{error:?}"));
    }
    command.end_stdin().await;
    let stdout = streaming::text(&mut command.stdout).await;
    equal("standard output", stdout.as_str(), "hello\nend\n")
}

async fn exec_with_bad_streams_is_refused(x: &Context) -> Verdict {
    let id = running(x).await?;
    let request =
        v1::ExecRequest { container_id: id, cmd: vec!["/bin/sh".to_owned()], ..Default::default() };
    let none = x.client.runtime.clone().exec(request.clone()).await;
    refused("Exec without streams", none)?;
    let request = v1::ExecRequest { tty: true, stdout: true, stderr: true, ..request };
    let both = x.client.runtime.clone().exec(request).await;
    refused("Exec with tty and stderr", both).map(drop)
}

async fn attach_carries_both_ways(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.script("c", "echo ready; read line; echo \"got $line\"");
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    let request = v1::AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        ..Default::default()
    };
    let url = x.client.runtime.clone().attach(request).await?.into_inner().url;
    let wanted = Streams { stdin: true, stdout: true, ..Streams::default() };
    let mut attached = match streaming::command(&url, wanted, Transport::Spdy).await {
        Ok(attached) => attached,
        Err(error) => return failed("the URL of Attach", "a stream", format!("{url}: {error:?}")),
    };
    if let Err(error) = attached.write(b"hello\n").await {
        return failed("standard input", "to be accepted", format!("{error:?}"));
    }
    let stdout = streaming::text(&mut attached.stdout).await;
    equal("the output since Attach", stdout.as_str(), "got hello\n")
}

async fn streams_of_unknown_objects_are_refused(x: &Context) -> Verdict {
    let request = v1::ExecRequest {
        container_id: UNKNOWN.to_owned(),
        cmd: vec!["/bin/sh".to_owned()],
        stdout: true,
        ..Default::default()
    };
    refused("Exec in an unknown container", x.client.runtime.clone().exec(request).await)?;
    let request =
        v1::AttachRequest { container_id: UNKNOWN.to_owned(), stdout: true, ..Default::default() };
    refused("Attach to an unknown container", x.client.runtime.clone().attach(request).await)?;
    let request = v1::PortForwardRequest { pod_sandbox_id: UNKNOWN.to_owned(), port: vec![80] };
    let answer = x.client.runtime.clone().port_forward(request).await;
    refused("PortForward of an unknown sandbox", answer).map(drop)
}

async fn exec_sync_without_timeout_has_no_limit(x: &Context) -> Verdict {
    let id = running(x).await?;
    let command = ["/bin/sh", "-c", "sleep 12; echo slept; kill -9 $$"];
    // A year, whose milliseconds exceed 32 bits.
    let long = 365 * 24 * 3600;
    let (without, with_long) =
        tokio::join!(x.client.exec(&id, command, 0), x.client.exec(&id, command, long));
    for (timeout, answer) in [(0, without), (long, with_long)] {
        let what = format!("ExecSync of a command that takes 12 s, with a timeout of {timeout}");
        let answer = match answer {
            Err(status) if status.code() == Code::DeadlineExceeded => {
                return failed(what, "to succeed", status.to_string());
            }
            answer => answer?,
        };
        equal_output(&format!("stdout of {what}"), &answer.stdout, b"slept\n")?;
        equal(&format!("the exit code of {what}"), &answer.exit_code, &137)?;
    }
    Ok(())
}

async fn input_of_command_is_empty(x: &Context, id: String) -> Verdict {
    let answer = match x.client.exec(&id, ["/bin/sh", "-c", "cat"], 10).await {
        Err(status) if status.code() == Code::DeadlineExceeded => {
            return failed(
                "cat by ExecSync with a timeout of 10 s",
                "to end immediately",
                status.message(),
            );
        }
        answer => answer?,
    };
    equal_output("stderr of cat", &answer.stderr, b"")?;
    equal_output("stdout of cat", &answer.stdout, b"")?;
    equal("the exit code of cat", &answer.exit_code, &0)
}
