//! container-mounts: the mounts of a container, and the directories that are created in its volumes for them.
//!
//! Each case has its volumes in a temporary directory that stands for the root of the node's file system.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use agent::pod_spec::spec::{HostVolume, MountSpec, mounts};
use agent::storage::volumes::subpath;
use serde_json::{Value, json};

use crate::judge::Set;
use crate::read::{self, Case};
use crate::{config, container_environment, pods};

pub(crate) const SET: Set = Set::new(
    "container-mounts",
    "the mounts of a container, and the subPaths created for them",
    container_mounts,
);

fn container_mounts(case: &Case) -> Result<(), String> {
    let root = tempfile::tempdir().unwrap();
    let inner = |path: &Path| root.path().join(path.strip_prefix("/").unwrap());
    let pod = pods::pod(&case.input["pod"]);
    let (_, container) = pod.container(read::text(&case.input["container"])).unwrap();
    let mut node = container_environment::node(&case.input["node"]);
    node.root_dir = inner(&node.root_dir);
    node.selinux = true;
    let mut volumes = config::volumes(&case.input);
    for (name, volume) in &mut volumes {
        if !volume.host_path.as_os_str().is_empty() {
            volume.host_path = inner(&volume.host_path);
            make_directory(&volume.host_path, &case.input["volumes"][name]["mode"]);
        }
    }
    for entry in read::list(&case.input["entries"]) {
        make_entry(entry, &volumes);
    }
    let before = contents(&volumes);
    let env = case.input["env"].as_object().into_iter().flatten();
    let env = env.map(|(name, value)| (name.as_str(), read::text(value).as_bytes())).collect();
    let ips = pods::texts(&case.input["podIPs"]);
    let plan = mounts::plan(&pod, container, &env, &volumes, &ips, &node);
    let mut sub_paths = plan.sub_paths.iter();
    let prepared = sub_paths.try_for_each(|part| subpath::prepare(part).map(drop));
    let outcome = match prepared {
        Ok(()) => plan.mounts.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let mut ours = match outcome {
        Ok(mounts) => {
            json!({"mounts": mounts.iter().map(|m| words(m, root.path())).collect::<Vec<_>>()})
        }
        Err(error) => json!({"error": error}),
    };
    let created: Vec<Value> = contents(&volumes)
        .into_iter()
        .filter(|(place, _)| !before.contains_key(place))
        .map(|((volume, path), (kind, mode))| {
            json!({"volume": volume, "path": path, "type": kind, "mode": format!("{mode:04o}")})
        })
        .collect();
    if !created.is_empty() {
        ours["created"] = json!(created);
    }
    let mut expected = case.expected.clone();
    if let Some(created) = expected["created"].as_array_mut() {
        created.sort_by_key(|entry| (entry["volume"].to_string(), entry["path"].to_string()));
    }
    if expected["created"].is_null() {
        expected.as_object_mut().unwrap().remove("created");
    }
    read::same("mounts", &ours, &expected)
}

fn set_mode(path: &Path, mode: &Value) {
    if let Some(mode) = mode.as_str() {
        let mode = u32::from_str_radix(mode, 8).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn make_directory(path: &Path, mode: &Value) {
    fs::create_dir_all(path).unwrap();
    set_mode(path, mode);
}

fn make_entry(entry: &Value, volumes: &compact::Map<String, HostVolume>) {
    let volume = &volumes[read::text(&entry["volume"])].host_path;
    let path = volume.join(read::text(&entry["path"]));
    match read::text(&entry["type"]) {
        "dir" => make_directory(&path, &entry["mode"]),
        "file" => fs::write(&path, "x").unwrap(),
        "symlink" => {
            let target = read::text(&entry["target"]);
            symlink(target.replace("<volume>", volume.to_str().unwrap()), &path).unwrap();
        }
        other => panic!("an entry of type {other}"),
    }
}

/// Volume and path → type and mode.
type Contents = BTreeMap<(String, String), (&'static str, u32)>;

fn contents(volumes: &compact::Map<String, HostVolume>) -> Contents {
    let mut found = Contents::new();
    for (name, volume) in volumes {
        let mut open: Vec<PathBuf> = vec![volume.host_path.clone()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let metadata = entry.metadata().unwrap();
                let path = entry.path();
                let kind = match metadata.file_type() {
                    kind if kind.is_dir() => {
                        open.push(path.clone());
                        "dir"
                    }
                    kind if kind.is_symlink() => "symlink",
                    _ => "file",
                };
                let path = path.strip_prefix(&volume.host_path).unwrap();
                let place = (name.clone(), path.to_str().unwrap().to_owned());
                found.insert(place, (kind, metadata.permissions().mode() & 0o7777));
            }
        }
    }
    found
}

fn words(mount: &MountSpec, root: &Path) -> Value {
    let mut words = json!({
        "name": mount.name,
        "containerPath": mount.container_path,
        "readOnly": mount.readonly,
        "recursiveReadOnly": mount.recursive_read_only,
        "propagation": config::propagation(mount.propagation),
        "selinuxRelabel": mount.selinux_relabel,
    });
    if let Ok(path) = mount.host_path.strip_prefix(root) {
        words["hostPath"] = json!(Path::new("/").join(path));
    }
    words
}
