//! An HTTP/1.1 client with verified TLS, proxies and a connection pool, and URLs with Go's rules.
//!
//! Registries and manifests are fetched with it. It follows no redirects and sends no credentials but the ones in URLs: callers
//! decide which server gets them. Certificates are always verified, by the caller's own verifier if it provides one. Proxies come
//! from the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` and their lower-case forms), as curl reads them.

mod connector;
mod error;
mod url;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use connector::Connector;
pub use error::FetchError;
pub use rustls::{Error as TlsError, pki_types};
pub use url::{Pairs, Url, UrlError, form};

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(90);

/// A client's trusted certificates, identity and timeouts.
#[derive(Debug, Default)]
pub struct Options {
    /// Certificates of authorities.
    pub roots: Vec<CertificateDer<'static>>,
    /// Trust only `roots`, not the authorities that the system trusts.
    pub only_roots: bool,
    /// Verifies certificates of servers, instead of the authorities.
    pub verifier: Option<Arc<dyn ServerCertVerifier>>,
    /// The client's own certificate.
    pub identity: Option<Identity>,
    /// The name that certificates of servers must have, if it is not the URL's host.
    pub server_name: Option<ServerName<'static>>,
    /// The proxy for all requests, instead of the environment's proxies.
    pub proxy: Option<String>,
    /// The timeout of a connection attempt, including the TLS handshake.
    pub connect_timeout: Option<Duration>,
    /// The timeout without progress: until the head of the response, including the connection, and for each part of its body.
    pub read_timeout: Option<Duration>,
}

/// A client's certificate chain and its key.
#[derive(Debug)]
pub struct Identity {
    /// The client's own certificate first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The key of the first certificate.
    pub key: PrivateKeyDer<'static>,
}

/// A client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    connections: legacy::Client<Connector, Full<Bytes>>,
    connector: Arc<Connector>,
    proxies: Arc<Matcher>,
    read_timeout: Option<Duration>,
}

impl Client {
    /// A client with the proxies of the environment, unless the options name one.
    ///
    /// # Errors
    ///
    /// If one of the certificates in the options is invalid.
    pub fn new(options: Options) -> Result<Self, rustls::Error> {
        let proxies = match &options.proxy {
            Some(proxy) => Matcher::builder().all(proxy.clone()).build(),
            None => Matcher::from_env(),
        };
        Self::with_proxies(options, proxies)
    }

    fn with_proxies(options: Options, proxies: Matcher) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for root in options.roots {
            roots.add(root)?;
        }
        if !options.only_roots {
            // Some certificate files may be unreadable or invalid; the others are used.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut tls = match options.identity {
            Some(identity) => tls.with_client_auth_cert(identity.certificates, identity.key)?,
            None => tls.with_no_client_auth(),
        };
        if let Some(verifier) = options.verifier {
            tls.dangerous().set_certificate_verifier(verifier);
        }
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let proxies = Arc::new(proxies);
        let connector =
            Connector::new(tls, options.server_name, proxies.clone(), options.connect_timeout);
        let (connections, connector) = (pool(connector.clone()), Arc::new(connector));
        Ok(Self { connections, connector, proxies, read_timeout: options.read_timeout })
    }

    /// Returns a client with the same options that shares no connection with this one. The idle connections of this client are closed
    /// when it and its clones are dropped.
    #[must_use]
    pub fn with_new_connections(&self) -> Self {
        Self { connections: pool((*self.connector).clone()), ..self.clone() }
    }

    /// Sends a request, and waits for the head of the response.
    ///
    /// # Errors
    ///
    /// If there is no response.
    pub async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response, FetchError> {
        let uri = url.uri().ok_or_else(|| FetchError::Url(url.redacted()))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = self.headers(url, &uri, headers);
        *request.uri_mut() = uri;
        let response = self.in_time(self.connections.request(request)).await?;
        let (head, body) = response.map_err(FetchError::of_request)?.into_parts();
        let (status, headers, url) = (head.status, head.headers, url.clone());
        Ok(Response { status, headers, url, body, client: self.clone() })
    }

    /// The given headers, and the headers that follow from the URL.
    fn headers(&self, url: &Url, uri: &Uri, mut headers: HeaderMap) -> HeaderMap {
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some((name, password)) = url.user() {
            headers.entry(AUTHORIZATION).or_insert_with(|| basic(name, password));
        }
        // The proxy's credentials were sent when its tunnel was opened, and it does not read requests inside.
        let proxy = self.proxies.intercept(uri).filter(|_| url.scheme() == "http");
        if let Some(credentials) = proxy.as_ref().and_then(|proxy| proxy.basic_auth()) {
            headers.insert(PROXY_AUTHORIZATION, credentials.clone());
        }
        headers
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, FetchError> {
        match self.read_timeout {
            Some(limit) => {
                tokio::time::timeout(limit, work).await.map_err(|_| FetchError::Silence(limit))
            }
            None => Ok(work.await),
        }
    }
}

/// An empty pool of connections.
fn pool(connector: Connector) -> legacy::Client<Connector, Full<Bytes>> {
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector)
}

/// A response, whose body is not read yet.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The requested URL.
    pub url: Url,
    body: Incoming,
    client: Client,
}

impl Response {
    /// The next part of the body; `None` at its end.
    ///
    /// # Errors
    ///
    /// If the connection breaks before the end, or no data arrives in time.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, FetchError> {
        while let Some(frame) = self.client.in_time(self.body.frame()).await? {
            if let Ok(data) = frame.map_err(FetchError::Body)?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Where the response redirects to, if that is an http or https URL.
    #[must_use]
    pub fn redirect(&self) -> Option<Url> {
        let codes = [301, 302, 303, 307, 308];
        codes.contains(&self.status.as_u16()).then_some(())?;
        let location = self.headers.get(http::header::LOCATION)?.to_str().ok()?;
        self.url.join(location).ok().filter(Url::is_of_server)
    }
}

/// The value of an Authorization header for a name and a password.
#[must_use]
pub fn basic(name: &[u8], password: &[u8]) -> HeaderValue {
    let encoded = STANDARD.encode([name, b":", password].concat());
    secret(&format!("Basic {encoded}")).unwrap_or(HeaderValue::from_static("Basic"))
}

/// The value of an Authorization header for a token; `None` if the token is not a valid header value.
#[must_use]
pub fn bearer(token: &str) -> Option<HeaderValue> {
    secret(&format!("Bearer {token}"))
}

/// A header's value that is not logged.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests;
