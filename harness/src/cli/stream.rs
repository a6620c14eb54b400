//! The client's end of exec, attach and port-forward: SPDY/3.1, which every runtime speaks, to the URL that a call gave.
//!
//! What comes and goes is carried by `runtime_fake::mux`; here is what the streams are for (Kubernetes 1.36,
//! `remotecommand` and `portforward`).

use std::io::{self, Read as _};
use std::time::Duration;

use bytes::Bytes;
use runtime_fake::mux::{Connection, Headers, Inlet, Outlet, Role, connect};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::call::CallError;
use super::signals::Signals;
use super::terminal::{Raw, Sizes};

/// The longest head of an answer that is read.
const LONGEST_HEAD: usize = 16 * 1024;
/// How long the server may take to say goodbye when all is over.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a command or an attached client has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With this exit code; 0 also when there is none, as with attach.
    Code(i32),
    /// A signal came here.
    Interrupted,
}

fn broken(doing: &str, source: io::Error) -> CallError {
    CallError::Io {
        doing: doing.to_owned(),
        source,
    }
}

/// Joins this process's standard streams, and its terminal, with those behind `url` until they end.
pub(crate) async fn join(url: &str, streams: Streams) -> Result<Ending, CallError> {
    let mut signals = Signals::listen().map_err(|error| broken("listen for signals", error))?;
    let mut sizes = Sizes::listen().map_err(|error| broken("listen for signals", error))?;
    let (connection, driving) = open(url, "v4.channel.k8s.io").await?;
    let stream = |kind: &str| connection.open(Headers::of(&[("streamType", kind)]));
    let mut error = stream("error");
    let stdin = streams.stdin.then(|| stream("stdin").outlet);
    let mut stdout = stream("stdout").inlet;
    let stderr = (!streams.tty).then(|| stream("stderr").inlet);
    let resize = streams.tty.then(|| stream("resize").outlet);
    error.outlet.end().await;
    let raw = match streams.stdin && streams.tty {
        true => Some(Raw::stdin().map_err(|error| broken("set up the terminal", error))?),
        false => None,
    };
    let output = async {
        let errors = async {
            match stderr {
                Some(mut stderr) => print(&mut stderr, io::stderr).await,
                None => Ok(()),
            }
        };
        // The outcome comes after all output.
        let (printed, complained, outcome) = tokio::join!(
            print(&mut stdout, io::stdout),
            errors,
            all(&mut error.inlet)
        );
        printed.and(complained).map_err(CallError::Output)?;
        ending(&outcome)
    };
    let input = async {
        if let Some(stdin) = stdin {
            let mut input = standard_input();
            while let Some(bytes) = input.recv().await {
                // A process that reads no more is no reason to stop.
                if stdin.send(bytes).await.is_err() {
                    break;
                }
            }
            stdin.end().await;
        }
        std::future::pending::<()>().await;
    };
    let resizing = async {
        while let Some(resize) = &resize {
            let (width, height) = sizes.next().await;
            let size = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
            if resize.send(size.into()).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    // Nothing goes on after the first that ends; those that wait for ever are only driven.
    let ended = tokio::select! {
        ended = output => ended,
        _ = signals.next() => Ok(Ending::Interrupted),
        () = input => Ok(Ending::Interrupted),
        () = resizing => Ok(Ending::Interrupted),
    };
    drop(raw);
    drop(connection);
    farewell(driving).await;
    ended
}

async fn farewell(mut driving: JoinHandle<()>) {
    if tokio::time::timeout(FAREWELL, &mut driving).await.is_err() {
        driving.abort();
    }
}

/// A connection that forwards ports of a pod.
pub(crate) struct Forwarding {
    connection: Connection,
    driving: JoinHandle<()>,
    requests: u64,
}

impl Forwarding {
    pub(crate) async fn open(url: &str) -> Result<Self, CallError> {
        let (connection, driving) = open(url, "portforward.k8s.io").await?;
        Ok(Self {
            connection,
            driving,
            requests: 0,
        })
    }

    /// Waits until the runtime ends it. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        let _ = (&mut self.driving).await;
    }

    /// Forwards one connection to a port of the pod. The future drives it to its end, and returns what the runtime
    /// complains about.
    pub(crate) fn forward(
        &mut self,
        mut local: TcpStream,
        port: u16,
    ) -> impl Future<Output = Option<String>> + use<> {
        self.requests += 1;
        let (request, port) = (self.requests.to_string(), port.to_string());
        let stream = |kind: &str| {
            self.connection.open(Headers::of(&[
                ("streamType", kind),
                ("port", &port),
                ("requestID", &request),
            ]))
        };
        let (mut error, mut data) = (stream("error"), stream("data"));
        async move {
            error.outlet.end().await;
            let (mut reader, mut writer) = local.split();
            let from_pod = async {
                while let Some(bytes) = data.inlet.next().await {
                    if writer.write_all(&bytes).await.is_err() {
                        data.outlet.abort().await;
                        return;
                    }
                }
                let _ = writer.shutdown().await;
            };
            let to_pod = async {
                let _ = send_all(&mut reader, &data.outlet).await;
            };
            let both = async { tokio::join!(from_pod, to_pod) };
            let complaint = async {
                let text = all(&mut error.inlet).await;
                match text.is_empty() {
                    true => std::future::pending().await,
                    false => String::from_utf8_lossy(&text).into_owned(),
                }
            };
            tokio::select! {
                complaint = complaint => Some(complaint),
                _ = both => None,
            }
        }
    }
}

/// Asks for the upgrade, and returns the connection and the task that drives it.
async fn open(url: &str, protocol: &str) -> Result<(Connection, JoinHandle<()>), CallError> {
    let socket = upgrade(url, protocol).await.map_err(|error| {
        broken(
            &format!("stream with the runtime at {}", origin(url)),
            error,
        )
    })?;
    let (connection, _, driver) = connect(socket, Role::Client);
    let driving = tokio::spawn(async move {
        if let Err(error) = driver.run().await {
            tracing::debug!(%error, "the stream broke off");
        }
    });
    Ok((connection, driving))
}

/// A URL without its token, which is a secret.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let rest = url.get(host..).unwrap_or_default();
    let end = rest.find('/').map_or(url.len(), |at| host + at);
    url.get(..end).unwrap_or(url)
}

async fn upgrade(url: &str, protocol: &str) -> io::Result<TcpStream> {
    let said = |text: String| io::Error::other(text);
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| said("only http:// is spoken here".to_owned()))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut socket = TcpStream::connect(host).await?;
    socket.set_nodelay(true)?;
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte, since what follows the head is the first frame.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LONGEST_HEAD {
            return Err(said("the answer's head is too long".to_owned()));
        }
        head.push(socket.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("101") {
        return Err(said(format!(
            "it answered {first:?} instead of switching to SPDY/3.1"
        )));
    }
    Ok(socket)
}

/// What comes on standard input. A thread reads it, since that cannot be given up; it ends with the process.
fn standard_input() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut chunk = vec![0; 32 * 1024];
        loop {
            let length = match io::stdin().lock().read(&mut chunk) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let bytes = Bytes::copy_from_slice(chunk.get(..length).unwrap_or_default());
            if length == 0 || sender.blocking_send(bytes).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Sends all that can be read, and that there is no more.
async fn send_all(
    reader: &mut (impl tokio::io::AsyncRead + Unpin),
    outlet: &Outlet,
) -> io::Result<()> {
    let mut chunk = vec![0; 32 * 1024];
    loop {
        let length = reader.read(&mut chunk).await?;
        if length == 0 {
            outlet.end().await;
            return Ok(());
        }
        let bytes = Bytes::copy_from_slice(chunk.get(..length).unwrap_or_default());
        outlet.send(bytes).await.map_err(io::Error::other)?;
    }
}

/// Writes what comes as it comes.
async fn print<W: io::Write>(inlet: &mut Inlet, to: impl Fn() -> W) -> io::Result<()> {
    while let Some(bytes) = inlet.next().await {
        let mut to = to();
        to.write_all(&bytes)?;
        to.flush()?;
    }
    Ok(())
}

async fn all(inlet: &mut Inlet) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = inlet.next().await {
        all.extend_from_slice(&bytes);
    }
    all
}

/// Reads the outcome: a Status in JSON.
fn ending(outcome: &[u8]) -> Result<Ending, CallError> {
    let failed = |said: String| broken("follow the command to its end", io::Error::other(said));
    if outcome.is_empty() {
        return Err(failed("the connection broke off".to_owned()));
    }
    let status: Value = serde_json::from_slice(outcome)
        .map_err(|_| failed(String::from_utf8_lossy(outcome).into_owned()))?;
    if status["status"] == "Success" {
        return Ok(Ending::Code(0));
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find_map(|cause| {
        let code = cause["message"].as_str()?.parse().ok()?;
        (cause["reason"] == "ExitCode").then_some(Ending::Code(code))
    });
    let said = status["message"].as_str().unwrap_or("it failed");
    code.ok_or_else(|| failed(said.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"{"status":"Success"}"#, Ok(Ending::Code(0)))]
    #[case(
        r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#,
        Ok(Ending::Code(7))
    )]
    #[case(
        r#"{"status":"Failure","message":"no such file"}"#,
        Err("no such file")
    )]
    #[case("plain words", Err("plain words"))]
    #[case("", Err("the connection broke off"))]
    fn endings(#[case] outcome: &str, #[case] expected: Result<Ending, &str>) {
        let found = ending(outcome.as_bytes());
        match expected {
            Ok(ending) => assert_eq!(found.unwrap(), ending),
            Err(said) => {
                let text = super::super::report::chain(&found.unwrap_err());
                assert!(text.ends_with(said), "{text}");
            }
        }
    }

    #[rstest]
    #[case("http://127.0.0.1:1/exec/secret", "http://127.0.0.1:1")]
    #[case("http://[::1]:1", "http://[::1]:1")]
    #[case("secret", "secret")]
    fn a_token_is_not_told(#[case] url: &str, #[case] shown: &str) {
        assert_eq!(origin(url), shown);
    }
}
