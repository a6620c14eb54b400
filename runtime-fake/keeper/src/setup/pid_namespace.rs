//! The last step of a new process into a process namespace that already has other processes.
//!
//! A process in the namespace that has CAP_SYS_PTRACE can inspect, stop and change all the others, regardless of other isolation.
//! So the keeper sets up a new process outside the namespace, where no process in it sees the new one. That process has the
//! container's root, user, capabilities and filter but not its process namespace. When only `execve` is left to do, it forks its
//! successor into the namespace, reports the successor's pid to the keeper, and exits.

use std::{
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::thread::LinkNameSpaceType;

use crate::kernel::failure::{Context as _, Step};
use crate::kernel::seccomp::SystemCall;
use crate::kernel::sys::{self, Fork};
use crate::setup;
use crate::setup::fail;
use crate::setup::process::Ready;
use crate::setup::terminal;

/// Makes the next fork of this process enter a process namespace.
pub(crate) fn enter_on_fork(namespace: &OwnedFd) -> Step {
    let name = Some(LinkNameSpaceType::ProcessID);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), name)
        .context("join the process namespace")
}

/// The system calls from here to `execve`. If the container's own filter allows them, it is loaded before the fork:
/// loading it takes CAP_SYS_ADMIN, which a process in the namespace must not have.
fn remaining_calls() -> [SystemCall; 10] {
    let number = |number: libc::c_int| u64::from(number.unsigned_abs());
    let call = SystemCall::new;
    [
        call("capset", &[]),
        call("clone", &[number(sys::SIBLING)]),
        call("prctl", &[number(libc::PR_SET_PDEATHSIG), number(libc::SIGKILL)]),
        call("setsid", &[]),
        // Its type differs between glibc and musl.
        call("ioctl", &[0, u64::from(libc::TIOCSCTTY as u32)]),
        call("close", &[]),
        call("read", &[]),
        call("write", &[]),
        call("execve", &[]),
        call("exit_group", &[]),
    ]
}

/// Forks the process that becomes the program into the namespace given to [`enter_on_fork`], and exits.
pub(crate) fn fork_into(mut ready: Ready, report: OwnedFd, terminal: bool) -> ! {
    let what = "start a process in the container";
    sys::reset_signals();
    let gate = match io::pipe().context(what) {
        Ok(gate) => gate,
        Err(failure) => fail(&report, failure),
    };
    if let Err(failure) = ready.load_filter_if(&remaining_calls()) {
        fail(&report, failure);
    }
    match sys::fork_sibling().context(what) {
        Err(failure) => fail(&report, failure),
        Ok(Fork::Parent(pid)) => {
            // The active filter may allow only the calls above, so this code allocates nothing.
            let mut line = [0u8; 32];
            let mut rest = &mut line[..];
            let _ = writeln!(rest, r#"{{"Born":{pid}}}"#);
            let length = 32 - rest.len();
            let told = rustix::io::write(&report, &line[..length]) == Ok(length);
            // The keeper takes the closed pipe to mean that the program runs: only the successor may close it last.
            drop(report);
            if told {
                let _ = rustix::io::write(&gate.1, b"g");
            }
            sys::exit(0)
        }
        Ok(Fork::Child) => {
            let (gate, other) = gate;
            drop(other);
            let mut go = [0u8; 1];
            // The keeper has to know its pid before it does anything; if the report fails, it exits.
            if rustix::io::read(&gate, &mut go) != Ok(1) {
                sys::exit(setup::START_ERROR);
            }
            let started = sys::die_with_parent()
                .context("be ended with the keeper")
                .and_then(|()| rustix::process::setsid().context("start a session"))
                .and_then(|_| if terminal { terminal::control() } else { Ok(()) });
            match started {
                Ok(()) => fail(&report, ready.exec()),
                Err(failure) => fail(&report, failure),
            }
        }
    }
}
