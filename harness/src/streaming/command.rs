//! The client side of a command's streams: for Exec, and for Attach to a container.

use bytes::Bytes;
use stream::{
    Channels, Codec, Connection, Headers, Inlet, Outlet, Role, Stream, StreamClosed, connect,
};
use tokio::task::JoinSet;

use super::{DialError, Dialled, Transport, spdy, websocket};

/// The streams of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; not with a terminal.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It could not be run.
    #[error("{0}")]
    Failed(String),
    /// The connection ended without a status.
    #[error("the connection to the runtime was lost")]
    Lost,
}

/// A command. After a drop, the runtime decides whether the command keeps running.
pub struct Command {
    /// Its standard input, which can be taken.
    pub stdin: Option<Outlet>,
    /// Its standard output; with a terminal, all output.
    pub stdout: Option<Inlet>,
    /// Its standard error.
    pub stderr: Option<Inlet>,
    /// The stream for the terminal's size.
    pub sizes: Option<Sizes>,
    error: Inlet,
    /// Whether the error stream carries a JSON status, even on success.
    json: bool,
    driving: JoinSet<()>,
}

/// The stream for a terminal's size.
pub struct Sizes(Outlet);

impl Sizes {
    /// Sends the size in columns and rows.
    ///
    /// # Errors
    /// If the server has closed the stream.
    pub async fn send(&self, width: u16, height: u16) -> Result<(), StreamClosed> {
        let size = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
        self.0.send(size.into()).await
    }
}

const SPDY: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const WEBSOCKET: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Opens the streams of the URL of an Exec or an Attach; `wanted` must match that call.
///
/// # Errors
/// If the server cannot be reached, or refuses the request.
pub async fn command(
    url: &str,
    wanted: Streams,
    transport: Transport,
) -> Result<Command, DialError> {
    match transport {
        Transport::Spdy => Ok(over_spdy(spdy(url, &SPDY).await?, wanted)),
        Transport::WebSocket => {
            let dialled = websocket(url, &WEBSOCKET).await?;
            let half_close = dialled.protocol.starts_with("v5");
            let mut channels = Channels::new(dialled.io, Codec::Binary, half_close, Role::Client);
            let stdin = wanted.stdin.then(|| channels.outlet(0));
            let stdout = wanted.stdout.then(|| channels.inlet(1));
            let stderr = wanted.stderr.then(|| channels.inlet(2));
            let error = channels.inlet(3);
            let sizes = wanted.tty.then(|| Sizes(channels.outlet(4)));
            // Held until the server closes the connection.
            let held = channels.outlet(0);
            let mut driving = JoinSet::new();
            driving.spawn(tasks::boxed(async move {
                let _held = held;
                let _ = channels.run().await;
            }));
            Ok(Command {
                stdin,
                stdout,
                stderr,
                sizes,
                error,
                json: dialled.protocol.starts_with('v'),
                driving,
            })
        }
    }
}

fn over_spdy(dialled: Dialled<tokio::net::TcpStream>, wanted: Streams) -> Command {
    let protocol = dialled.protocol;
    let (connection, _, driver) = connect(dialled.io, Role::Client);
    let open = |kind: &str| connection.open(Headers::of(&[("streamType", kind)]));
    let inlet = |stream: Stream| stream.inlet;
    let outlet = |stream: Stream| stream.outlet;
    let error = inlet(open("error"));
    let stdin = wanted.stdin.then(|| outlet(open("stdin")));
    let stdout = wanted.stdout.then(|| inlet(open("stdout")));
    let stderr = wanted.stderr.then(|| inlet(open("stderr")));
    let resizes = protocol == SPDY[0] || protocol == SPDY[1];
    let sizes = (wanted.tty && resizes).then(|| Sizes(outlet(open("resize"))));
    let mut driving = JoinSet::new();
    driving.spawn(tasks::boxed(async move {
        // Held until the server closes the connection.
        let _connection: Connection = connection;
        let _ = driver.run().await;
    }));
    Command { stdin, stdout, stderr, sizes, error, json: protocol == SPDY[0], driving }
}

impl Command {
    /// Writes to its standard input.
    ///
    /// # Errors
    /// If the command has no standard input, or has closed it.
    pub fn write<'a>(
        &'a self,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), StreamClosed>> + use<'a> {
        // The future does not borrow the output streams, which are not `Sync`, so it is `Send`.
        let (stdin, bytes) = (self.stdin.as_ref(), Bytes::copy_from_slice(bytes));
        async move { stdin.ok_or(StreamClosed)?.send(bytes).await }
    }

    /// Ends its standard input, if the protocol supports that.
    pub async fn end_stdin(&mut self) {
        if let Some(stdin) = self.stdin.take() {
            stdin.end().await;
        }
    }

    /// Sends the size of the terminal.
    ///
    /// # Errors
    /// If the server has closed the stream.
    pub async fn resize(&self, width: u16, height: u16) -> Result<(), StreamClosed> {
        let sizes = self.sizes.as_ref().ok_or(StreamClosed)?;
        sizes.send(width, height).await
    }

    /// Waits for the command's exit, and returns the exit code. Drops output streams that have not been taken.
    ///
    /// # Errors
    /// If it could not be run or the connection was lost.
    pub async fn ended(mut self) -> Result<i32, CommandError> {
        drop((self.stdout.take(), self.stderr.take()));
        let mut received = Vec::new();
        while let Some(bytes) = self.error.next().await {
            received.extend_from_slice(&bytes);
        }
        self.driving.shutdown().await;
        outcome(&received, self.json)
    }
}

fn outcome(received: &[u8], json: bool) -> Result<i32, CommandError> {
    if !json {
        return match received {
            [] => Ok(0),
            text => Err(CommandError::Failed(String::from_utf8_lossy(text).into())),
        };
    }
    if received.is_empty() {
        return Err(CommandError::Lost);
    }
    let status: serde_json::Value = serde_json::from_slice(received).unwrap_or_default();
    if status["status"] == "Success" {
        return Ok(0);
    }
    if status["reason"] == "NonZeroExitCode" {
        let causes = status["details"]["causes"].as_array().into_iter().flatten();
        let mut codes = causes.filter(|cause| cause["reason"] == "ExitCode");
        let code = codes.find_map(|cause| cause["message"].as_str()?.parse().ok());
        if let Some(code) = code {
            return Ok(code);
        }
    }
    let message = status["message"]
        .as_str()
        .map_or_else(|| String::from_utf8_lossy(received).into_owned(), str::to_owned);
    Err(CommandError::Failed(message))
}

/// Reads a stream to its end, as text; empty if the command has no such stream.
pub async fn text(inlet: &mut Option<Inlet>) -> String {
    let mut all = Vec::new();
    if let Some(inlet) = inlet {
        while let Some(bytes) = inlet.next().await {
            all.extend_from_slice(&bytes);
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn failed(text: &str) -> Result<i32, CommandError> {
        Err(CommandError::Failed(text.to_owned()))
    }

    #[rstest]
    #[case::well(r#"{"metadata":{},"status":"Success"}"#, true, Ok(0))]
    #[case::badly(r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#, true, Ok(3))]
    #[case::not_at_all(
        r#"{"status":"Failure","message":"no such file","reason":"InternalError"}"#,
        true,
        failed("no such file")
    )]
    #[case::no_code(
        r#"{"status":"Failure","message":"odd","reason":"NonZeroExitCode"}"#,
        true,
        failed("odd")
    )]
    #[case::no_json("nonsense", true, failed("nonsense"))]
    #[case::no_word("", true, Err(CommandError::Lost))]
    #[case::well_of_old("", false, Ok(0))]
    #[case::badly_of_old("exit code 3", false, failed("exit code 3"))]
    fn exit_code_is_read_from_error_stream(
        #[case] received: &str,
        #[case] json: bool,
        #[case] expected: Result<i32, CommandError>,
    ) {
        assert_eq!(outcome(received.as_bytes(), json), expected);
    }
}
