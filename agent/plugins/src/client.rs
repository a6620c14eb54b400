//! Calls plugins over their sockets: gets their information, and notifies them of their registration.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use cri::pluginregistration::registration_client::RegistrationClient;
use cri::pluginregistration::{InfoRequest, RegistrationStatus};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::PluginInfo;

/// The timeouts of the connection, of GetInfo and of NotifyRegistrationStatus.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const GET_INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// An error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct CallError {
    /// Go's name of the code.
    pub code: &'static str,
    message: String,
    /// The plugin has not started the operation, or has failed and undone it. Otherwise the operation may be running or complete.
    pub is_final: bool,
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        // csi_client.go isFinalError.
        let is_final = !matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        );
        Self { code: go_name(status.code()), message: status.message().to_owned(), is_final }
    }
}

fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// Connects to the socket of a plugin.
///
/// # Errors
/// `Unavailable`, in the words of Go's gRPC.
pub async fn connect(socket: &Path) -> Result<Channel, Status> {
    open(socket, Weak::new()).await
}

/// Connects to the socket of a plugin. Each stream to the socket keeps a reference to `streams` while it is open.
pub(crate) async fn open(socket: &Path, streams: Weak<()>) -> Result<Channel, Status> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let (path, streams) = (path.clone(), streams.clone());
        async move {
            let stream = UnixStream::connect(path).await?;
            Ok::<_, io::Error>(TokioIo::new(CountedStream {
                stream,
                _reference: streams.upgrade(),
            }))
        }
    });
    // Kubernetes' clients send this authority; some servers reject a socket path in it.
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(connector).await.map_err(|error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        Status::unavailable(format!(
            "connection error: desc = \"transport: Error while dialing: dial unix {}: {cause}\"",
            socket.display()
        ))
    })
}

/// A stream that counts as open until it is dropped, which is when either side has closed it.
struct CountedStream {
    stream: UnixStream,
    _reference: Option<Arc<()>>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Limits the duration of a call.
///
/// # Errors
/// The call's error, or `DeadlineExceeded`.
pub async fn with_timeout<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, CallError> {
    match timeout(limit, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded").into()),
    }
}

/// The registration service of a plugin.
pub(crate) struct Plugin {
    client: RegistrationClient,
    socket: PathBuf,
}

impl Plugin {
    pub(crate) async fn connect(socket: &Path) -> Result<Self, CallError> {
        let channel = with_timeout(CONNECT_TIMEOUT, connect(socket)).await?;
        Ok(Self { client: RegistrationClient::new(channel), socket: socket.to_owned() })
    }

    /// Gets the plugin's information.
    pub(crate) async fn info(&mut self) -> Result<PluginInfo, CallError> {
        let answer = with_timeout(GET_INFO_TIMEOUT, self.client.get_info(InfoRequest {}))
            .await?
            .into_inner();
        let endpoint = answer.endpoint.strip_prefix("unix://").unwrap_or(&answer.endpoint);
        Ok(PluginInfo {
            kind: answer.r#type,
            name: answer.name,
            endpoint: match endpoint {
                "" => self.socket.clone(),
                endpoint => PathBuf::from(endpoint),
            },
            versions: answer.supported_versions,
            socket: self.socket.clone(),
        })
    }

    /// Notifies the plugin that it is registered, or of the error.
    pub(crate) async fn notify(&mut self, registered: Result<(), &str>) -> Result<(), CallError> {
        let status = RegistrationStatus {
            plugin_registered: registered.is_ok(),
            error: registered.err().unwrap_or_default().to_owned(),
        };
        with_timeout(NOTIFY_TIMEOUT, self.client.notify_registration_status(status)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Status::internal("no disk"), "rpc error: code = Internal desc = no disk", true)]
    #[case(Status::cancelled("x"), "rpc error: code = Canceled desc = x", false)]
    #[case(Status::aborted("pending"), "rpc error: code = Aborted desc = pending", false)]
    #[case(Status::deadline_exceeded("x"), "rpc error: code = DeadlineExceeded desc = x", false)]
    #[case(Status::not_found("x"), "rpc error: code = NotFound desc = x", true)]
    fn errors_are_named_as_in_go(
        #[case] status: Status,
        #[case] text: &str,
        #[case] is_final: bool,
    ) {
        let error = CallError::from(status);
        assert_eq!((error.to_string().as_str(), error.is_final), (text, is_final));
    }
}
