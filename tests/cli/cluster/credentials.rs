//! The agent's credentials for the API server: credential plugins, and certificates that the cluster signs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use cluster::{Kind, Part, Selection};
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, ServerName};
use fetch::{Client, Options, Url};
use harness::process::write_program;
use http::{HeaderMap, Method};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, date_time_ymd,
};

use super::api_server::{ApiServer, TOKEN};
use super::joined::{Joined, NODE, pod, wait};
use crate::command::*;
use crate::nodes::agent_flags::{free_port, get};

/// Replaces the user of the kubeconfig.
fn with_user(joined: &Joined, user: &str) {
    let text = joined.server.kubeconfig().replace(&format!("token: {TOKEN}"), user);
    joined.place.file("kubeconfig", &text);
}

#[tokio::test]
async fn plugin_is_run_again_when_the_server_refuses_its_token_and_when_it_ends() {
    let joined = Joined::new(ApiServer::start()).await;
    let runs = joined.place.path("runs");
    std::fs::create_dir(joined.place.path("bin")).unwrap();
    write_program(
        &joined.place.path("bin/login"),
        &format!(
            "#!/bin/sh
echo \"$1 $GREETING $KUBERNETES_EXEC_INFO\" >>{runs}
test $(wc -l <{runs}) = 1 && token=wrong || token={TOKEN}
printf '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"%s\",\"expirationTimestamp\":\"%s\"}}}}' \\
  $token $(date -u -d '+3 seconds' +%Y-%m-%dT%H:%M:%SZ)
",
            runs = runs.display()
        ),
    )
    .unwrap();
    with_user(
        &joined,
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./bin/login, args: [hello], env: [{name: GREETING, value: world}], interactiveMode: Never, provideClusterInfo: true}",
    );
    let agent = joined.agent(&[]);
    joined.wait_for_ready_node().await;
    let lines = || std::fs::read_to_string(&runs).unwrap().lines().count();
    let first = std::fs::read_to_string(&runs).unwrap();
    let first = first.lines().next().unwrap();
    let reported: Value =
        serde_json::from_str(first.strip_prefix("hello world ").unwrap()).unwrap();
    assert_eq!(reported["spec"]["interactive"], false);
    assert!(
        reported["spec"]["cluster"]["server"].as_str().unwrap().starts_with("http://127.0.0.1:")
    );
    let before = lines();
    assert!(before >= 2, "{before}");
    // The lease is renewed with a new token.
    wait("another run", || lines().into(), |seen| seen.as_u64() > Some(before as u64)).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn failed_plugin_is_named_with_its_output() {
    let joined = Joined::new(ApiServer::start()).await;
    with_user(
        &joined,
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, 'echo no luck >&2; exit 7']}",
    );
    let mut agent = joined.agent(&[]);
    agent.err_line_with("plugin sh: exit status: 7: no luck").await;
    agent.signal(Signal::SIGTERM);
    agent.end().await.exits(0);
    joined.end_runtime().await;
}

/// The signer of nodes' certificate requests.
pub(super) struct Signer(CertifiedIssuer<'static, KeyPair>);

/// The public key of a request, as a point on the curve P-256.
struct Point(Vec<u8>);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Signer {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The certificate of the authority.
    pub(super) fn authority(&self) -> String {
        self.0.pem()
    }

    /// Signs a request with a certificate that has been valid since `ago`, and remains valid for `left`.
    pub(super) fn sign(&self, request: &str, ago: Duration, left: Duration) -> String {
        let pem = String::from_utf8(BASE64_STANDARD.decode(request).unwrap()).unwrap();
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = BASE64_STANDARD.decode(body).unwrap();
        // The object identifier of the curve, and the header of the following bit string.
        let mark = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00];
        let at = der.windows(mark.len()).position(|seen| seen == mark).unwrap() + mark.len();
        let point = Point(der[at..at + 65].to_vec());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let epoch = date_time_ymd(1970, 1, 1);
        let mut params = CertificateParams::new([NODE.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{NODE}"));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = (epoch + (now - ago), epoch + (now + left));
        params.signed_by(&point, &self.0).unwrap().pem()
    }
}

pub(super) const HOUR: Duration = Duration::from_secs(3600);

fn requests(joined: &Joined) -> Vec<Value> {
    let kind = Kind::of("certificates.k8s.io/v1", "CertificateSigningRequest");
    let list = joined.server.store().list(&Selection::of(kind));
    list.items.iter().map(|csr| csr.value.clone()).collect()
}

/// Waits for a pending certificate request.
pub(super) async fn wait_for_request(joined: &Joined) -> Value {
    let open = || {
        let open = requests(joined).into_iter().find(|csr| csr["status"]["certificate"].is_null());
        open.unwrap_or_default()
    };
    wait("a request", open, |csr| !csr.is_null()).await
}

/// Sets the status of a request.
pub(super) fn answer(joined: &Joined, csr: &Value, status: &Value) {
    let kind = Kind::of("certificates.k8s.io/v1", "CertificateSigningRequest");
    let key = cluster::Key::new(kind, "", csr["metadata"]["name"].as_str().unwrap());
    let changed = joined.server.store().change(&key, Part::Status, |csr| {
        csr["status"] = status.clone();
        Ok(())
    });
    changed.unwrap();
}

pub(super) fn signed(certificate: &str) -> Value {
    json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": BASE64_STANDARD.encode(certificate)})
}

/// The place of a node that only has a bootstrap kubeconfig.
fn bootstrapping(joined: &Joined) -> (String, PathBuf) {
    let from = joined.place.file("bootstrap", &joined.server.kubeconfig());
    let kubeconfig = joined.place.path("kubeconfig");
    std::fs::remove_file(&kubeconfig).unwrap();
    (from, kubeconfig)
}

#[tokio::test]
async fn node_gets_its_certificate_by_a_request_and_replaces_it_before_it_ends() {
    let joined = Joined::new(ApiServer::start()).await;
    let (from, kubeconfig) = bootstrapping(&joined);
    let manifests = joined.place.file("static/web.yaml", &pod("web", "sleep 3600"));
    let flags = ["--bootstrap-kubeconfig", &from, "--rotate-certificates", "--manifests"];
    let agent = joined.agent(&[&flags[..], &[&manifests]].concat());
    let first = wait_for_request(&joined).await;
    // Static pods need no certificate.
    joined.wait_for_running(1).await;
    assert_eq!(joined.server.count("POST /api/v1/nodes"), 0);
    assert!(first["metadata"]["name"].as_str().unwrap().starts_with("node-csr-"), "{first}");
    let spec = &first["spec"];
    assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
    assert!(!kubeconfig.exists());
    // From here on clients present certificates, which this server cannot see without TLS.
    joined.server.admit_anyone();
    let signer = Signer::new();
    let certificate = |csr: &Value, ago, left| {
        signed(&signer.sign(csr["spec"]["request"].as_str().unwrap(), ago, left))
    };
    // More than nine tenths of its lifetime are over.
    answer(&joined, &first, &certificate(&first, 10 * HOUR, HOUR / 2));
    joined.wait_for_ready_node().await;
    joined.wait_for_phase("web-n1", "Running").await;
    let pki = joined.place.path("root/pki");
    let current = pki.join("kubelet-client-current.pem");
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(&kubeconfig).unwrap()).unwrap();
    assert_eq!(written["users"][0]["user"]["client-certificate"], current.to_str().unwrap());
    assert!(!pki.join("kubelet-client.key.tmp").exists());

    let second = wait_for_request(&joined).await;
    assert!(second["metadata"]["name"].as_str().unwrap().starts_with("csr-"), "{second}");
    // It may be issued within the same second, which is in its file's name.
    let in_use = || std::fs::read_to_string(&current).unwrap().into();
    let before = in_use();
    let watches = || joined.server.count("GET /api/v1/pods").into();
    let watched = watches();
    answer(&joined, &second, &certificate(&second, HOUR, 100 * HOUR));
    wait("another certificate", in_use, |now| *now != before).await;
    // The server also counts requests that are still pending.
    wait("another watch of pods", watches, |now| *now != watched).await;
    assert_eq!(std::fs::metadata(&current).unwrap().permissions().mode() & 0o777, 0o600);
    agent.stop().await;

    // The next agent uses the stored certificate.
    let registrations = || joined.server.count("POST /api/v1/nodes").into();
    let before = registrations();
    let agent = joined.agent(&["--bootstrap-kubeconfig", &from]);
    wait("another registration", registrations, |now| *now != before).await;
    assert_eq!(requests(&joined).len(), 2);
    joined.end(agent).await;
}

/// Whether the node's server on this port presents a certificate of this authority.
async fn is_of(authority: &CertificateDer<'static>, port: &str) -> bool {
    let options = Options {
        roots: vec![authority.clone()],
        only_roots: true,
        server_name: Some(ServerName::try_from(NODE).unwrap()),
        ..Options::default()
    };
    let url = Url::of_server(&format!("https://127.0.0.1:{port}/healthz")).unwrap();
    let client = Client::new(options).unwrap();
    client.send(Method::GET, &url, HeaderMap::new(), Bytes::new()).await.is_ok()
}

/// Signs the request of the node's server, and waits until the server on this port presents the certificate.
async fn sign_for_server(joined: &Joined, signer: &Signer, port: &str) {
    let csr = wait_for_request(joined).await;
    assert_eq!(csr["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(csr["spec"]["usages"], json!(["digital signature", "server auth"]));
    let certificate = signer.sign(csr["spec"]["request"].as_str().unwrap(), HOUR, 100 * HOUR);
    answer(joined, &csr, &signed(&certificate));
    harness::eventually(WAIT_LIMIT, "the signed certificate", async || {
        if is_of(signer.0.der(), port).await { Ok(()) } else { Err("another one") }
    })
    .await;
}

#[tokio::test]
async fn server_shows_a_certificate_that_the_cluster_signed_once_it_has_one() {
    let joined = Joined::new(ApiServer::start()).await;
    let port = free_port().to_string();
    let flags = ["--rotate-server-certificates", "--port", &port, "--address", "127.0.0.1"];
    let agent = joined.agent(&flags);
    joined.wait_for_ready_node().await;
    let signer = Signer::new();
    let own = CertificateDer::from_pem_file(joined.place.path("root/pki/kubelet.crt")).unwrap();
    assert!(is_of(&own, &port).await && !is_of(signer.0.der(), &port).await);
    sign_for_server(&joined, &signer, &port).await;
    assert!(!is_of(&own, &port).await);
    joined.end(agent).await;
}

#[tokio::test]
async fn server_certificate_without_a_name_of_the_node_is_replaced() {
    let joined = Joined::new(ApiServer::start()).await;
    // An earlier agent requested it for a node of another name.
    let key = KeyPair::generate().unwrap();
    let earlier = CertificateParams::new(["n0".to_owned()]).unwrap().self_signed(&key).unwrap();
    let pem = earlier.pem() + &key.serialize_pem();
    joined.place.file("root/pki/kubelet-server-current.pem", &pem);
    let port = free_port().to_string();
    let flags = ["--rotate-server-certificates", "--port", &port, "--address", "127.0.0.1"];
    let agent = joined.agent(&flags);
    sign_for_server(&joined, &Signer::new(), &port).await;
    joined.end(agent).await;
}

#[tokio::test]
async fn age_of_a_replaced_server_certificate_is_measured() {
    let joined = Joined::new(ApiServer::start()).await;
    let (port, shown) = (free_port().to_string(), free_port());
    let number = shown.to_string();
    let of_server = ["--rotate-server-certificates", "--port", &port, "--address", "127.0.0.1"];
    let of_metrics = ["--read-only-port", &number];
    let agent = joined.agent(&[&of_server[..], &of_metrics].concat());
    let signer = Signer::new();
    // More than nine tenths of the first one's lifetime are over.
    for (ago, left) in [(10 * HOUR, HOUR / 2), (HOUR, 100 * HOUR)] {
        let csr = wait_for_request(&joined).await;
        let certificate = signer.sign(csr["spec"]["request"].as_str().unwrap(), ago, left);
        answer(&joined, &csr, &signed(&certificate));
    }
    harness::eventually(WAIT_LIMIT, "the age of the first certificate", async || {
        let Some((_, text)) = get(shown, "/metrics").await else { return Err("no answer") };
        let name = "kubelet_certificate_manager_server_rotation_seconds_bucket";
        let has = |bound: &str, count: u64| {
            let line = format!("{name}{{le=\"{bound}\"}} {count}");
            text.lines().any(|have| have == line)
        };
        if has("14400", 0) && has("86400", 1) { Ok(()) } else { Err("another age") }
    })
    .await;
    joined.end(agent).await;
}

#[tokio::test]
async fn node_whose_request_is_denied_ends() {
    let joined = Joined::new(ApiServer::start()).await;
    let (from, kubeconfig) = bootstrapping(&joined);
    let agent = joined.agent(&["--bootstrap-kubeconfig", &from]);
    let csr = wait_for_request(&joined).await;
    let denied = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "Unknown", "message": "who is that"}]});
    answer(&joined, &csr, &denied);
    let ended = agent.end().await.exits(2);
    ended.err_has("was denied: who is that (Unknown)");
    assert!(!kubeconfig.exists());
    joined.end_runtime().await;
}

#[tokio::test]
async fn token_in_a_file_may_be_replaced() {
    let joined = Joined::new(ApiServer::start()).await;
    let token = joined.place.file("token", "wrong");
    with_user(&joined, "tokenFile: token");
    let agent = joined.agent(&[]);
    let requested = || joined.server.count("POST /api/v1/nodes").into();
    wait("a registration that is refused", requested, |count| count.as_u64() > Some(0)).await;
    assert!(joined.node().is_null());
    std::fs::write(&token, TOKEN).unwrap();
    joined.wait_for_ready_node().await;
    joined.end(agent).await;
}
