//! ◆ Parses scalars as other readers of CDI specifications do: YAML 1.1, and any scalar where a string is expected.
//!
//! Their parser is sigs.k8s.io/yaml: `0640` is octal, `yes` and `on` are booleans, `1:30` is a string. Where a string is
//! expected, a number or a boolean becomes one in its canonical form (`010` is the string `8`); where a number is expected, a
//! quoted number is an error. [`options`] has the options for the parser.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The options for the YAML parser.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! { legacy_octal_numbers: true }
}

/// A parsed scalar.
#[derive(Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
}

/// Converts a scalar. The error completes "expected".
pub(super) trait FromScalar: Sized {
    fn from_scalar(scalar: Scalar) -> Result<Self, &'static str>;
}

impl FromScalar for String {
    fn from_scalar(scalar: Scalar) -> Result<Self, &'static str> {
        Ok(match scalar {
            Scalar::Null => Self::new(),
            Scalar::Bool(bool) => bool.to_string(),
            Scalar::Integer(number) => number.to_string(),
            Scalar::Float(number) => number.to_string(),
            Scalar::Text(text) => text,
        })
    }
}

impl FromScalar for PathBuf {
    fn from_scalar(scalar: Scalar) -> Result<Self, &'static str> {
        String::from_scalar(scalar).map(Self::from)
    }
}

impl FromScalar for u32 {
    fn from_scalar(scalar: Scalar) -> Result<Self, &'static str> {
        let number = match scalar {
            Scalar::Integer(number) => u32::try_from(number).ok(),
            // Only integral numbers, so that nothing is lost.
            Scalar::Float(number) if number.fract() == 0.0 => {
                let fits = (0.0..=f64::from(u32::MAX)).contains(&number);
                fits.then_some(number as u32)
            }
            Scalar::Null | Scalar::Bool(_) | Scalar::Float(_) | Scalar::Text(_) => None,
        };
        number.ok_or("a number from 0 to 4294967295, without quotes")
    }
}

/// Deserializes a required scalar.
pub(super) fn one<'de, D: Deserializer<'de>, T: FromScalar>(from: D) -> Result<T, D::Error> {
    LenientScalar::deserialize(from).map(|loose| loose.0)
}

/// Deserializes a scalar that may be null.
pub(super) fn maybe<'de, D: Deserializer<'de>, T: FromScalar>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let loose: Option<LenientScalar<T>> = Option::deserialize(from)?;
    Ok(loose.map(|loose| loose.0))
}

/// Deserializes a list of scalars, which may be null.
pub(super) fn list<'de, D: Deserializer<'de>, T: FromScalar>(from: D) -> Result<Vec<T>, D::Error> {
    let list: Option<Vec<LenientScalar<T>>> = Option::deserialize(from)?;
    Ok(list.into_iter().flatten().map(|loose| loose.0).collect())
}

/// Deserializes any other value that may be null.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

struct LenientScalar<T>(T);

impl<'de, T: FromScalar> Deserialize<'de> for LenientScalar<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader(PhantomData))
    }
}

struct Reader<T>(PhantomData<T>);

impl<T: FromScalar> Reader<T> {
    fn read<E: Error>(scalar: Scalar) -> Result<LenientScalar<T>, E> {
        T::from_scalar(scalar)
            .map(LenientScalar)
            .map_err(|expected| E::custom(format!("expected {expected}")))
    }
}

impl<T: FromScalar> Visitor<'_> for Reader<T> {
    type Value = LenientScalar<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a scalar")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Self::read(Scalar::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Self::read(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Self::read(Scalar::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Self::read(Scalar::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Self::read(Scalar::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Self::read(Scalar::Text(value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Number {
        #[serde(deserialize_with = "super::maybe")]
        it: Option<u32>,
    }

    #[derive(Deserialize)]
    struct Text {
        #[serde(deserialize_with = "super::one")]
        it: String,
    }

    fn read<T: for<'de> Deserialize<'de>>(scalar: &str) -> Result<T, String> {
        let text = format!("it: {scalar}\n");
        serde_saphyr::from_str_with_options(&text, super::options()).map_err(|e| e.to_string())
    }

    /// The values of `fileMode` with container-device-interface 1.1 and sigs.k8s.io/yaml 1.6.
    #[rstest]
    #[case("0640", Ok(Some(0o640)))]
    #[case("0o640", Ok(Some(0o640)))]
    #[case("0O640", Ok(Some(0o640)))]
    #[case("0x1a0", Ok(Some(0o640)))]
    #[case("0X1A0", Ok(Some(0o640)))]
    #[case("0b110100000", Ok(Some(0o640)))]
    #[case("0_640", Ok(Some(0o640)))]
    #[case("416", Ok(Some(0o640)))]
    #[case("4_16", Ok(Some(0o640)))]
    #[case("+416", Ok(Some(0o640)))]
    #[case("416.0", Ok(Some(0o640)))]
    #[case("4.16e2", Ok(Some(0o640)))]
    #[case("!!int 0640", Ok(Some(0o640)))]
    #[case("0", Ok(Some(0)))]
    #[case("00", Ok(Some(0)))]
    #[case("08", Ok(Some(8)))]
    #[case("0899", Ok(Some(899)))]
    #[case("~", Ok(None))]
    #[case("null", Ok(None))]
    #[case("", Ok(None))]
    #[case("'0640'", Err(()))]
    #[case("\"416\"", Err(()))]
    #[case("!!str 416", Err(()))]
    #[case("-1", Err(()))]
    #[case("4294967296", Err(()))]
    #[case("18446744073709551615", Err(()))]
    #[case("1.5", Err(()))]
    #[case("1:30", Err(()))]
    #[case("yes", Err(()))]
    #[case("rw-r-----", Err(()))]
    fn numbers_parse_as_in_other_yaml_readers(
        #[case] scalar: &str,
        #[case] want: Result<Option<u32>, ()>,
    ) {
        let got = read::<Number>(scalar).map(|number| number.it);
        assert_eq!(got.clone().map_err(drop), want, "{got:?}");
    }

    /// The values of a device's `name` with the same versions.
    #[rstest]
    #[case("0", "0")]
    #[case("010", "8")]
    #[case("0o10", "8")]
    #[case("0x10", "16")]
    #[case("1_000", "1000")]
    #[case("-0", "0")]
    #[case("1.5", "1.5")]
    #[case("1.0", "1")]
    #[case("1e3", "1000")]
    #[case(".5", "0.5")]
    #[case("12345678901234567890", "12345678901234567890")]
    #[case("yes", "true")]
    #[case("on", "true")]
    #[case("y", "true")]
    #[case("true", "true")]
    #[case("no", "false")]
    #[case("Off", "false")]
    #[case("~", "")]
    #[case("1:30", "1:30")]
    #[case("2001-01-01", "2001-01-01")]
    #[case("=", "=")]
    #[case("0.6.0", "0.6.0")]
    #[case("'010'", "010")]
    #[case("\"yes\"", "yes")]
    #[case("!!str 010", "010")]
    fn strings_parse_as_in_other_yaml_readers(#[case] scalar: &str, #[case] want: &str) {
        assert_eq!(read::<Text>(scalar).unwrap().it, want);
    }

    #[rstest]
    #[case("[a]")]
    #[case("{a: b}")]
    fn collections_are_rejected_as_scalars(#[case] value: &str) {
        let error = read::<Text>(value).map(|text| text.it).unwrap_err();
        assert!(error.contains("a scalar"), "{error}");
        assert!(read::<Number>(value).is_err());
    }
}
