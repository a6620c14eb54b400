//! Why a client gets no URL.

use std::{io, net::SocketAddr, sync::Arc};

use super::token::Full;

/// Why there is no URL for a stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UrlError {
    /// Too many tokens wait for their clients.
    #[error(transparent)]
    Full(#[from] Full),
    /// The port is taken, or not allowed.
    #[error("there is no stream server: it could not listen on {address}")]
    NotListening {
        address: SocketAddr,
        source: Arc<io::Error>,
    },
}
