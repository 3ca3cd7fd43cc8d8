//! N5: how long Terraform waits for a provider's process to print its address. It starts one several times per command.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::handshake::{KUBERNETES, LIBVIRT, RATIO, START};
use super::samples::Samples;
use crate::undo::Undo;

/// The number of starts of each provider, in turn, so that all run under the same conditions.
const RUNS: usize = 31;
/// The cookie that Terraform sends: it shows a provider that it was not started by hand.
const COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let peers = bench.peers()?;
    let providers: [(Figure, &Path); 3] =
        [(START, &bench.binaries.provider), (KUBERNETES, &peers.kubernetes), (LIBVIRT, &peers.libvirt)];
    let certificate = certificate()?;
    let mut took: [Vec<f64>; 3] = Default::default();
    for run in 0..=RUNS {
        for ((_, program), took) in providers.iter().zip(&mut took) {
            let time = start(program, &certificate)?;
            // The first run of each only loads the file into memory.
            if run > 0 {
                took.push(time.as_secs_f64() * 1e3);
            }
        }
    }
    let samples: Vec<Samples> = took.into_iter().filter_map(Samples::new).collect();
    let mut readings: Vec<Reading> = providers
        .iter()
        .zip(&samples)
        .map(|((figure, _), samples)| Reading::median(*figure, samples))
        .collect();
    let best = samples[1].median().min(samples[2].median());
    readings.push(Reading::once(RATIO, samples[0].median() / best));
    Ok(readings)
}

/// The time from the start of the process to the line that ends the handshake.
fn start(program: &Path, certificate: &str) -> Result<Duration> {
    let mut command = Command::new(program);
    command.env(COOKIE.0, COOKIE.1).env("PLUGIN_PROTOCOL_VERSIONS", "5,6");
    // Terraform and its plugins authenticate with certificates for the one run: creating one is part of the handshake.
    command
        .env("PLUGIN_CLIENT_CERT", certificate)
        .env("PLUGIN_MIN_PORT", "10000")
        .env("PLUGIN_MAX_PORT", "25000");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let began = Instant::now();
    let mut plugin = Plugin::new(command.spawn().with_context(|| format!("starting {}", program.display()))?);
    let mut line = String::new();
    BufReader::new(plugin.child.stdout.take().context("its output")?).read_line(&mut line)?;
    let took = began.elapsed();
    ensure!(line.starts_with("1|"), "{} printed {line:?}", program.display());
    plugin.end();
    Ok(took)
}

/// A plugin's process, which is killed on drop.
struct Plugin {
    child: Child,
    undo: Option<Undo>,
}

impl Plugin {
    fn new(child: Child) -> Self {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid fits in pid_t"));
        let undo = Undo::later(move || {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        });
        Self { child, undo: Some(undo) }
    }

    fn end(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        // It may have ended by itself.
        let _ = self.child.kill();
        undo.forget();
        let _ = self.child.wait();
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.end();
    }
}

fn certificate() -> Result<String> {
    let key = rcgen::KeyPair::generate()?;
    Ok(rcgen::CertificateParams::new(["localhost".to_owned()])?.self_signed(&key)?.pem())
}
