//! `crib registry`: an image registry for pulls and pushes.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use crib_base::args::listen_address;
use crib_base::exit::Exit;
use crib_base::logging::{self, LogArgs};
use crib_base::report::{error_to_exit, event_loop, io_error_to_exit, message_to_exit};
use crib_base::signals::{Signals, end_of_stdin};
use registry::{Auth, Registry};
use tokio::runtime::Builder;

/// Serve an image registry
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib registry --listen 127.0.0.1:5000 --root /var/lib/registry
  crib registry --load busybox.tar --load layouts/ --load app.tar=registry.k8s.io/app:1
  crib registry --tls --ca-file ca.pem --auth bearer:me:secret

When the registry is ready, it prints `listening on http://ADDRESS`, or https://ADDRESS with --tls. Clients can pull an \
image that was loaded as registry.k8s.io/app:1 as ADDRESS/registry.k8s.io/app:1, or with this registry as a mirror \
(?ns=registry.k8s.io). Clients can also pull the image registry.k8s.io/app:1 as ADDRESS/app:1, unless a different image was \
loaded as app:1 of another registry.")]
pub(crate) struct RegistryArgs {
    /// Address to listen on; :PORT listens on all addresses of this host
    #[arg(long, value_name = "[HOST]:PORT", default_value = "127.0.0.1:0", value_parser = listen_address)]
    listen: SocketAddr,
    /// Directory for images, stored as an OCI layout [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Load the images of an OCI layout, an OCI or docker archive, or a directory of layouts and archives; repeatable
    #[arg(long, value_name = "PATH[=NAME:TAG]")]
    load: Vec<String>,
    /// Authentication that clients need: basic:USER:PASSWORD, bearer, or bearer:USER:PASSWORD
    #[arg(long, value_name = "KIND[:USER:PASSWORD]")]
    auth: Option<Auth>,
    /// Serve TLS with a certificate from a generated CA
    #[arg(long)]
    tls: bool,
    /// Write the CA certificate to this file
    #[arg(long, value_name = "FILE", requires = "tls")]
    ca_file: Option<PathBuf>,
    /// Write the registry's address to this file when the registry is ready
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Exit when standard input is closed
    #[arg(long)]
    until_stdin_closes: bool,
    #[command(flatten)]
    log: LogArgs,
}

/// Serves until a signal or, with --until-stdin-closes, the end of standard input.
pub(crate) fn run(args: &RegistryArgs) -> Result<Exit, Exit> {
    logging::to_stderr(args.log);
    let tokio = event_loop(Builder::new_multi_thread().worker_threads(2), 6)?;
    crib_base::limits::serve_on();
    let ended = tokio.block_on(serve(args));
    tokio.shutdown_background();
    ended
}

async fn serve(args: &RegistryArgs) -> Result<Exit, Exit> {
    // Before any resource exists that needs cleaning up.
    let mut signals = io_error_to_exit("listen for signals", Signals::listen())?;
    let mut options =
        Registry::with().listen(args.listen).auth(args.auth.clone().unwrap_or_default());
    if let Some(root) = &args.root {
        options = options.root(root);
    }
    if args.tls {
        options = options.tls();
    }
    let registry = error_to_exit(options.start().await, Exit::NoRuntime)?;
    let ended = serve_images(args, &registry, &mut signals).await;
    registry.stop().await;
    ended
}

async fn serve_images(
    args: &RegistryArgs,
    registry: &Registry,
    signals: &mut Signals,
) -> Result<Exit, Exit> {
    for load in &args.load {
        let (path, name) = path_and_name(load);
        let loaded = tokio::select! {
            loaded = registry.load_interruptibly(path, name) => loaded,
            cause = signals.next() => {
                tracing::info!(cause, "ending");
                return Ok(Exit::Success);
            }
        };
        for name in error_to_exit(loaded, Exit::BadInput)? {
            tracing::info!(image = name, from = %path.display(), "loaded");
        }
    }
    message_to_exit(announce(args, registry), Exit::NoRuntime)?;
    let closed = async {
        match args.until_stdin_closes {
            true => end_of_stdin().await,
            false => std::future::pending().await,
        }
    };
    let cause = tokio::select! {
        cause = signals.next() => cause,
        () = closed => "standard input was closed",
    };
    tracing::info!(cause, "ending");
    Ok(Exit::Success)
}

/// Writes the CA file, the ready file and the line on standard output, in this order.
fn announce(args: &RegistryArgs, registry: &Registry) -> Result<(), String> {
    let write = |file: &Path, text: &str| {
        std::fs::write(file, text)
            .map_err(|error| format!("failed to write {}: {error}", file.display()))
    };
    if let Some((file, ca)) = args.ca_file.as_deref().zip(registry.ca()) {
        write(file, ca)?;
    }
    if let Some(file) = &args.ready_file {
        let text = format!("{}\n", registry.host());
        let kind = file.metadata().map(|found| found.file_type());
        // A rename would replace a FIFO or a device.
        if kind.as_ref().is_ok_and(FileTypeExt::is_fifo) {
            write_to_reader(file.clone(), text)?;
        } else if kind.is_ok_and(|kind| !kind.is_file()) {
            write(file, &text)?;
        } else {
            // Renamed into place, so that no reader sees an incomplete file.
            let mut unfinished = file.clone().into_os_string();
            unfinished.push(".new");
            write(Path::new(&unfinished), &text)?;
            std::fs::rename(&unfinished, file)
                .map_err(|error| format!("failed to write {}: {error}", file.display()))?;
        }
    }
    writeln!(std::io::stdout(), "listening on {}", registry.url())
        .map_err(|error| format!("failed to write to standard output: {error}"))
}

/// Writes to a FIFO when it has a reader, on a separate thread, so that the registry is not blocked.
fn write_to_reader(file: PathBuf, text: String) -> Result<(), String> {
    let writing = move || {
        if let Err(error) = std::fs::write(&file, text) {
            tracing::warn!(file = %file.display(), %error, "failed to write the ready file");
        }
    };
    let thread = std::thread::Builder::new().spawn(writing);
    thread.map(drop).map_err(|error| format!("failed to start a thread: {error}"))
}

/// Splits `PATH=NAME:TAG`, unless a file with the whole name exists.
pub(crate) fn path_and_name(text: &str) -> (&Path, Option<&str>) {
    match text.split_once('=') {
        Some((path, name)) if !Path::new(text).exists() => (Path::new(path), Some(name)),
        Some(_) | None => (Path::new(text), None),
    }
}
