//! Concurrent pulls, abandoned pulls, and runtimes that stop or die during a pull.

use std::collections::BTreeSet;

use registry::{Fault, Registry};

use super::{Bench, image};
use crate::support::*;

/// Waits until blobs are being downloaded and unpacked.
async fn downloading(bench: &Bench) {
    eventually(WAIT_LIMIT, "a blob to be asked for", || async {
        let store = bench.runtime.state_dir().join("images/tmp");
        let unpacking = std::fs::read_dir(store).unwrap().count();
        match (bench.blobs(), unpacking) {
            (2.., 1..) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

#[tokio::test]
async fn concurrent_pulls_fetch_each_blob_once() {
    let bench = Bench::new().await;
    bench.registry.add(&image("other:1", 2)).unwrap();
    let other = format!("{}/other:1", bench.registry.host());
    // Long enough for all pulls to overlap.
    bench.registry.fail(Fault::delay(Duration::from_millis(300)).on("/blobs/"));
    let name = bench.name();
    let mut pulls = tokio::task::JoinSet::new();
    for i in 0..10 {
        let client = bench.runtime.client.clone();
        let name = if i % 2 == 0 { other.clone() } else { name.clone() };
        pulls.spawn(async move { client.pull(&name).await.unwrap() });
    }
    let ids: BTreeSet<String> = pulls.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 2);
    let mut layers: Vec<String> = bench
        .registry
        .requests()
        .into_iter()
        .filter(|seen| seen.path.contains("/blobs/"))
        .map(|seen| seen.path)
        .collect();
    layers.sort();
    let requested = layers.len();
    layers.dedup();
    // The two images share one of three layers; each pull may download a configuration.
    let configurations = 10;
    assert!(requested <= 3 + configurations, "{requested} requests for {layers:?}");
}

#[tokio::test]
async fn abandoned_pull_leaves_nothing() {
    let bench = Bench::new().await;
    bench.registry.fail(Fault::slow(20_000).on("/blobs/"));
    {
        let pulling = bench.pull(None);
        tokio::pin!(pulling);
        tokio::select! {
            pulled = &mut pulling => panic!("{pulled:?}"),
            () = downloading_slowly(&bench) => {}
        }
    }
    bench.assert_nothing_left().await;
    bench.registry.recover();
    bench.pull(None).await.unwrap();
}

async fn downloading_slowly(bench: &Bench) {
    eventually(WAIT_LIMIT, "a layer to be unpacked while it comes", || async {
        let unpacking =
            std::fs::read_dir(bench.runtime.state_dir().join("images/tmp")).unwrap().count();
        if unpacking > 0 { Ok(()) } else { Err(unpacking) }
    })
    .await;
}

#[tokio::test]
async fn shared_pull_continues_for_second_client() {
    let bench = Bench::new().await;
    bench.registry.fail(Fault::slow(400_000).on("/blobs/"));
    let second = {
        let first = bench.pull(None);
        tokio::pin!(first);
        tokio::select! {
            pulled = &mut first => panic!("{pulled:?}"),
            () = downloading_slowly(&bench) => {}
        }
        let runtime = bench.runtime.client.clone();
        let name = bench.name();
        let second = tokio::spawn(async move { runtime.pull(&name).await });
        eventually(WAIT_LIMIT, "the second to ask", || async {
            let requested = bench
                .registry
                .requests()
                .iter()
                .filter(|seen| seen.path.contains("/manifests/"))
                .count();
            if requested > 1 { Ok(()) } else { Err(requested) }
        })
        .await;
        second
    };
    second.await.unwrap().unwrap();
}

/// A registry may serve the documents of another registry's image, and hold back its layers.
#[tokio::test]
async fn registry_that_stalls_does_not_delay_pull_of_same_image_from_another() {
    let bench = Bench::new().await;
    let other = Registry::start().await.unwrap();
    other.add(&image("app:1", 1)).unwrap();
    // More than the configuration, less than a layer.
    bench.registry.fail(Fault::stall(20_000).on("/blobs/"));
    let stalled = bench.pull(None);
    tokio::pin!(stalled);
    tokio::select! {
        pulled = &mut stalled => panic!("{pulled:?}"),
        () = downloading_slowly(&bench) => {}
    }
    let name = format!("{}/app:1", other.host());
    let pulling = tokio::time::timeout(WAIT_LIMIT, super::pull(&bench.runtime, &name, None));
    tokio::select! {
        pulled = &mut stalled => panic!("{pulled:?}"),
        pulled = pulling => {
            pulled.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn restart_removes_partial_downloads_after_kill() {
    let mut bench = Bench::with(Registry::start().await.unwrap(), Runtime::with().durable()).await;
    bench.registry.fail(Fault::slow(100_000).on("/blobs/"));
    {
        let pulling = bench.pull(None);
        tokio::pin!(pulling);
        tokio::select! {
            pulled = &mut pulling => panic!("{pulled:?}"),
            () = downloading(&bench) => {}
        }
    }
    bench.runtime.kill_and_restart().await.unwrap();
    bench.assert_nothing_left().await;
    bench.registry.recover();
    bench.pull(None).await.unwrap();
}

#[tokio::test]
async fn shutdown_cancels_pulls_and_leaves_nothing() {
    let mut bench = Bench::with(Registry::start().await.unwrap(), Runtime::with().durable()).await;
    bench.registry.fail(Fault::slow(20_000).on("/blobs/"));
    let client = bench.runtime.client.clone();
    let name = bench.name();
    let pulling = tokio::spawn(async move { client.pull(&name).await });
    downloading_slowly(&bench).await;
    assert!(bench.runtime.stop().await.is_some(), "it did not end");
    pulling.await.unwrap().unwrap_err();
    let left = std::fs::read_dir(bench.runtime.state_dir().join("images/tmp")).unwrap().count();
    assert_eq!(left, 0);
}
