//! ◆ Decides the SELinux labels of a pod, of its containers' processes and of their files. Pure.

use std::{collections::BTreeSet, fmt};

use cri::v1::SeLinuxOption;
use serde::{Deserialize, Serialize};

use crate::launch::{Invalid, invalid};

/// The type of an unconfined process.
const PRIVILEGED: &str = "spc_t";
/// The number of categories.
const CATEGORIES: u16 = 1024;

/// A label (in SELinux's terms, a context).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    user: String,
    role: String,
    kind: String,
    level: String,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.user, self.role, self.kind, self.level)
    }
}

impl Label {
    /// Parses `user:role:type:level`; a level may have colons itself.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        let mut next = || parts.next().filter(|part| !part.is_empty());
        Some(Self { user: next()?, role: next()?, kind: next()?, level: next()? })
    }
}

/// The policy's labels for processes and files of containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    process: Label,
    files: Label,
}

impl Default for Policy {
    /// As in container-selinux.
    fn default() -> Self {
        let label = |role: &str, kind: &str| Label {
            user: "system_u".to_owned(),
            role: role.to_owned(),
            kind: kind.to_owned(),
            level: "s0".to_owned(),
        };
        Self {
            process: label("system_r", "container_t"),
            files: label("object_r", "container_file_t"),
        }
    }
}

impl Policy {
    /// Parses a policy's list of contexts: lines of `name = "label"`. Missing names have their default.
    pub(crate) fn read(list: &str) -> Self {
        let usual = Self::default();
        let find = |name: &str| {
            let pairs = list.lines().filter_map(|line| line.split_once('='));
            let mut values = pairs.filter(|(key, _)| key.trim() == name);
            values.find_map(|(_, value)| Label::parse(value.trim().trim_matches('"')))
        };
        Self {
            process: find("process").unwrap_or(usual.process),
            files: find("file").unwrap_or(usual.files),
        }
    }
}

/// The labels of a pod or a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Labels {
    /// The label of its processes.
    pub(crate) process: String,
    /// The label of its files.
    pub(crate) files: String,
}

/// Whether a client requests a label.
pub(crate) fn asked(options: Option<&SeLinuxOption>) -> bool {
    options.is_some_and(|o| parts(o).iter().any(|(_, part)| !part.is_empty()))
}

fn parts(options: &SeLinuxOption) -> [(&'static str, &str); 4] {
    [
        ("user", &options.user),
        ("role", &options.role),
        ("type", &options.r#type),
        ("level", &options.level),
    ]
}

/// Rejects options that do not form a valid label.
pub(crate) fn check(options: Option<&SeLinuxOption>) -> Result<(), Invalid> {
    let Some(options) = options else {
        return Ok(());
    };
    for (name, part) in parts(options) {
        let fits = match name {
            "level" => part.is_empty() || is_level(part),
            _ => part.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)),
        };
        if !fits {
            let wanted = match name {
                "level" => "a sensitivity and categories, as s0:c1,c2 or s0-s1:c0.c1023",
                _ => "letters, digits, _, . and -",
            };
            return invalid(format!("selinux_options.{name} {part:?} is not one: {wanted}"));
        }
    }
    Ok(())
}

/// `s0`, `s0-s1`, `s0:c1,c2.c5`: as in containerd and the kubelet's documentation.
fn is_level(text: &str) -> bool {
    let (sensitivities, categories) = match text.split_once(':') {
        Some((sensitivities, categories)) => (sensitivities, Some(categories)),
        None => (text, None),
    };
    let number = |text: &str, letter: char, below: u16| {
        let digits = text.strip_prefix(letter)?;
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let number = digits.parse::<u16>().ok()?;
        (plain && number < below).then_some(number)
    };
    let range = |text: &str, dash: char, letter: char, below: u16| match text.split_once(dash) {
        None => number(text, letter, below).is_some(),
        Some((low, high)) => match (number(low, letter, below), number(high, letter, below)) {
            (Some(low), Some(high)) => low <= high,
            _ => false,
        },
    };
    range(sensitivities, '-', 's', 16)
        && categories.is_none_or(|all| all.split(',').all(|one| range(one, '.', 'c', CATEGORIES)))
}

/// The labels of a pod: the policy's, overridden by the client's options, with a level that no other pod has
/// unless the client names one.
pub(crate) fn pod(
    options: Option<&SeLinuxOption>,
    policy: &Policy,
    free_level: impl FnOnce() -> String,
) -> Labels {
    let mut policy = policy.clone();
    let named = options.is_some_and(|options| !options.level.is_empty());
    if !named {
        let level = free_level();
        policy.files.level.clone_from(&level);
        policy.process.level = level;
    }
    changed(options, policy.process, policy.files)
}

/// The labels of a container: its pod's, overridden part by part by its own options (as in CRI-O; containerd would drop the pod's
/// label completely, so that the containers of a pod could not share files).
pub(crate) fn container(
    options: Option<&SeLinuxOption>,
    pod: &Labels,
    policy: &Policy,
    privileged: bool,
) -> Labels {
    let label = |text: &str, usual: &Label| Label::parse(text).unwrap_or_else(|| usual.clone());
    let process = label(&pod.process, &policy.process);
    let mut labels = changed(options, process, label(&pod.files, &policy.files));
    if privileged {
        // Privileged containers are unconfined; their files have the pod's label.
        let label = Label { kind: PRIVILEGED.to_owned(), ..policy.process.clone() };
        labels.process = label.to_string();
    }
    labels
}

fn changed(options: Option<&SeLinuxOption>, mut process: Label, mut files: Label) -> Labels {
    let set = |part: &mut String, request: &str| {
        if !request.is_empty() {
            request.clone_into(part);
        }
    };
    if let Some(options) = options {
        set(&mut process.user, &options.user);
        set(&mut process.role, &options.role);
        set(&mut process.kind, &options.r#type);
        set(&mut process.level, &options.level);
        // Files have another role and type than processes.
        set(&mut files.user, &options.user);
        set(&mut files.level, &options.level);
    }
    Labels { process: process.to_string(), files: files.to_string() }
}

/// A level of two categories that none of `pods` has; the search over all pairs starts at `seed`. If all are
/// taken, pods share one.
pub(crate) fn free_level<'a>(pods: impl Iterator<Item = &'a Labels>, seed: u64) -> String {
    let taken: BTreeSet<String> =
        pods.filter_map(|labels| Label::parse(&labels.process)).map(|label| label.level).collect();
    let all = u64::from(CATEGORIES);
    let level = |low, high| format!("s0:c{low},c{high}");
    let pairs = (0..all * all).map(|step| (seed % (all * all) + step) % (all * all));
    let mut pairs = pairs.map(|pair| (pair / all, pair % all));
    pairs
        .find(|(low, high)| low < high && !taken.contains(&level(*low, *high)))
        .map_or_else(|| level(0, 1), |(low, high)| level(low, high))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn options(user: &str, role: &str, kind: &str, level: &str) -> SeLinuxOption {
        SeLinuxOption {
            user: user.into(),
            role: role.into(),
            r#type: kind.into(),
            level: level.into(),
        }
    }

    fn pod_with(options: &SeLinuxOption) -> Labels {
        pod(Some(options), &Policy::default(), || "s0:c1,c2".into())
    }

    #[rstest]
    #[case::nothing(
        "",
        "",
        "",
        "",
        "system_u:system_r:container_t:s0:c1,c2",
        "system_u:object_r:container_file_t:s0:c1,c2"
    )]
    #[case::level(
        "",
        "",
        "",
        "s0:c4,c5",
        "system_u:system_r:container_t:s0:c4,c5",
        "system_u:object_r:container_file_t:s0:c4,c5"
    )]
    #[case::kind(
        "",
        "",
        "web_t",
        "",
        "system_u:system_r:web_t:s0:c1,c2",
        "system_u:object_r:container_file_t:s0:c1,c2"
    )]
    #[case::all("u", "r", "t", "s0", "u:r:t:s0", "u:object_r:container_file_t:s0")]
    fn pod_labels_follow_selinux_options(
        #[case] user: &str,
        #[case] role: &str,
        #[case] kind: &str,
        #[case] level: &str,
        #[case] process: &str,
        #[case] files: &str,
    ) {
        let labels = pod_with(&options(user, role, kind, level));
        assert_eq!((labels.process.as_str(), labels.files.as_str()), (process, files));
    }

    #[test]
    fn pod_with_named_level_allocates_none() {
        let request = options("", "", "", "s0");
        pod(Some(&request), &Policy::default(), || panic!("not asked for"));
    }

    #[rstest]
    #[case::the_pods("", "", false, "system_u:system_r:pod_t:s0:c1,c2", "s0:c1,c2")]
    #[case::kind("web_t", "", false, "system_u:system_r:web_t:s0:c1,c2", "s0:c1,c2")]
    #[case::level("", "s0:c9", false, "system_u:system_r:pod_t:s0:c9", "s0:c9")]
    #[case::privileged("", "", true, "system_u:system_r:spc_t:s0", "s0:c1,c2")]
    #[case::privileged_and_named("web_t", "s0:c9", true, "system_u:system_r:spc_t:s0", "s0:c9")]
    fn container_labels_derive_from_pod_labels(
        #[case] kind: &str,
        #[case] level: &str,
        #[case] privileged: bool,
        #[case] process: &str,
        #[case] files: &str,
    ) {
        let of_pod = pod_with(&options("", "", "pod_t", ""));
        let own = options("", "", kind, level);
        let labels = container(Some(&own), &of_pod, &Policy::default(), privileged);
        assert_eq!(labels.process, process);
        assert_eq!(labels.files, format!("system_u:object_r:container_file_t:{files}"));
        let again = container(None, &of_pod, &Policy::default(), privileged);
        assert_eq!(again.files, of_pod.files);
    }

    #[test]
    fn policy_contexts_supply_default_labels() {
        let list = "# x\nprocess = \"a_u:a_r:svirt_lxc_net_t:s0\"\nfile=\"b_u:b_r:svirt_sandbox_file_t:s0\"\nro_file = \"c\"\n";
        let labels = pod(None, &Policy::read(list), || "s0:c1,c2".into());
        assert_eq!(labels.process, "a_u:a_r:svirt_lxc_net_t:s0:c1,c2");
        assert_eq!(labels.files, "b_u:b_r:svirt_sandbox_file_t:s0:c1,c2");
        assert_eq!(Policy::read("process = \"broken\"\n\n="), Policy::default());
    }

    #[rstest]
    #[case("s0", true)]
    #[case("s0:c1,c2", true)]
    #[case("s0-s0:c0.c1023", true)]
    #[case("s0-s15:c1,c3.c5,c7", true)]
    #[case::the_suites("s0,c4,c5", false)]
    #[case("s0:c1024", false)]
    #[case("s0:c5.c2", false)]
    #[case("s1-s0", false)]
    #[case("s0:", false)]
    #[case("s0:c1,", false)]
    #[case("s0:c+1", false)]
    #[case("s0:c1:c2", false)]
    #[case("c1", false)]
    #[case("s", false)]
    #[case("s0:c99999999999999999999", false)]
    #[case("s0\n", false)]
    fn selinux_level_syntax_is_checked(#[case] level: &str, #[case] good: bool) {
        let said = check(Some(&options("", "", "", level)));
        assert_eq!(said.is_ok(), good, "{said:?}");
    }

    #[rstest]
    #[case::comma("a,b")]
    #[case::quote("a\"b")]
    #[case::colon("a:b")]
    #[case::nul("a\0b")]
    fn label_parts_with_separators_are_refused(#[case] part: &str) {
        for request in
            [options(part, "", "", ""), options("", part, "", ""), options("", "", part, "")]
        {
            assert!(check(Some(&request)).unwrap_err().0.contains("selinux_options."));
        }
    }

    #[test]
    fn free_level_is_unused_by_other_pods() {
        let labels =
            |level: &str| Labels { process: format!("u:r:t:{level}"), files: String::new() };
        assert_eq!(free_level([].iter(), 0), "s0:c0,c1");
        assert_eq!(free_level([].iter(), 5 * 1024 + 2), "s0:c5,c6");
        let taken = [labels("s0:c0,c1"), labels("s0:c0,c2"), labels("nonsense")];
        assert_eq!(free_level(taken.iter(), 0), "s0:c0,c3");
        // The last pair, then the search wraps around to the first.
        assert_eq!(free_level(taken.iter(), u64::from(u32::MAX)), "s0:c0,c3");
    }
}
