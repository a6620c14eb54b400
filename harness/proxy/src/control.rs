//! Changes the rules of a running proxy through a unix socket. A request and its response are one line of JSON each.
//!
//! | request | response |
//! |---|---|
//! | `{"do": "list"}` | `{"rules": [{"name": "slow", "on": true, "met": 3, "applied": 1, "rule": "slow: …"}]}` |
//! | `{"do": "on", "rule": "slow"}` | the same, after the change |
//! | `{"do": "off", "rule": "slow"}` | the same, after the change |
//! | `{"do": "add", "rule": "slow: Version delay 5"}` | the same, with the new rule |
//! | `{"do": "remove", "rule": "slow"}` | the same, without the rules of that name |
//!
//! An invalid request is answered with `{"error": "…"}`. After a line that is too long, the proxy also closes the connection.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::fault::Fault;
use super::rules::{RuleState, Rules};
use super::{accept, bind};

/// The maximum length of a request line, with its newline.
const MAX_LINE: usize = 64 << 10;
/// The maximum length of a response line, which lists all rules.
const MAX_RESPONSE: usize = 64 << 20;
/// The timeout of a request, as for calls of client commands.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A request to a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Lists the rules.
    List {},
    /// Enables rules.
    On {
        /// Their name.
        rule: String,
    },
    /// Disables rules.
    Off {
        /// Their name.
        rule: String,
    },
    /// Adds a rule.
    Add {
        /// Its text.
        rule: String,
    },
    /// Removes rules.
    Remove {
        /// Their name.
        rule: String,
    },
}

/// A proxy's response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum ControlResponse {
    Rules { rules: Vec<RuleState> },
    Error { error: String },
}

/// Why a request to a proxy failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Communication over the socket failed.
    #[error("failed to query the proxy at {}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The proxy refused the request.
    #[error("the proxy at {} rejected the request: {why}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The proxy's reason.
        why: String,
    },
}

/// A socket for requests that change the rules of a proxy. Dropping it closes and removes the socket.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    _shutdown: DropGuard,
}

impl Control {
    /// Listens on a socket that is accessible only to its owner.
    ///
    /// # Errors
    /// Binding failed.
    pub fn listen(path: &Path, rules: &Rules) -> io::Result<Self> {
        let listener = bind(path)?;
        let shutdown = CancellationToken::new();
        let rules = rules.clone();
        let accepting =
            accept(listener, shutdown.clone(), move |stream, _| serve(stream, rules.clone()));
        tasks::spawn(accepting);
        Ok(Self { path: path.to_owned(), _shutdown: shutdown.drop_guard() })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The socket may already be gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends a request to the proxy with this control socket, and returns its rules.
///
/// # Errors
/// The proxy does not respond, or refuses the request: see [`ControlError`].
pub async fn send_request(path: &Path, request: &Request) -> Result<Vec<RuleState>, ControlError> {
    let io = |source| ControlError::Io { path: path.to_owned(), source };
    let response = tokio::time::timeout(TIMEOUT, exchange(path, &line(request))).await;
    let response = response.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", TIMEOUT.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    });
    match response.map_err(io)? {
        ControlResponse::Rules { rules } => Ok(rules),
        ControlResponse::Error { error } => {
            Err(ControlError::Refused { path: path.to_owned(), why: error })
        }
    }
}

/// Sends a line, and reads the response line.
async fn exchange(path: &Path, request: &[u8]) -> io::Result<ControlResponse> {
    // The proxy would close the connection, perhaps before its response is read.
    if request.len() > MAX_LINE {
        let why = format!("the request has more than {} KiB", MAX_LINE >> 10);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(request).await?;
    stream.shutdown().await?;
    let Some(response) = read_line(&mut BufReader::new(stream), MAX_RESPONSE).await? else {
        let why = format!("the response has more than {} MiB", MAX_RESPONSE >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    };
    serde_json::from_slice(&response).map_err(io::Error::other)
}

/// The next line with its newline, or the rest of the stream; `None` if it is longer than `most`.
async fn read_line(
    from: &mut (impl AsyncBufRead + Unpin),
    most: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit).read_until(b'\n', &mut line).await?;
    Ok((line.len() <= most).then_some(line))
}

fn line(message: &impl Serialize) -> Vec<u8> {
    // This cannot fail: in both messages all map keys are strings.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Answers the requests of one client until it closes its end, or sends a line that is too long.
async fn serve(stream: UnixStream, rules: Rules) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let Ok(request) = read_line(&mut read, MAX_LINE).await else {
            return;
        };
        let (response, is_last) = match request {
            Some(request) if request.is_empty() => return,
            Some(request) => (respond(&request, &rules), false),
            None => {
                let error = format!("the line has more than {} KiB", MAX_LINE >> 10);
                (ControlResponse::Error { error }, true)
            }
        };
        if write.write_all(&line(&response)).await.is_err() || is_last {
            return;
        }
    }
}

fn respond(request: &[u8], rules: &Rules) -> ControlResponse {
    let changed = match serde_json::from_slice(request) {
        Ok(Request::List {}) => Ok(()),
        Ok(Request::On { rule }) => rules.switch(&rule, true).map_err(|e| e.to_string()),
        Ok(Request::Off { rule }) => rules.switch(&rule, false).map_err(|e| e.to_string()),
        Ok(Request::Add { rule }) => {
            let fault = rule.parse::<Fault>().map_err(|error| format!("invalid rule: {error}"));
            fault.map(|fault| rules.add(fault))
        }
        Ok(Request::Remove { rule }) => rules.remove(&rule).map_err(|e| e.to_string()),
        Err(error) => Err(format!("invalid request: {error}")),
    };
    match changed {
        Ok(()) => ControlResponse::Rules { rules: rules.list() },
        Err(error) => ControlResponse::Error { error },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn socket_lists_and_switches_rules() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.sock");
        let rules = Rules::new("off slow: Version hang\nStatus hang".parse().unwrap());
        let control = Control::listen(&path, &rules).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let listed = send_request(&path, &Request::List {}).await.unwrap();
        assert_eq!(listed, rules.list());
        assert!(!listed[0].on);
        let slow = || "slow".to_owned();
        let on = send_request(&path, &Request::On { rule: slow() }).await.unwrap();
        assert!(on[0].on && rules.list()[0].on);
        let off = send_request(&path, &Request::Off { rule: slow() }).await.unwrap();
        assert!(!off[0].on);
        let rule = "quick".to_owned();
        let error = send_request(&path, &Request::On { rule }).await.unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("no rule is named \"quick\"; the rules are: slow, 2"), "{text}");
        let rule = "odd: Version answer ABORTED".to_owned();
        let added = send_request(&path, &Request::Add { rule }).await.unwrap();
        assert_eq!(added.last().unwrap().name, "odd");
        let error = send_request(&path, &Request::Add { rule: "Version hagn".to_owned() })
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("invalid rule: ") && text.contains("did you mean \"hang\"?"),
            "{text}"
        );
        let left = send_request(&path, &Request::Remove { rule: "odd".to_owned() }).await.unwrap();
        assert_eq!(left.len(), 2);
        drop(control);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn line_that_is_too_long_is_refused_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.sock");
        let rules = Rules::new("Version hang".parse().unwrap());
        let _control = Control::listen(&path, &rules).unwrap();
        let mut longest = line(&Request::List {});
        longest.pop();
        longest.resize(MAX_LINE - 1, b' ');
        longest.push(b'\n');
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&longest).await.unwrap();
        // One byte over the limit: the proxy reads all of it before it closes the connection.
        stream.write_all(&[b' '; MAX_LINE + 1]).await.unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).await.unwrap();
        let answers: Vec<_> = answers.lines().collect();
        assert_eq!(answers.len(), 2, "{answers:?}");
        assert!(answers[0].starts_with("{\"rules\":"), "{answers:?}");
        assert_eq!(answers[1], "{\"error\":\"the line has more than 64 KiB\"}");
        let rule = "x".repeat(MAX_LINE);
        let error = send_request(&path, &Request::Add { rule }).await.unwrap_err();
        assert_eq!(cause(&error), "the request has more than 64 KiB");
    }

    fn cause(error: &ControlError) -> String {
        std::error::Error::source(error).unwrap().to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_proxy_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let error = send_request(&path, &Request::List {}).await.unwrap_err();
        assert_eq!(cause(&error), "no answer within 10 s");
    }

    #[tokio::test]
    async fn line_is_read_up_to_its_limit() {
        let mut text = &b"ab\nabc\nabcd"[..];
        for expected in [Some(b"ab\n".to_vec()), Some(b"abc\n".to_vec()), Some(b"abcd".to_vec())] {
            assert_eq!(read_line(&mut text, 4).await.unwrap(), expected);
        }
        assert_eq!(read_line(&mut text, 4).await.unwrap(), Some(Vec::new()));
        let mut endless = BufReader::new(tokio::io::repeat(b'x'));
        assert_eq!(read_line(&mut endless, 4).await.unwrap(), None);
    }

    #[test]
    fn request_that_is_none_is_refused() {
        let rules = Rules::new("Version hang".parse().unwrap());
        let requests: [&[u8]; 6] =
            [b"", b"{}", b"{\"do\": \"dance\"}", b"{\"do\": \"on\"}", b"[1]", b"\xff"];
        for request in requests {
            let ControlResponse::Error { error } = respond(request, &rules) else {
                panic!("{}", String::from_utf8_lossy(request));
            };
            assert!(error.starts_with("invalid request: "), "{error}");
        }
    }
}
