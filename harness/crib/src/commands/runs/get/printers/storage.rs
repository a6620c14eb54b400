//! ◆ The columns of PersistentVolumes and PersistentVolumeClaims. Pure.

use serde_json::Value;

use super::TableOptions;
use crib_base::columns::fields::{UNSET, age_of, field, is_terminating, text, text_or, texts};

/// The annotation that overrides the field storageClassName.
const CLASS_ANNOTATION: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

fn phase(object: &Value) -> String {
    match is_terminating(object) {
        true => "Terminating".to_owned(),
        false => text(object, "/status/phase").to_owned(),
    }
}

fn class(object: &Value) -> String {
    match field(object, CLASS_ANNOTATION) {
        Some(_) => text(object, CLASS_ANNOTATION).to_owned(),
        None => text(object, "/spec/storageClassName").to_owned(),
    }
}

/// Access modes in Kubernetes' order: `RWO,ROX`.
fn modes(object: &Value, pointer: &str) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let set = texts(object, pointer);
    let modes = known.iter().filter(|(mode, _)| set.contains(mode)).map(|(_, short)| *short);
    modes.collect::<Vec<_>>().join(",")
}

pub(super) fn volume(object: &Value, options: TableOptions) -> Vec<String> {
    let claim = field(object, "/spec/claimRef");
    let claim = claim.map(|of| format!("{}/{}", text(of, "/namespace"), text(of, "/name")));
    vec![
        text_or(object, "/spec/capacity/storage", "0"),
        modes(object, "/spec/accessModes"),
        text(object, "/spec/persistentVolumeReclaimPolicy").to_owned(),
        phase(object),
        claim.unwrap_or_default(),
        class(object),
        text_or(object, "/spec/volumeAttributesClassName", UNSET),
        text(object, "/status/reason").to_owned(),
        age_of(object, options.now),
        text_or(object, "/spec/volumeMode", UNSET),
    ]
}

pub(super) fn claim(object: &Value, options: TableOptions) -> Vec<String> {
    let volume = text(object, "/spec/volumeName");
    let (capacity, access) = match volume {
        "" => (String::new(), String::new()),
        _ => {
            (text_or(object, "/status/capacity/storage", "0"), modes(object, "/status/accessModes"))
        }
    };
    vec![
        phase(object),
        volume.to_owned(),
        capacity,
        access,
        class(object),
        text_or(object, "/spec/volumeAttributesClassName", UNSET),
        age_of(object, options.now),
        text_or(object, "/spec/volumeMode", UNSET),
    ]
}
