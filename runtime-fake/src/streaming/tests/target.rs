//! Simulated processes, whose behaviour is in their argv.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf, duplex},
    sync::{mpsc, oneshot},
};

use crate::{
    id::SandboxId,
    runtime::{Error, io as io_error},
    streaming::target::{AttachRequest, Duplex, ExecRequest, Session, Target},
};

/// Counts of what clients have used.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Open sessions and connections.
    pub(super) live: AtomicUsize,
    /// Bytes read from processes that write endlessly.
    pub(super) flooded: AtomicU64,
}

/// Counts as live until dropped.
struct Live(Arc<Counts>);

impl Live {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.live.fetch_add(1, Ordering::SeqCst);
        Self(counts.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Writes endlessly, and reads nothing.
struct Flood(Arc<Counts>);

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining();
        buffer.initialize_unfilled().fill(b'x');
        buffer.advance(length);
        self.0.flooded.fetch_add(length as u64, Ordering::SeqCst);
        Poll::Ready(Ok(()))
    }
}

pub(super) struct Fake(pub(super) Arc<Counts>);

#[async_trait::async_trait]
impl Target for Fake {
    async fn exec(&self, request: ExecRequest) -> Result<Session, Error> {
        let live = Live::new(&self.0);
        let mut argv = request.argv.iter().map(String::as_str);
        let (program, argument) = (argv.next().unwrap(), argv.next().unwrap_or_default());
        let (stdin, input) = duplex(1024);
        let (stdout, output) = duplex(1024);
        let (stderr, mut errors) = duplex(1024);
        let (sizes, mut resized) = mpsc::channel(1);
        let (exit, ended) = oneshot::channel();
        let argument = argument.to_owned();
        let mut flood: Option<Box<dyn AsyncRead + Send + Unpin>> = None;
        let (mut input, mut output) = (input, output);
        match program {
            // Writes its argument and an error, and exits with code 3.
            "say" => {
                tokio::spawn(async move {
                    output.write_all(argument.as_bytes()).await.unwrap();
                    errors.write_all(b"complaint").await.unwrap();
                    exit.send(3).unwrap();
                });
            }
            "cat" => {
                tokio::spawn(async move {
                    // The client may drop both at any time.
                    let _ = tokio::io::copy(&mut input, &mut output).await;
                    let _ = exit.send(0);
                    drop(errors);
                });
            }
            "sizes" => {
                tokio::spawn(async move {
                    for _ in 0..2 {
                        let size: super::super::target::Size = resized.recv().await.unwrap();
                        let text = format!("{}x{}\n", size.width, size.height);
                        output.write_all(text.as_bytes()).await.unwrap();
                    }
                    exit.send(0).unwrap();
                });
            }
            "flood" => {
                flood = Some(Box::new(Flood(self.0.clone())));
                tokio::spawn(async move {
                    let _held = (errors, exit);
                    std::future::pending::<()>().await;
                });
            }
            // Never reads, never writes, never ends.
            "stuck" => {
                tokio::spawn(async move {
                    let _held = (input, output, errors, exit);
                    std::future::pending::<()>().await;
                });
            }
            _ => return Err(io_error("run it")(io::ErrorKind::NotFound.into())),
        }
        let ended = async move {
            let _live = live;
            Ok(ended.await.unwrap_or(255))
        };
        Ok(Session {
            stdin: request.stdin.then(|| Box::new(stdin) as _),
            stdout: request.stdout.then(|| flood.unwrap_or_else(|| Box::new(stdout))),
            stderr: request.stderr.then(|| Box::new(stderr) as _),
            resize: request.tty.then_some(sizes),
            ended: Box::pin(ended),
        })
    }

    /// A container that writes a greeting and exits with code 7.
    async fn attach(&self, request: AttachRequest) -> Result<Session, Error> {
        let live = Live::new(&self.0);
        let (stdout, mut output) = duplex(64);
        output.write_all(b"hello").await.unwrap();
        let ended = async move {
            let _live = live;
            Ok(7)
        };
        Ok(Session {
            stdin: None,
            stdout: request.stdout.then(|| Box::new(stdout) as _),
            stderr: None,
            resize: None,
            ended: Box::pin(ended),
        })
    }

    /// Port 7 echoes and says goodbye, port 9 never reads, and other ports refuse the connection.
    async fn connect(&self, _: &SandboxId, port: u16) -> Result<Box<dyn Duplex>, Error> {
        let live = Live::new(&self.0);
        let (ours, mut theirs) = duplex(1024);
        match port {
            7 => {
                tokio::spawn(async move {
                    let _live = live;
                    let mut buffer = [0; 512];
                    while let Ok(n @ 1..) = theirs.read(&mut buffer).await {
                        if theirs.write_all(&buffer[..n]).await.is_err() {
                            return;
                        }
                    }
                    let _ = theirs.write_all(b"bye").await;
                });
            }
            9 => {
                tokio::spawn(async move {
                    let _live = live;
                    // The peer sees the end nevertheless.
                    let _ = theirs.write_all(&[b'x'; 2048]).await;
                    std::future::pending::<()>().await;
                });
            }
            _ => return Err(io_error("connect")(io::ErrorKind::ConnectionRefused.into())),
        }
        Ok(Box::new(ours))
    }
}
