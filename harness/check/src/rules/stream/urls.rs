//! Rules for the URLs that Exec, Attach and PortForward return: who can use them, and how often.

use std::net::IpAddr;

use harness::streaming::{self, Transport};
use tonic::codegen::http::Uri;

use super::BOTH_WAYS;
use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-STR-027": "Exec, Attach and PortForward return URLs with a port, a new unguessable token, and a host reachable by clients (a loopback host is no failure).",
        KUBELET, tags ["stream", "crictl", "addresses"], calls [Exec, Attach, PortForward],
        urls_are_of_use given [pod, container], faults [
            "Exec set url \"http://0.0.0.0:10010/exec/0123456789\"",
            "Exec set url \"http://[::]:10010/exec/0123456789\"",
            "Exec set url \"/exec/0123456789\"",
            "Exec set url \"http://:10010/exec/0123456789\"",
            "Exec set url \"ftp://127.0.0.1:10010/exec/0123456789\"",
            "Attach set url \"http://127.0.0.1:0/attach/0123456789\"",
            "Attach set url \"http://no-such-host.invalid:10010/attach/0123456789\"",
            "PortForward set url \"http://127.0.0.1:10010/portforward\"",
            "PortForward drop url",
            "Exec stale",
            "Attach stale",
            "PortForward stale",
        ];
    Should "CRI-STR-028": "An Attach or PortForward URL works only once, so that a leaked URL cannot be used again.",
        CONTAINERD, tags ["stream", "security"], calls [Attach, PortForward],
        other_urls_serve_once given [pod], faults ["Attach drop url", "PortForward drop url"];
};

/// The URLs of the three calls, by their names.
async fn urls(x: &Context, pod: &Pod, id: &str) -> Verdict<[(&'static str, String); 3]> {
    let mut runtime = x.client.runtime.clone();
    let exec = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: vec!["/bin/true".to_owned()],
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    let forward = v1::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: vec![80] };
    Ok([
        ("Exec", runtime.exec(exec).await?.into_inner().url),
        ("Attach", runtime.attach(attach_of(id)).await?.into_inner().url),
        ("PortForward", runtime.port_forward(forward).await?.into_inner().url),
    ])
}

fn attach_of(id: &str) -> v1::AttachRequest {
    v1::AttachRequest {
        container_id: id.to_owned(),
        stdin: true,
        stdout: true,
        ..Default::default()
    }
}

/// The minimum length of a token: containerd's have 8 characters of base64 (k8s.io/kubelet, cri/streaming).
const TOKEN: usize = 8;
/// The timeout for the lookup of a host name.
const LOOKUP: Duration = Duration::from_secs(5);

/// Whether the URL's address is a loopback address. Fails for a URL that no client can use.
async fn of_loopback(call: &str, url: &str) -> Verdict<bool> {
    let what = format!("the URL of {call}");
    let ensure = |holds, expected: &str| ensure(holds, &what, expected, url);
    let parsed: Uri = match url.parse() {
        Ok(parsed) => parsed,
        Err(error) => return failed(what, "a URL", format!("{url:?}: {error}")),
    };
    ensure(["http", "https"].contains(&parsed.scheme_str().unwrap_or_default()), "http or https")?;
    let host = parsed.host().unwrap_or_default().trim_matches(['[', ']']);
    ensure(!host.is_empty(), "a host")?;
    let port = parsed.port_u16().unwrap_or(80);
    ensure(port != 0, "a port other than 0")?;
    let path = parsed.path().to_lowercase().replace(&call.to_lowercase(), "");
    let token = path.trim_matches('/').len() + parsed.query().unwrap_or_default().len();
    ensure(token >= TOKEN, "a token")?;
    let lookup = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host, port))).await;
    let addresses: Vec<IpAddr> = match lookup {
        Ok(Ok(found)) => found.map(|one| one.ip()).collect(),
        Ok(Err(_)) | Err(_) => return failed(what, "a host with an address", url),
    };
    let specified = addresses.iter().all(|one| !one.is_unspecified() && !one.is_multicast());
    ensure(specified, "an address that clients can connect to")?;
    Ok(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback))
}

async fn urls_are_of_use(x: &Context, pod: Pod, id: String) -> Verdict {
    let (first, second) = (urls(x, &pod, &id).await?, urls(x, &pod, &id).await?);
    let mut here = Vec::new();
    for ((call, url), (_, other)) in first.iter().zip(&second) {
        if of_loopback(call, url).await? {
            here.push(*call);
        }
        let differ = url != other;
        ensure(differ, &format!("the URLs of two calls of {call}"), "to differ", url)?;
    }
    match here.is_empty() {
        true => Ok(()),
        false => diverges(format!(
            "the URLs of {} can be used only on this machine: {}",
            here.join(", "),
            first.map(|(_, url)| without_token(&url)).join(" ")
        )),
    }
}

/// The part of a URL that may be printed. The rest is a token, which lets anyone use the URL.
fn without_token(url: &str) -> String {
    url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/")
}

async fn other_urls_serve_once(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    let attach = x.client.runtime.clone().attach(attach_of(&id)).await?.into_inner().url;
    let first = streaming::command(&attach, BOTH_WAYS, Transport::Spdy).await;
    let _attached = first.or_else(|error| failed("Attach", "a stream", format!("{error:?}")))?;
    let again = streaming::command(&attach, BOTH_WAYS, Transport::Spdy).await;
    ensure(again.is_err(), "a used URL of Attach", "an error", "a stream")?;
    let request = v1::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: vec![80] };
    let forward = x.client.runtime.clone().port_forward(request).await?.into_inner().url;
    let first = streaming::port_forward(&forward, Transport::Spdy).await;
    let _ports = first.or_else(|error| failed("PortForward", "a stream", format!("{error:?}")))?;
    let again = streaming::port_forward(&forward, Transport::Spdy).await;
    ensure(again.is_err(), "a used URL of PortForward", "an error", "a stream")
}
