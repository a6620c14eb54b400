//! The deadline that a client's calls carry (`grpc-timeout`), so that a runtime does not go on with what nobody waits for.

use std::time::Duration;

use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{GrpcMethod, Request, Status};

/// The longest deadline that a call carries: 100 years. gRPC has eight digits for it, and tonic panics beyond 99,999,999 hours.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

tokio::task_local! {
    static DEADLINE: Duration;
}

/// A connection whose calls carry the deadline of [`within`].
pub type Connection = InterceptedService<Channel, CarryDeadline>;

/// Gives calls the deadline of [`within`], or else a usual one, unless they have one of their own.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarryDeadline {
    /// That of calls with one answer, outside of [`within`].
    pub usual: Option<Duration>,
}

impl Interceptor for CarryDeadline {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if request.metadata().contains_key("grpc-timeout") {
            return Ok(request);
        }
        let usual = self.usual.filter(|_| !is_stream(&request));
        if let Some(deadline) = DEADLINE.try_with(|deadline| *deadline).ok().or(usual) {
            request.set_timeout(deadline.min(LONGEST));
        }
        Ok(request)
    }
}

/// Whether a call has many answers, and goes on for as long as its client likes.
fn is_stream(request: &Request<()>) -> bool {
    let method = request.extensions().get::<GrpcMethod<'_>>().map_or("", GrpcMethod::method);
    matches!(method, "GetContainerEvents" | "Serve") || method.starts_with("Stream")
}

/// Makes calls that carry this deadline, from when each begins. A stream among them ends then too.
pub async fn within<T>(deadline: Duration, calls: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, calls).await
}
