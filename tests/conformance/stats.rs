//! Statistics of containers and pods.

use cri::v1::{
    self, ContainerStats, ContainerStatsFilter, ContainerStatsRequest, ListContainerStatsRequest,
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest,
    PodSandboxStatsRequest, StreamContainerStatsRequest, StreamPodSandboxMetricsRequest,
    StreamPodSandboxStatsRequest,
};
use harness::{PATIENCE, Runtime, eventually, fixture};
use tonic::Code;

use crate::support::{Means, code};

async fn of_container(runtime: &Runtime, id: &str) -> Result<ContainerStats, tonic::Status> {
    let request = ContainerStatsRequest {
        container_id: id.to_owned(),
    };
    let answer = runtime
        .client
        .runtime
        .clone()
        .container_stats(request)
        .await?;
    Ok(answer.into_inner().stats.unwrap())
}

async fn listed(runtime: &Runtime, filter: ContainerStatsFilter) -> Vec<String> {
    let request = ListContainerStatsRequest {
        filter: Some(filter),
    };
    let mut client = runtime.client.runtime.clone();
    let answer = client.list_container_stats(request).await.unwrap();
    let ids = answer.into_inner().stats.into_iter();
    ids.map(|stats| stats.attributes.unwrap().id).collect()
}

fn value(value: Option<v1::UInt64Value>) -> u64 {
    value.expect("the box counts this").value
}

#[tokio::test]
async fn container_stats_report_cpu_and_memory_usage() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let busy = pod
        .start(fixture::script("busy", "while :; do :; done"))
        .await
        .unwrap();
    let idle = pod
        .start(fixture::script("idle", "exec sleep 1000"))
        .await
        .unwrap();

    let rate = eventually(PATIENCE, "a rate", async || {
        let stats = of_container(&runtime, &busy).await.unwrap();
        let cpu = stats.cpu.unwrap();
        cpu.usage_nano_cores
            .filter(|rate| rate.value > 0)
            .ok_or(cpu.usage_core_nano_seconds)
    })
    .await;
    assert!(rate.value > 10_000_000, "{rate:?}");
    let (busy, idle) = (
        of_container(&runtime, &busy).await.unwrap(),
        of_container(&runtime, &idle).await.unwrap(),
    );
    let used = |stats: &ContainerStats| value(stats.cpu.unwrap().usage_core_nano_seconds);
    assert!(used(&busy) > used(&idle), "{busy:?} {idle:?}");
    for stats in [busy, idle] {
        let memory = stats.memory.unwrap();
        assert!(memory.timestamp > 0);
        assert!(value(memory.rss_bytes) > 0);
        assert!(value(memory.usage_bytes) >= value(memory.working_set_bytes));
        assert!(value(memory.page_faults) > 0);
    }
}

#[tokio::test]
async fn stats_list_applies_all_filters() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    let mut config = fixture::script("a", "exec sleep 1000");
    config.labels.insert("app".to_owned(), "a".to_owned());
    let a = pod.start(config).await.unwrap();
    let b = pod
        .start(fixture::script("b", "exec sleep 1000"))
        .await
        .unwrap();
    let c = other
        .start(fixture::script("c", "exec sleep 1000"))
        .await
        .unwrap();
    let ended = pod.start(fixture::script("ended", "exit 0")).await.unwrap();
    pod.ended(&ended).await.unwrap();

    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    let all = ContainerStatsFilter::default();
    assert_eq!(
        sorted(listed(&runtime, all.clone()).await),
        sorted(vec![a.clone(), b.clone(), c.clone()])
    );
    let by_id = ContainerStatsFilter {
        id: c.clone(),
        ..all.clone()
    };
    assert_eq!(
        listed(&runtime, by_id.clone()).await,
        std::slice::from_ref(&c)
    );
    let of_pod = ContainerStatsFilter {
        pod_sandbox_id: pod.id.clone(),
        ..all.clone()
    };
    assert_eq!(
        sorted(listed(&runtime, of_pod.clone()).await),
        sorted(vec![a.clone(), b.clone()])
    );
    let both = ContainerStatsFilter { id: c, ..of_pod };
    assert!(listed(&runtime, both).await.is_empty());
    let labels = [("app".to_owned(), "a".to_owned())];
    let by_label = ContainerStatsFilter {
        label_selector: labels.into(),
        ..all
    };
    assert_eq!(listed(&runtime, by_label).await, [a]);

    let request = StreamContainerStatsRequest {
        filter: Some(by_id),
    };
    let mut client = runtime.client.runtime.clone();
    let mut stream = client
        .stream_container_stats(request)
        .await
        .unwrap()
        .into_inner();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.container_stats.len(), 1);

    // An exited container has no CPU statistics, but still a writable layer.
    let stats = of_container(&runtime, &ended).await.unwrap();
    assert_eq!(stats.attributes.unwrap().id, ended);
    assert_eq!(stats.cpu, None);
    assert_eq!(code(of_container(&runtime, "none").await), Code::NotFound);
}

#[tokio::test]
async fn pod_stats_include_containers_and_network() {
    let runtime = Runtime::start().await.unwrap();
    let means = Means::of(&runtime).await;
    let pod = runtime.pod("p").await.unwrap();
    let container = pod
        .start(fixture::script("c", "exec sleep 1000"))
        .await
        .unwrap();
    // Linux may bring a cgroup's counters of memory up to date only every 2 s.
    let stats = eventually(PATIENCE, "memory of the pod", async || {
        let request = PodSandboxStatsRequest {
            pod_sandbox_id: pod.id.clone(),
        };
        let mut client = runtime.client.runtime.clone();
        let answer = client.pod_sandbox_stats(request).await.unwrap();
        let stats = answer.into_inner().stats.unwrap();
        let rss = value(stats.linux.as_ref().unwrap().memory.unwrap().rss_bytes);
        if rss > 0 { Ok(stats) } else { Err(stats) }
    })
    .await;
    assert_eq!(stats.attributes.unwrap().id, pod.id);
    let linux = stats.linux.unwrap();
    assert!(linux.cpu.unwrap().usage_core_nano_seconds.is_some());
    assert_eq!(linux.containers.len(), 1);
    assert_eq!(
        linux.containers[0].attributes.as_ref().unwrap().id,
        container
    );
    if means.no_network().is_none() {
        let interface = linux.network.unwrap().default_interface.unwrap();
        assert_eq!(interface.name, "eth0");
        assert!(interface.rx_bytes.is_some());
    }

    let mut client = runtime.client.runtime.clone();
    let answer = client
        .list_pod_sandbox_stats(ListPodSandboxStatsRequest::default())
        .await
        .unwrap();
    assert_eq!(answer.into_inner().stats.len(), 1);
    let request = StreamPodSandboxStatsRequest::default();
    let mut stream = client
        .stream_pod_sandbox_stats(request)
        .await
        .unwrap()
        .into_inner();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.pod_sandbox_stats.len(), 1);
    let missing = PodSandboxStatsRequest {
        pod_sandbox_id: "none".to_owned(),
    };
    assert_eq!(
        code(client.pod_sandbox_stats(missing).await),
        Code::NotFound
    );
}

#[tokio::test]
async fn metrics_match_labels_of_descriptors() {
    let runtime = Runtime::start().await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    pod.start(fixture::script(
        "c",
        "echo hello > /tmp/file; exec sleep 1000",
    ))
    .await
    .unwrap();
    let mut client = runtime.client.runtime.clone();
    let answer = client
        .list_metric_descriptors(ListMetricDescriptorsRequest {})
        .await
        .unwrap();
    let descriptors = answer.into_inner().descriptors;
    assert_eq!(descriptors.len(), 56);
    assert!(descriptors.iter().all(|d| !d.help.is_empty()));

    let answer = client
        .list_pod_sandbox_metrics(ListPodSandboxMetricsRequest {})
        .await
        .unwrap();
    let [metrics] = &answer.into_inner().pod_metrics[..] else {
        panic!("one pod")
    };
    assert_eq!(metrics.pod_sandbox_id, pod.id);
    let [container] = &metrics.container_metrics[..] else {
        panic!("one container")
    };
    for metric in metrics.metrics.iter().chain(&container.metrics) {
        let described = descriptors.iter().find(|d| d.name == metric.name).unwrap();
        assert_eq!(
            described.label_keys.len(),
            metric.label_values.len(),
            "{metric:?}"
        );
    }
    let one = |name: &str| {
        let found = container.metrics.iter().find(|m| m.name == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(one("container_processes").value.unwrap().value, 1);
    assert!(one("container_memory_rss").value.unwrap().value > 0);
    assert_eq!(one("container_threads").label_values[0], "c");

    let request = StreamPodSandboxMetricsRequest {};
    let mut stream = client
        .stream_pod_sandbox_metrics(request)
        .await
        .unwrap()
        .into_inner();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.pod_sandbox_metrics.len(), 1);
}
