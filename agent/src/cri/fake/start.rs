//! What the start of a scripted container changes.

use api::pod::PodUid;
use jiff::Timestamp;

use super::{Behaviour, Inner, failed, not_found};
use crate::cri::{CriError, ListedState};
use crate::observed::ContainerId;

impl Inner {
    /// Starts a container, and returns how it behaves and whose it is.
    pub(super) fn start(
        &mut self,
        id: &ContainerId,
        now: Timestamp,
    ) -> Result<(Behaviour, PodUid), CriError> {
        let running: Vec<(PodUid, String)> = self
            .containers
            .values()
            .filter(|other| other.listed.state == ListedState::Running)
            .map(|other| (other.listed.pod.uid.clone(), other.listed.name.clone()))
            .collect();
        let container =
            self.containers.get_mut(id).ok_or_else(|| not_found("StartContainer", id.as_str()))?;
        let image = container.spec.image.image.trim_end_matches(":latest");
        let starts = self.starts.entry(image.to_owned()).or_default();
        let mut behaviour = self.images.get(image).cloned().unwrap_or_else(Behaviour::forever);
        if let Some(message) = behaviour.start_fails {
            return Err(failed("StartContainer", message));
        }
        if behaviour.heals_after.is_some_and(|most| *starts >= most) {
            behaviour.ends = None;
        }
        *starts += 1;
        let pod = container.listed.pod.uid.clone();
        if running.contains(&(pod.clone(), container.listed.name.clone())) {
            let attempt = container.spec.attempt;
            self.twins.push(format!("{}/{attempt}", container.listed.name));
        }
        container.listed.state = ListedState::Running;
        container.started_at = Some(now);
        let sandbox = self.sandboxes.get(&container.listed.sandbox_id);
        if let Some(sandbox) = sandbox.filter(|_| self.writes_logs) {
            let log = sandbox.spec.log_directory.join(&container.spec.log_path);
            let made = log.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(&log, ""))
                .map_err(|error| failed("StartContainer", error.to_string()))?;
        }
        Ok((behaviour, pod))
    }
}
