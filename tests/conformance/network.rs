//! Pods talk to each other, and to themselves.

use harness::{Pod, Runtime, fixture};

use crate::support::{Means, logged, skip_if};

/// Says who it is to everybody who connects.
const SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { print $client "this is ", `hostname`; close $client }'"#;

async fn serve(pod: &Pod) -> String {
    let id = pod.start(pod.script("server", SERVER)).await.unwrap();
    logged(pod, &id, "ready").await;
    id
}

async fn address(pod: &Pod) -> String {
    let status = pod.client.pod(&pod.id).await.unwrap().status.unwrap();
    let ip = status.network.unwrap().ip;
    assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{ip:?}");
    ip
}

async fn ask(pod: &Pod, address: &str) -> String {
    let script = format!("exec timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/8080 && cat <&3'");
    pod.output(pod.script(&fixture::unique("client"), &script))
        .await
        .unwrap()
}

#[tokio::test]
async fn pods_reach_each_other_by_their_addresses() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "pods_reach_each_other",
        Means::of(&runtime).await.no_network()
    );
    let server = runtime.pod("server").await.unwrap();
    let client = runtime.pod("client").await.unwrap();
    serve(&server).await;
    let (server_ip, client_ip) = (address(&server).await, address(&client).await);
    assert_ne!(server_ip, client_ip);
    assert_eq!(ask(&client, &server_ip).await, "this is server\n");
    // Also by its own address, and by loopback from another container of the pod.
    assert_eq!(ask(&server, &server_ip).await, "this is server\n");
    assert_eq!(ask(&server, "127.0.0.1").await, "this is server\n");
}

#[tokio::test]
async fn loopback_is_the_pods_own() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "loopback_is_the_pods_own",
        Means::of(&runtime).await.no_network()
    );
    let server = runtime.pod("server").await.unwrap();
    serve(&server).await;
    let other = runtime.pod("other").await.unwrap();
    let script = "timeout 20 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080' || echo refused";
    assert_eq!(
        other.output(other.script("c", script)).await.unwrap(),
        "refused\n"
    );
}

#[tokio::test]
async fn two_runtimes_do_not_disturb_each_other() {
    let first = Runtime::with().start().await.unwrap();
    skip_if!("two_runtimes", Means::of(&first).await.no_network());
    let second = Runtime::with().start().await.unwrap();
    let (pod, other) = (
        first.pod("one").await.unwrap(),
        second.pod("two").await.unwrap(),
    );
    serve(&pod).await;
    serve(&other).await;
    let (ip, other_ip) = (address(&pod).await, address(&other).await);
    // Each has a subnet of its own, or a namespace for it: either way each pod finds itself at its address.
    assert_eq!(ask(&pod, &ip).await, "this is one\n");
    assert_eq!(ask(&other, &other_ip).await, "this is two\n");
    drop(second);
    let client = first.pod("client").await.unwrap();
    assert_eq!(ask(&client, &ip).await, "this is one\n");
}

/// An address comes back, so many more pods than one subnet has can run one after another.
#[tokio::test]
async fn addresses_are_given_back() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "addresses_are_given_back",
        Means::of(&runtime).await.no_network()
    );
    let keep = runtime.pod("keep").await.unwrap();
    let kept = address(&keep).await;
    for number in 0..5 {
        let pod = runtime.pod(&format!("pod-{number}")).await.unwrap();
        assert_ne!(address(&pod).await, kept);
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    let late = runtime.pod("late").await.unwrap();
    assert_ne!(address(&late).await, kept);
    serve(&keep).await;
    assert_eq!(ask(&late, &kept).await, "this is keep\n");
}
