//! What the runtime itself does in a behaviour script: a creation or a start that takes long or fails.

use std::time::Duration;

use super::{Error, Runtime};
use crate::{
    container::Container,
    launch::{self, Behaviour, Invalid, NoOom},
    store::Refused,
};

impl From<NoOom> for Error {
    fn from(lack: NoOom) -> Self {
        match lack {
            NoOom::Unlimited => Invalid(lack.to_string()).into(),
            NoOom::NotApplied(_) => Self::Unable(lack.to_string()),
        }
    }
}

impl Runtime {
    /// The script of a container, if it has one.
    pub(super) fn behaviour(&self, container: &Container) -> Result<Option<Behaviour>, Error> {
        let state = self.store.state();
        let sandbox = state.sandbox(container.sandbox.as_str())?;
        let found = launch::behaviour(&container.config, &sandbox.config, &container.image)?;
        Ok(found)
    }

    /// Takes as long for the creation of a container as its script says, and fails if it says that.
    pub(super) async fn act_in_creation(&self, behaviour: &Behaviour) -> Result<(), Error> {
        self.wait_for(behaviour.create_takes()).await?;
        if behaviour.create_fails() {
            return Err(Error::Scripted("create-fails"));
        }
        Ok(())
    }

    /// Takes as long for the start of a container as its script says.
    pub(super) async fn act_in_start(&self, container: &Container) -> Result<(), Error> {
        match self.behaviour(container)? {
            Some(behaviour) => self.wait_for(behaviour.start_takes()).await,
            None => Ok(()),
        }
    }

    async fn wait_for(&self, time: Duration) -> Result<(), Error> {
        if time.is_zero() {
            return Ok(());
        }
        // Cancel-safe: both only wait.
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = self.stopping.cancelled() => Err(Refused::ShuttingDown.into()),
        }
    }
}
