//! Subnets: how daemons claim them, what happens without one, and how many pods they hold.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use harness::process::Process;

use super::*;

/// Binds every free name from its standard input, and keeps them bound.
const SQUATTER: &str = r#"ulimit -n 4096; exec perl -MSocket -e '
    while (<STDIN>) { chomp; socket($s, AF_UNIX, SOCK_DGRAM, 0) or die; push @kept, $s;
        bind($s, pack_sockaddr_un("\0$_")); undef $s }
    $| = 1; print "bound\n"; sleep 1000'"#;

async fn network_condition(runtime: &Runtime) -> v1::RuntimeCondition {
    let status = runtime.client.status().await.unwrap().status.unwrap();
    let mut conditions = status.conditions.into_iter();
    conditions.find(|c| c.r#type == "NetworkReady").unwrap()
}

/// Any user can bind any abstract socket name.
#[tokio::test]
async fn abstract_sockets_of_other_users_claim_no_subnet() {
    harness::needs!(Namespaces);
    let is_root = nix::unistd::geteuid().is_root();
    let netns = is_root.then(|| Netns::make().unwrap());
    let mut command = match &netns {
        Some(netns) => netns.command("sh"),
        None => Command::new("sh"),
    };
    let names = std::env::temp_dir().join(fixture::unique("names"));
    let pools = [("10", 200..204), ("198", 18..20)];
    let names_of = |prefix_len: u8| {
        let pools = pools.iter().flat_map(|(a, pool)| pool.clone().map(move |b| (a, b)));
        pools
            .flat_map(move |(a, b)| {
                (0..256).map(move |c| format!("crib/subnet/{a}.{b}.{c}.0/{prefix_len}\n"))
            })
            .collect::<String>()
    };
    std::fs::write(&names, names_of(24)).unwrap();
    command
        .args(["-c", SQUATTER])
        .stdin(std::fs::File::open(&names).unwrap())
        .stdout(Stdio::piped());
    let mut squatter = Process::spawn(&mut command).unwrap();
    std::fs::remove_file(&names).unwrap();
    let mut line = String::new();
    let stdout = squatter.take_stdout().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "bound\n");

    let options = Runtime::with();
    let options = match &netns {
        Some(netns) => options.netns(&netns.path()),
        None => options,
    };
    let runtime = options.start().await.unwrap();
    let condition = network_condition(&runtime).await;
    assert!(condition.status, "{condition:?}");
    assert_eq!(condition.reason, "");
    let pod = runtime.pod("pod").await.unwrap();
    let address: std::net::IpAddr = address(&pod).await.parse().unwrap();
    assert!(!address.is_loopback(), "{address}");
}

#[tokio::test]
async fn run_pod_fails_until_subnet_is_free() {
    harness::needs!(Namespaces, Root);
    let netns = Netns::make().unwrap();
    let route = |verb: &str| {
        for subnet in ["10.200.0.0/14", "198.18.0.0/15"] {
            let arguments = ["route", verb, "blackhole", subnet];
            netns.run("ip", &arguments).unwrap();
        }
    };
    route("add");
    let runtime = Runtime::with().netns(&netns.path()).start().await.unwrap();
    let condition = network_condition(&runtime).await;
    assert!(!condition.status, "{condition:?}");
    assert_eq!(condition.reason, "NetworkNotReady");
    assert!(condition.message.contains("no subnet of"), "{condition:?}");
    rejected(
        runtime.client.run_pod(runtime.sandbox("pod")).await,
        Code::FailedPrecondition,
        "no subnet of",
    );
    // A pod in the host network needs no subnet.
    let mut config = runtime.sandbox("host");
    config.hostname.clear();
    fixture::pod_namespaces(&mut config).network = v1::NamespaceMode::Node.into();
    runtime.client.run_pod(config).await.unwrap();

    route("del");
    let condition = network_condition(&runtime).await;
    assert!(condition.status, "{condition:?}");
    let pod = runtime.pod("pod").await.unwrap();
    assert!(address(&pod).await.starts_with("10."));
}

#[tokio::test]
async fn run_pod_names_full_subnet() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(Some("--pod-cidr=10.77.0.0/29")).await;
    let mut pods = Vec::new();
    for number in 0..5 {
        pods.push(runtime.pod(&format!("pod-{number}")).await.unwrap());
    }
    let config = runtime.sandbox("too-many");
    rejected(runtime.client.run_pod(config.clone()).await, Code::ResourceExhausted, "10.77.0.0/29");
    runtime.client.remove_pod(&pods[0].id).await.unwrap();
    runtime.client.run_pod(config).await.unwrap();
}

/// More pods than a /24 subnet has addresses.
#[tokio::test]
async fn three_hundred_pods_have_addresses_and_reach_each_other() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(None).await;
    let first = runtime.pod("first").await.unwrap();
    serve(&first).await;
    let configs: Vec<_> = (0..298).map(|n| runtime.sandbox(&format!("pod-{n}"))).collect();
    let running = configs.chunks(38).map(async |configs| {
        let mut made = Vec::new();
        for config in configs {
            made.push(Pod::run(&runtime.client, config.clone()).await.unwrap());
        }
        made
    });
    let pods: Vec<Pod> =
        futures_util::future::join_all(running).await.into_iter().flatten().collect();
    let last = runtime.pod("last").await.unwrap();
    serve(&last).await;
    let mut all = BTreeSet::new();
    for pod in pods.iter().chain([&first, &last]) {
        all.extend(addresses(pod).await);
    }
    let families = addresses(&first).await.len();
    assert_eq!(all.len(), 300 * families);
    for address in addresses(&first).await.iter().filter(|a| a.contains('.')) {
        assert_eq!(send_request(&last, address).await, "this is first\n");
    }
    for address in addresses(&last).await.iter().filter(|a| a.contains('.')) {
        assert_eq!(send_request(&first, address).await, "this is last\n");
        assert_eq!(send_request(&pods[150], address).await, "this is last\n");
    }
}

/// The bridges of a network namespace.
fn bridges(netns: &Netns) -> Vec<String> {
    let text = netns.run("ip", &["-o", "link", "show", "type", "bridge"]).unwrap();
    let name = |line: &str| line.split(": ").nth(1).map(str::to_owned);
    text.lines().filter_map(name).collect()
}

#[tokio::test]
async fn bridge_of_killed_daemon_is_removed_after_its_state_directory() {
    harness::needs!(Namespaces, Root);
    let netns = Netns::make().unwrap();
    let start = async || Runtime::with().netns(&netns.path()).start().await.unwrap();
    let mut killed = start().await;
    let first = bridges(&netns);
    assert_eq!(first.len(), 1, "{first:?}");
    killed.kill9().await;
    // The bridge of a killed daemon stays as long as the daemon can be restarted.
    let second = start().await;
    let both = bridges(&netns);
    assert!(both.len() == 2 && both.contains(&first[0]), "{both:?}");
    // The bridge of a running daemon stays, too, whatever happens to its state directory.
    let directories = [&killed, &second].map(|runtime| {
        let (state, moved) = (runtime.state_dir(), runtime.root().join("moved"));
        std::fs::rename(&state, &moved).unwrap();
        (state, moved)
    });
    let third = start().await;
    let now = bridges(&netns);
    assert!(now.len() == 2 && !now.contains(&first[0]), "{now:?}");
    for (state, moved) in directories {
        std::fs::rename(&moved, &state).unwrap();
    }
    drop((second, third));
}

/// Whatever the host's settings for its other interfaces are.
#[tokio::test]
async fn bridges_take_no_advertisements_and_redirects() {
    harness::needs!(Namespaces, Root, Ipv6);
    let netns = Netns::make().unwrap();
    let set = |family: &str, of: &str, key: &str, value: &str| {
        let path = format!("/proc/sys/net/{family}/conf/{of}/{key}");
        netns.run("sh", &["-c", &format!("echo {value} >{path}")]).unwrap();
    };
    let of_ipv6 = ["accept_ra", "autoconf", "accept_redirects"];
    let keys = of_ipv6.map(|key| ("ipv6", key)).into_iter().chain([("ipv4", "accept_redirects")]);
    let keys: Vec<(&str, &str)> = keys.collect();
    for (family, key) in &keys {
        set(family, "all", key, "1");
        set(family, "default", key, "1");
    }
    let runtime = Runtime::with().netns(&netns.path()).start().await.unwrap();
    let _pod = runtime.pod("p").await.unwrap();
    let bridges = bridges(&netns);
    assert!(!bridges.is_empty());
    for bridge in bridges {
        for (family, key) in &keys {
            let path = format!("/proc/sys/net/{family}/conf/{bridge}/{key}");
            assert_eq!(netns.run("cat", &[&path]).unwrap(), "0\n", "{path}");
        }
    }
}

/// Another user who could open a lock file could hold its lock.
#[tokio::test]
async fn subnet_locks_are_private_to_root() {
    use std::os::unix::fs::MetadataExt as _;
    harness::needs!(HostMounts);
    let runtime = Runtime::start().await.unwrap();
    let _pod = runtime.pod("p").await.unwrap();
    let found = std::fs::metadata("/run/crib/subnets").unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o700));
}
