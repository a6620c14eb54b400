//! quantities: parsing and formatting of resource amounts.

use api::quantity::{Quantity, canonical};
use serde_json::json;

use crate::judge::Set;
use crate::read::{self, Case};

pub(crate) const SET: Set =
    Set::new("quantities", "the value of a quantity, and its canonical form", judge);

fn judge(case: &Case) -> Result<(), String> {
    let text = read::text(&case.input["s"]);
    let (quantity, canonical) = match (Quantity::parse(text), canonical(text)) {
        (Ok(quantity), Ok(canonical)) => (quantity, canonical),
        (Err(error), Err(_)) => {
            let ours = json!({"error": error.api_message()});
            return read::same("quantity", &ours, &case.expected);
        }
        (parsed, canonical) => return Err(format!("{parsed:?}, but {canonical:?}")),
    };
    let sign = match () {
        () if quantity.is_negative() => -1,
        () if quantity.is_zero() => 0,
        () => 1,
    };
    let mut ours = json!({
        "canonical": canonical.text,
        "format": quantity.format().as_str(),
        "sign": sign,
        "value": quantity.value(),
        "milli_value": quantity.milli_value(),
    });
    if let Some(exact) = canonical.exact_integer {
        ours["exact_int64"] = json!(exact);
    }
    read::same("quantity", &ours, &case.expected)
}
