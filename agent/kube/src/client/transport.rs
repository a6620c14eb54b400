//! Connections to a server, as the client that this is at present: with another certificate, or other
//! authorities, it makes others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use fetch::pki_types::{CertificateDer, ServerName};
use fetch::{Client, Identity, Options, TlsError};
use tokio::sync::watch;

use super::exec_credential::Credential;
use super::files::{Content, Files};
use super::insecure::insecure_verifier;
use super::kubeconfig::{Connection, Trust};

/// The limit of a connection attempt (client-go's).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections to one server.
#[derive(Debug)]
pub(crate) struct Transport {
    server_name: Option<ServerName<'static>>,
    proxy: Option<String>,
    files: Mutex<Files>,
    current: RwLock<Current>,
    /// Whether the client has its credentials.
    has_credentials: watch::Sender<bool>,
    /// The number of changes of the client certificate and of reconnects.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Current {
    http: Client,
    trust: Trust,
    identity: Option<Identity>,
    /// The credential of a plugin whose certificate is used.
    credential: Option<Arc<Credential>>,
}

impl Transport {
    /// Creates the transport. Without `has_credentials`, requests wait until [`Self::set_credentials`] is called.
    pub(crate) fn new(
        connection: &mut Connection,
        has_credentials: bool,
    ) -> Result<Self, TlsError> {
        let (server_name, proxy) = (connection.server_name.clone(), connection.proxy.clone());
        let (trust, identity) = (connection.trust.clone(), connection.identity.take());
        let http = client(&trust, server_name.clone(), proxy.clone(), identity.as_ref())?;
        let current = RwLock::new(Current { http, trust, identity, credential: None });
        let files = Mutex::new(std::mem::take(&mut connection.files));
        let has_credentials = watch::Sender::new(has_credentials);
        Ok(Self {
            server_name,
            proxy,
            files,
            current,
            has_credentials,
            changes: watch::Sender::default(),
        })
    }

    /// Waits until the client has its credentials.
    pub(crate) async fn wait_for_credentials(&self) {
        // The sender is here.
        let _ = self.has_credentials.subscribe().wait_for(|has_credentials| *has_credentials).await;
    }

    /// Notifies of a new client certificate and of a reconnect.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The current HTTP client.
    pub(crate) fn http(&self) -> Client {
        self.reload();
        self.read().http.clone()
    }

    /// The current client certificate.
    pub(crate) fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.read().identity.as_ref()?.certificates.first().cloned()
    }

    /// Replaces the credentials by those of another connection to the same server.
    pub(crate) fn set_credentials(&self, connection: &mut Connection) -> Result<(), TlsError> {
        *self.files() = std::mem::take(&mut connection.files);
        self.replace(Some(connection.trust.clone()), connection.identity.take(), None)?;
        self.has_credentials.send_replace(true);
        Ok(())
    }

    /// Replaces the client certificate. Requests in progress keep their connections; watches restart.
    pub(crate) fn set_identity(&self, identity: &Identity) -> Result<(), TlsError> {
        self.replace(None, Some(cloned(identity)), None)
    }

    /// Sets the client certificate of a plugin's credential, if it has one.
    pub(crate) fn set_plugin_credential(
        &self,
        credential: &Arc<Credential>,
    ) -> Result<(), TlsError> {
        let Some(identity) = &credential.identity else {
            return Ok(());
        };
        let is_used =
            self.read().credential.as_ref().is_some_and(|used| Arc::ptr_eq(used, credential));
        if is_used {
            return Ok(());
        }
        self.replace(None, Some(cloned(identity)), Some(Arc::clone(credential)))
    }

    /// Closes idle connections and ends the watches. Later requests use new connections with the same TLS configuration.
    pub(crate) fn reconnect(&self) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.http = current.http.with_new_connections();
        drop(current);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Reloads files that were replaced.
    fn reload(&self) {
        let mut files = self.files();
        let Some(Content { authority, identity }) = files.replaced(Instant::now()) else {
            return;
        };
        match self.replace(authority.map(Trust::Roots), identity, None) {
            Ok(()) => tracing::info!("reloaded the files of the kubeconfig"),
            Err(error) => files.reject_last(&error.to_string()),
        }
    }

    /// Replaces the given parts, and creates a new HTTP client.
    fn replace(
        &self,
        trust: Option<Trust>,
        identity: Option<Identity>,
        credential: Option<Arc<Credential>>,
    ) -> Result<(), TlsError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let trust = trust.unwrap_or_else(|| current.trust.clone());
        let identity = identity.or_else(|| current.identity.as_ref().map(cloned));
        let (name, proxy) = (self.server_name.clone(), self.proxy.clone());
        let http = client(&trust, name, proxy, identity.as_ref())?;
        *current = Current { http, trust, identity, credential };
        drop(current);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
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
    identity: Option<&Identity>,
) -> Result<Client, TlsError> {
    let (roots, verifier) = match trust {
        Trust::System => (None, None),
        Trust::Roots(roots) => (Some(roots.clone()), None),
        Trust::Insecure => (None, Some(insecure_verifier())),
    };
    Client::new(Options {
        only_roots: roots.is_some(),
        roots: roots.unwrap_or_default(),
        verifier,
        identity: identity.map(cloned),
        server_name,
        proxy,
        connect_timeout: Some(CONNECT_TIMEOUT),
        read_timeout: None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{rename, write};

    use super::*;

    #[test]
    fn client_reloads_replaced_certificate_file() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            write(directory.path().join("new"), text).unwrap();
            rename(directory.path().join("new"), directory.path().join(name)).unwrap();
        };
        let pair = || rcgen::generate_simple_self_signed(["n1".to_owned()]).unwrap();
        let (first, second) = (pair(), pair());
        put("tls.crt", &first.cert.pem());
        put("tls.key", &first.signing_key.serialize_pem());
        let config = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                      clusters: [{name: k, cluster: {server: 'https://h'}}]\n\
                      users: [{name: u, user: {client-certificate: tls.crt, client-key: tls.key}}]\n";
        put("config", config);
        let mut connection = Connection::load(&directory.path().join("config")).unwrap();
        let transport = Transport::new(&mut connection, true).unwrap();
        let shown = || {
            // As if the last look had been a while ago.
            transport.files().check_immediately();
            transport.http();
            transport.certificate().unwrap()
        };
        assert_eq!(shown(), *first.cert.der());
        // Until the key is replaced too, the former pair is in use.
        put("tls.crt", &second.cert.pem());
        assert_eq!(shown(), *first.cert.der());
        put("tls.key", &second.signing_key.serialize_pem());
        assert_eq!(shown(), *second.cert.der());
    }
}
