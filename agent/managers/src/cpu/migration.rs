//! Migrates the checkpoint of a kubelet before 1.18: its first format has container IDs in place of pods and names.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/state: checkpoint.go, state_checkpoint.go.

use std::collections::BTreeMap;
use std::path::Path;

use agent::cri::{Cri, ListedContainer};
use compact::Map;
use serde::Deserialize;

use super::checkpoint::{FILE, File, not_restored};
use crate::state_file::{self, checksum, map};

/// The first format.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FirstFile {
    policy_name: String,
    default_cpu_set: String,
    /// CPUs by container ID.
    entries: Map<String, String>,
    checksum: u64,
}

impl FirstFile {
    /// Parses the bytes; `None` if they are not in this format.
    fn parse(bytes: &[u8]) -> Option<Self> {
        if File::parse(bytes).is_ok() {
            return None;
        }
        let file: Self = serde_json::from_slice(bytes).ok()?;
        let text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} Entries:(map[string]string){} \
             Checksum:(checksum.Checksum)0}}",
            file.policy_name,
            file.default_cpu_set,
            map(&file.entries)
        );
        // The checksum 0 means none.
        (file.checksum == 0 || file.checksum == checksum(&text)).then_some(file)
    }

    /// Converts it to the second format.
    fn migrate(self, containers: &[ListedContainer]) -> Result<File, String> {
        let mut entries: Map<String, BTreeMap<String, String>> = Map::new();
        for (id, cpus) in self.entries {
            let found = containers.iter().find(|container| container.id.as_str() == id);
            let container = found.ok_or_else(|| {
                format!(
                    "failed to migrate checkpoint from v1 to v2: containerID '{id}' not found in initial containers list"
                )
            })?;
            let of_pod = entries.entry(container.pod.uid.as_str().to_owned()).or_default();
            of_pod.insert(container.name.clone(), cpus);
        }
        Ok(File::new(self.policy_name, self.default_cpu_set, entries))
    }
}

/// Converts the checkpoint in this directory from the first format to the second. The runtime maps the IDs to containers.
///
/// # Errors
/// The kubelet's error if the file cannot be used.
pub(crate) async fn migrate(directory: &Path, cri: &dyn Cri) -> Result<(), String> {
    let path = directory.join(FILE);
    // The manager reads the file next, and reports an error.
    let first = state_file::read(&path).ok().flatten().and_then(|bytes| FirstFile::parse(&bytes));
    let Some(first) = first else {
        return Ok(());
    };
    let containers = match first.entries.is_empty() {
        true => Ok(Vec::new()),
        false => cri.list_containers(None).await.map_err(|error| error.to_string()),
    };
    let migrated = containers.and_then(|containers| first.migrate(&containers));
    let migrated = migrated.map_err(|error| not_restored(&path, &error))?;
    tracing::info!(file = %path.display(), "migrating the CPU manager checkpoint from v1 to v2");
    migrated.store(directory).map_err(|error| not_restored(&path, &error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use agent::clock::{Clock as _, SystemClock};
    use agent::cri::fake::FakeCri;
    use agent::cri::{ListedState, PodRef};
    use agent::observed::{ContainerId, SandboxId};
    use api::pod::PodUid;
    use rstest::rstest;

    use super::*;

    /// From the kubelet's own tests, with checksums.
    const EMPTY: &str = r#"{"policyName":"none","defaultCpuSet":"1-3","checksum":1694838852}"#;
    const TWO: &str = r#"{"policyName":"none","defaultCpuSet":"1-3",
        "entries":{"containerID1":"4-6","containerID2":"1-3"},"checksum":3680390589}"#;
    const SECOND: &str = include_str!("../../tests/vectors/cpu_manager_state.json");

    fn container(id: &str, uid: &str, name: &str) -> ListedContainer {
        ListedContainer {
            id: ContainerId::new(id),
            sandbox_id: SandboxId::new("s"),
            pod: PodRef {
                uid: PodUid::new(uid),
                namespace: "default".to_owned(),
                name: uid.to_owned(),
                agent: None,
            },
            name: name.to_owned(),
            state: ListedState::Running,
            created_at: SystemClock.now(),
        }
    }

    #[rstest]
    #[case::without_entries(EMPTY, true)]
    #[case::with_entries(TWO, true)]
    #[case::without_a_checksum(&TWO.replace("3680390589", "0"), true)]
    #[case::changed(&TWO.replace("4-6", "4"), false)]
    #[case::of_the_second_format(SECOND, false)]
    #[case::no_json("x", false)]
    fn first_format_is_detected(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(FirstFile::parse(text.as_bytes()).is_some(), expected);
    }

    #[test]
    fn entries_are_mapped_by_container_id() {
        let first = || FirstFile::parse(TWO.as_bytes()).unwrap();
        let containers =
            [container("containerID1", "u1", "a"), container("containerID2", "u2", "b")];
        let migrated = serde_json::to_value(first().migrate(&containers).unwrap()).unwrap();
        let expected = serde_json::json!({"u1": {"a": "4-6"}, "u2": {"b": "1-3"}});
        assert_eq!((&migrated["entries"], &migrated["defaultCpuSet"]), (&expected, &"1-3".into()));
        assert!(File::parse(migrated.to_string().as_bytes()).is_ok(), "with its checksum");
        let missing = first().migrate(&containers[..1]).unwrap_err();
        assert_eq!(
            missing,
            "failed to migrate checkpoint from v1 to v2: containerID 'containerID2' not found in initial containers list"
        );
    }

    #[tokio::test]
    async fn file_is_migrated_once_or_error_has_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        let cri = FakeCri::new(Arc::new(SystemClock));
        migrate(directory.path(), &cri).await.unwrap();
        assert!(!file.exists());
        for text in [EMPTY, SECOND] {
            std::fs::write(&file, text).unwrap();
            migrate(directory.path(), &cri).await.unwrap();
            let written = std::fs::read_to_string(&file).unwrap();
            assert!(File::parse(written.as_bytes()).is_ok());
            assert_eq!(written == text, text == SECOND, "{written}");
        }
        std::fs::write(&file, TWO).unwrap();
        let error = migrate(directory.path(), &cri).await.unwrap_err();
        assert!(
            error.starts_with("could not restore state from checkpoint: failed to migrate"),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), TWO);
    }
}
