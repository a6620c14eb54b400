//! A client of the agent's HTTPS server, like the API server: with a certificate of an authority that the agent trusts.

use std::sync::Arc;

use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use fetch::{Client, Identity, Options, Response, Url};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::joined::{Joined, NODE};
use crate::command::*;
use crate::nodes::agent_flags::free_port;

/// A certificate authority for clients.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "clients");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a user in a group.
    pub(crate) fn client(&self, user: &str, group: &str) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.der().clone(), key: key.serialize_der() }
    }
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Pair {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Pair {
    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone().into())
    }
}

/// A node whose agent serves HTTPS, and an administrator's certificate.
pub(crate) struct Served {
    pub(crate) joined: Joined,
    pub(crate) agent: Running,
    pub(crate) port: u16,
    pub(crate) admin: Pair,
    server_certificate: CertificateDer<'static>,
}

impl Served {
    /// Starts the agent, and waits until its node is ready.
    pub(crate) async fn new(joined: Joined) -> Self {
        Self::with(joined, &[]).await
    }

    /// Like [`Self::new`], with further arguments.
    pub(crate) async fn with(joined: Joined, more: &[&str]) -> Self {
        let authority = Authority::new();
        let ca = joined.place.file("clients.crt", &authority.pem());
        let port = free_port();
        let number = port.to_string();
        let flags = ["--port", &number, "--address", "127.0.0.1", "--client-ca-file", &ca];
        let agent = joined.agent(&[&flags[..], more].concat());
        joined.wait_for_ready_node().await;
        let own = joined.place.path("root/pki/kubelet.crt");
        let server_certificate = CertificateDer::from_pem_file(own).unwrap();
        let admin = authority.client("kube-apiserver-kubelet-client", "system:masters");
        Self { joined, agent, port, admin, server_certificate }
    }

    /// Stops the agent, and starts another one with the same pods.
    pub(crate) async fn restarted(self) -> Self {
        self.agent.stop().await;
        let mut served = Self::new(self.joined).await;
        served.agent.err_line_with("node server is listening").await;
        served
    }

    pub(crate) async fn end(self) {
        self.joined.end(self.agent).await;
    }

    /// Sends a GET request with this certificate and this token.
    pub(crate) async fn ask(
        &self,
        path: &str,
        pair: Option<&Pair>,
        token: Option<&str>,
    ) -> Response {
        self.send(Method::GET, path, pair, token).await
    }

    /// Like [`Self::ask`], with any method.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        pair: Option<&Pair>,
        token: Option<&str>,
    ) -> Response {
        ask(self.port, &self.server_certificate, method, path, pair, token).await
    }

    /// The administrator's response: the status and the body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        answered(self.ask(path, Some(&self.admin), None).await).await
    }

    /// Connects as the administrator, or without a certificate.
    pub(crate) async fn connect(&self, pair: Option<&Pair>) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from(NODE).unwrap();
        self.connector(pair).connect(name, stream).await.unwrap()
    }

    fn connector(&self, pair: Option<&Pair>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.server_certificate.clone()).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match pair {
            Some(pair) => {
                config.with_client_auth_cert(vec![pair.certificate.clone()], pair.key()).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        TlsConnector::from(Arc::new(config))
    }

    /// A plain HTTP address that forwards to the server as the administrator, for clients without TLS.
    pub(crate) async fn plain(&self) -> Plain {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connector, port) = (self.connector(Some(&self.admin)), self.port);
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let connector = connector.clone();
                clients.spawn(async move {
                    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let name = ServerName::try_from(NODE).unwrap();
                    let mut server = connector.connect(name, stream).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Plain { url: format!("http://{address}"), _carrying: carrying }
    }
}

/// Sends a GET request to the node's server at this port, which has this certificate.
pub(crate) async fn ask(
    port: u16,
    server: &CertificateDer<'static>,
    method: Method,
    path: &str,
    pair: Option<&Pair>,
    token: Option<&str>,
) -> Response {
    let identity =
        pair.map(|pair| Identity { certificates: vec![pair.certificate.clone()], key: pair.key() });
    let options = Options {
        roots: vec![server.clone()],
        only_roots: true,
        identity,
        server_name: Some(ServerName::try_from(NODE).unwrap()),
        ..Options::default()
    };
    let url = format!("https://127.0.0.1:{port}{path}");
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        headers.insert(AUTHORIZATION, fetch::bearer(token).unwrap());
    }
    let client = Client::new(options).unwrap();
    let url = Url::of_server(&url).unwrap();
    client.send(method, &url, headers, Default::default()).await.unwrap()
}

/// See [`Served::plain`].
pub(crate) struct Plain {
    pub(crate) url: String,
    _carrying: JoinSet<()>,
}

/// The status and the complete body.
pub(crate) async fn answered(mut response: Response) -> (u16, String) {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.unwrap() {
        body.extend_from_slice(&chunk);
    }
    (response.status.as_u16(), String::from_utf8(body).unwrap())
}
