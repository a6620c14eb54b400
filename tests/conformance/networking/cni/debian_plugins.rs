//! Debian's CNI plugins, in a network namespace of the test.

use harness::Netns;

use super::*;

const SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { print $client "from ", $client->peerhost, "\n"; close $client }'"#;

fn bridge(plugins: &Plugins) -> Value {
    json!({"type": "bridge", "bridge": "cni-test", "isGateway": true, "ipMasq": false, "ipam": {
        "type": "host-local", "dataDir": plugins.path("leases"),
        "ranges": [[{"subnet": "10.99.0.0/24"}], [{"subnet": "fd99::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}})
}

/// Addresses that host-local has allocated and not released.
fn leases(plugins: &Plugins) -> Vec<String> {
    let entries = fs::read_dir(plugins.path("leases/test"));
    let names = entries.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("10.") || name.starts_with("fd"))
        .collect()
}

async fn send_request(pod: &Pod, address: &str, port: u16) -> String {
    let script = format!("exec timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/{port} && cat <&3'");
    let name = harness::fixture::unique("client");
    pod.output(pod.script(&name, &script)).await.unwrap()
}

/// For an ordinary user the plugins run in the pods' private network.
#[tokio::test]
async fn bridge_plugin_connects_pods_and_assigns_addresses() {
    harness::needs!(Namespaces, CniPlugins);
    let plugins = Plugins::new();
    let list = json!({"cniVersion": "1.0.0", "name": "test", "plugins": [bridge(&plugins)]});
    plugins.configure("10-test.conflist", &list);
    let netns = nix::unistd::geteuid().is_root().then(|| Netns::make().unwrap());
    let options = plugins.options().durable();
    let options = match &netns {
        Some(netns) => options.netns(&netns.path()),
        None => options,
    };
    let mut runtime = options.start().await.unwrap();
    let (server, client) =
        (runtime.pod("server").await.unwrap(), runtime.pod("client").await.unwrap());
    let network = runtime.client.pod(&server.id).await.unwrap().status.unwrap();
    let network = network.network.unwrap();
    assert!(network.ip.starts_with("10.99.0."), "{network:?}");
    assert!(network.additional_ips[0].ip.starts_with("fd99::"), "{network:?}");
    server.start_ready(server.script("server", SERVER)).await.unwrap();
    let message = send_request(&client, &network.ip, 8080).await;
    assert!(message.starts_with("from 10.99.0."), "{message}");
    assert_eq!(leases(&plugins).len(), 4);
    // The restart runs CHECK.
    runtime.kill_and_restart().await.unwrap();
    for pod in [&server, &client] {
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    assert_eq!(leases(&plugins), Vec::<String>::new());
    assert!(!runtime.log().contains("pod network check failed"));
}

#[tokio::test]
async fn portmap_and_bandwidth_plugins_apply_and_undo_settings() {
    harness::needs!(Root, CniPlugins);
    let plugins = Plugins::new();
    let list = json!({"cniVersion": "1.0.0", "name": "test", "plugins": [
        bridge(&plugins),
        {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_notify": "1"}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        {"type": "firewall"}]});
    plugins.configure("10-test.conflist", &list);
    let (host, other) = (Netns::make().unwrap(), Netns::make().unwrap());
    host.connect("192.0.2.1/24", &other, "192.0.2.2/24").unwrap();
    host.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"]).unwrap();
    let runtime = plugins.options().netns(&host.path()).start().await.unwrap();
    let mut config = runtime.sandbox("server");
    config.port_mappings =
        vec![v1::PortMapping { container_port: 8080, host_port: 12000, ..Default::default() }];
    config.annotations = ["ingress", "egress"]
        .map(|way| (format!("kubernetes.io/{way}-bandwidth"), "50M".to_owned()))
        .into();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    pod.start_ready(pod.script("server", SERVER)).await.unwrap();
    let script = "exec timeout 20 bash -c 'exec 3<>/dev/tcp/192.0.2.1/12000 && cat <&3'";
    let message = other.run("bash", &["-c", script]).unwrap();
    assert_eq!(message, "from 192.0.2.2\n");
    let shaped = host.run("tc", &["qdisc", "show"]).unwrap();
    assert!(shaped.contains("rate 50Mbit"), "{shaped}");
    let rules = || host.run("iptables-save", &[]).unwrap();
    assert!(rules().contains("12000"), "{}", rules());
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert!(!rules().contains("12000"), "{}", rules());
    let shaped = host.run("tc", &["qdisc", "show"]).unwrap();
    assert!(!shaped.contains("rate 50Mbit"), "{shaped}");
    assert_eq!(leases(&plugins), Vec::<String>::new());
}
