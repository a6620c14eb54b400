//! ◆ The events that a kubelet reports about images.

use std::time::Duration;

use api::duration::go_duration;

/// An event about the image of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageEvent {
    /// Whether its type is `Warning` instead of `Normal`.
    pub warning: bool,
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

impl ImageEvent {
    fn new(warning: bool, reason: &'static str, message: String) -> Self {
        Self { warning, reason, message }
    }

    /// The name is malformed, or ImageStatus failed.
    pub(crate) fn inspect_failed(message: String) -> Self {
        Self::new(true, "InspectFailed", message)
    }

    /// The image is not present, or not usable by this pod, and must not be pulled.
    pub(crate) fn never_pull(message: String) -> Self {
        Self::new(true, "ErrImageNeverPull", message)
    }

    /// A pull begins.
    pub(crate) fn pulling(image: &str) -> Self {
        Self::new(false, "Pulling", format!("Pulling image \"{image}\""))
    }

    /// The image is used without a pull.
    pub(crate) fn present(image: &str) -> Self {
        let message = format!(
            "Container image \"{image}\" already present on machine and can be accessed by the pod"
        );
        Self::new(false, "Pulled", message)
    }

    /// A pull succeeded: `pull` is the time of PullImage, `whole` includes the wait for other pulls.
    pub(crate) fn pulled(image: &str, pull: Duration, whole: Duration, size: u64) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let [pull, whole] =
            [pull, whole].map(|time| go_duration(Duration::from_millis(millis(time))));
        let message = format!(
            "Successfully pulled image \"{image}\" in {pull} ({whole} including waiting). Image size: {size} bytes."
        );
        Self::new(false, "Pulled", message)
    }

    /// A pull failed.
    pub(crate) fn pull_failed(image: &str, error: &str) -> Self {
        let message = format!("Failed to pull image \"{image}\": {error}");
        Self::new(true, "Failed", message)
    }

    /// An earlier pull failed, and the next one has to wait.
    pub(crate) fn back_off(image: &str) -> Self {
        let message = format!("Back-off pulling image \"{image}\"");
        Self::new(false, "BackOff", message)
    }
}
