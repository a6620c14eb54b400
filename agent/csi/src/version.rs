//! ◆ The CSI versions that a driver supports. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/apimachinery/pkg/util/version/version.go HighestSupportedVersion, ParseGeneric;
//! pkg/volume/csi/csi_plugin.go validateVersions.

/// A CSI version: its numbers, with 0 for missing ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version([u64; 3]);

impl Version {
    /// The highest version that the agent supports; an error if the agent supports none.
    pub(crate) fn highest(versions: &[String]) -> Result<Self, String> {
        let known = versions.iter().filter_map(|version| Self::parse(version));
        let highest = known.filter(|version| version.0[0] <= 1).max();
        let highest = highest.ok_or_else(|| {
            format!("could not find a highest supported version from versions {versions:?}")
        })?;
        match highest.0[0] {
            1 => Ok(highest),
            _ => Err(format!(
                "highest supported version reported is {}, must be v1.x",
                highest.0.map(|number| number.to_string()).join(".")
            )),
        }
    }

    /// Parses two or more numbers separated by dots, with an optional `v` before and any text after them.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let numbers = text[..end].trim_end_matches('.').split('.');
        let numbers = numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
        if numbers.len() < 2 {
            return None;
        }
        let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
        Some(Self([at(0), at(1), at(2)]))
    }
}

/// Checks a driver's versions against the version `registered` of a driver of the same name. Returns the driver's highest
/// version, or the kubelet's error; `step` is the kubelet's name of the operation.
pub(crate) fn accept(
    step: &str,
    driver: &str,
    versions: &[String],
    registered: Option<Version>,
) -> Result<Version, String> {
    if versions.is_empty() {
        return Err(format!(
            "kubernetes.io/csi: {step} for CSI driver {driver:?} failed. Plugin returned an empty list for supported versions"
        ));
    }
    let highest = Version::highest(versions).map_err(|error| {
        format!(
            "kubernetes.io/csi: {step} for CSI driver {driver:?} failed. None of the versions specified {versions:?} are \
             supported. err={error}"
        )
    })?;
    match registered.filter(|registered| *registered >= highest) {
        Some(other) => Err(format!(
            "kubernetes.io/csi: {step} for CSI driver {driver:?} failed. Another driver with the same name is already registered \
             with a higher supported version: {:?}",
            other.0.map(|number| number.to_string()).join(".")
        )),
        None => Ok(highest),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::one(&["1.0.0"], Ok([1, 0, 0]))]
    #[case::the_highest(&["1.2.0", "v1.10", "0.3.0"], Ok([1, 10, 0]))]
    #[case::of_the_future(&["2.0.0", "1.1.0"], Ok([1, 1, 0]))]
    #[case::with_a_suffix(&["1.3.0-rc1"], Ok([1, 3, 0]))]
    #[case::only_of_the_future(&["2.0.0"], Err("could not find a highest supported version"))]
    #[case::too_old(&["0.3.0"], Err("highest supported version reported is 0.3.0, must be v1.x"))]
    #[case::no_version(&["one", "1", ""], Err("could not find a highest supported version"))]
    fn highest_version_of_the_first_major_is_chosen(
        #[case] versions: &[&str],
        #[case] expected: Result<[u64; 3], &str>,
    ) {
        let versions: Vec<String> = versions.iter().map(|&version| version.to_owned()).collect();
        match (Version::highest(&versions), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.0, expected),
            (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[rstest]
    #[case::first(&["1.0.0"], None, None)]
    #[case::newer(&["1.1.0"], Some([1, 0, 0]), None)]
    #[case::equal(&["1.0.0"], Some([1, 0, 0]), Some("already registered with a higher supported version: \"1.0.0\""))]
    #[case::none(&[], None, Some("Plugin returned an empty list for supported versions"))]
    #[case::unsupported(&["3.0.0"], None, Some("None of the versions specified [\"3.0.0\"] are supported."))]
    fn driver_is_accepted_if_newer_than_registered(
        #[case] versions: &[&str],
        #[case] registered: Option<[u64; 3]>,
        #[case] refused: Option<&str>,
    ) {
        let versions: Vec<String> = versions.iter().map(|&version| version.to_owned()).collect();
        let accepted = accept("RegisterPlugin", "d", &versions, registered.map(Version));
        match refused {
            Some(refused) => assert!(accepted.unwrap_err().contains(refused)),
            None => assert!(accepted.is_ok()),
        }
    }
}
