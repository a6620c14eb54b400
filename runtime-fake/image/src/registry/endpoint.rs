//! ◆ Decides from which hosts an image is pulled, in which order, and under which repository name.

use crate::Reference;

use super::settings::{EVERY_HOST, Host, Mirror, Registries};

/// How to connect to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// With TLS.
    Https,
    /// Without TLS, because the settings require it.
    Http,
    /// A loopback address without settings: without TLS, unless the host requires it. The traffic does not leave the machine.
    Either,
}

/// One host to pull from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The key of its settings and credentials: `docker.io`.
    pub(crate) name: String,
    /// Host and port to connect to: `registry-1.docker.io`.
    pub(crate) host: String,
    pub(crate) scheme: Scheme,
    /// The repository's path on this host.
    pub(crate) repository: String,
    /// On a mirror, the registry that the image's name begins with: one mirror may serve several.
    pub(crate) mirrored: Option<String>,
}

impl Endpoint {
    /// The server that provides the content: pulls share downloads only within an origin. A mirror has one for each registry that it
    /// serves, because it may pass on that registry's delays.
    pub(crate) fn origin(&self) -> String {
        match &self.mirrored {
            Some(registry) => format!("{}/{registry}", self.host),
            None => self.host.clone(),
        }
    }
}

/// The host of a repository, and the path after it.
pub(crate) fn split(repository: &str) -> (&str, &str) {
    repository.split_once('/').unwrap_or((repository, ""))
}

/// The endpoints for `reference`, in order.
pub(crate) fn endpoints(registries: &Registries, reference: &Reference) -> Vec<Endpoint> {
    let (name, path) = split(&reference.repository);
    let own = registries.hosts.get(name);
    let every = registries.hosts.get(EVERY_HOST);
    let mirrors = own
        .and_then(|host| host.mirrors.as_deref())
        .or_else(|| every.and_then(|host| host.mirrors.as_deref()))
        .unwrap_or_default();
    let rules = own
        .and_then(|host| host.rewrite.as_deref())
        .or_else(|| every.and_then(|host| host.rewrite.as_deref()))
        .unwrap_or_default();
    let rewritten = rules
        .iter()
        .filter(|rule| path.starts_with(&rule.from))
        .max_by_key(|rule| rule.from.len())
        .map_or_else(|| path.to_owned(), |rule| format!("{}{}", rule.to, &path[rule.from.len()..]));
    let mut all: Vec<Endpoint> =
        mirrors.iter().map(|mirror| on_mirror(mirror, &rewritten, name)).collect();
    let only = own
        .and_then(|host| host.mirrors_only)
        .or_else(|| every.and_then(|host| host.mirrors_only))
        .unwrap_or(false);
    if !only || all.is_empty() {
        all.push(Endpoint {
            name: name.to_owned(),
            host: address(name).to_owned(),
            scheme: scheme(registries, name),
            repository: path.to_owned(),
            mirrored: None,
        });
    }
    all
}

/// The endpoint that a call specifies. It must be a loopback address: the caller controls such an address anyway, and the traffic
/// does not leave the machine.
pub fn named_by_call(from: &Mirror, reference: &Reference) -> Option<Endpoint> {
    let (name, path) = split(&reference.repository);
    is_loopback(&from.host).then(|| on_mirror(from, path, name))
}

fn on_mirror(mirror: &Mirror, repository: &str, mirrored: &str) -> Endpoint {
    let repository = if mirror.prefix.is_empty() {
        repository.to_owned()
    } else {
        format!("{}/{repository}", mirror.prefix)
    };
    Endpoint {
        name: mirror.host.clone(),
        host: address(&mirror.host).to_owned(),
        scheme: if mirror.plain_http { Scheme::Http } else { Scheme::Https },
        repository,
        mirrored: Some(mirrored.to_owned()),
    }
}

/// The address of docker's registry differs from its name.
fn address(name: &str) -> &str {
    match name {
        "docker.io" | "index.docker.io" => "registry-1.docker.io",
        other => other,
    }
}

fn scheme(registries: &Registries, name: &str) -> Scheme {
    let settings = |name: &str| registries.hosts.get(name);
    let plain = |host: &Host| host.plain_http;
    let said = settings(name).and_then(plain).or_else(|| settings(EVERY_HOST).and_then(plain));
    let has_ca = settings(name).is_some_and(|host| host.ca.is_some());
    match said {
        Some(true) => Scheme::Http,
        Some(false) => Scheme::Https,
        None if is_loopback(name) && !has_ca => Scheme::Either,
        None => Scheme::Https,
    }
}

/// `localhost`, `127.0.0.0/8` and `::1`, with any port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;
    use crate::registry::settings::Rewrite;

    #[rstest]
    #[case("http://127.0.0.1:5000", true)]
    #[case("http://localhost:5000", true)]
    #[case("http://10.0.0.1:5000", false)]
    #[case("https://registry.example", false)]
    fn endpoint_of_call_must_be_loopback(#[case] from: &str, #[case] good: bool) {
        let reference = "quay.io/a/b:1".parse().unwrap();
        let place = named_by_call(&from.parse().unwrap(), &reference);
        assert_eq!(place.is_some(), good);
        if let Some(place) = place {
            assert_eq!(
                (place.repository.as_str(), place.mirrored.as_deref()),
                ("a/b", Some("quay.io"))
            );
        }
    }

    fn asked(registries: &Registries, reference: &str) -> Vec<String> {
        endpoints(registries, &reference.parse().unwrap())
            .iter()
            .map(|at| {
                let mirrored = at.mirrored.as_deref().unwrap_or("itself");
                format!("{:?} {} {} {mirrored}", at.scheme, at.host, at.repository)
            })
            .collect()
    }

    #[rstest]
    #[case::docker("busybox", "Https registry-1.docker.io library/busybox itself")]
    #[case::index("index.docker.io/a/b", "Https registry-1.docker.io a/b itself")]
    #[case::other("quay.io/a/b/c:1", "Https quay.io a/b/c itself")]
    #[case::localhost("localhost:5000/a", "Either localhost:5000 a itself")]
    #[case::loopback("127.8.9.1:5000/a", "Either 127.8.9.1:5000 a itself")]
    #[case::loopback_6("[::1]:5000/a", "Either [::1]:5000 a itself")]
    #[case::like_loopback("127.0.0.1.example.com/a", "Https 127.0.0.1.example.com a itself")]
    fn endpoints_without_settings(#[case] reference: &str, #[case] want: &str) {
        assert_eq!(asked(&Registries::default(), reference), [want]);
    }

    fn settings() -> Registries {
        let mut registries = Registries::default();
        let rule = |from: &str, to: &str| Rewrite { from: from.to_owned(), to: to.to_owned() };
        let docker = Host {
            mirrors: Some(vec!["https://a/hub".parse().unwrap(), "http://b:1".parse().unwrap()]),
            rewrite: Some(vec![rule("", "all/"), rule("library/", "official/")]),
            ..Host::default()
        };
        let only = Host {
            mirrors: Some(vec!["https://a".parse().unwrap()]),
            mirrors_only: Some(true),
            ..Host::default()
        };
        let none = Host { mirrors: Some(vec![]), plain_http: Some(true), ..Host::default() };
        let every =
            Host { mirrors: Some(vec!["https://every".parse().unwrap()]), ..Host::default() };
        let tls = Host { mirrors: Some(vec![]), ca: Some("/ca.pem".into()), ..Host::default() };
        registries.hosts.extend([
            ("docker.io".to_owned(), docker),
            ("only.io".to_owned(), only),
            ("none.io".to_owned(), none),
            ("localhost:5000".to_owned(), tls),
            (EVERY_HOST.to_owned(), every),
        ]);
        registries
    }

    #[rstest]
    #[case::in_order("busybox", &["Https a hub/official/busybox docker.io", "Http b:1 official/busybox docker.io",
        "Https registry-1.docker.io library/busybox itself"])]
    #[case::shorter_rule("me/app", &["Https a hub/all/me/app docker.io", "Http b:1 all/me/app docker.io",
        "Https registry-1.docker.io me/app itself"])]
    #[case::only("only.io/x", &["Https a x only.io"])]
    #[case::none("none.io/x", &["Http none.io x itself"])]
    #[case::every("quay.io/x", &["Https every x quay.io", "Https quay.io x itself"])]
    #[case::a_certificate_means_tls("localhost:5000/x", &["Https localhost:5000 x itself"])]
    fn endpoints_follow_settings(#[case] reference: &str, #[case] want: &[&str]) {
        assert_eq!(asked(&settings(), reference), want);
    }
}
