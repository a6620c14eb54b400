//! Rules of containers, and of their pod's security settings.

use rstest::rstest;
use serde_json::{Value, json};

use super::{container_errors, one, spec_errors};
use crate::manifest::Rule::{
    self, Duplicate, Forbidden, Invalid, NotFound, NotSupported, Required, TooMany,
};

#[rstest]
#[case(json!({"livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a_b", "value": ""}]}}}), "livenessProbe.httpGet.httpHeaders", Invalid)]
#[case(json!({"lifecycle": {"stopSignal": "SIGTERM"}}), "lifecycle.stopSignal", Forbidden)]
#[case(json!({"restartPolicy": "Never", "restartPolicyRules": vec![json!({"action": "Restart", "exitCodes": {"operator": "In"}}); 21]}), "restartPolicyRules", TooMany)]
#[case(json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}]}), "volumeMounts[0].name", NotFound)]
#[case(json!({"securityContext": {"procMount": ""}}), "securityContext.procMount", NotSupported)]
#[case(json!({"securityContext": {"seccompProfile": {"localhostProfile": "a", "type": "Unconfined"}}}), "securityContext.seccompProfile.localhostProfile", Invalid)]
#[case(json!({"securityContext": {"appArmorProfile": {"type": "Bogus"}}}), "securityContext.appArmorProfile.type", NotSupported)]
#[case(json!({"securityContext": {"windowsOptions": {"runAsUserName": "a\\b\\c"}}}), "securityContext.windowsOptions.runAsUserName", Invalid)]
#[case(json!({"securityContext": {"windowsOptions": {"gmsaCredentialSpec": ""}}}), "securityContext.windowsOptions.gmsaCredentialSpec", Invalid)]
fn container_is_checked(#[case] container: Value, #[case] field: &str, #[case] rule: Rule) {
    assert_eq!(container_errors(container), one(field, rule));
}

#[rstest]
#[case(json!({"fieldRef": {"fieldPath": "metadata.labels['a b']"}}), "fieldRef", Invalid)]
#[case(json!({"fieldRef": {"fieldPath": "spec.nodeName['a']"}}), "fieldRef.fieldPath", Invalid)]
#[case(json!({"fieldRef": {"fieldPath": "metadata.labels"}}), "fieldRef.fieldPath", NotSupported)]
#[case(json!({"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}}), "fieldRef.fieldPath", Invalid)]
#[case(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Ki"}}), "resourceFieldRef.divisor", Invalid)]
#[case(json!({"fileKeyRef": {"key": "K", "path": "../x", "volumeName": "scratch"}}), "fileKeyRef.path", Invalid)]
#[case(json!({"fileKeyRef": {"key": "K", "path": "x", "volumeName": "host"}}), "fileKeyRef.volumeName", Invalid)]
#[case(json!({"fileKeyRef": {"key": "K", "path": "x", "volumeName": "none"}}), "fileKeyRef.volumeName", NotFound)]
fn source_of_a_variable_is_checked(#[case] source: Value, #[case] field: &str, #[case] rule: Rule) {
    let found = spec_errors(json!({
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": source}]}],
    }));
    let field = format!("spec.containers[0].env[0].valueFrom.{field}");
    assert_eq!(found, one(&field, rule));
}

#[rstest]
#[case(json!({"fieldPath": "spec.host"}))]
#[case(json!({"fieldPath": "metadata.annotations['Example.com/A']"}))]
fn known_field_of_a_variable_is_accepted(#[case] field: Value) {
    let env = json!([{"name": "A", "valueFrom": {"fieldRef": field}}]);
    assert_eq!(container_errors(json!({"env": env})), []);
}

#[rstest]
#[case::ports_of_one_init(json!([{"name": "a", "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}, {"containerPort": 2, "hostPort": 1}]}]), "[0].ports[1].hostPort", Duplicate)]
#[case::rules_without_policy(json!([{"name": "a", "image": "i", "restartPolicyRules": [{"action": "Bogus"}]}]), "[0].restartPolicy", Required)]
#[case::resize_of_init(json!([{"name": "a", "image": "i", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}]), "[0].resizePolicy[0].restartPolicy", Invalid)]
#[case::name_of_an_app(json!([{"name": "c", "image": "i"}]), "[0].name", Duplicate)]
#[case::probe_of_init(json!([{"name": "a", "image": "i", "livenessProbe": {"exec": {"command": ["x"]}}}]), "[0].livenessProbe", Forbidden)]
fn init_container_is_checked(#[case] inits: Value, #[case] field: &str, #[case] rule: Rule) {
    let found = spec_errors(json!({"initContainers": inits}));
    assert_eq!(found, one(&format!("spec.initContainers{field}"), rule));
}

#[test]
fn init_containers_may_share_host_ports() {
    let init = |name: &str| json!({"name": name, "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}]});
    let found = spec_errors(json!({"initContainers": [init("a"), init("b")]}));
    assert_eq!(found, []);
}

#[test]
fn volume_is_mounted_or_used_as_a_device_not_both() {
    let found = spec_errors(json!({
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}],
        "containers": [{
            "name": "c",
            "image": "i",
            "volumeMounts": [{"name": "v", "mountPath": "/a"}],
            "volumeDevices": [{"name": "v", "devicePath": "/dev/a"}],
        }],
    }));
    let expected = [
        ("spec.containers[0].volumeDevices[0].name".to_owned(), Invalid),
        ("spec.containers[0].volumeMounts[0].name".to_owned(), Invalid),
    ];
    assert_eq!(found, expected);
}

#[rstest]
#[case(json!({"hostUsers": false, "hostPID": true}), "spec.HostPID", Forbidden)]
#[case(json!({"hostPID": true, "shareProcessNamespace": true}), "spec.securityContext.shareProcessNamespace", Invalid)]
#[case(json!({"hostIPC": true, "securityContext": {"sysctls": [{"name": "kernel/shmmax", "value": "1"}]}}), "spec.securityContext.sysctls[0].name", Invalid)]
#[case(json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}}), "spec.securityContext.windowsOptions", Forbidden)]
#[case(json!({"os": {"name": "windows"}, "hostPID": true}), "spec.hostPID", Forbidden)]
#[case(json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}), "spec.hostNetwork", Invalid)]
#[case(json!({"hostAliases": [{"ip": "::ffff:10.0.0.1"}]}), "spec.hostAliases[0].ip", Invalid)]
#[case(json!({"dnsConfig": {"searches": ["a..b"]}}), "spec.dnsConfig.searches[0]", Invalid)]
fn pod_security_and_network_are_checked(
    #[case] spec: Value,
    #[case] field: &str,
    #[case] rule: Rule,
) {
    assert_eq!(spec_errors(spec), one(field, rule));
}

#[rstest]
#[case("_srv.example.com.")]
#[case(".")]
fn search_domain_is_accepted(#[case] domain: &str) {
    assert_eq!(spec_errors(json!({"dnsConfig": {"searches": [domain]}})), []);
}

#[rstest]
#[case("SIGKILL", true)]
#[case("SIGUSR1", false)]
fn windows_supports_two_stop_signals(#[case] signal: &str, #[case] known: bool) {
    let found = spec_errors(json!({
        "os": {"name": "windows"},
        "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": signal}}],
    }));
    assert_eq!(found.is_empty(), known);
}
