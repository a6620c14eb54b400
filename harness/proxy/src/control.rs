//! Changes the rules of a running proxy through a unix socket: a request and its answer are a line of JSON each.
//!
//! | request | answer |
//! |---|---|
//! | `{"do": "list"}` | `{"rules": [{"name": "slow", "on": true, "met": 3, "applied": 1, "rule": "slow: …"}]}` |
//! | `{"do": "on", "rule": "slow"}` | the same, after the switch |
//! | `{"do": "off", "rule": "slow"}` | the same, after the switch |
//! | `{"do": "add", "rule": "slow: Version delay 5"}` | the same, with the new rule |
//! | `{"do": "remove", "rule": "slow"}` | the same, without the rules of this name |
//!
//! What cannot be done is answered with `{"error": "…"}`.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::accept;
use super::fault::Fault;
use super::rules::{RuleState, Rules};

/// The longest line of a request.
const MAX_LINE: u64 = 64 << 10;

/// What is asked of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// To list its rules.
    List {},
    /// To switch rules on.
    On {
        /// Their name.
        rule: String,
    },
    /// To switch rules off.
    Off {
        /// Their name.
        rule: String,
    },
    /// To add a rule.
    Add {
        /// Its text.
        rule: String,
    },
    /// To remove rules.
    Remove {
        /// Their name.
        rule: String,
    },
}

/// What a proxy answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Answer {
    Rules { rules: Vec<RuleState> },
    Error { error: String },
}

/// Why a proxy was not asked, or did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be spoken with.
    #[error("failed to ask the proxy at {}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The proxy refuses.
    #[error("the proxy at {} rejected the request: {why}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Its reason.
        why: String,
    },
}

/// A socket through which the rules of a proxy are changed. Dropping it closes and removes it.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    _shutdown: DropGuard,
}

impl Control {
    /// Listens on a socket that only its owner may use.
    ///
    /// # Errors
    /// Binding failed.
    pub fn listen(path: &Path, rules: &Rules) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
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
        // A socket that is gone already is what is wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Asks the proxy with this control socket; its rules are the answer.
///
/// # Errors
/// It does not answer, or refuses: see [`ControlError`].
pub async fn ask(path: &Path, request: &Request) -> Result<Vec<RuleState>, ControlError> {
    let io = |source| ControlError::Io { path: path.to_owned(), source };
    let asking = async {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(&line(request)).await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        serde_json::from_str(&answer).map_err(io::Error::other)
    };
    match asking.await.map_err(io)? {
        Answer::Rules { rules } => Ok(rules),
        Answer::Error { error } => Err(ControlError::Refused { path: path.to_owned(), why: error }),
    }
}

fn line(message: &impl Serialize) -> Vec<u8> {
    // Neither message has a map whose keys are no text.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Answers the requests of one client until it closes its side, or sends a line without an end.
async fn serve(stream: UnixStream, rules: Rules) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut request = Vec::new();
        let length = (&mut read).take(MAX_LINE).read_until(b'\n', &mut request).await;
        if !length.is_ok_and(|length| length > 0) {
            return;
        }
        if write.write_all(&line(&answer(&request, &rules))).await.is_err() {
            return;
        }
    }
}

fn answer(request: &[u8], rules: &Rules) -> Answer {
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
        Ok(()) => Answer::Rules { rules: rules.list() },
        Err(error) => Answer::Error { error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_lists_and_switches_rules() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.sock");
        let rules = Rules::new("off slow: Version hang\nStatus hang".parse().unwrap());
        let control = Control::listen(&path, &rules).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let listed = ask(&path, &Request::List {}).await.unwrap();
        assert_eq!(listed, rules.list());
        assert!(!listed[0].on);
        let slow = || "slow".to_owned();
        let on = ask(&path, &Request::On { rule: slow() }).await.unwrap();
        assert!(on[0].on && rules.list()[0].on);
        let off = ask(&path, &Request::Off { rule: slow() }).await.unwrap();
        assert!(!off[0].on);
        let rule = "quick".to_owned();
        let error = ask(&path, &Request::On { rule }).await.unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("no rule is named \"quick\"; the rules are: slow, 2"), "{text}");
        let rule = "odd: Version answer ABORTED".to_owned();
        let added = ask(&path, &Request::Add { rule }).await.unwrap();
        assert_eq!(added.last().unwrap().name, "odd");
        let error =
            ask(&path, &Request::Add { rule: "Version hagn".to_owned() }).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("invalid rule: ") && text.contains("did you mean \"hang\"?"),
            "{text}"
        );
        let left = ask(&path, &Request::Remove { rule: "odd".to_owned() }).await.unwrap();
        assert_eq!(left.len(), 2);
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn request_that_is_none_is_refused() {
        let rules = Rules::new("Version hang".parse().unwrap());
        let requests: [&[u8]; 6] =
            [b"", b"{}", b"{\"do\": \"dance\"}", b"{\"do\": \"on\"}", b"[1]", b"\xff"];
        for request in requests {
            let Answer::Error { error } = answer(request, &rules) else {
                panic!("{}", String::from_utf8_lossy(request));
            };
            assert!(error.starts_with("invalid request: "), "{error}");
        }
    }
}
