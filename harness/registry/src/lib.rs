//! An image registry in the test's own process: pull and push as in the OCI distribution specification 1.1.
//!
//! One server can stand in for several registries. An image loaded as `registry.k8s.io/pause:3.10` is served at the
//! path `registry.k8s.io/pause`, at `pause` with `?ns=registry.k8s.io` (which containerd sends to mirrors), and at
//! `pause` alone unless another registry has a different image there.
//!
//! ```no_run
//! use harness::fixture_image::{ImageBuilder, Layer};
//! use registry::{Fault, Registry};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Registry::start().await?;
//! let image = ImageBuilder::new("example.com/motd:1").layer(Layer::new().file("etc/motd", 0o644, "hello\n"));
//! registry.add(&image)?;
//! registry.fail(Fault::cut(100).on("/blobs/").times(1));
//! println!("pull {}/motd:1, or make {} a mirror of example.com", registry.host(), registry.url());
//! # Ok(())
//! # }
//! ```
//!
//! | file | what |
//! |---|---|
//! | `route` ◆, `names` ◆, `document` ◆ | parse requests, names and manifests |
//! | `store` | blobs and names in a directory, which is an OCI layout |
//! | `temporary` | the directory of a registry that is given none, and the remains of killed registries |
//! | `load` | loads archives and layouts into the store |
//! | `auth`, `fault` | authentication, and faults that tests inject; TLS is here |
//! | `serve`, `response` | handle requests and send responses |
//! | `request_log` | the answered requests, for tests |

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use harness::fixture_image::ImageBuilder;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

mod auth;
mod document;
mod fault;
mod load;
mod names;
mod request_log;
mod response;
mod route;
mod serve;
mod store;
mod temporary;

pub use auth::{Auth, Bearer, ParseAuthError};
use auth::{AuthOptions, Authorizer};
use document::Document;
pub use fault::Fault;
use fault::Faults;
pub use load::LoadError;
pub use request_log::RecordedRequest;
pub use route::Digest;
use serve::Server;
use store::Store;
use temporary::TemporaryDirectory;

/// Why the registry failed to start.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The directory is not usable.
    #[error("failed to keep images in {path}; check the directory and its permissions")]
    Store {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Binding to the address failed.
    #[error("failed to listen on {address}; is the port taken?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Generating the certificate failed.
    #[error("failed to set up TLS")]
    Tls {
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Options of a registry.
#[derive(Clone, Debug)]
pub struct Options {
    listen: SocketAddr,
    root: Option<PathBuf>,
    auth: Auth,
    auth_options: AuthOptions,
    tls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            root: None,
            auth: Auth::Open,
            auth_options: AuthOptions::default(),
            tls: false,
        }
    }
}

impl Options {
    /// Sets the address; the default is a free port of 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Sets the directory for images, which may contain those of an earlier registry; the default is a temporary one.
    #[must_use]
    pub fn root(mut self, directory: &Path) -> Self {
        self.root = Some(directory.to_owned());
        self
    }

    /// Sets the authentication.
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Sends challenges only below `/v2/NAME/`: `/v2/` itself needs no authentication, as in some registries.
    #[must_use]
    pub fn open_base(mut self) -> Self {
        self.auth_options.open_base = true;
        self
    }

    /// Requires authentication only for repositories whose names contain `part`.
    #[must_use]
    pub fn only(mut self, part: &str) -> Self {
        self.auth_options.only = Some(part.to_owned());
        self
    }

    /// Names this URL as the token server, instead of the registry's own.
    #[must_use]
    pub fn realm(mut self, url: &str) -> Self {
        self.auth_options.realm = Some(url.to_owned());
        self
    }

    /// Limits tokens to this many requests; the next request gets a challenge again.
    #[must_use]
    pub fn token_uses(mut self, uses: u32) -> Self {
        self.auth_options.token_uses = Some(uses);
        self
    }

    /// Serves TLS with its own certificate authority: see [`Registry::ca`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the registry. It accepts connections when this returns.
    ///
    /// # Errors
    /// If the address or the directory is not usable.
    pub async fn start(self) -> Result<Registry, RegistryError> {
        let store_error = |source| RegistryError::Store {
            path: self.root.clone().unwrap_or_else(harness::temp_dir),
            source,
        };
        let (root, temporary) = match &self.root {
            Some(root) => (root.clone(), None),
            None => {
                let make = || {
                    let parent = harness::temp_dir();
                    temporary::remove_dead(&parent);
                    TemporaryDirectory::make(&parent)
                };
                let made = tasks::blocking(make).await.map_err(store_error)?;
                (made.images(), Some(made))
            }
        };
        let store = Store::open(&root).map_err(store_error)?;
        let listen = |source| RegistryError::Listen { address: self.listen, source };
        let listener = TcpListener::bind(self.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let tls = match self.tls {
            true => Some(
                tls_acceptor(address.ip())
                    .map_err(|error| RegistryError::Tls { source: error.into() })?,
            ),
            false => None,
        };
        let (acceptor, ca) = tls.unzip();
        let scheme = if ca.is_some() { "https" } else { "http" };
        let server = Arc::new(Server {
            store,
            authorizer: Authorizer::new(self.auth, self.auth_options),
            faults: Faults::default(),
            requests: Mutex::default(),
            url: format!("{scheme}://{address}"),
        });
        let shutdown = CancellationToken::new();
        let accepting = accept(listener, acceptor, server.clone(), shutdown.clone());
        let task = tasks::spawn(accepting);
        Ok(Registry {
            server,
            address,
            ca,
            end: shutdown.clone().drop_guard(),
            shutdown,
            loads: Arc::default(),
            task,
            _temporary: temporary,
        })
    }
}

/// A registry. Dropping it closes all connections, and removes a temporary directory.
#[derive(Debug)]
pub struct Registry {
    server: Arc<Server>,
    address: SocketAddr,
    ca: Option<String>,
    /// On drop, ends the task with all connections, and loads on other threads.
    end: DropGuard,
    shutdown: CancellationToken,
    /// Held by the thread of [`Registry::load_interruptibly`].
    loads: Arc<tokio::sync::Mutex<()>>,
    task: JoinHandle<()>,
    /// Removes a temporary directory after shutdown.
    _temporary: Option<TemporaryDirectory>,
}

impl Registry {
    /// Starts a registry on a free port of 127.0.0.1, without authentication and TLS.
    ///
    /// # Errors
    /// See [`Options::start`].
    pub async fn start() -> Result<Self, RegistryError> {
        Options::default().start().await
    }

    /// Options for a registry that differs from the default.
    #[must_use]
    pub fn with() -> Options {
        Options::default()
    }

    /// Stops the registry, and waits until it has ended.
    pub async fn stop(self) {
        drop(self.end);
        // A load would write to the directory while it is removed.
        drop(self.loads.lock().await);
        // An error means that the task panicked, so it has ended, too.
        let _ = self.task.await;
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `127.0.0.1:PORT`: the host in the names of its images.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// `http://127.0.0.1:PORT`, or with `https`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// The certificate of its authority in PEM; `None` without TLS.
    #[must_use]
    pub fn ca(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// Loads an OCI layout, an OCI or docker archive, or a directory of them. Without `name`, each image needs a name
    /// of its own. Returns the names.
    ///
    /// # Errors
    /// It cannot be read, or has no name.
    pub fn load(&self, path: &Path, name: Option<&str>) -> Result<Vec<String>, LoadError> {
        load::load(&self.server.store, path, name, &CancellationToken::new())
    }

    /// Like [`Registry::load`], on another thread, so that the caller can handle signals. If this future is dropped, the load
    /// continues until [`Registry::stop`], which cancels it and waits for its end.
    ///
    /// # Errors
    /// See [`Registry::load`]. Also if the registry stops.
    pub async fn load_interruptibly(
        &self,
        path: &Path,
        name: Option<&str>,
    ) -> Result<Vec<String>, LoadError> {
        let load_guard = self.loads.clone().lock_owned().await;
        let (server, shutdown) = (self.server.clone(), self.shutdown.clone());
        let (path, name) = (path.to_owned(), name.map(str::to_owned));
        tasks::blocking(move || {
            let _load_guard = load_guard;
            load::load(&server.store, &path, name.as_deref(), &shutdown)
        })
        .await
    }

    /// Adds an image that a test built, under its own name, and returns the digest of its manifest.
    ///
    /// # Errors
    /// It cannot be written, or has a bad name.
    pub fn add(&self, image: &ImageBuilder) -> Result<Digest, LoadError> {
        let io = |source| LoadError::Io { path: self.server.store.root().to_owned(), source };
        let directory = tempfile::tempdir_in(self.server.store.root()).map_err(io)?;
        image.write_oci_layout(directory.path()).map_err(io)?;
        let name = self.load(directory.path(), None)?.pop().unwrap_or_default();
        let reference = load::parse(&name)?;
        let tag = reference.tag.unwrap_or_default();
        let store = &self.server.store;
        let digest = store.names(|names| {
            let repository = names.0.get(&reference.repository)?;
            repository.tags.get(&tag).cloned()
        });
        digest.ok_or(LoadError::NoName { path: directory.path().to_owned() })
    }

    /// Adds a blob and returns its digest.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add_blob(&self, bytes: &[u8]) -> io::Result<Digest> {
        self.server.store.put_bytes(bytes)
    }

    /// Adds a manifest or an index under a name (`docker.io/library/it:1`)
    /// without validating it, and returns its digest.
    ///
    /// # Errors
    /// It cannot be written, or the name is bad.
    pub fn add_manifest(
        &self,
        name: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest, LoadError> {
        let reference = load::parse(name)?;
        let store = &self.server.store;
        let document = Document::parse(bytes).unwrap_or_default();
        let digest = store::digest_of(bytes);
        let tag = reference.tag.as_deref();
        store
            .put_manifest(&reference.repository, tag, &digest, media_type, bytes, &document)
            .and_then(|()| store.write_index())
            .map_err(|source| LoadError::Io { path: store.root().to_owned(), source })?;
        Ok(digest)
    }

    /// Injects a fault for later requests.
    pub fn fail(&self, fault: Fault) {
        self.server.faults.add(fault);
    }

    /// Removes all faults.
    pub fn recover(&self) {
        self.server.faults.clear();
    }

    /// The requests answered so far, or since [`Registry::forget`]: the last 16 MiB of them.
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        let requests = self.server.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).all()
    }

    /// Clears the list of answered requests.
    pub fn forget(&self) {
        let requests = self.server.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Accepts connections until the shutdown.
async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    server: Arc<Server>,
    shutdown: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        // All arms are cancel-safe: accept returns a connection or leaves it in the queue.
        let stream = tokio::select! {
            () = shutdown.cancelled() => {
                connections.shutdown().await;
                return;
            }
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // The usual cause is that the process has no free descriptor: closing connections frees some.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        // Responses are small or written in large pieces: Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let (server, acceptor) = (server.clone(), acceptor.clone());
        connections.spawn(tasks::boxed(async move {
            match acceptor {
                None => serve_connection(stream, server).await,
                Some(acceptor) => match acceptor.accept(stream).await {
                    Ok(stream) => serve_connection(stream, server).await,
                    Err(error) => tracing::debug!(%error, "TLS handshake failed"),
                },
            }
        }));
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    server: Arc<Server>,
) {
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { server.respond(request).await }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "client connection failed");
    }
}

/// A random token.
fn random_token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Why generating the certificate failed.
#[derive(Debug, thiserror::Error)]
enum TlsError {
    /// Generating the key or the certificate failed.
    #[error("failed to make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The certificate cannot be served.
    #[error("failed to serve the certificate")]
    Serve(#[from] rustls::Error),
}

/// A TLS acceptor, and the authority's certificate in PEM.
fn tls_acceptor(address: IpAddr) -> Result<(TlsAcceptor, String), TlsError> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let name = &mut authority.distinguished_name;
    name.push(DnType::CommonName, "crib registry");
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let mut leaf = CertificateParams::new(names)?;
    let own = SanType::IpAddress(address);
    if !address.is_unspecified() && !leaf.subject_alt_names.contains(&own) {
        leaf.subject_alt_names.push(own);
    }
    let key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&key, &issuer)?;
    let secret = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], secret)?;
    Ok((TlsAcceptor::from(Arc::new(config)), issuer.pem()))
}

#[cfg(test)]
mod tests;
