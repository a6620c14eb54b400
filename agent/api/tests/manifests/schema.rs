//! The types and fields of Kubernetes' objects in k8s-openapi, which passes their names to each deserializer.

use std::cell::RefCell;

use compact::Map;
use k8s_openapi::Resource;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// The fields of each type, each with the type of its value, or of the elements of its value, if that has fields.
pub(crate) type Schema = Map<&'static str, Vec<(&'static str, Option<&'static str>)>>;

/// The types of all kinds that `crib run` supports, and the names of these kinds.
pub(crate) fn of_kinds() -> (Schema, Vec<&'static str>) {
    let schema = RefCell::new(Schema::new());
    let kinds = vec![
        add::<Pod>(&schema),
        add::<Deployment>(&schema),
        add::<ReplicaSet>(&schema),
        add::<ReplicationController>(&schema),
        add::<DaemonSet>(&schema),
        add::<StatefulSet>(&schema),
        add::<Job>(&schema),
        add::<CronJob>(&schema),
        add::<ConfigMap>(&schema),
        add::<Secret>(&schema),
        add::<Service>(&schema),
        add::<Endpoints>(&schema),
        add::<EndpointSlice>(&schema),
        add::<Namespace>(&schema),
        add::<ServiceAccount>(&schema),
        add::<PersistentVolumeClaim>(&schema),
        add::<PersistentVolume>(&schema),
        add::<RuntimeClass>(&schema),
        add::<PriorityClass>(&schema),
        add::<ClusterTrustBundle>(&schema),
    ];
    (schema.into_inner(), kinds)
}

/// Adds the types that objects of a kind consist of, and returns the kind's name.
fn add<'de, T: Deserialize<'de> + Resource>(schema: &RefCell<Schema>) -> &'static str {
    let read = T::deserialize(Tracer { schema, holder: None });
    match read {
        Ok(_) => T::KIND,
        Err(error) => panic!("failed to read the fields of a {}: {error}", T::KIND),
    }
}

/// Reads every field of every type once.
#[derive(Clone, Copy)]
struct Tracer<'a> {
    schema: &'a RefCell<Schema>,
    /// The type and field that the value belongs to.
    holder: Option<(&'static str, &'static str)>,
}

impl Tracer<'_> {
    /// A text that the field accepts.
    fn text(self) -> &'static str {
        match self.holder {
            Some((kind, "kind")) => kind,
            Some(("DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet", "apiVersion")) => {
                "apps/v1"
            }
            Some(("CronJob" | "Job", "apiVersion")) => "batch/v1",
            Some(("EndpointSlice", "apiVersion")) => "discovery.k8s.io/v1",
            Some(("RuntimeClass", "apiVersion")) => "node.k8s.io/v1",
            Some(("PriorityClass", "apiVersion")) => "scheduling.k8s.io/v1",
            Some(("ClusterTrustBundle", "apiVersion")) => "certificates.k8s.io/v1beta1",
            Some((_, "apiVersion")) => "v1",
            // Bytes, in base64.
            Some(("ConfigMap" | "Secret", _)) => "",
            _ => "2020-01-01T00:00:00.000000Z",
        }
    }
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.text())
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(false)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i32(0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(0.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            "Quantity" => visitor.visit_newtype_struct(StrDeserializer::new("0")),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(b"")
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Once(Some(self)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { tracer: self, kind: None, left: ["key"].iter(), key: "key" })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Some((kind, field)) = self.holder {
            let mut schema = self.schema.borrow_mut();
            let of_holder = schema.entry(kind).or_default();
            if let Some((_, kind)) = of_holder.iter_mut().find(|(name, _)| *name == field) {
                *kind = Some(name);
            }
        }
        // Types contain each other.
        let is_new = !self.schema.borrow().contains_key(name);
        if is_new {
            let all = fields.iter().map(|field| (*field, None)).collect();
            self.schema.borrow_mut().insert(name, all);
        }
        let left = if is_new { fields } else { fields.get(..0).unwrap_or_default() };
        visitor.visit_map(Fields { tracer: self, kind: Some(name), left: left.iter(), key: "" })
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char str string bytes unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

struct Once<'a>(Option<Tracer<'a>>);

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|tracer| seed.deserialize(tracer)).transpose()
    }
}

struct Fields<'a> {
    tracer: Tracer<'a>,
    /// The type of these fields; `None` for a map.
    kind: Option<&'static str>,
    left: std::slice::Iter<'static, &'static str>,
    key: &'static str,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(key) = self.left.next() else {
            return Ok(None);
        };
        self.key = key;
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let holder = match self.kind {
            Some(kind) => Some((kind, self.key)),
            None => self.tracer.holder,
        };
        seed.deserialize(Tracer { holder, ..self.tracer })
    }
}
