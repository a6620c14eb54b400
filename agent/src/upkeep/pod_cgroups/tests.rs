use rstest::rstest;

use super::*;
use crate::config::{NodeAllocatable, ReservedCgroup};

fn list(amounts: &[(&str, &str)]) -> BTreeMap<String, String> {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
}

fn named(path: &str, compressible: bool) -> Option<ReservedCgroup> {
    Some(ReservedCgroup { path: path.to_owned(), compressible })
}

/// Path, shares, memory and what a failure is called, of each limit.
#[rstest]
#[case::of_pods(
    NodeAllocatable::default(),
    &["/kubepods 2048 Some(900) Failed to update Node Allocatable Limits \"/kubepods\""]
)]
#[case::none(
    NodeAllocatable { pods: false, ..NodeAllocatable::default() },
    &["/kubepods 4096 Some(1000) Failed to update Node Allocatable Limits \"/kubepods\""]
)]
#[case::reserved(
    NodeAllocatable { pods: true, system_reserved: named("/s", false), kube_reserved: named("/k", true) },
    &[
        "/kubepods 2048 Some(900) Failed to update Node Allocatable Limits \"/kubepods\"",
        "/s 1024 Some(100) Failed to enforce System Reserved Cgroup Limits on \"/s\"",
        "/k 1024 None Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/k\"",
    ]
)]
fn limits_hold_for_what_is_named(#[case] enforced_for: NodeAllocatable, #[case] expected: &[&str]) {
    let mut node = Node::new("n", "/r", "/l");
    node.cgroups_per_qos = true;
    let config = CgroupConfig { enforced: enforced_for, ..CgroupConfig::default() };
    let rules = AdmissionConfig {
        system_reserved: list(&[("cpu", "1"), ("memory", "100")]),
        kube_reserved: list(&[("cpu", "1")]),
        ..AdmissionConfig::default()
    };
    let capacity = list(&[("cpu", "4"), ("memory", "1000")]);
    let found = enforced(&config, &rules, &node, &capacity);
    let texts = found.iter().map(|it| {
        let shares = it.values.cpu_shares.unwrap();
        format!("{} {shares} {:?} {}", it.path, it.values.memory, it.failed)
    });
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    node.cgroups_per_qos = false;
    assert_eq!(enforced(&config, &rules, &node, &capacity), []);
}
