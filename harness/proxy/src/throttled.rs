//! A body with a limited rate.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Sleep, sleep};

use super::body::Forwarded;

/// The number of parts a second.
const PARTS: u32 = 20;

/// A body with a limited rate.
pub(super) struct Throttled {
    inner: Forwarded,
    rate: u32,
    /// The pause after the last part.
    pause: Option<Pin<Box<Sleep>>>,
    pending: Bytes,
}

impl Throttled {
    pub(super) fn new(inner: Forwarded, rate: u32) -> Self {
        Self { inner, rate: rate.max(1), pause: None, pending: Bytes::new() }
    }

    fn next_part(&mut self) -> Bytes {
        let (length, pause) = part(self.pending.len(), self.rate);
        self.pause = Some(Box::pin(sleep(pause)));
        self.pending.split_to(length)
    }
}

/// The length of the next part, and the pause after it.
fn part(there: usize, rate: u32) -> (usize, Duration) {
    let most = usize::try_from((rate / PARTS).max(1)).unwrap_or(usize::MAX);
    let length = there.min(most);
    let length_u32 = u32::try_from(length).unwrap_or(u32::MAX);
    (length, Duration::from_secs(1) * length_u32 / rate.max(1))
}

impl Body for Throttled {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if self.pending.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.pending = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_part()))))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, 100, 0, 0)]
    #[case(3, 100, 3, 30)]
    #[case(1000, 100, 5, 50)]
    #[case(1000, 1, 1, 1000)]
    #[case(50, 1000, 50, 50)]
    fn part_is_paid_for_by_pause(
        #[case] there: usize,
        #[case] rate: u32,
        #[case] length: usize,
        #[case] pause: u64,
    ) {
        assert_eq!(part(there, rate), (length, Duration::from_millis(pause)));
    }
}
