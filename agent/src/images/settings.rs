//! Settings of images, with the names and defaults of a kubelet's configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::garbage::ImageGcPolicy;
use super::policy::CredentialVerification;
use super::provider::CredentialProviders;
use crate::pod_spec::spec::SandboxSpec;

/// How images are pulled, checked and removed.
#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// `serializeImagePulls`: one pull at a time, unless [`ImageConfig::max_parallel_image_pulls`] is more than 1.
    pub serialize_image_pulls: bool,
    /// `maxParallelImagePulls`; `None`: no limit, if pulls are not serialized.
    pub max_parallel_image_pulls: Option<u32>,
    /// `registryPullQPS`: pulls per second; 0: no limit.
    pub registry_pull_qps: u32,
    /// `registryBurst`: pulls that may begin at the same time.
    pub registry_burst: u32,
    /// First and maximum delay between attempts to pull an image.
    pub backoff: (Duration, Duration),
    /// `imagePullCredentialsVerificationPolicy` and `preloadedImagesVerificationAllowlist`.
    pub credential_verification: CredentialVerification,
    /// Docker configurations whose logins every pod may use; the first existing file is used. A file named `.dockercfg` has the
    /// older format.
    pub docker_configs: Vec<PathBuf>,
    /// Providers of credentials.
    pub credential_providers: CredentialProviders,
    /// The conditions for removing images; `None`: images are never removed.
    pub garbage_collection: Option<ImageGcPolicy>,
    /// Whether an image is pulled for the runtime handler of its pod (gate RuntimeClassInImageCriApi).
    pub for_runtime_handlers: bool,
}

impl ImageConfig {
    /// The kubelet's defaults, with docker configurations only in this directory.
    #[must_use]
    pub fn new(root_dir: &Path) -> Self {
        Self {
            serialize_image_pulls: true,
            max_parallel_image_pulls: None,
            registry_pull_qps: 5,
            registry_burst: 10,
            backoff: (Duration::from_secs(10), Duration::from_secs(300)),
            credential_verification: CredentialVerification::default(),
            docker_configs: ["config.json", ".dockercfg"].map(|name| root_dir.join(name)).to_vec(),
            credential_providers: CredentialProviders::default(),
            garbage_collection: Some(ImageGcPolicy::default()),
            for_runtime_handlers: false,
        }
    }

    /// The runtime handler for which the images of a sandbox are pulled; empty: for any.
    pub(crate) fn handler_of(&self, sandbox: &SandboxSpec) -> String {
        let handler = Some(&sandbox.runtime_handler).filter(|_| self.for_runtime_handlers);
        handler.cloned().unwrap_or_default()
    }

    /// The largest number of pulls at a time; `None`: no limit.
    pub(super) fn pull_slots(&self) -> Option<usize> {
        match self.max_parallel_image_pulls {
            Some(limit) if limit > 1 || !self.serialize_image_pulls => {
                Some(usize::try_from(limit.max(1)).unwrap_or(usize::MAX))
            }
            Some(_) | None => self.serialize_image_pulls.then_some(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(false, "")]
    #[case(true, "kata")]
    fn images_are_pulled_for_a_handler_with_its_gate(#[case] is_on: bool, #[case] expected: &str) {
        let config =
            ImageConfig { for_runtime_handlers: is_on, ..ImageConfig::new(Path::new("/")) };
        let sandbox = SandboxSpec { runtime_handler: "kata".to_owned(), ..SandboxSpec::default() };
        assert_eq!(config.handler_of(&sandbox), expected);
    }

    #[rstest]
    #[case(true, None, Some(1))]
    #[case(true, Some(1), Some(1))]
    #[case(true, Some(5), Some(5))]
    #[case(false, Some(5), Some(5))]
    #[case(false, None, None)]
    fn pulls_are_serial_unless_a_limit_is_set(
        #[case] serialize: bool,
        #[case] limit: Option<u32>,
        #[case] slots: Option<usize>,
    ) {
        let config = ImageConfig {
            serialize_image_pulls: serialize,
            max_parallel_image_pulls: limit,
            ..ImageConfig::new(Path::new("/"))
        };
        assert_eq!(config.pull_slots(), slots);
    }
}
