//! Locks for volumes and pods: CSI requires callers to serialize the calls of a volume.

use std::sync::{Arc, Mutex, PoisonError};

use compact::Map;
use tokio::sync::OwnedMutexGuard;

/// The keys with operations in progress.
#[derive(Debug)]
pub(crate) struct Locks<K> {
    held: Mutex<Map<K, Arc<tokio::sync::Mutex<()>>>>,
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

impl<K: Clone + Ord> Locks<K> {
    /// Acquires the lock of a key, after all earlier callers.
    pub(crate) async fn lock(&self, key: &K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove locks that only this map references: no operation holds or awaits them.
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(key.clone()).or_default())
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lock_serializes_operations_of_one_key() {
        let locks = Arc::new(Locks::default());
        let first = locks.lock(&"a").await;
        let other = locks.lock(&"b").await;
        drop(other);
        let waiting = tasks::spawn({
            let locks = Arc::clone(&locks);
            async move { drop(locks.lock(&"a").await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.await.is_ok());
        drop(locks.lock(&"c").await);
        assert_eq!(locks.held.lock().map(|held| held.len()).ok(), Some(1));
    }
}
