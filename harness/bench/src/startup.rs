//! The start of crib's own daemon: from the start of its process until it answers the first call.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::client::Client;
use harness::runtime::check_socket_path;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::BenchError;
use super::rows::{Key, Rows, Section};

/// The time limit for a daemon to start or to exit.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts `crib runtime` once a round, with a new state directory in `directory`, and stops it.
pub(super) async fn measure(
    crib: &Path,
    directory: &Path,
    rounds: usize,
    subject: usize,
    rows: &mut Rows,
) -> Result<(), BenchError> {
    for round in 0..=rounds {
        let place = directory.join(format!("startup-{round}"));
        let time = start_once(crib, &place).await?;
        // The first round is a warm-up.
        if round > 0 {
            let key = Key::time(Section::Startup, "from process start to first response");
            rows.add(key, subject, time.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

fn io(doing: &str) -> impl Fn(std::io::Error) -> BenchError {
    let doing = doing.to_owned();
    move |source| BenchError::Io { doing: doing.clone(), source }
}

async fn start_once(crib: &Path, place: &PathBuf) -> Result<Duration, BenchError> {
    let socket = place.join("s");
    check_socket_path(&socket)?;
    std::fs::create_dir(place).map_err(io("make a directory for a daemon"))?;
    let mut command = Command::new(crib);
    command
        .arg("runtime")
        .arg("--listen")
        .arg(format!("unix://{}", socket.display()))
        .arg("--state-dir")
        .arg(place.join("state"))
        // The daemon exits with this process, even if this process is killed.
        .args(["--until-stdin-closes", "--log-level", "error"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let began = Instant::now();
    let mut daemon = command.spawn().map_err(io("start crib runtime"))?;
    let answered = timeout(LIMIT, wait_for_version(&mut daemon, &socket)).await;
    let took = began.elapsed();
    drop(daemon.stdin.take());
    let ended = timeout(LIMIT, daemon.wait()).await;
    if ended.is_err() {
        daemon.kill().await.map_err(io("kill crib runtime"))?;
    }
    answered.map_err(|_| {
        let seconds = LIMIT.as_secs();
        BenchError::Wait(format!("crib runtime did not answer within {seconds} s"))
    })??;
    file_tree::remove(place)
        .map_err(|error| io("remove the directory of a daemon")(error.into()))?;
    Ok(took)
}

/// Waits until the daemon listens and responds.
async fn wait_for_version(daemon: &mut Child, socket: &Path) -> Result<(), BenchError> {
    let doing = io("read the first line of crib runtime");
    let output = daemon.stdout.take();
    let output = output.ok_or_else(|| doing(std::io::ErrorKind::BrokenPipe.into()))?;
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line).await;
    read.map_err(&doing)?;
    if !line.starts_with("listening on ") {
        return Err(doing(std::io::Error::other("it ended before it listened")));
    }
    let version = Client::new(socket).version().await;
    version.map(drop).map_err(|status| BenchError::Refused {
        call: "Version",
        endpoint: socket.display().to_string(),
        status: Box::new(status),
    })
}
