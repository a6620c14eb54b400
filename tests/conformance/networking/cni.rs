//! CNI plugins: their input, the order of their calls, and the state of pods when they fail.

mod debian_plugins;
mod namespace;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::*;

/// A plugin that records its input and then its call, waits while a `hold` file exists, records the network namespace that it
/// finds, fails if a `fail` file exists, and otherwise returns the same address for every pod. With a file `claim` it also claims
/// to have created an interface.
const PLUGIN: &str = r#"#!/bin/sh
here=$(dirname "$0")
name=$(basename "$0")
netns=
if [ -n "$CNI_NETNS" ]; then if [ -e "$CNI_NETNS" ]; then netns=there; else netns=gone; fi; fi
{ tr -d '\n'; echo; } >> "$here/$CNI_COMMAND.$name"
echo "$CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS" >> "$here/variables"
echo "$CNI_COMMAND $name $netns" >> "$here/calls"
if [ -e "$here/hold.$CNI_COMMAND.$name" ]; then cat "$here/hold.$CNI_COMMAND.$name"; fi
if [ -n "$CNI_NETNS" ]; then echo "$CNI_COMMAND $name $(readlink "$CNI_NETNS")" >> "$here/namespaces"; fi
if [ -e "$here/fail.$CNI_COMMAND.$name" ]; then cat "$here/fail.$CNI_COMMAND.$name"; exit 1; fi
if [ "$CNI_COMMAND" = ADD ]; then
    made=
    if [ -e "$here/claim" ]; then made='"interfaces": [{"name": "eth0", "sandbox": "'$CNI_NETNS'"}],'; fi
    echo '{"cniVersion": "1.1.0", '"$made"'"ips": [{"address": "10.9.8.7/24"}, {"address": "fd09::7/64"}],
        "dns": {"nameservers": ["10.9.8.1"], "search": ["plugin.test"]}}'
fi
"#;

/// The test's own directories of plugins and configurations.
struct Plugins {
    root: TempDir,
}

impl Plugins {
    fn new() -> Self {
        let plugins = Self { root: tempfile::Builder::new().prefix("crib-cni").tempdir().unwrap() };
        // Plugins run as the user who started the daemon.
        fs::create_dir(plugins.conf_dir()).unwrap();
        for name in ["one", "two"] {
            write_program(&plugins.path(name), PLUGIN).unwrap();
        }
        plugins
    }

    /// With a configured network of the plugins `one` and `two`.
    fn configured() -> Self {
        let plugins = Self::new();
        plugins.configure_both();
        plugins
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn conf_dir(&self) -> PathBuf {
        self.path("net.d")
    }

    fn configure(&self, name: &str, list: &Value) {
        fs::write(self.conf_dir().join(name), list.to_string()).unwrap();
    }

    /// Configures a network of the plugins `one` and `two`.
    fn configure_both(&self) {
        let capabilities = json!({"portMappings": true, "bandwidth": true, "dns": true});
        self.configure(
            "10-test.conflist",
            &json!({"cniVersion": "1.1.0", "name": "test", "plugins": [
                {"type": "one", "own": 1}, {"type": "two", "capabilities": capabilities}]}),
        );
    }

    fn options(&self) -> Options {
        let argument = |name: &str, path: &Path| format!("--{name}={}", path.display());
        Runtime::with()
            .argument(argument("cni-conf-dir", &self.conf_dir()))
            .argument(argument("cni-bin-dir", self.root.path()))
            .argument("--cni-bin-dir=/usr/lib/cni")
    }

    /// Takes the lines of a file that the plugins write.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        let _ = fs::remove_file(self.path(name));
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn inputs(&self, command: &str, plugin: &str) -> Vec<Value> {
        let lines = self.lines(&format!("{command}.{plugin}"));
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Makes a plugin fail, with this output unless it is empty.
    fn fail(&self, command: &str, plugin: &str, words: &str) {
        fs::write(self.path(&format!("fail.{command}.{plugin}")), words).unwrap();
    }

    fn succeed(&self, command: &str, plugin: &str) {
        fs::remove_file(self.path(&format!("fail.{command}.{plugin}"))).unwrap();
    }
}

async fn pods(runtime: &Runtime) -> Vec<v1::PodSandbox> {
    let all = v1::PodSandboxFilter::default();
    runtime.client.pods(all).await.unwrap()
}

#[tokio::test]
async fn plugins_receive_configuration_and_runtime_arguments() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    // Ignored, because another configuration is first by name.
    plugins.configure("20-other.conf", &json!({"cniVersion": "0.1.0"}));
    let mut runtime = plugins.options().durable().start().await.unwrap();
    assert_eq!(plugins.lines("calls")[..2], ["GC one", "GC two"]);
    plugins.lines("variables");
    let mut config = runtime.sandbox("pod");
    let port = crate::networking::host_ports::free_port();
    config.port_mappings = vec![v1::PortMapping {
        container_port: 80,
        host_port: port.into(),
        host_ip: "127.0.0.1".to_owned(),
        ..Default::default()
    }];
    config.annotations = [("kubernetes.io/ingress-bandwidth", "10M")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let metadata = config.metadata.clone().unwrap();
    let pod = Pod::run(&runtime.client, config).await.unwrap();

    assert_eq!(plugins.lines("calls"), ["ADD one there", "ADD two there"]);
    let variables = format!(
        "{id} eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={}",
        metadata.namespace,
        metadata.name,
        metadata.uid,
        id = pod.id,
    );
    assert_eq!(plugins.lines("variables"), [variables.clone(), variables]);
    let one = &plugins.inputs("ADD", "one")[0];
    assert_eq!(*one, json!({"cniVersion": "1.1.0", "name": "test", "type": "one", "own": 1}));
    let two = &plugins.inputs("ADD", "two")[0];
    assert_eq!(
        two["runtimeConfig"],
        json!({
            "portMappings": [{"protocol": "tcp", "hostPort": port, "containerPort": 80, "hostIP": "127.0.0.1"}],
            "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": i32::MAX}})
    );
    assert_eq!(two["prevResult"]["ips"][0]["address"], "10.9.8.7/24");
    let network = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    let network = network.network.unwrap();
    assert_eq!(network.ip, "10.9.8.7");
    assert_eq!(network.additional_ips[0].ip, "fd09::7");
    // The client gives no DNS configuration, so that of the plugins applies.
    let resolv = pod.output(pod.script("resolv", "cat /etc/resolv.conf")).await;
    assert_eq!(resolv.unwrap(), "search plugin.test\nnameserver 10.9.8.1\n");

    // Each Status call runs the STATUS command.
    assert!(runtime.client.status().await.is_ok());
    assert_eq!(plugins.lines("calls"), ["STATUS one", "STATUS two"]);

    // A restarted daemon runs CHECK.
    runtime.kill_and_restart().await.unwrap();
    let checked = eventually(WAIT_LIMIT, "the check", async || {
        let calls = fs::read_to_string(plugins.path("calls")).unwrap_or_default();
        if calls.contains("CHECK two there") { Ok(()) } else { Err(calls) }
    });
    checked.await;
    let valid = &plugins.inputs("GC", "one")[1]["cni.dev/valid-attachments"];
    assert_eq!(*valid, json!([{"containerID": pod.id, "ifname": "eth0"}]));
    assert!(plugins.inputs("CHECK", "two")[0]["prevResult"]["ips"].is_array());

    // DEL runs once, with the configuration that ADD used.
    file_tree::remove(&plugins.conf_dir()).unwrap();
    plugins.lines("calls");
    runtime.client.stop_pod(&pod.id).await.unwrap();
    runtime.client.stop_pod(&pod.id).await.unwrap();
    assert_eq!(plugins.lines("calls"), ["DEL two there", "DEL one there"]);
    let two = &plugins.inputs("DEL", "two")[0];
    assert_eq!(two["prevResult"]["ips"][0]["address"], "10.9.8.7/24");
    assert!(two["runtimeConfig"]["portMappings"].is_array());
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert_eq!(plugins.lines("calls"), Vec::<String>::new());
}

#[tokio::test]
async fn run_pod_undoes_add_when_plugin_fails() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let runtime = plugins.options().start().await.unwrap();
    plugins.lines("calls");
    plugins.fail(
        "ADD",
        "two",
        r#"{"code": 100, "msg": "no more addresses", "details": "all 5 are taken"}"#,
    );
    let config = runtime.sandbox("pod");
    let error = runtime.client.run_pod(config.clone()).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(
        error.message(),
        "failed to set up the pod's network: the CNI plugin two failed to ADD the network test: no more addresses (all 5 are taken)"
    );
    let seen = plugins.lines("calls");
    assert_eq!(seen, ["ADD one there", "ADD two there", "DEL two there", "DEL one there"]);
    assert_eq!(pods(&runtime).await, []);
    // Error code 11 means "try again later".
    plugins.fail("ADD", "two", r#"{"code": 11, "msg": "later"}"#);
    assert_eq!(code(runtime.client.run_pod(config.clone()).await), Code::Unavailable);
    plugins.fail("ADD", "two", "");
    let error = runtime.client.run_pod(config.clone()).await.unwrap_err();
    assert!(error.message().ends_with("no error message"), "{error}");
    // The same call succeeds when the plugin works again.
    plugins.succeed("ADD", "two");
    runtime.client.run_pod(config).await.unwrap();
}

#[tokio::test]
async fn pod_is_kept_not_ready_while_del_fails() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let mut runtime = plugins.options().durable().start().await.unwrap();
    plugins.fail("ADD", "two", "");
    plugins.fail("DEL", "one", r#"{"code": 100, "msg": "busy"}"#);
    let config = runtime.sandbox("pod");
    let error = runtime.client.run_pod(config.clone()).await.unwrap_err();
    assert!(error.message().contains("failed to undo it"), "{error}");
    assert!(error.message().contains("busy"), "{error}");
    let left = pods(&runtime).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].state(), v1::PodSandboxState::SandboxNotready);
    runtime.kill_and_restart().await.unwrap();
    assert_eq!(pods(&runtime).await, left);
    let error = runtime.client.remove_pod(&left[0].id).await.unwrap_err();
    assert!(error.message().contains("busy"), "{error}");
    assert_eq!(pods(&runtime).await, left);
    plugins.succeed("DEL", "one");
    plugins.succeed("ADD", "two");
    runtime.client.remove_pod(&left[0].id).await.unwrap();
    assert_eq!(pods(&runtime).await, []);
    runtime.client.run_pod(config).await.unwrap();
}

/// A lost namespace or result does not prevent StopPodSandbox.
#[tokio::test]
async fn stop_runs_del_without_namespace_or_cached_result() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let mut runtime = plugins.options().durable().start().await.unwrap();
    let (first, second) =
        (runtime.pod("first").await.unwrap(), runtime.pod("second").await.unwrap());
    plugins.lines("calls");
    let directory = |pod: &Pod| runtime.state_dir().join("sandboxes").join(&pod.id);
    kill(keeper_of(&runtime, &first.id), Signal::SIGKILL).unwrap();
    eventually(WAIT_LIMIT, "the end of the pod", async || {
        let ready = runtime.client.pod_is_ready(&first.id).await.unwrap();
        if ready { Err("it is ready") } else { Ok(()) }
    })
    .await;
    runtime.client.stop_pod(&first.id).await.unwrap();
    assert_eq!(plugins.lines("calls"), ["DEL two", "DEL one"]);
    runtime.client.remove_pod(&first.id).await.unwrap();

    fs::remove_file(directory(&second).join("cni.json")).unwrap();
    runtime.client.stop_pod(&second.id).await.unwrap();
    assert_eq!(plugins.lines("calls"), ["DEL two there", "DEL one there"]);
    runtime.client.remove_pod(&second.id).await.unwrap();
    // A daemon without CNI options still runs DEL with the configuration that ADD used.
    let third = runtime.pod("third").await.unwrap();
    runtime.stop().await;
    plugins.lines("calls");
    drop(runtime);
    assert_eq!(plugins.lines("calls"), ["DEL two there", "DEL one there"]);
    drop(third);
}

#[tokio::test]
async fn network_is_not_ready_without_usable_configuration() {
    harness::needs!(Namespaces);
    let plugins = Plugins::new();
    let runtime = plugins.options().start().await.unwrap();
    let network = async || {
        let status = runtime.client.status().await.unwrap().status.unwrap();
        let mut conditions = status.conditions.into_iter();
        conditions.find(|c| c.r#type == "NetworkReady").unwrap()
    };
    let condition = network().await;
    assert!(!condition.status);
    assert_eq!(condition.reason, "NetworkPluginNotReady");
    assert!(condition.message.contains("there is no *.conflist"), "{condition:?}");
    let error = runtime.client.run_pod(runtime.sandbox("pod")).await;
    assert_eq!(error.unwrap_err().code(), Code::FailedPrecondition);
    // A pod in the host network needs no plugin.
    let mut config = runtime.sandbox("host");
    config.hostname.clear();
    let linux = config.linux.as_mut().unwrap();
    let context = linux.security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().network = v1::NamespaceMode::Node.into();
    runtime.client.run_pod(config).await.unwrap();

    plugins
        .configure("10-broken.conf", &json!({"cniVersion": "0.1.0", "name": "x", "type": "one"}));
    let condition = network().await;
    assert!(condition.message.contains("10-broken.conf cannot be used"), "{condition:?}");
    plugins.configure_both();
    assert!(network().await.status);
    plugins.fail("STATUS", "two", r#"{"code": 50, "msg": "not yet"}"#);
    let condition = network().await;
    assert!(!condition.status);
    assert!(condition.message.contains("not yet"), "{condition:?}");
    plugins.succeed("STATUS", "two");
    // The plugin is not installed.
    let missing = json!({"cniVersion": "1.0.0", "name": "x", "type": "nowhere"});
    plugins.configure("00-first.conf", &missing);
    let error = runtime.client.run_pod(runtime.sandbox("pod")).await.unwrap_err();
    assert!(error.message().contains("there is no CNI plugin \"nowhere\" in "), "{error}");
    assert_eq!(pods(&runtime).await.len(), 1);
}

/// An invalid rate is rejected before any plugin runs.
#[tokio::test]
async fn run_pod_rejects_invalid_bandwidth() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let runtime = plugins.options().start().await.unwrap();
    plugins.lines("calls");
    let mut config = runtime.sandbox("pod");
    let annotation = ("kubernetes.io/egress-bandwidth", "fast");
    config.annotations =
        [annotation].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(code(runtime.client.run_pod(config).await), Code::InvalidArgument);
    assert_eq!(plugins.lines("calls"), Vec::<String>::new());
}

/// The daemon is killed while a plugin runs; the restarted daemon undoes the ADD.
#[tokio::test]
async fn restart_undoes_interrupted_add() {
    harness::needs!(Namespaces);
    let plugins = Plugins::configured();
    let mut runtime = plugins.options().durable().start().await.unwrap();
    plugins.lines("calls");
    // The plugin blocks until the test writes to the FIFO.
    let pipe = plugins.path("fail.ADD.two");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    let (client, config) = (runtime.client.clone(), runtime.sandbox("pod"));
    let again = config.clone();
    let run = tokio::spawn(async move { client.run_pod(config).await });
    eventually(WAIT_LIMIT, "the second plugin", async || {
        let calls = fs::read_to_string(plugins.path("calls")).unwrap_or_default();
        if calls.contains("ADD two") { Ok(()) } else { Err(calls) }
    })
    .await;
    runtime.kill9().await;
    run.await.unwrap().unwrap_err();
    let writer = tokio::task::spawn_blocking({
        let pipe = pipe.clone();
        move || fs::write(pipe, "")
    });
    writer.await.unwrap().unwrap();
    fs::remove_file(pipe).unwrap();
    plugins.lines("calls");
    runtime.restart().await.unwrap();
    let calls = plugins.lines("calls");
    assert!(calls.iter().any(|call| call.starts_with("DEL one")), "{calls:?}");
    assert!(calls.iter().any(|call| call.starts_with("DEL two")), "{calls:?}");
    assert_eq!(pods(&runtime).await, []);
    runtime.client.run_pod(again).await.unwrap();
}

/// ADD blocks until the test writes to the FIFO `gate`, if it exists.
const HANGING: &str = r#"#!/bin/sh
here=$(dirname "$0")
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo called >> "$here/added"
    if [ -p "$here/gate" ]; then cat "$here/gate" > /dev/null; fi
    echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.8.7/24"}]}'
fi
"#;

#[tokio::test]
async fn sigterm_ends_daemon_while_plugin_hangs() {
    harness::needs!(Namespaces);
    let plugins = Plugins::new();
    write_program(&plugins.path("hanging"), HANGING).unwrap();
    plugins.configure(
        "10-hanging.conflist",
        &json!({"cniVersion": "1.1.0", "name": "hanging", "plugins": [{"type": "hanging"}]}),
    );
    let gate = plugins.path("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let mut runtime = plugins.options().durable().start().await.unwrap();
    let mut run = tokio::spawn({
        let (client, config) = (runtime.client.clone(), runtime.sandbox("p"));
        async move { client.run_pod(config).await }
    });
    let called = eventually(WAIT_LIMIT, "the plugin to be called", async || {
        match plugins.lines("added").len() {
            0 => Err("not called"),
            _ => Ok(()),
        }
    });
    tokio::select! {
        () = called => {}
        outcome = &mut run => panic!("RunPodSandbox ended before it called the plugin: {outcome:?}"),
    }
    let began = Instant::now();
    assert!(runtime.stop().await.unwrap().success());
    let bound = Duration::from_secs(10 + 5);
    assert!(began.elapsed() < bound, "{:?}", began.elapsed());
    run.await.unwrap().unwrap_err();
    // Unblocks the plugin. Opened for reading and writing, so that the open does not block.
    drop(fs::File::options().read(true).write(true).open(&gate).unwrap());
    fs::remove_file(&gate).unwrap();
}
