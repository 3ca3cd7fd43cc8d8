//! The load of `cargo measure N14 N16 N17`: in a guest, on a disk or towards a server; outside, the server of the network load. It uses
//! the standard library only, so that `rustc` links it statically for a guest that has no libraries.
//!
//! ```text
//! guest-load disk DEVICE SECONDS            bytes or operations a second of each kind of access
//! guest-load pauses DEVICE                  microseconds of the longest write in each fifth of a second
//! guest-load network ADDRESS:PORT SECONDS   bytes, packets or round trips a second
//! guest-load serve ADDRESS:PORT             the server
//! ```
//!
//! Each result is a line `guest-load KIND VALUE` on the standard output.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `O_DIRECT` of Linux on x86-64: past the guest's page cache.
const DIRECT: i32 = 0o40_000;
/// The alignment that direct access to any disk is content with.
const ALIGNMENT: usize = 4096;
/// The bytes that a connection writes or reads at once.
const BUFFER: usize = 128 << 10;
/// The payload of a small packet.
const PACKET: usize = 64;
/// The blocks of a device that `pauses` writes to.
const PAUSE_BLOCKS: u64 = 4096;
/// The interval between two reports of `pauses`.
const PAUSE_REPORT: Duration = Duration::from_millis(200);
/// The first byte of a connection says what the client wants.
const SINK: u8 = b'S';
const SOURCE: u8 = b'R';
const ECHO: u8 = b'E';
const PACKETS: u8 = b'P';

/// A kind of access to a disk.
struct Access {
    name: &'static str,
    block: usize,
    /// The number of requests under way at a time.
    depth: u64,
    writes: bool,
    random: bool,
}

const ACCESSES: &[Access] = &[
    Access { name: "disk-write", block: 1 << 20, depth: 4, writes: true, random: false },
    Access { name: "disk-read", block: 1 << 20, depth: 4, writes: false, random: false },
    Access { name: "disk-random-write", block: 4096, depth: 16, writes: true, random: true },
    Access { name: "disk-random-read", block: 4096, depth: 16, writes: false, random: true },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["disk", device, seconds] => time(seconds).and_then(|time| disk(device, time)),
        ["pauses", device] => pauses(device),
        ["network", server, seconds] => time(seconds).and_then(|time| network(server, time)),
        ["serve", address] => serve(address),
        _ => Err(io::Error::other(
            "guest-load disk DEVICE SECONDS | pauses DEVICE | network ADDRESS:PORT SECONDS | serve ADDRESS:PORT",
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a console, the exit code remains.
            let _unread = writeln!(io::stdout(), "guest-load failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn time(seconds: &str) -> io::Result<Duration> {
    seconds.parse().map(Duration::from_secs).map_err(io::Error::other)
}

#[expect(clippy::cast_precision_loss, reason = "no count reaches 2^52")]
fn report(name: &str, count: u64, elapsed: Duration) -> io::Result<()> {
    writeln!(io::stdout(), "guest-load {name} {:.0}", count as f64 / elapsed.as_secs_f64())
}

/// Measures each kind of access after all blocks were written once.
fn disk(device: &str, time: Duration) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(DIRECT).open(device)?;
    let size = file.seek(SeekFrom::End(0))?;
    let all = ACCESSES[0].block as u64;
    let (block, mut at) = (Block::new(ACCESSES[0].block), 0);
    while at + all <= size {
        file.write_all_at(block.bytes(), at)?;
        at += all;
    }
    for access in ACCESSES {
        let began = Instant::now();
        let done = accesses(&file, size, access, began + time)?;
        let elapsed = began.elapsed();
        let count = if access.random { done } else { done * access.block as u64 };
        report(access.name, count, elapsed)?;
    }
    Ok(())
}

/// Writes small blocks, one after the other, and reports the longest time of one at short intervals, until it is ended.
fn pauses(device: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(DIRECT).open(device)?;
    let longest = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&longest);
    // The console is slow: the writes do not wait for it.
    let writer = std::thread::spawn(move || -> io::Result<()> {
        let (block, mut random) = (Block::new(ALIGNMENT), Random(1));
        loop {
            let at = random.next() % PAUSE_BLOCKS * ALIGNMENT as u64;
            let began = Instant::now();
            file.write_all_at(block.bytes(), at)?;
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            seen.fetch_max(took, Ordering::Relaxed);
        }
    });
    while !writer.is_finished() {
        std::thread::sleep(PAUSE_REPORT);
        writeln!(io::stdout(), "guest-load pause {}", longest.swap(0, Ordering::Relaxed))?;
    }
    writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
}

/// Returns the number of accesses before `end`.
fn accesses(file: &File, size: u64, access: &Access, end: Instant) -> io::Result<u64> {
    let next = AtomicU64::new(0);
    let blocks = size / access.block as u64;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=access.depth)
            .map(|seed| {
                let next = &next;
                scope.spawn(move || -> io::Result<u64> {
                    let (mut block, mut random, mut done) = (Block::new(access.block), Random(seed), 0);
                    while Instant::now() < end {
                        let number =
                            if access.random { random.next() } else { next.fetch_add(1, Ordering::Relaxed) };
                        let at = number % blocks * access.block as u64;
                        if access.writes {
                            file.write_all_at(block.bytes(), at)?;
                        } else {
                            file.read_exact_at(block.bytes_mut(), at)?;
                        }
                        done += 1;
                    }
                    Ok(done)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("it does not panic")).sum()
    })
}

/// Measures each kind of traffic. Every connection is opened by the guest.
fn network(server: &str, time: Duration) -> io::Result<()> {
    let connect = |kind: u8| -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.write_all(&[kind])?;
        Ok(stream)
    };
    let mut buffer = vec![b'x'; BUFFER];
    let mut stream = connect(SINK)?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        count += stream.write(&buffer)? as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // The server answers when it has read all.
    stream.read_exact(&mut [0])?;
    report("tcp-send", count, began.elapsed())?;

    let mut stream = connect(SOURCE)?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        count += stream.read(&mut buffer)? as u64;
    }
    report("tcp-receive", count, began.elapsed())?;
    drop(stream);

    let mut stream = connect(ECHO)?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        count += 1;
    }
    report("tcp-round-trips", count, began.elapsed())?;

    let packets = || -> io::Result<u64> {
        let mut total = [0; 8];
        connect(PACKETS)?.read_exact(&mut total)?;
        Ok(u64::from_be_bytes(total))
    };
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    let (before, began) = (packets()?, Instant::now());
    while began.elapsed() < time {
        // A full queue of the device is no failure: the packet counts as lost.
        let _lost = socket.send(&buffer[..PACKET]);
    }
    let elapsed = began.elapsed();
    // The last packets are on their way.
    std::thread::sleep(Duration::from_millis(200));
    report("udp-packets", packets()? - before, elapsed)?;
    Ok(())
}

/// Serves until it is ended.
fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let socket = UdpSocket::bind(address)?;
    let packets = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&packets);
    std::thread::spawn(move || {
        while socket.recv(&mut [0; PACKET]).is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for stream in listener.incoming() {
        let (stream, packets) = (stream?, Arc::clone(&packets));
        // A client that goes away ends its connection only.
        std::thread::spawn(move || answer(stream, &packets));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, packets: &AtomicU64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    let mut buffer = vec![b'x'; BUFFER];
    match kind[0] {
        SINK => {
            while stream.read(&mut buffer)? > 0 {}
            stream.write_all(b"x")
        }
        SOURCE => loop {
            stream.write_all(&buffer)?;
        },
        ECHO => loop {
            stream.read_exact(&mut kind)?;
            stream.write_all(&kind)?;
        },
        _ => stream.write_all(&packets.load(Ordering::Relaxed).to_be_bytes()),
    }
}

/// Aligned bytes without long runs of zeros, which disks may leave out.
struct Block {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Block {
    fn new(length: usize) -> Self {
        let mut random = Random(length as u64);
        let mut bytes = vec![0; length + ALIGNMENT];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&random.next().to_ne_bytes());
        }
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
