//! Formats a command's result for the error stream: a Kubernetes `Status` in JSON, or a message (Kubernetes 1.36,
//! `k8s.io/cri-streaming`, remotecommand) ◆

use bytes::Bytes;
use serde_json::json;

use super::negotiate::ResultFormat;

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// An attached container's streams ended, or its client detached, regardless of the exit code.
    Over,
    /// It could not be run, or its exit is unknown.
    Failed(String),
}

/// The message to send; `None` for a success if only failures are reported.
pub(super) fn message(outcome: ResultFormat, ending: &ExitStatus) -> Option<Bytes> {
    let text = match ending {
        ExitStatus::Code(0) | ExitStatus::Over => None,
        ExitStatus::Code(code) => Some(format!("command terminated with exit code {code}")),
        ExitStatus::Failed(problem) => Some(problem.clone()),
    };
    if outcome == ResultFormat::Text {
        return text.map(Bytes::from);
    }
    let status = match (ending, text) {
        (ExitStatus::Code(code), Some(text)) => json!({
            "metadata": {},
            "status": "Failure",
            "message": text,
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        (_, Some(text)) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("Internal error occurred: {text}"),
            "reason": "InternalError",
            "details": {"causes": [{"message": text}]},
            "code": 500,
        }),
        (_, None) => json!({"metadata": {}, "status": "Success"}),
    };
    Some(status.to_string().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    #[rstest]
    #[case::well(ExitStatus::Code(0), json!({"metadata": {}, "status": "Success"}))]
    #[case::left(ExitStatus::Over, json!({"metadata": {}, "status": "Success"}))]
    #[case::badly(ExitStatus::Code(3), json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": "command terminated with exit code 3",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
    }))]
    #[case::not_at_all(ExitStatus::Failed("no such file".into()), json!({
        "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
        "message": "Internal error occurred: no such file",
        "details": {"causes": [{"message": "no such file"}]},
    }))]
    fn exit_status_encodes_as_json(#[case] ending: ExitStatus, #[case] status: Value) {
        let message = message(ResultFormat::Json, &ending).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&message).unwrap(), status);
    }

    #[rstest]
    #[case(ExitStatus::Code(0), None)]
    #[case(ExitStatus::Over, None)]
    #[case(ExitStatus::Code(3), Some("command terminated with exit code 3"))]
    #[case(ExitStatus::Failed("no such file".into()), Some("no such file"))]
    fn exit_status_encodes_as_text(#[case] ending: ExitStatus, #[case] text: Option<&'static str>) {
        assert_eq!(message(ResultFormat::Text, &ending), text.map(Bytes::from));
    }
}
