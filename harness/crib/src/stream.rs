//! The local end of exec and attach: standard streams, terminal and signals of this process.

use std::io::{self, Read as _};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use crib_base::exit::Exit;
use crib_base::signals::Signals;
use harness::streaming::{self, CommandError, Inlet, Outlet, Sizes, Streams, Transport};
use tokio::sync::mpsc;

use crate::client::CallError;
use crate::terminal::{Raw, TerminalSize};

/// The streaming protocol, with crictl's names.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TransportArgs {
    /// Streaming protocol
    #[arg(short = 'r', long, value_enum, default_value_t = TransportName::Spdy)]
    transport: TransportName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportName {
    Spdy,
    Websocket,
}

impl TransportArgs {
    pub(crate) fn transport(self) -> Transport {
        match self.transport {
            TransportName::Spdy => Transport::Spdy,
            TransportName::Websocket => Transport::WebSocket,
        }
    }
}

/// The streams of an exec or attach.
pub(crate) fn standard(stdin: bool, tty: bool) -> Streams {
    Streams {
        stdin,
        stdout: true,
        // A terminal has a single output stream.
        stderr: !tty,
        tty,
    }
}

/// Connects the standard streams and the terminal with the stream at `url` until it ends. Returns the exit code, or 0 if the stream
/// reports none, as for attach.
pub(crate) async fn join(
    url: &str,
    streams: Streams,
    transport: Transport,
) -> Result<Exit, CallError> {
    let listening = |source| CallError::Io { doing: "listen for signals".to_owned(), source };
    let mut signals = Signals::listen().map_err(listening)?;
    let mut size = TerminalSize::listen().map_err(listening)?;
    let mut command = streaming::command(url, streams, transport).await?;
    let (stdin, sizes) = (command.stdin.take(), command.sizes.take());
    let (mut stdout, mut stderr) = (command.stdout.take(), command.stderr.take());
    let raw =
        match streams.stdin && streams.tty {
            true => Some(Raw::stdin().map_err(|source| CallError::Io {
                doing: "set up the terminal".to_owned(),
                source,
            })?),
            false => None,
        };
    let output = async {
        // The exit code arrives after all output. If nobody reads the output, the command blocks, and no exit code arrives.
        let ((), (), ended) = tokio::try_join!(
            print(&mut stdout, io::stdout),
            print(&mut stderr, io::stderr),
            async { Ok(command.ended().await) }
        )
        .map_err(CallError::Output)?;
        match ended {
            Ok(code) => Ok(Exit::Remote(u8::try_from(code).unwrap_or(255))),
            Err(CommandError::Failed(message)) => Err(CallError::NotRun(message)),
            Err(CommandError::Lost) => Err(CallError::Lost),
        }
    };
    // The first branch that ends, ends the others; `feed` and `resize` never return.
    let ended = tokio::select! {
        ended = output => ended,
        _ = signals.next() => Ok(Exit::Interrupted),
        () = feed(stdin) => Ok(Exit::Interrupted),
        () = resize(sizes, &mut size) => Ok(Exit::Interrupted),
    };
    drop(raw);
    ended
}

/// Sends standard input to the process. Never returns.
async fn feed(stdin: Option<Outlet>) {
    if let Some(stdin) = stdin {
        let mut input = standard_input();
        while let Some(bytes) = input.recv().await {
            // The process has closed its stdin; its output continues.
            if stdin.send(bytes).await.is_err() {
                break;
            }
        }
        stdin.end().await;
    }
    std::future::pending().await
}

/// Sends the size of the terminal to the process. Never returns.
async fn resize(sizes: Option<Sizes>, size: &mut TerminalSize) {
    while let Some(sizes) = &sizes {
        let (width, height) = size.next().await;
        if sizes.send(width, height).await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

/// Reads standard input. A separate thread reads it, because a blocking read cannot be cancelled; the thread ends with the process.
pub(crate) fn standard_input() -> mpsc::Receiver<Bytes> {
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

/// Writes data as it arrives.
async fn print<W: io::Write>(
    inlet: &mut Option<Inlet>,
    to: impl Fn() -> W,
) -> Result<(), io::Error> {
    let Some(inlet) = inlet else {
        return Ok(());
    };
    while let Some(bytes) = inlet.next().await {
        let mut to = to();
        to.write_all(&bytes)?;
        to.flush()?;
    }
    Ok(())
}
