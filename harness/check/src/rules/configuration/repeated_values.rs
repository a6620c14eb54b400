//! Rules of duplicates in the lists of a request, and of their order.

use crate::prelude::*;
use crate::rules::mounts::{directory, made, of};
use crate::rules::security::{number, status_of, words};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-CFG-030": "If an environment variable is set twice, the last value wins and the process has the variable only once.",
        RUNTIMES, tags ["process"], calls [CreateContainer],
        last_value_of_variable_counts, faults [
            "CreateContainer request set config.envs [{\"key\": \"TWICE\", \"value\": \"Zmlyc3Q=\"}, {\"key\": \"ONCE\", \"value\": \"b25jZQ==\"}]",
            "CreateContainer request drop config.envs",
        ];
    Must "CRI-CFG-031": "The process has exactly the configured groups, even if the supplemental groups contain duplicates or the primary group.",
        KUBELET, tags ["kubelet", "user"], calls [CreateContainer],
        repeated_groups_are_set given [users], faults [
            "CreateContainer request set config.linux.security_context.supplemental_groups [\"1234\"]",
            "CreateContainer request set config.linux.security_context.supplemental_groups [\"5678\", \"1002\"]",
        ];
    Should "CRI-SEC-050": "Added capabilities are effective and dropped capabilities are not, even if a list contains one twice; a capability in both lists is dropped.",
        RUNTIMES, tags ["capability"], calls [CreateContainer],
        repeated_capabilities_are_set, faults [
            "CreateContainer request set config.linux.security_context.capabilities.add_capabilities [\"NET_ADMIN\"]",
            "CreateContainer request set config.linux.security_context.capabilities.drop_capabilities [\"CHOWN\", \"NET_RAW\"]",
            "CreateContainer request set config.linux.security_context.capabilities.drop_capabilities [\"SYS_TIME\"]",
            "CreateContainer request drop config.linux.security_context.capabilities",
        ];
    Must "CRI-SEC-051": "Each container path of a device leads to the requested host device, even if the request maps one host device to two container paths.",
        KUBELET, tags ["kubelet", "device"], calls [CreateContainer],
        each_device_is_given given [namespaces], faults [
            "CreateContainer request set config.devices.host_path \"/dev/null\"",
            "CreateContainer request set config.devices.container_path \"/dev/first\"",
            "CreateContainer request set config.devices [{\"container_path\": \"/dev/first\", \"host_path\": \"/dev/null\", \"permissions\": \"rwm\"}]",
        ];
    Must "CRI-MNT-040": "A host directory can be mounted at two paths, each with its own read-only flag, which ContainerStatus reports.",
        KUBELET, tags ["kubelet", "mount"], calls [CreateContainer, ContainerStatus],
        directory_is_mounted_twice given [namespaces], faults [
            "CreateContainer request set config.mounts.readonly false",
            "CreateContainer request set config.mounts.readonly true",
            "CreateContainer request set config.mounts.container_path \"/tmp/two\"",
            "ContainerStatus set status.mounts.container_path \"/tmp/two\"",
        ];
};

async fn last_value_of_variable_counts(x: &Context) -> Verdict {
    let mut config = x.script("c", "tr '\\0' '\\n' </proc/self/environ");
    let twice = [("TWICE", "first"), ("ONCE", "once"), ("TWICE", "last")];
    let variable =
        |(key, value): (&str, &str)| v1::KeyValue { key: key.to_owned(), value: value.into() };
    config.envs.extend(twice.map(variable));
    let output = x.output(config).await?;
    let mut seen: Vec<&str> = output.lines().filter(|line| line.contains("CE=")).collect();
    seen.sort_unstable();
    equal("the variables of the process", &seen, &["ONCE=once", "TWICE=last"])
}

async fn repeated_groups_are_set(x: &Context) -> Verdict {
    let mut config = x.script("c", "id -G");
    let security = fixture::security(&mut config);
    security.run_as_user = Some(v1::Int64Value { value: 1001 });
    security.run_as_group = Some(v1::Int64Value { value: 1002 });
    security.supplemental_groups = vec![5678, 1234, 1002, 5678];
    let output = x.output(config).await?;
    let seen = crate::rules::security::groups_in(&output);
    equal("the groups of the process", &seen, &[1002, 1234, 5678])
}

async fn repeated_capabilities_are_set(x: &Context) -> Verdict {
    let status = status_of(x, |security| {
        let capabilities = security.capabilities.get_or_insert_default();
        capabilities.add_capabilities = words(&["NET_ADMIN", "SYS_TIME", "SYS_NICE", "NET_ADMIN"]);
        capabilities.drop_capabilities = words(&["CHOWN", "NET_RAW", "SYS_TIME", "CHOWN"]);
    });
    let set = number(&status.await?, "CapEff")?;
    for (name, bit, expected) in [
        ("NET_ADMIN, which is added twice", 12, true),
        ("SYS_NICE, which is added", 23, true),
        ("KILL, which is not named", 5, true),
        ("CHOWN, which is dropped twice", 0, false),
        ("NET_RAW, which is dropped", 13, false),
        ("SYS_TIME, which is added and dropped", 25, false),
    ] {
        equal(&format!("whether CapEff has {name}"), &(set >> bit & 1 == 1), &expected)?;
    }
    Ok(())
}

async fn each_device_is_given(x: &Context) -> Verdict {
    // Reading /dev/null returns nothing, and /dev/zero a byte.
    let script = "for name in first second third; do head -c 1 /dev/$name | tr '\\0' 0; echo; done";
    let mut config = x.script("c", script);
    let given = [("first", "null"), ("second", "zero"), ("third", "zero")];
    config.devices = given
        .map(|(name, of_host)| v1::Device {
            container_path: format!("/dev/{name}"),
            host_path: format!("/dev/{of_host}"),
            permissions: "rwm".to_owned(),
        })
        .into();
    let output = x.output(config).await?;
    let seen: Vec<&str> = output.lines().collect();
    equal("the bytes read from /dev/first, second and third", &seen, &["", "0", "0"])
}

async fn directory_is_mounted_twice(x: &Context) -> Verdict {
    let volume = directory(x)?;
    made(std::fs::write(volume.join("file"), "there\n"))?;
    let script = "for name in one two; do cat /tmp/$name/file
        (echo >/tmp/$name/from-$name) 2>/dev/null && echo written by $name; done; :";
    let mut config = x.script("c", script);
    let places = ["/tmp/one", "/tmp/two"];
    config.mounts = places.map(|place| of(&volume, place)).into();
    for mount in config.mounts.iter_mut().take(1) {
        mount.readonly = true;
    }
    let pod = x.pod().await?;
    let id = pod.create(config).await?;
    let status = x.client.container(&id).await?;
    let mut seen: Vec<(&str, bool)> = status
        .mounts
        .iter()
        .map(|mount| (mount.container_path.as_str(), mount.readonly))
        .filter(|(path, _)| path.starts_with("/tmp/"))
        .collect();
    seen.sort_unstable();
    let what = "container path and read-only flag of each mount in ContainerStatus";
    equal(what, &seen, &[("/tmp/one", true), ("/tmp/two", false)])?;
    x.client.start(&id).await?;
    x.exited(&id).await?;
    let output: Vec<String> = x.lines(&pod).into_iter().map(|line| line.text).collect();
    equal("the output", &output, &["there", "there", "written by two"])
}
