//! One request: who asks, whether that is allowed, and the answer.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::answer::{self, Body, Refusal};
use super::attributes;
use super::authenticate::{Authenticator, Unauthenticated};
use super::authorize::{Authorizer, Unauthorized};
use super::exposed::{self, Exposed};
use super::logs;
use super::pods;
use super::query::Query;
use super::route::{self, Route};
use super::streams::{self, Kind};
use super::tunnel::{self, Tunnel};

/// What all requests share.
pub(crate) struct Api {
    pub(crate) exposed: Arc<Exposed>,
    /// The configuration in use, as JSON.
    pub(crate) configz: String,
    pub(crate) authenticator: Authenticator,
    pub(crate) authorizer: Authorizer,
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) api: Arc<Api>,
    /// Its certificates, verified or not.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// Cancelled once it has shown who it is.
    pub(crate) known: CancellationToken,
    /// What the connection becomes.
    pub(crate) tunnel: Mutex<Option<Tunnel>>,
}

impl Client {
    pub(crate) async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let answered = Box::pin(self.served(&mut request)).await;
        answered.unwrap_or_else(Refusal::answer)
    }

    async fn served(&self, request: &mut Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let api = &self.api;
        let user = api.authenticator.user(&self.certificates, request.headers()).await;
        let user = user.map_err(|error| {
            match error {
                Unauthenticated::Review(_) => {
                    tracing::warn!(%error, "failed to authenticate a request")
                }
                Unauthenticated::NoCredentials
                | Unauthenticated::Certificate(_)
                | Unauthenticated::Token => tracing::debug!(%error, "rejected a request"),
            }
            Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized")
        })?;
        self.known.cancel();
        let path = route::decoded(request.uri().path())
            .ok_or_else(|| Refusal::bad_request("the path is not UTF-8"))?;
        let verb = attributes::verb(request.method());
        let subresources = attributes::subresources(&path);
        let allowed = api.authorizer.check(&user, verb, &subresources).await;
        allowed.map_err(|error| {
            let status = match error {
                Unauthorized::Forbidden { .. } => StatusCode::FORBIDDEN,
                Unauthorized::Unknown { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Refusal::new(status, error.to_string())
        })?;
        let route = route::route(request.method(), &path).map_err(exposed::no_route)?;
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let exposed = &api.exposed;
        let (kind, target) = match route {
            Route::Page(page) => return exposed.page(page, &query).await,
            Route::Config => return Ok(answer::json(api.configz.clone())),
            Route::RunningPods => {
                let list = pods::running_list(exposed.cri.as_ref()).await;
                let list = list.map_err(|error| Refusal::internal(error.to_string()))?;
                return Ok(answer::json(list));
            }
            Route::Logs(target) => {
                let pod = exposed.view.pod(&target.namespace, &target.pod);
                return logs::logs(&exposed.cri, pod, &target, &query).await;
            }
            Route::Exec(target) => (Kind::Exec, target),
            Route::Attach(target) => (Kind::Attach, target),
            Route::PortForward(target) => (Kind::PortForward, target),
        };
        let pod = exposed.view.pod(&target.namespace, &target.pod);
        let headers = request.headers();
        let url = streams::url(exposed, kind, pod, &target, &query, headers).await?;
        let (answer, tunnel) = tunnel::open(request, &url).await?;
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = tunnel;
        Ok(answer)
    }
}
