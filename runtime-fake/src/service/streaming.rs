//! Exec, Attach and PortForward: validates the request and returns a URL for it.

use cri::v1;
use tonic::Status;

use crate::{
    runtime::{Error, Runtime},
    streaming::{
        Request, Streams,
        target::{AttachRequest, ExecRequest},
    },
};

/// Limit on a command line: the limit of execve(2) with the usual stack limit of 8 MiB.
const MAX_COMMAND: usize = 2 << 20;

/// Limit on the ports of one PortForward.
const MAX_PORTS: usize = 1024;

pub(super) fn exec(
    runtime: &Runtime,
    streams: &Streams,
    request: v1::ExecRequest,
) -> Result<String, Status> {
    named(&request.container_id, "container_id")?;
    if request.cmd.is_empty() {
        return Err(Status::invalid_argument("cmd is missing"));
    }
    let length: usize = request.cmd.iter().map(String::len).sum();
    if length > MAX_COMMAND {
        let text = format!("cmd is {length} bytes long; the kernel takes {MAX_COMMAND} at most");
        return Err(Status::invalid_argument(text));
    }
    any_stream(request.stdin, request.stdout, request.stderr, request.tty)?;
    let container = runtime.running(&request.container_id, "a process needs a running one")?;
    url(
        streams,
        Request::Exec(ExecRequest {
            container,
            argv: request.cmd,
            tty: request.tty,
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
        }),
    )
}

pub(super) fn attach(
    runtime: &Runtime,
    streams: &Streams,
    request: &v1::AttachRequest,
) -> Result<String, Status> {
    named(&request.container_id, "container_id")?;
    any_stream(request.stdin, request.stdout, request.stderr, request.tty)?;
    let container = runtime.running(&request.container_id, "only a running one has streams")?;
    url(
        streams,
        Request::Attach(AttachRequest {
            container,
            tty: request.tty,
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
        }),
    )
}

pub(super) fn port_forward(
    runtime: &Runtime,
    streams: &Streams,
    request: &v1::PortForwardRequest,
) -> Result<String, Status> {
    named(&request.pod_sandbox_id, "pod_sandbox_id")?;
    if request.port.len() > MAX_PORTS {
        let text = format!("{} ports; {MAX_PORTS} are allowed", request.port.len());
        return Err(Status::invalid_argument(text));
    }
    let port = |port: &i32| match u16::try_from(*port) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(Status::invalid_argument(format!("{port} is not a port: 1 to 65535"))),
    };
    let ports = request.port.iter().map(port).collect::<Result<_, _>>()?;
    let sandbox = runtime.ready(&request.pod_sandbox_id, "port-forward")?;
    url(streams, Request::PortForward { sandbox, ports })
}

fn named(id: &str, what: &str) -> Result<(), Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument(format!("{what} is missing")));
    }
    Ok(())
}

/// The CRI's rules for ExecRequest and AttachRequest: at least one of the three streams, and no stderr with a
/// terminal.
fn any_stream(stdin: bool, stdout: bool, stderr: bool, tty: bool) -> Result<(), Status> {
    if tty && stderr {
        let text = "tty and stderr cannot both be true: a terminal has one output";
        return Err(Status::invalid_argument(text));
    }
    if !stdin && !stdout && !stderr {
        let text = "one of stdin, stdout and stderr has to be true";
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

fn url(streams: &Streams, request: Request) -> Result<String, Status> {
    Ok(streams.url(request).map_err(Error::from)?)
}
