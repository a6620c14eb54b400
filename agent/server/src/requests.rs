//! Handles one request: authentication, authorization and response.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::header::{ACCEPT, WARNING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use kube_node::VERSION;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::Handlers;
use super::attributes;
use super::authenticate::{Authenticator, Unauthenticated};
use super::authorize::{Authorizer, Unauthorized};
use super::commands;
use super::logs;
use super::metrics::http::ServerType;
use super::node_api::{self, NodeApi};
use super::pods;
use super::query::Query;
use super::response::{self, Body, ErrorResponse};
use super::route::{self, Route};
use super::streams::{self, Kind, Stream};
use super::system_logs;
use super::tunnel::Tunnel;
use super::zpages::{self, Form};

/// The state that all requests share.
pub(crate) struct Api {
    pub(crate) node_api: Arc<NodeApi>,
    /// The configuration in use, as JSON.
    pub(crate) configz: String,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Authorizer,
    pub(crate) handlers: Handlers,
    /// The flags of this process.
    pub(crate) flags: BTreeMap<String, String>,
}

impl Api {
    /// `/statusz` or `/flagz`, in the form that the client accepts.
    async fn page(
        &self,
        route: &Route,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, ErrorResponse> {
        let is_flagz = *route == Route::Flagz;
        let accepted = headers.get(ACCEPT).map(|value| value.to_str().unwrap_or_default());
        let Some(form) = Form::accepted(accepted, if is_flagz { "Flagz" } else { "Statusz" })
        else {
            let mut response = response::json(zpages::not_acceptable());
            *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
            return Ok(response);
        };
        let text = if is_flagz {
            zpages::flagz(form, &self.flags)
        } else {
            let started_at = node_api::process().await.started_at;
            let started_at = started_at.and_then(|at| Timestamp::from_second(at as i64).ok());
            zpages::statusz(form, VERSION, started_at.unwrap_or_default(), Timestamp::now())
        };
        let mut response = response::with_media_type(form.media_type(), response::full_body(text));
        if form.is_deprecated() {
            let warning =
                "299 - \"This version of the endpoint is deprecated. Please use a newer version.\"";
            response.headers_mut().insert(WARNING, HeaderValue::from_static(warning));
        }
        Ok(response)
    }
}

/// What a client has been granted so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    /// Cancelled once the client is authenticated.
    pub(crate) authenticated: CancellationToken,
    /// Cancelled once a request of the client is authorized.
    pub(crate) authorized: CancellationToken,
    /// The namespace of the pod of the last authorized request, if it is about one.
    namespace: Arc<Mutex<Option<String>>>,
}

impl Admission {
    /// The namespace of the pod whose log or stream the connection may carry.
    pub(crate) fn namespace(&self) -> Option<String> {
        self.namespace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the namespace of the current request.
    pub(crate) fn set_namespace(&self, namespace: Option<String>) {
        *self.namespace.lock().unwrap_or_else(PoisonError::into_inner) = namespace;
    }
}

/// The connection of a client.
pub(crate) struct Client {
    pub(crate) api: Arc<Api>,
    /// The client's certificates, not yet verified.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// What it has been granted.
    pub(crate) admission: Admission,
    /// The tunnel that the connection is upgraded to.
    pub(crate) tunnel: Mutex<Option<Tunnel>>,
}

impl Client {
    pub(crate) async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let path = route::decoded(request.uri().path()).unwrap_or_default();
        let http = &self.api.node_api.http;
        let in_flight = http.begin(request.method(), &path, ServerType::ReadWrite);
        let result = Box::pin(self.served(&mut request)).await;
        let response = result.unwrap_or_else(ErrorResponse::into_response);
        match self.tunnel.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(tunnel) => {
                tunnel.count_in_flight(in_flight);
                response
            }
            None => response.map(|body| response::body_with_guard(body, in_flight)),
        }
    }

    async fn served(
        &self,
        request: &mut Request<Incoming>,
    ) -> Result<Response<Body>, ErrorResponse> {
        let api = &self.api;
        let user = api.authenticator.user(&self.certificates, request.headers()).await;
        let user = user.map_err(|error| {
            match error {
                Unauthenticated::Review(_) => {
                    tracing::warn!(%error, "failed to authenticate a request")
                }
                Unauthenticated::NoCredentials
                | Unauthenticated::Certificate(_)
                | Unauthenticated::Token
                | Unauthenticated::Protocol(_) => tracing::debug!(%error, "rejected a request"),
            }
            ErrorResponse::new(StatusCode::UNAUTHORIZED, "Unauthorized")
        })?;
        self.admission.authenticated.cancel();
        let path = route::decoded(request.uri().path())
            .ok_or_else(|| ErrorResponse::bad_request("the path is not UTF-8"))?;
        let verb = attributes::verb(request.method());
        let subresources = attributes::subresources(&path);
        let allowed = api.authorizer.check(&user, verb, &subresources).await;
        allowed.map_err(|error| {
            let status = match error {
                Unauthorized::Forbidden { .. } => StatusCode::FORBIDDEN,
                Unauthorized::Unknown { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            };
            ErrorResponse::new(status, error.to_string())
        })?;
        self.admission.authorized.cancel();
        let route = route::route(request.method(), &path, &api.handlers);
        let route = route.map_err(node_api::no_route)?;
        let namespace = route.target().map(|target| target.namespace.clone());
        self.admission.set_namespace(namespace);
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let node_api = &api.node_api;
        let (kind, target) = match route {
            Route::Page(page) => return node_api.page(page, &query).await,
            Route::Config => return Ok(response::json(api.configz.clone())),
            Route::RunningPods => {
                let list = pods::running_list(node_api.cri.as_ref()).await;
                let list = list.map_err(|error| ErrorResponse::internal(error.to_string()))?;
                return Ok(response::json(list));
            }
            Route::Statusz | Route::Flagz => return api.page(&route, request.headers()).await,
            Route::SystemLogs(path) => {
                // The route exists only with this directory.
                let directory = api.handlers.system_logs.clone().unwrap_or_default();
                return system_logs::serve(&directory, &path).await;
            }
            Route::Run(target) => {
                let pod = node_api.view.pod(&target.namespace, &target.pod);
                return commands::run(node_api, pod, &target, &query).await;
            }
            Route::Checkpoint(target) => {
                let pod = node_api.view.pod(&target.namespace, &target.pod);
                return commands::checkpoint(node_api, pod, &target, &query).await;
            }
            Route::Logs(target) => {
                let pod = node_api.view.pod(&target.namespace, &target.pod);
                let selects = api.handlers.log_streams;
                return logs::logs(&node_api.cri, pod, &target, &query, selects).await;
            }
            Route::Exec(target) => (Kind::Exec, target),
            Route::Attach(target) => (Kind::Attach, target),
            Route::PortForward(target) => (Kind::PortForward, target),
        };
        let stream = Stream { kind, target, translates: api.handlers.translates_websockets };
        let (answer, tunnel) = streams::open(node_api, &stream, &query, request).await?;
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = tunnel;
        Ok(answer)
    }
}
