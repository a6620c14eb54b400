//! What `crib agent` shows over HTTP: its health, and its pods, as a kubelet does on its healthz and read-only ports.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go: `/healthz`, `/pods`; GET and HEAD alone, a request for each
//! connection.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use agent::AgentView;
use agent::local_node::kubelet_config::KubeletConfiguration;
use api::manifest::pod_json;
use bytes::Bytes;
use clap::Args;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many clients are answered at a time.
const MOST_CLIENTS: usize = 64;

#[derive(Debug, Args)]
#[command(next_help_heading = "Health")]
pub(super) struct ShowArgs {
    /// Port of /healthz, which fails when the runtime's pods have not been listed for 3 minutes; 0: none [default: 0]
    #[arg(long, value_name = "PORT")]
    healthz_port: Option<u16>,
    /// Port of /healthz and of /pods, which shows all pods to anyone who can connect; 0: none [default: 0]
    #[arg(long, value_name = "PORT")]
    read_only_port: Option<u16>,
    /// Address of both [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    healthz_bind_address: Option<IpAddr>,
}

/// The sockets, and what each shows.
#[derive(Debug, Default)]
pub(super) struct Sockets(Vec<(TcpListener, Shown)>);

/// What a socket shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Health,
    HealthAndPods,
}

impl ShowArgs {
    /// Binds the sockets that the flags name, or else the file.
    pub(super) async fn bind(&self, file: &KubeletConfiguration) -> Result<Sockets, String> {
        let in_file = file.healthz_bind_address.as_deref();
        let in_file = in_file.map(|text| {
            text.parse()
                .map_err(|_| format!("--config: healthzBindAddress: {text:?} is not an IP address"))
        });
        let address = match self.healthz_bind_address {
            Some(address) => address,
            None => in_file.transpose()?.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        };
        let mut sockets = Sockets::default();
        for (flag, port, shown) in [
            ("--healthz-port", self.healthz_port.or(file.healthz_port), Shown::Health),
            ("--read-only-port", self.read_only_port.or(file.read_only_port), Shown::HealthAndPods),
        ] {
            let Some(port) = port.filter(|port| *port != 0) else {
                continue;
            };
            let at = SocketAddr::new(address, port);
            let listener = TcpListener::bind(at)
                .await
                .map_err(|error| format!("{flag}: failed to bind {at}: {error}"))?;
            sockets.0.push((listener, shown));
        }
        Ok(sockets)
    }
}

impl Sockets {
    /// Answers clients for ever.
    pub(super) async fn serve(self, view: AgentView) {
        let mut servers = JoinSet::new();
        for (listener, shown) in self.0 {
            servers.spawn(serve(listener, shown, view.clone()));
        }
        while servers.join_next().await.is_some() {}
        std::future::pending().await
    }
}

async fn serve(listener: TcpListener, shown: Shown, view: AgentView) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MOST_CLIENTS => match accepted {
                Ok((stream, _)) => {
                    clients.spawn(tokio::time::timeout(PATIENCE, client(stream, shown, view.clone())));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn client(stream: TcpStream, shown: Shown, view: AgentView) {
    let answer = service_fn(|request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(answer(&request, shown, &view)))
    });
    // A client that has gone needs no answer.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

fn answer(request: &Request<Incoming>, shown: Shown, view: &AgentView) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let path = request.uri().path().trim_end_matches('/');
    let (status, kind, body) = match (request.method(), path, shown) {
        (&Method::GET | &Method::HEAD, "/healthz", _) => match view.health() {
            Ok(()) => (StatusCode::OK, TEXT, "ok".to_owned()),
            Err(reason) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, reason + "\n"),
        },
        (&Method::GET | &Method::HEAD, "/pods", Shown::HealthAndPods) => {
            (StatusCode::OK, "application/json", pod_json::list(&view.pod_list()))
        }
        (&Method::GET | &Method::HEAD, _, _) => {
            (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned())
        }
        (_, _, _) => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "Method Not Allowed\n".to_owned()),
    };
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
