//! Tokens for requests: each is valid once, for a minute, at the path of its kind (Kubernetes 1.36,
//! `k8s.io/cri-streaming`, request_cache) ◆

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long an unused token is valid.
const LIFE: Duration = Duration::from_secs(60);
/// Limit on unused tokens.
const MAX: usize = 1000;

/// There are too many unused tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX} URLs for exec, attach and port-forward are unused: use them, or retry in a minute")]
pub(crate) struct TooManyTokens;

/// Why no URL can be issued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UrlError {
    /// There are too many unused tokens.
    #[error(transparent)]
    TooManyTokens(#[from] TooManyTokens),
    /// The server could not bind its address.
    #[error("stream server is unavailable: failed to listen on {address}")]
    NotListening { address: SocketAddr, source: Arc<io::Error> },
}

/// The kind of request that a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Exec,
    Attach,
    PortForward,
}

impl Kind {
    /// The first part of the path, the same as in other runtimes.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

/// Requests by token.
#[derive(Debug)]
pub(crate) struct Tokens<T>(HashMap<String, (Kind, T, Instant)>);

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Tokens<T> {
    /// Stores a request under `token`, which is random.
    pub(crate) fn add(
        &mut self,
        token: String,
        kind: Kind,
        request: T,
        now: Instant,
    ) -> Result<(), TooManyTokens> {
        if self.0.len() >= MAX {
            self.0.retain(|_, (_, _, given)| fresh(*given, now));
        }
        if self.0.len() >= MAX {
            return Err(TooManyTokens);
        }
        self.0.insert(token, (kind, request, now));
        Ok(())
    }

    /// Redeems the token in `path`, once. A token is invalid at another kind's path.
    pub(crate) fn redeem(&mut self, path: &str, now: Instant) -> Option<T> {
        let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
        let (have, ..) = self.0.get(token)?;
        if have.path() != kind {
            return None;
        }
        let (_, request, given) = self.0.remove(token)?;
        fresh(given, now).then_some(request)
    }
}

fn fresh(given: Instant, now: Instant) -> bool {
    now.saturating_duration_since(given) < LIFE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn tokens(count: usize, now: Instant) -> Tokens<usize> {
        let mut tokens = Tokens::default();
        for n in 0..count {
            tokens.add(n.to_string(), Kind::Exec, n, now).unwrap();
        }
        tokens
    }

    #[test]
    fn token_redeems_once() {
        let now = Instant::now();
        let mut tokens = tokens(3, now);
        assert_eq!(tokens.redeem("/exec/1", now), Some(1));
        assert_eq!(tokens.redeem("/exec/1", now), None);
        assert_eq!(tokens.redeem("/exec/2", now), Some(2));
    }

    #[test]
    fn token_redeems_for_its_path_only() {
        let now = Instant::now();
        let mut tokens = tokens(1, now);
        for path in [
            "",
            "/",
            "/exec",
            "/exec/",
            "exec/0",
            "/attach/0",
            "/exec/0/",
            "//exec/0",
            "/exec//0",
            "/Exec/0",
            "/portforward/0",
            "/exec/1",
            "/0",
            "0",
        ] {
            assert_eq!(tokens.redeem(path, now), None, "{path}");
        }
        assert_eq!(tokens.redeem("/exec/0", now), Some(0));
    }

    #[test]
    fn token_expires_after_one_minute() {
        let now = Instant::now();
        let mut tokens = tokens(2, now);
        let nearly = now + Duration::from_secs(59);
        assert_eq!(tokens.redeem("/exec/0", nearly), Some(0));
        let late = now + Duration::from_secs(60);
        assert_eq!(tokens.redeem("/exec/1", late), None);
    }

    #[test]
    fn tokens_are_limited_in_number() {
        let now = Instant::now();
        let mut tokens = tokens(MAX, now);
        let more = |tokens: &mut Tokens<usize>, now| tokens.add("x".into(), Kind::Attach, 0, now);
        assert_eq!(more(&mut tokens, now), Err(TooManyTokens));
        assert_eq!(tokens.redeem("/exec/7", now), Some(7));
        assert_eq!(more(&mut tokens, now), Ok(()));
        // Expired tokens make room.
        assert_eq!(more(&mut tokens, now + LIFE), Ok(()));
        assert_eq!(tokens.redeem("/exec/8", now + LIFE), None);
        assert_eq!(tokens.redeem("/attach/x", now + LIFE), Some(0));
    }
}
