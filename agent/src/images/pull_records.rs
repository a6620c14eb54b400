//! Owns the records of pulls: in memory, with every change written to a file.

use std::io;
use std::path::Path;

use compact::{Map, Set};
use jiff::Timestamp;
use tokio::sync::Mutex;

use super::policy::CredentialVerification;
use super::record_files::{RecordFiles, file_name};
use super::records::{self, Access, PullCredentials, PulledRecord, RecordState};
use crate::cri::Cri;
use tasks::blocking;

/// The records of the node. The lock is held while a file is written, so that files change in the order of the records.
pub(crate) struct PullRecords {
    files: RecordFiles,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of pulls of an image in progress; 0: an earlier agent ended during one.
    intents: Map<String, usize>,
    pulled: Map<String, PulledRecord>,
    damaged_intents: Set<String>,
    damaged_pulled: Set<String>,
}

impl State {
    fn known(&self, image: &str, image_ref: &str) -> RecordState<'_> {
        if let Some(record) = self.pulled.get(image_ref) {
            RecordState::Pulled(record)
        } else if self.damaged_pulled.contains(&file_name(image_ref)) {
            RecordState::Damaged
        } else if self.intents.contains_key(image) {
            RecordState::Intended
        } else if self.damaged_intents.contains(&file_name(image)) {
            RecordState::Damaged
        } else {
            RecordState::Nothing
        }
    }
}

impl PullRecords {
    /// Reads the records. An image whose pull was interrupted by the end of an earlier agent counts as pulled by the agent, without
    /// credentials.
    pub(crate) async fn open(root_dir: &Path, cri: &dyn Cri, now: Timestamp) -> Self {
        let files = RecordFiles::new(root_dir);
        let found = {
            let files = files.clone();
            blocking(move || files.read()).await
        };
        let records = Self {
            files,
            state: Mutex::new(State {
                intents: found.intents.into_iter().map(|image| (image, 0)).collect(),
                pulled: found.pulled,
                damaged_intents: found.damaged_intents,
                damaged_pulled: found.damaged_pulled,
            }),
        };
        records.adopt_finished_pulls(cri, now).await;
        records
    }

    async fn adopt_finished_pulls(&self, cri: &dyn Cri, now: Timestamp) {
        let mut state = self.state.lock().await;
        if state.intents.is_empty() {
            return;
        }
        let images = match cri.list_images().await {
            Ok(images) => images,
            Err(error) => {
                tracing::warn!(%error, "failed to list images for unfinished pulls");
                return;
            }
        };
        for image in images {
            for name in image.repo_digests.iter().chain(&image.repo_tags) {
                if state.intents.contains_key(name)
                    && self.change(&mut state, name, &image.id, None, now).await
                {
                    self.remove_intent(&mut state, name).await;
                }
            }
        }
    }

    /// Decides whether pods may use a present image.
    pub(crate) async fn access(
        &self,
        policy: &CredentialVerification,
        image: &str,
        image_ref: &str,
    ) -> Access {
        let state = self.state.lock().await;
        records::access(policy, image, state.known(image, image_ref))
    }

    /// Records that a pull begins.
    pub(crate) async fn begin(&self, image: &str) -> io::Result<()> {
        let mut state = self.state.lock().await;
        let (files, name) = (self.files.clone(), image.to_owned());
        blocking(move || files.write_intent(&name)).await?;
        state.damaged_intents.remove(&file_name(image));
        *state.intents.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Records that a pull failed.
    pub(crate) async fn failed(&self, image: &str) {
        let mut state = self.state.lock().await;
        self.end(&mut state, image).await;
    }

    /// Records that a pull succeeded.
    pub(crate) async fn succeeded(
        &self,
        image: &str,
        image_ref: &str,
        credentials: &PullCredentials,
        now: Timestamp,
    ) {
        let mut state = self.state.lock().await;
        let credentials = Some(credentials);
        // If the record cannot be written, the intent is kept, so that the image still counts as pulled by the agent.
        if self.change(&mut state, image, image_ref, credentials, now).await {
            self.end(&mut state, image).await;
        }
    }

    /// Adds credentials to the record of an image.
    pub(crate) async fn add(
        &self,
        image: &str,
        image_ref: &str,
        credentials: &PullCredentials,
        now: Timestamp,
    ) {
        let mut state = self.state.lock().await;
        let credentials = Some(credentials);
        self.change(&mut state, image, image_ref, credentials, now).await;
    }

    /// Removes the records of images that the runtime does not have, unless they changed after the images were listed.
    pub(crate) async fn prune(&self, images: &Set<String>, listed_at: Timestamp) {
        let mut state = self.state.lock().await;
        let unknown: Vec<String> = state
            .pulled
            .values()
            .filter(|record| record.updated_at < listed_at && !images.contains(&record.image_ref))
            .map(|record| record.image_ref.clone())
            .collect();
        for image_ref in unknown {
            let (files, name) = (self.files.clone(), image_ref.clone());
            match blocking(move || files.remove_pulled(&name)).await {
                Ok(()) => drop(state.pulled.remove(&image_ref)),
                Err(error) => {
                    tracing::error!(image = image_ref, %error, "failed to remove pull record");
                }
            }
        }
    }

    /// Changes or creates a record. Returns whether it is on disk.
    async fn change(
        &self,
        state: &mut State,
        image: &str,
        image_ref: &str,
        credentials: Option<&PullCredentials>,
        now: Timestamp,
    ) -> bool {
        // An image that was pulled has a name that can be parsed.
        let name = image_reference::without_version(image).unwrap_or(image);
        let known = state.pulled.get(image_ref);
        let mut record = known.cloned().unwrap_or_else(|| PulledRecord::new(image_ref, now));
        let changed = credentials.is_some_and(|credentials| record.add(name, credentials, now));
        if known.is_some() && !changed {
            return true;
        }
        let (files, written) = (self.files.clone(), record.clone());
        match blocking(move || files.write_pulled(&written)).await {
            Ok(()) => {
                state.damaged_pulled.remove(&file_name(image_ref));
                state.pulled.insert(image_ref.to_owned(), record);
                true
            }
            Err(error) => {
                tracing::error!(image, image_ref, %error, "failed to write pull record");
                false
            }
        }
    }

    /// Ends one of the pulls of an image; the last one removes the intent.
    async fn end(&self, state: &mut State, image: &str) {
        match state.intents.get_mut(image) {
            Some(running) if *running > 1 => *running -= 1,
            Some(_) | None => self.remove_intent(state, image).await,
        }
    }

    async fn remove_intent(&self, state: &mut State, image: &str) {
        let (files, name) = (self.files.clone(), image.to_owned());
        match blocking(move || files.remove_intent(&name)).await {
            Ok(()) => drop(state.intents.remove(image)),
            Err(error) => tracing::error!(image, %error, "failed to remove pull intent"),
        }
    }
}
