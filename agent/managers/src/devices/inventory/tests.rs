//! The devices that containers get.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use std::collections::BTreeMap;

use super::*;

const GPU: &str = "vendor.com/gpu";

fn ids(ids: &[&str]) -> Ids {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// Devices by ID, with their NUMA nodes. Those whose IDs begin with `bad` are unhealthy.
fn devices(devices: &[(&str, &[i64])]) -> Map<String, Device> {
    let device =
        |id: &str, nodes: &[i64]| Device { healthy: !id.starts_with("bad"), nodes: nodes.to_vec() };
    devices.iter().map(|(id, nodes)| ((*id).to_owned(), device(id, nodes))).collect()
}

fn inventory(listed: &[(&str, &[i64])]) -> Inventory {
    let mut inventory = Inventory::default();
    inventory.connected(GPU);
    inventory.listed(GPU, devices(listed));
    inventory
}

fn request<'a>(pod: &'a str, container: &'a str, count: usize) -> Request<'a> {
    Request { pod, container, resource: GPU, count, affinity: None }
}

/// Allocates without a plugin's preference.
fn allocate(inventory: &mut Inventory, request: Request<'_>) -> Result<Ids, String> {
    prefer(inventory, request, &[])
}

fn prefer(
    inventory: &mut Inventory,
    request: Request<'_>,
    preferred: &[&str],
) -> Result<Ids, String> {
    let taken = match inventory.begin(request, false)? {
        Step::Nothing => return Ok(Ids::new()),
        Step::Allocate(ids) => ids,
        Step::Prefer(preference) => {
            inventory.prefer(GPU, preference, &ids(preferred), request.count)?
        }
    };
    inventory.assign(request, &taken, Usage::default());
    Ok(taken)
}

#[test]
fn devices_are_exclusive_to_one_container() {
    let mut inventory = inventory(&[("a", &[]), ("b", &[]), ("c", &[])]);
    assert_eq!(allocate(&mut inventory, request("p", "one", 2)), Ok(ids(&["a", "b"])));
    assert_eq!(allocate(&mut inventory, request("p", "one", 2)), Ok(ids(&[])), "it has them");
    assert_eq!(
        allocate(&mut inventory, request("q", "one", 2)).unwrap_err(),
        "requested number of devices unavailable for vendor.com/gpu. Requested: 2, Available: 1"
    );
    assert_eq!(allocate(&mut inventory, request("q", "one", 1)), Ok(ids(&["c"])));
    assert!(inventory.retain_active(|uid| uid != "p"));
    assert_eq!(allocate(&mut inventory, request("q", "two", 1)), Ok(ids(&["a"])));
}

#[rstest]
#[case::without_plugin("other.com/gpu", 1, "cannot allocate unregistered device other.com/gpu")]
#[case::changed(
    GPU,
    2,
    "pod \"p\" container \"c\" changed request for resource \"vendor.com/gpu\" from 1 to 2"
)]
fn rejected_requests_have_the_reason(
    #[case] resource: &str,
    #[case] count: usize,
    #[case] expected: &str,
) {
    let mut inventory = inventory(&[("a", &[])]);
    allocate(&mut inventory, request("p", "c", 1)).unwrap();
    let request = Request { resource, count, ..request("p", "c", count) };
    assert_eq!(inventory.begin(request, false).unwrap_err(), expected);
}

#[test]
fn unhealthy_devices_are_neither_allocated_nor_reused() {
    let mut inventory = inventory(&[("a", &[]), ("bad", &[])]);
    allocate(&mut inventory, request("p", "c", 1)).unwrap();
    inventory.listed(GPU, devices(&[("bad", &[])]));
    assert_eq!(
        allocate(&mut inventory, request("p", "c", 1)).unwrap_err(),
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/gpu"
    );
    inventory.listed(GPU, devices(&[("b", &[]), ("bad", &[])]));
    assert_eq!(
        allocate(&mut inventory, request("p", "c", 1)).unwrap_err(),
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices vendor.com/gpu"
    );
    assert_eq!(allocate(&mut inventory, request("q", "c", 1)), Ok(ids(&["b"])));
}

#[test]
fn running_container_needs_no_allocation() {
    let mut inventory = Inventory::default();
    inventory.restore(Map::new(), [GPU.to_owned()], Instant::now());
    assert_eq!(inventory.begin(request("p", "c", 1), true), Ok(Step::Nothing));
    assert!(inventory.begin(request("p", "c", 1), false).is_err());
}

#[test]
fn restored_devices_are_not_allocated_again() {
    let mut before = inventory(&[("a", &[0, 1]), ("b", &[])]);
    allocate(&mut before, request("p", "c", 1)).unwrap();
    let mut after = Inventory::default();
    after.restore(before.pods().clone(), [GPU.to_owned()], Instant::now());
    assert_eq!(after.resources().capacity, Map::from([(GPU.to_owned(), 0)]));
    assert_eq!(after.resources().allocated, Map::from([(GPU.to_owned(), 1)]));
    after.connected(GPU);
    after.listed(GPU, devices(&[("a", &[0, 1]), ("b", &[])]));
    assert_eq!(allocate(&mut after, request("q", "c", 1)), Ok(ids(&["b"])));
    assert_eq!(allocate(&mut after, request("p", "c", 1)), Ok(ids(&[])), "it has its own");
}

#[rstest]
#[case::followed(2, None, &["c", "d"], &["c", "d"])]
#[case::too_few(2, None, &["d"], &["a", "d"])]
#[case::unknown(1, None, &["z"], &["a"])]
#[case::near(1, Some(1), &["a", "d"], &["d"])]
#[case::all_near_first(3, Some(1), &["b"], &["b", "c", "d"])]
#[case::taken_already(3, Some(0), &["a", "d"], &["a", "b", "d"])]
#[case::near_alone(2, Some(1), &[], &["c", "d"])]
fn plugin_prefers_among_near_devices(
    #[case] count: usize,
    #[case] node: Option<usize>,
    #[case] preferred: &[&str],
    #[case] expected: &[&str],
) {
    let mut inventory = inventory(&[("a", &[0]), ("b", &[0]), ("c", &[1]), ("d", &[1])]);
    let affinity = node.map(|node| Mask::of([node]));
    let request = Request { affinity, ..request("p", "c", count) };
    assert_eq!(prefer(&mut inventory, request, preferred), Ok(ids(expected)));
}

#[test]
fn preference_request_is_limited_to_eligible_devices() {
    let mut inventory = inventory(&[("a", &[0]), ("b", &[0]), ("c", &[1]), ("d", &[1])]);
    let near = Request { affinity: Some(Mask::of([0])), ..request("p", "c", 1) };
    let Ok(Step::Prefer(preference)) = inventory.begin(near, false) else { panic!() };
    assert_eq!((preference.available, preference.allocated), (ids(&["a", "b"]), ids(&[])));
    let more = Request { affinity: Some(Mask::of([0])), ..request("q", "c", 3) };
    let Ok(Step::Prefer(preference)) = inventory.begin(more, false) else { panic!() };
    let all = ids(&["a", "b", "c", "d"]);
    assert_eq!((preference.available, preference.allocated), (all, ids(&["a", "b"])));
}

#[test]
fn later_containers_reuse_devices_of_init_containers() {
    let mut inventory = inventory(&[("a", &[]), ("b", &[])]);
    let mut next = |container: &str, count, ends| {
        let taken = allocate(&mut inventory, request("p", container, count));
        inventory.reuse("p", container, ends);
        taken
    };
    assert_eq!(next("init", 2, true), Ok(ids(&["a", "b"])));
    assert_eq!(next("app", 1, false), Ok(ids(&["a"])));
    assert_eq!(next("other", 1, false), Ok(ids(&["b"])), "an app container keeps what it has");
    assert!(next("last", 1, false).unwrap_err().starts_with("requested number"));
}

#[test]
fn disconnect_before_listing_leaves_resource_without_devices() {
    let mut inventory = Inventory::default();
    inventory.connected("a/gpu");
    assert_eq!(inventory.resources(), DeviceResources::default());
    inventory.disconnected("a/gpu", Instant::now());
    let none = compact::Map::from([("a/gpu".to_owned(), 0)]);
    let resources = inventory.resources();
    assert_eq!((&resources.capacity, &resources.allocatable), (&none, &none));
}

#[test]
fn resources_expire_five_minutes_after_disconnect() {
    let start = Instant::now();
    let after = |seconds: u64| start + Duration::from_secs(seconds);
    let mut inventory = inventory(&[("a", &[]), ("bad", &[])]);
    let counts = |inventory: &Inventory| {
        let resources = inventory.resources();
        (resources.capacity.get(GPU).copied(), resources.allocatable.get(GPU).copied())
    };
    assert_eq!(counts(&inventory), (Some(2), Some(1)));
    assert_eq!(inventory.expires_at(), None);
    inventory.disconnected(GPU, start);
    assert_eq!(counts(&inventory), (Some(2), Some(0)));
    assert_eq!(inventory.expires_at(), Some(after(300)));
    assert!(!inventory.expire(after(300)) && inventory.knows(GPU));
    assert!(inventory.expire(after(301)) && !inventory.knows(GPU));
    assert_eq!(counts(&inventory), (Some(0), Some(0)), "others are to see that there are none");
    assert!(!inventory.expire(after(302)));
    inventory.connected(GPU);
    assert!(!inventory.knows(GPU), "before it has listed its devices");
    inventory.listed(GPU, devices(&[("a", &[])]));
    assert_eq!(counts(&inventory), (Some(1), Some(1)));
    assert!(!inventory.expire(after(1000)));
}

#[test]
fn usage_of_several_resources_has_no_duplicates() {
    let usage = |value: &str, host: &str| Usage {
        envs: BTreeMap::from([("A".to_owned(), value.to_owned())]),
        annotations: BTreeMap::from([("k".to_owned(), value.to_owned())]),
        mounts: vec![MountSpec {
            container_path: "/in".to_owned(),
            host_path: host.into(),
            ..MountSpec::default()
        }],
        devices: vec![DeviceSpec {
            container_path: "/dev/x".to_owned(),
            host_path: host.to_owned(),
            ..DeviceSpec::default()
        }],
        cdi_devices: vec!["v/c=x".to_owned(), format!("v/c={value}")],
    };
    let mut all = usage("1", "/one");
    all.add(&usage("2", "/two"));
    let first = usage("1", "/one");
    assert_eq!((all.envs, all.annotations), (first.envs, first.annotations));
    assert_eq!((all.mounts, all.devices), (first.mounts, first.devices));
    assert_eq!(all.cdi_devices, ["v/c=x", "v/c=1", "v/c=2"]);
}
