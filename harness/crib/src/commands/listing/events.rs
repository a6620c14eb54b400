//! `crib events`: streams container and pod events.

use crate::client::output::{Document, json, print_value};
use crate::commands::prelude::*;
use crate::template::Template;

/// The output format of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum EventForm {
    /// One line per event.
    #[default]
    Table,
    /// One JSON object per line.
    Json,
    /// One YAML document per event.
    Yaml,
    /// Render with the Go template of --template
    GoTemplate,
}

/// Stream container and pod events until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib events
  crib events -o json | jq -r .containerEventType
  crib events -o go-template --template '{{.containerEventType}} {{.containerId}}'

With -o table, each line shows the time, the event type, the id of the container or sandbox, the pod, and the container's \
name. A line about a container that has exited also shows the reason and the exit code. Sandboxes have the same event types \
as containers: created, started, stopped and deleted."))]
pub(crate) struct EventsArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: EventForm,
    /// Go template for -o go-template
    #[arg(long, value_name = "TEMPLATE", required_if_eq("output", "go-template"))]
    template: Option<Template>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Prints events.
pub(crate) async fn run(args: &EventsArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    // No timeout, because some runtimes respond only with the first event.
    let refused = |status| CallError::refused("GetContainerEvents", status);
    let mut events = cri.runtime.events().await.map_err(refused)?;
    while let Some(event) = events.message().await.map_err(refused)? {
        let document = || json("ContainerEventResponse", &event);
        match (args.output, &args.template) {
            (EventForm::Table, _) => print(&line(&event))?,
            (EventForm::Yaml, _) => {
                print("---")?;
                print_value(&document()?, Document::Yaml)?;
            }
            (EventForm::GoTemplate, Some(template)) => print(&template.fill(&document()?)?)?,
            (EventForm::Json | EventForm::GoTemplate, _) => print_json(&document()?.to_string())?,
        }
    }
    Err(CallError::Lost)
}

fn line(event: &v1::ContainerEventResponse) -> String {
    let pod = event.pod_sandbox_status.clone().unwrap_or_default();
    let of = pod.metadata.unwrap_or_default();
    let container = event.containers_statuses.iter().find(|status| status.id == event.container_id);
    let what = match event.container_event_type() {
        v1::ContainerEventType::ContainerCreatedEvent => "created",
        v1::ContainerEventType::ContainerStartedEvent => "started",
        v1::ContainerEventType::ContainerStoppedEvent => "stopped",
        v1::ContainerEventType::ContainerDeletedEvent => "deleted",
    };
    let name = container.and_then(|status| status.metadata.as_ref());
    let name = name.map_or_else(String::new, |name| format!(" {}", name.name));
    let exit = container
        .filter(|status| status.state() == v1::ContainerState::ContainerExited)
        .map(|status| format!(" {} {}", status.reason, status.exit_code));
    let text = format!(
        "{} {what:7} {} {}/{}{name}{}",
        human::timestamp(event.created_at),
        human::id(&event.container_id, false),
        of.namespace,
        of.name,
        exit.unwrap_or_default()
    );
    escape_control(text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_line_names_event_container_and_pod() {
        let status = v1::ContainerStatus {
            id: "c".to_owned(),
            state: v1::ContainerState::ContainerExited.into(),
            reason: "Error".to_owned(),
            exit_code: 7,
            metadata: Some(v1::ContainerMetadata { name: "main\x1b".to_owned(), attempt: 0 }),
            ..Default::default()
        };
        let event = v1::ContainerEventResponse {
            container_id: "c".to_owned(),
            container_event_type: v1::ContainerEventType::ContainerStoppedEvent.into(),
            created_at: 1_000_000_000,
            pod_sandbox_status: Some(v1::PodSandboxStatus {
                metadata: Some(v1::PodSandboxMetadata {
                    name: "web".to_owned(),
                    namespace: "test".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            containers_statuses: vec![status],
        };
        let expected = r"1970-01-01T00:00:01.000000000Z stopped c test/web main\u{1b} Error 7";
        assert_eq!(line(&event), expected);
    }
}
