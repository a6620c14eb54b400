//! Connections to a server, as the client that this is at present: with another certificate, it makes others.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fetch::pki_types::{CertificateDer, ServerName};
use fetch::{Client, Identity, Options, TlsError};

use super::any_server::any_server;
use super::exec_credential::Credential;
use super::kubeconfig::{Connection, Trust};

/// The limit of a connection attempt (client-go's).
const CONNECT: Duration = Duration::from_secs(30);

/// Connections to one server.
#[derive(Debug)]
pub(crate) struct Transport {
    trust: Trust,
    server_name: Option<ServerName<'static>>,
    proxy: Option<String>,
    now: RwLock<Now>,
}

#[derive(Debug)]
struct Now {
    http: Client,
    /// The credential of a plugin whose certificate is used.
    credential: Option<Arc<Credential>>,
}

impl Transport {
    pub(crate) fn new(connection: &Connection) -> Result<Self, TlsError> {
        let trust = connection.trust.clone();
        let (server_name, proxy) = (connection.server_name.clone(), connection.proxy.clone());
        let identity = connection.identity.as_ref().map(cloned);
        let http = client(&trust, server_name.clone(), proxy.clone(), identity)?;
        let now = RwLock::new(Now { http, credential: None });
        Ok(Self { trust, server_name, proxy, now })
    }

    /// What sends requests now.
    pub(crate) fn http(&self) -> Client {
        self.now.read().unwrap_or_else(PoisonError::into_inner).http.clone()
    }

    /// Shows another certificate from now on. Requests that are under way keep their connections.
    pub(crate) fn use_identity(&self, identity: &Identity) -> Result<(), TlsError> {
        self.replace(identity, None)
    }

    /// Shows the certificate of a plugin's credential, if it has one.
    pub(crate) fn use_credential(&self, credential: &Arc<Credential>) -> Result<(), TlsError> {
        let Some(identity) = &credential.identity else {
            return Ok(());
        };
        let is_used = {
            let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
            now.credential.as_ref().is_some_and(|used| Arc::ptr_eq(used, credential))
        };
        if is_used { Ok(()) } else { self.replace(identity, Some(Arc::clone(credential))) }
    }

    fn replace(
        &self,
        identity: &Identity,
        credential: Option<Arc<Credential>>,
    ) -> Result<(), TlsError> {
        let identity = Some(cloned(identity));
        let http = client(&self.trust, self.server_name.clone(), self.proxy.clone(), identity)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Now { http, credential };
        Ok(())
    }
}

fn cloned(identity: &Identity) -> Identity {
    let certificates: Vec<CertificateDer<'static>> = identity.certificates.clone();
    Identity { certificates, key: identity.key.clone_key() }
}

fn client(
    trust: &Trust,
    server_name: Option<ServerName<'static>>,
    proxy: Option<String>,
    identity: Option<Identity>,
) -> Result<Client, TlsError> {
    let (roots, verifier) = match trust {
        Trust::System => (None, None),
        Trust::Roots(roots) => (Some(roots.clone()), None),
        Trust::Anyone => (None, Some(any_server())),
    };
    Client::new(Options {
        only_roots: roots.is_some(),
        roots: roots.unwrap_or_default(),
        verifier,
        identity,
        server_name,
        proxy,
        connect_timeout: Some(CONNECT),
        read_timeout: None,
    })
}
