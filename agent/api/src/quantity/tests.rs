//! Tests of quantities.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::Quantity;

#[rstest]
#[case("0", 0, 0)]
#[case("250m", 1, 250)]
#[case("1.5", 2, 1500)]
#[case(".5", 1, 500)]
#[case("64Mi", 67_108_864, 67_108_864_000)]
#[case("1.5Gi", 1_610_612_736, 1_610_612_736_000)]
#[case("1e3", 1000, 1_000_000)]
#[case("12E-1", 2, 1200)]
#[case("-1.5", -2, -1500)]
#[case("1n", 1, 1)]
#[case("m", 0, 0)]
#[case("5.Ki", 5120, 5_120_000)]
fn parse_accepts_quantities(#[case] text: &str, #[case] value: i64, #[case] milli: i64) {
    let quantity = Quantity::parse(text).unwrap();
    assert_eq!((quantity.value(), quantity.milli_value()), (value, milli));
}

#[rstest]
#[case::integer_wraps("9223372036854775M", -808_000, -808_000_000)]
#[case::integer_is_zero("99999999999P", 0, 0)]
#[case::decimal_wraps("18446744073709551617", 1, 1000)]
#[case::capped("99999Ei", i64::MAX, -1000)]
#[case::capped_negative("-99999Ei", -i64::MAX, 1000)]
#[case::negative_decimal_rounds_up("-1.5000000001", 0, -1499)]
#[case::negative_integer_rounds_down("-1.500000001", -2, -1501)]
#[case::long_fraction(
    "1.0000000000000000000001Ei",
    1_152_921_504_606_846_977,
    -9_223_372_036_854_775_807
)]
fn overflow_is_that_of_kubernetes(#[case] text: &str, #[case] value: i64, #[case] milli: i64) {
    let quantity = Quantity::parse(text).unwrap();
    assert_eq!((quantity.value(), quantity.milli_value()), (value, milli));
}

#[rstest]
fn parse_rejects_other_text(
    #[values("", "1.2.3", "1 Gi", "1mi", "1e", "ten", "1Kib", "--1", "1e1.5", "e-50")] text: &str,
) {
    assert!(Quantity::parse(text).is_err());
}

#[rstest]
#[case("1500m", "1500m")]
#[case("0.5", "500m")]
#[case("1.5Gi", "1536Mi")]
#[case("1000Ki", "1000Ki")]
#[case("2048Ki", "2Mi")]
#[case("0.1Ki", "102400m")]
#[case("100e4", "1e6")]
#[case("00012", "00012")]
#[case("0.0000000001", "1n")]
#[case("9999999999999.9999999999", "10T")]
#[case("123456789012345678901234567890", "123456789012345678901234567890")]
#[case("99999Ei", "9223372036854775807")]
#[case("-0", "0")]
fn canonical_text_is_that_of_kubernetes(#[case] text: &str, #[case] canonical: &str) {
    assert_eq!(super::canonical(text).unwrap().text, canonical);
}

#[rstest]
#[case("1.0001", "1001m")]
#[case("-1.0001", "-1001m")]
#[case("1.5", "1500m")]
#[case("99999999999999999999999", "99999999999999999999999")]
fn rounding_to_thousandths_is_away_from_zero(#[case] text: &str, #[case] rounded: &str) {
    let quantity = Quantity::parse(text).unwrap().rounded_to_milli();
    assert_eq!(quantity.to_string(), rounded);
}

#[test]
fn sum_is_written_like_its_first_part() {
    let sum = Quantity::parse("1Gi").unwrap().plus(Quantity::parse("1k").unwrap());
    assert_eq!(sum.to_string(), "1073742824");
    let sum = Quantity::ZERO.plus(Quantity::parse("2048Mi").unwrap());
    assert_eq!(sum.to_string(), "2Gi");
}

proptest! {
    #[test]
    fn canonical_text_has_the_same_amount(text in "[+-]?[0-9]{0,12}([.][0-9]{0,6})?(|n|u|m|k|M|G|Ki|Mi|Gi|e[0-9])") {
        if let Ok(quantity) = Quantity::parse(&text) {
            let canonical = super::canonical(&text).unwrap().text;
            prop_assert_eq!(Quantity::parse(&canonical).unwrap(), quantity);
            prop_assert_eq!(Quantity::parse(&quantity.to_string()).unwrap(), quantity);
        }
    }

    #[test]
    fn parse_never_panics(text in ".*") {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn whole_numbers_are_exact(number in any::<i32>()) {
        prop_assert_eq!(Quantity::parse(&number.to_string()).unwrap().value(), i64::from(number));
    }
}
