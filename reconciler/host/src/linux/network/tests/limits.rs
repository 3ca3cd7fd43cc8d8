//! Ceilings for traffic: how many packets of real machines pass.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::guest::Guest;
use super::*;
use crate::{Port, PortLimits, TrafficLimit};

const SENT: usize = 500;
const SIZE: usize = 1000;

fn port(last: u8) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: lease(last).mac,
        address: lease(last).address,
        ipv6: lease(last).ipv6,
    }
}

fn guest(last: u8) -> Guest {
    let guest = Guest::by_tap(BRIDGE, &port(last).tap, last);
    guest.on(move || ip(&format!("addr add 10.77.0.{last}/24 dev eth0")));
    guest
}

/// Sends packets to 10.77.0.`to`. Returns how many arrive, and the seconds from the first to the last.
fn arrive(sender: &Guest, receiver: &Guest, to: u8) -> (usize, f64) {
    let socket = receiver.on(|| UdpSocket::bind("0.0.0.0:9999").expect("a free port"));
    socket.set_read_timeout(Some(Duration::from_millis(700))).expect("a timeout");
    // Room for all of them, so that the link alone decides how many arrive.
    setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20)).expect("as root");
    let began = Instant::now();
    let counting = std::thread::spawn(move || {
        let (mut count, mut last) = (0, began);
        while socket.recv(&mut [0; SIZE]).is_ok() {
            count += 1;
            last = Instant::now();
        }
        (count, last.duration_since(began).as_secs_f64())
    });
    sender.on(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
        for n in 0..SENT {
            socket.send_to(&[0; SIZE], format!("10.77.0.{to}:9999")).expect("sent");
            if n % 10 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    counting.join().expect("it counts")
}

#[test]
fn a_tap_sends_and_receives_no_more_than_its_limits_and_others_all() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let with = |limits: Vec<PortLimits>| Firewall {
            ports: vec![port(5), port(6), port(7)],
            guests: true,
            limits,
            ..firewall(&[])
        };
        let packets = TrafficLimit { packets: Some(100), bandwidth: None };
        let bandwidth = TrafficLimit { packets: None, bandwidth: Some((8_000, 128 << 10)) };
        let limited = PortLimits { tap: port(5).tap, ingress: bandwidth, egress: packets };
        f.networks.apply_firewall(&with(vec![limited.clone()])).await.expect("rules");
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let (a, b, c) = (guest(5), guest(6), guest(7));

        let (sent, seconds) = arrive(&a, &b, 6);
        assert!(sent > 0 && (sent as f64) < 32.0 + 100.0 * seconds + 10.0, "{sent} in {seconds} s");
        let (received, seconds) = arrive(&b, &a, 5);
        let most = (131_072.0 + 8_000.0 * seconds) / SIZE as f64 + 10.0;
        assert!(received > 20 && (received as f64) < most, "{received} in {seconds} s");
        let (neighbour, _) = arrive(&c, &b, 6);
        assert!(neighbour > SENT * 8 / 10, "{neighbour} of another machine");

        let more = TrafficLimit { packets: Some(100_000), bandwidth: None };
        let relaxed = PortLimits { egress: more, ..limited };
        f.networks.apply_firewall(&with(vec![relaxed])).await.expect("rules");
        let (sent, _) = arrive(&a, &b, 6);
        assert!(sent > SENT * 8 / 10, "{sent} with the new limit");
        f.networks.apply_firewall(&with(Vec::new())).await.expect("rules");
        let (received, _) = arrive(&b, &a, 5);
        assert!(received > SENT * 8 / 10, "{received} without a limit");
    });
}
