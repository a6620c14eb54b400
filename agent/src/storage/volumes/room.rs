//! The size that the files of a pod's volumes have together. All pods share one tmpfs for Secrets.

use std::path::{Path, PathBuf};

use compact::Map;

use super::atomic;
use super::content::{ContentError, POD_BYTES, POD_VOLUMES, Payload};

/// The sizes of the files of a pod's volumes, including outdated files of volumes that cannot be updated.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Empty if the limit of each volume suffices.
    sizes: Map<PathBuf, u64>,
    total: u64,
}

impl Room {
    /// Measures the files of the pod's volumes at these paths.
    pub(super) fn new(volumes: Vec<PathBuf>) -> Self {
        if volumes.len() <= POD_VOLUMES {
            return Self::default();
        }
        let measured = volumes.into_iter().map(|volume| {
            let size = atomic::size(&volume);
            (volume, size)
        });
        let sizes: Map<PathBuf, u64> = measured.collect();
        let total = sizes.values().sum();
        Self { sizes, total }
    }

    /// Checks that a volume's new files and the files of the pod's other volumes are below the limit, and counts them. A volume
    /// may always become smaller.
    pub(super) fn take(&mut self, volume: &Path, files: &Payload) -> Result<(), ContentError> {
        let Some(size) = self.sizes.get_mut(volume) else {
            return Ok(());
        };
        let wanted = files.values().map(|file| file.data.len()).sum::<usize>();
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let total = (self.total - *size).saturating_add(wanted);
        if wanted > *size && total > POD_BYTES {
            return Err(ContentError::PodTooLarge);
        }
        (*size, self.total) = (wanted, total);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::storage::volumes::content::FileContent;

    #[test]
    fn volume_has_the_room_that_others_leave() {
        let root = tempfile::tempdir().unwrap();
        let volumes = ["a", "b", "c", "d", "e"].map(|name| root.path().join(name));
        // Sparse files.
        for volume in &volumes[..4] {
            fs::create_dir_all(volume.join("..1/d")).unwrap();
            symlink("..1", volume.join("..data")).unwrap();
            File::create(volume.join("..1/d/k")).unwrap().set_len(POD_BYTES / 4).unwrap();
        }
        let files = |size: usize| {
            let file = FileContent { data: vec![0; size], mode: 0o644, owner: None };
            Payload::from([(PathBuf::from("k"), file)])
        };
        let mut room = Room::new(volumes.to_vec());
        let [a, .., e] = &volumes;
        assert_eq!(room.take(e, &files(1)), Err(ContentError::PodTooLarge));
        room.take(e, &files(0)).unwrap();
        let quarter = usize::try_from(POD_BYTES / 4).unwrap();
        room.take(a, &files(quarter)).unwrap();
        room.take(a, &files(1)).unwrap();
        room.take(e, &files(quarter - 1)).unwrap();
        assert_eq!(room.take(a, &files(2)), Err(ContentError::PodTooLarge));
    }
}
