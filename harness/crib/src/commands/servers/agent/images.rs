//! Flags of `crib agent` for images, with the names of a kubelet's flags and configuration fields.

use std::path::PathBuf;
use std::time::Duration;

use agent::images::{
    Allowlist, CredentialProviders, CredentialVerification, ImageConfig, ImageGcPolicy, TOKEN_GATE,
};
use agent::local_node::kubelet_config::{GoDuration, KubeletConfiguration, count};
use agent::objects::ObjectMap;
use clap::{Args, ValueEnum};
use crib_base::args::duration;
use crib_base::pull_secrets;
use crib_base::report::chain;

/// `imagePullCredentialsVerificationPolicy`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum VerificationPolicy {
    /// Any pod may use any image on the node
    #[value(name = "NeverVerify")]
    NeverVerify,
    /// Any pod may use images that are present without a pull by the agent
    #[value(name = "NeverVerifyPreloadedImages")]
    NeverVerifyPreloadedImages,
    /// Any pod may use the images in --preloaded-images-verification-allowlist
    #[value(name = "NeverVerifyAllowlistedImages")]
    NeverVerifyAllowlistedImages,
    /// A pod needs credentials with which it could pull the image
    #[value(name = "AlwaysVerify")]
    AlwaysVerify,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Images")]
pub(crate) struct ImageArgs {
    /// Registry credentials: a Docker config.json for all pods, or manifests of Secrets that pods name in imagePullSecrets
    #[arg(long, value_name = "FILE")]
    pull_secrets: Option<PathBuf>,
    /// CredentialProviderConfig file, or a directory of such files
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    pub(crate) image_credential_provider_config: Option<PathBuf>,
    /// Directory of the credential provider binaries
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub(crate) image_credential_provider_bin_dir: Option<PathBuf>,
    /// When a pod needs pull credentials to use an image that is already present [default: NeverVerifyPreloadedImages]
    #[arg(long, value_name = "POLICY")]
    image_pull_credentials_verification_policy: Option<VerificationPolicy>,
    /// Image that any pod may use with NeverVerifyAllowlistedImages: an image name, or a prefix that ends with /*; repeatable
    #[arg(long, value_name = "IMAGE")]
    preloaded_images_verification_allowlist: Vec<String>,
    /// Pull one image at a time [default: true, unless --max-parallel-image-pulls is more than 1]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    serialize_image_pulls: Option<bool>,
    /// Maximum number of parallel image pulls [default: 1; no limit with --serialize-image-pulls=false]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_parallel_image_pulls: Option<u32>,
    /// Maximum number of image pulls per second; 0: no limit [default: 5]
    #[arg(long, value_name = "N")]
    registry_qps: Option<u32>,
    /// Maximum burst of image pulls [default: 10]
    #[arg(long, value_name = "N")]
    registry_burst: Option<u32>,
    /// Disk usage in percent above which the agent removes unused images, even images that other clients pulled; 100: never
    /// [default: never; 85 with --adopt-node]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    image_gc_high_threshold: Option<u8>,
    /// Disk usage in percent at which the agent stops removing unused images [default: 80]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    image_gc_low_threshold: Option<u8>,
    /// Time for which an image must be unused before the agent removes it (such as 2m or 90s) [default: 2m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    minimum_image_ttl_duration: Option<Duration>,
}

impl ImageArgs {
    /// Applies the flags, or else the configuration file, and reads the files that the flags name.
    pub(super) fn apply(
        &self,
        file: &KubeletConfiguration,
        adopt_node: bool,
        config: &mut ImageConfig,
    ) -> Result<ObjectMap, String> {
        config.max_parallel_image_pulls =
            self.max_parallel_image_pulls.or(count(file.max_parallel_image_pulls));
        let serialize = self.serialize_image_pulls.or(file.serialize_image_pulls);
        let several = config.max_parallel_image_pulls.is_some_and(|most| most > 1);
        if serialize == Some(true) && several {
            return Err("--serialize-image-pulls allows only one pull at a time: leave out --serialize-image-pulls or --max-parallel-image-pulls".to_owned());
        }
        config.serialize_image_pulls = serialize.unwrap_or(!several);
        let defaults = (config.registry_pull_qps, config.registry_burst);
        config.registry_pull_qps =
            self.registry_qps.or(count(file.registry_pull_qps)).unwrap_or(defaults.0);
        config.registry_burst =
            self.registry_burst.or(count(file.registry_burst)).unwrap_or(defaults.1);
        config.credential_verification = self.verification(file)?;
        config.garbage_collection = self.garbage_collection(file, adopt_node)?;
        let gates = file.gates();
        config.for_runtime_handlers = gates.enabled("RuntimeClassInImageCriApi");
        if let (Some(file), Some(bin_dir)) =
            (&self.image_credential_provider_config, &self.image_credential_provider_bin_dir)
        {
            let read = CredentialProviders::read(file, bin_dir, gates.enabled(TOKEN_GATE));
            config.credential_providers = read.map_err(|error| chain(&error))?;
        }
        let secrets = self.pull_secrets.as_deref().map(pull_secrets::read);
        Ok(secrets.transpose()?.unwrap_or_default().apply(config))
    }

    /// Applies the flags to the displayed configuration.
    pub(super) fn fill_configz(&self, file: &mut KubeletConfiguration) {
        if let Some(policy) = self.image_pull_credentials_verification_policy {
            file.image_pull_credentials_verification_policy = Some(format!("{policy:?}"));
        }
        if !self.preloaded_images_verification_allowlist.is_empty() {
            let patterns = self.preloaded_images_verification_allowlist.clone();
            file.preloaded_images_verification_allowlist = Some(patterns);
        }
    }

    /// Enabled only on request or with --adopt-node, because other clients may use the images of a shared runtime.
    fn garbage_collection(
        &self,
        file: &KubeletConfiguration,
        adopt_node: bool,
    ) -> Result<Option<ImageGcPolicy>, String> {
        let high = self.image_gc_high_threshold.or(count(file.image_gc_high_threshold_percent));
        let low = self.image_gc_low_threshold.or(count(file.image_gc_low_threshold_percent));
        let most = file.image_maximum_gc_age.map(GoDuration::get);
        if high.is_none() && most.is_none() && !adopt_node {
            return match low {
                Some(_) => {
                    Err("--image-gc-low-threshold needs --image-gc-high-threshold".to_owned())
                }
                None => Ok(None),
            };
        }
        let in_file = file.image_minimum_gc_age.map(GoDuration::get);
        let least = self.minimum_image_ttl_duration.or(in_file);
        let policy = ImageGcPolicy::new(
            high.unwrap_or(85),
            low.unwrap_or(80),
            least.unwrap_or(Duration::from_secs(120)),
            most.unwrap_or(Duration::ZERO),
        );
        policy.map(Some).map_err(|error| {
            format!("--image-gc-high-threshold, --image-gc-low-threshold, --minimum-image-ttl-duration: {error}")
        })
    }

    fn verification(&self, file: &KubeletConfiguration) -> Result<CredentialVerification, String> {
        let patterns = match self.preloaded_images_verification_allowlist.as_slice() {
            [] => file.preloaded_images_verification_allowlist.clone().unwrap_or_default(),
            flags => flags.to_vec(),
        };
        let in_file = file.image_pull_credentials_verification_policy.as_deref();
        let in_file = in_file.map(|name| {
            VerificationPolicy::from_str(name, false).map_err(|_| {
                format!("--config: imagePullCredentialsVerificationPolicy: unknown policy {name:?}")
            })
        });
        let usual = if file.gates().enabled("KubeletEnsureSecretPulledImages") {
            VerificationPolicy::NeverVerifyPreloadedImages
        } else {
            VerificationPolicy::NeverVerify
        };
        let policy = match self.image_pull_credentials_verification_policy {
            Some(policy) => policy,
            None => in_file.transpose()?.unwrap_or(usual),
        };
        match policy {
            VerificationPolicy::NeverVerifyAllowlistedImages => {
                let allowlist = Allowlist::new(patterns.iter().map(String::as_str));
                allowlist
                    .map(CredentialVerification::NeverVerifyAllowlistedImages)
                    .map_err(|error| format!("--preloaded-images-verification-allowlist: {}", chain(&error)))
            }
            _ if !patterns.is_empty() => Err(
                "--preloaded-images-verification-allowlist needs --image-pull-credentials-verification-policy \
                 NeverVerifyAllowlistedImages"
                    .to_owned(),
            ),
            VerificationPolicy::NeverVerify => Ok(CredentialVerification::NeverVerify),
            VerificationPolicy::NeverVerifyPreloadedImages => {
                Ok(CredentialVerification::NeverVerifyPreloadedImages)
            }
            VerificationPolicy::AlwaysVerify => Ok(CredentialVerification::AlwaysVerify),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::on(true, CredentialVerification::NeverVerifyPreloadedImages)]
    #[case::off(false, CredentialVerification::NeverVerify)]
    fn credentials_are_verified_with_the_gate(
        #[case] is_on: bool,
        #[case] expected: CredentialVerification,
    ) {
        let gates = [("KubeletEnsureSecretPulledImages".to_owned(), is_on)];
        let file = KubeletConfiguration {
            feature_gates: Some(gates.into_iter().collect()),
            ..KubeletConfiguration::default()
        };
        assert_eq!(ImageArgs::default().verification(&file).unwrap(), expected);
    }
}
