//! An API server in the test: crib's object store with an HTTP front end, which can be unavailable, slow, or return errors.
//!
//! It serves only what a node requests; other paths return 404.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{DeleteOptions, Error, Event, Key, Kind, Part, Patch, Selection, Store, Watch};
use futures_util::stream;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};

use crate::command::*;

/// The bearer token of clients.
pub(crate) const TOKEN: &str = "the-node";

/// The token of a client of nodes.
pub(crate) const VISITOR: &str = "the-visitor";

/// How many changes the server remembers: a client that misses more must list again.
const HISTORY: usize = 32;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Injected faults.
#[derive(Debug, Default)]
struct Faults {
    /// How many patches of pod statuses are refused.
    conflicts: u32,
    /// The delay of each response.
    delay: Duration,
    /// Whether clients need no token.
    admits_anyone: bool,
    /// Requests for this path are forbidden.
    forbidden: Option<String>,
    /// A path, and how many requests for it fail.
    failing: (String, u32),
}

#[derive(Debug)]
struct Shared {
    store: Store,
    faults: Mutex<Faults>,
    /// Method and path of each request.
    requests: Mutex<Vec<String>>,
}

/// The server.
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
    at: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Creates an unavailable server.
    pub(crate) fn away() -> Self {
        let shared = Shared {
            store: Store::with_history(1, HISTORY),
            faults: Mutex::default(),
            requests: Mutex::default(),
        };
        // No program that binds to port 0 gets this port while the server is away.
        let at = (Ipv4Addr::LOCALHOST, harness::ports::free().unwrap()).into();
        Self { shared: Arc::new(shared), at, serving: None }
    }

    pub(crate) fn start() -> Self {
        let mut server = Self::away();
        server.come();
        server
    }

    /// Starts serving.
    pub(crate) fn come(&mut self) {
        let shared = Arc::clone(&self.shared);
        let listener = listener(self.at).listen(64).unwrap();
        self.serving = Some(tokio::spawn(serve(listener, shared)));
    }

    /// Stops serving: closes connections, and refuses new ones.
    pub(crate) async fn go(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.abort();
        let _ = serving.await;
    }

    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// A kubeconfig for this server.
    pub(crate) fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: 'http://{}'}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: node}}}}]\n\
             users: [{{name: node, user: {{token: {TOKEN}}}}}]\n",
            self.at
        )
    }

    /// Refuses the next patches of pod statuses.
    pub(crate) fn refuse_patches(&self, count: u32) {
        self.shared.faults.lock().unwrap().conflicts = count;
    }

    /// How many patches will still be refused.
    pub(crate) fn patches_to_refuse(&self) -> u32 {
        self.shared.faults.lock().unwrap().conflicts
    }

    /// Delays each response from now on.
    pub(crate) fn be_slow(&self, delay: Duration) {
        self.shared.faults.lock().unwrap().delay = delay;
    }

    /// Accepts clients without a token from now on.
    pub(crate) fn admit_anyone(&self) {
        self.shared.faults.lock().unwrap().admits_anyone = true;
    }

    /// Forbids requests for this path from now on; `None` allows all.
    pub(crate) fn forbid(&self, path: Option<&str>) {
        self.shared.faults.lock().unwrap().forbidden = path.map(str::to_owned);
    }

    /// Makes the next requests for this path fail, as if an admission webhook were unavailable.
    pub(crate) fn fail(&self, path: &str, count: u32) {
        self.shared.faults.lock().unwrap().failing = (path.to_owned(), count);
    }

    /// The number of requests that began with `of`.
    pub(crate) fn count(&self, of: &str) -> usize {
        let requests = self.shared.requests.lock().unwrap();
        requests.iter().filter(|request| request.starts_with(of)).count()
    }
}

/// A socket for the address, which can be reused immediately after a server on it has stopped.
fn listener(at: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(at).unwrap();
    socket
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let shared = Arc::clone(&shared);
        let answer = service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(answer(&shared, request).await) }
        });
        clients.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// The object or list that a path refers to.
#[derive(Debug)]
struct Target {
    kind: Kind,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
}

/// ◆ `/api/v1/namespaces/ns/pods/name/status`, `/apis/GROUP/VERSION/…`.
fn target(path: &str) -> Option<Target> {
    let mut words = path.trim_start_matches('/').split('/').map(str::to_owned).peekable();
    let version = match words.next()?.as_str() {
        "api" => words.next()?,
        "apis" => format!("{}/{}", words.next()?, words.next()?),
        _ => return None,
    };
    let mut resource = words.next()?;
    let mut namespace = None;
    if resource == "namespaces" && words.peek().is_some() {
        namespace = words.next();
        resource = words.next()?;
    }
    let kind = match (version.as_str(), resource.as_str()) {
        ("v1", "configmaps") => "ConfigMap",
        ("v1", "events") => "Event",
        ("v1", "persistentvolumeclaims") => "PersistentVolumeClaim",
        ("v1", "persistentvolumes") => "PersistentVolume",
        ("v1", "nodes") => "Node",
        ("v1", "pods") => "Pod",
        ("v1", "secrets") => "Secret",
        ("v1", "serviceaccounts") => "ServiceAccount",
        ("v1", "services") => "Service",
        ("discovery.k8s.io/v1", "endpointslices") => "EndpointSlice",
        ("certificates.k8s.io/v1", "certificatesigningrequests") => "CertificateSigningRequest",
        ("coordination.k8s.io/v1", "leases") => "Lease",
        ("node.k8s.io/v1", "runtimeclasses") => "RuntimeClass",
        ("resource.k8s.io/v1", "resourceclaims") => "ResourceClaim",
        ("resource.k8s.io/v1", "resourceslices") => "ResourceSlice",
        ("storage.k8s.io/v1", "csidrivers") => "CSIDriver",
        ("storage.k8s.io/v1", "csinodes") => "CSINode",
        ("storage.k8s.io/v1", "volumeattachments") => "VolumeAttachment",
        _ => return None,
    };
    let kind = Kind::of(&version, kind);
    Some(Target { kind, namespace, name: words.next(), subresource: words.next() })
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default());
    shared.requests.lock().unwrap().push(format!("{} {path}", head.method));
    let delay = shared.faults.lock().unwrap().delay;
    tokio::time::sleep(delay).await;
    let admits_anyone = shared.faults.lock().unwrap().admits_anyone;
    let token = head.headers.get(AUTHORIZATION);
    if !admits_anyone && token.is_none_or(|token| token != &format!("Bearer {TOKEN}")) {
        return status(401, "Unauthorized", "Unauthorized");
    }
    if shared.faults.lock().unwrap().forbidden.as_ref() == Some(&path) {
        return status(403, "Forbidden", "no relationship found between node and this object");
    }
    if fails(shared, &path) {
        return status(500, "InternalError", "failed calling webhook");
    }
    if path == "/healthz" {
        return response(200, Full::new(Bytes::from_static(b"ok")).boxed_unsync());
    }
    if head.method == Method::POST && path.ends_with("reviews") {
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        return review(&path, &serde_json::from_slice(&body).unwrap());
    }
    let Some(target) = target(&path) else {
        return status(404, "NotFound", "the server could not find the requested resource");
    };
    let query: Vec<(String, String)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.replace("%3D", "=").replace("%21", "!")))
        .collect();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let is_patch = head.method == Method::PATCH && target.kind.is_pod();
    if is_patch && take_conflict(shared) {
        return status(409, "Conflict", "the object has been modified");
    }
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let done = match target.name {
        None => collection(shared, &head.method, &target, &query, &body),
        Some(_) => object(shared, &head.method, &target, kind.unwrap_or_default(), &body),
    };
    done.unwrap_or_else(|error| {
        let (reason, code) = error.reason();
        status(code, reason, &error.to_string())
    })
}

/// TokenReview and SubjectAccessReview: the token [`VISITOR`] is valid; visitors may read the health, and masters may do
/// everything.
fn review(path: &str, object: &Value) -> Response<Body> {
    let spec = &object["spec"];
    let status = match path {
        "/apis/authentication.k8s.io/v1/tokenreviews" if spec["token"] == VISITOR => {
            json!({"authenticated": true, "user": {"username": "visitor", "groups": ["guests"]}})
        }
        "/apis/authentication.k8s.io/v1/tokenreviews" => json!({"authenticated": false}),
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            let of = &spec["resourceAttributes"];
            let groups = spec["groups"].as_array().unwrap();
            let is_known = groups.contains(&json!("system:authenticated"));
            let is_visit = spec["user"] == "visitor" && of["subresource"] == "healthz";
            let is_own_node = of["resource"] == "nodes" && of["name"] == super::joined::NODE;
            let allowed = groups.contains(&json!("system:masters")) || is_visit;
            json!({"allowed": is_own_node && is_known && allowed})
        }
        _ => return status(404, "NotFound", "the server could not find the requested resource"),
    };
    json_answer(
        201,
        &json!({"kind": object["kind"], "apiVersion": object["apiVersion"], "status": status}),
    )
}

/// Whether this request for a path fails.
fn fails(shared: &Shared, path: &str) -> bool {
    let (failing, count) = &mut shared.faults.lock().unwrap().failing;
    let fails = *failing == path && *count > 0;
    *count -= u32::from(fails);
    fails
}

fn take_conflict(shared: &Shared) -> bool {
    let conflicts = &mut shared.faults.lock().unwrap().conflicts;
    let takes = *conflicts > 0;
    *conflicts = conflicts.saturating_sub(1);
    takes
}

fn collection(
    shared: &Shared,
    method: &Method,
    target: &Target,
    query: &[(String, String)],
    body: &[u8],
) -> Result<Response<Body>, Error> {
    if method == Method::POST {
        let created = shared.store.create(parsed(body)?, Timestamp::now())?;
        return Ok(json_answer(201, &created.value));
    }
    let parameter =
        |wanted: &str| query.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    let mut selection = Selection::of(target.kind.clone());
    if let Some(namespace) = &target.namespace {
        selection = selection.in_namespace(namespace);
    }
    for field in parameter("fieldSelector").iter().flat_map(|fields| fields.split(',')) {
        if let Some((path, text)) = field.split_once('=').filter(|(path, _)| !path.ends_with('!')) {
            selection = selection.with_field(path, text);
        }
    }
    if parameter("watch").is_some_and(|watch| watch == "true") {
        let after =
            parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
        return Ok(watch_answer(shared.store.watch(selection, after)?));
    }
    let list = shared.store.list(&selection);
    if method == Method::DELETE {
        for object in &list.items {
            shared.store.delete(&object.key, &DeleteOptions::default(), Timestamp::now())?;
        }
    }
    let items: Vec<&Value> = list.items.iter().map(|object| &object.value).collect();
    let version = list.version.to_string();
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items});
    Ok(json_answer(200, &list))
}

fn object(
    shared: &Shared,
    method: &Method,
    target: &Target,
    content_type: &str,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let (namespace, name) = (target.namespace.as_deref(), target.name.as_deref());
    if target.subresource.as_deref() == Some("token") {
        return Ok(json_answer(201, &token(name.unwrap(), &parsed(body)?)));
    }
    let key = Key::new(target.kind.clone(), namespace.unwrap_or_default(), name.unwrap());
    let part = match target.subresource.as_deref() {
        Some("status") => Part::Status,
        _ => Part::Main,
    };
    let store = &shared.store;
    let object = match *method {
        Method::GET => store.get(&key)?,
        Method::PUT => store.update(parsed(body)?, part)?,
        Method::PATCH => {
            let patch = match content_type {
                "application/strategic-merge-patch+json" => Patch::Strategic(parsed(body)?),
                "application/merge-patch+json" => Patch::Merge(parsed(body)?),
                _ => return Err(Error::UnsupportedMediaType),
            };
            // The status of a node is patched together with its metadata.
            if part == Part::Status && &*target.kind.name == "Node" {
                store.patch(&key, Part::Main, &patch)?;
            }
            let patched = store.patch(&key, part, &patch)?;
            let of_status = part == Part::Status && key.kind.is_pod();
            if of_status {
                store.change(&key, part, |pod| {
                    as_go_writes(pod);
                    Ok(())
                })?
            } else {
                patched
            }
        }
        Method::DELETE => {
            let options = parsed(body)?;
            let options = DeleteOptions {
                grace_seconds: options["gracePeriodSeconds"].as_i64(),
                uid: options["preconditions"]["uid"].as_str().map(str::to_owned),
                ..DeleteOptions::default()
            };
            store.delete(&key, &options, Timestamp::now())?.object
        }
        _ => return Err(Error::BadRequest(format!("{method} is not supported"))),
    };
    Ok(json_answer(200, &object.value))
}

/// Completes a pod's status as Go serializes it: with its empty fields, and times in whole seconds.
fn as_go_writes(pod: &mut Value) {
    for list in ["containerStatuses", "initContainerStatuses"] {
        for container in list_of(pod, list) {
            let fields = container.as_object_mut().unwrap();
            fields.entry("lastState").or_insert_with(|| json!({}));
        }
    }
    for condition in list_of(pod, "conditions") {
        condition.as_object_mut().unwrap().entry("lastProbeTime").or_insert(Value::Null);
    }
}

fn list_of<'v>(pod: &'v mut Value, name: &str) -> impl Iterator<Item = &'v mut Value> {
    let list = pod["status"].get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// A token that contains its account and its pod.
fn token(account: &str, wanted: &Value) -> Value {
    let spec = &wanted["spec"];
    let text = format!("{account} {} {}", spec["boundObjectRef"]["name"], spec["audiences"]);
    let seconds = spec["expirationSeconds"].as_i64().unwrap();
    let ends = Timestamp::now() + SignedDuration::from_secs(seconds);
    json!({"status": {"token": text, "expirationTimestamp": ends.to_string()}})
}

fn parsed(body: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(body).map_err(|error| Error::BadRequest(error.to_string()))
}

/// One event a line. The last one is an error if the store no longer has the following changes.
fn watch_answer(watch: Watch) -> Response<Body> {
    let events = stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        let (line, next) = match watch.next().await {
            Ok(event) => {
                let kind = match &event {
                    Event::Added(_) => "ADDED",
                    Event::Modified(_) => "MODIFIED",
                    Event::Deleted(_) => "DELETED",
                };
                (json!({"type": kind, "object": event.object().value}), Some(watch))
            }
            Err(error) => {
                let (reason, code) = error.reason();
                (
                    json!({"type": "ERROR", "object": status_object(code, reason, &error.to_string())}),
                    None,
                )
            }
        };
        let frame = Frame::data(Bytes::from(format!("{line}\n")));
        Some((Ok::<_, Infallible>(frame), next))
    });
    response(200, StreamBody::new(events).boxed_unsync())
}

fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    json_answer(code, &status_object(code, reason, message))
}

fn json_answer(code: u16, value: &Value) -> Response<Body> {
    response(code, Full::new(Bytes::from(value.to_string())).boxed_unsync())
}

fn response(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}
