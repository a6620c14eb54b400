//! Rules of repeated values, minimal configurations and special characters: search domains, sysctls, addresses, variables, keys,
//! paths.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compact::Set;
use cri::v1::{ContainerFilter, PodSandboxFilter};

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::list::ids;
use crate::rules::mounts::{directory, made, of};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-047": "A container's /etc/resolv.conf has all configured DNS servers and search domains in the given order, even if there are three servers and eight long domains.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox],
        domains_and_servers_keep_their_order given [namespaces], faults [
            "RunPodSandbox request drop config.dns_config.searches",
            "RunPodSandbox request set config.dns_config.searches [\"one.example\"]",
            "RunPodSandbox request set config.dns_config.servers [\"10.1.2.3\", \"10.5.6.7\", \"10.9.8.7\"]",
        ];
    Must "CRI-SEC-035": "All network sysctls of a pod are set, including net.ipv4.ip_local_port_range, whose value consists of two numbers.",
        KUBELET, tags ["kubelet", "sysctl"], calls [RunPodSandbox],
        network_settings_are_all_set given [namespaces], faults [
            "RunPodSandbox request drop config.linux.sysctls",
            "RunPodSandbox request set config.linux.sysctls.net.ipv4.ip_unprivileged_port_start \"1024\"",
            "RunPodSandbox request set config.linux.sysctls.net.ipv4.ip_local_port_range \"20001 30000\"",
        ];
    Should "CRI-SBX-048": "PodSandboxStatus reports all IPv4 and IPv6 addresses that the runtime assigned to the pod.",
        KUBELET, tags ["kubelet", "network"], calls [PodSandboxStatus],
        every_address_is_reported given [namespaces, pod, container], faults [
            "PodSandboxStatus set status.network.ip \"10.11.12.13\"",
            "PodSandboxStatus drop status.network",
        ];
    Must "CRI-CTR-056": "A container runs even if its configuration has only metadata, an image and a command.",
        API, tags ["input"], calls [CreateContainer, StartContainer],
        fewest_fields_are_enough given [namespaces], faults [
            "CreateContainer if request.config.log_path == \"\" answer INVALID_ARGUMENT",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo other\"]",
            "StartContainer answer INTERNAL",
        ];
    Must "CRI-CTR-057": "Label and annotation keys with upper-case letters and special characters are reported unchanged, and label filters match keys case-sensitively.",
        KUBELET, tags ["kubelet", "echo", "filter"], calls [ContainerStatus, ListContainers, PodSandboxStatus, ListPodSandbox],
        keys_are_kept, faults [
            "ContainerStatus drop status.labels",
            "ContainerStatus drop status.annotations",
            "ListContainers drop containers.labels",
            "PodSandboxStatus drop status.annotations",
            "ListPodSandbox drop items.labels",
            "ListContainers request drop filter.label_selector",
            "ListPodSandbox request drop filter.label_selector",
        ];
    Must "CRI-CFG-022": "If 1000 environment variables are configured, all of them are set; a value with special characters, a newline and a non-ASCII letter is passed unchanged.",
        KUBELET, tags ["kubelet", "process"], calls [CreateContainer],
        many_variables_are_set, faults [
            "CreateContainer request drop config.envs",
            "CreateContainer request set config.envs.value \"eA==\"",
        ];
    Must "CRI-MNT-032": "A mount works even if its host and container paths contain a colon, a space, a comma and a backslash.",
        API, tags ["files"], calls [CreateContainer],
        odd_paths_are_mounted given [namespaces], faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.container_path \"/mnt\"",
        ];
};

async fn domains_and_servers_keep_their_order(x: &Context) -> Verdict {
    // Together they exceed the 256 bytes that old resolvers read.
    let domains = ["h", "b", "g", "a", "f", "c", "e", "d"]
        .map(|letter| format!("{}.namespaces-of-a-cluster.example", letter.repeat(24)));
    let servers = ["10.9.8.7", "10.1.2.3", "10.5.6.7"];
    let mut config = x.sandbox();
    config.dns_config = Some(v1::DnsConfig {
        servers: servers.map(str::to_owned).into(),
        searches: domains.to_vec(),
        options: Vec::new(),
    });
    let pod = x.pod_of(config).await?;
    let text = x.output_in(&pod, x.script("c", "cat /etc/resolv.conf"));
    let text = text.await?;
    // A resolver uses only the last `search` line.
    let of = |keyword: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == keyword).then(|| words.collect::<Vec<_>>().join(" "))
        });
        lines.collect()
    };
    equal("search in /etc/resolv.conf", &of("search"), &vec![domains.join(" ")])?;
    let what = "nameserver in /etc/resolv.conf";
    equal(what, &of("nameserver"), &servers.map(str::to_owned).to_vec())
}

async fn network_settings_are_all_set(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    let settings = [
        ("net.ipv4.ip_unprivileged_port_start", "1000"),
        ("net.ipv4.ip_local_port_range", "20000 30000"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.linux.get_or_insert_default().sysctls.extend(settings);
    let pod = x.pod_of(config).await?;
    let text = "cd /proc/sys/net/ipv4; cat ip_unprivileged_port_start ip_local_port_range";
    let output = x.output_in(&pod, x.script("c", text)).await?;
    let what = "net.ipv4.ip_unprivileged_port_start and net.ipv4.ip_local_port_range";
    equal(what, &output.split_whitespace().collect::<Vec<_>>(), &vec!["1000", "20000", "30000"])
}

/// The network namespace's own IPv4 addresses in `/proc/net/fib_trie`, without loopback and link-local ones.
fn own_ipv4(table: &str) -> Set<IpAddr> {
    let mut own = Set::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            own.extend(last);
        }
    }
    let own = own.into_iter();
    own.filter(|address| !address.is_loopback() && !address.is_link_local())
        .map(IpAddr::V4)
        .collect()
}

/// The permanent IPv6 addresses of global scope in `/proc/net/if_inet6`. Addresses from router advertisements, and those
/// that are deprecated, tentative or duplicate, are not the runtime's.
fn own_ipv6(table: &str) -> Set<IpAddr> {
    const PERMANENT: u8 = 0x80;
    const NOT_IN_USE: u8 = 0x08 | 0x20 | 0x40;
    let lines = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let scope = words.nth(2)?;
        let flags = u8::from_str_radix(words.next()?, 16).ok()?;
        let counts = scope == "00" && flags & (PERMANENT | NOT_IN_USE) == PERMANENT;
        counts.then(|| IpAddr::V6(Ipv6Addr::from(address)))
    });
    lines.collect()
}

async fn every_address_is_reported(x: &Context, pod: Pod, id: String) -> Verdict {
    let network = x.pod_status(&pod.id).await?.network.unwrap_or_default();
    let ipv4 = x.client.sh(&id, "cat /proc/net/fib_trie 2>/dev/null; :");
    let ipv4 = ipv4.await?;
    if !ipv4.contains("|--") {
        return skipped("the container cannot read its addresses in /proc/net/fib_trie");
    }
    let ipv6 = x.client.sh(&id, "cat /proc/net/if_inet6 2>/dev/null; :");
    let mut own = own_ipv4(&ipv4);
    own.extend(own_ipv6(&ipv6.await?));
    let others = network.additional_ips.iter().map(|one| one.ip.as_str());
    let reported: Set<IpAddr> = [network.ip.as_str()]
        .into_iter()
        .chain(others)
        .filter_map(|text| text.parse().ok())
        .collect();
    let what = "the addresses in PodSandboxStatus";
    ensure(own.is_subset(&reported), what, &format!("to include {own:?}"), &reported)
}

async fn fewest_fields_are_enough(x: &Context) -> Verdict {
    let mut sandbox = x.sandbox();
    // A container without `linux` requests the pod's process namespace, which is the default value of the enum.
    fixture::pod_namespaces(&mut sandbox).pid = NamespaceMode::Pod.into();
    let pod = x.pod_of(sandbox).await?;
    let fewest = |name: &str, command: [&str; 3]| v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: x.forever(name).image,
        command: command.map(str::to_owned).into(),
        ..Default::default()
    };
    let with_log = v1::ContainerConfig {
        log_path: "c.log".to_owned(),
        ..fewest("c", ["/bin/sh", "-c", "echo ran"])
    };
    x.prints_in(&pod, with_log, "the output", "ran\n").await?;
    let without_log = fewest("d", ["/bin/sh", "-c", "echo ran; exit 7"]);
    let id = pod.start(without_log).await?;
    let status = x.exited(&id).await?;
    equal("the exit code of a container without a log", &status.exit_code, &7)
}

/// A key with each kind of character that Kubernetes allows.
const KEY: &str = "A.example/Key-1_x";

async fn keys_are_kept(x: &Context) -> Verdict {
    let pairs = HashMap::from([(KEY.to_owned(), x.unique("Value_1.X"))]);
    let mut config = x.sandbox();
    config.labels.extend(pairs.clone());
    config.annotations.extend(pairs.clone());
    let pod = x.pod_of(config).await?;
    let mut config = x.forever("c");
    config.labels.extend(pairs.clone());
    config.annotations.extend(pairs.clone());
    let id = pod.create(config).await?;
    let of_status = x.client.container(&id).await?;
    let of_list = x.listed_container(&id).await?.unwrap_or_default();
    let pod_status = x.pod_status(&pod.id).await?;
    let pod_listed = x.listed_pod(&pod.id).await?.unwrap_or_default();
    for (call, labels, annotations) in [
        ("ContainerStatus", of_status.labels, of_status.annotations),
        ("ListContainers", of_list.labels, of_list.annotations),
        ("PodSandboxStatus", pod_status.labels, pod_status.annotations),
        ("ListPodSandbox", pod_listed.labels, pod_listed.annotations),
    ] {
        includes(&format!("the labels in {call}"), &labels, &pairs)?;
        includes(&format!("the annotations in {call}"), &annotations, &pairs)?;
    }
    let in_lower_case = pairs.iter().map(|(key, value)| (key.to_lowercase(), value.clone()));
    for (selector, found) in [(pairs.clone(), true), (in_lower_case.collect(), false)] {
        let containers = x
            .client
            .containers(ContainerFilter { label_selector: selector.clone(), ..Default::default() });
        let containers: Vec<String> = containers.await?.into_iter().map(|one| one.id).collect();
        let what = format!("ListContainers by {selector:?}");
        let expected = ids(found.then_some(&id));
        equal(&what, &ids(&containers), &expected)?;
        let pods = x
            .client
            .pods(PodSandboxFilter { label_selector: selector.clone(), ..Default::default() });
        let pods: Vec<String> = pods.await?.into_iter().map(|one| one.id).collect();
        let what = format!("ListPodSandbox by {selector:?}");
        equal(&what, &ids(&pods), &ids(found.then_some(&pod.id)))?;
    }
    Ok(())
}

async fn many_variables_are_set(x: &Context) -> Verdict {
    const COUNT: usize = 1000;
    let odd = "$$ $(V_0) ${V_0} $V_0 \"double\" 'single' `true` \\n %s é\nsecond line";
    let text =
        "i=0; while [ $i -lt 1000 ]; do eval \"v=\\$V_$i\"; printf '%s\\n' \"$v\"; i=$((i+1)); done
        printf '%s\\n' \"$ODD\"";
    let mut config = x.script("c", text);
    let variable = |key: String, value: &str| v1::KeyValue { key, value: value.into() };
    let values: Vec<String> = (0..COUNT).map(|number| format!("{number:0>58}")).collect();
    let numbered = values.iter().enumerate();
    config.envs = numbered.map(|(number, value)| variable(format!("V_{number}"), value)).collect();
    config.envs.push(variable("ODD".to_owned(), odd));
    let output = x.output(config).await?;
    let mut lines = output.lines();
    let seen: Vec<&str> = lines.by_ref().take(COUNT).collect();
    equal("the variables", &seen, &values)?;
    let rest: Vec<&str> = lines.collect();
    equal("the value with special characters", rest.join("\n").as_str(), odd)
}

async fn odd_paths_are_mounted(x: &Context) -> Verdict {
    let name = "a:b c,d\\e";
    let volume = directory(x)?.join(name);
    made(std::fs::create_dir(&volume))?;
    made(std::fs::write(volume.join("file"), "there\n"))?;
    let place = format!("/mnt/{name}");
    // Not every image allows a mount point of any name.
    let image = image(x, "1", |image| image).await?;
    let mut config = script(x, &image, &format!("cat '{place}/file'"));
    config.mounts = vec![of(&volume, &place)];
    x.prints(config, "the file", "there\n").await
}
