//! The files that limits are written to, for each layout of hierarchies.

use rstest::rstest;

use crate::kernel::cgroup::{hierarchy::Branch, plan::*};

fn branch(v2: bool, controllers: &[Controller]) -> Branch {
    Branch { base: "/".into(), v2, controllers: controllers.iter().copied().collect() }
}

use Controller::{Cpu, Cpuset, Hugetlb, Memory, Pids};

fn v1() -> Tree {
    let branches = [Cpu, Cpuset, Memory, Pids, Hugetlb].map(|c| branch(false, &[c])).into();
    Tree { branches }
}

fn v2() -> Tree {
    let all = branch(true, &[Cpu, Cpuset, Memory, Pids, Hugetlb]);
    Tree { branches: vec![all] }
}

/// Every controller on v1 except huge pages.
fn hybrid() -> Tree {
    let mut branches = v1().branches;
    branches.truncate(4);
    branches.push(branch(true, &[Hugetlb]));
    Tree { branches }
}

fn limits() -> Limits {
    Limits::default()
}

fn memory(limit: i64, both: i64) -> Limits {
    Limits { memory: limit, memory_and_swap: both, ..limits() }
}

fn cpu(period: i64, quota: i64, shares: i64) -> Limits {
    Limits { cpu_period: period, cpu_quota: quota, cpu_shares: shares, ..limits() }
}

fn text(limits: &Limits, tree: &Tree, now: &CurrentValues) -> String {
    match writes(limits, tree, now) {
        Ok(done) => {
            let one = |w: &Write| {
                let mark = if w.optional { "?" } else { "" };
                format!("{}{mark}={}", w.file, w.value)
            };
            let list: Vec<String> = done.list.iter().map(one).collect();
            let lacks: Vec<String> = done.not_applied.iter().map(|n| format!("!{n}")).collect();
            [list, lacks].concat().join(" ")
        }
        Err(wrong) => wrong.0,
    }
}

#[rstest]
#[case::nothing(v1(), limits(), "")]
#[case::v1_memory(v1(), memory(64, 0), "memory.limit_in_bytes=64 memory.memsw.limit_in_bytes?=64")]
#[case::v1_swap(v1(), memory(64, 100), "memory.limit_in_bytes=64 memory.memsw.limit_in_bytes?=100")]
#[case::v1_all_swap(
    v1(),
    memory(64, -1),
    "memory.limit_in_bytes=64 memory.memsw.limit_in_bytes?=-1"
)]
#[case::v1_no_limit(
    v1(),
    memory(-1, 0),
    "memory.limit_in_bytes=-1 memory.memsw.limit_in_bytes?=-1"
)]
#[case::v2_no_limit(v2(), memory(-1, 0), "memory.max=max memory.swap.max?=max")]
#[case::v2_memory(v2(), memory(64, 0), "memory.max=64 memory.swap.max?=0")]
#[case::v2_swap(v2(), memory(64, 100), "memory.max=64 memory.swap.max?=36")]
#[case::v2_all_swap(v2(), memory(64, -1), "memory.max=64 memory.swap.max?=max")]
#[case::v1_cpu(
    v1(),
    cpu(100, 50, 1024),
    "cpu.shares=1024 cpu.cfs_period_us=100 cpu.cfs_quota_us=50"
)]
#[case::v1_bounds(v1(), cpu(0, 0, 1), "cpu.shares=2")]
#[case::v1_no_quota(v1(), cpu(0, -1, 0), "cpu.cfs_quota_us=-1")]
#[case::v2_cpu(v2(), cpu(100, 50, 1024), "cpu.weight=100 cpu.max=50 100")]
#[case::v2_quota(v2(), cpu(0, 50, 0), "cpu.max=50")]
#[case::v2_no_quota(v2(), cpu(100, -1, 0), "cpu.max=max 100")]
#[case::v2_no_quota_alone(v2(), cpu(0, -1, 0), "cpu.max=max")]
#[case::v2_period(v2(), cpu(100, 0, 0), "cpu.max=max 100")]
fn cpu_limits_become_files_of_each_version(
    #[case] tree: Tree,
    #[case] limits: Limits,
    #[case] expected: &str,
) {
    assert_eq!(text(&limits, &tree, &CurrentValues::default()), expected);
}

#[rstest]
#[case::v1(v1(), "hugetlb.2MB.limit_in_bytes=7 hugetlb.2MB.rsvd.limit_in_bytes?=7")]
#[case::v2(v2(), "hugetlb.2MB.max=7 hugetlb.2MB.rsvd.max?=7")]
#[case::hybrid(hybrid(), "hugetlb.2MB.max=7 hugetlb.2MB.rsvd.max?=7")]
#[case::none(Tree::default(), "!hugepage_limits[2MB]: no cgroup can be made")]
fn huge_page_limits_become_files_of_each_version(#[case] tree: Tree, #[case] expected: &str) {
    let limits = Limits { hugepages: [("2MB".to_owned(), 7)].into(), ..limits() };
    assert_eq!(text(&limits, &tree, &CurrentValues::default()), expected);
}

#[rstest]
#[case::v2(v2(), "memory.high", "memory.high=5")]
#[case::hybrid(hybrid(), "hugetlb.1GB.max", "hugetlb.1GB.max=5")]
#[case::pids_on_v1(hybrid(), "pids.max", "pids.max=5")]
#[case::on_v1(hybrid(), "memory.high", "the memory controller of this box is on v1")]
#[case::unknown(v2(), "rdma.max", "rdma is not a controller")]
#[case::not_there(v2(), "io.weight", "!unified[io.weight]: no io controller")]
fn unified_settings_need_controller_on_v2(
    #[case] tree: Tree,
    #[case] file: &str,
    #[case] expected: &str,
) {
    let limits = Limits { unified: [(file.to_owned(), "5".to_owned())].into(), ..limits() };
    let text = text(&limits, &tree, &CurrentValues::default());
    assert!(text.contains(expected), "{text}");
}

#[rstest]
#[case::no_controller(Tree::default(), "")]
#[case::v2(v2(), "hugetlb.1GB.max=0 hugetlb.1GB.rsvd.max?=0")]
fn no_huge_pages_need_no_controller(#[case] tree: Tree, #[case] expected: &str) {
    let limits = Limits { hugepages: [("1GB".to_owned(), 0)].into(), ..limits() };
    assert_eq!(text(&limits, &tree, &CurrentValues::default()), expected);
}

#[test]
fn missing_controller_is_reported_once() {
    let tree = Tree { branches: vec![branch(false, &[Memory])] };
    let limits = Limits { cpus: "0".into(), ..cpu(100, 50, 512) };
    assert_eq!(
        text(&limits, &tree, &CurrentValues::default()),
        "!cpu_shares: no cpu controller !cpu_quota !cpuset_cpus: no cpuset controller"
    );
}

#[rstest]
#[case::raised(64, 100, "memory.memsw.limit_in_bytes?=100 memory.limit_in_bytes=100")]
#[case::lowered(64, 32, "memory.limit_in_bytes=32 memory.memsw.limit_in_bytes?=32")]
#[case::same(64, 64, "memory.limit_in_bytes=64 memory.memsw.limit_in_bytes?=64")]
#[case::removed(64, -1, "memory.memsw.limit_in_bytes?=-1 memory.limit_in_bytes=-1")]
fn memory_limit_never_exceeds_memory_and_swap_during_update(
    #[case] old: u64,
    #[case] new: i64,
    #[case] expected: &str,
) {
    let now = CurrentValues { memory_and_swap: Some(old), ..CurrentValues::default() };
    assert_eq!(text(&memory(new, 0), &v1(), &now), expected);
}

#[rstest]
#[case::shorter(Some(50), 100, 10, 5, "cpu.cfs_quota_us=5 cpu.cfs_period_us=10")]
#[case::longer(Some(5), 10, 100, 50, "cpu.cfs_period_us=100 cpu.cfs_quota_us=50")]
#[case::unlimited(None, 100, 10, 5, "cpu.cfs_period_us=10 cpu.cfs_quota_us=5")]
fn cpu_ratio_never_exceeds_old_and_new_during_update(
    #[case] old_quota: Option<u64>,
    #[case] old_period: u64,
    #[case] period: i64,
    #[case] quota: i64,
    #[case] expected: &str,
) {
    let now =
        CurrentValues { quota: old_quota, period: Some(old_period), ..CurrentValues::default() };
    assert_eq!(text(&cpu(period, quota, 0), &v1(), &now), expected);
}

#[rstest]
fn memory_limit_below_usage_is_refused(#[values(v1(), v2())] tree: Tree) {
    let now = CurrentValues { used: Some(1000), ..CurrentValues::default() };
    let refused = text(&memory(999, 0), &tree, &now);
    assert!(refused.contains("the old limit stays"), "{refused}");
    assert!(!text(&memory(1000, 0), &tree, &now).contains("stays"));
}
