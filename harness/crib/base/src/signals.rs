//! The signals that end a command: SIGINT, SIGTERM and, for a command at a terminal, SIGHUP.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// A repeated signal within this time counts once: GNU `timeout` sends its signal to the command and then to the command's process
/// group.
pub const ECHO: Duration = Duration::from_millis(250);

/// Receives signals from its creation on.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
    last: Option<(&'static str, Instant)>,
}

impl Signals {
    /// Starts receiving SIGINT and SIGTERM.
    pub fn listen() -> io::Result<Self> {
        let (interrupt, terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hang_up: None, last: None })
    }

    /// Also receives SIGHUP, unless the parent process ignores it, as `nohup` does.
    pub fn and_hang_up(mut self) -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        if !is_ignored(&status, SignalKind::hangup().as_raw_value()) {
            self.hang_up = Some(signal(SignalKind::hangup())?);
        }
        Ok(self)
    }

    /// Returns the name of the next signal. Cancel-safe: a signal that was not returned is kept.
    pub async fn next(&mut self) -> &'static str {
        loop {
            let hang_up = async {
                match &mut self.hang_up {
                    Some(hang_up) => hang_up.recv().await,
                    None => std::future::pending().await,
                }
            };
            let name = tokio::select! {
                _ = self.interrupt.recv() => "SIGINT",
                _ = self.terminate.recv() => "SIGTERM",
                _ = hang_up => "SIGHUP",
            };
            let now = Instant::now();
            let echo =
                self.last.is_some_and(|(last, at)| last == name && now.duration_since(at) < ECHO);
            if !echo {
                self.last = Some((name, now));
                return name;
            }
        }
    }
}

/// Waits for the end of standard input. A separate thread reads it, because a blocking read cannot be cancelled; the thread ends
/// with the process.
pub async fn end_of_stdin() {
    let (closed, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        let mut stdin = io::stdin().lock();
        while io::Read::read(&mut stdin, &mut buffer).is_ok_and(|length| length > 0) {}
        let _ = closed.send(());
    });
    // An error means that the thread has ended: standard input has ended in both cases.
    let _ = end.await;
}

/// Whether a signal is in the mask `SigIgn` of a status file (proc_pid_status(5)).
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    u32::try_from(signal - 1)
        .is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("SigBlk:\t0000000000000001\nSigIgn:\t0000000000000000\n", 1, false)]
    #[case("SigIgn:\t0000000000000001\n", 1, true)]
    #[case("SigIgn:\t0000000000001000\n", 13, true)]
    #[case("SigIgn:\t0000000000001000\n", 1, false)]
    #[case("", 1, false)]
    fn ignored_signals_are_read_from_mask(
        #[case] status: &str,
        #[case] signal: i32,
        #[case] ignored: bool,
    ) {
        assert_eq!(is_ignored(status, signal), ignored);
    }
}
