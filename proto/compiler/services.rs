//! Generates the clients and servers of services: a method for each call, which calls `proto/client.rs` and `proto/server.rs`.

use std::collections::BTreeSet;

use prost_build::{Method, Service, ServiceGenerator};

const CLIENT: &str = r"
/// The client.
pub mod {{module}}_client {
    #![allow(missing_docs, unused_imports)]
    use crate::client::{GrpcClient, Interceptor, RequestMessages, several, single};
    use crate::codec::ResponseFuture;
    use tonic::codec::Streaming;
    use tonic::transport::Channel;
    use tonic::{IntoRequest, IntoStreamingRequest, Request};

    {{comments}}
    #[derive(Clone, Debug)]
    pub struct {{service}}Client(GrpcClient);

    impl {{service}}Client {
        #[must_use]
        pub fn new(channel: Channel) -> Self {
            Self(GrpcClient::new(channel))
        }
        #[must_use]
        pub fn with_interceptor(channel: Channel, interceptor: Interceptor) -> Self {
            Self(GrpcClient::with_interceptor(channel, interceptor))
        }
        #[must_use]
        pub fn max_decoding_message_size(self, limit: usize) -> Self {
            Self(self.0.max_decoding_message_size(limit))
        }
        #[must_use]
        pub fn max_encoding_message_size(self, limit: usize) -> Self {
            Self(self.0.max_encoding_message_size(limit))
        }
        {{methods}}
    }
}
";

/// What has a type parameter only hands the request to a function that has none, which is compiled in `cri`.
const CLIENT_METHOD: &str = r"
{{comments}}
pub fn {{method}}(
    &mut self,
    request: impl IntoRequest<{{request}}>,
) -> ResponseFuture<'_, {{responses}}> {
    fn call(
        client: &mut GrpcClient,
        request: Request<{{request}}>,
    ) -> ResponseFuture<'_, {{responses}}> {
        client.{{kind}}(single(request), {{path}})
    }
    call(&mut self.0, request.into_request())
}
";

const CLIENT_STREAMING_METHOD: &str = r"
{{comments}}
pub fn {{method}}(
    &mut self,
    request: impl IntoStreamingRequest<Message = {{request}}>,
) -> ResponseFuture<'_, {{responses}}> {
    fn call(
        client: &mut GrpcClient,
        request: Request<RequestMessages>,
    ) -> ResponseFuture<'_, {{responses}}> {
        client.{{kind}}(request, {{path}})
    }
    call(&mut self.0, several(request))
}
";

const SERVER: &str = r"
/// The server.
pub mod {{module}}_server {
    #![allow(missing_docs, unused_imports)]
    use crate::codec::{Incoming as _, RequestMessage as _, ResponseMessage as _};
    use crate::server::{HttpFuture, MessageLimits, Method, dispatch, streamed, streaming};
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use tonic::body::Body;
    use tonic::codec::Streaming;
    use tonic::codegen::{Bytes, StdError, http, tokio_stream::Stream};
    use tonic::{Request, Response, Status};

    #[tonic::async_trait]
    pub trait {{service}}: Send + Sync + 'static {
        {{trait}}
    }

    {{comments}}
    #[derive(Debug)]
    pub struct {{service}}Server<T> {
        service: Arc<T>,
        limits: MessageLimits,
    }

    impl<T> Clone for {{service}}Server<T> {
        fn clone(&self) -> Self {
            Self { service: Arc::clone(&self.service), limits: self.limits }
        }
    }

    impl<T> {{service}}Server<T> {
        pub fn new(service: T) -> Self {
            Self::from_arc(Arc::new(service))
        }
        pub fn from_arc(service: Arc<T>) -> Self {
            Self { service, limits: MessageLimits::default() }
        }
        #[must_use]
        pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
            self.limits.decoding = Some(limit);
            self
        }
        #[must_use]
        pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
            self.limits.encoding = Some(limit);
            self
        }
    }

    impl<T: {{service}}> {{service}}Server<T> {
        const METHODS: &'static [Method<T>] = &[{{methods}}];
    }

    impl<T, B> tonic::codegen::Service<http::Request<B>> for {{service}}Server<T>
    where
        T: {{service}},
        B: tonic::codegen::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError>,
    {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = HttpFuture;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<B>) -> HttpFuture {
            dispatch(Self::METHODS, &self.service, self.limits, request.map(Body::new))
        }
    }

    impl<T> tonic::server::NamedService for {{service}}Server<T> {
        const NAME: &'static str = {{name}};
    }
}
";

const TRAIT_METHOD: &str = r"
{{comments}}
async fn {{method}}(
    &self,
    request: Request<{{requests}}>,
) -> Result<Response<{{answer}}>, Status>;
";

const TRAIT_STREAM: &str = r"
type {{call}}Stream: Stream<Item = Result<{{response}}, Status>> + Send + 'static;
";

const SERVER_METHOD: &str = r"
Method::unary({{path}}, {{request}}::decode_any, |service, request| {
    Ok({{sent}}(service.{{method}}({{request}}::received(request)?)))
}),
";

const SERVER_STREAMING_METHOD: &str = r"
Method::streaming({{path}}, |service, limits, request| {
    streaming(service, limits, request, |service: &T, requests| {
        {{sent}}(service.{{method}}(requests))
    })
}),
";

/// The generator, with the messages of a package's calls.
#[derive(Default)]
pub(crate) struct Services {
    requests: BTreeSet<String>,
    responses: BTreeSet<String>,
}

impl ServiceGenerator for Services {
    fn generate(&mut self, service: Service, code: &mut String) {
        for method in &service.methods {
            self.requests.insert(method.input_type.clone());
            self.responses.insert(method.output_type.clone());
        }
        let each = |generated: fn(&Service, &Method) -> String| -> String {
            service.methods.iter().map(|method| generated(&service, method)).collect()
        };
        let mut comments = String::new();
        service.comments.append_with_indent(0, &mut comments);
        let (client, server) = (each(client_method), each(server_method));
        for (template, methods) in [(CLIENT, client), (SERVER, server)] {
            let generated = filled(
                template,
                &[
                    ("comments", &comments),
                    ("methods", &methods),
                    ("trait", &each(trait_method)),
                    ("module", &module(&service.name)),
                    ("name", &format!("{:?}", full_name(&service))),
                    ("service", &service.name),
                ],
            );
            code.push_str(&generated);
        }
    }

    fn finalize_package(&mut self, _: &str, code: &mut String) {
        let list = |messages: &BTreeSet<String>| -> String {
            messages.iter().map(|message| format!("{message},")).collect()
        };
        let all = list(&self.requests.union(&self.responses).cloned().collect());
        let (requests, responses) = (list(&self.requests), list(&self.responses));
        code.push_str(&format!(
            "crate::codec::messages! {{ messages {{ {all} }} requests {{ {requests} }} responses {{ {responses} }} }}\n"
        ));
    }
}

fn client_method(service: &Service, method: &Method) -> String {
    match method.client_streaming {
        true => of_method(CLIENT_STREAMING_METHOD, service, method),
        false => of_method(CLIENT_METHOD, service, method),
    }
}

fn trait_method(service: &Service, method: &Method) -> String {
    let stream = match method.server_streaming {
        true => of_method(TRAIT_STREAM, service, method),
        false => String::new(),
    };
    stream + &of_method(TRAIT_METHOD, service, method)
}

fn server_method(service: &Service, method: &Method) -> String {
    match method.client_streaming {
        true => of_method(SERVER_STREAMING_METHOD, service, method),
        false => of_method(SERVER_METHOD, service, method),
    }
}

/// Fills a template with what a method has.
fn of_method(template: &str, service: &Service, method: &Method) -> String {
    let mut comments = String::new();
    method.comments.append_with_indent(0, &mut comments);
    let response = format!("super::{}", method.output_type);
    let request = format!("super::{}", method.input_type);
    let (kind, responses, answer, sent) = match method.server_streaming {
        true => (
            "streaming",
            format!("Streaming<{response}>"),
            format!("Self::{}Stream", method.proto_name),
            "streamed".to_owned(),
        ),
        false => ("unary", response.clone(), response.clone(), format!("{response}::sent")),
    };
    let requests = match method.client_streaming {
        true => format!("Streaming<{request}>"),
        false => request.clone(),
    };
    let path = format!("\"/{}/{}\"", full_name(service), method.proto_name);
    filled(
        template,
        &[
            ("comments", &comments),
            ("requests", &requests),
            ("request", &request),
            ("responses", &responses),
            ("response", &response),
            ("method", &method.name),
            ("answer", &answer),
            ("call", &method.proto_name),
            ("kind", kind),
            ("sent", &sent),
            ("path", &path),
        ],
    )
}

fn full_name(service: &Service) -> String {
    format!("{}.{}", service.package, service.proto_name)
}

/// The name of a module: `ImageService` is `image_service`.
fn module(service: &str) -> String {
    let mut name = String::new();
    for letter in service.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

/// Replaces the `{{words}}` of a template.
fn filled(template: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(template.to_owned(), |text, (word, value)| {
        text.replace(&format!("{{{{{word}}}}}"), value)
    })
}
