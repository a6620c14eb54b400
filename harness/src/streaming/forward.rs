//! The client side of a port-forward.

use std::sync::atomic::{AtomicU64, Ordering};

use stream::{Connection, Headers, Role, Stream, Tunnel, connect, pump_in, pump_out};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::{DialError, Transport, spdy, websocket};

/// Why a connection to a port failed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The runtime's error.
    #[error("{0}")]
    Refused(String),
    /// The connection to the runtime is lost.
    #[error("the connection to the runtime was lost")]
    Lost,
}

/// A connection for a pod's ports. Dropping it closes the connections of all ports.
pub struct Ports {
    connection: Connection,
    requests: AtomicU64,
    driving: JoinSet<()>,
}

/// A connection to a port.
struct Port {
    /// The error stream; empty if the connection succeeds.
    error: Stream,
    /// The data in both directions.
    data: Stream,
}

const PROTOCOL: &str = "portforward.k8s.io";
const TUNNELLED: &str = "SPDY/3.1+portforward.k8s.io";

/// Opens a connection for the ports of the pod of `url`.
///
/// # Errors
/// If the server cannot be reached, or refuses the request.
pub async fn port_forward(url: &str, transport: Transport) -> Result<Ports, DialError> {
    match transport {
        Transport::Spdy => Ok(Ports::over(spdy(url, &[PROTOCOL]).await?.io)),
        Transport::WebSocket => {
            let dialled = websocket(url, &[TUNNELLED]).await?;
            Ok(Ports::over(Tunnel::new(dialled.io)))
        }
    }
}

impl Ports {
    fn over(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (connection, _, driver) = connect(io, Role::Client);
        let mut driving = JoinSet::new();
        driving.spawn(tasks::boxed(async move {
            let _ = driver.run().await;
        }));
        Self { connection, requests: AtomicU64::new(0), driving }
    }

    /// Waits until the runtime has closed the connection. Cancel-safe.
    pub async fn ended(&mut self) {
        self.driving.join_next().await;
    }

    fn open(&self, port: u16) -> Port {
        let request = self.requests.fetch_add(1, Ordering::Relaxed).to_string();
        let port = port.to_string();
        let stream = |kind| {
            let headers =
                [("streamType", kind), ("port", port.as_str()), ("requestID", request.as_str())];
            self.connection.open(Headers::of(&headers))
        };
        Port { error: stream("error"), data: stream("data") }
    }

    /// Copies data between a client and a port, until both have ended or one of them has disconnected. The future does not borrow
    /// `self`: many can be polled while [`Self::ended`] is awaited.
    ///
    /// # Errors
    /// If the port cannot be reached, or its connection is lost.
    pub fn carry<C: AsyncRead + AsyncWrite>(
        &self,
        port: u16,
        client: C,
    ) -> impl Future<Output = Result<(), ForwardError>> + use<C> {
        let Port { error, data } = self.open(port);
        carry(error, data, client)
    }
}

async fn carry(
    mut error: Stream,
    mut data: Stream,
    client: impl AsyncRead + AsyncWrite,
) -> Result<(), ForwardError> {
    // The client sends nothing on the error stream.
    error.outlet.end().await;
    let outlet = data.outlet;
    let (mut read, mut write) = tokio::io::split(client);
    let upward = async {
        match pump_out(&mut read, &outlet).await {
            Ok(()) => outlet.end().await,
            Err(_) => outlet.abort().await,
        }
        std::future::pending::<()>().await;
    };
    let downward = async {
        // The client has closed its end. Waiting for the remaining data would block the other streams of the connection.
        if pump_in(&mut data.inlet, &mut write).await.is_err() {
            return Vec::new();
        }
        let _ = write.shutdown().await;
        let mut text = Vec::new();
        while let Some(bytes) = error.inlet.next().await {
            text.extend_from_slice(&bytes);
        }
        text
    };
    // Once the port has finished, data from the client is useless.
    let text = tokio::select! {
        text = downward => text,
        () = upward => return Ok(()),
    };
    let lost = outlet.is_disconnected();
    outlet.abort().await;
    if !text.is_empty() {
        let text = String::from_utf8_lossy(&text).into_owned();
        return Err(ForwardError::Refused(text));
    }
    if lost { Err(ForwardError::Lost) } else { Ok(()) }
}
