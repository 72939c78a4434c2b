//! What iperf3 gives over loopback: a second opinion about the wire.

use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs, of which the best counts: the limit is asked for.
const RUNS: usize = 3;

/// Bytes a second over one connection in requests of 1 MiB; none if iperf3 is not there.
pub(super) fn measure() -> Option<f64> {
    let rates: Vec<f64> = (0..RUNS).filter_map(|_| run_once()).collect();
    if rates.is_empty() {
        eprintln!("iperf3: cannot be run; the wire is not compared with it");
    }
    rates.into_iter().max_by(f64::total_cmp)
}

fn run_once() -> Option<f64> {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let port = port.to_string();
    let mut server = Command::new("iperf3")
        .args(["--server", "--one-off", "--bind", "127.0.0.1", "--port", &port])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    std::thread::sleep(Duration::from_millis(200));
    let output = Command::new("iperf3")
        .args(["--client", "127.0.0.1", "--port", &port, "--len", "1M", "--time", "2", "--json"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    // It ends after one test; if there was none, it must not stay.
    let _ = server.kill();
    let _ = server.wait();
    let result: Value = serde_json::from_slice(&output.ok()?.stdout).ok()?;
    Some(result["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}
