//! N7: the embedded control plane beside kube-apiserver with etcd, in turn on the same disk: durable writes, and watchers.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::planes as figures;
use super::samples::Samples;
use super::site::Site;
use crate::access::Access;
use crate::control_plane::{KubernetesControlPlane, Location, Programs};
use crate::namespace::Namespace;
use crate::proc;
use crate::scratch::Scratch;
use crate::{report, tools, undo, wait};

/// The number of concurrent writers, and the total of their writes. The same for each control plane: memory grows with it.
const CLIENTS: usize = 100;
const TOGETHER: usize = 12_000;
/// The number of writes of one writer alone.
const ALONE: usize = 500;
/// The number of watchers of the same objects, and of the objects written for them.
const WATCHERS: usize = 1000;
const SEEN: usize = 200;
/// The number of rounds of each control plane, in turn.
const ROUNDS: usize = 3;
/// The time from the last round until memory is measured.
const SETTLE: Duration = Duration::from_secs(15);
/// The kind that is written: small, as in other published figures.
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CELLS: &str = "/apis/load.example/v1/namespaces/default/cells";
/// The stack size of a thread that only waits for bytes.
const STACK: usize = 256 << 10;

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N7"))?;
    site.start_control_plane()?;
    let ours = Plane { name: "berth", access: site.access()?, pids: vec![site.pid()?] };
    let real = Real::start(bench)?;
    let theirs = Plane { name: "kube-apiserver", access: real.access()?, pids: real.plane.pids()? };
    let planes = [ours, theirs];
    for plane in &planes {
        plane.prepare()?;
    }
    let mut found: [Vec<Round>; 2] = Default::default();
    for round in 0..ROUNDS {
        for (plane, found) in planes.iter().zip(&mut found) {
            undo::halt_if_interrupted();
            let measured = plane.round(round)?;
            report::note(&format!(
                "        round {}: {} {:.0} creates a second, P99 {:.0} ms; {:.0} events a second",
                round + 1,
                plane.name,
                measured.writes,
                measured.p99,
                measured.events
            ));
            found.push(measured);
        }
    }
    // A thousand connections have just been closed.
    std::thread::sleep(SETTLE);
    let memory = planes.iter().map(Plane::memory).collect::<Result<Vec<f64>>>()?;
    site.stop()?;
    let [ours, theirs] = &found;
    let median = |figure: Figure, rounds: &[Round], of: fn(&Round) -> f64| {
        let samples = Samples::new(rounds.iter().map(of).collect()).context("no rounds")?;
        Ok::<_, anyhow::Error>(Reading::median(figure, &samples))
    };
    // Their value over ours: less is better, as with every other ratio.
    let ratio = |figure: Figure, of: fn(&Round) -> f64| {
        let ratios = ours.iter().zip(theirs).map(|(ours, theirs)| of(theirs) / of(ours)).collect();
        Ok::<_, anyhow::Error>(Reading::median(figure, &Samples::new(ratios).context("no rounds")?))
    };
    Ok(vec![
        ratio(figures::WRITES_RATIO, |round| round.writes)?,
        ratio(figures::EVENTS_RATIO, |round| round.events)?,
        Reading::once(figures::MEMORY_RATIO, memory[0] / memory[1]),
        median(figures::WRITES, ours, |round| round.writes)?,
        median(figures::P50, ours, |round| round.p50)?,
        median(figures::P99, ours, |round| round.p99)?,
        median(figures::ALONE, ours, |round| round.alone)?,
        median(figures::EVENTS, ours, |round| round.events)?,
        Reading::once(figures::MEMORY, memory[0]),
        median(figures::THEIR_WRITES, theirs, |round| round.writes)?,
        median(figures::THEIR_P50, theirs, |round| round.p50)?,
        median(figures::THEIR_P99, theirs, |round| round.p99)?,
        median(figures::THEIR_ALONE, theirs, |round| round.alone)?,
        median(figures::THEIR_EVENTS, theirs, |round| round.events)?,
        Reading::once(figures::THEIR_MEMORY, memory[1]),
    ])
}

/// kube-apiserver and etcd in a namespace of their own.
struct Real {
    // Stopped before its files are removed.
    plane: KubernetesControlPlane,
    namespace: Arc<Namespace>,
    _folder: Scratch,
}

impl Real {
    fn start(bench: &Bench) -> Result<Self> {
        const ADDRESS: &str = "192.0.2.1";
        let (folder, namespace) = (Scratch::new()?, Namespace::new()?);
        namespace.ip(&["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
        let programs = Programs::get(&bench.cache)?;
        let kubectl = tools::kubectl(&bench.cache)?;
        let logs = bench.log("N7-kubernetes").with_extension("");
        let plane = KubernetesControlPlane::start(
            &programs,
            Location {
                namespace: &namespace,
                address: ADDRESS,
                ipv6: None,
                folder: &folder.path().join("kubernetes"),
                logs: &logs,
            },
            Path::new(&kubectl),
        )?;
        Ok(Self { plane, namespace, _folder: folder })
    }

    fn access(&self) -> Result<Access> {
        Access::read(&self.plane.kubeconfig(), &self.namespace)
    }
}

/// A control plane.
struct Plane {
    name: &'static str,
    access: Access,
    pids: Vec<i32>,
}

/// The results of one round.
struct Round {
    /// Creates per second, [`CLIENTS`] at once.
    writes: f64,
    /// The time of one of those creates, in ms.
    p50: f64,
    p99: f64,
    /// The median time of a write of one writer alone, in ms.
    alone: f64,
    /// Events per second that watchers received.
    events: f64,
}

impl Plane {
    fn prepare(&self) -> Result<()> {
        let mut api = self.access.connect()?;
        api.post(CRDS, &definition().to_string())?;
        wait::until("the kind to be served", Duration::from_secs(30), || {
            self.access.connect()?.get(CELLS).map(drop)
        })
    }

    fn memory(&self) -> Result<f64> {
        self.pids.iter().map(|pid| Ok(proc::memory(*pid)?.rss)).sum()
    }

    fn round(&self, round: usize) -> Result<Round> {
        let (writes, together) = self.write_together(round)?;
        let alone = self.write_alone(&format!("alone-{round}"), ALONE)?;
        let events = self.fan_out(round)?;
        Ok(Round {
            writes,
            p50: together.percentile(50),
            p99: together.percentile(99),
            alone: alone.percentile(50),
            events,
        })
    }

    /// The creates per second and the time of each, in ms.
    fn write_together(&self, round: usize) -> Result<(f64, Samples)> {
        let mut clients = (0..CLIENTS).map(|_| self.access.connect()).collect::<Result<Vec<_>>>()?;
        let next = AtomicUsize::new(0);
        let began = Instant::now();
        let times: Vec<f64> = std::thread::scope(|scope| {
            let writers: Vec<_> = clients
                .iter_mut()
                .map(|api| {
                    let next = &next;
                    scope.spawn(move || {
                        let mut times = Vec::new();
                        loop {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            if number >= TOGETHER {
                                return Ok::<_, anyhow::Error>(times);
                            }
                            let asked = Instant::now();
                            api.post(CELLS, &cell(&format!("together-{round}-{number}")))?;
                            times.push(asked.elapsed().as_secs_f64() * 1e3);
                        }
                    })
                })
                .collect();
            let mut all = Vec::new();
            for writer in writers {
                all.extend(writer.join().map_err(|_| anyhow!("a writer panicked"))??);
            }
            Ok::<_, anyhow::Error>(all)
        })?;
        let took = began.elapsed().as_secs_f64();
        let samples = Samples::new(times).context("nothing was written")?;
        Ok((float(samples.count()) / took, samples))
    }

    fn write_alone(&self, prefix: &str, count: usize) -> Result<Samples> {
        let mut api = self.access.connect()?;
        let mut times = Vec::new();
        for number in 0..count {
            let asked = Instant::now();
            api.post(CELLS, &cell(&format!("{prefix}-{number}")))?;
            times.push(asked.elapsed().as_secs_f64() * 1e3);
        }
        Samples::new(times).context("nothing was written")
    }

    /// The events per second that reached watchers, from the first write until the last watcher had the last event.
    fn fan_out(&self, round: usize) -> Result<f64> {
        let mut api = self.access.connect()?;
        let list: Value = api.read(&format!("{CELLS}?limit=1"))?;
        let revision = list["metadata"]["resourceVersion"].as_str().context("a list without revision")?;
        let mut watches = Vec::new();
        for _ in 0..WATCHERS {
            watches.push(self.access.connect()?.watch_from(CELLS, revision)?);
        }
        let mut watchers = Vec::new();
        for mut watch in watches {
            let thread = std::thread::Builder::new().stack_size(STACK);
            watchers.push(thread.spawn(move || watch.skip(SEEN))?);
        }
        let began = Instant::now();
        self.write_alone(&format!("seen-{round}"), SEEN)?;
        let mut last = began;
        for watcher in watchers {
            last = last.max(watcher.join().map_err(|_| anyhow!("a watcher panicked"))??);
        }
        Ok(float(WATCHERS * SEEN) / (last - began).as_secs_f64())
    }
}

fn cell(name: &str) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        r#"{{"apiVersion":"load.example/v1","kind":"Cell","metadata":{{"name":"{name}"}},"spec":{{"size":3,"note":"as small as it gets"}}}}"#
    );
    text
}

fn definition() -> Value {
    let spec =
        json!({"type": "object", "properties": {"size": {"type": "integer"}, "note": {"type": "string"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "cells.load.example"},
        "spec": {
            "group": "load.example",
            "scope": "Namespaced",
            "names": {"plural": "cells", "singular": "cell", "kind": "Cell", "listKind": "CellList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
            }],
        },
    })
}

#[expect(clippy::cast_precision_loss, reason = "far less than 2^52")]
fn float(count: usize) -> f64 {
    count as f64
}
