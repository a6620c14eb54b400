//! Termination messages: the content of the message file, or the end of the log.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go, getTerminationMessage.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::pod::Pod;
use k8s_openapi::api::core::v1::Container;

use crate::observed::{ContainerId, ContainerState, Exit, Observed, ObservedContainer};
use crate::pod_spec::spec::mounts::cleaned;
use tasks::brief;

/// Maximum bytes read from a message file.
const MESSAGE_BYTES: u64 = 4096;
/// Maximum bytes taken from a log.
const LOG_BYTES: usize = 2048;
/// Maximum lines taken from a log.
const LOG_LINES: usize = 80;

/// Reads the container's termination message; empty if there is none. Blocks on file I/O.
pub(crate) fn message(container: &Container, seen: &ObservedContainer, exit: &Exit) -> String {
    let path = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    // The file is mounted at the cleaned path. Without a path there is none.
    let path = (!path.is_empty()).then(|| PathBuf::from(cleaned(path)));
    let mounted = seen.mounts.iter().find(|(inside, _)| Some(inside) == path.as_ref());
    let text = match mounted.map(|(_, file)| (file, read_end(file, MESSAGE_BYTES))) {
        Some((_, Ok(text))) => text,
        Some((_, Err(error))) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Some((file, Err(error))) => {
            let file = file.display();
            return format!("Error on reading termination log {file}: {error}");
        }
        None => String::new(),
    };
    let by_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError")
        && exit.code != 0
        && exit.reason != "ContainerCannotRun";
    match &seen.log_path {
        Some(log) if text.is_empty() && by_log => log_end(log),
        Some(_) | None => text,
    }
}

/// Joins the runtime's and the container's messages.
pub(crate) fn joined(runtime: &str, container: &str) -> String {
    match (runtime.is_empty(), container.is_empty()) {
        (_, true) => runtime.to_owned(),
        (true, false) => container.to_owned(),
        (false, false) => format!("{runtime}: {container}"),
    }
}

/// Reads the last bytes of a file as text.
fn read_end(path: &Path, bytes: u64) -> io::Result<String> {
    let mut file = file_tree::part::open_mounted(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut content = Vec::new();
    file.take(bytes).read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// A kubelet's message if the log does not exist, which names the first part of the path that is missing (Kubernetes 1.36,
/// readLastStringFromContainerLogs; cri-client, pkg/logs/logs.go ReadLogs).
fn missing_log(path: &Path) -> String {
    let is_missing = |part: &&Path| std::fs::symlink_metadata(part).is_err();
    let part = path.ancestors().take_while(is_missing).last().unwrap_or(path);
    format!(
        "Error on reading termination message from logs: failed to try resolving symlinks in path {path:?}: lstat {}: no such \
         file or directory",
        part.display()
    )
}

/// Reads the last lines of a container log without their timestamps.
fn log_end(path: &Path) -> String {
    // Timestamps and tags are removed, so read more than is kept.
    let raw = match read_end(path, 16 * LOG_BYTES as u64) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return missing_log(path),
        read => read.unwrap_or_default(),
    };
    let mut text = String::new();
    for line in raw.lines() {
        let mut parts = line.splitn(4, ' ');
        let (tag, content) = (parts.nth(2).unwrap_or_default(), parts.next().unwrap_or_default());
        text.push_str(content);
        if !tag.starts_with('P') {
            text.push('\n');
        }
    }
    let cut = text.len().saturating_sub(LOG_BYTES);
    let cut = (cut..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let kept = &text[cut..];
    let lines: Vec<&str> = kept.split_inclusive('\n').collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].concat()
}

/// Messages of exited containers, appended to the runtime's own message.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// A list, because a map has room for eleven entries at least.
    read: Vec<(ContainerId, String)>,
}

impl Messages {
    fn of(&self, id: &ContainerId) -> Option<&String> {
        let mut read = self.read.iter();
        read.find(|(read, _)| read == id).map(|(_, message)| message)
    }

    /// Returns the observed state with the messages of all exited containers.
    pub(crate) fn read(&mut self, pod: &Pod, observed: &Arc<Observed>) -> Arc<Observed> {
        self.read.retain(|(id, _)| observed.containers.iter().any(|container| container.id == *id));
        let new: Vec<_> = observed
            .containers
            .iter()
            .filter(|seen| seen.state.exit().is_some() && self.of(&seen.id).is_none())
            .filter_map(|seen| Some((pod.container(&seen.name)?.1.clone(), seen.clone())))
            .collect();
        if !new.is_empty() {
            let found = brief(move || {
                let message = |(container, seen): &(_, crate::observed::ObservedContainer)| {
                    let exit = seen.state.exit()?;
                    let own = message(container, seen, exit);
                    Some((seen.id.clone(), joined(&exit.message, &own)))
                };
                new.iter().filter_map(message).collect::<Vec<_>>()
            });
            self.read.extend(found);
        }
        if self.read.iter().all(|(_, message)| message.is_empty()) {
            return Arc::clone(observed);
        }
        let mut with = Observed::clone(observed);
        for container in &mut with.containers {
            if let (ContainerState::Exited(exit), Some(message)) =
                (&mut container.state, self.of(&container.id))
            {
                exit.message.clone_from(message);
            }
        }
        Arc::new(with)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use rstest::rstest;

    use super::*;
    use crate::fixtures::{self, exit};
    use crate::observed::ContainerState;

    fn seen(file: PathBuf, log: PathBuf) -> ObservedContainer {
        ObservedContainer {
            log_path: Some(log),
            mounts: vec![("/dev/termination-log".into(), file)],
            ..fixtures::container("c", "app", ContainerState::Exited(exit(1)))
        }
    }

    #[rstest]
    #[case("File", "", 1, "")]
    #[case("File", "bye", 1, "bye")]
    #[case("FallbackToLogsOnError", "bye", 1, "bye")]
    #[case("FallbackToLogsOnError", "", 1, "one two\nthree\n")]
    #[case("FallbackToLogsOnError", "", 0, "")]
    fn message_comes_from_file_or_log(
        #[case] policy: &str,
        #[case] file: &str,
        #[case] code: i32,
        #[case] expected: &str,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (message_file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        fs::write(&message_file, file).unwrap();
        fs::write(&log, "2026-01-01T00:00:00Z stdout P one \n2026-01-01T00:00:00Z stdout F two\n2026-01-01T00:00:00Z stderr F three\n")
            .unwrap();
        let container = Container {
            termination_message_policy: Some(policy.to_owned()),
            ..Container::default()
        };
        assert_eq!(message(&container, &seen(message_file, log), &exit(code)), expected);
    }

    #[rstest]
    #[case::absolute("/tmp/message", "bye")]
    #[case::relative("tmp/message", "bye")]
    #[case::leaves_a_directory("/tmp/../tmp//message", "bye")]
    #[case::another("/tmp/other", "")]
    #[case::none("", "")]
    fn message_is_in_the_file_mounted_at_the_cleaned_path(
        #[case] path: &str,
        #[case] expected: &str,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("message");
        fs::write(&file, "bye").unwrap();
        let root = dir.path().join("root");
        fs::write(&root, "root").unwrap();
        let mounts = vec![("/".into(), root), ("/tmp/message".into(), file.clone())];
        let seen = ObservedContainer { mounts, ..seen(file, dir.path().join("0.log")) };
        let container =
            Container { termination_message_path: Some(path.to_owned()), ..Container::default() };
        assert_eq!(message(&container, &seen, &exit(1)), expected);
    }

    #[test]
    fn termination_message_reports_read_errors() {
        let dir = tempfile::tempdir().unwrap();
        let seen = seen(dir.path().to_owned(), dir.path().join("0.log"));
        assert_eq!(
            message(&Container::default(), &seen, &exit(1)),
            format!(
                "Error on reading termination log {}: it is not a regular file",
                dir.path().display()
            )
        );
    }

    #[rstest]
    #[case::log("there/0.log", "there/0.log")]
    #[case::directory("gone/app/0.log", "gone")]
    fn message_names_the_missing_part_of_the_path_of_a_log(
        #[case] log: &str,
        #[case] missing: &str,
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("there")).unwrap();
        let log = dir.path().join(log);
        let container = Container {
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        };
        assert_eq!(
            message(&container, &seen(dir.path().join("none"), log.clone()), &exit(1)),
            format!(
                "Error on reading termination message from logs: failed to try resolving symlinks in path {log:?}: lstat {}: \
                 no such file or directory",
                dir.path().join(missing).display()
            )
        );
    }

    #[test]
    fn message_is_end_of_file_or_log() {
        let dir = tempfile::tempdir().unwrap();
        let (message_file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        fs::write(&message_file, format!("{}{}", "a".repeat(100), "b".repeat(4096))).unwrap();
        assert_eq!(
            message(&Container::default(), &seen(message_file, log.clone()), &exit(1)),
            "b".repeat(4096)
        );
        let lines: String =
            (0..3000).map(|n| format!("2026-01-01T00:00:00Z stdout F {n}\n")).collect();
        fs::write(&log, lines).unwrap();
        let container = Container {
            termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
            ..Container::default()
        };
        let text = message(&container, &seen(dir.path().join("none"), log), &exit(1));
        assert_eq!(text.lines().count(), LOG_LINES);
        assert!(text.ends_with("2998\n2999\n") && text.starts_with("2920\n"), "{text}");
    }

    #[rstest]
    #[case("", "", "")]
    #[case("oom", "", "oom")]
    #[case("", "bye", "bye")]
    #[case("oom", "bye", "oom: bye")]
    fn message_joins_runtime_and_container(
        #[case] runtime: &str,
        #[case] container: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(joined(runtime, container), expected);
    }
}
