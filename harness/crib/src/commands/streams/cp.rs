//! `crib cp`: copies files into and out of containers.

mod end;
mod file_service;
mod progress;
mod tar_exec;

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cri::files::ReadRequest;
use file_copy::{ChunkReader, ChunkWriter, CopyError, Destination, Notes, Root, Side, Source, Top};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::Endpoints;
use crate::client::find::ContainerNameArgs;
use crate::commands::prelude::*;
use crate::objects::workload_pods::Best;
use crate::stream::{TransportArgs, standard_input};

use end::{End, InContainer};
use progress::Progress;

/// Copy files and directories into containers, or out of containers
#[derive(Debug, Args)]
#[command(
    override_usage = "\
crib cp [OPTIONS] <[NAMESPACE/]POD:PATH> <LOCAL>
       crib cp [OPTIONS] <LOCAL> <[NAMESPACE/]POD:PATH>",
    after_help = with_codes("\
Examples:
  crib cp web:/var/log/app.log .
  crib cp ./site shop/web:/srv -c nginx
  crib cp ./site/. web:/srv              the contents of the directory
  crib cp web:/etc - | tar -t            as a tar archive

If the destination is an existing directory, the copy is created in the directory, as with cp. A local path that contains a \
colon must begin with / or a dot. Relative paths in a container are relative to the container's working directory.

With crib's runtime, the image needs no tar, and files copied into a container are owned by the container's user. With other \
runtimes, `crib cp` runs tar in the container, as with kubectl. Copies keep modes, times and links. When copying to a \
directory on this machine, crib drops set-user-ID, set-group-ID and sticky bits, and skips symbolic links that point outside \
the copied tree.")
)]
pub(crate) struct CpArgs {
    /// Local path, POD:PATH, or - for a tar archive on standard input
    #[arg(value_name = "SOURCE")]
    from: String,
    /// Local path, POD:PATH, or - for a tar archive on standard output
    #[arg(value_name = "DESTINATION")]
    to: String,
    #[command(flatten)]
    container_name: ContainerNameArgs,
    /// Namespace of the pod [default: any]
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    streaming: TransportArgs,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// A container, and how its files are copied.
struct TargetContainer<'a> {
    cri: &'a Cri,
    id: String,
    /// Whether the runtime implements the copy calls.
    has_file_service: bool,
}

/// Copies the files.
pub(crate) async fn run(args: &CpArgs) -> Result<Exit, CallError> {
    let usage = |message: &str| Err(CallError::Usage(message.to_owned()));
    let (from, to) = (end::parse(&args.from)?, end::parse(&args.to)?);
    match (from, to) {
        (End::InContainer(from), End::InContainer(_)) => {
            let InContainer { container, .. } = from;
            usage(&format!(
                "one side must be a local path: copy from {container:?} to a local path first"
            ))
        }
        (End::InContainer(_), End::Standard) if io::stdout().is_terminal() => usage(
            "standard output is a terminal, and the archive is binary data: redirect the output",
        ),
        (End::InContainer(from), to) => {
            let all = args.connection.open_all()?;
            let container = resolve(&all, &from.container, args).await?;
            let notes = download(&container, &from.path, &to, args).await?;
            Ok(print_skipped(notes))
        }
        (from, End::InContainer(to)) => {
            let archive = Archive::of(&from)?;
            let all = args.connection.open_all()?;
            let container = resolve(&all, &to.container, args).await?;
            let notes = upload(&container, archive, &to.path, args).await?;
            Ok(print_skipped(notes))
        }
        (End::Local(_) | End::Standard, End::Local(_) | End::Standard) => {
            usage("one side must be in a container: write it as POD:PATH")
        }
    }
}

/// Prints what was skipped.
fn print_skipped(notes: Vec<String>) -> Exit {
    notes.iter().for_each(|note| print_stderr(&format!("skipped {note}")));
    Exit::Success
}

async fn resolve<'a>(
    all: &'a [Cri],
    name: &str,
    args: &CpArgs,
) -> Result<TargetContainer<'a>, CallError> {
    let namespace = args.namespace.as_deref();
    let found = find::container_of(all, name, &args.container_name, namespace, Best::ToConnect);
    let find::SelectedContainer { cri, container, .. } = found.await?;
    // A call without a container id: a runtime that implements the call returns an error other than UNIMPLEMENTED.
    let mut client = cri.runtime.files.clone();
    let probe = async { client.read(ReadRequest::default()).await };
    let has_file_service = match cri.call("Read", probe).await {
        Ok(_) => true,
        Err(CallError::Refused { status, .. }) => status.code() != tonic::Code::Unimplemented,
        Err(error) => return Err(error),
    };
    Ok(TargetContainer { cri, id: container.id, has_file_service })
}

async fn download(
    container: &TargetContainer<'_>,
    path: &str,
    to: &End,
    args: &CpArgs,
) -> Result<Vec<String>, CallError> {
    let name = Source::name(Path::new(path));
    let to = match to {
        End::Local(to) => Some(Destination::open(&Root::own(), to, &name)?),
        End::Standard | End::InContainer(_) => None,
    };
    let progress = Progress::new(path);
    if container.has_file_service {
        return file_service::read(
            container,
            path,
            Sink::new(to, Top::Named(name.into_encoded_bytes())),
            progress,
        )
        .await;
    }
    let from = tar_exec::From::find(container, path).await?;
    let sink = Sink::new(to, Top::Named(from.top().as_bytes().to_vec()));
    tar_exec::read(container, &from, sink, progress, args.streaming.transport()).await
}

async fn upload(
    container: &TargetContainer<'_>,
    archive: Archive,
    path: &str,
    args: &CpArgs,
) -> Result<Vec<String>, CallError> {
    let progress = Progress::new(path);
    match container.has_file_service {
        true => file_service::write(container, archive, path, progress).await,
        false => {
            let transport = args.streaming.transport();
            tar_exec::write(container, archive, path, progress, transport).await
        }
    }
}

/// The data to copy into a container.
enum Archive {
    /// A file or directory; packed once its name in the container is known.
    Local(PathBuf),
    /// A tar archive from standard input.
    Standard,
}

impl Archive {
    fn of(end: &End) -> Result<Self, CallError> {
        match end {
            End::Local(path) => {
                // Fails early, before any call to a runtime.
                Source::open(&Root::own(), path)?;
                Ok(Self::Local(path.clone()))
            }
            End::Standard | End::InContainer(_) => Ok(Self::Standard),
        }
    }

    /// The name of the copy; empty if the members are unpacked under their own names.
    fn name(&self) -> String {
        match self {
            Self::Local(path) => match Source::name(path) {
                name if name == "." => String::new(),
                name => name.to_string_lossy().into_owned(),
            },
            Self::Standard => String::new(),
        }
    }

    /// Starts packing, with the original name or the given one.
    fn begin(self, name: Option<&OsStr>) -> Result<Packing, CallError> {
        match self {
            Self::Local(path) => {
                let mut source = Source::open(&Root::own(), &path)?;
                if let Some(name) = name {
                    source.rename(name);
                }
                let (writer, chunks) = ChunkWriter::new();
                let packed = tasks::spawn_blocking(move || file_copy::pack(source, writer));
                Ok(Packing { chunks, packed: Some(packed) })
            }
            Self::Standard => Ok(Packing { chunks: standard_input(), packed: None }),
        }
    }
}

/// An archive that is being packed.
struct Packing {
    chunks: mpsc::Receiver<Bytes>,
    packed: Option<JoinHandle<Result<Notes, CopyError>>>,
}

impl Packing {
    /// Waits for the packing, and returns what was skipped. If reading a local file failed, the receiver's error is only a
    /// consequence.
    async fn ended(
        self,
        received: Result<Vec<String>, CallError>,
    ) -> Result<Vec<String>, CallError> {
        drop(self.chunks);
        let packed = match self.packed {
            Some(packed) => joined(packed).await,
            None => Ok(Notes::default()),
        };
        match packed {
            Err(CopyError::Receiver(_)) => received,
            Err(error) => Err(error.into()),
            Ok(notes) => Ok(notes.lines().into_iter().chain(received?).collect()),
        }
    }
}

/// The destination of an archive from a container.
struct Sink {
    /// `None`: standard output.
    chunks: Option<mpsc::Sender<io::Result<Bytes>>>,
    unpacked: Option<JoinHandle<Result<Notes, CopyError>>>,
}

impl Sink {
    fn new(to: Option<Destination>, top: Top) -> Self {
        let Some(to) = to else {
            return Self { chunks: None, unpacked: None };
        };
        let (reader, chunks) = ChunkReader::new();
        let unpack = move || file_copy::unpack(reader, to, top, Side::Host);
        let unpacked = Some(tasks::spawn_blocking(unpack));
        Self { chunks: Some(chunks), unpacked }
    }

    /// Consumes data; returns false if no more data is needed, in which case [`Self::ended`] returns the reason.
    async fn take(&self, bytes: Bytes) -> Result<bool, CallError> {
        match &self.chunks {
            Some(chunks) => Ok(chunks.send(Ok(bytes)).await.is_ok()),
            None => {
                io::stdout().write_all(&bytes).map_err(CallError::Output)?;
                Ok(true)
            }
        }
    }

    /// Waits for the unpacking, and returns what was skipped. The sender's error takes precedence over the error of a truncated
    /// archive.
    async fn ended(self, sent: Result<Vec<String>, CallError>) -> Result<Vec<String>, CallError> {
        if let (Some(chunks), Err(_)) = (&self.chunks, &sent) {
            // The received data is incomplete.
            let _ = chunks.send(Err(io::Error::other("failed to read the data to copy"))).await;
        }
        drop(self.chunks);
        let unpacked = match self.unpacked {
            Some(unpacked) => joined(unpacked).await,
            None => io::stdout().flush().map(|()| Notes::default()).map_err(CopyError::Receiver),
        };
        let sent = sent?;
        Ok(sent.into_iter().chain(unpacked?.lines()).collect())
    }
}

async fn joined(copy: JoinHandle<Result<Notes, CopyError>>) -> Result<Notes, CopyError> {
    match copy.await {
        Ok(ended) => ended,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CopyError::Receiver(io::Error::other(error))),
        },
    }
}
