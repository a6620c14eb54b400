//! Copies with any runtime: runs tar in the container, as kubectl does.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cri::v1;
use file_copy::Source;
use harness::streaming::{self, CommandError, Inlet, Streams, Transport};
use tokio::time::timeout;

use super::{Archive, Packing, Progress, Sink, TargetContainer};
use crate::client::CallError;

/// The timeout for the exit code of a command whose output has ended.
const EXIT: Duration = Duration::from_secs(10);
/// The maximum length of a kept error message of tar.
const MESSAGE: usize = 4 << 10;

/// The arguments of tar for packing.
pub(super) struct From {
    directory: String,
    name: String,
}

impl From {
    /// Resolves a path: follows a symbolic link at its end, if the container has readlink.
    pub(super) async fn find(
        container: &TargetContainer<'_>,
        path: &str,
    ) -> Result<Self, CallError> {
        if Source::name(Path::new(path)) == "." {
            return Ok(Self { directory: path.to_owned(), name: ".".to_owned() });
        }
        let real = run(container, &["readlink", "-f", path]).await?;
        let real = real.and_then(|answer| {
            let text = String::from_utf8(answer.stdout).ok()?;
            (answer.exit_code == 0).then(|| text.trim_end_matches('\n').to_owned())
        });
        Ok(Self::split(real.as_deref().unwrap_or(path)))
    }

    fn split(path: &str) -> Self {
        let (directory, name) = parent_and_name(path);
        Self { directory, name }
    }

    /// The name of the top member in the archive.
    pub(super) fn top(&self) -> &str {
        &self.name
    }
}

/// The parent directory and the name of a path; the name is `.` if the path has none.
fn parent_and_name(path: &str) -> (String, String) {
    let of = Path::new(path);
    match (of.parent(), of.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = match parent.as_os_str().is_empty() {
                true => ".".to_owned(),
                false => parent.to_string_lossy().into_owned(),
            };
            (parent, name.to_string_lossy().into_owned())
        }
        _ => (path.to_owned(), ".".to_owned()),
    }
}

/// Runs a short command; `None` if the container does not have the program.
async fn run(
    container: &TargetContainer<'_>,
    command: &[&str],
) -> Result<Option<v1::ExecSyncResponse>, CallError> {
    let answer = container.cri.runtime.exec(&container.id, command.iter().copied(), 10);
    match container.cri.call("ExecSync", answer).await {
        Ok(answer) => Ok(Some(answer)),
        Err(CallError::Refused { status, .. })
            if crate::client::start_failure_exit_code(status.message()).is_some() =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Copies from the container.
pub(super) async fn read(
    container: &TargetContainer<'_>,
    from: &From,
    sink: Sink,
    progress: Progress,
    transport: Transport,
) -> Result<Vec<String>, CallError> {
    // The prefix prevents a name from being parsed as an option.
    let member = format!("./{}", from.name);
    let command = ["tar", "-cf", "-", "-C", &from.directory, &member];
    let sent = async {
        let mut tar = start(container, &command, false, transport).await?;
        let (mut stdout, mut stderr) = (tar.stdout.take(), tar.stderr.take());
        let take = async {
            while let Some(bytes) = next(&mut stdout).await {
                progress.add(bytes.len());
                if !sink.take(bytes).await? {
                    break;
                }
            }
            Ok::<_, CallError>(())
        };
        let (taken, message) = tokio::join!(take, text(&mut stderr));
        taken?;
        outcome(tar.ended().await, &message)
    };
    let sent = sent.await.map(|()| Vec::new());
    drop(progress);
    sink.ended(sent).await
}

/// Copies into the container.
pub(super) async fn write(
    container: &TargetContainer<'_>,
    archive: Archive,
    path: &str,
    progress: Progress,
    transport: Transport,
) -> Result<Vec<String>, CallError> {
    let directory = run(container, &["test", "-d", path]).await?;
    let is_directory = directory.is_some_and(|answer| answer.exit_code == 0);
    let (directory, name) = match is_directory || archive.name().is_empty() {
        true => (path.to_owned(), None),
        false => {
            let (directory, name) = parent_and_name(path);
            (directory, Some(name))
        }
    };
    let mut packing = archive.begin(name.as_deref().map(OsStr::new))?;
    // Without owners (-o), because those in the archive are users of this machine.
    let command = ["tar", "-xpof", "-", "-C", &directory];
    let received = receive(container, &command, &mut packing, &progress, transport).await;
    drop(progress);
    packing.ended(received.map(|()| Vec::new())).await
}

async fn receive(
    container: &TargetContainer<'_>,
    command: &[&str],
    packing: &mut Packing,
    progress: &Progress,
    transport: Transport,
) -> Result<(), CallError> {
    let mut tar = start(container, command, true, transport).await?;
    let (stdin, mut stdout, mut stderr) = (tar.stdin.take(), tar.stdout.take(), tar.stderr.take());
    let feed = async {
        let Some(stdin) = stdin else {
            return;
        };
        while let Some(bytes) = packing.chunks.recv().await {
            progress.add(bytes.len());
            // tar has ended; its error output contains the reason.
            if stdin.send(bytes).await.is_err() {
                break;
            }
        }
        stdin.end().await;
    };
    let output = async {
        // tar's output ends when tar ends, possibly before the end of the archive.
        let message = tokio::join!(text(&mut stdout), text(&mut stderr)).1;
        // If tar ended before it had read everything, containerd waits forever to write to its pipe.
        match timeout(EXIT, tar.ended()).await {
            Ok(ended) => outcome(ended, &message),
            Err(_) => Err(CallError::Denied(format!(
                "tar in the container closed its output, and the runtime has not reported the exit of tar for {} s: {message}",
                EXIT.as_secs()
            ))),
        }
    };
    tokio::pin!(feed, output);
    tokio::select! {
        outcome = &mut output => outcome,
        () = &mut feed => output.await,
    }
}

async fn start(
    container: &TargetContainer<'_>,
    command: &[&str],
    stdin: bool,
    transport: Transport,
) -> Result<streaming::Command, CallError> {
    let streams = Streams { stdin, stdout: true, stderr: true, tty: false };
    let request = v1::ExecRequest {
        container_id: container.id.clone(),
        cmd: command.iter().map(|&word| word.to_owned()).collect(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let mut client = container.cri.runtime.runtime.clone();
    let answer = container.cri.call("Exec", client.exec(request)).await?;
    Ok(streaming::command(&answer.into_inner().url, streams, transport).await?)
}

async fn next(inlet: &mut Option<Inlet>) -> Option<Bytes> {
    inlet.as_mut()?.next().await
}

/// The first lines of a stream, which is read to its end.
async fn text(inlet: &mut Option<Inlet>) -> String {
    let mut kept = Vec::new();
    while let Some(bytes) = next(inlet).await {
        let room = MESSAGE.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

fn outcome(ended: Result<i32, CommandError>, message: &str) -> Result<(), CallError> {
    match ended {
        Ok(0) => Ok(()),
        Ok(code) => {
            let message = format!("tar in the container ended with {code}: {message}");
            Err(CallError::Denied(message))
        }
        Err(CommandError::Failed(message)) => Err(CallError::NotRun(format!(
            "copying with this runtime needs tar in the container: {message}"
        ))),
        Err(CommandError::Lost) => Err(CallError::Lost),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/var/log/app.log", "/var/log", "app.log")]
    #[case("/app.log", "/", "app.log")]
    #[case("app.log", ".", "app.log")]
    #[case("-v", ".", "-v")]
    #[case("/", "/", ".")]
    fn path_is_split_into_directory_and_name(
        #[case] path: &str,
        #[case] directory: &str,
        #[case] name: &str,
    ) {
        let expected = (directory.to_owned(), name.to_owned());
        assert_eq!(parent_and_name(path), expected);
    }
}
