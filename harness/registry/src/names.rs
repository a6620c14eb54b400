//! ◆ The repositories, their tags, and the repository that a request refers to.
//!
//! A repository is stored under its full name (`registry.k8s.io/pause`) if it has one, so that one server can stand in for several
//! registries with the same paths. A client that uses this server as a mirror names the original registry in the query
//! (`?ns=registry.k8s.io`, as containerd does), in the path, or not at all.

use std::collections::BTreeMap;

use super::route::{Digest, Reference};

/// A stored manifest, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The media type that it was pushed with.
    pub(super) media_type: String,
    /// Its length in bytes.
    pub(super) size: u64,
    /// The manifest that it refers to (OCI `subject`).
    pub(super) subject: Option<Digest>,
    /// Its artifact type in a listing of referrers.
    pub(super) artifact_type: Option<String>,
    /// Its annotations in a listing of referrers.
    pub(super) annotations: BTreeMap<String, String>,
}

/// One repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Repository {
    pub(super) tags: BTreeMap<String, Digest>,
    pub(super) manifests: BTreeMap<Digest, Manifest>,
}

impl Repository {
    fn find(&self, reference: &Reference) -> Option<(&Digest, &Manifest)> {
        let digest = match reference {
            Reference::Tag(tag) => self.tags.get(tag)?,
            Reference::Digest(digest) => digest,
        };
        self.manifests.get_key_value(digest)
    }
}

/// All repositories by name.
#[derive(Debug, Default)]
pub(super) struct Names(pub(super) BTreeMap<String, Repository>);

/// Why a manifest was not found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupError {
    /// No repository has the name.
    Repository,
    /// The repository has no such tag or digest.
    Manifest,
    /// Several registries have different manifests for it; these are their repositories.
    Several(Vec<String>),
}

impl Names {
    /// The repositories that a request can refer to, or only the best match if there is one.
    pub(super) fn candidates(&self, path: &str, registry: Option<&str>) -> Vec<&str> {
        let here = |name: &str| self.0.get_key_value(name).map(|(name, _)| name.as_str());
        if let Some(registry) = registry.map(canonical) {
            let full = here(&format!("{registry}/{path}")).or_else(|| here(path));
            return full.into_iter().collect();
        }
        if let Some(name) = here(path) {
            return vec![name];
        }
        let library = format!("library/{path}");
        let all = self.0.keys().map(String::as_str);
        let same: Vec<&str> =
            all.filter(|name| split(name).1 == path || split(name).1 == library).collect();
        same
    }

    /// The manifest that a request refers to, with its repository.
    pub(super) fn manifest(
        &self,
        path: &str,
        registry: Option<&str>,
        reference: &Reference,
    ) -> Result<(&str, &Digest, &Manifest), LookupError> {
        let candidates = self.candidates(path, registry);
        if candidates.is_empty() {
            return Err(LookupError::Repository);
        }
        let found: Vec<(&str, &Digest, &Manifest)> = candidates
            .into_iter()
            .filter_map(|name| {
                let (digest, manifest) = self.0.get(name)?.find(reference)?;
                Some((name, digest, manifest))
            })
            .collect();
        match found.as_slice() {
            [] => Err(LookupError::Manifest),
            [first, rest @ ..] if rest.iter().all(|other| other.1 == first.1) => Ok(*first),
            several => Err(LookupError::Several(
                several.iter().map(|(name, ..)| (*name).to_owned()).collect(),
            )),
        }
    }

    /// The name under which a push to `path` is stored.
    pub(super) fn for_push(path: &str, registry: Option<&str>) -> String {
        match registry {
            Some(registry) => format!("{}/{path}", canonical(registry)),
            None => path.to_owned(),
        }
    }

    /// Stores a manifest and its tag.
    pub(super) fn put(
        &mut self,
        name: &str,
        tag: Option<&str>,
        digest: &Digest,
        manifest: Manifest,
    ) {
        let repository = self.0.entry(name.to_owned()).or_default();
        repository.manifests.insert(digest.clone(), manifest);
        if let Some(tag) = tag {
            repository.tags.insert(tag.to_owned(), digest.clone());
        }
    }

    /// Removes a tag, or a manifest with all its tags. Returns whether it existed.
    pub(super) fn remove(&mut self, name: &str, reference: &Reference) -> bool {
        let Some(repository) = self.0.get_mut(name) else {
            return false;
        };
        let there = match reference {
            Reference::Tag(tag) => repository.tags.remove(tag).is_some(),
            Reference::Digest(digest) => {
                repository.tags.retain(|_, tagged| tagged != digest);
                repository.manifests.remove(digest).is_some()
            }
        };
        if repository.manifests.is_empty() {
            self.0.remove(name);
        }
        there
    }

    /// The manifests whose subject is `subject`.
    pub(super) fn referrers<'a>(
        &'a self,
        path: &str,
        registry: Option<&str>,
        subject: &'a Digest,
    ) -> impl Iterator<Item = (&'a Digest, &'a Manifest)> {
        let candidates = self.candidates(path, registry);
        let repositories = candidates.into_iter().filter_map(|name| self.0.get(name));
        let repositories: Vec<&Repository> = repositories.collect();
        repositories
            .into_iter()
            .flat_map(|repository| &repository.manifests)
            .filter(move |(_, manifest)| manifest.subject.as_ref() == Some(subject))
    }
}

/// Docker Hub has several host names but one canonical name.
fn canonical(registry: &str) -> &str {
    match registry {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    }
}

/// The host of a full name, and the rest.
fn split(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
            (Some(host), path)
        }
        Some(_) | None => (None, name),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn digest(letter: &str) -> Digest {
        format!("sha256:{}", letter.repeat(64)).parse().unwrap()
    }

    fn manifest() -> Manifest {
        Manifest {
            media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
            size: 2,
            subject: None,
            artifact_type: None,
            annotations: BTreeMap::new(),
        }
    }

    fn names() -> Names {
        let mut names = Names::default();
        for (name, tag, letter) in [
            ("docker.io/library/busybox", "1", "a"),
            ("registry.k8s.io/e2e/busybox", "1", "b"),
            ("gcr.io/e2e/busybox", "1", "c"),
            ("gcr.io/e2e/busybox", "2", "d"),
            ("gcr.io/e2e/same", "1", "e"),
            ("quay.io/e2e/same", "1", "e"),
            ("pushed/here", "1", "f"),
            ("e2e/plain", "1", "a"),
            ("quay.io/e2e/plain", "1", "b"),
        ] {
            names.put(name, Some(tag), &digest(letter), manifest());
        }
        names
    }

    #[rstest]
    #[case("library/busybox", Some("docker.io"), "1", Ok("a"))]
    #[case("library/busybox", Some("registry-1.docker.io"), "1", Ok("a"))]
    #[case("library/busybox", None, "1", Ok("a"))]
    #[case("busybox", None, "1", Ok("a"))]
    #[case("docker.io/library/busybox", None, "1", Ok("a"))]
    #[case("e2e/busybox", Some("registry.k8s.io"), "1", Ok("b"))]
    #[case("e2e/busybox", Some("gcr.io"), "1", Ok("c"))]
    #[case("e2e/busybox", None, "2", Ok("d"))]
    #[case("e2e/busybox", None, "1", Err(LookupError::Several(vec!["gcr.io/e2e/busybox".into(), "registry.k8s.io/e2e/busybox".into()])))]
    #[case("e2e/same", None, "1", Ok("e"))]
    #[case("e2e/busybox", None, "3", Err(LookupError::Manifest))]
    #[case("e2e/busybox", Some("quay.io"), "1", Err(LookupError::Repository))]
    #[case("pushed/here", Some("quay.io"), "1", Ok("f"))]
    #[case("pushed/here", None, "1", Ok("f"))]
    #[case("here", None, "1", Err(LookupError::Repository))]
    #[case("e2e/plain", None, "1", Ok("a"))]
    #[case("e2e/plain", Some("quay.io"), "1", Ok("b"))]
    fn lookup_resolves_names_hosts_and_digests(
        #[case] path: &str,
        #[case] registry: Option<&str>,
        #[case] tag: &str,
        #[case] expected: Result<&str, LookupError>,
    ) {
        let names = names();
        let found = names.manifest(path, registry, &Reference::Tag(tag.to_owned()));
        assert_eq!(found.map(|(_, found, _)| found.clone()), expected.map(digest));
    }

    #[test]
    fn removed_manifest_is_not_found() {
        let mut names = names();
        let tag = |tag: &str| Reference::Tag(tag.to_owned());
        assert!(names.remove("gcr.io/e2e/busybox", &tag("1")));
        assert!(!names.remove("gcr.io/e2e/busybox", &tag("1")));
        let by_digest = Reference::Digest(digest("c"));
        let gcr = Some("gcr.io");
        assert!(names.manifest("e2e/busybox", gcr, &by_digest).is_ok());
        assert!(names.remove("gcr.io/e2e/busybox", &by_digest));
        assert!(names.remove("gcr.io/e2e/busybox", &Reference::Digest(digest("d"))));
        assert_eq!(names.manifest("e2e/busybox", gcr, &tag("2")), Err(LookupError::Repository));
        assert!(!names.remove("nowhere", &tag("1")));
    }

    #[test]
    fn referrers_are_listed_by_subject() {
        let mut names = names();
        let about = Manifest { subject: Some(digest("f")), ..manifest() };
        names.put("pushed/here", None, &digest("0"), about);
        let of = |letter: &str| {
            let digest = digest(letter);
            let all = names.referrers("pushed/here", None, &digest);
            all.map(|(digest, _)| digest.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("f"), [digest("0")]);
        assert_eq!(of("0"), []);
    }
}
