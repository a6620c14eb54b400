//! The mounts of a container, as tables.

use std::collections::BTreeMap;

use cri::v1::ImageSpec;
use rstest::rstest;

use super::*;
use crate::launch::ImageDefaults;

fn of(host_path: &str, container_path: &str) -> Mount {
    Mount {
        host_path: host_path.into(),
        container_path: container_path.into(),
        ..Default::default()
    }
}

fn of_image(image: &str, sub_path: &str) -> Mount {
    Mount {
        container_path: "/mnt".into(),
        readonly: true,
        image: Some(ImageSpec { image: image.into(), ..Default::default() }),
        image_sub_path: sub_path.into(),
        ..Default::default()
    }
}

fn plan_on(
    isolation: IsolationMode,
    mounts: Vec<Mount>,
    volumes: &[&str],
) -> Result<Vec<MountPlan>, Invalid> {
    let config = ContainerConfig { mounts, ..Default::default() };
    let image = ImageDefaults {
        volumes: volumes.iter().map(|&v| v.into()).collect(),
        ..Default::default()
    };
    let inputs = ContainerInputs {
        isolation,
        directory: "/state/c".into(),
        sandbox_directory: Path::new("/state"),
        root: RootPlan::Host,
        image: &image,
        behaviour: None,
        volumes: BTreeMap::from([
            ("data".to_owned(), RootPlan::Layers(vec!["/layer".into()])),
            ("host".to_owned(), RootPlan::Host),
        ]),
        target: None,
        devices: Vec::new(),
        log_max: None,
    };
    with_namespace(&config, &inputs)
}

fn targets(plans: &[MountPlan]) -> String {
    let targets: Vec<_> = plans.iter().map(|m| m.destination.display().to_string()).collect();
    targets.join(" ")
}

#[rstest]
#[case::nothing(vec![], &[], "/etc/hostname /etc/resolv.conf /etc/hosts")]
#[case::brought(vec![of("/h", "/etc/hosts")], &[], "/etc/hostname /etc/resolv.conf /etc/hosts")]
#[case::brought_in_other_words(vec![of("/h", "/etc//./hosts/")], &[], "/etc/hostname /etc/resolv.conf /etc/hosts")]
#[case::by_depth(vec![of("/h", "/a/b/c"), of("/h", "/a"), of("/h", "//a/./b")], &[], "/etc/hostname /etc/resolv.conf /etc/hosts /a /a/b /a/b/c")]
#[case::as_given_within_a_depth(vec![of("/h", "/b"), of("/h", "/a")], &[], "/etc/hostname /etc/resolv.conf /etc/hosts /b /a")]
#[case::relative_volumes(vec![of("/h", "/data")], &["C:/data", "data", "../up", "", ".", ":x/../y/"], "/up /y /C:/data /etc/hostname /etc/resolv.conf /etc/hosts /data")]
#[case::volumes(vec![of("/h", "/v/w")], &["/v/x", "/v", "/", "/v/w"], "/v /v/x /etc/hostname /etc/resolv.conf /etc/hosts /v/w")]
#[case::by_way_of_others(vec![of("/h", "/proc/../x/./y/")], &["/sys/../v/"], "/v /etc/hostname /etc/resolv.conf /etc/hosts /x/y")]
fn mounts_are_ordered_by_depth_after_provided_files(
    #[case] mounts: Vec<Mount>,
    #[case] volumes: &[&str],
    #[case] expected: &str,
) {
    assert_eq!(targets(&plan_on(IsolationMode::Root, mounts, volumes).unwrap()), expected);
}

#[test]
fn sub_path_without_image_is_part_of_host_path_already() {
    let mut mount = of("/volumes/part", "/mnt");
    mount.image_sub_path = "part".into();
    let plans = plan_on(IsolationMode::Root, vec![mount], &[]).unwrap();
    let found = plans.iter().find(|m| m.destination == Path::new("/mnt"));
    let source = &found.unwrap().source;
    assert!(
        matches!(source, MountSource::Host(path) if path == Path::new("/volumes/part")),
        "{source:?}"
    );
}

#[rstest]
#[case::private(
    MountPropagation::PropagationPrivate,
    IsolationMode::Rootless,
    Propagation::Private
)]
#[case::from_host(
    MountPropagation::PropagationHostToContainer,
    IsolationMode::Rootless,
    Propagation::Slave
)]
#[case::both(MountPropagation::PropagationBidirectional, IsolationMode::Root, Propagation::Shared)]
fn propagation_follows_request(
    #[case] requested: MountPropagation,
    #[case] isolation: IsolationMode,
    #[case] expected: Propagation,
) {
    let mut mount = of("/h", "/mnt");
    mount.set_propagation(requested);
    let plans = plan_on(isolation, vec![mount], &[]).unwrap();
    assert_eq!(plans.last().unwrap().propagation, expected);
}

#[test]
fn image_mount_is_read_only_with_sub_path() {
    let plans = plan_on(IsolationMode::Root, vec![of_image("data", "etc")], &[]).unwrap();
    let last = plans.last().unwrap();
    assert!(last.read_only);
    let expected = MountSource::Image {
        layers: vec!["/layer".into()],
        sub_path: "etc".into(),
        at: "/state/c/volumes/0".into(),
    };
    assert_eq!(last.source, expected);
}

fn with(mut mount: Mount, change: impl FnOnce(&mut Mount)) -> Mount {
    change(&mut mount);
    mount
}

#[rstest]
#[case::both_in_a_user_namespace(with(of("/h", "/mnt"), |m| m.set_propagation(MountPropagation::PropagationBidirectional)), "needs isolation root")]
#[case::unknown_propagation(with(of("/h", "/mnt"), |m| m.propagation = 9), "unknown propagation 9")]
#[case::root(of("/h", "/a/.."), "would hide the image")]
#[case::writable_image(with(of_image("data", ""), |m| m.readonly = false), "has to be readonly")]
#[case::image_and_path(with(of_image("data", ""), |m| m.host_path = "/h".into()), "an image and a host_path")]
#[case::missing_image(of_image("nope", ""), "\"nope\" (for /mnt) is not present")]
#[case::image_of_the_host(of_image("host", ""), "cannot be a volume")]
#[case::image_with_propagation(with(of_image("data", ""), |m| m.set_propagation(MountPropagation::PropagationHostToContainer)), "nothing is mounted into images")]
#[case::sub_path_outside(of_image("data", "a/../../b"), "not a path inside the image")]
#[case::sub_path_from_the_root(of_image("data", "/etc"), "not a path inside the image")]
#[case::recursive_but_writable(with(of("/h", "/mnt"), |m| m.recursive_read_only = true), "needs readonly")]
#[case::unknown_option(with(of("/h", "/mnt"), |m| m.mount_options = vec!["noexecute".into()]), "unknown mount_options \"noexecute\"")]
#[case::id_mappings(with(of("/h", "/mnt"), |m| m.uid_mappings = vec![cri::v1::IdMapping::default()]), "needs both")]
#[case::long_target(of("/h", &"/x".repeat(2048)), "container_path is too long")]
#[case::long_source(of(&"/x".repeat(2048), "/mnt"), "host_path is too long")]
#[case::long_sub_path(of_image("data", &"x/".repeat(2048)), "image_sub_path is too long")]
fn invalid_mount_is_refused(#[case] mount: Mount, #[case] expected: &str) {
    let error = plan_on(IsolationMode::Rootless, vec![mount], &[]).unwrap_err();
    assert!(error.0.contains(expected), "{error}");
}

#[test]
fn mount_options_become_flags() {
    let mount = with(of("/h", "/mnt"), |m| {
        m.mount_options = vec!["noexec".into(), "nosymfollow".into()];
    });
    let plans = plan_on(IsolationMode::Root, vec![mount], &[]).unwrap();
    assert_eq!(plans.last().unwrap().flags, [MountFlag::NoExec, MountFlag::NoSymfollow]);
}

#[rstest]
#[case::provided(vec![], "/etc/hosts", &OF_TEXT)]
#[case::brought(vec![of("/h", "/etc/./hosts")], "/etc/hosts", &OF_TEXT)]
#[case::brought_with_options(
    vec![with(of("/h", "/etc/hosts"), |m| m.mount_options = vec!["nodev".into()])],
    "/etc/hosts",
    &[MountFlag::NoDev, MountFlag::NoExec, MountFlag::NoSuid]
)]
#[case::others(vec![of("/h", "/etc/passwd")], "/etc/passwd", &[])]
fn provided_files_are_noexec_nosuid_nodev(
    #[case] mounts: Vec<Mount>,
    #[case] target: &str,
    #[case] expected: &[MountFlag],
) {
    let plans = plan_on(IsolationMode::Rootless, mounts, &[]).unwrap();
    let found = plans.iter().find(|plan| plan.destination == Path::new(target));
    assert_eq!(found.unwrap().flags, expected);
}
