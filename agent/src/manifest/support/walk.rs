//! ◆ Visits every field that an object gives, with its path, its type and its name.
//!
//! Kubernetes' types tell a serializer their names and those of their fields. A field is given if it is not empty: a text, list
//! or map with something in it, an object, or anything else.

use std::fmt::Error;

use serde::ser::{Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};

/// What a visitor says of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Look into its value.
    Enter,
    /// Leave its value alone.
    Skip,
}

/// Calls `visit` with the path, the type and the name of each field that `object` gives.
pub(super) fn walk(object: &impl Serialize, visit: &mut Visit<'_>) {
    let whole = object.serialize(Walk {
        path: String::new(),
        visit: Some(visit),
    });
    debug_assert!(whole.is_ok(), "every type of Kubernetes can be walked over");
}

type Visit<'a> = dyn FnMut(&str, &'static str, &'static str) -> Next + 'a;

/// A value at a path; serializing it says whether it is given.
struct Walk<'a, 'v> {
    path: String,
    /// Is called for each of its fields; `None` only finds out whether the value is given.
    visit: Option<&'a mut Visit<'v>>,
}

macro_rules! given {
    ($($method:ident: $type:ty),* $(,)?) => {$(
        fn $method(self, _: $type) -> Result<bool, Error> {
            Ok(true)
        }
    )*};
}

impl<'a, 'v> Serializer for Walk<'a, 'v> {
    type Ok = bool;
    type Error = Error;
    type SerializeSeq = Items<'a, 'v>;
    type SerializeTuple = Impossible<bool, Error>;
    type SerializeTupleStruct = Impossible<bool, Error>;
    type SerializeTupleVariant = Impossible<bool, Error>;
    type SerializeMap = Items<'a, 'v>;
    type SerializeStruct = Fields<'a, 'v>;
    type SerializeStructVariant = Impossible<bool, Error>;

    given! {
        serialize_bool: bool, serialize_char: char,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_f32: f32, serialize_f64: f64,
    }

    fn serialize_str(self, text: &str) -> Result<bool, Error> {
        Ok(!text.is_empty())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<bool, Error> {
        Ok(!bytes.is_empty())
    }

    fn serialize_none(self) -> Result<bool, Error> {
        Ok(false)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<bool, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<bool, Error> {
        Ok(false)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<bool, Error> {
        Ok(true)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
    ) -> Result<bool, Error> {
        Ok(true)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<bool, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<bool, Error> {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a, 'v>, Error> {
        Ok(Items {
            list: self,
            count: 0,
        })
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        Err(Error)
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, Error> {
        Err(Error)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(Error)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Items<'a, 'v>, Error> {
        Ok(Items {
            list: self,
            count: 0,
        })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields<'a, 'v>, Error> {
        Ok(Fields {
            type_name: name,
            holder: self,
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(Error)
    }
}

/// The items of a list, or the entries of a map, whose values have no fields in Kubernetes' types.
struct Items<'a, 'v> {
    list: Walk<'a, 'v>,
    count: usize,
}

impl SerializeSeq for Items<'_, '_> {
    type Ok = bool;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let path = format!("{}[{}]", self.list.path, self.count);
        self.count += 1;
        value
            .serialize(Walk {
                path,
                visit: self.list.visit.as_deref_mut(),
            })
            .map(|_| ())
    }

    fn end(self) -> Result<bool, Error> {
        Ok(self.count > 0)
    }
}

impl SerializeMap for Items<'_, '_> {
    type Ok = bool;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Error> {
        self.count += 1;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Error> {
        Ok(())
    }

    fn end(self) -> Result<bool, Error> {
        Ok(self.count > 0)
    }
}

struct Fields<'a, 'v> {
    type_name: &'static str,
    holder: Walk<'a, 'v>,
}

impl SerializeStruct for Fields<'_, '_> {
    type Ok = bool;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let Some(visit) = self.holder.visit.as_deref_mut() else {
            return Ok(());
        };
        let is_given = value.serialize(Walk {
            path: String::new(),
            visit: None,
        })?;
        let path = match self.holder.path.as_str() {
            "" => key.to_owned(),
            holder => format!("{holder}.{key}"),
        };
        if is_given && visit(&path, self.type_name, key) == Next::Enter {
            value.serialize(Walk {
                path,
                visit: Some(visit),
            })?;
        }
        Ok(())
    }

    fn end(self) -> Result<bool, Error> {
        Ok(true)
    }
}
