//! Rules for Exec: its commands run like those of ExecSync, and its streams stay open and carry all input.

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::security::{confined, rights};
use crate::rules::stream::{BOTH_WAYS, OUTPUTS, TERMINAL, ended, read_until, shell};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STR-021": "Exec and ExecSync commands have their container's user, groups, capabilities, seccomp filter, environment and working directory.",
        CRITEST, tags ["kubelet", "stream", "exec", "security"], calls [Exec, ExecSync],
        commands_are_alike given [namespaces, users], faults [
            "Exec drop url",
            "ExecSync drop stdout",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"cd /; cat /proc/self/status; echo of=image-pod; pwd; echo end\"]",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"OF_POD=other; cat /proc/self/status; echo of=$OF_IMAGE-$OF_POD; pwd; echo end\"]",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo Uid: 0 0 0 0; echo Gid: 0 0 0 0; echo of=image-pod; pwd; echo end\"]",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo Uid: 0 0 0 0; echo Gid: 0 0 0 0; echo of=image-pod; pwd; echo end\"]",
        ];
    Should "CRI-STR-022": "An idle Exec stream stays open, because clients keep streams open for hours.",
        KUBELET, tags ["kubelet", "stream"], calls [Exec],
        idle_stream_stays_open given [container], faults [
            "Exec drop url",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo begin; sleep 3\"]",
        ];
    Must "CRI-STR-023": "Exec and ExecSync commands in a privileged container have all of its capabilities.",
        KUBELET, tags ["kubelet", "stream", "exec", "capabilities"], calls [Exec, ExecSync],
        commands_are_privileged given [namespaces], faults [
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo CapEff: 0; echo end\"]",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo CapEff: 0; echo end\"]",
        ];
    Should "CRI-STR-024": "An Exec command with a terminal has TERM in its environment.",
        CONTAINERD, tags ["stream", "tty"], calls [Exec],
        terminal_has_name given [container], faults [
            "Exec request drop tty",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"echo term=\"]",
        ];
    Must "CRI-STR-025": "Exec carries 5 MB of standard input to the command without loss.",
        KUBELET, tags ["kubelet", "stream"], calls [Exec],
        input_is_whole given [container], faults [
            "Exec request drop stdin",
            "Exec request set cmd [\"/bin/sh\", \"-c\", \"head -c 1000000 >/tmp/in; exit 1\"]",
        ];
};

/// Prints the privileges, the environment and the working directory of a process.
const PRINT_CONTEXT: &str = "cat /proc/self/status; echo of=$OF_IMAGE-$OF_POD; pwd; echo end";

/// The lines about privileges, and all lines from `of=` on.
fn execution_context(text: &str) -> Vec<String> {
    let mut all = rights(text);
    let rest = text.lines().map(str::trim_end);
    let rest = rest.skip_while(|line| !line.starts_with("of="));
    all.extend(rest.map(str::to_owned));
    all
}

async fn commands_are_alike(x: &Context) -> Verdict {
    let image = image(x, "1", |image| image.user("1234:2345").env(["OF_IMAGE=image"]));
    let image = image.await?;
    let mut config = script(x, &image, &format!("{PRINT_CONTEXT}; while :; do sleep 1000; done"));
    config.working_dir = "/work".to_owned();
    config.envs.push(v1::KeyValue { key: "OF_POD".to_owned(), value: b"pod".to_vec() });
    let security = confined(&mut config);
    let capabilities = security.capabilities.get_or_insert_default();
    capabilities.drop_capabilities = ["CHOWN", "KILL"].map(str::to_owned).into();
    let pod = x.pod().await?;
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    let of_container = execution_context(&lines.collect::<String>());
    let is_user = |line: &String| line.split_whitespace().nth(1) == Some("1234");
    let is_ours = of_container.first().is_some_and(is_user);
    let what = "the privileges of the container's process";
    ensure(is_ours, what, "user 1234 first", &of_container)?;
    let of_sync = execution_context(&x.client.sh(&id, PRINT_CONTEXT).await?);
    let what = "a command of ExecSync, compared with its container";
    equal(what, &of_sync, &of_container)?;
    let mut command = shell(x, &id, PRINT_CONTEXT, OUTPUTS).await?;
    let text = read_until(x, &mut command.stdout, "\nend\n").await?;
    let what = "a command of Exec, compared with its container";
    equal(what, &execution_context(&text), &of_container)
}

async fn commands_are_privileged(x: &Context) -> Verdict {
    let mut sandbox = x.sandbox();
    let linux = sandbox.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().privileged = true;
    let pod = x.pod_of(sandbox).await?;
    let print_status = "cat /proc/self/status; echo end";
    let mut config = x.script("c", &format!("{print_status}; while :; do sleep 1000; done"));
    fixture::security(&mut config).privileged = true;
    let id = pod.start(config).await?;
    x.logged(&pod, "end").await?;
    let lines = x.lines(&pod).into_iter().map(|line| line.text + "\n");
    let of_container = rights(&lines.collect::<String>());
    let of_sync = rights(&x.client.sh(&id, print_status).await?);
    let what = "the privileges of a command of ExecSync, compared with its privileged container";
    equal(what, &of_sync, &of_container)?;
    let mut command = shell(x, &id, print_status, OUTPUTS).await?;
    let text = read_until(x, &mut command.stdout, "end\n").await?;
    let what = "the privileges of a command of Exec, compared with its privileged container";
    equal(what, &rights(&text), &of_container)
}

async fn terminal_has_name(x: &Context, id: String) -> Verdict {
    let mut command = shell(x, &id, "[ -t 0 ] && echo term=$TERM", TERMINAL).await?;
    let text = read_until(x, &mut command.stdout, "\n").await?;
    let named = text.trim().strip_prefix("term=");
    let has_name = named.is_some_and(|name| !name.is_empty());
    ensure(has_name, "TERM of a command with a terminal", "a name", text)
}

async fn input_is_whole(x: &Context, id: String) -> Verdict {
    const LENGTH: usize = 5_000_000;
    let text = "cat >/tmp/in; set -- $(ls -ln /tmp/in); exit $(($5 / 1000000))";
    let mut command = shell(x, &id, text, BOTH_WAYS).await?;
    let stdin = present(command.stdin.take(), "the streams", "standard input", "none")?;
    let sending = async {
        let piece = bytes::Bytes::from(vec![b'x'; 10_000]);
        for _ in 0..LENGTH / piece.len() {
            if stdin.send(piece.clone()).await.is_err() {
                break;
            }
        }
        stdin.end().await;
    };
    if tokio::time::timeout(x.shared.wait_limit, sending).await.is_err() {
        return failed("standard input", "to be accepted", "it blocks");
    }
    let ended = ended(x, command).await?;
    let what = "the end of the stream: the MB that the command has read";
    equal(what, &ended, &Ok(5))
}

async fn idle_stream_stays_open(x: &Context, id: String) -> Verdict {
    // Longer than short idle timeouts of servers, and short enough for the rule's deadline.
    let text = "echo begin; sleep 12; echo end; exit 3";
    let mut command = shell(x, &id, text, OUTPUTS).await?;
    let output = read_until(x, &mut command.stdout, "end\n").await?;
    equal("the output", output.as_str(), "begin\nend\n")?;
    equal("the end of the stream", &ended(x, command).await?, &Ok(3))
}
