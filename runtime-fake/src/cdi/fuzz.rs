//! Fuzz target: CDI specification files.

use fuzz_target::{Target, bytes, text};

use super::spec::{Format, Name, parse};

pub(crate) const TARGETS: &[Target] =
    &[Target::new("cdi_spec", spec, seeds).slow(600), Target::new("cdi_name", name, names)];

/// Every device of a parsed file can be requested by its name.
fn spec(data: &[u8]) {
    for format in [Format::Json, Format::Yaml] {
        let Ok(spec) = parse(text(data), format) else {
            continue;
        };
        assert!(!spec.devices.is_empty());
        for device in &spec.devices {
            let name = format!("{}={}", spec.kind, device.name);
            assert!(Name::parse(&name).is_ok(), "{name:?}");
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "cdiVersion: \"0.6.0\"\nkind: vendor.com/gpu\nannotations: {what: ever}\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - {path: /dev/gpu0, type: c, major: 195, minor: 0, fileMode: 0660, permissions: rw}\ncontainerEdits:\n  env: [A=b]\n  mounts:\n  - {hostPath: /lib/gpu.so, containerPath: /lib/gpu.so, options: [ro, bind]}\n",
        "a: &x {b: c}\nd: *x\n? [e]\n: |\n  f\n--- !!map\ng: 'h'\n",
        r#"{"cdiVersion":"1.0.0","kind":"v/c","devices":[{"name":"d","containerEdits":{"env":["A=b"],"additionalGids":[5],"hooks":[{"hookName":"createContainer","path":"/x"}],"intelRdt":{}}}]}"#,
    ])
}

/// A parsed name displays as its input.
fn name(data: &[u8]) {
    if let Ok(name) = Name::parse(text(data)) {
        assert_eq!(name.to_string(), text(data));
    }
}

fn names() -> Vec<Vec<u8>> {
    bytes(&["vendor.com/gpu=0", "vendor.com/net-device.x_y=eth0:1"])
}
