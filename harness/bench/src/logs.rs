//! The throughput of container logs: a container writes lines as fast as it can.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::{interval, timeout};

use super::BenchError;
use super::rows::{Key, Rows, Section, Unit};
use super::target::Target;
use super::target::alternate;

/// The length of a line with its newline.
const LINE: usize = 100;
/// The last line of the output.
const END: &str = "end of output";
/// The time limit for the output to reach the log.
const LIMIT: Duration = Duration::from_secs(120);
/// The polling interval of the log. inotify would report each write, which slows the writer down.
const PERIOD: Duration = Duration::from_millis(1);

/// Measures the bytes of output a second, for this number of lines.
pub(super) async fn measure(
    targets: &[Target],
    lines: usize,
    rounds: usize,
    rows: &mut Rows,
) -> Result<(), BenchError> {
    let name = format!("{lines} lines of {LINE} bytes");
    let key = Key::new(Section::Logs, &name, Unit::MegabytesPerSecond);
    let text = "x".repeat(LINE - 1);
    let script = format!("yes {text} | head -n {lines}; echo '{END}'");
    let sample = async |_, target: &Target| {
        let time = write(target, &script).await?;
        Ok((lines * LINE) as f64 / 1e6 / time.as_secs_f64())
    };
    alternate(targets, rounds, sample, |subject, sample| {
        rows.add(key, subject, sample);
    })
    .await
}

/// The time from StartContainer until the log has the last line.
async fn write(target: &Target, script: &str) -> Result<Duration, BenchError> {
    let pod = target.pod().await?;
    let created = pod.create(target.script(script));
    let container = target.call("CreateContainer", created).await?;
    let log = pod.log_directory().join("main.log");
    let began = Instant::now();
    target.call("StartContainer", target.client.start(&container)).await?;
    let complete = async {
        let mut period = interval(PERIOD);
        while !ends_with(&log, END).unwrap_or(false) {
            period.tick().await;
        }
    };
    timeout(LIMIT, complete).await.map_err(|_| {
        let (log, seconds) = (log.display(), LIMIT.as_secs());
        BenchError::Wait(format!("the output of a container was not in {log} within {seconds} s"))
    })?;
    let took = began.elapsed();
    target.remove(&[pod]).await?;
    Ok(took)
}

/// Whether the last line of a file ends with `end`.
fn ends_with(file: &Path, end: &str) -> io::Result<bool> {
    let file = File::open(file)?;
    let expected = format!("{end}\n");
    let Some(offset) = file.metadata()?.len().checked_sub(expected.len() as u64) else {
        return Ok(false);
    };
    let mut last = vec![0; expected.len()];
    file.read_exact_at(&mut last, offset)?;
    Ok(last == expected.as_bytes())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::empty("", false)]
    #[case::shorter("end\n", false)]
    #[case::other("a b c\nd e f g h i j k\n", false)]
    #[case::no_newline("time stdout F end of output", false)]
    #[case::complete("time stdout F x\ntime stdout F end of output\n", true)]
    fn log_is_complete_with_its_last_line(#[case] text: &str, #[case] expected: bool) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(ends_with(file.path(), END).unwrap(), expected);
    }
}
