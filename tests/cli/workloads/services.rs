//! Services of `crib run`: pods find each other by name, and ports forward to ready pods, from other pods and from the host.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::command::*;
use crate::runs::run::pod;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/service.yaml");

/// A StatefulSet of two servers that send their names over TCP and UDP, and its Services.
const SERVERS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: db}
  ports:
  - {name: stream, port: 80, targetPort: stream}
  - {name: datagram, port: 5353, protocol: UDP, targetPort: datagram}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: crib.local/host
        ports:
        - {name: stream, containerPort: 8080}
        - {name: datagram, containerPort: 8053, protocol: UDP}
        readinessProbe: {tcpSocket: {port: stream}, periodSeconds: 1}
        command: [perl, -MIO::Socket::INET, -MIO::Select, -e]
        args:
        - |
          my $udp = IO::Socket::INET->new(LocalPort => 8053, Proto => "udp") or die $@;
          my $tcp = IO::Socket::INET->new(LocalPort => 8080, Listen => 9) or die $@;
          my $all = IO::Select->new($udp, $tcp);
          while (my @ready = $all->can_read) {
              for (@ready) {
                  if ($_ == $udp) { $udp->recv(my $asked, 99); $udp->send("$ENV{HOSTNAME} heard $asked"); }
                  else { my $client = $tcp->accept(); print {$client} "$ENV{HOSTNAME}\n"; }
              }
          }
        env: [{name: HOSTNAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
"#;

/// Waits for both servers, then prints what it finds.
const CLIENT: &str = r#"
---
apiVersion: batch/v1
kind: Job
metadata: {name: client}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: crib.local/host
        command: [bash, -c]
        args:
        - |
          until [ "$(getent ahostsv4 db | grep -c STREAM)" = 2 ]; do sleep 0.1; done
          for name in web web.default web.default.svc web.default.svc.cluster.local db db-0.db db-1.db.default alias; do
            getent ahostsv4 "$name" >/dev/null && echo "found $name"
          done
          for name in none none.default.svc.cluster.local web.other db-2.db; do
            getent ahostsv4 "$name" >/dev/null || echo "missing $name"
          done
          for turn in 1 2 3 4; do exec 3<>/dev/tcp/web/80 && cat <&3; done | sort | uniq -c | sed 's/^ */stream /'
          exec 4<>/dev/udp/web/5353 && printf ping >&4 && dd bs=99 count=1 <&4 2>/dev/null; echo
          exec 3<>/dev/tcp/alias/80 && echo "alias leads to $(cat <&3)"
          exec 3<>"/dev/tcp/$WEB_SERVICE_HOST/$WEB_SERVICE_PORT_STREAM" && echo "variables lead to $(cat <&3)"
          (exec 3<>/dev/tcp/nobody/80) 2>&1 | grep -o 'Connection refused'
"#;

/// A pod that connects to itself through its Service.
const MIRROR: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: mirror}
spec: {selector: {app: mirror}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: lonely, labels: {app: mirror}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: crib.local/host
    command: [bash, -c]
    args:
    - |
      perl -MIO::Socket::INET -e '
        my $tcp = IO::Socket::INET->new(LocalPort => 8080, Listen => 9) or die $@;
        while (my $client = $tcp->accept()) { print {$client} "it is me\n"; }' &
      answer=
      until [ "$answer" ]; do
        sleep 0.1
        exec 3<>/dev/tcp/mirror/80 && answer=$(cat <&3)
      done 2>/dev/null
      echo "$answer"
      kill %1
"#;

/// A Service, and a pod that does not need one.
const NOTHING: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: nothing}
spec:
  restartPolicy: Never
  containers: [{name: main, image: crib.local/host, command: ["true"]}]
"#;

/// Starts the example; returns its node port.
async fn start_example(place: &Place) -> (Running, u16) {
    let mut running = place.start(&["run", EXAMPLE]);
    let line = running.err_line_with("service default/web: port 80 is reachable at").await;
    let (_, port) = line.rsplit_once("127.0.0.1:").unwrap();
    (running, port.parse().unwrap())
}

async fn page(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn example_is_reached_by_name_and_from_host_and_gone_after_kill() {
    let place = Place::new();
    let (mut running, port) = start_example(&place).await;
    let line = running.line_with("client-").await;
    assert!(line.starts_with("client-"), "{line}");
    running.line_with("hello from the ConfigMap").await;
    // A server is ready: the client got a response.
    let page = page(port).await.unwrap();
    assert_eq!(page, "HTTP/1.0 200 OK\r\n\r\nhello from the ConfigMap\n");
    running.signal(Signal::SIGKILL);
    running.child.wait().await.unwrap();
    eventually("nothing listens on the node port", || {
        let left = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        left.then(|| port.to_string()).into_iter().collect()
    })
    .await;
    place.wait_until_clean().await;
}

#[tokio::test]
async fn names_and_ports_of_services_lead_to_ready_pods() {
    let place = Place::new();
    let manifest = place.file("services.yaml", &format!("{SERVERS}{CLIENT}"));
    let mut running = place.start(&["run", "-q", &manifest]);
    let mut seen = Vec::new();
    for expected in [
        "found web",
        "found web.default",
        "found web.default.svc",
        "found web.default.svc.cluster.local",
        "found db",
        "found db-0.db",
        "found db-1.db.default",
        "found alias",
        "missing none",
        "missing none.default.svc.cluster.local",
        "missing web.other",
        "missing db-2.db",
        "stream 2 db-0",
        "stream 2 db-1",
        " heard ping",
        "alias leads to db-",
        "variables lead to db-",
        "Connection refused",
    ] {
        let line = running.line_with("client-").await;
        assert!(line.contains(expected), "{expected:?}: {line:?} after {seen:#?}");
        seen.push(line);
    }
    running.interrupt().await.exits(130);
}

#[tokio::test]
async fn pod_reaches_itself_through_its_service() {
    let place = Place::new();
    let manifest = place.file("mirror.yaml", MIRROR);
    let ended = place.crib(&["run", "-q", &manifest]).await.exits(0);
    ended.out_has("it is me");
}

#[tokio::test]
async fn node_ports_are_reported_when_served_and_rejected_when_in_use() {
    let place = Place::new();
    let service = |name: &str, ports: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{type: LoadBalancer, selector: {{app: mirror}}, ports: [{ports}]}}\n"
        )
    };
    let twice =
        service("a", "{port: 1, nodePort: 30100}") + &service("b", "{port: 1, nodePort: 30100}");
    let manifest = place.file("twice.yaml", &format!("{MIRROR}{twice}"));
    let ended = place.crib(&["run", &manifest]).await.exits(2);
    let refusal = "service default/b: spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated: service default/a has it";
    ended.err_has(refusal);

    // A node port must be in the range: the first free one.
    let taken =
        (30_000..32_768).find_map(|port| std::net::TcpListener::bind(("0.0.0.0", port)).ok());
    let taken = taken.unwrap();
    let port = taken.local_addr().unwrap().port();
    let ports = format!(
        "{{name: a, port: 1, targetPort: 8080, nodePort: {port}}}, {{name: b, port: 2, protocol: SCTP}}, {{name: c, port: 3, targetPort: 8080}}"
    );
    let plain = format!("{{port: 1, nodePort: {port}}}");
    let plain = service("d", &plain).replace("LoadBalancer", "NodePort");
    let plain = place.file("plain.yaml", &format!("{MIRROR}{plain}"));
    let strict = place.crib(&["run", "--strict", &plain]).await.exits(3);
    let refusal =
        format!("crib: --strict: service default/d: port 1: the host's TCP port {port} is in use");
    strict.err_has(&refusal);

    let lasting = MIRROR.replace("      kill %1\n", "      wait\n");
    let manifest = place.file("taken.yaml", &format!("{lasting}{}", service("c", &ports)));
    let mut running = place.start(&["run", "-q", &manifest]);
    let in_use = running.err_line_with("is in use by another program").await;
    let reachable = running.err_line_with("is reachable at").await;
    let warning = format!(
        "crib: warning: service default/c: port 1: the host's TCP port {port} is in use by another program: choose another port"
    );
    assert_eq!(in_use, warning);
    let reached = "crib: service default/c: port 3 is reachable at 127.0.0.1:";
    assert!(reachable.starts_with(reached), "{reachable}");
    let port: u16 = reachable[reached.len()..].parse().unwrap();
    // A pod without a probe is ready before its server listens.
    eventually("the pod answers", || {
        use std::io::Read as _;
        let mut text = String::new();
        let stream = std::net::TcpStream::connect(("127.0.0.1", port));
        let _ = stream.and_then(|mut stream| stream.read_to_string(&mut text));
        (text != "it is me\n").then_some(text).into_iter().collect()
    })
    .await;
    // The shell, the first process of its container, ignores SIGTERM: the second signal kills it.
    running.signal(Signal::SIGINT);
    running.signal(Signal::SIGTERM);
    running.child.wait().await.unwrap();
    place.wait_until_clean().await;
}

#[tokio::test]
async fn services_without_network_namespaces_are_warned_of_and_strictly_refused() {
    let place = Place::new();
    let manifest = place.file("nothing.yaml", NOTHING);
    let args = ["run", "--isolation", "process", &manifest];
    let ended = place.crib(&args).await;
    let reason = "pods cannot reach Services: Services are not served: pods share the host's network (isolation `process`)";
    ended.err_has(&format!("crib: warning: {reason}"));
    let ended = place.crib(&[&args[..], &["--strict"]].concat()).await.exits(3);
    ended.err_has(&format!("--strict: {reason}"));
}

/// Starts a server on all of the host's addresses, like a database outside the cluster, and returns its port.
async fn outside() -> u16 {
    let listener = tokio::net::TcpListener::bind(("0.0.0.0", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            // The client may have disconnected.
            let _ = client.write_all(b"from outside\n").await;
        }
    });
    port
}

#[rstest]
#[tokio::test]
async fn service_without_selector_leads_to_addresses_of_endpoints_and_slices(
    #[values("root", "rootless")] isolation: &str,
) {
    harness::needs!(..needs_of(isolation));
    harness::needs!(HostAddress);
    let address = harness::need::host_address().unwrap();
    let place = Place::new();
    let port = outside().await;
    let service = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 5432}}]}}\n"
        )
    };
    let endpoints = format!(
        "---\napiVersion: v1\nkind: Endpoints\nmetadata: {{name: old}}\n\
         subsets: [{{addresses: [{{ip: {address}}}], ports: [{{port: {port}}}]}}]\n"
    );
    let slice = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: new-1, labels: {{kubernetes.io/service-name: new}}}}\naddressType: IPv4\n\
         endpoints: [{{addresses: [{address}]}}]\nports: [{{port: {port}}}]\n"
    );
    let script = "for name in old new.default.svc.cluster.local; do \
                  until exec 3<>/dev/tcp/$name/5432; do :; done 2>/dev/null; echo $name: $(head -n 1 <&3); done";
    let manifest = pod("p", script) + &service("old") + &endpoints + &service("new") + &slice;
    let manifest = place.file("m.yaml", &manifest);
    let ended = place.run_isolated(isolation, &["--strict"], &manifest).await.exits(0);
    let expected =
        "p/main | old: from outside\np/main | new.default.svc.cluster.local: from outside\n";
    assert_eq!(ended.out, expected, "{}", ended.err);
}
