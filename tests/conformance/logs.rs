//! Log files in the CRI format, `TIME STREAM TAGS TEXT` (Kubernetes 1.36, cri-client logs).

use std::path::Path;

use cri::v1::ContainerStatus;
use harness::cri_log::{self, Stream};
use harness::{Pod, Runtime, fixture};
use rstest::rstest;
use tonic::Code;

use crate::support::code;

/// The longest text of one entry (containerd and CRI-O split at the same length).
const LONGEST: usize = 16 << 10;

/// An entry without its time.
#[derive(Debug, PartialEq)]
struct Entry {
    stream: Stream,
    partial: bool,
    text: Vec<u8>,
}

fn entries(path: impl AsRef<Path>) -> Vec<Entry> {
    let bytes = std::fs::read(path).unwrap();
    assert!(
        bytes.is_empty() || bytes.ends_with(b"\n"),
        "the last entry has no end"
    );
    let mut times = Vec::new();
    let entries = bytes.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap();
        let entry = cri_log::parse(line)
            .unwrap_or_else(|| panic!("no entry: {:?}", String::from_utf8_lossy(line)));
        times.push(entry.time.parse::<jiff::Timestamp>().unwrap());
        Entry {
            stream: entry.stream,
            partial: entry.partial,
            text: entry.text.to_vec(),
        }
    });
    let entries: Vec<Entry> = entries.collect();
    assert!(times.is_sorted(), "times run backwards: {times:?}");
    entries
}

fn full(text: &str) -> Entry {
    Entry {
        stream: Stream::Stdout,
        partial: false,
        text: text.into(),
    }
}

fn partial(text: &str) -> Entry {
    Entry {
        partial: true,
        ..full(text)
    }
}

async fn run(pod: &Pod, script: &str) -> ContainerStatus {
    let id = pod.start(pod.script("c", script)).await.unwrap();
    pod.ended(&id).await.unwrap()
}

#[tokio::test]
async fn log_contains_lines_of_stdout_and_stderr() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(
        &pod,
        "echo one; echo; echo ' two  words '; printf 'a\\rb\\tc\\n'",
    )
    .await;
    assert_eq!(
        status.log_path,
        pod.log_directory().join("c.log").display().to_string()
    );
    assert_eq!(
        entries(&status.log_path),
        [full("one"), full(""), full(" two  words "), full("a\rb\tc")]
    );

    let id = pod
        .start(pod.script("d", "echo out; echo err >&2"))
        .await
        .unwrap();
    let status = pod.ended(&id).await.unwrap();
    let mut both = entries(&status.log_path);
    both.sort_by_key(|entry| entry.stream == Stream::Stderr);
    let err = Entry {
        stream: Stream::Stderr,
        ..full("err")
    };
    assert_eq!(both, [full("out"), err]);
}

#[rstest]
#[case::no_line_end("printf abc", vec![partial("abc")])]
#[case::nothing("true", vec![])]
#[case::line_and_partial("printf 'one\\ntwo'", vec![full("one"), partial("two")])]
#[tokio::test]
async fn unterminated_output_is_logged_as_partial(
    #[case] script: &str,
    #[case] expected: Vec<Entry>,
) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(&pod, script).await;
    assert_eq!(entries(&status.log_path), expected);
}

#[tokio::test]
async fn long_lines_are_split_into_partial_entries() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(
        &pod,
        "head -c 50000 /dev/zero | tr '\\0' x; echo; echo short",
    )
    .await;
    let entries = entries(&status.log_path);
    let (short, long) = entries.split_last().unwrap();
    assert_eq!(*short, full("short"));
    let (last, pieces) = long.split_last().unwrap();
    assert!(!last.partial);
    assert!(pieces.len() >= 3 && pieces.iter().all(|piece| piece.partial));
    assert!(long.iter().all(|piece| piece.text.len() <= LONGEST));
    let joined: Vec<u8> = long.iter().flat_map(|piece| piece.text.clone()).collect();
    assert_eq!(joined, vec![b'x'; 50_000]);
}

#[tokio::test]
async fn binary_output_is_logged_unchanged() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(&pod, "printf '\\377\\376\\000\\001\\n'").await;
    let entry = Entry {
        text: vec![0xff, 0xfe, 0, 1],
        ..full("")
    };
    assert_eq!(entries(&status.log_path), [entry]);
}

/// A log reader stops when the container has exited, so nothing may be appended later.
#[tokio::test]
async fn log_is_complete_when_container_exits() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(&pod, "seq 100000").await;
    let lines = entries(&status.log_path);
    assert_eq!(lines.len(), 100_000);
    assert_eq!(lines.last().unwrap(), &full("100000"));
}

#[tokio::test]
async fn reopen_creates_new_log_after_rename() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "trap 'echo hup' HUP; echo begin; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(pod.script("c", script)).await.unwrap();
    pod.logged(&id, "begin").await.unwrap();
    let path = runtime.client.container(&id).await.unwrap().log_path;
    let old = format!("{path}.1");
    std::fs::rename(&path, &old).unwrap();
    runtime.client.reopen_log(&id).await.unwrap();
    assert!(
        Path::new(&path).exists(),
        "the new file is there when the call returns"
    );
    runtime.client.sh(&id, "kill -HUP 1").await.unwrap();
    pod.logged(&id, "hup").await.unwrap();
    assert_eq!(entries(&path), [full("hup")]);
    assert_eq!(entries(&old), [full("begin")]);
    // Reopening without a rename keeps the file.
    runtime.client.reopen_log(&id).await.unwrap();
    assert_eq!(entries(&path), [full("hup")]);
}

#[tokio::test]
async fn rotation_loses_no_lines() {
    const LINES: usize = 300_000;
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    // It sleeps at the end, because only a running container's log can be reopened.
    let id = pod
        .start(pod.script("c", &format!("seq {LINES}; sleep 1000")))
        .await
        .unwrap();
    let path = runtime.client.container(&id).await.unwrap().log_path;
    let mut rotated = Vec::new();
    for number in 0..10 {
        let old = format!("{path}.{number}");
        std::fs::rename(&path, &old).unwrap();
        runtime.client.reopen_log(&id).await.unwrap();
        rotated.push(old);
    }
    let expected: Vec<Entry> = (1..=LINES)
        .map(|number| full(&number.to_string()))
        .collect();
    harness::eventually(harness::PATIENCE, "the last line", || async {
        let last = rotated.iter().chain([&path]).any(|path| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap()).ends_with(&format!(" {LINES}\n"))
        });
        if last {
            Ok(())
        } else {
            Err("it is in none of the files")
        }
    })
    .await;
    let all: Vec<Entry> = rotated.iter().chain([&path]).flat_map(entries).collect();
    assert!(all == expected, "{} lines instead of {LINES}", all.len());
}

#[tokio::test]
async fn reopen_fails_for_exited_and_unknown_container() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(&pod, "echo done").await;
    let old = format!("{}.1", status.log_path);
    std::fs::rename(&status.log_path, &old).unwrap();
    assert_eq!(
        code(runtime.client.reopen_log(&status.id).await),
        Code::FailedPrecondition
    );
    assert!(!Path::new(&status.log_path).exists());
    assert_eq!(
        code(runtime.client.reopen_log("nothing").await),
        Code::NotFound
    );
}

#[tokio::test]
async fn reopen_works_during_stop() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = pod.start(pod.script("c", script)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    let (client, same) = (runtime.client.clone(), id.clone());
    let stop = tokio::spawn(async move { client.stop(&same, 3600).await });
    pod.logged(&id, "asked").await.unwrap();
    tokio::time::timeout(harness::PATIENCE, runtime.client.reopen_log(&id))
        .await
        .unwrap()
        .unwrap();
    runtime.client.stop(&id, 0).await.unwrap();
    stop.await.unwrap().unwrap();
}

#[rstest]
#[case::no_path("", true)]
#[case::no_directory("c.log", false)]
#[tokio::test]
async fn container_runs_without_log(#[case] log_path: &str, #[case] directory: bool) {
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    if !directory {
        config.log_directory.clear();
    }
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let mut config = pod.script("c", "seq 100000");
    config.log_path = log_path.to_owned();
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!((status.exit_code, status.log_path.as_str()), (0, ""));
}

#[rstest]
#[case::dot_dot("../escaped.log")]
#[case::dot_dot_inside("a/../../escaped.log")]
#[case::absolute("/tmp/escaped.log")]
#[tokio::test]
async fn create_rejects_log_path_outside_log_directory(#[case] log_path: &str) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", "echo escaped");
    config.log_path = log_path.to_owned();
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    assert!(!pod.log_directory().join(log_path).exists());
}

/// A container that mounts the log directory could create symlinks there.
#[rstest]
#[case::file("c.log", "c.log")]
#[case::directory("d/c.log", "d")]
#[tokio::test]
async fn log_is_not_written_through_symlink(#[case] log_path: &str, #[case] link: &str) {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    std::fs::create_dir_all(pod.log_directory()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let target = if link == log_path {
        elsewhere.path().join("c.log")
    } else {
        elsewhere.path().to_owned()
    };
    std::os::unix::fs::symlink(target, pod.log_directory().join(link)).unwrap();
    let mut config = pod.script("c", "echo escaped");
    config.log_path = log_path.to_owned();
    assert_eq!(
        code(pod.create(config.clone()).await),
        Code::InvalidArgument
    );

    // A symlink created after CreateContainer makes the start fail with a reason.
    std::fs::remove_file(pod.log_directory().join(link)).unwrap();
    let id = pod.create(config).await.unwrap();
    let whole = pod.log_directory().join(log_path);
    if link != log_path {
        std::fs::remove_dir(pod.log_directory().join(link)).unwrap();
    }
    std::os::unix::fs::symlink(elsewhere.path(), pod.log_directory().join(link)).unwrap();
    let error = runtime.client.start(&id).await.unwrap_err();
    assert!(
        error.message().contains(&whole.display().to_string()),
        "{error:?}"
    );
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn missing_log_directories_are_created() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", "echo deep");
    config.log_path = "a/b/c.log".to_owned();
    let id = pod.start(config).await.unwrap();
    let status = pod.ended(&id).await.unwrap();
    assert_eq!(
        status.log_path,
        pod.log_directory().join("a/b/c.log").display().to_string()
    );
    assert_eq!(entries(&status.log_path), [full("deep")]);
}

/// Logs must stay available to later readers: the runtime never removes them.
#[tokio::test]
async fn logs_remain_after_container_removal() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let status = run(&pod, "echo kept").await;
    runtime.client.remove(&status.id).await.unwrap();
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert_eq!(entries(&status.log_path), [full("kept")]);
}

#[tokio::test]
async fn failed_create_leaves_no_log() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", "true");
    fixture::security(&mut config).run_as_username = "no-such-user".to_owned();
    code(pod.create(config).await);
    assert!(!pod.log_directory().join("c.log").exists());
}

/// `max_size` is for hosts where no client rotates logs.
#[tokio::test]
async fn log_stays_within_max_size() {
    let runtime = Runtime::with()
        .config("logs: {max_size: 1048576}\n")
        .start()
        .await
        .unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script =
        "i=0; while [ $i -lt 30000 ]; do echo $i 0123456789012345678901234567890; i=$((i+1)); done";
    let id = pod.start(pod.script("c", script)).await.unwrap();
    assert_eq!(pod.ended(&id).await.unwrap().exit_code, 0);
    let path = runtime.client.container(&id).await.unwrap().log_path;
    let log = std::fs::read_to_string(path).unwrap();
    assert!(log.len() <= 1 << 20, "{}", log.len());
    let numbers: Vec<u32> = log
        .lines()
        .map(|line| line.split(' ').nth(3).unwrap().parse().unwrap())
        .collect();
    // The log has all lines from some line on.
    assert!(numbers[0] > 0 && numbers.last() == Some(&29_999));
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1));
}
