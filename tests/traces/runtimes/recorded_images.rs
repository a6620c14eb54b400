//! ◆ The images that the node of a scenario had or pulled, according to its calls.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::scenarios::scenario::Scenario;

/// An image that the recorded runtime had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecordedImage {
    /// All of its names with a tag.
    pub(crate) tags: Vec<String>,
    /// The user of its processes, if it names one.
    pub(crate) user: Option<String>,
}

/// The images of a scenario by the names that its pods use.
pub(crate) fn recorded(scenario: &Scenario) -> BTreeMap<String, RecordedImage> {
    let mut found: BTreeMap<String, RecordedImage> = BTreeMap::new();
    for call in scenario.calls_of("ImageStatus") {
        let image = &call["response"]["image"];
        if image.is_object() {
            let tags = image["repo_tags"].as_array().into_iter().flatten();
            let tags: Vec<String> = tags.filter_map(Value::as_str).map(str::to_owned).collect();
            let known = found.entry(name_of(call)).or_default();
            known.user = user(image);
            known.tags.extend(tags);
        }
    }
    for call in scenario.calls_of("PullImage") {
        if call.pointer("/response/image_ref").is_some() {
            found.entry(name_of(call)).or_default();
        }
    }
    found.remove("");
    found
}

fn name_of(call: &Value) -> String {
    let name = call["request"]["image"]["image"].as_str();
    name.unwrap_or_default().to_owned()
}

/// The user of an image. A uid of 0 is the same as none.
fn user(image: &Value) -> Option<String> {
    let uid = &image["uid"]["value"];
    let uid = uid.as_str().map(str::to_owned).or(uid.as_i64().map(|uid| uid.to_string()));
    let user = image["username"].as_str().map(str::to_owned);
    uid.or(user).filter(|user| !user.is_empty())
}

/// The digests in a manifest's image names: the name before the digest, and the digest.
pub(crate) fn digests(manifest: &str) -> Vec<(String, String)> {
    let words = manifest.split(|of: char| of.is_whitespace() || "\"'".contains(of));
    let named = words.filter_map(|word| word.split_once('@'));
    let named = named.filter(|(_, digest)| digest.starts_with("sha256:"));
    named.map(|(name, digest)| (name.to_owned(), digest.to_owned())).collect()
}

/// The image names in a manifest that are on a host.
pub(crate) fn on_host<'a>(manifest: &'a str, host: &str) -> Vec<&'a str> {
    let words = manifest.split(|of: char| of.is_whitespace() || "\"'".contains(of));
    words.filter(|word| host_of(word) == host && word.contains('/')).collect()
}

/// The host of an image's registry.
pub(crate) fn host_of(name: &str) -> &str {
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        Some(_) | None => "docker.io",
    }
}

/// A name without tag and digest, and its tag.
pub(crate) fn repository_and_tag(name: &str) -> (&str, &str) {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        Some(_) | None => (name, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(host_of("registry.k8s.io/a/b:1"), "registry.k8s.io");
        assert_eq!(host_of("busybox"), "docker.io");
        assert_eq!(host_of("library/busybox:1"), "docker.io");
        assert_eq!(repository_and_tag("h:5000/a/b:1"), ("h:5000/a/b", "1"));
        assert_eq!(repository_and_tag("h:5000/a/b"), ("h:5000/a/b", "latest"));
        assert_eq!(repository_and_tag("h.x/a:1@sha256:0123"), ("h.x/a", "1"), "a name with both");
        let manifest = "  image: \"slow.test/a/b:2\"\n  image: h.x/c@sha256:01\n";
        assert_eq!(on_host(manifest, "slow.test"), ["slow.test/a/b:2"]);
        assert_eq!(digests(manifest), [("h.x/c".to_owned(), "sha256:01".to_owned())]);
    }

    #[test]
    fn user_of_image_is_its_uid_or_its_name() {
        assert_eq!(user(&json!({"uid": {}})), None);
        let uid = json!({"uid": {"value": "65532"}});
        assert_eq!(user(&uid).as_deref(), Some("65532"));
        assert_eq!(user(&json!({"username": "app"})).as_deref(), Some("app"));
    }
}
