//! The only mapping from errors to gRPC codes. A message is an error with all its causes.

use std::io;

use file_copy::CopyError;
use image::PullError;
use image::{ContentError, ImageError};
use keeper::kernel::failure::FailureKind;
use network::{NetError, cni::CniError};
use tonic::{Code, Status};

use crate::runtime::{Error, PortError};
use crate::store::StateError;
use crate::streaming::token::UrlError;

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid(_) | Error::Limit(_) => Code::InvalidArgument,
            Error::State(refused) => refusal(refused),
            Error::Image(error) => image(error),
            Error::Keeper(failure) => match failure.kind {
                FailureKind::Invalid => Code::InvalidArgument,
                FailureKind::NotFound => Code::NotFound,
                FailureKind::WrongState | FailureKind::NotRestored | FailureKind::NotInstalled => {
                    Code::FailedPrecondition
                }
                FailureKind::Silent => Code::DeadlineExceeded,
                FailureKind::Disconnected => Code::Unavailable,
                FailureKind::NoOverlay
                | FailureKind::TooManyLayers
                | FailureKind::NoIdMap
                | FailureKind::System => Code::Internal,
            },
            Error::NoUrl(UrlError::TooManyTokens(_)) => Code::ResourceExhausted,
            Error::NoUrl(UrlError::NotListening { .. }) => Code::FailedPrecondition,
            Error::Unable(_) | Error::NoNetwork(_) => Code::FailedPrecondition,
            Error::Timeout { .. } => Code::DeadlineExceeded,
            Error::Io { source, .. } => system(source.kind()),
            Error::Copy(error) => copy(error),
            Error::NoAnswer(_) | Error::Unreachable { .. } => Code::Unavailable,
            Error::Cgroup(failed) if failed.is_the_clients() => Code::InvalidArgument,
            Error::Net { source, .. } => net(source),
            Error::Cgroup(_) | Error::Scripted(_) => Code::Internal,
            Error::Cni { source, .. } => cni(source),
            Error::Port(error) => port(error),
        };
        Self::new(code, message(&error))
    }
}

/// Limit on a message: it is sent in a header, and clients reject long ones (16 KiB by default with Go and
/// hyper).
const LONGEST: usize = 2048;

/// An error with its causes. Truncated if a client's request made it too long.
fn message(error: &dyn std::error::Error) -> String {
    let mut text = crate::chain(error);
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text += " … (cut)";
    }
    text
}

fn refusal(refused: &StateError) -> Code {
    match refused {
        StateError::NoSandbox(_) | StateError::NoContainer(_) => Code::NotFound,
        StateError::Ambiguous(_) => Code::InvalidArgument,
        StateError::NameTaken { .. } => Code::AlreadyExists,
        StateError::SandboxNotReady { .. } | StateError::WrongState { .. } => {
            Code::FailedPrecondition
        }
        StateError::NotSaved { kind, .. } => system(*kind),
        StateError::ShuttingDown => Code::Unavailable,
    }
}

fn net(error: &NetError) -> Code {
    match error {
        NetError::Full { .. } | NetError::NoPorts { .. } => Code::ResourceExhausted,
        NetError::NoIpv4 | NetError::NoRedirection | NetError::Inside { .. } => {
            Code::FailedPrecondition
        }
        NetError::Netlink(_)
        | NetError::Namespace { .. }
        | NetError::BridgeName { .. }
        | NetError::NotABridge { .. }
        | NetError::SubnetClaimed { .. }
        | NetError::SubnetLock { .. }
        | NetError::SubnetLocks(_)
        | NetError::NoSubnet { .. }
        | NetError::Address(_)
        | NetError::Vanished { .. }
        | NetError::NotForwarding { .. }
        | NetError::Cleanup { .. }
        | NetError::Sources(_)
        | NetError::StillAttached { .. } => Code::Internal,
    }
}

fn cni(error: &CniError) -> Code {
    match error {
        CniError::NotConfigured { .. } => Code::FailedPrecondition,
        _ if error.try_again() => Code::Unavailable,
        CniError::Plugin(_)
        | CniError::PodEnded { .. }
        | CniError::NoInterface { .. }
        | CniError::Interfaces(_)
        | CniError::NoAddress { .. }
        | CniError::Answer { .. }
        | CniError::Undo { .. } => Code::Internal,
        CniError::Io { source, .. } => system(source.kind()),
    }
}

fn port(error: &PortError) -> Code {
    match error {
        PortError::Taken { .. } => Code::FailedPrecondition,
        PortError::Privileged { .. } => Code::PermissionDenied,
        PortError::NoAddress { .. } | PortError::NoTransport { .. } => Code::InvalidArgument,
        PortError::Io { source, .. } => system(source.kind()),
    }
}

fn image(error: &ImageError) -> Code {
    match error {
        ImageError::Reference { .. } | ImageError::Script { .. } => Code::InvalidArgument,
        ImageError::NotFound { .. }
        | ImageError::NotFoundUnreadable { .. }
        | ImageError::Absent { .. } => Code::NotFound,
        ImageError::Archive { source: ContentError::Io { source, .. }, .. }
        | ImageError::Store { source, .. } => system(source.kind()),
        ImageError::Full { .. } => Code::ResourceExhausted,
        ImageError::Unpack { source: ContentError::Io { source, .. } } => system(source.kind()),
        ImageError::Registry(failure) => pull(&failure.source),
        // A retry fails until the archive changes.
        ImageError::Archive { .. } | ImageError::Unpack { .. } => Code::FailedPrecondition,
    }
}

fn pull(error: &PullError) -> Code {
    match error {
        PullError::Unreachable { .. }
        | PullError::Broken { .. }
        | PullError::ServerError { .. } => Code::Unavailable,
        PullError::Unauthenticated { .. } => Code::Unauthenticated,
        PullError::Denied { .. } => Code::PermissionDenied,
        PullError::NotFound { .. } => Code::NotFound,
        PullError::Stalled { .. } | PullError::Dripping { .. } => Code::DeadlineExceeded,
        PullError::Cancelled => Code::Cancelled,
        // A retry fails until the registry or the settings change.
        PullError::Refused { .. }
        | PullError::Content { .. }
        | PullError::Credentials { .. }
        | PullError::Settings { .. } => Code::FailedPrecondition,
        PullError::Io { source, .. } => system(source.kind()),
    }
}

fn copy(error: &CopyError) -> Code {
    match error {
        CopyError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Code::NotFound,
        CopyError::Io { source, .. } if system(source.kind()) == Code::ResourceExhausted => {
            Code::ResourceExhausted
        }
        // Errors that a container's files and mounts cause are not errors of the daemon.
        CopyError::Io { .. } => Code::FailedPrecondition,
        CopyError::Refused { .. } => Code::FailedPrecondition,
        CopyError::Archive(_) => Code::InvalidArgument,
        CopyError::Receiver(_) => Code::Cancelled,
    }
}

fn system(kind: io::ErrorKind) -> Code {
    let full =
        [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::OutOfMemory];
    if full.contains(&kind) { Code::ResourceExhausted } else { Code::Internal }
}
