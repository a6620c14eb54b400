//! Finds the service of a call by its path, `/SERVICE/METHOD`.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, StdError};
use tonic::server::NamedService;
use tower::Service;
use tower::util::BoxCloneSyncService;

type AnyService = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The services of a server, each by its full name.
#[derive(Clone, Default)]
pub(super) struct Routes(Arc<Vec<(&'static str, AnyService)>>);

impl Routes {
    /// Adds a service.
    pub(super) fn with<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        Arc::make_mut(&mut self.0).push((S::NAME, AnyService::new(service)));
        self
    }

    fn find(&self, path: &str) -> Option<AnyService> {
        let (name, _) = path.strip_prefix('/')?.split_once('/')?;
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, service)| service.clone())
    }
}

impl<B> Service<Request<B>> for Routes
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.find(request.uri().path()) {
            // The services are generated, and always ready.
            Some(mut service) => service.call(request.map(Body::new)),
            None => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use rstest::rstest;
    use tonic::Code;

    use super::*;

    #[rstest]
    #[case("/grpc.health.v1.Health/Check", true)]
    #[case("/grpc.health.v1.Health/None", true)]
    #[case("/grpc.health.v1.Health", false)]
    #[case("/grpc.health.v1/Health/Check", false)]
    #[case("/runtime.v1.RuntimeService/Version", false)]
    #[case("//", false)]
    #[tokio::test]
    async fn calls_are_routed_by_path(#[case] path: &str, #[case] found: bool) {
        let (_, health) = tonic_health::server::health_reporter();
        let mut routes = Routes::default().with(health);
        assert_eq!(routes.find(path).is_some(), found);
        if !found {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = routes.call(request).await.unwrap();
            let status = Status::from_header_map(response.headers()).unwrap();
            assert_eq!(status.code(), Code::Unimplemented);
        }
    }
}
