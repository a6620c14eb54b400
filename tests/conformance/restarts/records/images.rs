//! Unreadable image records: layers of running containers stay, and a pull repairs the image.

use std::fs;
use std::path::PathBuf;

use super::Damage;
use crate::restarts::recovery::pod_on;
use crate::support::*;

const NAME: &str = "example.com/recorded:1";

/// The only file with this ending in `directory` or its only subdirectory.
fn only_file(directory: PathBuf, ending: &str) -> PathBuf {
    let entries = fs::read_dir(directory).unwrap();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let found: Vec<PathBuf> = paths
        .into_iter()
        .map(|path| if path.is_dir() { path.join(ending) } else { path })
        .filter(|path| path.ends_with(ending) || path.to_string_lossy().ends_with(ending))
        // Skips the host's image, which has no layers.
        .filter(|path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            ending == "layer.json" || text.contains("recorded")
        })
        .collect();
    let [path] = found.as_slice() else { panic!("not one: {found:?}") };
    path.clone()
}

#[rstest]
#[case::image_empty("images", ".json", Damage::Emptied)]
#[case::image_truncated("images", ".json", Damage::CutAtTheEnd)]
#[case::layer_empty("layers", "layer.json", Damage::Emptied)]
#[case::layer_truncated("layers", "layer.json", Damage::CutAtTheEnd)]
#[tokio::test]
async fn damaged_image_records_lose_no_layers_and_are_repaired_by_pull(
    #[case] place: &str,
    #[case] ending: &str,
    #[case] damage: Damage,
) {
    harness::needs!(Namespaces);
    let layer = Layer::new().file("etc/motd", 0o644, "from the image\n");
    let layer = with_programs(layer, &["/bin/sh", "/bin/cat", "/bin/sleep"]);
    let (mut runtime, _archives) = with_image(Runtime::with().durable(), NAME, layer).await;
    let id = runtime.client.image(NAME).await.unwrap().unwrap().id;
    let pod = runtime.pod("p").await.unwrap();
    let of_image = |name: &str, script: &str| {
        let mut config = fixture::script(name, script);
        config.image.as_mut().unwrap().image = id.clone();
        config
    };
    let runs = of_image("runs", "echo ready; while :; do sleep 1000; done");
    let runs = pod.start_ready(runs).await.unwrap();
    runtime.kill9().await;
    let record = only_file(runtime.state_dir().join("images").join(place), ending);
    damage.make(&record);
    let damaged = fs::read(&record).unwrap();

    for _ in 0..2 {
        runtime.restart().await.unwrap();
        assert_eq!(fs::read(&record).unwrap(), damaged);
        // The container can read files, even those that it has not read before.
        let motd = runtime.client.sh(&runs, "cat /etc/motd").await.unwrap();
        assert_eq!(motd, "from the image\n");
    }
    assert_eq!(runtime.client.pull(NAME).await.unwrap(), id);
    assert_ne!(fs::read(&record).unwrap(), damaged);
    let motd = runtime.client.sh(&runs, "cat /etc/motd").await.unwrap();
    assert_eq!(motd, "from the image\n");
    let pod = pod_on(&pod, &runtime);
    let output = pod.output(of_image("new", "cat /etc/motd")).await.unwrap();
    assert_eq!(output, "from the image\n");
    // The repaired image can be removed.
    runtime.client.remove_pod(&pod.id).await.unwrap();
    runtime.client.remove_image(NAME).await.unwrap();
    let layers = runtime.state_dir().join("images").join("layers");
    assert_eq!(fs::read_dir(layers).unwrap().count(), 0);
}
