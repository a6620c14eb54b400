//! Rules of log files: their format, and ReopenContainerLog.

use std::path::Path;

use cri::v1::{self, ContainerState};

use crate::check::context::Context;
use crate::check::held;
use crate::check::outcome::{Outcome, Verdict, ensure, equal, failed, refused};
use crate::check::rule::sources::{API, CONTAINERD, CRIO, CRITEST, LOGS};
use crate::check::rule::{Rule, Severity};
use crate::cri_log::{self, Stream};
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-LOG-001",
        severity: Severity::Must,
        says: "Each line of a container's output is an entry of its log: a time, the stream, the tag F and the text.",
        source: LOGS,
        tags: &["kubelet"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.log_path \"other.log\"",
            "CreateContainer request drop config.log_path",
            "CreateContainer request set config.tty true",
        ],
        body: |x| Box::pin(lines_are_entries(x)),
    },
    Rule {
        id: "CRI-LOG-002",
        severity: Severity::Must,
        says: "Lines of standard output and standard error are told apart, and each stream keeps its order.",
        source: LOGS,
        tags: &["kubelet"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request set config.tty true"],
        body: |x| Box::pin(streams_are_told_apart(x)),
    },
    Rule {
        id: "CRI-LOG-003",
        severity: Severity::Must,
        says: "A long line, and a last line without an end, are in the log with every byte: in entries tagged P up to the last one.",
        source: LOGS,
        tags: &["kubelet"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"printf no; echo end\"]",
            "CreateContainer request set config.log_path \"other.log\"",
        ],
        body: |x| Box::pin(long_and_last_lines_are_whole(x)),
    },
    Rule {
        id: "CRI-LOG-015",
        severity: Severity::Should,
        says: "A last line without an end is tagged P: who reads the log then adds no end that the container did not write.",
        source: CONTAINERD,
        tags: &["kubelet"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo first; echo no end\"]",
        ],
        body: |x| Box::pin(line_without_end_is_partial(x)),
    },
    Rule {
        id: "CRI-LOG-004",
        severity: Severity::Must,
        says: "After ReopenContainerLog the output goes to a new file at the log path, and the renamed file keeps what it had.",
        source: CRITEST,
        tags: &["kubelet", "rotation"],
        calls: &["ReopenContainerLog"],
        faults: &[
            "ReopenContainerLog swallow",
            "ReopenContainerLog answer INTERNAL",
        ],
        body: |x| Box::pin(reopened_log_is_a_new_file(x)),
    },
    Rule {
        id: "CRI-LOG-005",
        severity: Severity::Must,
        says: "ReopenContainerLog of a container that does not run, or is unknown, is refused and makes no file.",
        source: API,
        tags: &["kubelet", "rotation", "state"],
        calls: &["ReopenContainerLog"],
        faults: &[
            "ReopenContainerLog swallow",
            "ReopenContainerLog after 1 swallow",
        ],
        body: |x| Box::pin(reopen_of_exited_container_is_refused(x)),
    },
    Rule {
        id: "CRI-LOG-006",
        severity: Severity::Must,
        says: "The whole output is in the log when the container is reported as exited.",
        source: LOGS,
        tags: &["kubelet", "exit"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "CreateContainer request set config.log_path \"other.log\"",
        ],
        body: |x| Box::pin(log_is_complete_at_exit(x)),
    },
    Rule {
        id: "CRI-LOG-007",
        severity: Severity::Must,
        says: "The log of a container in its grace period is reopened, and what it writes then is in the new file.",
        source: CRIO,
        tags: &["kubelet", "signal"],
        calls: &["ReopenContainerLog", "StopContainer"],
        faults: &[
            "ReopenContainerLog swallow",
            "ReopenContainerLog hang",
            "ReopenContainerLog answer FAILED_PRECONDITION",
        ],
        body: |x| Box::pin(log_is_reopened_in_grace_period(x)),
    },
    Rule {
        id: "CRI-LOG-008",
        severity: Severity::Should,
        says: "No process has the log of a removed container open.",
        source: CONTAINERD,
        tags: &["leaks"],
        calls: &["RemoveContainer"],
        faults: &["RemoveContainer swallow"],
        body: |x| Box::pin(log_is_closed_with_container(x)),
    },
];

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
        Err(error) => failed(
            format!("the log {}", path.display()),
            "a file",
            error.to_string(),
        ),
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
    ensure(
        times.is_sorted() && times.len() == 3,
        "the times",
        "in order",
        times,
    )
}

async fn streams_are_told_apart(x: &Context) -> Verdict {
    let log = log_of(x, "echo o1; echo e1 >&2; echo o2; echo e2 >&2").await?;
    let lines = cri_log::lines(&log);
    for (stream, expected) in [
        (Stream::Stdout, ["o1", "o2"]),
        (Stream::Stderr, ["e1", "e2"]),
    ] {
        let of = lines.iter().filter(|line| line.stream == stream);
        let seen: Vec<&str> = of.map(|line| line.text.as_str()).collect();
        equal(
            &format!("the lines of {stream}"),
            &seen,
            &expected.as_slice(),
        )?;
    }
    Ok(())
}

async fn long_and_last_lines_are_whole(x: &Context) -> Verdict {
    const LENGTH: usize = 100_000;
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' x; echo; printf unfinished");
    let log = log_of(x, &script).await?;
    let lines: Vec<String> = cri_log::lines(&log)
        .into_iter()
        .map(|line| line.text)
        .collect();
    let lengths: Vec<usize> = lines.iter().map(String::len).collect();
    equal(
        "the lengths of the joined lines",
        &lengths,
        &[LENGTH, "unfinished".len()].as_slice(),
    )?;
    let longest = log.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
    ensure(
        longest.is_some_and(|longest| longest <= (16 << 10) + 64),
        "the longest entry",
        "at most 16 KiB of text",
        longest,
    )
}

async fn reopened_log_is_a_new_file(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let text = "trap 'exit 0' TERM; n=0; while :; do n=$((n + 1)); echo $n; sleep 0.1; done";
    let id = pod.start(x.script("c", text)).await?;
    x.logged(&pod, "2").await?;
    let (path, old) = (x.log_path(&pod), pod.log_directory().join("c.log.old"));
    std::fs::rename(&path, &old)
        .map_err(|error| Outcome::Skipped(format!("failed to rename a log: {error}")))?;
    x.client.reopen_log(&id).await?;
    ensure(
        path.exists(),
        "the new log file when ReopenContainerLog returns",
        "to be there",
        "it is not",
    )?;
    let frozen = std::fs::read(&old).unwrap_or_default();
    x.until("two lines in the new log file", async || {
        match x.lines(&pod).len() {
            2.. => Ok(()),
            few => Err(few),
        }
    })
    .await?;
    let later = std::fs::read(&old).unwrap_or_default();
    ensure(
        frozen == later,
        "the renamed file",
        "to stay as it was",
        (frozen.len(), later.len()),
    )
}

async fn reopen_of_exited_container_is_refused(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    // A runtime that has not written anything may not have made the file.
    let _ = std::fs::remove_file(x.log_path(&pod));
    refused(
        "ReopenContainerLog of an exited container",
        x.client.reopen_log(&id).await,
    )?;
    ensure(
        !x.log_path(&pod).exists(),
        "a new log file",
        "not there",
        "it is there",
    )?;
    let answer = x.client.reopen_log(super::sandbox::UNKNOWN).await;
    refused("ReopenContainerLog of an unknown container", answer).map(drop)
}

async fn log_is_complete_at_exit(x: &Context) -> Verdict {
    let directory = x.shared.directory.join(x.unique("go"));
    std::fs::create_dir_all(&directory)
        .map_err(|error| Outcome::Skipped(format!("no directory to mount: {error}")))?;
    // Without namespaces a container sees the host's files where they are.
    let seen = match x.needs_namespaces() {
        Ok(()) => Path::new(held::DIRECTORY),
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
    // It waits for the file, so that it cannot have ended yet, however slow the machine is.
    x.container_is(&id, ContainerState::ContainerRunning)
        .await?;
    std::fs::write(directory.join("go"), "")
        .map_err(|error| Outcome::Skipped(format!("no file for the container: {error}")))?;
    x.exited(&id).await?;
    let log = log_in(x, &pod)?;
    let lines = cri_log::lines(&log);
    let last = lines.last().map(|line| line.text.as_str());
    equal("the last line of the log", &last, &Some("2000"))?;
    equal("the number of lines", &lines.len(), &2000)
}

async fn log_is_reopened_in_grace_period(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let text = "trap 'echo stopping' TERM; echo ready; while :; do sleep 0.1; echo still; done";
    let id = pod.start(x.script("c", text)).await?;
    x.logged(&pod, "ready").await?;
    let (client, stopped) = (x.client.clone(), id.clone());
    let stopping = tokio::spawn(async move { client.stop(&stopped, 600).await });
    x.logged(&pod, "stopping").await?;
    let path = x.log_path(&pod);
    std::fs::rename(&path, pod.log_directory().join("c.log.old"))
        .map_err(|error| Outcome::Skipped(format!("failed to rename a log: {error}")))?;
    let reopening = x.client.reopen_log(&id);
    match tokio::time::timeout(x.shared.patience, reopening).await {
        Ok(answer) => answer?,
        Err(_) => return failed("ReopenContainerLog in the grace period", "to end", "no end"),
    }
    x.logged(&pod, "still").await?;
    x.container_is(&id, ContainerState::ContainerRunning)
        .await?;
    x.client.stop(&id, 0).await?;
    match stopping.await {
        Ok(answer) => Ok(answer?),
        Err(error) => failed("the first StopContainer", "to end", error.to_string()),
    }
}

async fn line_without_end_is_partial(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod
        .start(x.script("c", "echo first; printf 'no end'"))
        .await?;
    x.exited(&id).await?;
    let log = log_in(x, &pod)?;
    let entries = log.split(|byte| *byte == b'\n').filter_map(cri_log::parse);
    let entries: Vec<_> = entries
        .map(|entry| {
            (
                entry.partial,
                String::from_utf8_lossy(entry.text).into_owned(),
            )
        })
        .collect();
    let [first, last, rest @ ..] = entries.as_slice() else {
        return failed("the log", "two lines", format!("{entries:?}"));
    };
    let expected = (false, "first".to_owned());
    equal(
        "whether the first line is partial, and its text",
        first,
        &expected,
    )?;
    let expected = (true, "no end".to_owned());
    equal(
        "whether the last line is partial, and its text",
        last,
        &expected,
    )?;
    match rest {
        [] => Ok(()),
        // Some runtimes end each line that they began.
        [(false, text)] if text.is_empty() => Err(Outcome::Diverges(
            "an empty entry, tagged F, follows the last line without an end".to_owned(),
        )),
        more => failed(
            "the log after its last line",
            "nothing",
            format!("{more:?}"),
        ),
    }
}

/// The processes of this machine that have a file open; those of others are not seen by everybody.
fn users(path: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let have = |process: &std::fs::DirEntry| {
        let open = std::fs::read_dir(process.path().join("fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == path))
    };
    let users = processes.filter(have);
    users
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

async fn log_is_closed_with_container(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let path = x.log_path(&pod);
    if users(&path).is_empty() {
        return Err(Outcome::Skipped(
            "who has the log open is not seen from here".to_owned(),
        ));
    }
    x.client.remove(&id).await?;
    x.until("no process to have the log open", async || {
        match users(&path) {
            none if none.is_empty() => Ok(()),
            some => Err(some),
        }
    })
    .await
}
