//! Rules for streams to exited containers, and for how often StopContainer sends the stop signal.

use harness::streaming::{self, Streams, Transport};

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STR-016": "For an exited container, Exec and Attach are refused, or their streams end with an error.",
        CONTAINERD, tags ["kubelet", "stream", "input"], calls [Exec, Attach],
        ended_container_has_no_streams given [pod], faults [
            "Exec swallow",
            "Attach swallow",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"sleep 1000\"]",
        ];
    Must "CRI-STP-015": "StopContainer sends the stop signal only once, because many programs exit immediately at the second signal.",
        API, tags ["kubelet", "signal"], calls [StopContainer],
        signal_is_sent_once given [pod], faults ["CreateContainer request set config.stop_signal \"SIGINT\""];
};

const OUTPUT: Streams = Streams { stdin: false, stdout: true, stderr: true, tty: false };

/// Fails if a call returned a URL whose stream ends without an error.
async fn is_refused(x: &Context, call: &str, answer: Result<String, Status>) -> Verdict {
    let Ok(url) = answer else {
        return Ok(());
    };
    if url.is_empty() {
        return failed(format!("the answer to {call}"), "a URL, or an error", "none");
    }
    let Ok(command) = streaming::command(&url, OUTPUT, Transport::Spdy).await else {
        return Ok(());
    };
    match tokio::time::timeout(x.shared.wait_limit, command.ended()).await {
        Ok(Err(_) | Ok(1..)) => Ok(()),
        Ok(ended) => failed(
            format!("the stream of {call} to a container that has exited"),
            "an error",
            format!("{ended:?}"),
        ),
        Err(_) => failed(
            format!("the stream of {call} to a container that has exited"),
            "an error",
            "no end",
        ),
    }
}

async fn ended_container_has_no_streams(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    let request = v1::ExecRequest {
        container_id: id.clone(),
        cmd: vec!["/bin/sh".to_owned(), "-c".to_owned(), "exit 0".to_owned()],
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    let answer = x.client.runtime.clone().exec(request).await;
    is_refused(x, "Exec", answer.map(|answer| answer.into_inner().url)).await?;
    let request =
        v1::AttachRequest { container_id: id, stdout: true, stderr: true, ..Default::default() };
    let answer = x.client.runtime.clone().attach(request).await;
    is_refused(x, "Attach", answer.map(|answer| answer.into_inner().url)).await
}

async fn signal_is_sent_once(x: &Context, pod: Pod) -> Verdict {
    // The container runs for a second after the first signal, and exits with the number of signals.
    let text = "n=0; trap 'n=$((n + 1))' TERM; echo ready
        while [ $n = 0 ]; do sleep 0.05; done
        i=0; while [ $i -lt 20 ]; do i=$((i + 1)); sleep 0.05; done; exit $((20 + n))";
    let id = x.start_ready(&pod, x.script("c", text)).await?;
    x.client.stop(&id, 30).await?;
    let code = x.client.container(&id).await?.exit_code;
    equal("the exit code: 20 plus the number of signals", &code, &21)
}
