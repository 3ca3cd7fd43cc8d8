//! Requests that are sent to `berth up`'s control plane and to a real kube-apiserver with etcd: the responses must be
//! equal.
//!
//! ```text
//! differential/*.yaml ─▶ topics ─▶ play (both servers at once) ─▶ normal ─▶ compare ─▶ allowed ─▶ differences
//! ```
//! The requests are data, grouped by topic; so are the allowed differences, each with its reason.

mod allowed;
mod compare;
mod normal;
mod play;
mod servers;
mod topics;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};

use crate::control_plane::Programs;
use crate::report::{Report, note};
use crate::workspace;
use allowed::Allowed;
use compare::Difference;
use play::Reply;
use topics::Topic;

/// The topics to run, separated by commas; all if unset. For work on a single difference.
const CHOICE: &str = "BERTH_DIFFERENTIAL";
/// The number of differences shown per topic; the file beside the logs has all of them.
const SHOWN: usize = 40;

fn folder() -> PathBuf {
    workspace::root().join("acceptance-tests/differential")
}

/// Starts both servers, sends all requests to both, and compares the responses of each topic.
pub fn run(
    report: &mut Report,
    berth: &Path,
    programs: &Programs,
    kubectl: &Path,
    logs: &Path,
) -> Result<()> {
    let (topics, chosen) = report.step("the requests are read", || {
        let topics = topics::read(&folder())?;
        let choice = std::env::var(CHOICE).ok();
        choose(topics, choice.as_deref())
    })?;
    let allowed = report.step("the allowed differences are read", || Allowed::read(&folder()))?;
    let servers = report.step("berth, and etcd with kube-apiserver, serve", || {
        servers::Servers::start(berth, programs, kubectl, logs)
    })?;
    let count: usize = topics.iter().map(|topic| topic.requests.len()).sum();
    let fact = format!("{count} requests are answered by both");
    let (ours, theirs) = report.step(&fact, || both(&topics, &servers))?;
    let mut used = vec![0_usize; allowed.len()];
    let mut listing = String::new();
    for (topic, (ours, theirs)) in topics.iter().zip(ours.iter().zip(&theirs)) {
        let (ours, theirs) = (normal::replies(ours), normal::replies(theirs));
        let found = differences(topic, &ours, &theirs);
        let found: Vec<&Difference> =
            found.iter().filter(|found| !allowed.covers(found, &mut used)).collect();
        report
            .case(&format!("{}: {} answers are equal", topic.about, topic.requests.len()), || judge(&found));
        found.iter().for_each(|one| listing += &one.to_string());
    }
    std::fs::write(logs.join("differences.txt"), listing)?;
    if chosen {
        note("        only some topics were run: whether every allowed difference occurs is not known");
    } else {
        report.case("every allowed difference occurs", || allowed.all_used(&used));
    }
    Ok(())
}

fn choose(topics: Vec<Topic>, choice: Option<&str>) -> Result<(Vec<Topic>, bool)> {
    let Some(choice) = choice else { return Ok((topics, false)) };
    let wanted: Vec<&str> = choice.split(',').collect();
    for name in &wanted {
        ensure!(topics.iter().any(|topic| topic.name == *name), "there is no topic {name}");
    }
    let is_wanted = |topic: &Topic| topic.name == topics::SETUP || wanted.contains(&topic.name.as_str());
    Ok((topics.into_iter().filter(is_wanted).collect(), true))
}

type Replies = Vec<Vec<Reply>>;

fn both(topics: &[Topic], servers: &servers::Servers) -> Result<(Replies, Replies)> {
    std::thread::scope(|scope| {
        let [ours, theirs] =
            [&servers.ours, &servers.theirs].map(|access| scope.spawn(|| play::all(topics, access)));
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<Replies>>, whose: &str| {
            let ended = thread.join().map_err(|_| anyhow!("the thread of {whose} panicked"))?;
            ended.map_err(|error| error.context(format!("requests of {whose}")))
        };
        Ok((end(ours, "berth")?, end(theirs, "kube-apiserver")?))
    })
}

fn differences(topic: &Topic, ours: &[serde_json::Value], theirs: &[serde_json::Value]) -> Vec<Difference> {
    let answers = topic.requests.iter().zip(ours.iter().zip(theirs));
    answers
        .filter(|(_, (_, theirs))| !is_behind(theirs))
        .flat_map(|(request, (ours, theirs))| {
            compare::differences(&format!("{}/{}", topic.name, request.id), &request.line, ours, theirs)
        })
        .collect()
}

/// Whether kube-apiserver has given up this watch: its cache had not received the newest revision, and Debian's etcd does not
/// support the request for it. Any write of its own controllers can cause that, and then nothing can be compared.
fn is_behind(reply: &serde_json::Value) -> bool {
    reply["body"]["frames"][0]["object"]["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
}

fn judge(found: &[&Difference]) -> Result<()> {
    let requests: BTreeMap<&str, usize> = found.iter().fold(BTreeMap::new(), |mut all, one| {
        *all.entry(one.request.as_str()).or_default() += 1;
        all
    });
    let shown: String = found.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = found.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("and {more} more\n") } else { String::new() };
    ensure!(found.is_empty(), "{} differences in {} answers\n{shown}{more}", found.len(), requests.len());
    Ok(())
}
