//! The daemon: opens the state, reconciles it, serves, and shuts down in order.

mod connections;
mod deadline;
mod routes;

use std::{path::Path, sync::Arc, time::Duration};

use cri::{
    files::files_server::FilesServer as FilesGrpc,
    services::services_server::ServicesServer as ServicesGrpc,
    v1::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};
use file_tree::RemoveError;
use keeper::kernel::cgroup::Cgroups;
use tokio::net::UnixListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::Config,
    isolation::Isolation,
    recovery,
    runtime::{Network, Pods, Program, Runtime, blocking},
    security_modules::Modules,
    service::{
        CriService, EncodedLists, files::FilesServer, image::ImageServer, services::ServicesServer,
    },
    store::{self, OpenError, Store},
    streaming,
};
use connections::Admission;
use deadline::Deadline;
use image::Puller;
use image::{ImageError, ImageOptions, ImageStore};
use routes::Routes;

/// Limit on a message in either direction, the same as in a kubelet's client.
const MAX_MESSAGE: usize = 16 << 20;

/// Timeout for running calls at shutdown.
const DRAIN: Duration = Duration::from_secs(4);
/// Timeout at shutdown for operations whose client has disconnected. The next daemon finishes the rest.
const FINISH: Duration = Duration::from_secs(3);
/// Timeout for the removal of all pods.
const REMOVE: Duration = Duration::from_secs(20);
/// Timeout for the removal of cgroups and bridge.
const CLOSE: Duration = Duration::from_secs(2);

/// Upper bound on the duration of a shutdown, even if parts of it hang. With ephemeral pods it includes their removal.
#[must_use]
pub const fn max_shutdown_duration(ephemeral: bool) -> Duration {
    Duration::from_secs(if ephemeral { 30 } else { 10 })
}

/// Why the daemon failed to run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The state directory is unusable.
    #[error(transparent)]
    State(#[from] OpenError),
    /// The image store is unusable.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// CNI plugins cannot be used.
    #[error(
        "CNI plugins connect network namespaces, and there are none with isolation `process`: leave the CNI directory out, or use another isolation"
    )]
    NoCni,
    /// The stream server failed to start.
    #[error("failed to serve exec, attach and port-forward")]
    Streams(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Serves the Container Runtime Interface on `listener` until `shutdown`.
///
/// Pods outlive it, and the next daemon with the same state directory finds them again, unless they are ephemeral in `config`:
/// then they are removed when this returns, and [`delete_trash`] deletes their files.
///
/// # Errors
/// When the state directory or the image store is unusable.
pub async fn serve(
    listener: UnixListener,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    if config.cni.is_some() && config.isolation == Isolation::Process {
        return Err(ServeError::NoCni);
    }
    let (directory, state) = store::open(&config.state_dir)?;
    let connected = recovery::connected(&config.state_dir, &state);
    // Two independent halves: the bridge waits for the kernel, the rest reads files.
    let network = blocking({
        let config = config.clone();
        move || {
            let private = crate::keepers::private_bridge_namespace(&config.state_dir);
            Network::open(&crate::runtime::network_options(&config), connected, private)
        }
    });
    let rest = blocking({
        let config = config.clone();
        move || {
            let root = nix::unistd::geteuid().is_root();
            let rules = root && !matches!(config.isolation, Isolation::Rootless { .. });
            let cgroups = Cgroups::open(crate::instance_name(&config.state_dir), rules);
            let images = open_images(&config, &cgroups);
            let isolation = config.isolation.mode();
            let modules = Modules::open(&config.kernel_files, isolation, config.selinux);
            (cgroups, images, modules)
        }
    });
    let (network, (cgroups, images, modules)) = tokio::join!(network, rest);
    let images = match images {
        Ok(images) => images,
        Err(error) => {
            blocking(move || network.close()).await;
            return Err(error.into());
        }
    };
    tracing::info!(cgroups = cgroups.describe(), "found");
    let runtime = Runtime {
        modules: Arc::new(modules),
        cgroups: Arc::new(cgroups),
        trash: directory.trash(),
        store: Store::start(directory, state),
        images: Arc::new(images),
        network: Arc::new(network),
        pods: Arc::new(Pods::new(Program::own(), config.deadlines)),
        rates: Arc::default(),
        layer_usages: Arc::default(),
        filters: Arc::default(),
        tasks: TaskTracker::new(),
        services: Arc::default(),
        stopping: CancellationToken::new(),
        copies: Arc::default(),
        checkpoints: Arc::default(),
        class_weights: Arc::default(),
        config: Arc::new(config),
    };
    recovery::reconcile(&runtime).await;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        isolation = %runtime.config.isolation,
        state_dir = %runtime.config.state_dir.display(),
        "serving"
    );
    let streams = streaming::Server::listen(runtime.config.streams.address)
        .await
        .map_err(|error| ServeError::Streams(error.into()))?;
    let runtime_service =
        RuntimeServiceServer::new(CriService::new(runtime.clone(), streams.streams()));
    let measured = runtime.clone();
    let image_service = ImageServiceServer::new(ImageServer::new(
        runtime.images.clone(),
        Arc::new(puller(&runtime)),
        Arc::new(move || measured.container_filesystem()),
    ));
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<RuntimeServiceServer<CriService>>().await;
    health.set_serving::<ImageServiceServer<ImageServer>>().await;
    let services_service = ServicesGrpc::new(ServicesServer::new(runtime.clone()));
    let services = Routes::default()
        .with(
            runtime_service
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        )
        .with(
            image_service
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        )
        .with(FilesGrpc::new(FilesServer::new(runtime.clone())))
        .with(services_service.max_decoding_message_size(MAX_MESSAGE))
        .with(health_service);
    let services = EncodedLists::new(services, runtime.store.clone(), MAX_MESSAGE);
    let admission = admission(&runtime.config);
    let pods = runtime.pods.clone();
    tasks::spawn(async move { pods.zygote().warm_up().await });
    let network = runtime.network.clone();
    tasks::spawn(blocking(move || network.egress_mode(false)));
    let stop = runtime.stopping.clone();
    let settings = runtime.config.streams;
    let target = Arc::new(runtime.clone());
    tokio::select! {
        () = connections::serve(listener, admission, Deadline(services), stop) => {}
        // Dropped with the other branches, which ends every stream.
        () = streams.serve(settings, target, runtime.tasks.clone()) => {}
        // Event streams would prevent the server from stopping, so they end first. The shutdown does not wait for clients of slow
        // calls (for example, with a long grace period).
        () = drain_timeout(&shutdown, &runtime) => {}
    }
    shut_down(runtime).await;
    Ok(())
}

/// Deletes the files of removed pods and images below a state directory that no daemon uses. The next daemon
/// would delete them in the background.
///
/// # Errors
/// The first file that could not be deleted; everything else is deleted.
pub fn delete_trash(state_dir: &Path) -> Result<(), RemoveError> {
    let trash = ["trash", "images/trash"].map(|name| file_tree::remove(&state_dir.join(name)));
    trash.into_iter().collect()
}

async fn drain_timeout(shutdown: &CancellationToken, runtime: &Runtime) {
    shutdown.cancelled().await;
    runtime.stopping.cancel();
    tokio::time::sleep(DRAIN).await;
}

/// The id that the kernel shows for a user who is not mapped (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;

fn admission(config: &Config) -> Admission {
    Admission {
        own: nix::unistd::geteuid().as_raw(),
        group: config.socket_group,
        unmapped: matches!(config.isolation, Isolation::Rootless { .. }).then_some(OVERFLOW_UID),
        socket: config.socket.clone(),
    }
}

/// Shuts down in steps. Each has its own timeout, so that a hanging step does not block the others.
async fn shut_down(runtime: Runtime) {
    runtime.tasks.close();
    let tasks = runtime.tasks.clone();
    with_timeout(FINISH, "finish all operations", tasks.wait()).await;
    if runtime.config.ephemeral {
        with_timeout(REMOVE, "remove all pods", remove_all_pods(&runtime)).await;
    }
    with_timeout(CLOSE, "end the zygote", runtime.pods.zygote().close()).await;
    let Runtime { network, cgroups, images, trash, .. } = runtime;
    let delete = blocking(move || {
        images.close();
        // The next daemon, or a call of `delete_trash`, resumes the deletion.
        trash.stop();
    });
    with_timeout(CLOSE, "stop deleting", delete).await;
    let close = blocking(move || {
        cgroups.close();
        // Closed explicitly, because a connection that a client keeps open also holds the network.
        network.close();
    });
    with_timeout(CLOSE, "close the network", close).await;
    tracing::info!("stopped");
}

async fn with_timeout(bound: Duration, what: &str, work: impl Future<Output = ()>) {
    if tokio::time::timeout(bound, work).await.is_err() {
        tracing::warn!(?bound, "failed to {what} in time: the next start continues");
    }
}

async fn remove_all_pods(runtime: &Runtime) {
    let ids: Vec<_> = runtime.store.state().sandboxes.keys().cloned().collect();
    let mut removals = tokio::task::JoinSet::new();
    for id in ids {
        let runtime = runtime.clone();
        removals.spawn(tasks::boxed(async move {
            if let Err(error) = runtime.remove_sandbox(id.as_str()).await {
                tracing::error!(
                    sandbox = id.short(),
                    error = crate::chain(&error),
                    "failed to remove"
                );
            }
        }));
    }
    while removals.join_next().await.is_some() {}
}

fn puller(runtime: &Runtime) -> Puller {
    Puller::new(
        runtime.images.clone(),
        runtime.config.registries.clone(),
        runtime.tasks.clone(),
        runtime.stopping.clone(),
    )
}

fn open_images(config: &Config, cgroups: &Cgroups) -> Result<ImageStore, ImageError> {
    let (in_user_namespace, single_id) = match config.isolation {
        Isolation::Root => (false, false),
        Isolation::Rootless { ids } => (true, ids == 1),
        Isolation::Process => (false, nix::unistd::geteuid().as_raw() != 0),
    };
    ImageStore::open(ImageOptions {
        in_user_namespace,
        single_id,
        device_nodes: cgroups.restrict_devices(),
        archives: config.image_archives.clone(),
        scripts: config.scripts.clone(),
        ..ImageOptions::new(config.state_dir.join("images"))
    })
}
