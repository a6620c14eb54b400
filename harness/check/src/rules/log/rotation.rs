//! Rules of log rotation while the container writes.

use std::path::PathBuf;

use harness::cri_log::{self, Line, Stream};

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LOG-013": "ReopenContainerLog keeps the content of a log that the kubelet failed to rename.",
        KUBELET, tags ["kubelet", "rotation"], calls [ReopenContainerLog],
        log_is_kept given [pod], faults [
            "ReopenContainerLog answer UNKNOWN",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo second; sleep 1000\"]",
        ];
    Must "CRI-LOG-011": "ReopenContainerLog works repeatedly, for both streams, and loses no line.",
        KUBELET, tags ["kubelet", "rotation"], calls [ReopenContainerLog],
        rotations_lose_nothing given [pod], faults [
            "ReopenContainerLog after 1 swallow",
            "ReopenContainerLog after 2 swallow",
            "ReopenContainerLog after 1 answer UNKNOWN",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"n=0; while :; do n=$((n + 1)); echo $n; sleep 0.05; done\"]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"n=0; while :; do n=$((n + 2)); echo $n; echo $n >&2; sleep 0.05; done\"]",
        ];
};

async fn log_is_kept(x: &Context, pod: Pod) -> Verdict {
    let text = "echo first; n=0; while [ $n -lt 1000 ]; do n=$((n + 1)); sleep 0.1; echo $n; done";
    let id = pod.start(x.script("c", text)).await?;
    x.logged(&pod, "2").await?;
    x.client.reopen_log(&id).await?;
    let written = x.lines(&pod).len();
    x.until("two more lines in the log", async || {
        let now = x.lines(&pod).len();
        if now > written + 1 { Ok(()) } else { Err(now) }
    })
    .await?;
    let lines = x.lines(&pod).into_iter();
    let seen: Vec<String> = lines.map(|line| line.text).collect();
    let counted = (1..seen.len()).map(|number| number.to_string());
    let expected: Vec<String> = std::iter::once("first".to_owned()).chain(counted).collect();
    equal("the lines of the log", &seen, &expected)
}

/// How often the log is rotated.
const ROTATIONS: usize = 3;

async fn rotations_lose_nothing(x: &Context, pod: Pod) -> Verdict {
    let counting = "n=0; while :; do n=$((n + 1)); echo $n; echo $n >&2; sleep 0.05; done";
    let id = pod.start(x.script("c", counting)).await?;
    both_streams_are_logged(x, &pod, "the log").await?;
    let mut files = Vec::new();
    for rotation in 1..=ROTATIONS {
        let old = rotated(x, &pod, rotation)?;
        x.client.reopen_log(&id).await?;
        let new = format!("the log after rotation {rotation}");
        both_streams_are_logged(x, &pod, &new).await?;
        files.push(old);
    }
    x.client.stop(&id, 0).await?;
    x.exited(&id).await?;
    files.push(x.log_path(&pod));
    let log: Vec<u8> =
        files.iter().flat_map(|file| std::fs::read(file).unwrap_or_default()).collect();
    let lines = cri_log::lines(&log);
    counts(&lines, Stream::Stdout, "standard output")?;
    counts(&lines, Stream::Stderr, "standard error")
}

/// Renames the log, as the kubelet does before it calls ReopenContainerLog. Returns its new path.
pub(crate) fn rotated(x: &Context, pod: &Pod, rotation: usize) -> Verdict<PathBuf> {
    let old = pod.log_directory().join(format!("c.log.{rotation}"));
    match std::fs::rename(x.log_path(pod), &old) {
        Ok(()) => Ok(old),
        Err(error) => skipped(format!("failed to rename a log: {error}")),
    }
}

async fn both_streams_are_logged(x: &Context, pod: &Pod, what: &str) -> Verdict {
    x.until(&format!("lines of both streams in {what}"), async || {
        let lines = x.lines(pod);
        let has = |stream| lines.iter().any(|line| line.stream == stream);
        match (has(Stream::Stdout), has(Stream::Stderr)) {
            (true, true) => Ok(()),
            seen => Err(format!("(stdout, stderr): {seen:?}")),
        }
    })
    .await
}

/// Fails unless the lines of a stream count up from 1 without a gap or a duplicate.
fn counts(lines: &[Line], stream: Stream, what: &str) -> Verdict {
    let seen: Vec<&str> =
        lines.iter().filter(|line| line.stream == stream).map(|line| line.text.as_str()).collect();
    let expected = "at least one in each file";
    ensure(seen.len() > ROTATIONS, &format!("lines of {what} in all files"), expected, seen.len())?;
    let expected = (1..).map(|number: usize| number.to_string());
    let mut pairs = seen.iter().zip(expected);
    match pairs.find(|(seen, expected)| **seen != expected) {
        None => Ok(()),
        Some((seen, expected)) => {
            failed(format!("a line of {what} in all files, in order"), expected, (*seen).to_owned())
        }
    }
}
