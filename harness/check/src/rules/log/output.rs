//! Rules of the output of processes: its bytes and times in logs, and in ExecSync.

use harness::cri_log::{self, Entry, Stream};

use crate::prelude::*;
use crate::rules::process::TICK;
use crate::rules::sandbox::echo::now;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-LOG-009": "A log entry has the time at which it was written, in RFC 3339 format with fractional seconds, which the kubelet parses.",
        LOGS, tags ["kubelet", "time"], calls [CreateContainer, ExecSync],
        entries_have_their_times given [namespaces, pod], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo first; echo second; echo third; sleep 1000\"]",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
    Must "CRI-LOG-010": "Every byte of long lines in both streams, and of binary output, is logged once and in order.",
        LOGS, tags ["kubelet"], calls [CreateContainer],
        bytes_are_kept, faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo other\"]",
            "CreateContainer request set config.tty true",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
    Must "CRI-LOG-012": "Output of a container with a terminal is logged line by line, as standard output.",
        LOGS, tags ["kubelet", "tty"], calls [CreateContainer],
        terminal_is_logged given [pod], faults [
            "CreateContainer request drop config.tty",
            "CreateContainer request set config.log_path \"other.log\"",
        ];
    Must "CRI-LOG-014": "Output that a container writes in one burst right before it exits is completely in the log when the container is reported as exited.",
        LOGS, tags ["kubelet", "exit"], calls [CreateContainer, ContainerStatus],
        last_piece_is_logged, faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo 1\"]",
            "CreateContainer after 3 request set config.log_path \"other.log\"",
        ];
    Must "CRI-EXE-017": "ExecSync returns 1 MB of standard output and 1 MB of standard error completely and in order.",
        KUBELET, tags ["kubelet", "probe"], calls [ExecSync],
        long_outputs_of_exec_are_whole given [container], faults [
            "ExecSync drop stderr",
            "ExecSync drop stdout",
            "ExecSync set stderr \"b3V0Cg==\"",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"echo other; echo other >&2\"]",
        ];
};

/// Whether a time is in RFC 3339 format as Go parses it: `2026-01-31T23:59:59.123456789Z`, or with an offset.
fn is_rfc3339(time: &str) -> bool {
    let zone = time.find(['Z', '+']).or_else(|| {
        let clock = time.find('T')?;
        Some(clock + time.get(clock..)?.find('-')?)
    });
    let Some((clock, zone)) = zone.and_then(|at| time.split_at_checked(at)) else {
        return false;
    };
    let shaped = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.chars().zip(shape.chars()).all(|(have, of)| match of {
                '0' => have.is_ascii_digit(),
                other => have == other,
            })
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    shaped(clock, "0000-00-00T00:00:00")
        && (1..=9).contains(&fraction.len())
        && fraction.chars().all(|digit| digit.is_ascii_digit())
        && ["Z", "+00:00", "-00:00"].iter().any(|shape| shaped(zone, shape))
}

/// The time of a log's line, in nanoseconds since 1970.
fn time_of(lines: &[cri_log::Line], text: &str) -> Verdict<i64> {
    let Some(line) = lines.iter().find(|line| line.text == text) else {
        return failed("the log", format!("the line {text:?}"), format!("{lines:?}"));
    };
    let expected = "RFC 3339, such as 2026-01-31T23:59:59.123456789Z";
    ensure(is_rfc3339(&line.time), "the time of an entry", expected, &line.time)?;
    match line.time.parse::<jiff::Timestamp>() {
        Ok(time) => Ok(i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)),
        Err(error) => failed("the time of an entry", "a time", error.to_string()),
    }
}

async fn entries_have_their_times(x: &Context, pod: Pod) -> Verdict {
    let script = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo second; echo third; sleep 1000";
    let before = now() - TICK;
    let id = pod.start(x.script("c", script)).await?;
    x.logged(&pod, "first").await?;
    let seen = now() + TICK;
    // The lines are far enough apart to need different times.
    tokio::time::sleep(Duration::from_nanos(4 * TICK.unsigned_abs())).await;
    let between = now();
    x.client.sh(&id, ": >/tmp/go").await?;
    x.logged(&pod, "third").await?;
    let after = now() + TICK;
    let lines = x.lines(&pod);
    let [first, second, third] =
        [time_of(&lines, "first")?, time_of(&lines, "second")?, time_of(&lines, "third")?];
    let expected = format!("between {before} and {seen}, in nanoseconds since 1970");
    let within = (before..=seen).contains(&first);
    ensure(within, "the time of the first line", &expected, first)?;
    let expected = format!("between {between} and {after}, in nanoseconds since 1970");
    let within = between - TICK <= second && second <= third && third <= after;
    ensure(within, "the times of the later lines", &expected, (second, third))?;
    let fraction = [first, second, third].iter().any(|time| time % 1_000_000_000 != 0);
    ensure(fraction, "the fractional seconds of three times", "one that is not 0", &lines)
}

/// A script that puts a long line of numbers into `$v`.
const NUMBERS: &str = "n=10000; v=; while [ $n -lt 17000 ]; do v=$v$n,; n=$((n + 1)); done; ";

/// The line that [`NUMBERS`] makes.
fn numbers() -> String {
    (10_000..17_000).map(|number| format!("{number},")).collect()
}

/// Fails with the position and content of the first difference.
fn same_bytes(what: &str, seen: &[u8], expected: &[u8]) -> Verdict {
    if seen == expected {
        return Ok(());
    }
    let at = seen.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let part = |bytes: &[u8]| {
        let part = bytes.get(at..bytes.len().min(at + 40)).unwrap_or_default();
        format!("{} bytes, at {at} {:?}", bytes.len(), String::from_utf8_lossy(part))
    };
    failed(what, part(expected), part(seen))
}

/// The bytes of a stream in a log: partial entries are joined, and full entries end with a newline.
pub(crate) fn of_stream(log: &[u8], stream: Stream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let of = |line| cri_log::parse(line).filter(|entry: &Entry| entry.stream == stream);
    for entry in log.split(|byte| *byte == b'\n').filter_map(of) {
        bytes.extend(entry.text);
        if !entry.partial {
            bytes.push(b'\n');
        }
    }
    bytes
}

async fn last_piece_is_logged(x: &Context) -> Verdict {
    // Nearly the capacity of a pipe: its writer exits before any of it is read.
    let text = "n=100000; while [ $n -lt 108000 ]; do n=$((n + 1)); echo $n; done >/tmp/$$; exec cat /tmp/$$";
    let expected: String = (100_001..=108_000).map(|number| format!("{number}\n")).collect();
    let mut late = 0;
    for _ in 0..8 {
        let pod = x.pod().await?;
        let id = pod.start(x.script("c", text)).await?;
        x.exited(&id).await?;
        let look = || {
            let lines = x.lines(&pod).into_iter();
            lines.map(|line| line.text + "\n").collect::<String>()
        };
        if look() == expected {
            continue;
        }
        late += 1;
        x.until("8000 lines in the log", async || {
            let seen = look();
            match seen == expected {
                true => Ok(()),
                false => Err((seen.lines().count(), seen.lines().last().map(str::to_owned))),
            }
        })
        .await?;
    }
    match late {
        0 => Ok(()),
        late => diverges(format!(
            "the log of {late} of 8 containers was complete only after they were reported as exited"
        )),
    }
}

async fn terminal_is_logged(x: &Context, pod: Pod) -> Verdict {
    let text = "[ -t 1 ] || exit 9; echo shown; echo said >&2; printf 'no end'; exit 3";
    let mut config = x.script("c", text);
    config.tty = true;
    let id = pod.start(config).await?;
    let status = x.exited(&id).await?;
    equal("the exit code", &status.exit_code, &3)?;
    // A terminal also ends its lines with a carriage return, which some runtimes keep.
    let lines = x.lines(&pod).into_iter();
    let seen: Vec<_> =
        lines.map(|line| (line.stream, line.text.trim_end_matches('\r').to_owned())).collect();
    let expected = ["shown", "said", "no end"];
    let expected: Vec<_> = expected.map(|text| (Stream::Stdout, text.to_owned())).into();
    equal("the lines of the log", &seen, &expected)
}

async fn bytes_are_kept(x: &Context) -> Verdict {
    let script = format!(
        "{NUMBERS} echo $v; echo $v >&2; printf '\\377\\376\\001\\000\\033[1m a\\tb\\r \\303\\n'; echo $v >&2; echo end"
    );
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", &script)).await?;
    x.exited(&id).await?;
    let path = x.log_path(&pod);
    let log = match std::fs::read(&path) {
        Ok(log) => log,
        Err(error) => return failed("the log", "a file", error.to_string()),
    };
    let long = numbers() + "\n";
    // Some runtimes treat a carriage return before a newline as part of the line's end.
    let odd = b"\xff\xfe\x01\x00\x1b[1m a\tb\r \xc3\nend\n";
    let stdout = [long.as_bytes(), odd].concat();
    same_bytes("standard output in the log", &of_stream(&log, Stream::Stdout), &stdout)?;
    let stderr = long.repeat(2);
    same_bytes("standard error in the log", &of_stream(&log, Stream::Stderr), stderr.as_bytes())
}

async fn long_outputs_of_exec_are_whole(x: &Context, id: String) -> Verdict {
    const TIMES: usize = 25;
    let script = format!(
        "{NUMBERS} t=0; while [ $t -lt {TIMES} ]; do t=$((t + 1)); echo o$v; echo e$v >&2; done; exit 5"
    );
    let answer = x.client.exec(&id, ["/bin/sh", "-c", &script], 60).await?;
    for (what, seen, first) in [("stdout", answer.stdout, "o"), ("stderr", answer.stderr, "e")] {
        let line = format!("{first}{}\n", numbers());
        same_bytes(what, &seen, line.repeat(TIMES).as_bytes())?;
    }
    equal("exit_code", &answer.exit_code, &5)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("2026-01-31T23:59:59.123456789Z", true)]
    #[case("2026-01-31T23:59:59Z", true)]
    #[case("2026-01-31T23:59:59.1-07:00", true)]
    #[case("2026-01-31T23:59:59.1+07:00", true)]
    #[case("2026-01-31t23:59:59z", false)]
    #[case("2026-01-31T23:59:59", false)]
    #[case("2026-01-31T23:59:59,5Z", false)]
    #[case("2026-01-31T23:59:59.1234567891Z", false)]
    #[case("2026-1-31T23:59:59Z", false)]
    #[case("1767225599", false)]
    #[case("", false)]
    fn times_are_those_that_go_reads(#[case] time: &str, #[case] expected: bool) {
        assert_eq!(is_rfc3339(time), expected);
    }

    #[test]
    fn partial_entries_are_joined() {
        let log = b"2026-01-31T23:59:59Z stdout P ab\n2026-01-31T23:59:59Z stderr F x\n2026-01-31T23:59:59Z stdout F c\n";
        assert_eq!(of_stream(log, Stream::Stdout), b"abc\n");
        assert_eq!(of_stream(log, Stream::Stderr), b"x\n");
    }
}
