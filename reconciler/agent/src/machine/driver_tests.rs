//! The driver of a QEMU that a guest has taken over, or that stands still.

use berth_api::VM;
use berth_engine::{Clock, Queue, RuntimeClock};
use berth_host::fake::FakeSystem;
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::qmp::Event;
use futures::future::join_all;
use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::{Notify, oneshot, watch};

use super::super::{Machine, QUEUE_LENGTH, WAKE_EVERY, WAKES_AT_ONCE};
use super::*;
use crate::key::{Key, ObjectName};

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 9}}}}"#;
const PORT_OPENED: &str = r#"{"event": "VSERPORT_CHANGE", "data": {"id": "port", "open": true}}"#;
/// As many as a connection keeps for a reader.
const MANY: u64 = 64;

/// Returns a connection to a QEMU that has greeted, and answers nothing more by itself.
async fn connected() -> (Qmp, Events, BufReader<DuplexStream>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let mut far = BufReader::new(far);
    let greeting = async move {
        far.write_all(format!("{GREETING}\n").as_bytes()).await.expect("a client");
        far.read_line(&mut String::new()).await.expect("a request");
        far.write_all(b"{\"return\": {}, \"id\": 1}\n").await.expect("a client");
        far
    };
    let (client, far) = tokio::join!(Qmp::over(near), greeting);
    let (qmp, events) = client.expect("connected");
    (qmp, events, far)
}

struct Driven {
    driver: Driver,
    machine: Machine,
    queue: Arc<Queue<Key>>,
}

fn driven(qmp: Qmp, events: Events) -> Driven {
    let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH));
    let queue = Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1)));
    let (sender, commands) = mpsc::channel(QUEUE_LENGTH);
    let (published, state) = watch::channel(DriverState::default());
    let identity = ProcessIdentity { pid: 7, start_time: 1, boot_id: String::new() };
    let driver = Driver {
        qmp,
        events,
        commands,
        published,
        notifier: Notifier {
            queue: queue.clone(),
            key: Some(Key::new::<VM>(ObjectName::new("ns", "web"))),
            guest: Arc::new(Notify::new()),
            clock: clock.clone(),
        },
        process: ProcessFacts { identity, started_at: Timestamp::UNIX_EPOCH, dedicated: None },
        system: Arc::new(FakeSystem::new(clock)),
        instance: "i-1".to_owned(),
        devices: Devices::default(),
        links: BTreeMap::new(),
        link_at_start: None,
        expects_resume: false,
        expects_stop: false,
        cpus: None,
        can_grow: None,
        may_have_tpm: true,
        may_have_shares: true,
        reports_memory: false,
        has_started: false,
        is_sending: false,
        may_have_left: true,
        wakes: Pace::new(WAKE_EVERY, WAKES_AT_ONCE),
        // All of them count.
        starts: Pace::new(Duration::ZERO, 1),
    };
    let machine = Machine { commands: sender, driver: state, ..Machine::unconnected() };
    Driven { driver, machine, queue }
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_floods_its_driver_with_events_does_not_keep_a_request_waiting() {
    let (qmp, events, mut far) = connected().await;
    for _ in 0..MANY {
        far.write_all(format!("{PORT_OPENED}\n").as_bytes()).await.expect("a client");
    }
    // The connection has read all of them.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let Driven { driver, machine, .. } = driven(qmp, events);
    let (reply, answer) = oneshot::channel();
    machine.commands.send(Command::AssumeLinksUp(reply)).await.expect("there is room");
    let driving = tokio::spawn(driver.drive());
    answer.await.expect("executed").expect("done");
    let seen = machine.agent_starts();
    assert!(seen < MANY, "{seen} events came first");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(machine.agent_starts(), MANY, "none is lost");
    driving.abort();
}

#[tokio::test(start_paused = true)]
async fn events_in_any_number_enqueue_a_vm_at_a_pace() {
    let (qmp, events, _far) = connected().await;
    let Driven { mut driver, queue, .. } = driven(qmp, events);
    let stop = Notice::Event(Event { name: "STOP".to_owned(), data: Value::Null, timestamp_us: None });
    let mut reconciles = 0;
    for _ in 0..1000 {
        driver.handle_event(&stop);
        if let Some(key) = queue.try_next() {
            queue.succeeded(&key);
            reconciles += 1;
        }
    }
    assert_eq!(reconciles, WAKES_AT_ONCE);
    tokio::time::sleep(WAKE_EVERY).await;
    assert!(queue.try_next().is_some(), "the last one counts");
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_when_qemu_falls_silent_do_not_wait_one_after_the_other() {
    let (qmp, events, _far) = connected().await;
    let Driven { driver, machine, queue } = driven(qmp, events);
    let driving = tokio::spawn(driver.drive());
    let begun = Instant::now();
    let asked = join_all((0..3 * QUEUE_LENGTH).map(|_| machine.state())).await;
    assert!(asked.iter().all(|answer| answer.as_ref().is_err_and(MachineError::is_timeout)), "{asked:?}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(machine.is_silent() && queue.try_next().is_some());
    let begun = Instant::now();
    assert!(machine.start().await.is_err_and(|error| error.is_timeout()));
    assert!(begun.elapsed().is_zero(), "it is known to be silent");
    assert!(machine.cancel_save().await.is_err());
    assert!(!begun.elapsed().is_zero(), "one that saves its guest answers late");
    driving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_answers_again_is_asked_again() {
    let (qmp, events, mut far) = connected().await;
    let Driven { driver, machine, .. } = driven(qmp, events);
    let driving = tokio::spawn(driver.drive());
    machine.check_answer();
    tokio::time::sleep(ANSWER_WAIT * 2).await;
    assert!(machine.is_silent());
    machine.check_answer();
    let mut request = String::new();
    while !request.contains("\"id\":3") {
        request.clear();
        far.read_line(&mut request).await.expect("a request");
    }
    far.write_all(b"{\"return\": {\"status\": \"running\"}, \"id\": 3}\n").await.expect("a client");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!machine.is_silent());
    driving.abort();
}
