//! A control plane under load and under hostile clients.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Kit;
use crate::load::{CUT_OFF, Site, Size, flood};
use crate::report::{Report, note};
use crate::{wait, workspace};

/// How much of it: more than a debug build does in a moment, and done within three minutes.
const SIZE: Size = Size {
    writers: 100,
    objects: 10_000,
    followers: 12,
    sleepers: 3,
    watchers: 1_000,
    changes: 200,
    hostile: 120,
};
/// Clients that send bodies of every size at once.
const FLOOD: usize = 40;
/// Rounds an ordinary client gets through while there is a crowd.
const ROUNDS: u32 = 20;
/// Hostile clients that are sent away have gone by then.
const GONE: Duration = Duration::from_secs(120);

/// The most memory it may need for this, MiB, from the limits the server has (docs/control-plane.md):
///
/// | what | how many | each |
/// |---|---|---|
/// | the program itself, SQLite's cache | | 100 MiB |
/// | objects: text, index, recent events with their frames | all | 8 KiB |
/// | connections: TLS, HTTP buffers | all | 96 KiB |
/// | large bodies, received or answered | 32 | 3 MiB as they come, as one text, as values, as what is stored |
/// | large objects that are stored | those of the flood | 1.5 MiB, twice |
/// | what waits for watchers, shared by them | | 16 MiB, and its frames |
///
/// Of a body with more than 250,000 values none is made: those that the flood sends stay text. Two fifths of it all were
/// used: the rest is for machines on which more of this is under way at the same moment.
fn most_memory() -> usize {
    let connections = SIZE.watchers + SIZE.followers + SIZE.writers + 8 * SIZE.hostile + FLOOD;
    100 + SIZE.objects * 8 / 1024 + connections * 96 / 1024 + 32 * 4 * 3 + FLOOD * 3 + 2 * 16
}

/// Runs the lane.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let logs = workspace::artifacts().join("load");
    let site = report.step("a control plane is up", || Site::start(&berth, &logs.join("up.log")))?;
    let fact = "many write and many more watch: nothing acknowledged is lost or doubled, each watcher is told all of it in order";
    let found = report.step(fact, || site.write_and_watch(SIZE))?;
    let told = found.followers.events + found.watchers.events;
    let (expired, broken) = (found.followers.expired, found.followers.broken + found.watchers.broken);
    note(&format!(
        "    {} writes, {told} events told, {expired} watches ended with 410 and {broken} otherwise",
        found.writes
    ));
    let fact =
        "who did not read was cut off with 410, which /metrics tells, and resumed without losing an event";
    report.case(fact, || {
        let cut_off = site.metric(CUT_OFF)?;
        ensure!(expired >= SIZE.sleepers as u64, "{expired} were told 410, {} did not read", SIZE.sleepers);
        ensure!(
            cut_off >= expired + found.watchers.expired,
            "{cut_off} cut off, more were told so: {found:?}"
        );
        Ok(())
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
                open < 20 && watches < 20 && coming == 0,
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
    report.case("it still ends when it is told to", || site.stop());
    Ok(())
}
