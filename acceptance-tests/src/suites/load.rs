//! A control plane under load and under hostile clients.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Kit;
use crate::bench::load::{CUT_OFF, Informed, Site, Size, flood};
use crate::report::{Report, note};
use crate::{wait, workspace};

/// The size of the load: more than a debug build handles in a moment, and done within three minutes.
const SIZE: Size = Size {
    writers: 100,
    objects: 10_000,
    followers: 12,
    sleepers: 3,
    watchers: 1_000,
    changes: 200,
    hostile: 120,
};
/// The number of clients that send bodies of every size at once.
const FLOOD: usize = 40;
/// The number of informers that start at once.
const INFORMERS: usize = 40;
/// The number of informers of many objects: as many as 200 hosts and tools have, of as many objects as a large site has.
/// Server and informers have a core each.
const MANY: usize = 200;
const OBJECTS: usize = 5_000;
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// The rounds of an ordinary client beside a crowd.
const ROUNDS: u32 = 20;
/// More watches than the controllers have themselves, one for each kind.
const OWN_WATCHES: u64 = 40;
/// The time limit until rejected hostile clients have gone.
const GONE: Duration = Duration::from_secs(120);

/// The memory limit for this load in MiB, from the limits the server has (docs/control-plane.md):
///
/// | what | how many | each |
/// |---|---|---|
/// | the program itself, SQLite's cache | | 100 MiB |
/// | objects: text, index, recent events with their frames | all | 8 KiB |
/// | connections: TLS, HTTP buffers | all | 96 KiB |
/// | large bodies, received or sent | 32 | 3 MiB as received, as one text, as values, as stored |
/// | large objects that are stored | those of the flood | 1.5 MiB, twice |
/// | events queued for watchers, shared by them | | 16 MiB, and its frames |
///
/// A body with more than 250,000 values is not parsed into values: those that the flood sends stay text. Two fifths of the
/// limit were used: the rest is for machines on which more of the load is in progress at the same moment.
fn most_memory() -> usize {
    let connections = SIZE.watchers + SIZE.followers + SIZE.writers + 8 * SIZE.hostile + FLOOD;
    100 + SIZE.objects * 8 / 1024 + connections * 96 / 1024 + 32 * 4 * 3 + FLOOD * 3 + 2 * 16
}

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let logs = workspace::artifacts().join("load");
    let site = report.step("a control plane is up", || Site::start(&berth, &logs.join("up.log")))?;
    let fact = "of many writes under many watches nothing acknowledged is lost or doubled, and each watcher receives all in order";
    let found = report.step(fact, || site.write_and_watch(SIZE))?;
    let output = found.followers.events + found.watchers.events;
    let (expired, broken) = (found.followers.expired, found.followers.broken + found.watchers.broken);
    note(&format!(
        "    {} writes, {output} events delivered, {expired} watches ended with 410 and {broken} otherwise",
        found.writes
    ));
    let fact = "watchers that did not read were cut off with 410, counted in /metrics, and resumed without losing an event";
    report.case(fact, || {
        let cut_off = site.metric(CUT_OFF)?;
        ensure!(expired >= SIZE.sleepers as u64, "{expired} got 410, {} did not read", SIZE.sleepers);
        ensure!(cut_off >= expired + found.watchers.expired, "{cut_off} cut off, more got 410: {found:?}");
        Ok(())
    });
    report.case("informers that begin at once, by watches that list, are all sent everything", || {
        print(&site.inform(INFORMERS, None)?)
    });
    let fact = "clients that send slowly, read nothing or say nothing gather";
    let crowd = report.step(fact, || site.gather(SIZE.hostile))?;
    report.case("an ordinary client is answered all the same", || {
        (0..ROUNDS).try_for_each(|round| site.ordinary(round))?;
        let (open, coming) =
            (site.metric("berth_apiserver_connections")?, site.metric("berth_apiserver_bodies_received")?);
        let count = crowd.count();
        note(&format!("    {count} hostile clients, {open} connections, {coming} bodies under way"));
        ensure!(coming > 0, "no body is under way");
        Ok(())
    });
    report.case(
        "bodies at and over the limits, many at once, are refused or stored, and nobody waits for them",
        || {
            let mut sent = 0;
            let answered = site.meanwhile(|| {
                sent = flood(&site, FLOOD)?;
                Ok(())
            })?;
            note(&format!("    {} MiB sent, an ordinary client got through {answered} times", sent >> 20));
            Ok(())
        },
    );
    report.case("the hostile are sent away while they stay, or go, and leave nothing behind", || {
        crowd.disperse()?;
        wait::until("the connections to be closed", GONE, || {
            let (open, watches) =
                (site.metric("berth_apiserver_connections")?, site.metric("berth_apiserver_watches")?);
            let coming = site.metric("berth_apiserver_bodies_received")?;
            ensure!(
                open < 20 && watches < OWN_WATCHES && coming == 0,
                "{open} connections, {watches} watches, {coming} bodies"
            );
            Ok(())
        })
    });
    report.case("no answer was the server's fault", || {
        let failed = site.answers("5xx")?;
        ensure!(failed == 0, "{failed} answers were 5xx");
        Ok(())
    });
    report.case("its memory stayed under what its limits allow", || {
        let (peak, most) = (site.peak()?, most_memory());
        note(&format!("    {peak:.0} MiB at most, of {most}"));
        #[expect(clippy::cast_precision_loss, reason = "far less than 2^52")]
        let most = most as f64;
        ensure!(peak <= most, "{peak:.0} MiB, not {most:.0}");
        Ok(())
    });
    report.case("it still ends on SIGTERM", || site.stop());
    many_informers(report, &berth, &logs.join("informers.log"))
}

/// Many informers of many objects, the server on one core and the informers on another: neither takes the other's time.
fn many_informers(report: &mut Report, berth: &Path, log: &Path) -> Result<()> {
    let fact =
        format!("{MANY} informers that list {OBJECTS} objects each by watches are all sent everything");
    if std::thread::available_parallelism()?.get() < 2 {
        report.skip(&fact, "server and clients want a core each");
        return Ok(());
    }
    let site = report.step("a control plane is up on a core of its own", || {
        let site = Site::start_on(berth, log, Some(SERVER_CORE))?;
        site.fill(OBJECTS)?;
        Ok(site)
    })?;
    report.case(&fact, || {
        let found = site.inform(MANY, Some(CLIENT_CORE))?;
        ensure!(found.objects == OBJECTS, "{} objects were sent", found.objects);
        print(&found)?;
        note(&format!("    {:.0} MiB at most", site.peak()?));
        Ok(())
    });
    report.case("that control plane ends on SIGTERM", || site.stop());
    Ok(())
}

fn print(found: &Informed) -> Result<()> {
    let Informed { count, objects, bytes, took, spent } = *found;
    note(&format!(
        "    {count} were sent {objects} objects ({} KiB) each in {took:.1?}; the server spent {spent:.1?}, {:.1?} for each thousand objects",
        bytes >> 10,
        found.per_thousand()?
    ));
    Ok(())
}
