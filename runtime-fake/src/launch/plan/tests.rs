//! The decisions of a launch plan, as tables.

use cri::v1::{
    Capability, ContainerMetadata, Int64Value, KeyValue, LinuxContainerConfig,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxMetadata, SecurityProfile,
    UserNamespace, security_profile::ProfileType,
};
use rstest::rstest;

use super::sysctl::Allowed;
use super::*;

fn sandbox() -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".into(),
            namespace: "default".into(),
            uid: "u".into(),
            attempt: 0,
        }),
        log_directory: "/logs".into(),
        ..Default::default()
    }
}

fn options(sandbox: &mut PodSandboxConfig) -> &mut NamespaceOption {
    let linux = sandbox.linux.get_or_insert_default();
    let context: &mut LinuxSandboxSecurityContext = linux.security_context.get_or_insert_default();
    context.namespace_options.get_or_insert_default()
}

fn pod_on(sandbox: &PodSandboxConfig, isolation: IsolationMode) -> Result<PodPlan, Invalid> {
    let allowed = Allowed::new(true, true, "0 0 1");
    pod(sandbox, isolation, "/state/sandboxes/s".into(), false, allowed)
}

fn config() -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
        command: vec!["/bin/true".into()],
        ..Default::default()
    }
}

fn context(config: &mut ContainerConfig) -> &mut LinuxContainerSecurityContext {
    let linux: &mut LinuxContainerConfig = config.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default()
}

fn image() -> ImageDefaults {
    ImageDefaults {
        env: vec!["A=image".into(), "B=image".into()],
        entrypoint: vec!["/entry".into()],
        cmd: vec!["cmd".into()],
        user: "web:www".into(),
        working_dir: "/srv".into(),
        stop_signal: Some("SIGQUIT".into()),
        volumes: Vec::new(),
        script: None,
    }
}

fn confined() -> Confinement {
    Confinement { apparmor_profile: Some("p".into()), ..Confinement::default() }
}

fn plan_on(
    isolation: IsolationMode,
    config: &ContainerConfig,
    sandbox: &PodSandboxConfig,
    image: &ImageDefaults,
) -> Result<LaunchPlan, Invalid> {
    let inputs = ContainerInputs {
        isolation,
        directory: "/state/sandboxes/s/containers/c".into(),
        sandbox_directory: Path::new("/state/sandboxes/s"),
        root: RootPlan::Host,
        image,
        behaviour: None,
        volumes: BTreeMap::new(),
        target: None,
        devices: Vec::new(),
        log_max: None,
    };
    container(config, sandbox, inputs)
}

fn plan(config: &ContainerConfig) -> Result<LaunchPlan, Invalid> {
    plan_on(IsolationMode::Root, config, &sandbox(), &image())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Invalid>, expected: &str) {
    let message = result.unwrap_err().0;
    assert!(message.contains(expected), "{message}");
}

#[rstest]
#[case::nothing_said(|_: &mut NamespaceOption| {}, IsolationMode::Root, (true, true, true))]
#[case::own_processes(|o: &mut NamespaceOption| o.pid = NamespaceMode::Container.into(), IsolationMode::Root, (true, true, false))]
#[case::host_processes(|o: &mut NamespaceOption| o.pid = NamespaceMode::Node.into(), IsolationMode::Rootless, (true, true, false))]
#[case::host_network(|o: &mut NamespaceOption| o.network = NamespaceMode::Node.into(), IsolationMode::Root, (false, true, true))]
#[case::host_ipc(|o: &mut NamespaceOption| o.ipc = NamespaceMode::Node.into(), IsolationMode::Root, (true, false, true))]
#[case::no_namespaces(|_: &mut NamespaceOption| {}, IsolationMode::Process, (false, false, false))]
fn pod_namespaces_follow_options_and_isolation(
    #[case] change: fn(&mut NamespaceOption),
    #[case] isolation: IsolationMode,
    #[case] expected: (bool, bool, bool),
) {
    let mut sandbox = sandbox();
    change(options(&mut sandbox));
    let plan = pod_on(&sandbox, isolation).unwrap();
    assert_eq!((plan.own_network, plan.own_ipc, plan.shared_pids), expected);
    // A hostname requires the pod's own network.
    assert_eq!(plan.hostname, if expected.0 { "web" } else { "" });
}

#[rstest]
#[case::no_metadata(|s: &mut PodSandboxConfig| s.metadata = None, "no metadata")]
#[case::no_name(|s: &mut PodSandboxConfig| s.metadata.as_mut().unwrap().name.clear(), "metadata.name")]
#[case::no_namespace(|s: &mut PodSandboxConfig| s.metadata.as_mut().unwrap().namespace.clear(), "metadata.namespace")]
#[case::no_uid(|s: &mut PodSandboxConfig| s.metadata.as_mut().unwrap().uid.clear(), "metadata.uid")]
#[case::user_namespace(|s: &mut PodSandboxConfig| options(s).userns_options = Some(UserNamespace { mode: NamespaceMode::Pod.into(), ..Default::default() }), "userns_options.uids")]
#[case::network_of_a_container(|s: &mut PodSandboxConfig| options(s).network = NamespaceMode::Container.into(), "namespace_options.network")]
#[case::long_hostname(|s: &mut PodSandboxConfig| s.hostname = "x".repeat(65), "at most 64")]
#[case::hostname_of_two_lines(|s: &mut PodSandboxConfig| s.hostname = "a\nb".into(), "control character")]
fn invalid_pod_is_refused(#[case] change: fn(&mut PodSandboxConfig), #[case] expected: &str) {
    let mut sandbox = sandbox();
    change(&mut sandbox);
    refused(pod_on(&sandbox, IsolationMode::Root), expected);
}

#[rstest]
#[case::network("net.ipv4.ip_forward", false, None)]
#[case::with_slashes("net/ipv4/ip_forward", false, None)]
#[case::ipc("kernel.shm_rmid_forced", false, None)]
#[case::queues("fs.mqueue.msg_max", false, None)]
#[case::of_the_hosts_network("net.ipv4.ip_forward", true, Some("no namespace of its own"))]
#[case::ipc_beside_the_hosts_network("kernel.sem", true, None)]
#[case::of_the_box("vm.swappiness", false, Some("would change the host"))]
#[case::out_of_it("net/../vm/swappiness", false, Some("is not a name"))]
#[case::no_name("", false, Some("is not a name"))]
fn sysctls_need_pod_namespace(
    #[case] name: &str,
    #[case] host_network: bool,
    #[case] error: Option<&str>,
) {
    let mut sandbox = sandbox();
    if host_network {
        options(&mut sandbox).network = NamespaceMode::Node.into();
    }
    let linux: &mut LinuxPodSandboxConfig = sandbox.linux.get_or_insert_default();
    linux.sysctls.insert(name.into(), "1".into());
    match error {
        None => assert_eq!(
            pod_on(&sandbox, IsolationMode::Root).unwrap().sysctl,
            [(name.to_owned(), "1".to_owned())]
        ),
        Some(expected) => refused(pod_on(&sandbox, IsolationMode::Root), expected),
    }
}

/// CRI v1, ContainerConfig.command and args; like Docker's ENTRYPOINT and CMD.
#[rstest]
#[case::the_images(&[], &[], &["/entry", "cmd"])]
#[case::other_arguments(&[], &["x"], &["/entry", "x"])]
#[case::other_command(&["/c"], &[], &["/c"])]
#[case::both(&["/c"], &["x"], &["/c", "x"])]
fn command_and_args_override_image(
    #[case] command: &[&str],
    #[case] args: &[&str],
    #[case] argv: &[&str],
) {
    let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    let config = ContainerConfig { command: owned(command), args: owned(args), ..config() };
    assert_eq!(plan(&config).unwrap().process.args, argv);
}

#[test]
fn env_of_client_comes_last_and_working_dir_overrides_image() {
    let mut config = config();
    config.envs = vec![KeyValue { key: "A".into(), value: "mine=1".into() }];
    let process = plan(&config).unwrap().process;
    assert_eq!(process.env, ["A=image", "B=image", "A=mine=1"]);
    assert_eq!(process.cwd, "/srv");
    config.working_dir = "/work".into();
    assert_eq!(plan(&config).unwrap().process.cwd, "/work");
}

#[rstest]
#[case::the_images(None, "", None, ("web", Some("www")))]
#[case::number(Some(7), "", None, ("7", None))]
#[case::name(None, "bob", None, ("bob", None))]
#[case::number_and_group(Some(7), "", Some(8), ("7", Some("8")))]
#[case::name_and_group(None, "bob", Some(8), ("bob", Some("8")))]
fn user_follows_security_context_or_image(
    #[case] uid: Option<i64>,
    #[case] name: &str,
    #[case] gid: Option<i64>,
    #[case] expected: (&str, Option<&str>),
) {
    let mut config = config();
    context(&mut config).run_as_user = uid.map(|value| Int64Value { value });
    context(&mut config).run_as_username = name.into();
    context(&mut config).run_as_group = gid.map(|value| Int64Value { value });
    let user = plan(&config).unwrap().process.user;
    assert_eq!((user.user.as_str(), user.group.as_deref()), expected);
}

#[rstest]
#[case::pods_by_default(None, None, Ok(Pids::Pod))]
#[case::own(Some(NamespaceMode::Container), Some(NamespaceMode::Container), Ok(Pids::Own))]
#[case::hosts(Some(NamespaceMode::Node), Some(NamespaceMode::Node), Ok(Pids::Host))]
#[case::like_the_pod(Some(NamespaceMode::Container), None, Ok(Pids::Own))]
#[case::shared_with_nobody(
    Some(NamespaceMode::Container),
    Some(NamespaceMode::Pod),
    Err("without a shared process namespace")
)]
#[case::target(None, Some(NamespaceMode::Target), Err("TARGET without a target_id"))]
fn process_namespace_follows_pod_and_container_mode(
    #[case] of_pod: Option<NamespaceMode>,
    #[case] of_container: Option<NamespaceMode>,
    #[case] expected: Result<Pids, &str>,
) {
    let (mut sandbox, mut config) = (sandbox(), config());
    if let Some(mode) = of_pod {
        options(&mut sandbox).pid = mode.into();
    }
    if let Some(mode) = of_container {
        context(&mut config).namespace_options =
            Some(NamespaceOption { pid: mode.into(), ..Default::default() });
    }
    let plan = plan_on(IsolationMode::Root, &config, &sandbox, &image());
    match expected {
        Ok(pids) => assert_eq!(plan.unwrap().pids, pids),
        Err(expected) => refused(plan, expected),
    }
}

#[rstest]
#[case::plain("c.log", Ok(Some("/logs/c.log")))]
#[case::below("a/./b.log", Ok(Some("/logs/a/b.log")))]
#[case::none("", Ok(None))]
#[case::out("../c.log", Err("leads out"))]
#[case::out_of_below("a/../../c.log", Err("leads out"))]
#[case::elsewhere("/etc/passwd", Err("leads out"))]
#[case::nul("c\0.log", Err("control character"))]
#[case::too_long(&"x/".repeat(2048), Err("too long"))]
#[case::too_long_below_its_directory(&"abc/".repeat(1023), Err("(below log_directory) is too long"))]
fn log_path_stays_below_log_directory(
    #[case] path: &str,
    #[case] expected: Result<Option<&str>, &str>,
) {
    let config = ContainerConfig { log_path: path.into(), ..config() };
    match expected {
        Ok(path) => {
            assert_eq!(plan(&config).unwrap().log.map(|log| log.whole()), path.map(PathBuf::from))
        }
        Err(expected) => refused(plan(&config), expected),
    }
}

#[test]
fn relative_log_directory_is_refused() {
    let sandbox = PodSandboxConfig { log_directory: "logs".into(), ..sandbox() };
    let config = ContainerConfig { log_path: "c.log".into(), ..config() };
    refused(plan_on(IsolationMode::Root, &config, &sandbox, &image()), "log_directory");
}

#[rstest]
#[case::no_metadata(|c: &mut ContainerConfig| c.metadata = None, "no metadata")]
#[case::no_name(|c: &mut ContainerConfig| c.metadata.as_mut().unwrap().name.clear(), "metadata.name")]
#[case::seccomp(|c: &mut ContainerConfig| context(c).seccomp = Some(SecurityProfile { localhost_ref: "p".into(), ..profile() }), "seccomp")]
#[case::group_alone(|c: &mut ContainerConfig| context(c).run_as_group = Some(Int64Value { value: 1 }), "run_as_group")]
#[case::negative_user(|c: &mut ContainerConfig| context(c).run_as_user = Some(Int64Value { value: -1 }), "run_as_user -1")]
#[case::negative_group(|c: &mut ContainerConfig| context(c).supplemental_groups = vec![-1], "supplemental_groups -1")]
#[case::capability(|c: &mut ContainerConfig| context(c).capabilities = Some(Capability { add_capabilities: vec!["FLY".into()], ..Default::default() }), "FLY")]
#[case::variable(|c: &mut ContainerConfig| c.envs = vec![KeyValue { key: "A=B".into(), value: "".into() }], "A=B")]
#[allow(deprecated, reason = "old clients")]
fn invalid_container_is_refused(#[case] change: fn(&mut ContainerConfig), #[case] expected: &str) {
    let mut config = config();
    change(&mut config);
    refused(plan(&config), expected);
}

fn profile() -> SecurityProfile {
    SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref: "/p".into() }
}

#[test]
fn container_without_command_is_refused() {
    let config = ContainerConfig { command: Vec::new(), ..config() };
    let empty = ImageDefaults::default();
    refused(plan_on(IsolationMode::Root, &config, &sandbox(), &empty), "no command");
    refused(
        exec(&config, &empty, Path::new("/c"), &confined(), UserIds::default(), Vec::new(), false),
        "no command",
    );
}

#[test]
fn images_and_read_only_root_need_mount_namespace() {
    let mut config = config();
    assert!(plan_on(IsolationMode::Process, &config, &sandbox(), &image()).is_ok());
    context(&mut config).readonly_rootfs = true;
    refused(plan_on(IsolationMode::Process, &config, &sandbox(), &image()), "readonly_rootfs");
}

#[test]
fn default_masked_paths_apply_unless_client_names_some() {
    let mut config = config();
    config.linux = None;
    let default = plan(&config).unwrap();
    assert_eq!(
        (default.masked_paths.len(), default.readonly_paths.len()),
        (security::MASKED.len(), security::READ_ONLY.len())
    );
    context(&mut config);
    let unmasked = plan(&config).unwrap();
    assert_eq!((unmasked.masked_paths.len(), unmasked.readonly_paths.len()), (0, 0));
    context(&mut config).masked_paths = vec!["/m".into()];
    context(&mut config).readonly_paths = vec!["/r".into()];
    let own = plan(&config).unwrap();
    assert_eq!(
        (own.masked_paths, own.readonly_paths),
        (vec!["/m".to_owned()], vec!["/r".to_owned()])
    );
}

/// An exec has the container's user, variables, directory and capabilities, and its own command.
#[test]
fn exec_inherits_user_env_and_capabilities_of_container() {
    let mut config = config();
    context(&mut config).run_as_user = Some(Int64Value { value: 7 });
    context(&mut config).no_new_privs = true;
    context(&mut config).seccomp = Some(profile());
    config.args = vec!["dropped".into()];
    let first = plan(&config).unwrap().process;
    let further = exec(
        &config,
        &image(),
        Path::new("/state/sandboxes/s/containers/c"),
        &confined(),
        UserIds::default(),
        vec!["ls".into()],
        false,
    )
    .unwrap()
    .process;
    assert_eq!(further.args, ["ls"]);
    assert_eq!(further.confinement, confined());
    assert_eq!(
        (
            further.env,
            further.cwd,
            further.user,
            further.capabilities,
            further.no_new_privileges,
            further.seccomp
        ),
        (
            first.env,
            first.cwd,
            first.user,
            first.capabilities,
            first.no_new_privileges,
            first.seccomp
        )
    );
}

#[rstest]
#[case::the_clients(Signal::Sigusr1, Some("SIGQUIT"), 10)]
#[case::the_images(Signal::RuntimeDefault, Some("SIGQUIT"), 3)]
#[case::neither(Signal::RuntimeDefault, None, 15)]
fn stop_signal_follows_client_then_image(
    #[case] requested: Signal,
    #[case] of_image: Option<&str>,
    #[case] expected: i32,
) {
    let mut config = config();
    config.stop_signal = requested.into();
    let image = ImageDefaults { stop_signal: of_image.map(Into::into), ..image() };
    assert_eq!(stop_signal(&config, &image), Ok(expected));
    config.stop_signal = 1_000;
    refused(stop_signal(&config, &image), "stop_signal 1000");
}

/// A process with a terminal gets a `TERM`, unless the image or the client sets one: its own terminal counts, not its
/// container's.
#[rstest]
#[case::none(false, &[], None)]
#[case::unsaid(true, &[], Some("TERM=xterm"))]
#[case::said(true, &["TERM=vt100"], Some("TERM=vt100"))]
#[case::said_without_one(false, &["TERM=vt100"], Some("TERM=vt100"))]
fn term_is_set_on_terminal_unless_given(
    #[case] tty: bool,
    #[case] of_image: &[&str],
    #[case] expected: Option<&str>,
) {
    let image =
        ImageDefaults { env: of_image.iter().map(|pair| (*pair).to_owned()).collect(), ..image() };
    let last = |process: ProcessPlan| {
        let of_term = |pair: &&String| pair.starts_with("TERM=");
        process.env.iter().rfind(of_term).cloned()
    };
    let container = ContainerConfig { tty, ..config() };
    let plan = plan_on(IsolationMode::Root, &container, &sandbox(), &image).unwrap();
    assert_eq!(plan.terminal, tty);
    assert_eq!(last(plan.process).as_deref(), expected);
    let container = ContainerConfig { tty: !tty, ..config() };
    let exec = exec(
        &container,
        &image,
        Path::new("/c"),
        &confined(),
        UserIds::default(),
        vec!["ls".into()],
        tty,
    )
    .unwrap();
    assert_eq!(exec.terminal, tty);
    assert_eq!(last(exec.process).as_deref(), expected);
}
