//! The client of the zygote (see `keeper/src/parent/zygote.rs`): starts it on first use, and restarts it after it was killed.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
};

use keeper::contract::protocol::{Call, Outcome};
use tokio::{
    process::{Child, Command},
    sync::{Mutex, mpsc},
};

use super::{Error, Program};
use crate::keeper_client::{Deadlines, KeeperClient, unexpected};

/// The zygote, from which keepers are forked.
pub(crate) struct Zygote {
    program: Program,
    deadlines: Deadlines,
    process: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    NotStarted,
    Running(Box<Running>),
    /// Closed for good: no zygote is started again.
    Closed,
}

struct Running {
    process: Child,
    client: KeeperClient,
}

impl Zygote {
    /// Creates the client; the zygote is started later.
    pub(super) fn new(program: Program, deadlines: Deadlines) -> Self {
        Self { program, deadlines, process: Mutex::default() }
    }

    /// Forks a keeper with these standard streams and returns its process id.
    pub(super) async fn spawn(&self, streams: [OwnedFd; 3]) -> Result<i32, Error> {
        let client = self.client().await;
        let client = client.map_err(super::io("start the process that keepers are forked from"))?;
        match client.exchange(Call::Spawn, streams.into()).await? {
            (Outcome::Spawned { pid }, _) => Ok(pid),
            (other, _) => Err(unexpected(&other).into()),
        }
    }

    /// Starts the zygote in advance.
    pub(crate) async fn warm_up(&self) {
        // The call that needs it reports the error.
        let _ = self.client().await;
    }

    /// Ends the zygote and waits for it. Its keepers keep running. No other zygote is started, not even by a call that began
    /// before.
    pub(crate) async fn close(&self) {
        let state = std::mem::replace(&mut *self.process.lock().await, State::Closed);
        if let State::Running(running) = state {
            let Running { mut process, client } = *running;
            drop(client);
            let _ = process.wait().await;
        }
    }

    async fn client(&self) -> io::Result<KeeperClient> {
        let mut state = self.process.lock().await;
        if let State::Running(running) = &mut *state
            && running.process.try_wait()?.is_none()
        {
            return Ok(running.client.clone());
        }
        if matches!(*state, State::Closed) {
            return Err(io::Error::other("the runtime is stopping"));
        }
        let started = self.start()?;
        let client = started.client.clone();
        *state = State::Running(Box::new(started));
        Ok(client)
    }

    fn start(&self) -> io::Result<Running> {
        let (ours, theirs) = UnixStream::pair()?;
        let process = Command::new(self.program.path())
            .arg0("crib-keeper")
            .arg("__keeper")
            .env_clear()
            // The home directory of this user: keepers that cannot change the user have no other one.
            .envs(std::env::var_os("HOME").map(|home| ("HOME", home)))
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        // A zygote sends no events: its calls are answered, or fail.
        let (notify, _) = mpsc::unbounded_channel();
        let client = KeeperClient::start(ours, notify, self.deadlines)?;
        Ok(Running { process, client })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A daemon that ends immediately may close it before the task that warms it up has begun.
    #[tokio::test]
    async fn closed_zygote_does_not_restart() {
        let zygote = Zygote::new(Program::own(), Deadlines::default());
        zygote.close().await;
        zygote.warm_up().await;
        assert!(matches!(*zygote.process.lock().await, State::Closed));
        let streams = [0; 3].map(|_| std::fs::File::open("/dev/null").unwrap().into());
        let error = zygote.spawn(streams).await.unwrap_err();
        assert!(format!("{error:?}").contains("the runtime is stopping"), "{error:?}");
    }
}
