//! The permissions of a joined host's credential on a real kube-apiserver: the same requests must get the same responses as
//! those required of the embedded API server.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::SOON;
use crate::api::{Access, Request};
use crate::fleet::Fleet;
use crate::report::Report;
use crate::wait;

const OBJECTS: &str = include_str!("../../../../reconciler/tests/host_access/objects.json");
const REQUESTS: &str = include_str!("../../../../reconciler/tests/host_access/requests.json");
/// kube-apiserver caches for ten seconds that a token is valid.
const FORGETS: Duration = Duration::from_secs(30);

/// The clients that send the requests.
#[derive(Debug)]
pub struct Senders {
    /// An administrator, or the user that the headers impersonate.
    admin: Access,
    /// A joined host with its kubeconfig.
    host: Access,
    /// A host with a deleted account.
    revoked: Access,
    /// `host`'s signature on the claims of `revoked`.
    forged: Access,
}

/// Creates the objects that the requests refer to. The controllers give host h1 its Role for Secrets; no host acts on any of
/// the objects.
pub fn prepare(report: &mut Report, fleet: &mut Fleet) -> Result<Senders> {
    let admin = report.step("a token counts until its host's access is revoked", || {
        let admin = fleet.access()?;
        fleet.administrator().token("h9")?;
        let token = token_of(&admin, "h9")?;
        let revoked = admin.with_token(&token);
        let reads = Request::new("GET", "/apis/berth.dev/v1alpha1/vms", "");
        answered(&revoked, &reads, &[200])?;
        fleet.administrator().revoke("h9")?;
        wait::until("the token to be refused", FORGETS, || answered(&revoked, &reads, &[401]).map(drop))?;
        Ok((admin, revoked))
    });
    let (admin, revoked) = admin?;
    report.step("the controllers let a host read the Secret its VM needs", || {
        let host = Access::read(&fleet.member("h1")?.berth.host_kubeconfig(), fleet.outside())?;
        for name in ["h1", "h2"] {
            fleet.member_mut(name)?.berth.stop()?;
        }
        let things: Vec<Value> = serde_json::from_str(OBJECTS).context("the table of objects")?;
        things.iter().try_for_each(|thing| make(&admin, thing))?;
        let secret = Request::new("GET", "/api/v1/namespaces/team/secrets/mine", "");
        wait::until("host h1 to read it", SOON, || answered(&host, &secret, &[200]).map(drop))?;
        let forged = admin.with_token(&forge(host.token(), revoked.token())?);
        Ok(Senders { admin: admin.clone(), host, revoked, forged })
    })
}

/// Sends the requests; no berth process runs that could undo their effects.
pub fn run(report: &mut Report, senders: &Senders) -> Result<()> {
    let cases: Vec<Value> = serde_json::from_str(REQUESTS).context("the table of requests")?;
    let kinds = [
        ("a host may do what is its own", 200..300),
        ("it may look for what concerns it and is not there", 404..405),
        ("it may do nothing else", 403..404),
        ("a revoked or forged token opens nothing", 401..402),
    ];
    let expected = |case: &Value| case["status"].as_u64().unwrap_or_default();
    for (fact, codes) in &kinds {
        let chosen: Vec<&Value> = cases.iter().filter(|case| codes.contains(&expected(case))).collect();
        report.case(&format!("{fact}, in {} requests to kube-apiserver", chosen.len()), || {
            ensure!(!chosen.is_empty(), "the table has none");
            let wrong: Vec<String> = chosen
                .iter()
                .filter_map(|case| judge(senders, case).err())
                .map(|error| format!("{error:#}"))
                .collect();
            ensure!(wrong.is_empty(), "{} are answered otherwise:\n{}", wrong.len(), wrong.join("\n"));
            Ok(())
        });
    }
    report.case("every request of the table was sent", || {
        let other = cases.iter().find(|case| !kinds.iter().any(|(_, codes)| codes.contains(&expected(case))));
        ensure!(other.is_none(), "not {}", other.unwrap_or(&Value::Null));
        Ok(())
    });
    Ok(())
}

fn judge(senders: &Senders, case: &Value) -> Result<()> {
    let text = |field: &str| case[field].as_str().unwrap_or_default();
    let sender = match text("who") {
        "admin" => &senders.admin,
        "h1" => &senders.host,
        "revoked" => &senders.revoked,
        "forged" => &senders.forged,
        other => bail!("{other:?} is nobody"),
    };
    let body = case.get("body").map(Value::to_string).unwrap_or_default();
    let headers: Vec<(String, String)> = case["headers"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect();
    let mut request = Request { headers: &headers, ..Request::new(text("method"), text("path"), &body) };
    if let Some(kind) = case["contentType"].as_str() {
        request.content_type = kind;
    }
    let code =
        case["status"].as_u64().and_then(|code| u16::try_from(code).ok()).context("a case without status")?;
    answered(sender, &request, &[code]).with_context(|| text("what").to_owned()).map(drop)
}

/// Sends a request on a connection of its own. Returns the text of a response with one of `codes`.
fn answered(sender: &Access, request: &Request<'_>, codes: &[u16]) -> Result<String> {
    let (code, text) = sender.connect()?.answer(request)?;
    ensure!(codes.contains(&code), "expected {codes:?}, answered {code}: {}", text.trim_end());
    Ok(text)
}

/// A host's token, as an administrator gets it.
fn token_of(admin: &Access, host: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/berth-system/serviceaccounts/host-{host}/token");
    let body =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).to_string();
    let answer: Value = serde_json::from_str(&answered(admin, &Request::new("POST", &path, &body), &[201])?)?;
    Ok(answer["status"]["token"].as_str().context("an answer without a token")?.to_owned())
}

/// Creates one object of the table with its status; one of the fleet's hosts exists already.
fn make(admin: &Access, thing: &Value) -> Result<()> {
    let object = &thing["object"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let place = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}"),
        None => root,
    };
    let kind = text(&object["kind"]);
    let place = format!("{place}/{}s", kind.to_lowercase());
    let taken: &[u16] = if ["Host", "Lease"].contains(&kind.as_str()) { &[201, 409] } else { &[201] };
    answered(admin, &Request::new("POST", &place, &object.to_string()), taken)
        .with_context(|| format!("making {object}"))?;
    let path = format!("{place}/{}", text(&object["metadata"]["name"]));
    if let Some(status) = thing.get("status") {
        let (path, body) = (format!("{path}/status"), json!({"status": status}).to_string());
        let mut request = Request::new("PATCH", &path, &body);
        request.content_type = "application/merge-patch+json";
        answered(admin, &request, &[200]).with_context(|| path.clone())?;
    }
    if thing["delete"] == true {
        answered(admin, &Request::new("DELETE", &path, ""), &[200]).with_context(|| path.clone())?;
    }
    Ok(())
}

/// The signature of one token on the claims of another.
fn forge(signed: &str, words: &str) -> Result<String> {
    let (_, signature) = signed.rsplit_once('.').context("a token has three parts")?;
    let (words, _) = words.rsplit_once('.').context("a token has three parts")?;
    Ok(format!("{words}.{signature}"))
}
