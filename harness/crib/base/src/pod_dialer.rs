//! Connections to pods for probes. Without root, the pods' bridge is in a network namespace that only the runtime can reach, so
//! probes connect through port-forward.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use agent::checks::dialer::{Connection, Dialer, SystemDialer};
use async_trait::async_trait;
use cri::v1;
use harness::client::Client;
use harness::streaming::{self, ForwardError, Transport};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// A port-forward does not confirm an open connection: a connection that is not refused within this time counts as open.
const REFUSAL: Duration = Duration::from_millis(50);
const BUFFER: usize = 64 << 10;

/// Connects directly, or through the runtime if only the runtime can reach the pods.
pub struct PodDialer {
    client: Client,
    is_rootless: OnceCell<bool>,
}

impl PodDialer {
    /// A dialer for the pods of the runtime that listens at `path`.
    pub fn new(path: &Path) -> Self {
        Self { client: Client::new(path), is_rootless: OnceCell::new() }
    }

    async fn is_rootless(&self) -> bool {
        let query = self.is_rootless.get_or_try_init(|| async {
            let info = self.client.status().await?.info;
            let isolation = info.get("isolation").map(String::as_str);
            Ok::<bool, tonic::Status>(isolation.is_some_and(|name| name.starts_with("rootless")))
        });
        query.await.copied().unwrap_or_default()
    }

    /// The id of the pod with this address.
    async fn pod(&self, ip: IpAddr) -> io::Result<Option<String>> {
        let filter = v1::PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue {
                state: v1::PodSandboxState::SandboxReady.into(),
            }),
            ..Default::default()
        };
        for pod in self.client.pods(filter).await.map_err(io::Error::other)? {
            let Ok(answer) = self.client.pod(&pod.id).await else {
                continue;
            };
            let network = answer.status.and_then(|status| status.network);
            let network = network.unwrap_or_default();
            let more = network.additional_ips.into_iter().map(|more| more.ip);
            let mut ips = std::iter::once(network.ip).chain(more);
            if ips.any(|text| text.parse() == Ok(ip)) {
                return Ok(Some(pod.id));
            }
        }
        Ok(None)
    }

    async fn forward(&self, pod: String, port: u16) -> io::Result<Box<dyn Connection>> {
        let request = v1::PortForwardRequest { pod_sandbox_id: pod, port: vec![port.into()] };
        let mut runtime = self.client.runtime.clone();
        let answer = runtime.port_forward(request).await;
        let url = answer.map_err(io::Error::other)?.into_inner().url;
        let ports =
            streaming::port_forward(&url, Transport::Spdy).await.map_err(io::Error::other)?;
        let (near, far) = tokio::io::duplex(BUFFER);
        let mut carrying = JoinSet::new();
        let mut carried = Box::pin(ports.carry(port, far));
        match tokio::time::timeout(REFUSAL, &mut carried).await {
            Ok(Err(ForwardError::Refused(text))) => {
                return Err(io::Error::new(io::ErrorKind::ConnectionRefused, text));
            }
            Ok(Err(error @ ForwardError::Lost)) => return Err(io::Error::other(error)),
            // The connection has ended already; the received data can still be read.
            Ok(Ok(())) => {}
            Err(_) => {
                carrying.spawn(tasks::boxed(async move {
                    let _ = carried.await;
                    drop(ports);
                }));
            }
        }
        Ok(Box::new(Forwarded { near, _carrying: carrying }))
    }
}

#[async_trait]
impl Dialer for PodDialer {
    async fn tcp(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>> {
        if !to.ip().is_loopback()
            && self.is_rootless().await
            && let Some(pod) = self.pod(to.ip()).await?
        {
            return self.forward(pod, to.port()).await;
        }
        SystemDialer.tcp(to).await
    }
}

/// One end of a forwarded connection. Dropping it closes the other end.
struct Forwarded {
    near: DuplexStream,
    _carrying: JoinSet<()>,
}

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_read(context, buffer)
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.near).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_shutdown(context)
    }
}
