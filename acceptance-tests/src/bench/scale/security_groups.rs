//! Changes of security groups on simulated hosts: the time from the answer to the write until the last of the hosts with a member
//! has the new rules, or knows the new member.
//!
//! ```text
//!  web-2, web-50, web-500   a hundred rules each, with members on so many hosts; one of the rules names
//!  peers-2, …               whose members come and go
//! ```
//!
//! The hosts are in one process, which records when it has put which filters in force. Both processes read the same clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Measured;
use super::seen::{Seen, Watching};
use super::stage::Stage;
use crate::api::{self, Api, Request};
use crate::report::note;
use crate::undo;

/// The numbers of hosts with a member.
pub const SPREADS: [usize; 3] = [2, 50, 500];
/// The rules of a group in each direction: a hundred in all.
const RULES: usize = 50;
/// The members of a group whose members come and go.
const MEMBERS: usize = 10;
/// The number of changes of each kind.
const CHANGES: usize = 30;
/// The time between two changes: what the one before has caused is over, but for reports that come a second later.
const APART: Duration = Duration::from_millis(500);
/// The time limit of the creation of the VMs.
const CREATED: Duration = Duration::from_secs(900);
/// The time limit of one change.
const LIMIT: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(5);
/// The time in which hosts put the filters of new members in force, and the controllers report the users of groups.
const SETTLED: Duration = Duration::from_secs(15);

/// The times of the changes of one kind.
#[derive(Debug, Clone)]
pub struct Changes {
    /// The number of VMs on the site.
    pub vms: usize,
    /// The number of hosts with a member.
    pub hosts: usize,
    /// A rule was changed. In milliseconds.
    pub rules: Vec<f64>,
    /// A member joined a group that a rule names, or left it. In milliseconds.
    pub members: Vec<f64>,
}

/// Measures the changes with each number of VMs, on this many hosts. Logs go to `logs`.
pub fn run(sizes: &[usize], hosts: u16, measured: &Measured<'_>, logs: &Path) -> Result<Vec<Changes>> {
    std::fs::create_dir_all(logs)?;
    let record = logs.join("filters.jsonl");
    File::create(&record).with_context(|| format!("creating {}", record.display()))?;
    let (mut stage, plane) = Stage::start(measured, hosts, logs, Some(&record))?;
    plane.create_shared()?;
    let watching = Watching::start(&plane);
    let mut api = plane.connect()?;
    for hosts in SPREADS {
        api.create(api::SECURITY_GROUP, &peers(hosts), &json!({}))?;
        api.create(api::SECURITY_GROUP, &web(hosts), &rules(hosts))?;
    }
    let mut site = Site { api, records: Records::open(&record)?, members: BTreeMap::new() };
    let (mut made, mut found) = (0, Vec::new());
    for vms in sizes {
        let names: Vec<String> = (made..*vms).map(|number| format!("vm-{number:05}")).collect();
        let widest = web(SPREADS[SPREADS.len() - 1]);
        plane.create_vms(&names, &[widest.as_str()])?;
        made = *vms;
        let is_ready = |seen: &Seen| seen.vms.len() == made;
        watching.until("all VMs to be ready", CREATED, is_ready)?;
        stage.must_run()?;
        if site.members.is_empty() {
            site.join(&watching.seen())?;
        }
        std::thread::sleep(SETTLED);
        note(&format!("  {made} VMs are there"));
        for spread in SPREADS {
            found.push(site.measure(spread, &watching.seen())?);
            stage.must_run()?;
        }
    }
    Ok(found)
}

fn web(hosts: usize) -> String {
    format!("web-{hosts}")
}

fn peers(hosts: usize) -> String {
    format!("peers-{hosts}")
}

/// The rules of a group; the first names the group whose members come and go.
fn rules(hosts: usize) -> Value {
    let rule = |number: usize| {
        json!({"name": format!("rule-{number}"), "protocol": "tcp", "ports": [format!("{}", 1000 + number)],
            "cidrs": [format!("192.0.{}.0/24", number)]})
    };
    let mut ingress: Vec<Value> = (0..RULES).map(rule).collect();
    ingress[0] = json!({"name": "peers", "securityGroups": [peers(hosts)]});
    json!({"ingress": ingress, "egress": (0..RULES).map(rule).collect::<Vec<_>>()})
}

struct Site {
    api: Api,
    records: Records,
    /// By VM: the groups of its interface, of those that are not as it was created.
    members: BTreeMap<String, BTreeSet<String>>,
}

impl Site {
    /// Makes VMs members: one on each of so many hosts of the groups with rules, and some of those that rules name.
    fn join(&mut self, seen: &Seen) -> Result<()> {
        let mut one_of_each: BTreeMap<&str, &str> = BTreeMap::new();
        for (vm, host) in &seen.bound {
            one_of_each.entry(host).or_insert(vm);
        }
        let widest = web(SPREADS[SPREADS.len() - 1]);
        let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for spread in &SPREADS[..SPREADS.len() - 1] {
            ensure!(one_of_each.len() >= *spread, "VMs are on {} hosts only", one_of_each.len());
            for vm in one_of_each.values().take(*spread) {
                wanted.entry((*vm).to_owned()).or_default().insert(web(*spread));
            }
        }
        for spread in SPREADS {
            for vm in one_of_each.values().rev().take(MEMBERS) {
                wanted.entry((*vm).to_owned()).or_default().insert(peers(spread));
            }
        }
        for (vm, mut groups) in wanted {
            groups.insert(widest.clone());
            self.set_groups(&vm, &groups)?;
            self.members.insert(vm, groups);
        }
        Ok(())
    }

    /// Changes groups with members on so many hosts, one change at a time.
    fn measure(&mut self, spread: usize, seen: &Seen) -> Result<Changes> {
        let concerned = self.concerned(spread, seen);
        let (mut rules, mut members) = (Vec::new(), Vec::new());
        let is_member = |groups: &BTreeSet<String>| groups.contains(&peers(spread));
        let joiner = self.members.iter().find(|(_, groups)| is_member(groups));
        let (joiner, mut groups) =
            joiner.map(|(vm, groups)| (vm.clone(), groups.clone())).context("no VM is a member")?;
        let own = format!("default/{}", web(spread));
        let named = format!("default/{}", peers(spread));
        for number in 0..CHANGES {
            undo::halt_if_interrupted();
            let name = format!("change-{}-{number}", seen.vms.len());
            let answered = self.change_rule(spread, &name, 2000 + number)?;
            let is_new = |line: &Value| line["rules"][&own] == name.as_str();
            rules.push(self.records.wait(&concerned, answered, is_new).with_context(|| name.clone())?);
            std::thread::sleep(APART);

            let joins = groups.insert(peers(spread));
            if !joins {
                groups.remove(&peers(spread));
            }
            let count = if joins { MEMBERS } else { MEMBERS - 1 };
            let answered = self.set_groups(&joiner, &groups)?;
            let is_new = |line: &Value| line["members"][&named] == count;
            let in_force = self.records.wait(&concerned, answered, is_new);
            members.push(in_force.with_context(|| format!("{count} members of {named}"))?);
            std::thread::sleep(APART);
        }
        ensure!(groups.contains(&peers(spread)), "an even number of changes leaves the VM a member");
        Ok(Changes { vms: seen.vms.len(), hosts: concerned.len(), rules, members })
    }

    /// The hosts with a member of a group with rules.
    fn concerned(&self, spread: usize, seen: &Seen) -> BTreeSet<String> {
        let group = web(spread);
        let has = |vm: &String| match self.members.get(vm) {
            Some(groups) => groups.contains(&group),
            None => spread == SPREADS[SPREADS.len() - 1],
        };
        seen.bound.iter().filter(|(vm, _)| has(vm)).map(|(_, host)| host.clone()).collect()
    }

    /// Gives the last rule of a group another name and another port. Returns the time of the answer.
    fn change_rule(&mut self, spread: usize, name: &str, port: usize) -> Result<SystemTime> {
        let rule = json!({"name": name, "protocol": "tcp", "ports": [port.to_string()], "cidrs": ["198.51.100.0/24"]});
        let path = format!("{}/{}", api::SECURITY_GROUP.path(), web(spread));
        let at = format!("/spec/ingress/{}", RULES - 1);
        self.patch(&path, &json!([{"op": "replace", "path": at, "value": rule}]))
    }

    fn set_groups(&mut self, vm: &str, groups: &BTreeSet<String>) -> Result<SystemTime> {
        let path = format!("{}/{vm}", api::VM.path());
        let at = "/spec/networkInterfaces/0/securityGroups";
        self.patch(&path, &json!([{"op": "replace", "path": at, "value": groups}]))
    }

    fn patch(&mut self, path: &str, patch: &Value) -> Result<SystemTime> {
        let body = patch.to_string();
        let request = Request {
            method: "PATCH",
            path,
            content_type: "application/json-patch+json",
            headers: &[],
            body: &body,
        };
        let (status, text) = self.api.answer(&request)?;
        let answered = SystemTime::now();
        ensure!((200..300).contains(&status), "PATCH {path}: {status}: {text}");
        Ok(answered)
    }
}

/// The record of the hosts, read as it grows.
struct Records {
    file: File,
    /// The bytes of a line that is not complete.
    rest: Vec<u8>,
}

impl Records {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { file, rest: Vec::new() })
    }

    /// Returns the lines since the last call.
    fn lines(&mut self) -> Result<Vec<Value>> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let rest = self.rest.split_off(end + 1);
        let complete = std::mem::replace(&mut self.rest, rest);
        let lines = complete.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
    }

    /// Waits until all of these hosts have a filter that is new. Returns the milliseconds from the answer until the last has.
    fn wait(
        &mut self,
        hosts: &BTreeSet<String>,
        answered: SystemTime,
        is_new: impl Fn(&Value) -> bool,
    ) -> Result<f64> {
        let end = Instant::now() + LIMIT;
        let mut waited: BTreeSet<&str> = hosts.iter().map(String::as_str).collect();
        let mut last = answered;
        loop {
            for line in self.lines()?.into_iter().filter(|line| is_new(line)) {
                let (host, at) = (line["host"].as_str(), line["at"].as_u64());
                let (host, at) = host.zip(at).context("a line without host and time")?;
                if waited.remove(host) {
                    last = last.max(SystemTime::UNIX_EPOCH + Duration::from_micros(at));
                }
            }
            if waited.is_empty() {
                // Hosts that were quicker than the answer count as 0.
                return Ok(last.duration_since(answered).unwrap_or_default().as_secs_f64() * 1e3);
            }
            if Instant::now() > end {
                let some: Vec<&str> = waited.iter().take(3).copied().collect();
                bail!("after {LIMIT:?} it is not in force on {} hosts, such as {some:?}", waited.len());
            }
            std::thread::sleep(GLANCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_of_the_hosts_concerned_counts() {
        let path = crate::scratch::Scratch::new().expect("a folder");
        let path = path.path().join("filters");
        let mut writer = File::create(&path).expect("a file");
        let mut records = Records::open(&path).expect("the file");
        let line = |host: &str, at: u64, rule: &str| {
            format!("{}\n", json!({"host": host, "at": at, "rules": {"default/web-2": rule}}))
        };
        let lines = [
            line("a", 900_000, "old"),
            line("a", 1_200_000, "new"),
            line("c", 9_000_000, "new"),
            line("b", 1_500_000, "new"),
        ];
        let text = lines.concat();
        let (first, second) = text.split_at(text.len() - 3);
        writer.write_all(first.as_bytes()).expect("written");
        assert_eq!(records.lines().expect("lines").len(), 3, "the last is not complete");
        let mut records = Records::open(&path).expect("the file");
        writer.write_all(second.as_bytes()).expect("written");
        let answered = SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_000);
        let hosts = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let is_new = |line: &Value| line["rules"]["default/web-2"] == "new";
        assert_eq!(records.wait(&hosts, answered, is_new).expect("both have it"), 500.0);
    }

    #[test]
    fn a_group_has_a_hundred_rules_within_the_limits_of_the_api() {
        let rules = rules(2);
        let lists = [&rules["ingress"], &rules["egress"]].map(|list| list.as_array().map_or(0, Vec::len));
        assert_eq!(lists, [50, 50]);
        assert_eq!(rules["ingress"][0]["securityGroups"], json!(["peers-2"]));
    }
}
