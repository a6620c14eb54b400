//! The daemon's ends of a process's streams: pipes and terminals.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// Limit on output that a terminal may hold beyond what FIONREAD reports.
const UNREPORTED_BYTES: usize = 64 << 10;

/// A non-blocking pipe or terminal. Clones share the descriptor, which closes with the last one.
pub(crate) type Shared = Arc<AsyncFd<OwnedFd>>;

/// A pipe from a process: our end, and the process's.
pub(crate) fn pipe_from_process() -> io::Result<(Shared, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((watch(reader, Interest::READABLE)?, writer))
}

/// A pipe to a process: our end, and the process's.
pub(crate) fn pipe_to_process() -> io::Result<(Shared, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((watch(writer, Interest::WRITABLE)?, reader))
}

/// Registers a descriptor with the reactor and makes it non-blocking.
#[expect(
    deprecated,
    reason = "what it may be misused for, a descriptor that is closed meanwhile, an OwnedFd is not"
)]
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<Shared> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Arc::new(AsyncFd::with_interest(fd, interest)?))
}

/// The output of a process, up to the end of the pipe or terminal; or, once the process is `over`, up to the output written by
/// then. An orphan that keeps the other end open does not delay the caller.
pub(crate) struct ProcessOutput {
    from: Shared,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The number of bytes left to read after the process has ended.
    left: Option<usize>,
}

impl ProcessOutput {
    pub(crate) fn new(from: Shared, over: CancellationToken) -> Self {
        Self { from, over: Box::pin(over.cancelled_owned()), left: None }
    }
}

impl AsyncRead for ProcessOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left.is_none() && this.over.as_mut().poll(cx).is_ready() {
            let held = rustix::io::ioctl_fionread(this.from.get_ref()).unwrap_or(0);
            let held = usize::try_from(held).unwrap_or(usize::MAX);
            this.left = Some(held.saturating_add(UNREPORTED_BYTES));
        }
        if let Some(left) = &mut this.left {
            // Read from the descriptor itself: the reactor may not have been notified yet.
            let most = buffer.remaining().min(*left);
            let n = match read(this.from.get_ref(), buffer.initialize_unfilled_to(most)) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Poll::Ready(Err(error)),
            };
            buffer.advance(n);
            *left = if n == 0 { 0 } else { *left - n };
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut ready = ready!(this.from.poll_read_ready(cx))?;
            if let Ok(result) = ready.try_io(|fd| read(fd.get_ref(), buffer.initialize_unfilled()))
            {
                buffer.advance(result?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Reads once; EIO of a terminal that no process has open means EOF.
fn read(from: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(from, &mut *into) {
            Ok(n) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(Errno::IO) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The input of a process. Shutting it down or dropping it closes it.
pub(crate) struct ProcessInput {
    into: Option<Shared>,
    /// Notifies that it is closed.
    closed: Option<DropGuard>,
}

impl ProcessInput {
    pub(crate) fn new(into: Shared) -> Self {
        Self { into: Some(into), closed: None }
    }

    /// Cancels `closed` when it is closed.
    pub(crate) fn on_close(mut self, closed: CancellationToken) -> Self {
        self.closed = Some(closed.drop_guard());
        self
    }
}

impl AsyncWrite for ProcessInput {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(into) = &self.into else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        loop {
            let mut ready = ready!(into.poll_write_ready(cx))?;
            let written = ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref().as_fd(), bytes)?));
            match written {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return Poll::Ready(result),
                Err(_) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.into = None;
        self.closed = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fs::File, io::Write as _};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn output_ends_with_process_while_orphan_holds_pipe() {
        let (from, writer) = pipe_from_process().unwrap();
        let over = CancellationToken::new();
        let mut flow = ProcessOutput::new(from, over.clone());
        let mut writer = File::from(writer);
        writer.write_all(b"one").unwrap();
        let mut bytes = [0u8; 3];
        flow.read_exact(&mut bytes).await.unwrap();
        writer.write_all(b" two").unwrap();
        over.cancel();
        let mut rest = Vec::new();
        flow.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&bytes, rest.as_slice()), (b"one", b" two".as_slice()));
    }

    #[tokio::test]
    async fn output_ends_with_pipe() {
        let (from, writer) = pipe_from_process().unwrap();
        let mut flow = ProcessOutput::new(from, CancellationToken::new());
        File::from(writer).write_all(b"all").unwrap();
        let mut all = Vec::new();
        flow.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"all");
    }

    #[tokio::test]
    async fn input_is_closed_on_shutdown() {
        let (into, reader) = pipe_to_process().unwrap();
        let closed = CancellationToken::new();
        let mut flow = ProcessInput::new(into).on_close(closed.clone());
        flow.write_all(b"in").await.unwrap();
        assert!(!closed.is_cancelled());
        flow.shutdown().await.unwrap();
        assert!(closed.is_cancelled());
        let mut text = String::new();
        io::Read::read_to_string(&mut File::from(reader), &mut text).unwrap();
        assert_eq!(text, "in");
        flow.write_all(b"more").await.unwrap_err();
    }
}
