//! ◆ The normal form of calls and statuses: symbols replace everything that differs between any two runs.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex_lite::Regex;
use serde_json::{Map, Value, json};

use crate::scenarios::scenario::method;

/// The symbols of one run, by the texts that they replace.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Longer texts first.
    texts: Vec<(String, String)>,
    /// The pods' symbols `name#generation`, by uid.
    pods: BTreeMap<String, String>,
    /// The hashes of the definition of each container.
    hashes: BTreeMap<String, Vec<String>>,
}

/// Keys whose values depend on the machine, on the clock, or on chance.
const DROPPED: [&str; 5] = [
    // Lists of paths that depend on the kernel, and page sizes, which depend on the processor.
    "masked_paths",
    "readonly_paths",
    "hugepage_limits",
    // The time at which the API server recorded something.
    "lastProbeTime",
    "kubernetes.io/config.seen",
];
/// A runtime's message about an exited container, which differs between runtimes.
const RUNTIME_MESSAGE: &str = "RUNTIME_MESSAGE";
/// Keys whose values are times: only their presence is compared.
const TIMES: [&str; 4] = ["lastTransitionTime", "startTime", "startedAt", "finishedAt"];

impl Symbols {
    /// The symbols of a run, from its calls and its last statuses. `directories` maps directories to the placeholders of the
    /// recordings.
    pub(crate) fn new(calls: &[Value], statuses: &[Value], directories: &[(&str, &str)]) -> Self {
        let mut symbols = Self::default();
        for (path, placeholder) in directories {
            symbols.add(path, placeholder);
        }
        for call in calls {
            symbols.learn(call);
        }
        for status in statuses {
            let metadata = &status["metadata"];
            symbols.pod(metadata);
            for address in
                status.pointer("/status/podIPs").and_then(Value::as_array).into_iter().flatten()
            {
                symbols.add(text(&address["ip"]), "POD_IP");
            }
        }
        symbols.texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        symbols
    }

    fn add(&mut self, text: &str, symbol: &str) {
        // The node's own address is also that of pods in its network.
        if !text.is_empty()
            && text != "127.0.0.1"
            && self.texts.iter().all(|(known, _)| known != text)
        {
            self.texts.push((text.to_owned(), symbol.to_owned()));
        }
    }

    /// The symbol of the pod with this metadata.
    fn pod(&mut self, metadata: &Value) -> String {
        let (uid, name) = (text(&metadata["uid"]), text(&metadata["name"]));
        if let Some(known) = self.pods.get(uid) {
            return known.clone();
        }
        let earlier =
            self.pods.values().filter(|pod| pod.rsplit_once('#').is_some_and(|(of, _)| of == name));
        let pod = format!("{name}#{}", earlier.count());
        self.pods.insert(uid.to_owned(), pod.clone());
        self.add(uid, &format!("UID({pod})"));
        pod
    }

    fn learn(&mut self, call: &Value) {
        let (request, response) = (&call["request"], &call["response"]);
        match method(call) {
            "RunPodSandbox" => {
                let metadata = &request["config"]["metadata"];
                let pod = self.pod(metadata);
                let symbol = format!("SANDBOX({pod}/{})", attempt(metadata));
                self.add(text(&response["pod_sandbox_id"]), &symbol);
            }
            "CreateContainer" => {
                let pod = self.pod(&request["sandbox_config"]["metadata"]);
                let metadata = &request["config"]["metadata"];
                let symbol =
                    format!("CONTAINER({pod}/{}/{})", text(&metadata["name"]), attempt(metadata));
                self.add(text(&response["container_id"]), &symbol);
                let mounts = request["config"]["mounts"].as_array().into_iter().flatten();
                let of_volumes = mounts.map(|mount| &mount["image"]);
                for image in of_volumes.chain([&request["config"]["image"]]) {
                    let symbol = format!("IMAGE({})", text(&image["user_specified_image"]));
                    if image["image"] != image["user_specified_image"] {
                        self.add(text(&image["image"]), &symbol);
                    }
                }
            }
            "PodSandboxStatus" => {
                let network = &response["status"]["network"];
                self.add(text(&network["ip"]), "POD_IP");
            }
            "ContainerStatus" => self.add(text(&response["status"]["message"]), RUNTIME_MESSAGE),
            _ => {}
        }
        if call.get("code").is_some_and(|code| code != "OK") {
            self.add(text(&call["message"]), "RUNTIME_ERROR");
        }
    }

    /// The symbol of the sandbox or container with this id.
    pub(crate) fn of(&self, id: &str) -> Option<&str> {
        let mut known = self.texts.iter();
        known.find(|(text, _)| text == id).map(|(_, symbol)| symbol.as_str())
    }

    /// The symbol of the pod with this uid.
    pub(crate) fn pod_of(&self, uid: &str) -> Option<&str> {
        self.pods.get(uid).map(String::as_str)
    }

    /// A text in its normal form.
    pub(crate) fn text(&self, original: &str) -> String {
        let mut text = original.to_owned();
        for (from, to) in &self.texts {
            if text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to);
            }
        }
        for (pattern, symbol) in patterns() {
            text = pattern.replace_all(&text, *symbol).into_owned();
        }
        text
    }

    /// A configuration or a status in its normal form.
    pub(crate) fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(original) => json!(self.text(original)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => Value::Object(self.object(fields)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn object(&mut self, fields: &Map<String, Value>) -> Map<String, Value> {
        let mut normal = Map::new();
        for (key, value) in fields {
            if DROPPED.contains(&key.as_str()) || value.is_null() {
                continue;
            }
            let value = match key.as_str() {
                time if TIMES.contains(&time) => json!("TIME"),
                "envs" => self.environment(value),
                "mounts" => by_key(self.value(value), "container_path"),
                "devices" => by_key(self.value(value), "container_path"),
                "conditions" => by_key(self.value(value), "type"),
                // The kubelet stores the first in a map, and gets the second from the runtime.
                "options" | "supplementalGroups" => sorted(self.value(value)),
                // The runtime decides how many address families a pod has.
                "podIPs" => first(self.value(value)),
                "oom_score_adj" => json!(oom_class(text(value))),
                // The digest of an image built for the test. The runtime decides which of an image's names is in a status.
                "image" if fields.get("imageID").is_some_and(|id| !text(id).is_empty()) => {
                    json!("IMAGE")
                }
                "imageID" if text(value).is_empty() => json!(""),
                "imageID" => json!("IMAGE"),
                _ => self.value(value),
            };
            if value == json!([]) || value == json!(RUNTIME_MESSAGE) {
                continue;
            }
            normal.insert(self.text(key), value);
        }
        normal
    }

    /// The kubelet stores the variables in a map, so they have no order. Their values are bytes.
    fn environment(&mut self, list: &Value) -> Value {
        let mut variables = BTreeMap::new();
        for item in list.as_array().into_iter().flatten() {
            let key = text(&item["key"]);
            // These variables come from the API server's Services, which are missing in replays.
            if is_of_service(key) {
                continue;
            }
            let bytes = BASE64.decode(text(&item["value"])).unwrap_or_default();
            let value = self.text(&String::from_utf8_lossy(&bytes));
            variables.insert(key.to_owned(), json!(value));
        }
        if variables.is_empty() { json!([]) } else { json!(variables) }
    }

    /// The hash of a container's definition is opaque: only its changes are compared.
    pub(crate) fn hash(&mut self, container: &str, hash: &str) -> String {
        let hashes = self.hashes.entry(container.to_owned()).or_default();
        let known = hashes.iter().position(|known| known == hash);
        let index = known.unwrap_or_else(|| {
            hashes.push(hash.to_owned());
            hashes.len() - 1
        });
        format!("HASH{index}")
    }
}

/// A status in its normal form: as in the API's JSON, empty fields are absent.
pub(crate) fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().map(|(key, value)| (key, without_empty(value)));
            Value::Object(kept.filter(|(_, value)| *value != json!({})).collect())
        }
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn attempt(metadata: &Value) -> u64 {
    metadata["attempt"].as_u64().unwrap_or_default()
}

fn patterns() -> &'static [(Regex, &'static str)] {
    static PATTERNS: OnceLock<Vec<(Regex, &'static str)>> = OnceLock::new();
    PATTERNS.get_or_init(|| {
        let made = [
            // A termination message file has a random name.
            (r"(/containers/[^/]+)/[0-9a-f]{8}\b", "$1/RANDOM"),
            // The runtime decides how many address families a pod has.
            (r"POD_IP(,POD_IP)+", "POD_IP"),
            (r"\.\.[0-9]{4}_[0-9_.]+", "..DATE"),
            // A container's id with the name of its runtime.
            (r"[a-z][a-z0-9.-]*://(CONTAINER\()", "RUNTIME://$1"),
            // The runtime decides about the code of an error.
            (r"rpc error: code = \w+ desc = RUNTIME_ERROR", "RUNTIME_ERROR"),
        ];
        made.map(|(pattern, symbol)| (Regex::new(pattern).unwrap(), symbol)).into()
    })
}

/// A list whose order has no meaning.
fn by_key(list: Value, key: &str) -> Value {
    let Value::Array(mut items) = list else {
        return list;
    };
    items.sort_by_key(|item| text(&item[key]).to_owned());
    items.into()
}

/// Whether a variable comes from an object of kind Service.
pub(crate) fn is_of_service(key: &str) -> bool {
    static PATTERN: OnceLock<Regex> = OnceLock::new();
    let of_port = r"PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?";
    let pattern = format!(r"^[A-Z][A-Z0-9_]*_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|{of_port})$");
    PATTERN.get_or_init(|| Regex::new(&pattern).unwrap()).is_match(key)
}

fn sorted(list: Value) -> Value {
    let Value::Array(mut items) = list else {
        return list;
    };
    items.sort_by_key(|item| (item.as_i64(), text(item).to_owned()));
    items.into()
}

fn first(list: Value) -> Value {
    let Value::Array(mut items) = list else {
        return list;
    };
    items.truncate(1);
    items.into()
}

/// The score of a Burstable pod depends on the machine's memory.
fn oom_class(score: &str) -> String {
    match score.parse::<i64>() {
        Ok(2..=999) => "BURSTABLE".to_owned(),
        Ok(_) | Err(_) => score.to_owned(),
    }
}
