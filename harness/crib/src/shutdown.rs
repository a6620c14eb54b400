//! Shutdown of a server: graceful at the first signal, immediate at the second, always within a timeout.
//!
//! A dedicated thread handles the signals: tokio's threads could not if all of them hang in a file system.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crib_base::exit::Exit;
use crib_base::signals::ECHO;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio_util::sync::CancellationToken;

/// The timeout of the last log line: the reader of standard error may hang too.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Returns a token that is cancelled at the first SIGINT or SIGTERM. The process must then end within `bound`; a second signal ends
/// it immediately. Must be called while the process has a single thread, because later threads inherit the signal mask.
pub(crate) fn on_signal(bound: Duration) -> io::Result<CancellationToken> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGINT);
    mask.add(Signal::SIGTERM);
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || take(&signals, &token, bound))?;
    Ok(shutdown)
}

/// Set when only files remain to be removed, which cannot hang.
static REMOVES: AtomicBool = AtomicBool::new(false);

/// Disables the timeout while the process removes files; only a signal can then end it early.
pub(crate) fn while_it_removes() {
    REMOVES.store(true, Ordering::Relaxed);
}

/// Ends the process after `bound`, unless it is removing files.
pub(crate) fn within(bound: Duration) {
    let spawned = std::thread::Builder::new().name("bound".to_owned()).spawn(move || {
        std::thread::sleep(bound);
        if REMOVES.load(Ordering::Relaxed) {
            return;
        }
        end(move || tracing::error!(?bound, "shutdown timed out; exiting immediately"));
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "failed to start the shutdown timeout");
    }
}

fn take(signals: &SignalFd, shutdown: &CancellationToken, bound: Duration) {
    let mut last: Option<(u32, Instant)> = None;
    let mut is_requested = false;
    loop {
        let mut ready = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "failed to wait for signals");
                return;
            }
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            let number = signal.ssi_signo;
            let again = last.is_some_and(|(before, at)| before == number && at.elapsed() < ECHO);
            if again {
                continue;
            }
            last = Some((number, Instant::now()));
            let cause = i32::try_from(number)
                .ok()
                .and_then(|number| Signal::try_from(number).ok())
                .map_or("a signal", Signal::as_str);
            if is_requested {
                end(move || tracing::warn!(cause, "exiting immediately"));
            }
            is_requested = true;
            // Before any operation that could hang, such as writing a log line.
            within(bound);
            shutdown.cancel();
            tracing::info!(cause, "ending");
        }
    }
}

/// Calls `log_signal`, which may hang, then ends the process.
fn end(log_signal: impl FnOnce() + Send + 'static) -> ! {
    let (logged, done) = std::sync::mpsc::channel();
    let _ = std::thread::Builder::new().spawn(move || {
        log_signal();
        let _ = logged.send(());
    });
    let _ = done.recv_timeout(LAST_LINE);
    std::process::exit(i32::from(Exit::Interrupted.code()))
}
