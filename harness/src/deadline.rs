//! The deadline that a client's calls carry (`grpc-timeout`), so that a runtime does not go on with what nobody waits for.

use std::time::Duration;

use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// The longest deadline that a call carries: 100 years. gRPC has eight digits for it, and tonic panics beyond 99,999,999 hours.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

tokio::task_local! {
    static DEADLINE: Duration;
}

/// A connection whose calls carry the deadline of [`within`].
pub type Connection = InterceptedService<Channel, CarryDeadline>;

/// Gives calls the deadline of [`within`].
#[derive(Clone, Copy, Debug)]
pub struct CarryDeadline;

impl Interceptor for CarryDeadline {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Ok(deadline) = DEADLINE.try_with(|deadline| *deadline) {
            request.set_timeout(deadline.min(LONGEST));
        }
        Ok(request)
    }
}

/// Makes calls that carry this deadline, from when each begins. A stream among them ends then too.
pub async fn within<T>(deadline: Duration, calls: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, calls).await
}
