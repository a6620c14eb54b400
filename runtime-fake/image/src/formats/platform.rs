//! ◆ Chooses the image of an index that this machine runs best.

use crate::formats::Descriptor;

/// A platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Platform {
    /// In Go's spelling, which image indexes use.
    pub(crate) architecture: &'static str,
    /// The variants that it runs, best first. An image without a variant counts as the last.
    pub(crate) variants: Vec<&'static str>,
}

impl Platform {
    /// The platform of this machine.
    pub(crate) fn here() -> Self {
        Self { architecture: architecture(), variants: variants() }
    }

    /// How well the image fits, smaller is better; `None` if it does not run. An image without a platform fits, with the worst
    /// rank.
    pub(crate) fn rank(&self, descriptor: &Descriptor) -> Option<usize> {
        let Some(platform) = &descriptor.platform else {
            return Some(usize::MAX);
        };
        let runs = platform.os == "linux" && platform.architecture == self.architecture;
        let baseline = self.variants.len().saturating_sub(1);
        match platform.variant.as_deref() {
            _ if !runs => None,
            None | Some("") => Some(baseline),
            Some(variant) => self.variants.iter().position(|mine| *mine == variant),
        }
    }
}

/// This machine's architecture in Go's spelling.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// The x86-64 microarchitecture levels that this processor has (x86-64 psABI, "Micro-Architecture Levels").
#[cfg(target_arch = "x86_64")]
fn variants() -> Vec<&'static str> {
    use std::is_x86_feature_detected as has;
    let v2 = has!("sse3")
        && has!("ssse3")
        && has!("sse4.1")
        && has!("sse4.2")
        && has!("popcnt")
        && has!("cmpxchg16b");
    let v3 = v2
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("f16c")
        && has!("fma")
        && has!("movbe");
    let v4 = v3
        && has!("avx512f")
        && has!("avx512bw")
        && has!("avx512cd")
        && has!("avx512dq")
        && has!("avx512vl");
    let levels = [(v4, "v4"), (v3, "v3"), (v2, "v2"), (true, "v1")];
    levels.into_iter().filter_map(|(has, level)| has.then_some(level)).collect()
}

#[cfg(target_arch = "arm")]
fn variants() -> Vec<&'static str> {
    vec!["v5", "v6", "v7"].into_iter().rev().collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
fn variants() -> Vec<&'static str> {
    vec!["v8"]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::exact("linux", "arm", Some("v7"), Some(0))]
    #[case::older("linux", "arm", Some("v6"), Some(1))]
    #[case::unnamed("linux", "arm", None, Some(2))]
    #[case::newer("linux", "arm", Some("v8"), None)]
    #[case::other_system("windows", "arm", Some("v7"), None)]
    #[case::other_machine("linux", "arm64", Some("v7"), None)]
    #[case::an_attestation("unknown", "unknown", None, None)]
    fn platform_ranks_variants(
        #[case] os: &str,
        #[case] architecture: &str,
        #[case] variant: Option<&str>,
        #[case] want: Option<usize>,
    ) {
        let mut platform = serde_json::json!({"os": os, "architecture": architecture});
        if let Some(variant) = variant {
            platform["variant"] = variant.into();
        }
        let descriptor: Descriptor = serde_json::from_value(serde_json::json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{}", "0".repeat(64)), "size": 1, "platform": platform,
        }))
        .unwrap();
        let machine = Platform { architecture: "arm", variants: vec!["v7", "v6", "v5"] };
        assert_eq!(machine.rank(&descriptor), want);
    }

    #[test]
    fn platform_runs_baseline_variant() {
        let here = Platform::here();
        assert!(!here.variants.is_empty(), "{here:?}");
    }
}
