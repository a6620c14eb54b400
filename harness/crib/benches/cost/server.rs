//! Serves the scripted runtime from a separate process, so that the benchmark's process contains only the agent. The process also
//! has the target of probes: a server that answers every HTTP request with 200.

use std::convert::Infallible;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cri::v1;
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::Failed;
use crate::runtime::Runtime;

/// The first argument of the process; the second one is the socket.
const SERVER: &str = "--serve-scripted-runtime";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

/// Serves and never returns if this is the server's process.
pub(crate) fn become_server() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(SERVER) {
        return;
    }
    let socket = arguments.next().unwrap_or_default();
    let served = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failed::from)
        .and_then(|tokio| tokio.block_on(serve(Path::new(&socket))));
    std::process::exit(i32::from(served.is_err()));
}

/// A running server. It ends when this is dropped, or when the benchmark is killed.
pub(crate) struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    /// The port of the HTTP server.
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(socket: &Path) -> Result<Self, Failed> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(SERVER)
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(Self { child, stdin, port: line.trim().parse()? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

async fn serve(socket: &Path) -> Result<(), Failed> {
    let listener = UnixListener::bind(socket)?;
    let http = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(io::stdout(), "{}", http.local_addr()?.port())?;
    tokio::spawn(answer_http(http));
    let runtime: Shared = Arc::new(Mutex::new(Runtime::new()));
    let service = tower::service_fn(move |request| call(Arc::clone(&runtime), request));
    let serving = tonic::transport::Server::builder()
        .serve_with_incoming(service, UnixListenerStream::new(listener));
    // The benchmark holds the other end of standard input, which closes even if the benchmark is killed.
    let closed = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    tokio::select! {
        served = serving => served?,
        _ = closed => {}
    }
    Ok(())
}

async fn answer_http(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer_one(stream));
    }
}

async fn answer_one(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; 4096];
    if stream.read(&mut request).await? > 0 {
        stream.write_all(ANSWER).await?;
    }
    Ok(())
}

type Shared = Arc<Mutex<Runtime>>;

fn lock(runtime: &Shared) -> MutexGuard<'_, Runtime> {
    runtime.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles a call by its name; the agent makes only these calls.
async fn call(
    runtime: Shared,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let (_, method) = path.rsplit_once('/').unwrap_or_default();
    let r = &runtime;
    Ok(match method {
        "Version" => unary(request, |_: v1::VersionRequest| Ok(version())).await,
        "Status" => unary(request, |_: v1::StatusRequest| Ok(status())).await,
        "RunPodSandbox" => unary(request, |of| lock(r).run_sandbox(of)).await,
        "StopPodSandbox" => unary(request, |of| lock(r).stop_sandbox(of)).await,
        "RemovePodSandbox" => unary(request, |of| lock(r).remove_sandbox(of)).await,
        "PodSandboxStatus" => unary(request, |of| lock(r).sandbox_status(&of)).await,
        "ListPodSandbox" => unary(request, |of| lock(r).list_sandboxes(&of)).await,
        "CreateContainer" => unary(request, |of| lock(r).create_container(of)).await,
        "StartContainer" => unary(request, |of| lock(r).start_container(of)).await,
        "StopContainer" => unary(request, |of| lock(r).stop_container(&of)).await,
        "RemoveContainer" => unary(request, |of| lock(r).remove_container(&of)).await,
        "ContainerStatus" => unary(request, |of| lock(r).container_status(&of)).await,
        "ListContainers" => unary(request, |of| lock(r).list_containers(&of)).await,
        "ExecSync" => {
            unary(request, |_: v1::ExecSyncRequest| Ok(v1::ExecSyncResponse::default())).await
        }
        "ImageStatus" => unary(request, |of: v1::ImageStatusRequest| Ok(image_status(of))).await,
        "ListImages" => {
            unary(request, |_: v1::ListImagesRequest| Ok(v1::ListImagesResponse::default())).await
        }
        "ImageFsInfo" => {
            unary(request, |_: v1::ImageFsInfoRequest| Ok(v1::ImageFsInfoResponse::default())).await
        }
        "GetContainerEvents" => events(request, runtime).await,
        _ => Status::unimplemented(path).into_http(),
    })
}

async fn unary<Q, A>(
    request: http::Request<Body>,
    answer: impl Fn(Q) -> Result<A, Status>,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
{
    let service = tower::service_fn(|request: Request<Q>| {
        std::future::ready(answer(request.into_inner()).map(Response::new))
    });
    Grpc::new(ProstCodec::<A, Q>::default()).unary(service, request).await
}

async fn events(request: http::Request<Body>, runtime: Shared) -> http::Response<Body> {
    let service = tower::service_fn(|_: Request<v1::GetEventsRequest>| {
        let events = BroadcastStream::new(lock(&runtime).events());
        let events = events.map(|event| event.map_err(|lost| Status::data_loss(lost.to_string())));
        std::future::ready(Ok(Response::new(events)))
    });
    Grpc::new(ProstCodec::<v1::ContainerEventResponse, v1::GetEventsRequest>::default())
        .server_streaming(service, request)
        .await
}

fn version() -> v1::VersionResponse {
    v1::VersionResponse {
        version: "0.1.0".to_owned(),
        runtime_name: "scripted".to_owned(),
        runtime_version: "1".to_owned(),
        runtime_api_version: "v1".to_owned(),
    }
}

fn status() -> v1::StatusResponse {
    let conditions = ["RuntimeReady", "NetworkReady"].map(|kind| v1::RuntimeCondition {
        r#type: kind.to_owned(),
        status: true,
        ..Default::default()
    });
    v1::StatusResponse {
        status: Some(v1::RuntimeStatus { conditions: conditions.into() }),
        ..Default::default()
    }
}

/// Every image is present.
fn image_status(request: v1::ImageStatusRequest) -> v1::ImageStatusResponse {
    let name = request.image.unwrap_or_default().image;
    v1::ImageStatusResponse {
        image: Some(v1::Image {
            id: name.clone(),
            repo_tags: vec![name],
            size: 1,
            ..Default::default()
        }),
        ..Default::default()
    }
}
