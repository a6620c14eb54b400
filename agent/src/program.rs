//! Programs of a user that print credentials: plugins of a kubeconfig and credential providers of images. Their output is bounded.

use std::io;
use std::process::{Output, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// The maximum output of a program on each of standard output and standard error, in bytes: 16 MiB.
const PRINTED: u64 = 16 << 20;
/// How many characters of standard error an error shows.
const SHOWN: usize = 300;

/// Why a program has no output.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be run.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It printed too much, and was killed.
    #[error("output exceeds {} MiB", PRINTED >> 20)]
    Printed,
}

/// Runs a program with this standard input until it ends, or kills it once it has printed too much.
///
/// # Errors
/// If it cannot be run, or prints too much.
pub async fn output(mut command: Command, input: &[u8]) -> Result<Output, ProgramError> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async move {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input may still print a response.
            let _ = stdin.write_all(input).await;
        }
        Ok::<(), ProgramError>(())
    };
    let ended = async { child.wait().await.map_err(ProgramError::Io) };
    let (stdout, stderr, status, ()) =
        tokio::try_join!(printed(stdout), printed(stderr), ended, write)?;
    Ok(Output { status, stdout, stderr })
}

async fn printed(pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, ProgramError> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(PRINTED + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > PRINTED {
        return Err(ProgramError::Printed);
    }
    Ok(bytes)
}

/// The part of a program's standard error that an error shows.
#[must_use]
pub fn excerpt(stderr: &[u8]) -> String {
    String::from_utf8_lossy(stderr).trim().chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn program_with_endless_output_is_killed() {
        for script in ["exec cat /dev/zero", "exec cat /dev/zero >&2"] {
            let error = output(shell(script), b"").await.unwrap_err();
            assert_eq!(error.to_string(), "output exceeds 16 MiB");
        }
    }

    #[tokio::test]
    async fn output_up_to_the_limit_is_read_completely() {
        let script = "head -c 16777216 /dev/zero; head -c 16777216 /dev/zero >&2";
        let output = output(shell(script), b"").await.unwrap();
        assert!(output.status.success());
        assert_eq!((output.stdout.len(), output.stderr.len()), (16 << 20, 16 << 20));
    }

    #[tokio::test]
    async fn program_receives_its_standard_input_or_none() {
        for (input, expected) in [("request\n", "request\nend\n"), ("", "end\n")] {
            let output = output(shell("cat; echo end"), input.as_bytes()).await.unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        }
        assert!(output(shell("exec true"), &[b'x'; 1 << 20]).await.unwrap().status.success());
    }

    #[test]
    fn excerpt_of_long_error_is_short() {
        assert_eq!(excerpt(b" no login \n"), "no login");
        assert_eq!(excerpt(&[b'e'; 1000]), "e".repeat(300));
    }
}
