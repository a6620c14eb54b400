//! Carries out a plan in place of a program: a real process, with the container's namespaces, user, limits and filter.
//!
//! It is a fork of the keeper that does not call `execve`, so that it needs no file in the container's root. It has only the
//! standard descriptors. `schedule` decides the next action.

mod schedule;

use std::{
    fmt::Display,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

use self::schedule::{Next, Progress};
use crate::contract::plan::ActPlan;
use crate::kernel::failure::plain;
use crate::kernel::sys::{self, Fork};

/// The exit code when an action fails. It is unlikely to be a script's own.
const UNABLE: i32 = 125;

/// Carries out `plan` until its end.
pub(crate) fn play(plan: &ActPlan) -> ! {
    // A signal that is sent before the handler is set up stays pending.
    let blocked = block_signals();
    // The end of the report pipe shows the keeper that the process runs.
    sys::close_inherited();
    let _ = rustix::thread::set_name(c"crib-behave");
    // Orphans of execs: the first process of a process namespace has to reap them.
    sys::ignore_children();
    let signals = blocked.and_then(|blocked| Signals::receive(&blocked));
    let signals = signals.unwrap_or_else(|error| unable("receive signals", &error.into()));
    let start = Instant::now();
    let mut done = Progress::default();
    // Held, so that it stays allocated.
    let mut memory: Vec<Vec<u8>> = Vec::new();
    let mut wait = Some(Duration::ZERO);
    loop {
        match signals.wait(wait) {
            Ok(Some(Signal::SIGTERM)) => {
                done.term.get_or_insert(start.elapsed());
            }
            // The exit code that a shell reports after this signal.
            Ok(Some(other)) => sys::exit(128 + other as i32),
            Ok(None) => {}
            Err(error) => unable("wait", &error.into()),
        }
        wait = Some(Duration::ZERO);
        match schedule::next(plan, &done, start.elapsed()) {
            Next::Exit(code) => sys::exit(code.into()),
            Next::Fork => {
                fork_child();
                done.children += 1;
            }
            Next::Allocate(bytes) => {
                memory.push(piece(bytes));
                done.bytes += bytes;
            }
            Next::Line(number) => {
                write_line(plan, number);
                done.lines = number;
            }
            Next::Wait(time) => wait = time,
        }
    }
}

/// Writes what failed to standard error, and exits.
fn unable(what: impl Display, error: &std::io::Error) -> ! {
    let text = format!("failed to {what}: {}\n", plain(error));
    let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    sys::exit(UNABLE)
}

/// Blocks the signals that would end a program. Otherwise the first process of a process namespace would not receive signals
/// without a handler.
fn block_signals() -> nix::Result<SigSet> {
    let mut all = SigSet::empty();
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGTERM,
    ] {
        all.add(signal);
    }
    all.thread_block()?;
    Ok(all)
}

/// Blocked signals that have arrived.
struct Signals(SignalFd);

impl Signals {
    fn receive(blocked: &SigSet) -> nix::Result<Self> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(blocked, flags)?))
    }

    /// The next signal, if one arrives within `time`.
    fn wait(&self, time: Option<Duration>) -> nix::Result<Option<Signal>> {
        // Rounded up, so that it does not repeatedly wake up just before its time.
        let timeout = time.map_or(PollTimeout::NONE, |time| {
            let millis = time.as_nanos().div_ceil(1_000_000);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let info = self.0.read_signal()?;
        info.map_or(Ok(None), |info| {
            let number = i32::try_from(info.ssi_signo).map_err(|_| Errno::EINVAL)?;
            Signal::try_from(number).map(Some)
        })
    }
}

fn fork_child() {
    match sys::fork(0) {
        Ok(Fork::Parent(_)) => {}
        Ok(Fork::Child) => {
            sys::reset_signals();
            if sys::die_with_parent().is_err() {
                sys::exit(UNABLE);
            }
            sys::wait_for_ever()
        }
        Err(error) => unable("fork a child", &error),
    }
}

/// Memory that was written to, so that it counts as used.
fn piece(bytes: u64) -> Vec<u8> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut memory = Vec::new();
    if memory.try_reserve_exact(length).is_err() {
        let out_of_memory = std::io::ErrorKind::OutOfMemory;
        unable(format_args!("allocate {bytes} bytes"), &out_of_memory.into());
    }
    memory.resize(length, 1);
    memory
}

fn write_line(plan: &ActPlan, number: u64) {
    let line = format!("line {number}\n");
    let stderr = plan.log.is_some_and(|log| log.stderr);
    // The process continues without a reader.
    let _ = if stderr {
        rustix::io::write(rustix::stdio::stderr(), line.as_bytes())
    } else {
        rustix::io::write(rustix::stdio::stdout(), line.as_bytes())
    };
}
