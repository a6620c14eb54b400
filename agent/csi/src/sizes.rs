//! The known sizes of mounted volumes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use compact::Map;

use crate::expansion::KnownSize;
use crate::names::VolumeKey;

/// The known sizes of mounted volumes.
#[derive(Debug, Default)]
pub(crate) struct Sizes(Mutex<Map<VolumeKey, KnownSize>>);

impl Sizes {
    fn lock(&self) -> MutexGuard<'_, Map<VolumeKey, KnownSize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The known size of a volume.
    pub(crate) fn get(&self, key: &VolumeKey) -> KnownSize {
        self.lock().get(key).copied().unwrap_or_default()
    }

    pub(crate) fn change(&self, key: &VolumeKey, change: impl FnOnce(&mut KnownSize)) {
        change(self.lock().entry(key.clone()).or_default());
    }

    /// Removes a volume that no pod uses.
    pub(crate) fn forget(&self, key: &VolumeKey) {
        self.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use api::quantity::Quantity;

    use super::*;

    #[test]
    fn size_is_known_while_a_pod_uses_the_volume() {
        let sizes = Sizes::default();
        let key = |handle: &str| VolumeKey {
            driver: "d".to_owned(),
            handle: handle.to_owned(),
            device: None,
        };
        sizes.change(&key("h"), |known| known.size = Some(Quantity::ONE));
        sizes.change(&key("h"), |known| known.is_in_use = true);
        sizes.change(&key("i"), |known| known.has_failed = true);
        let known = sizes.get(&key("h"));
        assert_eq!((known.size, known.is_in_use), (Some(Quantity::ONE), true));
        sizes.forget(&key("h"));
        assert_eq!(sizes.get(&key("h")).size, None);
        assert!(sizes.get(&key("i")).has_failed);
    }
}
