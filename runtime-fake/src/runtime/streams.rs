//! The streams of processes and the ports of pods, for clients of the stream server.

use super::{Error, Runtime, io};
use crate::{
    id::SandboxId,
    streaming::target::{AttachRequest, Duplex, ExecRequest, Session, Target},
};

#[async_trait::async_trait]
impl Target for Runtime {
    async fn exec(&self, _: ExecRequest) -> Result<Session, Error> {
        Err(absent("run a command with streams"))
    }

    async fn attach(&self, _: AttachRequest) -> Result<Session, Error> {
        Err(absent("attach to a container"))
    }

    async fn connect(&self, _: &SandboxId, _: u16) -> Result<Box<dyn Duplex>, Error> {
        Err(absent("connect to a port of a pod"))
    }
}

fn absent(what: &'static str) -> Error {
    io(what)(std::io::ErrorKind::Unsupported.into())
}
