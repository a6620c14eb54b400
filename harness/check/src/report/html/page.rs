//! ◆ What every page has around its body: styles, the script, and a policy that lets no other script run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::super::escape::escaped;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A page that needs no other file.
pub(super) fn page(title: &str, body: &str) -> String {
    // The script is named by its hash: markup that got into the page in spite of all could not run one.
    let hash = STANDARD.encode(Sha256::digest(SCRIPT));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
        <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'\">\n\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
        <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}<script>{SCRIPT}</script>\n</body>\n</html>\n",
        escaped(title)
    )
}
