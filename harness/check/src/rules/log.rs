//! Rules of log files: their format, and ReopenContainerLog.

pub(crate) mod bytes;
pub(crate) mod output;
pub(crate) mod rotation;

use std::path::Path;

use harness::cri_log::{self, Stream};

use crate::fifo;
use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LOG-001": "Each line of a container's output is an entry in its log: a time, the stream, the tag F and the text.",
        LOGS, tags ["kubelet"], calls [CreateContainer],
        lines_are_entries, faults [
            "CreateContainer request set config.log_path \"other.log\"",
            "CreateContainer request drop config.log_path",
            "CreateContainer request set config.tty true",
        ];
    Must "CRI-LOG-002": "Log entries distinguish standard output from standard error, and each stream keeps its order.",
        LOGS, tags ["kubelet"], calls [CreateContainer],
        streams_are_distinguished, faults ["CreateContainer request set config.tty true"];
    Must "CRI-LOG-003": "Long lines and a last line without a newline are logged completely, in partial entries of at most 16 KiB.",
        LOGS, tags ["kubelet"], calls [CreateContainer],
        long_and_last_lines_are_whole, faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"printf no; echo end\"]",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
    Should "CRI-LOG-015": "A last line without a newline is tagged P, so that log readers add no newline that the container did not write.",
        CONTAINERD, tags ["kubelet"], calls [CreateContainer],
        line_without_end_is_partial given [pod], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo first; echo no end\"]",
        ];
    Must "CRI-LOG-004": "After ReopenContainerLog, output goes to a new file at the log path, and the renamed old file does not change.",
        CRITEST, tags ["kubelet", "rotation"], calls [ReopenContainerLog],
        reopened_log_is_a_new_file given [pod], faults [
            "ReopenContainerLog swallow",
            "ReopenContainerLog answer INTERNAL",
        ];
    Must "CRI-LOG-005": "ReopenContainerLog of an exited or unknown container is refused and creates no file.",
        API, tags ["kubelet", "rotation", "state"], calls [ReopenContainerLog],
        reopen_of_exited_container_is_refused given [pod], faults [
            "ReopenContainerLog swallow",
            "ReopenContainerLog after 1 swallow",
        ];
    Must "CRI-LOG-006": "The complete output is in the log when the container is reported as exited.",
        LOGS, tags ["kubelet", "exit"], calls [ContainerStatus],
        log_is_complete_at_exit, faults [
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
    Must "CRI-LOG-007": "ReopenContainerLog works during a container's grace period: later output goes to a new log file.",
        CRIO, tags ["kubelet", "signal"], calls [ReopenContainerLog, StopContainer],
        log_is_reopened_in_grace_period given [pod], faults [
            "ReopenContainerLog swallow",
            "ReopenContainerLog hang",
            "ReopenContainerLog answer FAILED_PRECONDITION",
        ];
    Should "CRI-LOG-008": "After RemoveContainer no process has the container's log open, and the log file remains.",
        CONTAINERD, tags ["leaks"], calls [RemoveContainer],
        log_is_closed_with_container given [pod, container], faults ["RemoveContainer swallow"];
};

/// The log of a container that has run a script to its end.
async fn log_of(x: &Context, script: &str) -> Verdict<Vec<u8>> {
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", script)).await?;
    x.exited(&id).await?;
    log_in(x, &pod)
}

/// The log of the container of a pod.
fn log_in(x: &Context, pod: &Pod) -> Verdict<Vec<u8>> {
    let path = x.log_path(pod);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(bytes),
        Err(error) => failed(format!("the log {}", path.display()), "a file", error.to_string()),
    }
}

async fn lines_are_entries(x: &Context) -> Verdict {
    let log = log_of(x, "echo first; echo; echo ' last '").await?;
    let mut times = Vec::new();
    let mut texts = Vec::new();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let entry = line.strip_suffix(b"\n").and_then(cri_log::parse);
        let Some(entry) = entry.filter(|entry| !entry.partial && entry.stream == Stream::Stdout)
        else {
            let expected = "TIME stdout F TEXT and a line end";
            return failed("an entry", expected, String::from_utf8_lossy(line));
        };
        times.extend(entry.time.parse::<jiff::Timestamp>().ok());
        texts.push(String::from_utf8_lossy(entry.text).into_owned());
    }
    equal("the texts", &texts, &["first", "", " last "].as_slice())?;
    ensure(times.is_sorted() && times.len() == 3, "the times", "in order", times)
}

async fn streams_are_distinguished(x: &Context) -> Verdict {
    let log = log_of(x, "echo o1; echo e1 >&2; echo o2; echo e2 >&2").await?;
    let lines = cri_log::lines(&log);
    for (stream, expected) in [(Stream::Stdout, ["o1", "o2"]), (Stream::Stderr, ["e1", "e2"])] {
        let of = lines.iter().filter(|line| line.stream == stream);
        let seen: Vec<&str> = of.map(|line| line.text.as_str()).collect();
        equal(&format!("the lines of {stream}"), &seen, &expected.as_slice())?;
    }
    Ok(())
}

async fn long_and_last_lines_are_whole(x: &Context) -> Verdict {
    const LENGTH: usize = 100_000;
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' x; echo; printf unfinished");
    let log = log_of(x, &script).await?;
    let lines: Vec<String> = cri_log::lines(&log).into_iter().map(|line| line.text).collect();
    let lengths: Vec<usize> = lines.iter().map(String::len).collect();
    equal("the lengths of the joined lines", &lengths, &[LENGTH, "unfinished".len()].as_slice())?;
    let longest = log.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
    let holds = longest.is_some_and(|longest| longest <= (16 << 10) + 64);
    ensure(holds, "the longest entry", "at most 16 KiB of text", longest)
}

async fn reopened_log_is_a_new_file(x: &Context, pod: Pod) -> Verdict {
    let text = "trap 'exit 0' TERM; n=0; while :; do n=$((n + 1)); echo $n; sleep 0.1; done";
    let id = pod.start(x.script("c", text)).await?;
    x.logged(&pod, "2").await?;
    let (path, old) = (x.log_path(&pod), pod.log_directory().join("c.log.old"));
    std::fs::rename(&path, &old)
        .map_err(|error| Outcome::Skipped(format!("failed to rename a log: {error}")))?;
    x.client.reopen_log(&id).await?;
    let what = "the new log file when ReopenContainerLog returns";
    ensure(path.exists(), what, "to exist", "missing")?;
    let frozen = std::fs::read(&old).unwrap_or_default();
    x.until("two lines in the new log file", async || match x.lines(&pod).len() {
        2.. => Ok(()),
        few => Err(few),
    })
    .await?;
    let later = std::fs::read(&old).unwrap_or_default();
    ensure(frozen == later, "the renamed file", "not to change", (frozen.len(), later.len()))
}

async fn reopen_of_exited_container_is_refused(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    // A runtime that has not written anything may not have created the file.
    let _ = std::fs::remove_file(x.log_path(&pod));
    refused("ReopenContainerLog of an exited container", x.client.reopen_log(&id).await)?;
    ensure(!x.log_path(&pod).exists(), "a new log file", "none", "a file")?;
    let answer = x.client.reopen_log(crate::rules::sandbox::UNKNOWN).await;
    refused("ReopenContainerLog of an unknown container", answer).map(drop)
}

async fn log_is_complete_at_exit(x: &Context) -> Verdict {
    let directory = x.shared.directory.join(x.unique("go"));
    std::fs::create_dir_all(&directory)
        .map_err(|error| Outcome::Skipped(format!("no directory to mount: {error}")))?;
    // Without namespaces a container sees the host's files at their own paths.
    let seen = match x.needs_namespaces() {
        Ok(()) => Path::new(fifo::DIRECTORY),
        Err(_) => directory.as_path(),
    };
    let script = format!(
        "until [ -e {}/go ]; do sleep 0.05; done; n=0; while [ $n -lt 2000 ]; do n=$((n + 1)); echo $n; done",
        seen.display()
    );
    let mut config = x.script("c", &script);
    if seen != directory {
        config.mounts.push(v1::Mount {
            host_path: directory.display().to_string(),
            container_path: seen.display().to_string(),
            selinux_relabel: true,
            ..Default::default()
        });
    }
    let pod = x.pod().await?;
    let id = pod.start(config).await?;
    // The container waits for the file, so it cannot have exited yet, however slow the machine is.
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    std::fs::write(directory.join("go"), "")
        .map_err(|error| Outcome::Skipped(format!("no file for the container: {error}")))?;
    x.exited(&id).await?;
    let log = log_in(x, &pod)?;
    let lines = cri_log::lines(&log);
    let last = lines.last().map(|line| line.text.as_str());
    equal("the last line of the log", &last, &Some("2000"))?;
    equal("the number of lines", &lines.len(), &2000)
}

async fn log_is_reopened_in_grace_period(x: &Context, pod: Pod) -> Verdict {
    let text = "trap 'echo stopping' TERM; echo ready; while :; do sleep 0.1; echo still; done";
    let id = x.start_ready(&pod, x.script("c", text)).await?;
    let (client, stopped) = (x.client.clone(), id.clone());
    let stopping = tasks::spawn(async move { client.stop(&stopped, 600).await });
    x.logged(&pod, "stopping").await?;
    let path = x.log_path(&pod);
    std::fs::rename(&path, pod.log_directory().join("c.log.old"))
        .map_err(|error| Outcome::Skipped(format!("failed to rename a log: {error}")))?;
    let reopening = x.client.reopen_log(&id);
    match tokio::time::timeout(x.shared.wait_limit, reopening).await {
        Ok(answer) => answer?,
        Err(_) => {
            return failed("ReopenContainerLog in the grace period", "to return", "no answer");
        }
    }
    x.logged(&pod, "still").await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    x.client.stop(&id, 0).await?;
    Ok(joined("the first StopContainer", stopping.await)??)
}

async fn line_without_end_is_partial(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "echo first; printf 'no end'")).await?;
    x.exited(&id).await?;
    let log = log_in(x, &pod)?;
    let entries = log.split(|byte| *byte == b'\n').filter_map(cri_log::parse);
    let entries: Vec<_> = entries
        .map(|entry| (entry.partial, String::from_utf8_lossy(entry.text).into_owned()))
        .collect();
    let [first, last, rest @ ..] = entries.as_slice() else {
        return failed("the log", "two lines", format!("{entries:?}"));
    };
    let expected = (false, "first".to_owned());
    equal("whether the first line is partial, and its text", first, &expected)?;
    let expected = (true, "no end".to_owned());
    equal("whether the last line is partial, and its text", last, &expected)?;
    match rest {
        [] => Ok(()),
        // Some runtimes complete each line that they started.
        [(false, text)] if text.is_empty() => {
            diverges("an empty entry, tagged F, follows the last line without an end")
        }
        more => failed("the log after its last line", "nothing", format!("{more:?}")),
    }
}

/// The processes of this machine that have a file open. Only root sees the processes of all users.
fn users(path: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let have = |process: &std::fs::DirEntry| {
        let open = std::fs::read_dir(process.path().join("fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == path))
    };
    let users = processes.filter(have);
    users.map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

async fn log_is_closed_with_container(x: &Context, pod: Pod, id: String) -> Verdict {
    let path = x.log_path(&pod);
    if users(&path).is_empty() {
        return skipped("the processes that have the log open are not visible");
    }
    x.client.remove(&id).await?;
    x.until("no process to have the log open", async || match users(&path) {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    })
    .await?;
    ensure(path.exists(), "the log of the removed container", "to be kept", &path)
}
