//! `crib pull`: has a runtime pull images.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use cri::v1;
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::output::print;
use crate::client::{CallError, Connection, Cri, each, finish, until_signal, with_codes};
use crate::exit::Exit;

/// Pull images from their registries
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib pull registry.k8s.io/pause:3.10 busybox
  crib pull --creds me:secret localhost:5000/team/app:1

Prints the id of each image. Ctrl-C cancels the pull."))]
pub(crate) struct PullArgs {
    /// Image references
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
    /// Credentials for the registry
    #[arg(long, value_name = "USER:PASSWORD", conflicts_with = "auth")]
    creds: Option<String>,
    /// Credentials in base64, as in docker's configuration file
    #[arg(long, value_name = "BASE64")]
    auth: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Pulls them.
pub(crate) fn run(args: &PullArgs) -> Exit {
    // The call is dropped at a signal, which ends the pull.
    finish(until_signal(pull_all(args)))
}

async fn pull_all(args: &PullArgs) -> Result<Exit, CallError> {
    let auth = auth(args)?;
    let cri = args.connection.open()?;
    each(&args.images, async |image: &String| {
        let id = pull(&cri, image, auth.clone()).await?;
        print(&id)
    })
    .await
}

/// Pulls one, showing that on a terminal, and returns its id.
pub(crate) async fn pull(
    cri: &Cri,
    image: &str,
    auth: Option<v1::AuthConfig>,
) -> Result<String, CallError> {
    let spinner = ProgressBar::new_spinner().with_message(format!("pulling {image}"));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    let request = v1::PullImageRequest {
        image: Some(v1::ImageSpec {
            image: image.to_owned(),
            user_specified_image: image.to_owned(),
            ..Default::default()
        }),
        auth,
        sandbox_config: None,
    };
    let mut client = cri.images.images.clone();
    let answer = cri
        .call_with_user_timeout("PullImage", client.pull_image(request))
        .await;
    spinner.finish_and_clear();
    Ok(answer?.into_inner().image_ref)
}

fn auth(args: &PullArgs) -> Result<Option<v1::AuthConfig>, CallError> {
    let text = match (&args.creds, &args.auth) {
        (Some(creds), _) => creds.clone(),
        (None, Some(auth)) => {
            let bytes = BASE64_STANDARD.decode(auth).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            text.ok_or_else(|| {
                CallError::Usage("--auth is not base64 of USER:PASSWORD".to_owned())
            })?
        }
        (None, None) => return Ok(None),
    };
    let (username, password) = text
        .trim_end_matches(['\n', '\0'])
        .split_once(':')
        .filter(|(user, _)| !user.is_empty())
        .ok_or_else(|| CallError::Usage("expected credentials as USER:PASSWORD".to_owned()))?;
    Ok(Some(v1::AuthConfig {
        username: username.to_owned(),
        password: password.to_owned(),
        ..Default::default()
    }))
}
