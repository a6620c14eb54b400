//! `crib inspect`: the verbose status of a container, a pod or an image.

use std::collections::HashMap;

use clap::{Args, ValueEnum};
use cri::v1;
use serde_json::{Map, Value, json};
use tonic::Code;

use crate::client::output::{Document, json as as_json, print_value};
use crate::client::{CallError, Connection, Cri, each, find, finish, human, with_codes};
use crate::exit::Exit;

/// What an id is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Container,
    Pod,
    Image,
}

/// Show details of containers, pods or images
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib inspect 3f1c
  crib inspect --kind image busybox | jq .info
  crib inspect -o yaml $(crib pods --latest -q)

Times are in RFC 3339."))]
pub(crate) struct InspectArgs {
    /// Ids, id prefixes or names
    #[arg(required = true)]
    ids: Vec<String>,
    /// Kind of object [default: a container, else a pod, else an image]
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Document,
    #[command(flatten)]
    connection: Connection,
}

/// Shows them.
pub(crate) fn run(args: &InspectArgs) -> Exit {
    finish(show(args))
}

async fn show(args: &InspectArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    each(&args.ids, async |id: &String| {
        print_value(&look_up(&cri, id, args.kind).await?, args.output)
    })
    .await
}

async fn look_up(cri: &Cri, id: &str, kind: Option<Kind>) -> Result<Value, CallError> {
    let is = |wanted| kind.is_none_or(|kind| kind == wanted);
    if is(Kind::Container)
        && let Some(found) = there(container(cri, id).await, kind)?
    {
        return Ok(found);
    }
    if is(Kind::Pod)
        && let Some(found) = there(pod(cri, id).await, kind)?
    {
        return Ok(found);
    }
    // By its name, which the runtime does not look for.
    if is(Kind::Container)
        && let Some(known) = known(find::container(cri, id).await)?
    {
        return container(cri, &known.id).await?.ok_or_else(|| gone(id));
    }
    if is(Kind::Pod)
        && let Some(known) = known(find::pod(cri, id).await)?
    {
        return pod(cri, &known.id).await?.ok_or_else(|| gone(id));
    }
    if is(Kind::Image)
        && let Some(found) = there(image(cri, id).await, kind)?
    {
        return Ok(found);
    }
    Err(CallError::NotFound {
        what: match kind {
            Some(Kind::Container) => "container",
            Some(Kind::Pod) => "pod",
            Some(Kind::Image) => "image",
            None => "container, pod or image",
        },
        name: id.to_owned(),
    })
}

/// Maps "not found" to `None`.
fn known<T>(found: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(CallError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn gone(name: &str) -> CallError {
    CallError::NotFound {
        what: "container or pod",
        name: name.to_owned(),
    }
}

/// Maps NOT_FOUND to `None`, and INVALID_ARGUMENT too while the kind is guessed.
fn there(
    answer: Result<Option<Value>, CallError>,
    kind: Option<Kind>,
) -> Result<Option<Value>, CallError> {
    match answer {
        Err(CallError::Refused { status, .. })
            if status.code() == Code::NotFound
                || (kind.is_none() && status.code() == Code::InvalidArgument) =>
        {
            Ok(None)
        }
        other => other,
    }
}

async fn container(cri: &Cri, id: &str) -> Result<Option<Value>, CallError> {
    let request = v1::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: true,
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("ContainerStatus", client.container_status(request));
    let answer = answer.await?.into_inner();
    let mut status = as_json("ContainerStatus", &answer.status.unwrap_or_default())?;
    times(&mut status);
    Ok(Some(json!({"status": status, "info": info(answer.info)})))
}

async fn pod(cri: &Cri, id: &str) -> Result<Option<Value>, CallError> {
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: id.to_owned(),
        verbose: true,
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("PodSandboxStatus", client.pod_sandbox_status(request));
    let answer = answer.await?.into_inner();
    let mut status = as_json("PodSandboxStatus", &answer.status.unwrap_or_default())?;
    times(&mut status);
    let mut containers = Vec::new();
    for container in &answer.containers_statuses {
        let mut status = as_json("ContainerStatus", container)?;
        times(&mut status);
        containers.push(status);
    }
    let info = info(answer.info);
    Ok(Some(
        json!({"status": status, "containers": containers, "info": info}),
    ))
}

async fn image(cri: &Cri, name: &str) -> Result<Option<Value>, CallError> {
    let images = cri.call("ListImages", cri.images.list_images()).await?;
    let found = super::rmi::find(cri, &images, name).await;
    let Ok(found) = found else {
        return match found {
            Err(CallError::NotFound { .. }) | Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
    };
    let request = v1::ImageStatusRequest {
        image: Some(v1::ImageSpec {
            image: found.id,
            ..Default::default()
        }),
        verbose: true,
    };
    let mut client = cri.images.images.clone();
    let answer = cri.call("ImageStatus", client.image_status(request));
    let answer = answer.await?.into_inner();
    let Some(image) = answer.image else {
        return Ok(None);
    };
    let status = as_json("Image", &image)?;
    Ok(Some(json!({"status": status, "info": info(answer.info)})))
}

/// What a runtime tells besides: a value that is JSON is shown as that.
fn info(info: HashMap<String, String>) -> Value {
    let read = |text: String| match serde_json::from_str::<Value>(&text) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
        Ok(_) | Err(_) => Value::String(text),
    };
    let pairs = info.into_iter().map(|(key, value)| (key, read(value)));
    Value::Object(pairs.collect::<Map<String, Value>>())
}

/// Replaces nanoseconds by the time that people write.
fn times(status: &mut Value) {
    for key in ["createdAt", "startedAt", "finishedAt"] {
        if let Some(value) = status.get_mut(key)
            && let Some(nanos) = value.as_str().and_then(|text| text.parse().ok())
        {
            *value = human::timestamp(nanos).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inspect_embeds_json_info() {
        let pairs = [("a", "{\"b\":[1]}"), ("c", "plain"), ("d", "7")];
        let owned = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let expected = json!({"a": {"b": [1]}, "c": "plain", "d": "7"});
        assert_eq!(info(HashMap::from(owned)), expected);
    }

    #[test]
    fn inspect_formats_timestamps_and_omits_zero() {
        let mut status = json!({"createdAt": "1500000000", "finishedAt": "0", "x": "5"});
        times(&mut status);
        let expected =
            json!({"createdAt": "1970-01-01T00:00:01.500000000Z", "finishedAt": "", "x": "5"});
        assert_eq!(status, expected);
    }
}
