use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

use super::*;

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"], "later": 1}}"#;

/// A server that sends the test's messages.
struct Script {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

impl Script {
    async fn say(&mut self, text: &str) {
        self.writer.write_all(format!("{text}\r\n").as_bytes()).await.expect("a listener");
    }

    async fn hear(&mut self) -> Value {
        let line = self.lines.next_line().await.expect("readable").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    async fn return_to(&mut self, request: &Value, value: Value) {
        self.say(&json!({"return": value, "id": request["id"]}).to_string()).await;
    }
}

async fn connected() -> (Qmp, Events, Script) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(far);
    let mut script = Script { lines: BufReader::new(reader).lines(), writer };
    let server = async {
        script.say(GREETING).await;
        let request = script.hear().await;
        assert_eq!(request["execute"], "qmp_capabilities");
        script.return_to(&request, json!({})).await;
    };
    let (client, ()) = tokio::join!(Qmp::over(near), server);
    let (qmp, events) = client.expect("connected");
    (qmp, events, script)
}

#[tokio::test(start_paused = true)]
async fn the_greeting_tells_the_version_and_unknown_fields_do_not_matter() {
    let (qmp, _events, _script) = connected().await;
    let expected = Version { major: 7, minor: 2, micro: 22, package: "Debian".to_owned() };
    assert_eq!(qmp.version(), &expected);
}

#[tokio::test(start_paused = true)]
async fn events_of_before_an_answer_are_there_when_the_answer_is() {
    let (qmp, mut events, mut script) = connected().await;
    let server = async {
        let request = script.hear().await;
        script.say(r#"{"event": "NEVER_HEARD_OF", "data": {"x": 1}, "timestamp": {"seconds": 1, "microseconds": 5}}"#).await;
        script.say(r#"{"event": "STOP"}"#).await;
        script.return_to(&request, json!({"running": false})).await;
    };
    let (answer, ()) = tokio::join!(qmp.execute("query-status", Value::Null), server);
    assert_eq!(answer.expect("answered"), json!({"running": false}));
    let Some(Notice::Event(first)) = events.try_next() else { panic!("no event") };
    assert_eq!((first.kind(), first.timestamp_us), (EventKind::Other, Some(1_000_005)));
    let Some(Notice::Event(second)) = events.try_next() else { panic!("no event") };
    assert_eq!(second.kind(), EventKind::Stop);
    assert_eq!(events.try_next(), None);
}

#[tokio::test(start_paused = true)]
async fn answers_find_their_questions_in_any_order() {
    let (qmp, _events, mut script) = connected().await;
    let server = async {
        let (first, second) = (script.hear().await, script.hear().await);
        script.return_to(&second, json!(second["execute"])).await;
        script.return_to(&first, json!(first["execute"])).await;
    };
    let (a, b, ()) =
        tokio::join!(qmp.execute("one", Value::Null), qmp.execute("two", json!({"x": [1]})), server);
    assert_eq!((a.expect("answered"), b.expect("answered")), (json!("one"), json!("two")));
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_dropped_and_the_connection_goes_on() {
    let (qmp, _events, mut script) = connected().await;
    let limit = Duration::from_secs(1);
    let server = async {
        let request = script.hear().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        script.return_to(&request, json!("late")).await;
        let request = script.hear().await;
        script.return_to(&request, json!("in time")).await;
    };
    let client = async {
        let late = qmp.execute_within("slow", Value::Null, limit).await;
        assert!(matches!(&late, Err(QmpError::Timeout { command, .. }) if command == "slow"), "{late:?}");
        qmp.execute("quick", Value::Null).await
    };
    let (answer, ()) = tokio::join!(client, server);
    assert_eq!(answer.expect("answered"), json!("in time"));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_carries_the_class_and_the_words() {
    let (qmp, _events, mut script) = connected().await;
    let server = async {
        let request = script.hear().await;
        let error = json!({"class": "DeviceNotFound", "desc": "Device 'x' not found"});
        script.say(&json!({"id": request["id"], "error": error}).to_string()).await;
    };
    let (answer, ()) = tokio::join!(qmp.execute("device_del", json!({"id": "x"})), server);
    let error = answer.expect_err("refused");
    assert!(error.is_device_not_found());
    assert_eq!(error.to_string(), "device_del: Device 'x' not found (DeviceNotFound)");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_fails_the_waiting_and_all_later_commands() {
    let (qmp, mut events, mut script) = connected().await;
    let server = async {
        script.hear().await;
        drop(script);
    };
    let (answer, ()) = tokio::join!(qmp.execute("query-status", Value::Null), server);
    let error = answer.expect_err("nobody answers");
    assert!(error.is_disconnected() && error.to_string().contains("closed by QEMU"), "{error}");
    qmp.closed().await;
    assert!(qmp.is_closed());
    assert!(qmp.execute("query-status", Value::Null).await.expect_err("nobody there").is_disconnected());
    assert_eq!(events.next().await, None);
    assert_eq!(qmp.events().next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_end_breaks_the_connection_and_not_the_memory() {
    let (qmp, _events, mut script) = connected().await;
    let flood = async {
        let chunk = vec![b'x'; 1 << 16];
        for _ in 0..2 * MAX_MESSAGE / chunk.len() {
            if script.writer.write_all(&chunk).await.is_err() {
                return;
            }
        }
        panic!("everything was taken");
    };
    tokio::join!(flood, qmp.closed());
    let error = qmp.execute("query-status", Value::Null).await.expect_err("broken");
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn garbage_breaks_the_connection_with_the_reason() {
    let (qmp, _events, mut script) = connected().await;
    script.say("{nonsense").await;
    qmp.closed().await;
    let error = qmp.execute("query-status", Value::Null).await.expect_err("broken");
    assert!(error.to_string().contains("not JSON"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_learns_how_many_events_it_missed() {
    let (qmp, mut events, mut script) = connected().await;
    let server = async {
        let request = script.hear().await;
        for _ in 0..EVENT_CAPACITY + 10 {
            script.say(r#"{"event": "RTC_CHANGE"}"#).await;
        }
        script.return_to(&request, json!({})).await;
    };
    let (answer, ()) = tokio::join!(qmp.execute("stop", Value::Null), server);
    answer.expect("events do not block answers");
    assert_eq!(events.next().await, Some(Notice::Missed(10)));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_takes_the_connection_with_it() {
    let (qmp, events, mut script) = connected().await;
    let clone = qmp.clone();
    drop(qmp);
    assert!(!clone.is_closed());
    drop((clone, events));
    assert!(script.lines.next_line().await.expect("readable").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_greet_is_named() {
    let (near, _far) = tokio::io::duplex(64);
    let silent = Qmp::over_within(near, Duration::from_secs(2)).await;
    assert!(matches!(silent, Err(QmpError::NoGreeting { .. })), "{silent:?}");
    let (near, mut far) = tokio::io::duplex(64);
    far.write_all(b"SSH-2.0-OpenSSH\n").await.expect("sent");
    let other = Qmp::over(near).await;
    assert!(matches!(other, Err(QmpError::NotQmp { .. })), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_events_is_read_at_a_limited_rate_and_the_answer_behind_it_comes() {
    let (qmp, _events, mut script) = connected().await;
    let begun = tokio::time::Instant::now();
    let server = async {
        let request = script.hear().await;
        for _ in 0..3 * connection::MOST_UNASKED {
            script.say(r#"{"event": "RTC_CHANGE"}"#).await;
        }
        script.return_to(&request, json!({})).await;
    };
    let (answer, ()) = tokio::join!(qmp.execute("stop", Value::Null), server);
    answer.expect("answered");
    let seconds = begun.elapsed().as_secs();
    assert!((2..=4).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_longer_than_any_of_qemu_is_not_kept() {
    let (qmp, mut events, mut script) = connected().await;
    let server = async {
        let request = script.hear().await;
        let long = "x".repeat(1 << 20);
        script.say(&json!({"event": "STOP", "data": {"long": long}}).to_string()).await;
        script.say(r#"{"event": "RESUME"}"#).await;
        script.return_to(&request, json!({"running": true})).await;
    };
    let (answer, ()) = tokio::join!(qmp.execute("query-status", Value::Null), server);
    assert_eq!(answer.expect("answered"), json!({"running": true}));
    let Some(Notice::Event(first)) = events.try_next() else { panic!("no event") };
    assert_eq!(first.kind(), EventKind::Resume);
}

#[tokio::test(start_paused = true)]
async fn the_words_of_a_refusal_are_of_bounded_length_and_have_no_control_characters() {
    let (qmp, _events, mut script) = connected().await;
    let server = async {
        let request = script.hear().await;
        let error = json!({"class": "GenericError", "desc": "\u{1b}[31m".to_owned() + &"x".repeat(1 << 20)});
        script.say(&json!({"id": request["id"], "error": error}).to_string()).await;
    };
    let (answer, ()) = tokio::join!(qmp.execute("stop", Value::Null), server);
    let error = answer.expect_err("refused").to_string();
    assert!(error.starts_with("stop: [31mxxx") && error.len() < 2000, "{} bytes", error.len());
}
