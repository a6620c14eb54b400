//! The JSON form of bytes that are usually text: a string if they are UTF-8, otherwise an array of numbers.

use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

/// Either form.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.serialize(serializer),
        Err(_) => bytes.serialize(serializer),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    Ok(match Form::deserialize(deserializer)? {
        Form::Text(text) => text.into_bytes(),
        Form::Bytes(bytes) => bytes,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::v1::KeyValue;

    #[test]
    fn values_are_text_where_they_can_be_and_come_back_whole() {
        for (value, json) in [
            (&b"plain"[..], r#"{"key":"K","value":"plain"}"#),
            (&[0xff, 0x00], r#"{"key":"K","value":[255,0]}"#),
        ] {
            let pair = KeyValue { key: "K".to_owned(), value: value.to_vec() };
            let written = serde_json::to_string(&pair).unwrap();
            assert_eq!(written, json);
            assert_eq!(serde_json::from_str::<KeyValue>(&written).unwrap(), pair);
        }
    }
}
