//! Rules of special lines in the log: with a carriage return, split by a rotation, or also sent to an attached client.

use harness::cri_log::Stream;

use crate::prelude::*;
use crate::rules::log::output::of_stream;
use crate::rules::log::rotation::rotated;
use crate::rules::stream::{BOTH_WAYS, attach, read_until, write};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LOG-016": "The log of a container without a terminal keeps a carriage return before a newline, and a carriage return alone does not end a line.",
        LOGS, tags ["kubelet"], calls [CreateContainer],
        carriage_return_is_kept given [pod], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"printf 'a\\\\n\\\\nb\\\\n'\"]",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
    Must "CRI-LOG-017": "The written part of an unfinished line survives ReopenContainerLog, in the old log file or in the new one.",
        KUBELET, tags ["kubelet", "rotation"], calls [ReopenContainerLog],
        cut_line_is_kept given [namespaces, pod], faults [
            "ReopenContainerLog swallow",
            "ReopenContainerLog answer UNKNOWN",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo ready >&2; until [ -e /tmp/go ]; do sleep 0.05; done; echo def; sleep 1000\"]",
        ];
    Must "CRI-LOG-018": "Output is logged even while an attached client receives it.",
        CONTAINERD, tags ["kubelet", "stream"], calls [Attach, CreateContainer],
        attached_output_is_logged given [pod], faults [
            "Attach drop url",
            "CreateContainer request drop config.stdin",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
};

async fn carriage_return_is_kept(x: &Context, pod: Pod) -> Verdict {
    let text = r"printf 'a\r\nb\n'";
    let id = pod.start(x.script("c", text)).await?;
    x.exited(&id).await?;
    let log = std::fs::read(x.log_path(&pod)).unwrap_or_default();
    let seen = of_stream(&log, Stream::Stdout);
    if seen == b"a\nb\n" {
        return diverges("a carriage return at the end of a line is missing from the log");
    }
    equal_output("standard output in the log", &seen, b"a\r\nb\n")
}

async fn cut_line_is_kept(x: &Context, pod: Pod) -> Verdict {
    // Some runtimes log the start of a line only together with its end, so the script prints `ready` to the other stream.
    let text = "printf abc; echo ready >&2; until [ -e /tmp/go ]; do sleep 0.05; done; echo def; sleep 1000";
    let id = x.start_ready(&pod, x.script("c", text)).await?;
    let old = rotated(x, &pod, 1)?;
    x.client.reopen_log(&id).await?;
    x.client.sh(&id, ": >/tmp/go").await?;
    let new = x.log_path(&pod);
    let read = |path| of_stream(&std::fs::read(path).unwrap_or_default(), Stream::Stdout);
    x.until("the end of the line in the new log file", async || {
        let seen = read(&new);
        match seen.ends_with(b"def\n") {
            true => Ok(()),
            false => Err(seen.escape_ascii().to_string()),
        }
    })
    .await?;
    // The runtime may write the last entry of the old file with a short delay.
    let what = "\"abcdef\\n\" in the old log file and the new one together";
    let seen = x
        .until(what, async || {
            let seen = [read(&old), read(&new)].concat();
            match seen == b"abcdef\n" || seen == b"abc\ndef\n" {
                true => Ok(seen),
                false => Err(seen.escape_ascii().to_string()),
            }
        })
        .await?;
    match seen == b"abcdef\n" {
        true => Ok(()),
        false => diverges("a line that is unfinished when the log is reopened becomes two lines"),
    }
}

async fn attached_output_is_logged(x: &Context, pod: Pod) -> Verdict {
    let text = "echo ready; while read line; do echo \"got $line\"; done";
    let mut config = x.script("c", text);
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    let mut attached = attach(x, &id, BOTH_WAYS).await?;
    for typed in ["first", "second"] {
        write(&attached, format!("{typed}\n").as_bytes()).await?;
        read_until(x, &mut attached.stdout, &format!("got {typed}\n")).await?;
        x.logged(&pod, &format!("got {typed}")).await?;
    }
    Ok(())
}
