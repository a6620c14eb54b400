//! Rules for credentials: which ones a pull sends, and to which host.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use registry::{Auth, Bearer, Fault, Options, Registry};

use crate::prelude::*;
use crate::rules::image::{refusal, status};
use crate::rules::pull::{is_absent, skip_on_connection_error};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-PUL-020": "PullImage requests a token for each repository, and uses only the credentials in its own request.",
        KUBELET, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus],
        each_repository_has_its_token, faults [
            "PullImage after 1 request drop auth",
            "PullImage after 1 answer UNKNOWN",
            "PullImage after 2 request set auth {\"username\": \"checker\", \"password\": \"secret\"}",
            "PullImage swallow",
        ];
    Must "CRI-PUL-021": "PullImage needs no credentials for a public repository, and fails without credentials for a private repository in the same registry.",
        KUBELET, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus],
        one_repository_asks_for_credentials, faults [
            "PullImage request drop auth",
            "PullImage answer UNKNOWN",
            "PullImage request set auth {\"username\": \"checker\", \"password\": \"secret\"}",
            "PullImage swallow",
        ];
    Must "CRI-PUL-022": "PullImage does not send credentials to the host of a redirect.",
        KUBELET, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus],
        credentials_stay_with_registry, faults ["PullImage swallow", "PullImage request drop auth"];
    Must "CRI-PUL-027": "PullImage does not send a registry's credentials to the host of a redirect, even if that host requests credentials (CVE-2020-15157).",
        CONTAINERD, tags ["kubelet", "registry", "security"], calls [PullImage],
        asking_host_gets_no_credentials, faults ["PullImage swallow", "PullImage request drop auth"];
    Should "CRI-PUL-025": "PullImage sends credentials with a server_address to that server only.",
        CONTAINERD, tags ["kubelet", "registry", "security"], calls [PullImage, ImageStatus],
        credentials_of_another_host_are_kept, faults [
            "PullImage request drop auth.server_address",
            "PullImage swallow",
            "PullImage request drop auth",
        ];
    Should "CRI-PUL-023": "PullImage accepts the user name and the password as one base64 string, as in a Docker config file.",
        API, tags ["kubelet", "registry"], calls [PullImage, ImageStatus],
        encoded_credentials_are_sent, faults ["PullImage request drop auth.auth", "PullImage swallow"];
    Should "CRI-PUL-024": "PullImage exchanges an identity token for a registry token.",
        API, tags ["kubelet", "registry"], calls [PullImage, ImageStatus],
        identity_token_is_exchanged, faults [
            "PullImage request drop auth.identity_token",
            "PullImage swallow",
        ];
    May "CRI-PUL-026": "PullImage sends the registry_token of its request to the registry unchanged.",
        API, tags ["registry"], calls [PullImage, ImageStatus],
        registry_token_is_sent, faults ["PullImage request drop auth.registry_token", "PullImage swallow"];
};

/// A registry for one rule.
struct TestRegistry<'a> {
    x: &'a Context,
    registry: Registry,
}

fn skipped(error: impl std::fmt::Display) -> Outcome {
    Outcome::Skipped(error.to_string())
}

impl<'a> TestRegistry<'a> {
    async fn start(x: &'a Context, options: Options) -> Verdict<Self> {
        // A runtime that cannot reach the registry of all rules cannot reach this one, either.
        x.images()?;
        let registry = options.start().await.map_err(skipped)?;
        Ok(Self { x, registry })
    }

    /// Adds an image and returns its name, which contains the run so that the image is removed at the run's end.
    fn add(&self, repository: &str) -> Verdict<String> {
        let repository =
            format!("{}/{}/{repository}", self.x.shared.run, self.x.rule.to_lowercase());
        let layer = Layer::new().file("content", 0o644, repository.clone());
        let image = ImageBuilder::new(&format!("{repository}:1")).layer(layer);
        self.registry.add(&image).map_err(skipped)?;
        Ok(format!("{}/{repository}:1", self.registry.host()))
    }

    async fn pull(&self, name: &str, auth: Option<v1::AuthConfig>) -> Result<String, Status> {
        let request = v1::PullImageRequest {
            image: Some(v1::ImageSpec { image: name.to_owned(), ..Default::default() }),
            auth,
            ..Default::default()
        };
        let answer = self.x.client.images.clone().pull_image(request).await?;
        Ok(answer.into_inner().image_ref)
    }

    /// Fails unless the image can be pulled with these credentials.
    async fn expect_pulled(&self, name: &str, auth: Option<v1::AuthConfig>) -> Verdict {
        self.pull(name, auth).await.map_err(refusal)?;
        status(self.x, name).await.map(drop)
    }

    /// Fails if the image can be pulled with these credentials.
    async fn expect_refused(
        &self,
        what: &str,
        name: &str,
        auth: Option<v1::AuthConfig>,
    ) -> Verdict {
        skip_on_connection_error(&refused(what, self.pull(name, auth).await)?)?;
        is_absent(self.x, name).await
    }
}

const USER: &str = "checker";
const PASSWORD: &str = "secret";

fn user() -> Option<v1::AuthConfig> {
    Some(v1::AuthConfig {
        username: USER.to_owned(),
        password: PASSWORD.to_owned(),
        ..Default::default()
    })
}

fn basic() -> Auth {
    Auth::Basic { user: USER.to_owned(), password: PASSWORD.to_owned() }
}

/// Bearer authentication with the password or one of `tokens`.
fn bearer(tokens: Bearer) -> Auth {
    Auth::Bearer(Bearer { user: Some((USER.to_owned(), PASSWORD.to_owned())), ..tokens })
}

async fn each_repository_has_its_token(x: &Context) -> Verdict {
    let own = TestRegistry::start(x, Registry::with().auth(bearer(Bearer::default()))).await?;
    let [first, second, third] = ["first", "second", "third"].map(|name| own.add(name));
    own.expect_pulled(&first?, user()).await?;
    own.expect_pulled(&second?, user()).await?;
    // The client has tokens for other repositories only.
    own.expect_refused("PullImage without credentials", &third?, None).await
}

async fn one_repository_asks_for_credentials(x: &Context) -> Verdict {
    let options = Registry::with().auth(basic()).only("/private");
    let own = TestRegistry::start(x, options).await?;
    let (open, private, other) = (own.add("public")?, own.add("private")?, own.add("private-too")?);
    own.expect_pulled(&open, None).await?;
    own.expect_refused("PullImage without credentials", &private, None).await?;
    own.expect_pulled(&private, user()).await?;
    own.expect_refused("PullImage without credentials, after one with credentials", &other, None)
        .await
}

async fn credentials_stay_with_registry(x: &Context) -> Verdict {
    let own = TestRegistry::start(x, Registry::with().auth(basic())).await?;
    // Another address, too: some clients regard another port of an address as the same host.
    let elsewhere = Registry::with().listen(([127, 0, 0, 2], 0).into());
    let elsewhere = TestRegistry::start(x, elsewhere).await?;
    let name = own.add("moved")?;
    elsewhere.add("moved")?;
    own.registry.fail(Fault::redirect(elsewhere.registry.url()).method("GET").on("/blobs/"));
    own.expect_pulled(&name, user()).await?;
    let seen = elsewhere.registry.requests();
    ensure(!seen.is_empty(), "the requests to the other host", "at least one", &seen)?;
    let with_credentials = seen.iter().filter(|request| request.authorized).count();
    equal("the number of requests with an Authorization header", &with_credentials, &0)
}

/// Pulls an image whose blobs are redirected to another host, which requires its own credentials: CVE-2020-15157. Returns the
/// number of requests to that host with credentials.
async fn sent_to_asking_host(x: &Context, repository: &str, named: bool) -> Verdict<usize> {
    let own = TestRegistry::start(x, Registry::with().auth(basic())).await?;
    let others = Auth::Basic { user: "other".to_owned(), password: "another".to_owned() };
    let elsewhere = Registry::with().auth(others).listen(([127, 0, 0, 2], 0).into());
    let elsewhere = TestRegistry::start(x, elsewhere).await?;
    let name = own.add(repository)?;
    own.registry.fail(Fault::redirect(elsewhere.registry.url()).method("GET").on("/blobs/"));
    let mut auth = user();
    if let Some(auth) = auth.as_mut().filter(|_| named) {
        own.registry.url().clone_into(&mut auth.server_address);
    }
    // It may fail: only the other host has the blobs.
    if let Err(status) = own.pull(&name, auth).await {
        skip_on_connection_error(&status)?;
    }
    let seen = elsewhere.registry.requests();
    let got_requests = !seen.is_empty();
    ensure(got_requests, "the requests to the other host", "at least one", &seen)?;
    Ok(seen.iter().filter(|request| request.authorized).count())
}

async fn asking_host_gets_no_credentials(x: &Context) -> Verdict {
    let what = "the number of requests to the other host with an Authorization header";
    equal(what, &sent_to_asking_host(x, "named", true).await?, &0)?;
    match sent_to_asking_host(x, "unnamed", false).await? {
        0 => Ok(()),
        // containerd uses credentials without server_address for every host.
        _ => diverges("credentials without server_address are sent to the host of a redirect"),
    }
}

async fn encoded_credentials_are_sent(x: &Context) -> Verdict {
    let own = TestRegistry::start(x, Registry::with().auth(basic())).await?;
    let name = own.add("encoded")?;
    let auth = v1::AuthConfig {
        auth: BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}")),
        ..Default::default()
    };
    own.expect_pulled(&name, Some(auth)).await
}

async fn credentials_of_another_host_are_kept(x: &Context) -> Verdict {
    let own = TestRegistry::start(x, Registry::with().auth(basic())).await?;
    let name = own.add("other-host")?;
    let auth =
        |host: &str| user().map(|auth| v1::AuthConfig { server_address: host.to_owned(), ..auth });
    let elsewhere = auth("https://registry.example");
    own.expect_refused("PullImage with credentials of another host", &name, elsewhere).await?;
    let seen = own.registry.requests();
    let with_credentials = seen.iter().filter(|request| request.authorized).count();
    equal("the number of requests with an Authorization header", &with_credentials, &0)?;
    own.expect_pulled(&name, auth(own.registry.url())).await
}

async fn identity_token_is_exchanged(x: &Context) -> Verdict {
    let tokens = Bearer { identity_token: Some("identity".to_owned()), ..Bearer::default() };
    let own = TestRegistry::start(x, Registry::with().auth(bearer(tokens))).await?;
    let name = own.add("identity")?;
    let auth = v1::AuthConfig { identity_token: "identity".to_owned(), ..Default::default() };
    own.expect_pulled(&name, Some(auth)).await
}

async fn registry_token_is_sent(x: &Context) -> Verdict {
    let tokens = Bearer { registry_token: Some("registry".to_owned()), ..Bearer::default() };
    let own = TestRegistry::start(x, Registry::with().auth(bearer(tokens))).await?;
    let name = own.add("registry-token")?;
    let auth = v1::AuthConfig { registry_token: "registry".to_owned(), ..Default::default() };
    own.expect_pulled(&name, Some(auth)).await
}
