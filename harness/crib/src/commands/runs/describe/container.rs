//! ◆ A container in the format of `kubectl describe`. Pure.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerState, ContainerStatus, EnvFromSource, EnvVar, EnvVarSource,
    Probe, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::lines::{Lines, NONE};
use super::time::time;

/// The width of the key column, after the indentation.
const WIDTH: usize = 16;
/// The width of the key column for the fields of a state.
const STATE_WIDTH: usize = 14;

/// Adds a container. Without an agent, shows only the runtime's information.
pub(super) fn add(
    lines: &mut Lines,
    container: &Container,
    status: Option<&ContainerStatus>,
    has_agent: bool,
) {
    lines.line(2, &format!("{}:", container.name));
    let mut field = |key: &str, value: &str| lines.field(4, WIDTH, key, value);
    if let Some(status) = status {
        field("Container ID", status.container_id.as_deref().unwrap_or_default());
    }
    field("Image", container.image.as_deref().unwrap_or_default());
    if let Some(status) = status {
        field("Image ID", &status.image_id);
    }
    ports(lines, container.ports.as_deref().unwrap_or_default());
    words(lines, "Command", container.command.as_deref());
    words(lines, "Args", container.args.as_deref());
    if let Some(status) = status {
        state(lines, "State", status.state.as_ref());
        if status.last_state.as_ref().is_some_and(|last| *last != ContainerState::default()) {
            state(lines, "Last State", status.last_state.as_ref());
        }
        if has_agent {
            let ready = if status.ready { "True" } else { "False" };
            lines.field(4, WIDTH, "Ready", ready);
        }
        lines.field(4, WIDTH, "Restart Count", &status.restart_count.to_string());
    }
    resources(lines, container);
    let probes = [
        ("Liveness", &container.liveness_probe),
        ("Readiness", &container.readiness_probe),
        ("Startup", &container.startup_probe),
    ];
    for (key, probe) in probes {
        lines.some(4, WIDTH, key, probe.as_ref().map(probe_text).as_deref());
    }
    if has_agent {
        environment(lines, container);
    }
    mounts(lines, container.volume_mounts.as_deref().unwrap_or_default());
}

fn ports(lines: &mut Lines, ports: &[ContainerPort]) {
    let text = |number: i32, port: &ContainerPort| {
        format!("{number}/{}", port.protocol.as_deref().unwrap_or("TCP"))
    };
    let own: Vec<String> = ports.iter().map(|port| text(port.container_port, port)).collect();
    let host = ports.iter().map(|port| text(port.host_port.unwrap_or_default(), port));
    let host: Vec<String> = host.collect();
    let (own_key, host_key) = match ports.len() {
        0 => return,
        1 => ("Port", "Host Port"),
        _ => ("Ports", "Host Ports"),
    };
    lines.field(4, WIDTH, own_key, &own.join(", "));
    lines.field(4, WIDTH, host_key, &host.join(", "));
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
    lines.field(4, WIDTH, key, name);
    for (key, value) in all {
        let value = value.map(|value| value.trim().to_owned());
        lines.some(6, STATE_WIDTH, key, value.as_deref());
    }
}

fn resources(lines: &mut Lines, container: &Container) {
    let resources = container.resources.clone().unwrap_or_default();
    for (key, amounts) in [("Limits", resources.limits), ("Requests", resources.requests)] {
        let amounts = amounts.unwrap_or_default();
        let fields: Vec<(String, String)> =
            amounts.into_iter().map(|(name, of)| (name, of.0)).collect();
        if !fields.is_empty() {
            lines.line(4, &format!("{key}:"));
            lines.block(6, &fields);
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

fn environment(lines: &mut Lines, container: &Container) {
    let sources = container.env_from.as_deref().unwrap_or_default();
    if !sources.is_empty() {
        lines.line(4, "Environment Variables from:");
        let rows: Vec<[String; 3]> = sources.iter().map(env_source).collect();
        lines.table(6, &rows);
    }
    let variables = container.env.as_deref().unwrap_or_default();
    match variables {
        [] => lines.field(4, WIDTH, "Environment", NONE),
        variables => {
            lines.line(4, "Environment:");
            let fields: Vec<(String, String)> = variables.iter().map(variable).collect();
            lines.block(6, &fields);
        }
    }
}

/// The name, the kind, and whether the source is optional.
fn env_source(source: &EnvFromSource) -> [String; 3] {
    let (name, kind, optional) = if let Some(map) = &source.config_map_ref {
        (map.name.as_str(), "ConfigMap", map.optional)
    } else if let Some(secret) = &source.secret_ref {
        (secret.name.as_str(), "Secret", secret.optional)
    } else {
        ("", "<unknown>", None)
    };
    let prefix = source.prefix.as_deref().filter(|prefix| !prefix.is_empty());
    let kind = match prefix {
        Some(prefix) => format!("{kind} with prefix '{prefix}'"),
        None => kind.to_owned(),
    };
    let optional = format!("Optional: {}", optional.unwrap_or_default());
    [name.to_owned(), kind, optional]
}

fn variable(variable: &EnvVar) -> (String, String) {
    let source = variable.value_from.as_ref().map(variable_source);
    let value = source.or_else(|| variable.value.clone());
    (variable.name.clone(), value.unwrap_or_default())
}

fn variable_source(source: &EnvVarSource) -> String {
    let key = |what: &str, name: &str, key: &str, optional: Option<bool>| {
        let optional = optional.unwrap_or_default();
        format!("<set to the key '{key}' {what} '{name}'>  Optional: {optional}")
    };
    if let Some(map) = &source.config_map_key_ref {
        key("of config map", &map.name, &map.key, map.optional)
    } else if let Some(secret) = &source.secret_key_ref {
        key("in secret", &secret.name, &secret.key, secret.optional)
    } else if let Some(file) = &source.file_key_ref {
        let name = format!("{}/{}", file.volume_name, file.path);
        key("in file", &name, &file.key, file.optional)
    } else if let Some(field) = &source.field_ref {
        let version = field.api_version.as_deref().unwrap_or("v1");
        format!("({version}:{})", field.field_path)
    } else {
        let resource = source.resource_field_ref.as_ref();
        let resource = resource.map(|resource| resource.resource.as_str());
        format!("({})", resource.unwrap_or("unknown"))
    }
}

fn mounts(lines: &mut Lines, mounts: &[VolumeMount]) {
    if mounts.is_empty() {
        return lines.field(4, WIDTH, "Mounts", NONE);
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn described(container: &str, status: Option<&str>) -> String {
        let mut lines = Lines::default();
        let container = serde_json::from_str(container).unwrap();
        let status = status.map(|status| serde_json::from_str(status).unwrap());
        add(&mut lines, &container, status.as_ref(), true);
        lines.0.join("\n")
    }

    #[test]
    fn container_without_status_shows_spec() {
        let text = described(r#"{"name": "c", "image": "x:1"}"#, None);
        assert_eq!(
            text,
            "  c:\n    Image:          x:1\n    Environment:    <none>\n    Mounts:         <none>"
        );
    }

    #[test]
    fn container_shows_everything_of_its_spec_and_status() {
        let container = r#"{
            "name": "c", "image": "x:1", "command": ["sh", "-c"], "args": ["a\nb"],
            "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}],
            "resources": {"limits": {"memory": "1Gi", "cpu": "1"}, "requests": {"cpu": "1"}},
            "readinessProbe": {"httpGet": {"port": "web", "path": "/r", "scheme": "HTTPS"}, "periodSeconds": 5},
            "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}, {"secretRef": {"name": "longer", "optional": true}}],
            "env": [{"name": "A", "value": "b"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "L", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/z", "subPath": "p"}, {"name": "w", "mountPath": "/a", "readOnly": true}]
        }"#;
        let status = r#"{
            "name": "c", "image": "x:1", "imageID": "sha256:1", "containerID": "crib://2", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 7, "reason": "Error", "startedAt": "2026-01-02T03:04:05Z", "finishedAt": "2026-01-02T03:04:06Z"}}
        }"#;
        let expected = "  c:
    Container ID:   crib://2
    Image:          x:1
    Image ID:       sha256:1
    Ports:          80/TCP, 53/UDP
    Host Ports:     8080/TCP, 0/UDP
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
      cpu:  1
    Readiness:      http-get https://:web/r delay=0s timeout=1s period=5s #success=1 #failure=3
    Environment Variables from:
      m       ConfigMap with prefix 'P_'  Optional: false
      longer  Secret                      Optional: true
    Environment:
      A:    b
      POD:  (v1:metadata.name)
      K:    <set to the key 'k' in secret 's'>  Optional: false
      L:    (limits.cpu)
    Mounts:
      /a from w (ro)
      /z from v (rw,path=\"p\")";
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
        "    State:          Running\n      Started:      Fri, 02 Jan 2026 03:04:05 +0000"
    )]
    #[case(
        r#"{"terminated": {"exitCode": 137, "signal": 9}}"#,
        "    State:          Terminated\n      Exit Code:    137\n      Signal:       9"
    )]
    #[case("{}", "    State:          Waiting")]
    fn state_shows_its_fields(#[case] text: &str, #[case] expected: &str) {
        let mut lines = Lines::default();
        state(&mut lines, "State", serde_json::from_str(text).ok().as_ref());
        assert_eq!(lines.0.join("\n"), expected);
    }
}
