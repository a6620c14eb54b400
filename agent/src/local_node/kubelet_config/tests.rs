//! Parsing of a configuration: files, defaults, drop-ins, fields without effect, and the output of `/configz`.
#![allow(clippy::unwrap_used)]

use compact::Set;
use rstest::rstest;
use serde_json::json;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn document(fields: &str) -> Document {
    normalized(&parse(&format!("{HEAD}{fields}\n")).unwrap().document).unwrap()
}

/// A configuration with these fields.
pub(crate) fn config(fields: &str) -> KubeletConfiguration {
    check(&document(fields)).unwrap().config
}

#[test]
fn fields_are_read_and_those_without_effect_are_named() {
    let text = format!(
        "{HEAD}maxPods: 20\nregistryPullQPS: 0\nimageMinimumGCAge: 5m0s\nsystemReserved: {{cpu: 500m}}\n\
         authorization: {{mode: Webhook, webhook: {{cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 5s}}}}\n\
         registerWithTaints:\n- {{key: a, effect: NoSchedule}}\nclusterDomain: null\niptablesDropBit: 7\nfailSwap: true\n\
         featureGates: {{ContainerStopSignals: true, PodsAPI: true, VolumeLimitScaling: true}}\n"
    );
    let file = parse(&text).unwrap();
    assert_eq!(file.unknown, ["failSwap"]);
    let Checked { config, without_effect } = check(&normalized(&file.document).unwrap()).unwrap();
    assert_eq!(config.max_pods, Some(20));
    assert_eq!(config.registry_pull_qps, Some(0));
    assert_eq!(config.image_minimum_gc_age, Some(GoDuration::of_seconds(300)));
    assert_eq!(config.system_reserved.unwrap()["cpu"], "500m");
    assert_eq!(config.register_with_taints.unwrap()[0].effect, "NoSchedule");
    assert_eq!(config.cluster_domain, None);
    let reviews = config.authorization.unwrap().webhook.unwrap();
    assert_eq!(reviews.cache_authorized_ttl, None, "zero stands for the default");
    assert_eq!(reviews.cache_unauthorized_ttl, Some(GoDuration::of_seconds(5)));
    let names: Vec<&str> = without_effect.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["iptablesDropBit", "featureGates.PodsAPI"]);
}

#[rstest]
#[case("maxPods: 1", "expected apiVersion")]
#[case("- 1", "expected apiVersion")]
#[case("a: [", "invalid YAML or JSON")]
fn other_documents_are_refused(#[case] text: &str, #[case] expected: &str) {
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case("featureGates: {ContainerStopSignals: maybe}", "featureGates: invalid type")]
#[case("maxPods: many", "maxPods: invalid type")]
#[case("maxPods: 3000000000", "maxPods: invalid value")]
#[case("syncFrequency: soon", "syncFrequency: invalid duration \"soon\"")]
#[case("crashLoopBackOff: {most: 1s}", "crashLoopBackOff: unknown field `most`")]
#[case("maxPods: 1\nmaxPods: 2", "duplicate")]
#[case("maxPods: many\nport: {}", "; port: invalid type")]
fn malformed_fields_are_refused(#[case] line: &str, #[case] expected: &str) {
    let error = parse(&format!("{HEAD}{line}\n")).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// The table has each field of the types, and no other.
#[test]
fn table_has_every_field_once() {
    let Ok(Value::Object(of_types)) = serde_json::to_value(KubeletConfiguration::default()) else {
        panic!("an object");
    };
    let of_types: Set<&str> = of_types.keys().map(String::as_str).collect();
    let first = |field: &Field| field.name.split('.').next().unwrap();
    let of_table: Set<&str> = FIELDS.iter().map(first).collect();
    assert_eq!(of_table, of_types);
    let names: Set<&str> = FIELDS.iter().map(|field| field.name).collect();
    assert_eq!(names.len(), FIELDS.len());
    for name in fields::ZERO_COUNTS {
        assert!(names.contains(name), "{name}");
    }
}

/// Each default, and each actual value of the agent, is valid in a file.
#[test]
fn field_table_has_valid_values() {
    for field in &FIELDS {
        for text in [field.default, field.actual].into_iter().filter(|text| !text.is_empty()) {
            let mut document = Document::new();
            set(&mut document, field.name, serde_json::from_str(text).unwrap());
            decoded(&document).unwrap();
        }
    }
    let defaults = with_defaults(&Document::new());
    assert_eq!(normalized(&defaults).unwrap(), defaults, "as a file would have them");
    let checked = check(&defaults).unwrap();
    assert_eq!(checked.without_effect, [], "a kubelet's own defaults need no warning");
}

#[rstest]
#[case("", "nodeStatusReportFrequency", json!("5m0s"))]
#[case("nodeStatusUpdateFrequency: 30s", "nodeStatusReportFrequency", json!("30s"))]
#[case("", "serializeImagePulls", json!(true))]
#[case("maxParallelImagePulls: 1", "serializeImagePulls", json!(true))]
#[case("maxParallelImagePulls: 5", "serializeImagePulls", json!(false))]
#[case("podPidsLimit: -7", "podPidsLimit", json!(-1))]
#[case("maxPods: 0", "maxPods", json!(110))]
#[case("syncFrequency: 0s", "syncFrequency", json!("1m0s"))]
#[case("registryPullQPS: 0", "registryPullQPS", json!(0))]
#[case("resolvConf: ''", "resolvConf", json!(""))]
#[case("enforceNodeAllocatable: []", "enforceNodeAllocatable", json!([]))]
#[case("", "crashLoopBackOff.maxContainerRestartPeriod", json!("5m0s"))]
#[case(
    "featureGates: {KubeletCrashLoopBackOffMax: false}",
    "crashLoopBackOff.maxContainerRestartPeriod",
    Value::Null
)]
#[case("", "imagePullCredentialsVerificationPolicy", json!("NeverVerifyPreloadedImages"))]
#[case(
    "featureGates: {KubeletEnsureSecretPulledImages: false}",
    "imagePullCredentialsVerificationPolicy",
    Value::Null
)]
#[case("authentication: {anonymous: {enabled: true}}", "authentication.webhook.enabled", json!(true))]
fn defaults_follow_what_is_set(#[case] fields: &str, #[case] path: &str, #[case] value: Value) {
    let whole = with_defaults(&document(fields));
    assert_eq!(at(&whole, path).unwrap_or(&Value::Null), &value);
}

/// The table of docs/kubelet.md.
fn table() -> String {
    let mut text = "| field | default | what the agent does |\n|---|---|---|\n".to_owned();
    for field in &FIELDS {
        let default = field.default.trim_matches('"');
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        let effect = match field.effect {
            Effect::Used => "the agent applies this field".to_owned(),
            Effect::Refused(remedy) => {
                let remedy = remedy.replacen("leave it out", "leave the field out", 1);
                format!("the agent rejects values other than the default; {remedy}")
            }
            Effect::Unused(why) => {
                format!("the agent ignores this field and logs a warning: {why}")
            }
        };
        text += &format!("| `{}` | {default} | {effect} |\n", field.name);
    }
    text
}

/// The table of feature gates.
fn gate_table() -> String {
    let mut text = "| feature gate | default | what the agent does |\n|---|---|---|\n".to_owned();
    for KubeletGate { name, effect } in &KUBELET_GATES {
        let default = gates::default_of(name).unwrap();
        let effect = match effect {
            GateEffect::Applied => "the agent applies this gate".to_owned(),
            GateEffect::Partly { value, why } => {
                format!("the agent applies `{value}` only in part, and logs a warning: {why}")
            }
            GateEffect::Always { value, why } => {
                format!(
                    "the agent behaves as if this gate were `{value}`, and logs a warning if the gate is set to `{}`: {why}",
                    !value
                )
            }
        };
        text += &format!("| `{name}` | `{default}` | {effect} |\n");
    }
    text
}

#[rstest]
#[case::default_needs_no_warning("{}", &[])]
#[case::applied("{MemoryQoS: true, ComponentFlagz: false}", &[])]
#[case::always_off("{PodsAPI: true, WatchListClient: false}", &["PodsAPI"])]
#[case::always_on("{PLEGOnDemandRelist: false}", &["PLEGOnDemandRelist"])]
#[case::on_against_its_default("{ClusterTrustBundleProjection: false}", &["ClusterTrustBundleProjection"])]
#[case::partly("{CRIListStreaming: true}", &["CRIListStreaming"])]
#[case::of_other_components("{OpenAPIEnums: false, GenericWorkload: true}", &[])]
#[case::all_but_one("{AllAlpha: true, CRIListStreaming: false, PodsAPI: false}", &[
    "ClientsAllowCBOR", "ClientsPreferCBOR", "DRAWorkloadResourceClaims", "ImageVolumeWithDigest", "NativeHistograms",
])]
fn gates_that_lack_their_effect_are_named(#[case] gates: &str, #[case] expected: &[&str]) {
    let fields = document(&format!("featureGates: {gates}"));
    let without_effect = check(&fields).unwrap().without_effect;
    let names = without_effect.iter().filter_map(|(name, _)| name.strip_prefix("featureGates."));
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

#[test]
fn gate_table_has_known_gates_in_order() {
    assert!(KUBELET_GATES.is_sorted_by(|one, other| one.name < other.name));
    for gate in &KUBELET_GATES {
        assert!(Gates::default().state(gate.name).is_some(), "{}", gate.name);
    }
}

#[test]
fn document_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kubelet.md");
    let written = std::fs::read_to_string(path).unwrap();
    let start = written.find("| field | default |").unwrap();
    let gates = written.find("\n## Feature gates\n").unwrap();
    let gate_rows = written.find("| feature gate | default |").unwrap();
    let heading = &written[gates..gate_rows];
    let expected = format!("{}{}{heading}{}", &written[..start], table(), gate_table());
    if std::env::var_os("CRIB_UPDATE_DOCS").is_some() {
        std::fs::write(path, expected).unwrap();
        return;
    }
    assert!(
        written == expected,
        "docs/kubelet.md is out of date: run this test with CRIB_UPDATE_DOCS=1 to update it"
    );
}

#[test]
fn drop_ins_replace_fields_and_merge_objects() {
    let mut whole = with_defaults(&document("maxPods: 20\nclusterDNS: [10.0.0.1]\npodsPerCore: 3"));
    let part = |text: &str| parse(&format!("{HEAD}{text}\n")).unwrap().document;
    overlay(&mut whole, &part("maxPods: 30\nclusterDNS: [10.0.0.2]\nsystemReserved: {cpu: '1'}"));
    overlay(
        &mut whole,
        &part(
            "podsPerCore: null\nsystemReserved: {memory: 1Gi}\nauthentication: {anonymous: {enabled: true}}",
        ),
    );
    let config = check(&with_defaults(&normalized(&whole).unwrap())).unwrap().config;
    assert_eq!(config.max_pods, Some(30));
    assert_eq!(config.cluster_dns.unwrap(), ["10.0.0.2"]);
    assert_eq!(config.pods_per_core, None);
    assert_eq!(config.system_reserved.unwrap().len(), 2);
    let authentication = config.authentication.unwrap();
    assert_eq!(authentication.anonymous.unwrap().enabled, Some(true));
    assert_eq!(authentication.webhook.unwrap().enabled, Some(true));
}

#[rstest]
#[case("runOnce: true", "runOnce: crib's agent does not support this; leave it out")]
#[case("systemCgroups: /x", "systemCgroups: crib's agent")]
#[case("tracing: {endpoint: 'localhost:4317'}", "tracing: crib's agent")]
#[case("userNamespaces: {idsPerPod: 131072}", "userNamespaces.idsPerPod: crib's agent")]
fn field_that_the_agent_lacks_is_refused(#[case] fields: &str, #[case] expected: &str) {
    let error = check(&document(fields)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case("cpuManagerPolicy: none\nshutdownGracePeriod: 0s\nevictionPressureTransitionPeriod: 0s")]
#[case("logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}}, verbosity: 0}")]
#[case("enforceNodeAllocatable: [none]\ncgroupsPerQOS: false")]
#[case("enforceNodeAllocatable: []\ncgroupsPerQOS: false")]
#[case("cpuManagerPolicyOptions: {}\nreservedMemory: []\npodPidsLimit: -1")]
#[case("cpuManagerPolicy: static\nmemoryManagerPolicy: Static\ntopologyManagerPolicy: restricted")]
fn default_or_supported_value_is_accepted(#[case] fields: &str) {
    let mut document = document(fields);
    // klog rejects a period of zero; kubeadm writes zero for an unset value.
    remove(&mut document, "logging.flushFrequency");
    assert_eq!(check(&document).unwrap().without_effect, []);
}

#[test]
fn effective_configuration_lists_only_applied_values() {
    let shown = effective(&config(
        "maxPods: 7\niptablesDropBit: 9\nevictionHard: {memory.available: 1Gi}\nenforceNodeAllocatable: [pods]\n\
         logging: {verbosity: 3}\nfeatureGates: {ContainerStopSignals: true}",
    ));
    assert_eq!(shown["maxPods"], 7);
    assert_eq!(shown["syncFrequency"], "1m0s");
    assert_eq!(shown["contentType"], "application/json");
    assert_eq!(shown["cpuManagerPolicy"], "none");
    assert_eq!(shown["enforceNodeAllocatable"], json!(["pods"]));
    assert_eq!(shown["logging"]["verbosity"], 3);
    assert_eq!(shown["featureGates"]["ContainerStopSignals"], true);
    assert_eq!(shown["evictionHard"], json!({"memory.available": "1Gi"}));
    for field in ["iptablesDropBit", "hairpinMode", "apiVersion"] {
        assert_eq!(shown.get(field), None, "{field}");
    }
    assert!(check(&normalized(&shown).unwrap()).is_ok(), "it is a configuration that is taken");
}
