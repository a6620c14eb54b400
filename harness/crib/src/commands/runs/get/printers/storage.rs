//! ◆ The columns of PersistentVolumes and PersistentVolumeClaims. Pure.

use serde_json::Value;

use super::TableOptions;
use crib_base::columns::fields::{
    UNSET, access_modes, age_of, field, is_terminating, storage_class, text, text_or,
};

fn phase(object: &Value) -> String {
    match is_terminating(object) {
        true => "Terminating".to_owned(),
        false => text(object, "/status/phase").to_owned(),
    }
}

pub(super) fn volume(object: &Value, options: TableOptions) -> Vec<String> {
    let claim = field(object, "/spec/claimRef");
    let claim = claim.map(|of| format!("{}/{}", text(of, "/namespace"), text(of, "/name")));
    vec![
        text_or(object, "/spec/capacity/storage", "0"),
        access_modes(object, "/spec/accessModes"),
        text(object, "/spec/persistentVolumeReclaimPolicy").to_owned(),
        phase(object),
        claim.unwrap_or_default(),
        storage_class(object).to_owned(),
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
        _ => (
            text_or(object, "/status/capacity/storage", "0"),
            access_modes(object, "/status/accessModes"),
        ),
    };
    vec![
        phase(object),
        volume.to_owned(),
        capacity,
        access,
        storage_class(object).to_owned(),
        text_or(object, "/spec/volumeAttributesClassName", UNSET),
        age_of(object, options.now),
        text_or(object, "/spec/volumeMode", UNSET),
    ]
}
