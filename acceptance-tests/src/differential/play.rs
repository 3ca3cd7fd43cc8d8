//! Sends all requests to one server, in order.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use super::topics::{Request, SETUP, Topic};
use super::wire::{Answer, Message, Wire};
use crate::access::Access;

/// The longest wait for a server's controllers.
const LONGEST_UNTIL: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
/// The prefix of requests in the setup that return a user's token.
const TOKEN: &str = "token-";

/// A response.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Body,
}

/// A body by its actual type.
#[derive(Debug, Clone)]
pub(super) enum Body {
    Json(Value),
    Frames(Vec<Value>),
    Text(String),
}

/// The responses to all requests of all topics.
pub(super) fn all(topics: &[Topic], access: &Access) -> Result<Vec<Vec<Reply>>> {
    let mut player = Player { access, wire: Wire::new(access), tokens: BTreeMap::new() };
    topics.iter().map(|topic| player.topic(topic).with_context(|| format!("topic {}", topic.name))).collect()
}

struct Player<'a> {
    access: &'a Access,
    wire: Wire,
    tokens: BTreeMap<String, String>,
}

enum Pending {
    Here(Reply),
    Streaming(JoinHandle<Result<Answer>>),
}

impl Player<'_> {
    fn topic(&mut self, topic: &Topic) -> Result<Vec<Reply>> {
        self.make_namespace(&topic.namespace())?;
        let mut answers = BTreeMap::new();
        let mut replies = Vec::new();
        for request in &topic.requests {
            let reply = self.request(topic, request, &answers).with_context(|| request.id.clone())?;
            let value = match &reply {
                Pending::Here(Reply { body: Body::Json(value), .. }) => value.clone(),
                _ => Value::Null,
            };
            answers.insert(request.id.clone(), value);
            replies.push(reply);
        }
        if topic.name == SETUP {
            self.take_tokens(&answers)?;
        }
        let ended = topic.requests.iter().zip(replies).map(|(request, reply)| {
            let mut reply = match reply {
                Pending::Here(reply) => reply,
                Pending::Streaming(thread) => {
                    let answer = thread.join().map_err(|_| anyhow!("watching panicked"))?;
                    read(answer.with_context(|| request.id.clone())?, true)
                }
            };
            narrow(request, &mut reply);
            Ok(reply)
        });
        ended.collect()
    }

    fn make_namespace(&mut self, name: &str) -> Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string();
        let headers = vec![self.authorization(None), ("Content-Type".into(), "application/json".into())];
        let path = "/api/v1/namespaces".into();
        let made = self.wire.ask(&Message { method: "POST".into(), path, headers, body: body.into() })?;
        anyhow::ensure!(made.code == 201, "making namespace {name}: {}", String::from_utf8_lossy(&made.body));
        Ok(())
    }

    fn take_tokens(&mut self, answers: &BTreeMap<String, Value>) -> Result<()> {
        for (id, answer) in answers {
            let Some(user) = id.strip_prefix(TOKEN) else { continue };
            let token =
                answer["status"]["token"].as_str().with_context(|| format!("{id}: no token in {answer}"))?;
            self.tokens.insert(user.to_owned(), token.to_owned());
        }
        Ok(())
    }

    fn authorization(&self, user: Option<&str>) -> (String, String) {
        let token = match user {
            None => self.access.token(),
            // A user that the setup does not define has a token unknown to every server.
            Some(user) => self.tokens.get(user).map_or("unknown", |token| token.as_str()),
        };
        ("Authorization".into(), format!("Bearer {token}"))
    }

    fn request(
        &mut self,
        topic: &Topic,
        request: &Request,
        answers: &BTreeMap<String, Value>,
    ) -> Result<Pending> {
        let message = self.message(topic, request, answers)?;
        let until = Instant::now() + LONGEST_UNTIL;
        loop {
            let reply = match message.method.as_str() {
                "WATCH" => {
                    let message = Message { method: "GET".into(), ..message.clone() };
                    let flow = Wire::open(self.access, &message)?;
                    let frames = request.frames.unwrap_or(usize::MAX);
                    if request.meanwhile {
                        return Ok(Pending::Streaming(std::thread::spawn(move || flow.read(frames))));
                    }
                    read(flow.read(frames)?, true)
                }
                _ => read(self.wire.ask(&message)?, false),
            };
            if request.until.iter().all(|(what, wanted)| reply.has(what, wanted)) || Instant::now() > until {
                return Ok(Pending::Here(reply));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn message(
        &self,
        topic: &Topic,
        request: &Request,
        answers: &BTreeMap<String, Value>,
    ) -> Result<Message> {
        let (method, path) = request.line.split_once(' ').context("no method and path")?;
        let mut headers = Vec::new();
        if request.user.as_deref() != Some("nobody") {
            headers.push(self.authorization(request.user.as_deref()));
        }
        for (name, value) in &request.headers {
            headers.push((name.clone(), topic.text(value, answers)?));
        }
        if !request.headers.contains_key("User-Agent") {
            headers.push(("User-Agent".into(), "acceptance/1".into()));
        }
        let body = match (&request.body, &request.raw) {
            (Some(body), _) => {
                let mut body = topic.fill(body, answers)?;
                for (pointer, length) in &request.fill {
                    let place =
                        body.pointer_mut(pointer).with_context(|| format!("no {pointer} in the body"))?;
                    *place = "x".repeat(*length).into();
                }
                body.to_string()
            }
            (None, Some(raw)) => topic.text(raw, answers)?,
            (None, None) => String::new(),
        };
        let content = request.content.as_deref().or(request.body.as_ref().map(|_| "json"));
        if let Some(content) = content {
            headers.push(("Content-Type".into(), media_type(content).to_owned()));
        }
        let path = encoded(&topic.text(path, answers)?);
        Ok(Message { method: method.to_owned(), path, headers, body: body.into() })
    }
}

/// Percent-encodes characters that must not appear in a request line; existing encodings stay.
fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'!' | b'#'..=b';' | b'=' | b'?'..=b'Z' | b'_' | b'a'..=b'z' | b'~' => out.push(char::from(byte)),
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

fn media_type(name: &str) -> &str {
    match name {
        "json" => "application/json",
        "yaml" => "application/yaml",
        "merge" => "application/merge-patch+json",
        "json-patch" => "application/json-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        "apply" => "application/apply-patch+yaml",
        other => other,
    }
}

fn read(answer: Answer, streamed: bool) -> Reply {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let frames = || text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let body = match serde_json::from_str(&text) {
        _ if streamed && answer.code == 200 => frames().map_or(Body::Text(text.clone()), Body::Frames),
        Ok(value) => Body::Json(value),
        Err(_) => Body::Text(text),
    };
    Reply { code: answer.code, headers: answer.headers, body }
}

/// Reduces a response to the parts that its request wants compared. Errors are compared whole.
fn narrow(request: &Request, reply: &mut Reply) {
    if reply.code >= 300 {
        return;
    }
    let Body::Json(value) = &mut reply.body else { return };
    for (pointer, wanted) in &request.members {
        if let Some(list) = value.pointer_mut(pointer).and_then(Value::as_array_mut) {
            let name = |item: &Value| {
                let names = [&item["name"], &item["metadata"]["name"], item];
                names.into_iter().find_map(Value::as_str).map(str::to_owned)
            };
            list.retain(|item| name(item).is_some_and(|name| wanted.contains(&name)));
        }
    }
    if !request.only.is_empty() {
        let part = |pointer: &String| (pointer.clone(), value.pointer(pointer).cloned().unwrap_or_default());
        *value = Value::Object(request.only.iter().map(part).collect());
    }
}

impl Reply {
    fn has(&self, what: &str, wanted: &Value) -> bool {
        match &self.body {
            _ if what == "code" => json!(self.code) == *wanted,
            Body::Json(value) => value.pointer(what).unwrap_or(&Value::Null) == wanted,
            Body::Frames(_) | Body::Text(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_stand_in_a_request_line_is_encoded_once() {
        assert_eq!(
            encoded("/a?labelSelector=a in (b),c>1&x=%2F\""),
            "/a?labelSelector=a%20in%20(b),c%3E1&x=%2F%22"
        );
    }
}
