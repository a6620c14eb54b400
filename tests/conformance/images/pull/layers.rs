//! Layers with device nodes, which an ordinary user cannot make.

use registry::Registry;

use crate::support::*;

/// A layer with two device nodes.
fn with_nodes() -> Layer {
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["one", "two"] {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Char);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        tar.append_data(&mut header, name, std::io::empty()).unwrap();
    }
    Layer::of_stream(tar.into_inner().unwrap())
}

#[tokio::test]
async fn pull_logs_once_that_device_nodes_are_skipped() {
    harness::needs!(UserNamespaces);
    let registry = Registry::start().await.unwrap();
    registry.add(&ImageBuilder::new("example.com/nodes:1").layer(with_nodes())).unwrap();
    let runtime = rootless().start().await.unwrap();
    super::pull(&runtime, &format!("{}/nodes:1", registry.host()), None).await.unwrap();
    let line = "skipped the device nodes of a layer";
    assert_eq!(runtime.log().matches(line).count(), 1, "{}", runtime.log());
}
