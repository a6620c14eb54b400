//! ◆ A container in the format of `kubectl describe`. Pure.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerState, ContainerStatus, Probe, ResourceRequirements,
    SeccompProfile, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::environment;
use super::lines::{Lines, NONE};
use super::time::time;

/// Adds a container of the pod with this metadata; `indent` is that of its name. Without an agent, shows only the runtime's
/// information.
pub(super) fn add(
    lines: &mut Lines,
    indent: usize,
    container: &Container,
    status: Option<&ContainerStatus>,
    pod: &ObjectMeta,
    has_agent: bool,
) {
    lines.line(indent, &format!("{}:", container.name));
    let mut field = |key: &str, value: &str| lines.field(4, key, value);
    if let Some(status) = status {
        field("Container ID", status.container_id.as_deref().unwrap_or_default());
    }
    field("Image", container.image.as_deref().unwrap_or_default());
    if let Some(status) = status {
        field("Image ID", &status.image_id);
    }
    if has_agent {
        ports(lines, container.ports.as_deref().unwrap_or_default());
    }
    let security = container.security_context.as_ref();
    seccomp(lines, [4, 6], security.and_then(|of| of.seccomp_profile.as_ref()));
    words(lines, "Command", container.command.as_deref());
    words(lines, "Args", container.args.as_deref());
    if let Some(status) = status {
        state(lines, "State", status.state.as_ref());
        if status.last_state.as_ref().is_some_and(|last| *last != ContainerState::default()) {
            state(lines, "Last State", status.last_state.as_ref());
        }
        if has_agent {
            let ready = if status.ready { "True" } else { "False" };
            lines.field(4, "Ready", ready);
        }
        lines.field(4, "Restart Count", &status.restart_count.to_string());
    }
    resources(lines, 4, container.resources.as_ref());
    let probes = [
        ("Liveness", &container.liveness_probe),
        ("Readiness", &container.readiness_probe),
        ("Startup", &container.startup_probe),
    ];
    for (key, probe) in probes {
        lines.some(4, key, probe.as_ref().map(probe_text).as_deref());
    }
    if has_agent {
        environment::add(lines, container, pod);
    }
    mounts(lines, container.volume_mounts.as_deref().unwrap_or_default());
    devices(lines, container.volume_devices.as_deref().unwrap_or_default());
}

fn ports(lines: &mut Lines, ports: &[ContainerPort]) {
    let text = |number: i32, port: &ContainerPort| {
        let name = port.name.as_deref().filter(|name| !name.is_empty());
        let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
        format!("{number}/{}{name}", port.protocol.as_deref().unwrap_or("TCP"))
    };
    let own: Vec<String> = ports.iter().map(|port| text(port.container_port, port)).collect();
    let host = ports.iter().map(|port| text(port.host_port.unwrap_or_default(), port));
    let host: Vec<String> = host.collect();
    let (own_key, host_key, own, host) = match ports.len() {
        0 => ("Port", "Host Port", NONE.to_owned(), NONE.to_owned()),
        1 => ("Port", "Host Port", own.concat(), host.concat()),
        _ => ("Ports", "Host Ports", own.join(", "), host.join(", ")),
    };
    lines.field(4, own_key, &own);
    lines.field(4, host_key, &host);
}

/// Adds the seccomp profile of a pod or container. The second indent is that of the name of a profile on the node.
pub(super) fn seccomp(lines: &mut Lines, indents: [usize; 2], profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    let [indent, of_name] = indents;
    lines.field(indent, "SeccompProfile", &profile.type_);
    if profile.type_ == "Localhost" {
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        lines.field(of_name, "LocalhostProfile", name);
    }
}

fn words(lines: &mut Lines, key: &str, words: Option<&[String]>) {
    let Some(words) = words.filter(|words| !words.is_empty()) else {
        return;
    };
    lines.line(4, &format!("{key}:"));
    for line in words.iter().flat_map(|word| word.lines()) {
        lines.line(6, line);
    }
}

fn state(lines: &mut Lines, key: &str, state: Option<&ContainerState>) {
    let Some(state) = state else { return };
    let mut all = Vec::new();
    let name = if let Some(running) = &state.running {
        all.push(("Started", running.started_at.as_ref().map(time)));
        "Running"
    } else if let Some(ended) = &state.terminated {
        all.extend([
            ("Reason", ended.reason.clone()),
            ("Message", ended.message.clone()),
            ("Exit Code", Some(ended.exit_code.to_string())),
            ("Signal", ended.signal.filter(|signal| *signal > 0).map(|signal| signal.to_string())),
            ("Started", ended.started_at.as_ref().map(time)),
            ("Finished", ended.finished_at.as_ref().map(time)),
        ]);
        "Terminated"
    } else {
        let waiting = state.waiting.clone().unwrap_or_default();
        all.extend([("Reason", waiting.reason), ("Message", waiting.message)]);
        "Waiting"
    };
    lines.field(4, key, name);
    for (key, value) in all {
        let value = value.map(|value| value.trim().to_owned());
        lines.some(6, key, value.as_deref());
    }
}

/// Adds the resources of a pod or container.
pub(super) fn resources(
    lines: &mut Lines,
    indent: usize,
    resources: Option<&ResourceRequirements>,
) {
    let resources = resources.cloned().unwrap_or_default();
    for (key, amounts) in [("Limits", resources.limits), ("Requests", resources.requests)] {
        let amounts = amounts.unwrap_or_default();
        let fields: Vec<(String, String)> =
            amounts.into_iter().map(|(name, of)| (name, of.0)).collect();
        if !fields.is_empty() {
            lines.line(indent, &format!("{key}:"));
            lines.block(indent + 2, &fields);
        }
    }
}

/// The action of a probe, and its timing.
fn probe_text(probe: &Probe) -> String {
    let action = if let Some(exec) = &probe.exec {
        format!("exec [{}]", exec.command.clone().unwrap_or_default().join(" "))
    } else if let Some(get) = &probe.http_get {
        let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let host = get.host.as_deref().unwrap_or_default();
        let path = get.path.as_deref().unwrap_or_default();
        format!("http-get {scheme}://{host}:{}{path}", port(&get.port))
    } else if let Some(socket) = &probe.tcp_socket {
        let host = socket.host.as_deref().unwrap_or_default();
        format!("tcp-socket {host}:{}", port(&socket.port))
    } else if let Some(grpc) = &probe.grpc {
        let service = grpc.service.as_deref().unwrap_or_default();
        format!("grpc <pod>:{} {service}", grpc.port).trim_end().to_owned()
    } else {
        "unknown".to_owned()
    };
    format!(
        "{action} delay={}s timeout={}s period={}s #success={} #failure={}",
        probe.initial_delay_seconds.unwrap_or_default(),
        probe.timeout_seconds.unwrap_or(1),
        probe.period_seconds.unwrap_or(10),
        probe.success_threshold.unwrap_or(1),
        probe.failure_threshold.unwrap_or(3),
    )
}

fn port(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}

fn mounts(lines: &mut Lines, mounts: &[VolumeMount]) {
    if mounts.is_empty() {
        return lines.field(4, "Mounts", NONE);
    }
    lines.line(4, "Mounts:");
    let mut mounts: Vec<&VolumeMount> = mounts.iter().collect();
    compact::sort_by(&mut mounts, |a, b| a.mount_path.cmp(&b.mount_path));
    for mount in mounts {
        let mode = if mount.read_only == Some(true) { "ro" } else { "rw" };
        let path = mount.sub_path.as_ref().or(mount.sub_path_expr.as_ref());
        let path = path.filter(|path| !path.is_empty());
        let path = path.map(|path| format!(",path={path:?}")).unwrap_or_default();
        let (at, from) = (&mount.mount_path, &mount.name);
        lines.line(6, &format!("{at} from {from} ({mode}{path})"));
    }
}

fn devices(lines: &mut Lines, devices: &[VolumeDevice]) {
    if devices.is_empty() {
        return;
    }
    lines.line(4, "Devices:");
    let mut devices: Vec<&VolumeDevice> = devices.iter().collect();
    compact::sort_by(&mut devices, |a, b| a.device_path.cmp(&b.device_path));
    for device in devices {
        lines.line(6, &format!("{} from {}", device.device_path, device.name));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn described(container: &str, status: Option<&str>) -> String {
        let mut lines = Lines::default();
        let container = serde_json::from_str(container).unwrap();
        let status = status.map(|status| serde_json::from_str(status).unwrap());
        let pod = ObjectMeta { name: Some("web".to_owned()), ..ObjectMeta::default() };
        add(&mut lines, 2, &container, status.as_ref(), &pod, true);
        lines.aligned().join("\n")
    }

    #[test]
    fn container_without_status_shows_spec() {
        let text = described(r#"{"name": "c", "image": "x:1"}"#, None);
        assert_eq!(
            text,
            "  c:\n    Image:        x:1\n    Port:         <none>\n    Host Port:    <none>\n    Environment:  <none>\n    Mounts:       <none>"
        );
    }

    #[test]
    fn container_shows_everything_of_its_spec_and_status() {
        let container = r#"{
            "name": "c", "image": "x:1", "command": ["sh", "-c"], "args": ["a\nb"],
            "ports": [{"containerPort": 80, "hostPort": 8080, "name": "http"}, {"containerPort": 53, "protocol": "UDP"}],
            "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
            "resources": {"limits": {"memory": "1Gi", "cpu": "1"}, "requests": {"cpu": "1"}},
            "readinessProbe": {"httpGet": {"port": "web", "path": "/r", "scheme": "HTTPS"}, "periodSeconds": 5},
            "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}, {"secretRef": {"name": "longer", "optional": true}}],
            "env": [{"name": "A", "value": "b"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "L", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/z", "subPath": "p"}, {"name": "w", "mountPath": "/a", "readOnly": true}],
            "volumeDevices": [{"name": "d", "devicePath": "/dev/y"}, {"name": "e", "devicePath": "/dev/x"}]
        }"#;
        let status = r#"{
            "name": "c", "image": "x:1", "imageID": "sha256:1", "containerID": "crib://2", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 7, "reason": "Error", "startedAt": "2026-01-02T03:04:05Z", "finishedAt": "2026-01-02T03:04:06Z"}}
        }"#;
        let expected = "  c:
    Container ID:        crib://2
    Image:               x:1
    Image ID:            sha256:1
    Ports:               80/TCP (http), 53/UDP
    Host Ports:          8080/TCP (http), 0/UDP
    SeccompProfile:      Localhost
      LocalhostProfile:  p.json
    Command:
      sh
      -c
    Args:
      a
      b
    State:          Waiting
      Reason:       CrashLoopBackOff
      Message:      back-off
    Last State:     Terminated
      Reason:       Error
      Exit Code:    7
      Started:      Fri, 02 Jan 2026 03:04:05 +0000
      Finished:     Fri, 02 Jan 2026 03:04:06 +0000
    Ready:          False
    Restart Count:  1
    Limits:
      cpu:     1
      memory:  1Gi
    Requests:
      cpu:      1
    Readiness:  http-get https://:web/r delay=0s timeout=1s period=5s #success=1 #failure=3
    Environment Variables from:
      m       ConfigMap with prefix 'P_'  Optional: false
      longer  Secret                      Optional: true
    Environment:
      A:    b
      POD:  web (v1:metadata.name)
      K:    <set to the key 'k' in secret 's'>  Optional: false
      L:    1 (limits.cpu)
    Mounts:
      /a from w (ro)
      /z from v (rw,path=\"p\")
    Devices:
      /dev/x from e
      /dev/y from d";
        assert_eq!(described(container, Some(status)), expected);
    }

    #[rstest]
    #[case(r#"{"exec": {"command": ["test", "-e", "/x"]}}"#, "exec [test -e /x] ")]
    #[case(r#"{"tcpSocket": {"port": 80}}"#, "tcp-socket :80 ")]
    #[case(r#"{"grpc": {"port": 80, "service": "s"}}"#, "grpc <pod>:80 s ")]
    #[case(r#"{"grpc": {"port": 80}}"#, "grpc <pod>:80 ")]
    fn probe_shows_its_action(#[case] probe: &str, #[case] action: &str) {
        let text = probe_text(&serde_json::from_str(probe).unwrap());
        let times = "delay=0s timeout=1s period=10s #success=1 #failure=3";
        assert_eq!(text, format!("{action}{times}"));
    }

    #[rstest]
    #[case(
        r#"{"running": {"startedAt": "2026-01-02T03:04:05Z"}}"#,
        "    State:      Running\n      Started:  Fri, 02 Jan 2026 03:04:05 +0000"
    )]
    #[case(
        r#"{"terminated": {"exitCode": 137, "signal": 9}}"#,
        "    State:        Terminated\n      Exit Code:  137\n      Signal:     9"
    )]
    #[case("{}", "    State:  Waiting")]
    fn state_shows_its_fields(#[case] text: &str, #[case] expected: &str) {
        let mut lines = Lines::default();
        state(&mut lines, "State", serde_json::from_str(text).ok().as_ref());
        assert_eq!(lines.aligned().join("\n"), expected);
    }
}
