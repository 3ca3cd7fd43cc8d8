//! Clients that hold connections, request slots and responses without using them.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::MAPS;
use crate::access::{Access, Stream};

const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two bytes of a slow sender.
const PAUSE: Duration = Duration::from_millis(500);

/// The clients, which stay connected until the drop.
#[derive(Debug)]
pub struct Crowd {
    /// Clients that send nothing more, or have announced that they will not.
    silent: Vec<Stream>,
    over: Arc<AtomicBool>,
    slow: Option<JoinHandle<()>>,
    count: usize,
}

impl Crowd {
    pub(super) fn gather(access: &Access, each: usize) -> Result<Self> {
        let asks = |rest: &str| {
            let (host, token) = (&access.address, access.token());
            format!(
                "{rest} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            )
        };
        let open = |bytes: &str| -> Result<Stream> {
            let mut stream = access.stream(PATIENCE)?;
            stream.get_mut().write_all(bytes.as_bytes())?;
            stream.get_mut().flush()?;
            Ok(stream)
        };
        let (mut silent, mut slow) = (Vec::new(), Vec::new());
        for _ in 0..each {
            // A request head without an end.
            slow.push(open(&format!("{}X-Slow: ", asks("GET /api")))?);
            // Bodies that arrive a byte at a time, small and large; each is admitted, and so holds a request's resources.
            slow.push(open(&format!("{}Content-Length: 1000\r\n\r\n{{", asks(&format!("POST {MAPS}"))))?);
            slow.push(open(&format!("{}Content-Length: 2000000\r\n\r\n{{", asks(&format!("POST {MAPS}"))))?);
            slow.push(open(&format!(
                "{}Transfer-Encoding: chunked\r\n\r\n",
                asks(&format!("PUT {MAPS}/n1"))
            ))?);
            // Lists that the client does not read.
            silent.push(open(&format!("{0}\r\n{0}\r\n{0}\r\n", asks(&format!("GET {MAPS}"))))?);
            // Watches that the client does not read.
            silent.push(open(&format!("{}\r\n", asks(&format!("GET {MAPS}?watch=1&resourceVersion=0"))))?);
            // Connections without any request.
            silent.push(open("")?);
            // And connections that have sent a request and will not send another.
            let stream = open(&format!("{}\r\n", asks("GET /apis")))?;
            stream.get_ref().sock.shutdown(Shutdown::Write)?;
            silent.push(stream);
        }
        let count = silent.len() + slow.len();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let slow = std::thread::Builder::new().spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // Clients that the server has disconnected are removed; the others continue.
                slow.retain_mut(|stream| {
                    let stream = stream.get_mut();
                    stream.write_all(b" ").and_then(|()| stream.flush()).is_ok()
                });
                std::thread::sleep(PAUSE);
            }
        })?;
        Ok(Self { silent, over, slow: Some(slow), count })
    }

    /// The number of clients at the start.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Disconnects them.
    pub fn disperse(mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        if let Some(slow) = self.slow.take() {
            slow.join().map_err(|_| anyhow!("the slow senders panicked"))?;
        }
        self.silent.clear();
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
