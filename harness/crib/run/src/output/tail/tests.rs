//! Growing files, restarts, directories that are created later: every line arrives once and in order.
use std::io::Write as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rstest::rstest;

use super::*;

/// A tail whose lines can be awaited.
struct TestTail {
    tail: Tail,
    printed: Receiver<Print>,
    dir: tempfile::TempDir,
}

fn start_tail() -> TestTail {
    let (sender, printed) = channel();
    let tail = Tail::start(Printer::to(sender)).unwrap();
    TestTail { tail, printed, dir: tempfile::tempdir().unwrap() }
}

fn label(container: &str) -> Arc<Label> {
    Arc::new(Label { pod: "default/p".to_owned(), container: container.to_owned() })
}

fn entry(tag: &str, text: &str) -> String {
    format!("2026-01-02T03:04:05.6Z stdout {tag} {text}\n")
}

fn append(path: &Path, text: &str) {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

impl TestTail {
    /// Waits until `count` lines have arrived, and returns them as `container: text`.
    async fn lines(&self, count: usize) -> Vec<String> {
        let mut got = Vec::new();
        tokio::task::block_in_place(|| {
            while got.len() < count {
                match self.printed.recv_timeout(Duration::from_secs(20)) {
                    Ok(Print::Logs { label, lines, .. }) => {
                        got.extend(
                            lines
                                .into_iter()
                                .map(|line| format!("{}: {}", label.container, line.text)),
                        );
                    }
                    other => panic!("after {got:?} came {other:?}"),
                }
            }
        });
        got
    }

    fn nothing_more(&self) {
        let more = self.printed.try_recv();
        assert!(more.is_err(), "{more:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_prints_lines_as_written_and_joins_partial_entries() {
    let tail = start_tail();
    let log = tail.dir.path().join("0.log");
    append(&log, &entry("F", "before"));
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    assert_eq!(tail.lines(1).await, ["a: before"]);
    append(&log, &entry("P", "one "));
    append(&log, &entry("F", "line"));
    append(&log, &entry("F", "next"));
    assert_eq!(tail.lines(2).await, ["a: one line", "a: next"]);
    tail.tail.finish().await;
    tail.nothing_more();
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_prints_lines_once_when_followed_twice() {
    let tail = start_tail();
    let log = tail.dir.path().join("0.log");
    append(&log, &entry("F", "one"));
    for _ in 0..3 {
        tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    }
    tail.tail.finish().await;
    assert_eq!(tail.lines(1).await, ["a: one"]);
    tail.nothing_more();
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_reads_attempts_in_numeric_order() {
    let tail = start_tail();
    for number in [9, 10, 11] {
        append(&tail.dir.path().join(format!("{number}.log")), &entry("F", &number.to_string()));
    }
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    assert_eq!(tail.lines(3).await, ["a: 9", "a: 10", "a: 11"]);
    append(&tail.dir.path().join("12.log"), &entry("F", "12"));
    assert_eq!(tail.lines(1).await, ["a: 12"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_reads_old_attempt_to_its_end_after_restart() {
    let tail = start_tail();
    let log = tail.dir.path().join("0.log");
    append(&log, &entry("F", "one"));
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    assert_eq!(tail.lines(1).await, ["a: one"]);
    append(&log, &entry("P", "cut off"));
    append(&tail.dir.path().join("1.log"), &entry("F", "again"));
    assert_eq!(tail.lines(2).await, ["a: cut off", "a: again"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_prints_last_line_without_end_once_its_attempt_has_ended() {
    let tail = start_tail();
    let log = tail.dir.path().join("0.log");
    append(&log, &(entry("F", "starting") + &entry("P", "fatal")));
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    assert_eq!(tail.lines(1).await, ["a: starting"]);
    for _ in 0..2 {
        tail.tail.follow(label("a"), tail.dir.path().to_owned(), Some(0));
    }
    assert_eq!(tail.lines(1).await, ["a: fatal"]);
    // The next attempt continues.
    let next = tail.dir.path().join("1.log");
    append(&next, &entry("P", "one "));
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), Some(0));
    append(&next, &entry("F", "line"));
    assert_eq!(tail.lines(1).await, ["a: one line"]);
    tail.tail.finish().await;
    tail.nothing_more();
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_follows_directory_created_later() {
    let tail = start_tail();
    let (early, late) = (tail.dir.path().join("early"), tail.dir.path().join("late"));
    tail.tail.follow(label("late"), late.clone(), None);
    std::fs::create_dir_all(&early).unwrap();
    append(&early.join("0.log"), &entry("F", "x"));
    tail.tail.follow(label("early"), early, None);
    assert_eq!(tail.lines(1).await, ["early: x"]);
    std::fs::create_dir_all(&late).unwrap();
    append(&late.join("0.log"), &entry("F", "y"));
    tail.tail.follow(label("late"), late, None);
    assert_eq!(tail.lines(1).await, ["late: y"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_reads_everything_when_finished() {
    let tail = start_tail();
    let late = tail.dir.path().join("late");
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    tail.tail.follow(label("late"), late.clone(), None);
    append(&tail.dir.path().join("0.log"), &entry("P", "no end"));
    std::fs::create_dir_all(&late).unwrap();
    append(&late.join("0.log"), &entry("F", "unseen"));
    tail.tail.finish().await;
    let mut lines = tail.lines(2).await;
    lines.sort();
    assert_eq!(lines, ["a: no end", "late: unseen"]);
    tail.nothing_more();
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_waits_for_slow_printer_without_loss() {
    let tail = start_tail();
    let count = 20 * BATCHES * CHUNK / 1024;
    let text: String = (0..count).map(|number| entry("F", &format!("{number:01000}"))).collect();
    append(&tail.dir.path().join("0.log"), &text);
    tail.tail.follow(label("a"), tail.dir.path().to_owned(), None);
    let lines = tail.lines(count).await;
    assert!(lines.iter().enumerate().all(|(number, line)| *line == format!("a: {number:01000}")));
}

#[rstest]
#[case("0.log", Some(0))]
#[case("12.log", Some(12))]
#[case("012.log", None)]
#[case("+1.log", None)]
#[case("0.log.20260102", None)]
#[case("x.log", None)]
#[case(".log", None)]
fn tail_selects_log_files_by_attempt_number(#[case] name: &str, #[case] number: Option<u32>) {
    assert_eq!(attempt(name), number);
}
