//! Which kinds are decoded, skipped and rejected.
#![allow(clippy::unwrap_used, reason = "tests")]

use rstest::rstest;

use super::super::{Parsed, Strictness, parse};
use super::*;

fn strict(text: &str) -> Parsed {
    parse("m.yaml", text, Strictness::Strict)
}

fn messages(parsed: &Parsed) -> Vec<String> {
    let line = |problem: &super::super::Problem| {
        let text = problem.to_string();
        text.lines().next().unwrap().to_owned()
    };
    parsed.problems.iter().map(line).collect()
}

#[test]
fn other_kinds_are_skipped_by_name() {
    let parsed = strict(
        "# a chart\n---\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec: {any: thing}\n---\n\
         apiVersion: v1\nkind: List\nitems:\n- apiVersion: example.com/v1\n  kind: Pod\n- apiVersion: v1\n  kind: Namespace\n  \
         metadata: {name: apps}\n- {apiVersion: v1, kind: ResourceQuota}\n",
    );
    assert_eq!(messages(&parsed), [""; 0]);
    let skipped: Vec<_> = parsed
        .skipped
        .iter()
        .map(|other| (other.kind.as_str(), other.name.as_str(), other.line))
        .collect();
    assert_eq!(skipped, [("Ingress", "web", 4), ("Pod", "", 12), ("ResourceQuota", "", 17)]);
    assert_eq!(parsed.objects[0].full_name(), "namespace apps");
}

#[rstest]
#[case::misspelt("v1", "Pdo", "m.yaml:2:7: kind: kind \"Pdo\" is not known, did you mean \"Pod\"?")]
#[case::old(
    "v1beta1",
    "Pod",
    "m.yaml:1:13: apiVersion: expected v1 for kind Pod, found \"v1beta1\""
)]
#[case::unknown(
    "v1",
    "Aquarium",
    "m.yaml:2:7: kind: kind \"Aquarium\" is not known, expected Pod, ConfigMap, Secret, Service, Endpoints, EndpointSlice, Namespace, ServiceAccount, \
     PersistentVolumeClaim, PersistentVolume, Job, CronJob, Deployment, ReplicaSet, ReplicationController, DaemonSet, StatefulSet, RuntimeClass, PriorityClass, ClusterTrustBundle, List"
)]
#[case::old_group(
    "extensions/v1beta1",
    "Deployment",
    "m.yaml:1:13: apiVersion: expected apps/v1 for kind Deployment, found \"extensions/v1beta1\""
)]
fn mistaken_kinds_are_refused(#[case] version: &str, #[case] kind: &str, #[case] message: &str) {
    let parsed = strict(&format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n"));
    assert_eq!(messages(&parsed), [message]);
}

#[test]
fn items_of_typed_lists_need_no_kind() {
    let parsed = strict(
        "apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: a}\n- kind: ConfigMap\n  apiVersion: v1\n  metadata: {name: b}\n",
    );
    assert_eq!(messages(&parsed), [""; 0]);
    let names: Vec<String> = parsed.objects.iter().map(Object::full_name).collect();
    assert_eq!(names, ["configmap default/a", "configmap default/b"]);
}

#[rstest]
#[case("v1", "Namespace", "")]
#[case(
    "v1",
    "PersistentVolume",
    "spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /d}}"
)]
#[case("node.k8s.io/v1", "RuntimeClass", "handler: h")]
#[case("scheduling.k8s.io/v1", "PriorityClass", "value: 1")]
fn namespace_of_cluster_scoped_object_is_removed(
    #[case] version: &str,
    #[case] kind: &str,
    #[case] rest: &str,
) {
    let parsed = strict(&format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x, namespace: apps}}\n{rest}\n"
    ));
    assert_eq!(messages(&parsed), [""; 0]);
    let (_, metadata) = parsed.objects[0].kind_and_metadata();
    assert_eq!(metadata.namespace, None);
}

#[rstest]
#[case("v1", "Endpoints", "subsets: [{addresses: [{ip: 1.2.3.4, nodeName: n1}], ports: [{port: 1, appProtocol: a/b}]}]", &[])]
#[case("v1", "Endpoints", "subsets: [{addresses: [{ip: 1.2.3.4, nodeName: a b}]}]", &["subsets[0].addresses[0].nodeName"])]
#[case("v1", "Endpoints", "subsets: [{addresses: [{ip: 1.2.3.4}], ports: [{port: 1, appProtocol: a b}]}]", &["subsets[0].ports[0].appProtocol"])]
#[case("node.k8s.io/v1", "RuntimeClass", "handler: h\nscheduling: {nodeSelector: {a: b c}}", &["scheduling.nodeSelector"])]
#[case("node.k8s.io/v1", "RuntimeClass", "handler: h\nscheduling: {tolerations: [{key: a, operator: Some}]}", &["scheduling.tolerations[0].operator"])]
fn other_objects_are_validated(
    #[case] version: &str,
    #[case] kind: &str,
    #[case] rest: &str,
    #[case] expected: &[&str],
) {
    let parsed =
        strict(&format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n{rest}\n"));
    let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, expected, "{:?}", parsed.problems);
}

#[rstest]
#[case("apps", &[])]
#[case("apps.web", &["m.yaml:3:18: metadata.name: invalid value \"apps.web\": must not contain dots"])]
fn names_of_namespaces_are_dns_labels(#[case] name: &str, #[case] expected: &[&str]) {
    let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n");
    assert_eq!(messages(&strict(&text)), expected);
}

#[test]
fn nested_lists_are_flattened() {
    let parsed = strict(
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- apiVersion: v1\n  kind: List\n  \
         items:\n  - {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n  - apiVersion: v1\n    kind: ConfigMapList\n    \
         items: [{metadata: {name: c}}, {metadata: {name: d}, dta: {}}]\n",
    );
    assert_eq!(
        messages(&parsed),
        [
            "m.yaml:11:58: items[1].items[1].items[1].dta: unknown field \"dta\", did you mean \"data\"?"
        ]
    );
    let names: Vec<String> = parsed.objects.iter().map(Object::full_name).collect();
    let expected = ["a", "b", "c", "d"].map(|name| format!("configmap default/{name}"));
    assert_eq!(names, expected);
}

#[test]
fn empty_list_is_no_problem() {
    let parsed = strict("apiVersion: v1\nkind: List\nitems: []\n");
    assert_eq!(messages(&parsed), [""; 0]);
}

#[rstest]
#[case("test", false)]
#[case("pre-delete, post-delete", false)]
#[case("post-upgrade", false)]
#[case("pre-install,pre-upgrade", true)]
fn helm_hooks_run_if_installation_runs_them(#[case] hook: &str, #[case] runs: bool) {
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  annotations: {{\"helm.sh/hook\": \"{hook}\"}}\n"
    ));
    assert_eq!(messages(&parsed), [""; 0]);
    assert_eq!(parsed.objects.len(), usize::from(runs));
    assert_eq!(parsed.warnings.len(), usize::from(runs));
    let skipped: Vec<_> = parsed.skipped.iter().map(|other| &other.helm_hook).collect();
    let expected = Some(hook.to_owned());
    assert_eq!(skipped, if runs { vec![] } else { vec![&expected] });
}

#[rstest]
#[case("spec: {ports: [{port: 80}]}", "")]
#[case("spec: {clusterIP: None}", "")]
#[case("spec: {type: ExternalName, externalName: db.example.com}", "")]
#[case("spec: {}", "spec.ports")]
#[case("spec: {type: ClusterIp, ports: [{port: 80}]}", "spec.type")]
#[case("spec: {ports: [{port: 0, targetPort: 80}]}", "spec.ports[0].port")]
#[case("spec: {ports: [{port: 80, targetPort: no_name}]}", "spec.ports[0].targetPort")]
#[case("spec: {ports: [{port: 80, targetPort: 8080.0}]}", "")]
#[case("spec: {ports: [{port: 80, targetPort: 80.5}]}", "spec.ports[0].targetPort")]
#[case("spec: {ports: [{port: 80, nodePort: 30000}]}", "spec.ports[0].nodePort")]
#[case("spec: {ports: [{port: 80}, {name: b, port: 81}]}", "spec.ports[0].name")]
#[case("spec: {ports: [{name: a, port: 80}, {name: b, port: 80}]}", "spec.ports[1]")]
#[case("spec: {type: NodePort, ports: [{port: 80, nodePort: 32767}]}", "")]
#[case("spec: {type: NodePort, ports: [{port: 80, nodePort: 32768}]}", "spec.ports[0].nodePort")]
#[case("spec: {type: NodePort, ports: [{port: 80, nodePort: 29999}]}", "spec.ports[0].nodePort")]
#[case(
    "spec: {type: NodePort, ports: [{name: a, port: 1, nodePort: 30000}, {name: b, port: 2, nodePort: 30000}]}",
    "spec.ports[1].nodePort"
)]
#[case("spec: {type: ExternalName}", "spec.externalName")]
#[case("spec: {ports: [{port: 80, appProtocol: kubernetes.io/h2c}]}", "")]
#[case("spec: {ports: [{port: 80, appProtocol: a b}]}", "spec.ports[0].appProtocol")]
#[case("spec: {type: ExternalName, externalName: x, clusterIP: 10.96.3.4}", "spec.clusterIPs")]
#[case("spec: {type: ExternalName, externalName: x, ipFamilies: [IPv4]}", "spec.ipFamilies")]
#[case(
    "spec: {PORTS, clusterIP: 10.96.1.1, clusterIPs: [10.96.1.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}",
    ""
)]
#[case("spec: {PORTS, clusterIPs: [10.96.1.1]}", "spec.clusterIPs")]
#[case("spec: {PORTS, clusterIP: 10.96.1.2, clusterIPs: [10.96.1.1]}", "spec.clusterIPs")]
#[case("spec: {PORTS, ipFamilies: [IPv5]}", "spec.ipFamilies[0]")]
#[case("spec: {PORTS, ipFamilies: [IPv4, IPv4]}", "spec.ipFamilies[1]")]
#[case("spec: {PORTS, ipFamilyPolicy: Dual}", "spec.ipFamilyPolicy")]
#[case("spec: {PORTS, externalIPs: [1.2.3.4]}", "")]
#[case("spec: {PORTS, externalIPs: [127.0.0.1]}", "spec.externalIPs[0]")]
#[case("spec: {PORTS, externalIPs: [host]}", "spec.externalIPs[0]")]
#[case(
    "spec: {PORTS, type: LoadBalancer, loadBalancerSourceRanges: ['10.0.0.0/8 ', 0.0.0.0/0, '2001:db8::/64', '::1/128']}",
    ""
)]
#[case(
    "spec: {PORTS, type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.1/8]}",
    "spec.loadBalancerSourceRanges[0]"
)]
#[case(
    "spec: {PORTS, type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/33]}",
    "spec.loadBalancerSourceRanges[0]"
)]
#[case("spec: {PORTS, loadBalancerSourceRanges: [10.0.0.0/8]}", "spec.loadBalancerSourceRanges")]
#[case("spec: {PORTS, type: LoadBalancer, loadBalancerClass: a b}", "spec.loadBalancerClass")]
#[case("spec: {PORTS, loadBalancerClass: a}", "spec.loadBalancerClass")]
#[case("spec: {PORTS, allocateLoadBalancerNodePorts: false}", "spec.allocateLoadBalancerNodePorts")]
#[case("spec: {PORTS, externalTrafficPolicy: Local}", "spec.externalTrafficPolicy")]
#[case("spec: {PORTS, externalTrafficPolicy: Local, externalIPs: [1.2.3.4]}", "")]
#[case("spec: {PORTS, type: NodePort, externalTrafficPolicy: local}", "spec.externalTrafficPolicy")]
#[case("spec: {PORTS, type: LoadBalancer, healthCheckNodePort: 30012}", "spec.healthCheckNodePort")]
#[case(
    "spec: {PORTS, type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30012}",
    ""
)]
#[case("spec: {PORTS, internalTrafficPolicy: local}", "spec.internalTrafficPolicy")]
#[case("spec: {PORTS, trafficDistribution: PreferFar}", "spec.trafficDistribution")]
#[case(
    "spec: {PORTS, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}",
    "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
)]
#[case("spec: {PORTS, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}", "")]
#[case("spec: {ports: [{port: 80}], selecter: {}}", "spec.selecter")]
fn services_are_validated(#[case] rest: &str, #[case] path: &str) {
    let rest = rest.replace("PORTS", "ports: [{port: 80}]");
    let parsed =
        strict(&format!("apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\n{rest}\n"));
    let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
    let expected: Vec<&str> = Some(path).filter(|path| !path.is_empty()).into_iter().collect();
    assert_eq!(paths, expected, "{:?}", parsed.problems);
}

/// A workload with this template and these other fields.
fn workload(kind: &str, template: &str, rest: &str) -> Vec<String> {
    let group = match kind {
        "Job" => "batch/v1",
        "ReplicationController" => "v1",
        _ => "apps/v1",
    };
    let parsed = strict(&format!(
        "apiVersion: {group}\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec: \
         {{containers: [{{name: c, image: i}}]{template}}}\n{rest}"
    ));
    parsed.problems.iter().map(|problem| problem.path.clone()).collect()
}

#[rstest]
#[case("ownerReferences: [{}], managedFields: [{}], generation: -1, name: A", &[])]
#[case("finalizers: [a]", &["spec.template.metadata.finalizers[0]"])]
fn pods_have_no_other_metadata_of_their_template(#[case] fields: &str, #[case] expected: &[&str]) {
    let parsed = strict(&format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    \
         metadata: {{labels: {{a: b}}, {fields}}}\n    spec: {{containers: [{{name: c, image: i}}]}}\n"
    ));
    let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, expected, "{:?}", parsed.problems);
}

const SELECTOR: &str = "  selector: {matchLabels: {a: b}}\n";

#[rstest]
#[case("", &[])]
#[case("  replicas: 0\n  strategy: {rollingUpdate: {maxSurge: 25%}}\n", &[])]
#[case("  replicas: -1\n", &["spec.replicas"])]
#[case("  replica: 1\n", &["spec.replica"])]
#[case("  strategy: {type: Slow}\n", &["spec.strategy.type"])]
#[case("  strategy: {rollingUpdate: {maxSurge: some}}\n", &["spec.strategy.rollingUpdate.maxSurge"])]
#[case("  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}\n", &["spec.strategy.rollingUpdate.maxUnavailable"])]
#[case("  strategy: {rollingUpdate: {maxSurge: 0%, maxUnavailable: 1}}\n", &[])]
#[case("  strategy: {rollingUpdate: {maxSurge: 2000%, maxUnavailable: 100%}}\n", &[])]
#[case("  strategy: {rollingUpdate: {maxUnavailable: 150%}}\n", &["spec.strategy.rollingUpdate.maxUnavailable"])]
#[case("  strategy: {type: \"\"}\n", &[])]
#[case("  strategy: {rollingUpdate: {maxUnavailable: 0}}\n", &[])]
#[case("  minReadySeconds: 600\n", &["spec.progressDeadlineSeconds"])]
#[case("  minReadySeconds: 599\n", &[])]
#[case("  progressDeadlineSeconds: 0\n", &["spec.progressDeadlineSeconds"])]
fn deployments_are_validated(#[case] rest: &str, #[case] expected: &[&str]) {
    assert_eq!(workload("Deployment", "", &format!("{SELECTOR}{rest}")), expected);
}

#[rstest]
#[case::all_defaults("", "", &[])]
#[case::selector("", "  selector: {a: b}\n  replicas: 2\n", &[])]
#[case::other_labels("", "  selector: {a: c}\n", &["spec.template.metadata.labels"])]
#[case::negative("", "  replicas: -1\n", &["spec.replicas"])]
#[case::restarts(", restartPolicy: Never", "", &["spec.template.spec.restartPolicy"])]
#[case::label_selector("", "  selector: {matchLabels: {a: b}}\n", &["spec.template.metadata.labels", "spec.selector.matchLabels"])]
fn replication_controllers_are_validated(
    #[case] template: &str,
    #[case] rest: &str,
    #[case] expected: &[&str],
) {
    assert_eq!(workload("ReplicationController", template, rest), expected);
}

#[test]
fn replication_controller_takes_labels_of_its_template() {
    let parsed = strict(
        "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: x}\nspec: {template: {metadata: {labels: {a: b}}, spec: {containers: \
         [{name: c, image: i}]}}}\n",
    );
    let object = parsed.workloads[0].json();
    assert_eq!(object["spec"]["selector"]["a"], "b");
    assert_eq!(object["metadata"]["labels"]["a"], "b");
}

#[rstest]
#[case::no_selector("", "", "spec.selector")]
#[case::other_labels("", "  selector: {matchLabels: {a: c}}\n", "spec.template.metadata.labels")]
#[case::restarts(", restartPolicy: Never", SELECTOR, "spec.template.spec.restartPolicy")]
#[case::deadline(
    ", activeDeadlineSeconds: 1",
    SELECTOR,
    "spec.template.spec.activeDeadlineSeconds"
)]
fn pods_of_a_set_never_end(#[case] template: &str, #[case] rest: &str, #[case] path: &str) {
    for kind in ["Deployment", "ReplicaSet", "DaemonSet", "StatefulSet"] {
        assert_eq!(workload(kind, template, rest), [path], "{kind}");
    }
}

#[rstest]
#[case("  updateStrategy: {type: \"\"}\n", &[])]
#[case("  updateStrategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}\n", &[])]
#[case("  updateStrategy: {type: OnDelete, rollingUpdate: {maxUnavailable: 0}}\n", &[])]
#[case("  updateStrategy: {rollingUpdate: {maxUnavailable: 0}}\n", &["spec.updateStrategy.rollingUpdate.maxUnavailable"])]
#[case("  updateStrategy: {rollingUpdate: {maxSurge: 1}}\n", &["spec.updateStrategy.rollingUpdate.maxSurge"])]
#[case("  updateStrategy: {rollingUpdate: {maxUnavailable: 150%}}\n", &["spec.updateStrategy.rollingUpdate.maxUnavailable"])]
#[case("  updateStrategy: {rollingUpdate: {maxUnavailable: some}}\n", &["spec.updateStrategy.rollingUpdate.maxUnavailable"])]
#[case("  updateStrategy: {type: Slow}\n", &["spec.updateStrategy.type"])]
fn daemon_sets_are_validated(#[case] rest: &str, #[case] expected: &[&str]) {
    assert_eq!(workload("DaemonSet", "", &format!("{SELECTOR}{rest}")), expected);
}

#[test]
fn empty_policies_of_stateful_sets_are_the_defaults() {
    let rest = "  podManagementPolicy: \"\"\n  updateStrategy: {type: \"\"}\n";
    assert_eq!(workload("StatefulSet", "", &format!("{SELECTOR}{rest}")), [""; 0]);
}

#[rstest]
#[case(
    "  updateStrategy: {rollingUpdate: {partition: -1}}\n",
    "spec.updateStrategy.rollingUpdate.partition"
)]
#[case(
    "  updateStrategy: {type: OnDelete, rollingUpdate: {partition: 1}}\n",
    "spec.updateStrategy.rollingUpdate"
)]
#[case("  podManagementPolicy: Sorted\n", "spec.podManagementPolicy")]
#[case(
    "  volumeClaimTemplates: [{metadata: {name: v}, spec: {accessModes: [ReadWriteOnce]}}]\n",
    "spec.volumeClaimTemplates[0].spec.resources[storage]"
)]
#[case(
    "  persistentVolumeClaimRetentionPolicy: {whenScaled: Keep}\n",
    "spec.persistentVolumeClaimRetentionPolicy.whenScaled"
)]
#[case("  ordinals: {start: -1}\n", "spec.ordinals.start")]
fn stateful_sets_are_validated(#[case] rest: &str, #[case] path: &str) {
    assert_eq!(workload("StatefulSet", "", &format!("{SELECTOR}{rest}")), [path]);
}

#[rstest]
#[case::good("Never", "", &[])]
#[case::restarts("Always", "", &["spec.template.spec.restartPolicy"])]
#[case::negative("Never", "  completions: -1\n", &["spec.completions"])]
#[case::mode("Never", "  completionMode: Some\n", &["spec.completionMode"])]
#[case::no_completions("Never", "  parallelism: 2\n  completionMode: Indexed\n", &["spec.completions"])]
#[case::per_index("Never", "  backoffLimitPerIndex: 1\n", &["spec.backoffLimitPerIndex"])]
#[case::selector("Never", "  selector: {matchLabels: {a: b}}\n", &["spec.selector"])]
#[case::generated("Never", "  selector: {matchLabels: {batch.kubernetes.io/controller-uid: u}}\n", &[])]
#[case::manual("Never", "  manualSelector: true\n  selector: {matchLabels: {a: b}}\n", &[])]
#[case::manual_for_others("Never", "  manualSelector: true\n  selector: {matchLabels: {a: c}}\n", &["spec.template.metadata.labels"])]
#[case::no_selector("Never", "  manualSelector: true\n", &["spec.selector"])]
#[case::policy_needs_never(
    "OnFailure",
    "  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}\n",
    &["spec.template.spec.restartPolicy"]
)]
#[case::rule("Never", "  podFailurePolicy: {rules: [{action: Ignore}]}\n", &["spec.podFailurePolicy.rules[0]"])]
#[case::code(
    "Never",
    "  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [0]}}]}\n",
    &["spec.podFailurePolicy.rules[0].onExitCodes.values[0]"]
)]
#[case::order(
    "Never",
    "  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [2, 1]}}]}\n",
    &["spec.podFailurePolicy.rules[0].onExitCodes.values"]
)]
#[case::container(
    "Never",
    "  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: d, operator: In, values: [1]}}]}\n",
    &["spec.podFailurePolicy.rules[0].onExitCodes.containerName"]
)]
#[case::success(
    "Never",
    "  completionMode: Indexed\n  completions: 2\n  successPolicy: {rules: [{succeededIndexes: 0-2}]}\n",
    &["spec.successPolicy.rules[0].succeededIndexes"]
)]
fn jobs_are_validated(#[case] policy: &str, #[case] rest: &str, #[case] expected: &[&str]) {
    let template = format!(", restartPolicy: {policy}");
    assert_eq!(workload("Job", &template, rest), expected);
}

#[rstest]
#[case(63, &[])]
#[case(64, &["metadata.name"])]
fn names_of_jobs_fit_into_a_label(#[case] length: usize, #[case] expected: &[&str]) {
    let parsed = strict(&format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {}}}\nspec: {{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, \
         image: i}}]}}}}}}\n",
        "n".repeat(length)
    ));
    let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, expected, "{:?}", parsed.problems);
}

#[test]
fn generated_selector_of_job_is_removed_with_a_warning() {
    let parsed = strict(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec:\n  selector: {matchLabels: {controller-uid: u}}\n  template: \
         {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}\n",
    );
    assert_eq!(messages(&parsed), [""; 0]);
    let warnings: Vec<&str> = parsed.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(warnings, ["is removed: the controller of another cluster generated it"]);
    assert_eq!(parsed.workloads[0].json()["spec"]["selector"], serde_json::Value::Null);
}

#[rstest]
#[case::good("schedule: 0 9 * * mon-fri, timeZone: Europe/Berlin, concurrencyPolicy: Forbid", "")]
#[case::no_schedule("suspend: true", "spec.schedule")]
#[case::malformed("schedule: 0 9 * *", "spec.schedule")]
#[case::zone_in_schedule("schedule: CRON_TZ=UTC 0 9 * * *", "spec.schedule")]
#[case::zone("schedule: '@daily', timeZone: Mars/Olympus", "spec.timeZone")]
#[case::policy("schedule: '@daily', concurrencyPolicy: Queue", "spec.concurrencyPolicy")]
#[case::deadline("schedule: '@daily', startingDeadlineSeconds: -1", "spec.startingDeadlineSeconds")]
#[case::successful(
    "schedule: '@daily', successfulJobsHistoryLimit: -1",
    "spec.successfulJobsHistoryLimit"
)]
#[case::failed("schedule: '@daily', failedJobsHistoryLimit: -1", "spec.failedJobsHistoryLimit")]
#[case::unknown("schedule: '@daily', shedule: x", "spec.shedule")]
fn cron_jobs_are_validated(#[case] fields: &str, #[case] path: &str) {
    let (fields, job) = (
        fields.replace(", ", "\n  "),
        "spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}",
    );
    let parsed = strict(&format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: x}}\nspec:\n  {fields}\n  jobTemplate: {{{job}}}\n"
    ));
    let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
    let expected: Vec<&str> = Some(path).filter(|path| !path.is_empty()).into_iter().collect();
    assert_eq!(paths, expected, "{:?}", parsed.problems);
}

#[rstest]
#[case::long_name(&"n".repeat(53), "restartPolicy: Never", "{}", "metadata.name")]
#[case::restarts(
    "x",
    "restartPolicy: Always",
    "{}",
    "spec.jobTemplate.spec.template.spec.restartPolicy"
)]
#[case::image(
    "x",
    "restartPolicy: Maybe",
    "{}",
    "spec.jobTemplate.spec.template.spec.restartPolicy"
)]
#[case::selector(
    "x",
    "restartPolicy: Never",
    "manualSelector: true",
    "spec.jobTemplate.spec.manualSelector"
)]
fn jobs_of_cron_jobs_are_validated(
    #[case] name: &str,
    #[case] policy: &str,
    #[case] rest: &str,
    #[case] path: &str,
) {
    let rest = rest.replace("{}", "backoffLimit: 1");
    let parsed = strict(&format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: {name}}}\nspec:\n  schedule: '@daily'\n  jobTemplate:\n    spec:\n      \
         {rest}\n      template: {{spec: {{{policy}, containers: [{{name: c, image: i}}]}}}}\n"
    ));
    let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
    assert!(paths.contains(&path), "{:?}", parsed.problems);
}
