//! ◆ Whether a hook failed, and the kubelet's messages about failures.

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::cri::{CriError, ExecOutput};

/// An exec hook fails if its command cannot be run or does not exit with 0.
pub(super) fn exec_result(
    pod: &Pod,
    container: &Container,
    command: &[String],
    result: Result<ExecOutput, CriError>,
) -> Result<(), String> {
    let (error, output) = match result {
        Ok(output) if output.exit_code == 0 => return Ok(()),
        Ok(output) => {
            let error = format!(
                "command '{}' exited with {}: {}",
                command.join(" "),
                output.exit_code,
                String::from_utf8_lossy(&output.stderr)
            );
            (error, [output.stdout, output.stderr].concat())
        }
        Err(error) => (error.go_text(), Vec::new()),
    };
    Err(format!(
        "Exec lifecycle hook ([{}]) for Container {} in Pod {} failed - error: {error}, message: {}",
        command.join(" "),
        quoted(container.name.as_bytes()),
        quoted(pod.long_name().as_bytes()),
        quoted(&output),
    ))
}

/// The message for an HTTP request that failed.
pub(super) fn http_failure(
    pod: &Pod,
    container: &Container,
    action: &HTTPGetAction,
    error: &str,
) -> String {
    format!(
        "HTTP lifecycle hook ({}) for Container {} in Pod {} failed - error: {error}",
        action.path.as_deref().unwrap_or_default(),
        quoted(container.name.as_bytes()),
        quoted(pod.long_name().as_bytes()),
    )
}

/// The message for a handler without a supported action. `tcpSocket` passes validation but has never been implemented.
pub(super) fn invalid_handler(handler: &LifecycleHandler) -> String {
    let socket = handler.tcp_socket.as_ref().map_or("nil".to_owned(), |socket| {
        let port = match &socket.port {
            IntOrString::Int(port) => format!("{{0 {port} }}"),
            IntOrString::String(port) => format!("{{1 0 {port}}}"),
        };
        let host = socket.host.as_deref().unwrap_or_default();
        format!("&TCPSocketAction{{Port:{port},Host:{host},}}")
    });
    format!(
        "Cannot run handler: invalid handler: &LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{socket},Sleep:nil,}}"
    )
}

/// Bytes as Go's `%q` writes them.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\u{7}' => text.push_str("\\a"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{b}' => text.push_str("\\v"),
                control if control.is_ascii_control() => {
                    text.push_str(&format!("\\x{:02x}", u32::from(control)));
                }
                control if control.is_control() => {
                    text.push_str(&format!("\\u{:04x}", u32::from(control)));
                }
                plain => text.push(plain),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::core::v1::TCPSocketAction;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn pod() -> Pod {
        fixtures::pod(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}),
        )
    }

    fn failure(result: Result<ExecOutput, CriError>) -> Option<String> {
        let pod = pod();
        let command = ["sh", "-c", "x"].map(str::to_owned);
        exec_result(&pod, &pod.containers()[0], &command, result).err()
    }

    #[test]
    fn exec_hook_fails_by_exit_code_or_call() {
        let output = |exit_code| ExecOutput {
            stdout: b"no\n".to_vec(),
            stderr: b"\xff\"".to_vec(),
            exit_code,
        };
        assert_eq!(failure(Ok(output(0))), None);
        assert_eq!(
            failure(Ok(output(7))).unwrap(),
            "Exec lifecycle hook ([sh -c x]) for Container \"c\" in Pod \"p_n(u)\" failed - error: command 'sh -c x' exited with 7: \u{fffd}\", message: \"no\\n\\xff\\\"\""
        );
        let gone = CriError {
            call: "ExecSync",
            code: crate::cri::Code::NotFound,
            message: "gone".to_owned(),
        };
        assert_eq!(
            failure(Err(gone)).unwrap(),
            "Exec lifecycle hook ([sh -c x]) for Container \"c\" in Pod \"p_n(u)\" failed - error: rpc error: code = NotFound desc = gone, message: \"\""
        );
    }

    #[test]
    fn handler_with_socket_is_invalid() {
        let handler = LifecycleHandler {
            tcp_socket: Some(TCPSocketAction { host: None, port: IntOrString::Int(80) }),
            ..LifecycleHandler::default()
        };
        assert_eq!(
            invalid_handler(&handler),
            "Cannot run handler: invalid handler: &LifecycleHandler{Exec:nil,HTTPGet:nil,TCPSocket:&TCPSocketAction{Port:{0 80 },Host:,},Sleep:nil,}"
        );
    }
}
