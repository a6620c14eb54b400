//! Notifications to systemd (sd_notify(3)) over the socket in NOTIFY_SOCKET.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/watchdog/watchdog_linux.go; github.com/coreos/go-systemd/daemon.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use std::{env, io, process};

/// A watchdog timeout must be longer than this.
const SHORTEST: Duration = Duration::from_secs(1);

/// Notifies systemd of the state, if NOTIFY_SOCKET is set. Logs a failure.
pub(super) fn notify(state: &str) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
        return;
    };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, state, "failed to notify systemd");
    }
}

/// A name that begins with `@` is in the abstract namespace (unix(7)).
fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    let sender = UnixDatagram::unbound()?;
    // A receiver that does not read must not block the agent.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// The watchdog of systemd, which restarts an agent that does not notify it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watchdog {
    /// The interval of notifications; `None`: no watchdog.
    period: Option<Duration>,
}

impl Watchdog {
    /// The watchdog of the environment variables.
    pub(super) fn from_environment() -> Result<Self, String> {
        let text = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
        Self::of(text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref(), process::id())
    }

    /// ◆ The watchdog of these values of the variables. It applies only to the process WATCHDOG_PID; child processes inherit the
    /// variables.
    fn of(limit: Option<&str>, watched: Option<&str>, own: u32) -> Result<Self, String> {
        let none = Ok(Self { period: None });
        let Some(limit) = limit else {
            return none;
        };
        let micros = limit.parse().ok().filter(|micros| *micros > 0);
        let micros = micros.ok_or_else(|| {
            format!("WATCHDOG_USEC: {limit:?} is not a number of microseconds above 0")
        })?;
        if let Some(watched) = watched {
            let watched: u32 = watched
                .parse()
                .map_err(|_| format!("WATCHDOG_PID: {watched:?} is not the id of a process"))?;
            if watched != own {
                return none;
            }
        }
        let limit = Duration::from_micros(micros);
        if limit <= SHORTEST {
            return Err(format!("WATCHDOG_USEC: {limit:?} is too short: set more than 1 s"));
        }
        Ok(Self { period: Some(limit / 2) })
    }

    /// Notifies the watchdog twice per timeout while the agent is healthy. Never returns.
    pub(super) async fn feed(self, health: impl Fn() -> Result<(), String>, notify: impl Fn(&str)) {
        let Some(period) = self.period else {
            return std::future::pending().await;
        };
        let mut turns = tokio::time::interval(period);
        loop {
            turns.tick().await;
            match health() {
                Ok(()) => notify("WATCHDOG=1"),
                Err(problem) => {
                    tracing::error!(
                        problem,
                        "agent is unhealthy; not notifying the systemd watchdog"
                    )
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::RefCell;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(None, None, Ok(None))]
    #[case(Some("10000000"), None, Ok(Some(5)))]
    #[case(Some("10000000"), Some("7"), Ok(Some(5)))]
    #[case(Some("10000000"), Some("8"), Ok(None))]
    #[case(Some("1000000"), None, Err("too short"))]
    #[case(Some("0"), None, Err("not a number of microseconds"))]
    #[case(Some("soon"), None, Err("not a number of microseconds"))]
    #[case(Some("10000000"), Some("me"), Err("not the id of a process"))]
    fn watchdog_is_fed_twice_in_its_time(
        #[case] limit: Option<&str>,
        #[case] watched: Option<&str>,
        #[case] expected: Result<Option<u64>, &str>,
    ) {
        match (Watchdog::of(limit, watched, 7), expected) {
            (Ok(seen), Ok(seconds)) => {
                assert_eq!(seen.period, seconds.map(Duration::from_secs));
            }
            (Err(seen), Err(words)) => assert!(seen.contains(words), "{seen}"),
            (seen, expected) => panic!("{seen:?}, expected {expected:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_is_not_fed_while_the_agent_is_unhealthy() {
        let watchdog = Watchdog { period: Some(Duration::from_secs(5)) };
        let began = tokio::time::Instant::now();
        let second = || began.elapsed().as_secs();
        let health = || match second() {
            10..20 => Err("stuck".to_owned()),
            _ => Ok(()),
        };
        let fed = RefCell::new(Vec::new());
        let feeding =
            watchdog.feed(health, |state| fed.borrow_mut().push((second(), state.to_owned())));
        let ended = tokio::time::timeout(Duration::from_secs(27), feeding).await;
        assert!(ended.is_err(), "it is fed for ever");
        let expected = [0, 5, 20, 25].map(|second| (second, "WATCHDOG=1".to_owned()));
        assert_eq!(fed.into_inner(), expected);
    }

    #[test]
    fn state_is_sent_to_paths_and_abstract_names() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let name = format!("crib-test-{}-notify", process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let listeners = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().as_bytes().to_vec()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into_bytes()),
        ];
        for (listener, socket) in listeners {
            send(&socket, "READY=1").unwrap();
            let mut received = [0; 16];
            let length = listener.recv(&mut received).unwrap();
            assert_eq!(&received[..length], b"READY=1");
        }
    }
}
