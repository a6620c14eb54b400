//! ◆ Objects as data: their values with the names of Kubernetes' types.
//!
//! The only serializer of these types in this package: each of their few hundred types has a copy of its generic functions.

use std::fmt::{Display, Error};

use serde::ser::{Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use serde_json::Number;

/// A value of an object.
#[derive(Debug, PartialEq)]
pub(super) enum TypedValue {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<TypedValue>),
    Map(Vec<(TypedValue, TypedValue)>),
    Struct {
        /// The name of the type.
        name: &'static str,
        /// The fields that are set, in the type's order.
        fields: Vec<(&'static str, TypedValue)>,
    },
}

impl TypedValue {
    pub(super) fn of(object: &impl Serialize) -> Self {
        let value = object.serialize(Builder);
        debug_assert!(value.is_ok(), "every type of Kubernetes is data");
        value.unwrap_or(Self::Null)
    }

    /// Whether the value is set: a non-empty text, list or map, an object, or any other value.
    pub(super) fn is_given(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(_) | Self::Number(_) | Self::Struct { .. } => true,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(entries) => !entries.is_empty(),
        }
    }

    /// The value as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The value without the names of types.
    fn into_json(self) -> serde_json::Value {
        use serde_json::Value as Json;
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(value),
            Self::Number(number) => Json::Number(number),
            Self::Text(text) => Json::String(text),
            Self::List(items) => items.into_iter().map(Self::into_json).collect(),
            Self::Map(entries) => {
                let key = |key: Self| match &key {
                    Self::Text(text) => text.clone(),
                    Self::Null
                    | Self::Bool(_)
                    | Self::Number(_)
                    | Self::List(_)
                    | Self::Map(_)
                    | Self::Struct { .. } => key.json(),
                };
                let entries = entries.into_iter();
                Json::Object(entries.map(|(name, value)| (key(name), value.into_json())).collect())
            }
            Self::Struct { fields, .. } => {
                let fields = fields.into_iter();
                Json::Object(
                    fields.map(|(name, value)| (name.to_owned(), value.into_json())).collect(),
                )
            }
        }
    }
}

impl Serialize for TypedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(entries) => {
                serializer.collect_map(entries.iter().map(|(key, value)| (key, value)))
            }
            Self::Struct { fields, .. } => {
                serializer.collect_map(fields.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}

/// An object of one of Kubernetes' types as JSON, with its API version and kind.
pub fn to_json(object: &impl Serialize) -> serde_json::Value {
    TypedValue::of(object).into_json()
}

struct Builder;

macro_rules! numbers {
    ($($method:ident: $type:ty),* $(,)?) => {$(
        fn $method(self, number: $type) -> Result<TypedValue, Error> {
            Ok(TypedValue::Number(number.into()))
        }
    )*};
}

/// Methods with a constant result.
macro_rules! constant {
    ($($method:ident($($given:ty),*) -> $ok:ty = $value:expr),* $(,)?) => {$(
        fn $method(self, $(_: $given),*) -> Result<$ok, Error> {
            $value
        }
    )*};
}

impl Serializer for Builder {
    type Ok = TypedValue;
    type Error = Error;
    type SerializeSeq = Items;
    type SerializeTuple = Impossible<TypedValue, Error>;
    type SerializeTupleStruct = Impossible<TypedValue, Error>;
    type SerializeTupleVariant = Impossible<TypedValue, Error>;
    type SerializeMap = Entries;
    type SerializeStruct = Fields;
    type SerializeStructVariant = Impossible<TypedValue, Error>;

    numbers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
    }

    constant! {
        serialize_none() -> TypedValue = Ok(TypedValue::Null),
        serialize_unit() -> TypedValue = Ok(TypedValue::Null),
        serialize_unit_struct(&'static str) -> TypedValue = Ok(TypedValue::Null),
        // Kubernetes' types contain none of these.
        serialize_tuple(usize) -> Self::SerializeTuple = Err(Error),
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct = Err(Error),
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant = Err(Error),
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant = Err(Error),
    }

    fn serialize_bool(self, value: bool) -> Result<TypedValue, Error> {
        Ok(TypedValue::Bool(value))
    }

    fn serialize_f32(self, number: f32) -> Result<TypedValue, Error> {
        self.serialize_f64(f64::from(number))
    }

    fn serialize_f64(self, number: f64) -> Result<TypedValue, Error> {
        Ok(Number::from_f64(number).map_or(TypedValue::Null, TypedValue::Number))
    }

    fn serialize_char(self, value: char) -> Result<TypedValue, Error> {
        Ok(TypedValue::Text(value.to_string()))
    }

    fn serialize_str(self, text: &str) -> Result<TypedValue, Error> {
        Ok(TypedValue::Text(text.to_owned()))
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<TypedValue, Error> {
        let bytes = bytes.iter().map(|byte| TypedValue::Number((*byte).into()));
        Ok(TypedValue::List(bytes.collect()))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<TypedValue, Error> {
        value.serialize(self)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<TypedValue, Error> {
        Ok(TypedValue::Text(variant.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<TypedValue, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<TypedValue, Error> {
        Err(Error)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<TypedValue, Error> {
        Ok(TypedValue::Text(value.to_string()))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items, Error> {
        Ok(Items(Vec::new()))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, Error> {
        Ok(Entries { key: TypedValue::Null, entries: Vec::new() })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields, Error> {
        Ok(Fields { name, fields: Vec::new() })
    }
}

struct Items(Vec<TypedValue>);

impl SerializeSeq for Items {
    type Ok = TypedValue;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.0.push(value.serialize(Builder)?);
        Ok(())
    }

    fn end(self) -> Result<TypedValue, Error> {
        Ok(TypedValue::List(self.0))
    }
}

struct Entries {
    key: TypedValue,
    entries: Vec<(TypedValue, TypedValue)>,
}

impl SerializeMap for Entries {
    type Ok = TypedValue;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = key.serialize(Builder)?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = std::mem::replace(&mut self.key, TypedValue::Null);
        self.entries.push((key, value.serialize(Builder)?));
        Ok(())
    }

    fn end(self) -> Result<TypedValue, Error> {
        Ok(TypedValue::Map(self.entries))
    }
}

struct Fields {
    name: &'static str,
    fields: Vec<(&'static str, TypedValue)>,
}

impl Fields {
    /// Separate from the generic function, of which every field type has a copy.
    fn push(&mut self, key: &'static str, value: Result<TypedValue, Error>) -> Result<(), Error> {
        self.fields.push((key, value?));
        Ok(())
    }
}

impl SerializeStruct for Fields {
    type Ok = TypedValue;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.push(key, value.serialize(Builder))
    }

    fn end(self) -> Result<TypedValue, Error> {
        Ok(TypedValue::Struct { name: self.name, fields: self.fields })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn typed_value_has_the_json_of_the_object() {
        let pod = json!({
            "metadata": {
                "name": "p",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"a": "b", "": "\"\n"},
            },
            "spec": {
                "containers": [{
                    "name": "c",
                    "stdin": true,
                    "args": [],
                    "resources": {"limits": {"cpu": "1"}},
                    "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5},
                    "ports": [{"containerPort": 80}],
                }],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(TypedValue::of(&pod).json(), serde_json::to_string(&pod).unwrap());
    }
}
