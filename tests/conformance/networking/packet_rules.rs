//! Traffic beyond the host: pods send with the host's address, and host ports preserve the client's address.

use harness::Netns;

use crate::support::*;

/// Sends each client its own address, over IPv4 and IPv6.
const SERVER: &str = r#"exec perl -MIO::Socket::IP -e '
    $server = IO::Socket::IP->new(Listen => 5, LocalHost => "::", LocalPort => 8080, V6Only => 0) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { $from = $client->peerhost; $from =~ s/^::ffff://; print $client "$from\n"; close $client }'"#;

/// Two connected network namespaces: the host of the runtime, which may forward packets, and another machine.
struct Hosts {
    other: Netns,
    host: Netns,
}

impl Hosts {
    fn make(forward: bool) -> Self {
        let (host, other) = (Netns::make().unwrap(), Netns::make().unwrap());
        host.connect("192.0.2.1/24", &other, "192.0.2.2/24").unwrap();
        for (netns, address) in [(&host, "2001:db8::1/64"), (&other, "2001:db8::2/64")] {
            let add = ["address", "add", address, "dev", "wire", "nodad"];
            netns.run("ip", &add).unwrap();
        }
        // A new network namespace inherits the host's value, so it is always set.
        let value = u8::from(forward);
        let all = [
            "-qw",
            &format!("net.ipv4.ip_forward={value}"),
            &format!("net.ipv6.conf.all.forwarding={value}"),
        ];
        host.run("sysctl", &all).unwrap();
        Self { other, host }
    }
}

/// The client address that the server at `address` sees for a connection from `netns`.
async fn send_request(netns: &Netns, address: &str, port: u16) -> std::io::Result<String> {
    let script = format!("exec 3<>/dev/tcp/{address}/{port} && cat <&3");
    let mut command = netns.command("timeout");
    command.args(["20", "bash", "-c", &script]);
    let output = tokio::process::Command::from(command).output().await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

async fn server(runtime: &Runtime, port: u16) -> Pod {
    let mut config = runtime.sandbox("server");
    config.port_mappings = vec![v1::PortMapping {
        protocol: v1::Protocol::Tcp.into(),
        container_port: 8080,
        host_port: port.into(),
        host_ip: String::new(),
    }];
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    pod.start_ready(pod.script("server", SERVER)).await.unwrap();
    pod
}

/// The nf_tables tables of a network namespace, as `nft` would list them.
fn tables(netns: &Netns) -> Vec<String> {
    use std::os::fd::AsFd as _;
    let file = std::fs::File::open(netns.path()).unwrap();
    std::thread::scope(|scope| {
        let list = scope.spawn(|| {
            nix::sched::setns(file.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            network::tables().unwrap()
        });
        list.join().unwrap()
    })
}

#[tokio::test]
async fn host_port_preserves_source_address_of_other_machine() {
    harness::needs!(Root);
    let Hosts { other, host } = Hosts::make(true);
    let runtime = Runtime::with().durable().netns(&host.path()).start().await.unwrap();
    let pod = server(&runtime, 12000).await;
    let source_of = async |from: &Netns, to| send_request(from, to, 12000).await.unwrap();
    assert_eq!(source_of(&other, "192.0.2.1").await, "192.0.2.2");
    assert_eq!(source_of(&other, "2001:db8::1").await, "2001:db8::2");
    // From the host itself the forwarder serves the port, on every address.
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    let own = status.network.unwrap();
    for address in ["127.0.0.1", "192.0.2.1"] {
        assert_eq!(source_of(&host, address).await, own.ip);
    }
    for address in ["::1", "2001:db8::1"] {
        assert_eq!(source_of(&host, address).await, own.additional_ips[0].ip);
    }
    // The rules are two tables with the bridge's name, one for frames and one for packets, which survive the daemon.
    let name = runtime_fake::instance_name(&runtime.state_dir());
    assert_eq!(tables(&host), [name.clone(), name]);
    let mut runtime = runtime;
    runtime.kill9().await;
    assert_eq!(source_of(&other, "192.0.2.1").await, "192.0.2.2");
    runtime.restart().await.unwrap();
    assert_eq!(source_of(&other, "192.0.2.1").await, "192.0.2.2");
    // The tables are removed with the bridge.
    runtime.client.remove_pod(&pod.id).await.unwrap();
    assert!(send_request(&other, "192.0.2.1", 12000).await.is_err());
    runtime.stop().await.unwrap();
    assert_eq!(tables(&host), Vec::<String>::new());
}

#[tokio::test]
async fn pod_traffic_leaves_with_host_address() {
    harness::needs!(Root);
    let Hosts { other, host } = Hosts::make(true);
    let runtime = Runtime::with().netns(&host.path()).start().await.unwrap();
    let mut listening = other.command("bash");
    listening.args(["-c", SERVER]);
    let mut listening =
        harness::process::Process::spawn(listening.stdout(std::process::Stdio::piped())).unwrap();
    let mut line = String::new();
    let stdout = listening.take_stdout().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pod = runtime.pod("client").await.unwrap();
    for (to, expected) in [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")] {
        let script = format!("timeout 20 bash -c 'exec 3<>/dev/tcp/{to}/8080 && cat <&3'");
        let name = fixture::unique("client");
        let output = pod.output(pod.script(&name, &script)).await.unwrap();
        assert_eq!(output.trim(), expected);
    }
}

/// The host's administrator decides about IP forwarding. Without it there are no rules, and the forwarder serves host ports.
#[tokio::test]
async fn host_ports_work_without_ip_forwarding() {
    harness::needs!(Root);
    let Hosts { other, host } = Hosts::make(false);
    let runtime = Runtime::with().netns(&host.path()).start().await.unwrap();
    let pod = server(&runtime, 12000).await;
    let own = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    let source_of = async |from: &Netns, to| send_request(from, to, 12000).await.unwrap();
    assert_eq!(source_of(&other, "192.0.2.1").await, own.network.unwrap().ip);
    // Only the table for frames.
    assert_eq!(tables(&host), [runtime_fake::instance_name(&runtime.state_dir())]);
    // If forwarding is enabled later, the next pod installs the rules.
    let all = ["-qw", "net.ipv4.ip_forward=1"];
    host.run("sysctl", &all).unwrap();
    runtime.pod("late").await.unwrap();
    let seen =
        eventually(WAIT_LIMIT, "the rules", async || match source_of(&other, "192.0.2.1").await {
            seen if seen == "192.0.2.2" => Ok(seen),
            seen => Err(seen),
        });
    seen.await;
}

/// Docker sets such a filter policy: packets would be dropped, so the forwarder serves the port.
#[tokio::test]
async fn host_ports_work_when_filter_drops_forwarded_packets() {
    harness::needs!(Root);
    let Hosts { other, host } = Hosts::make(true);
    host.run("iptables", &["-P", "FORWARD", "DROP"]).unwrap();
    let runtime = Runtime::with().netns(&host.path()).start().await.unwrap();
    let pod = server(&runtime, 12000).await;
    let own = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    let output = send_request(&other, "192.0.2.1", 12000).await.unwrap();
    assert_eq!(output, own.network.unwrap().ip);
    // The filter does not affect IPv6.
    let output = send_request(&other, "2001:db8::1", 12000).await.unwrap();
    assert_eq!(output, "2001:db8::2");
}

/// The conntrack entry of the removed pod must not capture a client that keeps its source port.
#[tokio::test]
async fn udp_flow_reaches_replacement_pod() {
    const ECHO: &str = r#"exec perl -MIO::Socket::INET -e '
        $server = IO::Socket::INET->new(Proto => "udp", LocalPort => 8080) or die "bind: $!";
        $| = 1; print "ready\n";
        while ($from = $server->recv($text, 100)) { $server->send(`hostname` . $server->peerhost) }'"#;
    const CLIENT: &str = r#"
        $socket = IO::Socket::INET->new(Proto => "udp", LocalPort => 5353, PeerAddr => "192.0.2.1:12000") or die $!;
        $socket->send("hello"); alarm 20; $socket->recv($text, 100); print $text"#;
    harness::needs!(Root);
    let Hosts { other, host } = Hosts::make(true);
    let runtime = Runtime::with().netns(&host.path()).start().await.unwrap();
    for name in ["first", "second"] {
        let mut config = runtime.sandbox(name);
        config.port_mappings = vec![v1::PortMapping {
            protocol: v1::Protocol::Udp.into(),
            container_port: 8080,
            host_port: 12000,
            host_ip: String::new(),
        }];
        let pod = Pod::run(&runtime.client, config).await.unwrap();
        pod.start_ready(pod.script("server", ECHO)).await.unwrap();
        let output = other.run("perl", &["-MIO::Socket::INET", "-e", CLIENT]).unwrap();
        assert_eq!(output, format!("{name}\n192.0.2.2"));
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
}
