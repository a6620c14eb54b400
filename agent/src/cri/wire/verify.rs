//! Rejects responses without the fields that a kubelet requires.
//!
//! Source: Kubernetes 1.36, k8s.io/cri-client/pkg/remote_runtime.go, remote_image.go, utils.go.

use cri::v1;

use crate::cri::{Code, CriError};
use crate::observed::{ContainerId, SandboxId};
use crate::pod_spec::spec::{ContainerSpec, ImageSpec, SandboxSpec};

/// The error for a response without a required field.
pub(super) fn invalid(call: &'static str, message: impl Into<String>) -> CriError {
    CriError { call, code: Code::InvalidResponse, message: message.into() }
}

/// Checks a response to Version.
pub(in crate::cri) fn version(answer: &v1::VersionResponse) -> Result<(), CriError> {
    let fields = [
        ("Version", &answer.version),
        ("RuntimeName", &answer.runtime_name),
        ("RuntimeApiVersion", &answer.runtime_api_version),
        ("RuntimeVersion", &answer.runtime_version),
    ];
    let missing = fields.into_iter().filter(|(_, value)| value.is_empty());
    let missing: Vec<&str> = missing.map(|(name, _)| name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    let message = format!("not all fields are set in VersionResponse (missing {missing})");
    Err(invalid("Version", message))
}

/// Checks a response to Status.
pub(in crate::cri) fn runtime_status(answer: &v1::StatusResponse) -> Result<(), CriError> {
    match &answer.status {
        Some(status) if status.conditions.len() >= 2 => Ok(()),
        Some(_) | None => {
            Err(invalid("Status", "RuntimeReady or NetworkReady condition are not set"))
        }
    }
}

/// The id of a new sandbox.
pub(in crate::cri) fn new_sandbox(id: String, spec: &SandboxSpec) -> Result<SandboxId, CriError> {
    if !id.is_empty() {
        return Ok(SandboxId::new(id));
    }
    let metadata = pod_metadata(&spec.name, &spec.uid, &spec.namespace, spec.attempt);
    let message = format!("PodSandboxId is not set for sandbox {metadata:?}");
    Err(invalid("RunPodSandbox", message))
}

/// The id of a new container.
pub(in crate::cri) fn new_container(
    id: String,
    spec: &ContainerSpec,
) -> Result<ContainerId, CriError> {
    if !id.is_empty() {
        return Ok(ContainerId::new(id));
    }
    let metadata = container_metadata(&spec.name, spec.attempt);
    let message = format!("ContainerId is not set for container {metadata:?}");
    Err(invalid("CreateContainer", message))
}

/// Checks the status of a sandbox.
pub(super) fn sandbox(status: &v1::PodSandboxStatus) -> Result<(), CriError> {
    let failed = |message: String| Err(invalid("PodSandboxStatus", message));
    if status.id.is_empty() {
        return failed("status.Id is not set".to_owned());
    }
    let Some(metadata) = &status.metadata else {
        return failed("status.Metadata is not set".to_owned());
    };
    let v1::PodSandboxMetadata { name, uid, namespace, attempt } = metadata;
    if name.is_empty() || namespace.is_empty() || uid.is_empty() {
        let metadata = pod_metadata(name, uid, namespace, *attempt);
        return failed(format!(
            "metadata.Name, metadata.Namespace or metadata.Uid is not in metadata {metadata:?}"
        ));
    }
    if status.created_at == 0 {
        return failed("status.CreatedAt is not set".to_owned());
    }
    Ok(())
}

/// Checks the status of a container.
pub(in crate::cri) fn container(status: &v1::ContainerStatus) -> Result<(), CriError> {
    let failed = |message: String| Err(invalid("ContainerStatus", message));
    if status.id.is_empty() {
        return failed("status.Id is not set".to_owned());
    }
    let Some(metadata) = &status.metadata else {
        return failed("status.Metadata is not set".to_owned());
    };
    if metadata.name.is_empty() {
        let metadata = container_metadata(&metadata.name, metadata.attempt);
        return failed(format!("metadata.Name is not in metadata {metadata:?}"));
    }
    if status.created_at == 0 {
        return failed("status.CreatedAt is not set".to_owned());
    }
    if status.image.as_ref().is_none_or(|image| image.image.is_empty()) {
        return failed("status.Image is not set".to_owned());
    }
    if status.image_ref.is_empty() {
        return failed("status.ImageRef is not set".to_owned());
    }
    Ok(())
}

/// Checks the status of an image.
pub(in crate::cri) fn image(status: &v1::Image, asked: &ImageSpec) -> Result<(), CriError> {
    if status.id.is_empty() || status.size == 0 {
        let message = format!("Id or size of image {:?} is not set", asked.image);
        return Err(invalid("ImageStatus", message));
    }
    Ok(())
}

/// The URL of a stream, from the response to `call`.
pub(in crate::cri) fn url(call: &'static str, url: String) -> Result<String, CriError> {
    if url.is_empty() {
        return Err(invalid(call, "URL is not set"));
    }
    Ok(url)
}

/// The metadata of a sandbox as Go formats the message.
fn pod_metadata(name: &str, uid: &str, namespace: &str, attempt: u32) -> String {
    fields(&[("name", name), ("uid", uid), ("namespace", namespace)], attempt)
}

/// The metadata of a container as Go formats the message.
fn container_metadata(name: &str, attempt: u32) -> String {
    fields(&[("name", name)], attempt)
}

fn fields(texts: &[(&str, &str)], attempt: u32) -> String {
    let texts = texts.iter().filter(|(_, value)| !value.is_empty());
    let mut fields: Vec<String> = texts.map(|(name, value)| format!("{name}:{value:?}")).collect();
    if attempt > 0 {
        fields.push(format!("attempt:{attempt}"));
    }
    fields.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    fn sandbox_status() -> v1::PodSandboxStatus {
        v1::PodSandboxStatus {
            id: "s1".to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                name: "web".to_owned(),
                uid: "u1".to_owned(),
                namespace: "default".to_owned(),
                attempt: 1,
            }),
            created_at: 1,
            ..v1::PodSandboxStatus::default()
        }
    }

    fn container_status() -> v1::ContainerStatus {
        v1::ContainerStatus {
            id: "c1".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "app".to_owned(), attempt: 0 }),
            created_at: 1,
            image: Some(v1::ImageSpec { image: "web:1".to_owned(), ..v1::ImageSpec::default() }),
            image_ref: "sha256:1".to_owned(),
            ..v1::ContainerStatus::default()
        }
    }

    fn text(checked: Result<(), CriError>) -> Option<String> {
        checked.err().map(|error| error.go_text())
    }

    #[test]
    fn sandbox_status_needs_fields() {
        type Change = fn(&mut v1::PodSandboxStatus);
        const NO_NAMESPACE: &str = r#"metadata.Name, metadata.Namespace or metadata.Uid is not in metadata "name:\"web\" uid:\"u1\" attempt:1""#;
        let cases: [(Change, Option<&str>); 5] = [
            (|_| (), None),
            (|status| status.id.clear(), Some("status.Id is not set")),
            (|status| status.metadata = None, Some("status.Metadata is not set")),
            (|status| status.metadata.as_mut().unwrap().namespace.clear(), Some(NO_NAMESPACE)),
            (|status| status.created_at = 0, Some("status.CreatedAt is not set")),
        ];
        for (change, expected) in cases {
            let mut status = sandbox_status();
            change(&mut status);
            assert_eq!(text(sandbox(&status)).as_deref(), expected);
        }
    }

    #[test]
    fn container_status_needs_fields() {
        type Change = fn(&mut v1::ContainerStatus);
        let cases: [(Change, Option<&str>); 7] = [
            (|_| (), None),
            (|status| status.id.clear(), Some("status.Id is not set")),
            (|status| status.metadata = None, Some("status.Metadata is not set")),
            (
                |status| status.metadata.as_mut().unwrap().name.clear(),
                Some(r#"metadata.Name is not in metadata """#),
            ),
            (|status| status.created_at = 0, Some("status.CreatedAt is not set")),
            (|status| status.image = None, Some("status.Image is not set")),
            (|status| status.image_ref.clear(), Some("status.ImageRef is not set")),
        ];
        for (change, expected) in cases {
            let mut status = container_status();
            change(&mut status);
            assert_eq!(text(container(&status)).as_deref(), expected);
        }
    }

    #[rstest]
    #[case::complete("sha256:1", 1, None)]
    #[case::id("", 1, Some(r#"Id or size of image "web:1" is not set"#))]
    #[case::size("sha256:1", 0, Some(r#"Id or size of image "web:1" is not set"#))]
    fn image_status_needs_id_and_size(
        #[case] id: &str,
        #[case] size: u64,
        #[case] expected: Option<&str>,
    ) {
        let status = v1::Image { id: id.to_owned(), size, ..v1::Image::default() };
        let asked = ImageSpec { image: "web:1".to_owned(), ..ImageSpec::default() };
        assert_eq!(text(image(&status, &asked)).as_deref(), expected);
    }

    #[test]
    fn new_sandbox_and_container_need_ids() {
        let sandbox = SandboxSpec {
            name: "web".to_owned(),
            uid: "u1".to_owned(),
            namespace: "default".to_owned(),
            attempt: 2,
            ..SandboxSpec::default()
        };
        assert_eq!(
            new_sandbox(String::new(), &sandbox).unwrap_err().go_text(),
            r#"PodSandboxId is not set for sandbox "name:\"web\" uid:\"u1\" namespace:\"default\" attempt:2""#
        );
        assert_eq!(new_sandbox("s1".to_owned(), &sandbox).unwrap().as_str(), "s1");
        let container = ContainerSpec { name: "app".to_owned(), ..ContainerSpec::default() };
        assert_eq!(
            new_container(String::new(), &container).unwrap_err().go_text(),
            r#"ContainerId is not set for container "name:\"app\"""#
        );
        assert_eq!(new_container("c1".to_owned(), &container).unwrap().as_str(), "c1");
    }

    #[test]
    fn version_status_and_stream_need_fields() {
        let version_of = |name: &str, number: &str| v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: name.to_owned(),
            runtime_version: number.to_owned(),
            runtime_api_version: "v1".to_owned(),
        };
        assert_eq!(text(version(&version_of("crib", "1"))), None);
        assert_eq!(
            text(version(&version_of("", ""))).unwrap(),
            "not all fields are set in VersionResponse (missing RuntimeName, RuntimeVersion)"
        );
        let status_of = |count| v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![v1::RuntimeCondition::default(); count],
            }),
            ..v1::StatusResponse::default()
        };
        let missing = Some("RuntimeReady or NetworkReady condition are not set".to_owned());
        assert_eq!(text(runtime_status(&status_of(2))), None);
        assert_eq!(text(runtime_status(&status_of(1))), missing);
        assert_eq!(text(runtime_status(&v1::StatusResponse::default())), missing);
        assert_eq!(url("Exec", String::new()).unwrap_err().go_text(), "URL is not set");
        assert_eq!(url("Exec", "http://a".to_owned()).unwrap(), "http://a");
    }
}
