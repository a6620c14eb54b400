//! ◆ The checkpoint of the claims, in the format of the kubelet's `dra_manager_state`, so that each can read the other's. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/state/checkpoint.go.

use serde::{Deserialize, Serialize};

use crate::claims::{Claim, Claims};

/// The file name.
pub(crate) const FILE: &str = "dra_manager_state";

const KIND: &str = "DRACheckpoint";
const VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    /// The claims as JSON.
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    #[serde(default)]
    kind: String,
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<Claim>>,
}

/// Encodes the checkpoint.
///
/// # Errors
/// The error as text.
pub(crate) fn encode(claims: &Claims) -> Result<String, String> {
    let data = Data {
        kind: KIND.to_owned(),
        api_version: VERSION.to_owned(),
        claims: Some(claims.all().cloned().collect()),
    };
    let data = serde_json::to_string(&data).map_err(|error| error.to_string())?;
    let checksum = crc32(data.as_bytes());
    serde_json::to_string(&File { data, checksum }).map_err(|error| error.to_string())
}

/// Decodes a checkpoint.
///
/// # Errors
/// The kubelet's error for a corrupt checkpoint.
pub(crate) fn decode(text: &str) -> Result<Claims, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if crc32(file.data.as_bytes()) != file.checksum {
        return Err("checkpoint is corrupted".to_owned());
    }
    let data: Data = serde_json::from_str(&file.data).map_err(|error| error.to_string())?;
    Ok(Claims::new(data.claims.unwrap_or_default()))
}

/// CRC-32 with the polynomial of IEEE 802.3, lowest bits first.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes
        .iter()
        .fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;
    use crate::claims::{Device, Key, RequiredClaim};

    /// Written by a kubelet.
    const OF_KUBELET: &str = include_str!("checkpoint/kubelet.json");

    fn key() -> Key {
        Key { namespace: "default".to_owned(), name: "gpu".to_owned() }
    }

    fn claims() -> Claims {
        let drivers = ["gpu.example.com", "net.example.com"].map(str::to_owned);
        let uid = "067798be-454e-4be4-9047-1aa06aea63f7".to_owned();
        let required = RequiredClaim { key: key(), uid, drivers: drivers.into_iter().collect() };
        let mut claims = Claims::default();
        claims.add("139cdb46-f989-4f17-9561-ca10cfb509a6", &[required]).unwrap();
        let device = Device {
            pool: "worker-1".to_owned(),
            name: "gpu-0".to_owned(),
            share_id: None,
            requests: vec!["req".to_owned()],
            cdi_devices: vec!["example.com/gpu=<0>".to_owned()],
        };
        claims.set_devices(&key(), "gpu.example.com", vec![device]);
        claims
    }

    #[rstest]
    #[case("", 0)]
    #[case("123456789", 0xcbf4_3926)]
    fn checksum_is_crc32_ieee(#[case] text: &str, #[case] expected: u32) {
        assert_eq!(crc32(text.as_bytes()), expected);
    }

    #[test]
    fn file_of_a_kubelet_is_read() {
        assert_eq!(decode(OF_KUBELET).unwrap(), claims());
    }

    #[test]
    fn file_has_the_fields_of_a_kubelet() {
        let text = encode(&claims()).unwrap();
        assert_eq!(decode(&text).unwrap(), claims());
        let data = |text: &str| -> serde_json::Value {
            let file: File = serde_json::from_str(text).unwrap();
            // Go encodes a nil slice as null.
            serde_json::from_str(&file.data.replace("\"Devices\":[]", "\"Devices\":null")).unwrap()
        };
        assert_eq!(data(&text), data(OF_KUBELET));
    }

    #[test]
    fn file_without_claims_is_read() {
        let empty = encode(&Claims::default()).unwrap();
        assert_eq!(decode(&empty), Ok(Claims::default()));
        let text = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":null}","Checksum":SUM}"#;
        let sum = crc32(br#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":null}"#);
        assert_eq!(decode(&text.replace("SUM", &sum.to_string())), Ok(Claims::default()));
    }

    #[rstest]
    #[case::empty("")]
    #[case::cut_off(&OF_KUBELET[..100])]
    #[case::changed(r#"{"Data":"{}","Checksum":1}"#)]
    fn decode_rejects_corrupt_checkpoint(#[case] text: &str) {
        assert!(decode(text).is_err());
    }
}
