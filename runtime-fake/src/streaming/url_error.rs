//! The error for clients that get no URL.

use std::{io, net::SocketAddr, sync::Arc};

use super::token::Full;

/// Why no URL can be issued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UrlError {
    /// There are too many unused tokens.
    #[error(transparent)]
    Full(#[from] Full),
    /// The server could not bind its address.
    #[error("there is no stream server: it could not listen on {address}")]
    NotListening { address: SocketAddr, source: Arc<io::Error> },
}
