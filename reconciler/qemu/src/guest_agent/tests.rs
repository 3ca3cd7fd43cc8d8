use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// A guest that replies to every line with the result of `answer`. Sync is answered automatically.
pub(super) fn guest(answer: impl Fn(&Value) -> Option<String> + Send + 'static) -> GuestAgent {
    let (near, far) = tokio::io::duplex(4 << 20);
    tokio::spawn(serve(far, answer));
    GuestAgent::over(near)
}

async fn serve(mut stream: DuplexStream, answer: impl Fn(&Value) -> Option<String>) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        bytes.extend_from_slice(&chunk[..count]);
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).filter(|b| *b != 0xff).collect();
            let Ok(message) = serde_json::from_slice::<Value>(&line) else { continue };
            let reply = if message["execute"] == "guest-sync-delimited" {
                let mut reply = vec![0xff];
                reply.extend(json!({"return": message["arguments"]["id"]}).to_string().into_bytes());
                reply
            } else {
                match answer(&message) {
                    Some(text) => text.into_bytes(),
                    None => continue,
                }
            };
            if stream.write_all(&reply).await.is_err() || stream.write_all(b"\n").await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_said_within_the_limit() {
    let (near, _far) = tokio::io::duplex(1 << 16);
    let mut agent = GuestAgent::over(near).with_timeout(Duration::from_secs(1));
    let start = tokio::time::Instant::now();
    let outcome = agent.ping().await;
    assert!(matches!(outcome, Err(GuestAgentError::Silent { .. })), "{outcome:?}");
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn stale_and_half_answers_of_before_are_skipped() {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    far.write_all(b"{\"return\": {}}\n{\"return\": {\"host-name\": \"wro").await.expect("sent");
    tokio::spawn(serve(far, |_| Some(json!({"return": {"host-name": "right"}}).to_string())));
    assert_eq!(GuestAgent::over(near).host_name().await.expect("answered"), "right");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_to_the_client_before_is_not_taken_for_ones_own() {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let outcome = GuestAgent::over(near).with_timeout(Duration::from_secs(1)).ping().await;
    assert!(matches!(outcome, Err(GuestAgentError::Silent { .. })), "{outcome:?}");
    let mut asked = vec![0; 1 << 10];
    let length = far.read(&mut asked).await.expect("it was asked");
    let asked: Value = serde_json::from_slice(&asked[1..length]).expect("a request after 0xff");
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let late = json!({"return": asked["arguments"]["id"]});
    far.write_all(format!("{late}\n").as_bytes()).await.expect("sent");
    tokio::spawn(serve(far, |_| Some(json!({"return": {"host-name": "right"}}).to_string())));
    assert_eq!(GuestAgent::over(near).host_name().await.expect("answered"), "right");
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_long_stale_answer_is_discarded() {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        far.write_all(&vec![b'x'; 6 << 20]).await.expect("sent");
        far.write_all(b"\n").await.expect("sent");
        serve(far, |_| Some(json!({"return": {"host-name": "right"}}).to_string())).await;
    });
    assert_eq!(GuestAgent::over(near).host_name().await.expect("answered"), "right");
}

#[tokio::test(start_paused = true)]
async fn after_a_timeout_the_late_answer_is_not_taken_for_the_next() {
    let (near, far) = tokio::io::duplex(1 << 16);
    let mut agent = GuestAgent::over(near).with_timeout(Duration::from_secs(1));
    tokio::spawn(async move {
        let (mut near, inner) = (far, tokio::io::duplex(1 << 16));
        let (mut inside, outside) = inner;
        tokio::spawn(serve(outside, |message| {
            let name = if message["execute"] == "guest-get-osinfo" { "id" } else { "host-name" };
            Some(json!({"return": {name: "answer"}}).to_string())
        }));
        // A slow line with an initial delay of two seconds.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let _ = tokio::io::copy_bidirectional(&mut near, &mut inside).await;
    });
    assert!(matches!(agent.os_info().await, Err(GuestAgentError::Silent { .. })));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(agent.host_name().await.expect("answered"), "answer");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_in_the_guests_words_without_control_characters() {
    let mut agent =
        guest(|_| Some(json!({"error": {"class": "GenericError", "desc": "no \u{1b}[31m way"}}).to_string()));
    let error = agent.os_info().await.expect_err("refused");
    assert_eq!(error.to_string(), "the guest agent refused guest-get-osinfo: no [31m way");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_floods_is_cut_off() {
    let mut agent = guest(|_| Some("x".repeat(3 << 20)));
    let outcome = agent.os_info().await;
    assert!(matches!(outcome, Err(GuestAgentError::Broken { .. })), "{outcome:?}");
    let nested = format!("{{\"return\": {}", "[".repeat(1 << 16));
    let mut agent = guest(move |_| Some(nested.clone()));
    assert!(matches!(agent.os_info().await, Err(GuestAgentError::Broken { .. })));
}

#[tokio::test(start_paused = true)]
async fn more_than_anybody_has_is_not_kept() {
    let many = json!({"return": (0..5000).map(|n| json!({"name": "e".repeat(1000), "ip-addresses": [
        {"ip-address": "10.0.0.1", "prefix": 24}, {"ip-address": "bogus", "prefix": 24}, {"ip-address": "10.0.0.2", "prefix": 64 + n}]})).collect::<Vec<_>>()});
    // Just below the maximum length of one message.
    let text = many.to_string();
    let mut agent = guest(move |_| Some(text.chars().take(usize::MAX).collect()));
    match agent.interfaces().await {
        Err(GuestAgentError::Broken { .. }) => {}
        other => panic!("five megabytes were taken: {other:?}"),
    }
    let fewer = json!({"return": many["return"].as_array().expect("a list")[..500]}).to_string();
    let interfaces = guest(move |_| Some(fewer.clone())).interfaces().await.expect("answered");
    assert_eq!((interfaces.len(), interfaces[0].name.len(), interfaces[0].addresses.len()), (64, 256, 1));
}

#[tokio::test(start_paused = true)]
async fn shutting_down_needs_an_agent_and_no_answer() {
    let mut agent =
        guest(|message| (message["execute"] == "guest-ping").then(|| r#"{"return": {}}"#.to_owned()));
    agent.shutdown(ShutdownMode::Powerdown).await.expect("silence is what a guest that goes down says");
    let (near, _far) = tokio::io::duplex(1 << 16);
    let nobody = GuestAgent::over(near).shutdown(ShutdownMode::Reboot).await;
    assert!(matches!(nobody, Err(GuestAgentError::Silent { .. })), "{nobody:?}");
}

#[tokio::test(start_paused = true)]
async fn a_suspension_needs_an_agent_and_no_answer_and_may_be_refused() {
    let is_ping = |message: &Value| message["execute"] == "guest-ping";
    let mut agent = guest(move |message| is_ping(message).then(|| r#"{"return": {}}"#.to_owned()));
    agent.suspend_to_memory().await.expect("a guest that sleeps does not answer");
    let refusal = r#"{"error": {"class": "GenericError", "desc": "the requested suspend mode is not supported by the guest"}}"#;
    let mut unable =
        guest(move |message| Some(if is_ping(message) { r#"{"return": {}}"# } else { refusal }.to_owned()));
    let refused = unable.suspend_to_memory().await.expect_err("it cannot").to_string();
    assert!(refused.contains("guest-suspend-ram: the requested suspend mode"), "{refused}");
    let (near, _far) = tokio::io::duplex(1 << 16);
    let without = GuestAgent::over(near).suspend_to_memory().await;
    assert!(matches!(without, Err(GuestAgentError::Silent { .. })), "{without:?}");
}

/// As qemu-guest-agent 7.2 of Debian 12 reports it.
#[tokio::test(start_paused = true)]
async fn mounts_are_found_by_serial_number_or_address() {
    let answer = json!({"return": [
        {"name": "sda1", "mountpoint": "/", "type": "ext4", "total-bytes": 1, "used-bytes": 1, "disk": [
            {"bus-type": "scsi", "bus": 0, "target": 0, "unit": 0, "dev": "/dev/sda1", "serial": "0QEMU_QEMU_HARDDISK_v-1",
             "pci-controller": {"domain": 0, "bus": 0, "slot": 2, "function": 0}}]},
        {"name": "sdb", "mountpoint": "/data", "type": "xfs", "disk": [
            {"bus-type": "scsi", "bus": 0, "target": 1, "unit": 0, "dev": "/dev/sdb",
             "pci-controller": {"domain": 0, "bus": 0, "slot": 2, "function": 0}}]},
        {"name": "tmpfs", "mountpoint": "/tmp", "type": "tmpfs", "disk": []},
    ]});
    let filesystems = guest(move |_| Some(answer.to_string())).filesystems().await.expect("answered");
    let at = |serial: &str, target| {
        mounts_of(&filesystems, serial, target).iter().map(|f| f.mountpoint.clone()).collect::<Vec<_>>()
    };
    assert_eq!(at("v-1", None), ["/"]);
    assert_eq!(at("v-2", Some(1)), ["/data"]);
    assert!(at("v-2", Some(0)).is_empty(), "the serial number names another disk");
    assert!(at("1", Some(7)).is_empty());
}
