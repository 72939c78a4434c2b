//! The machine that is measured on.

use serde::Serialize;

/// On what it was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) congestion_control: String,
    /// Runnable processes on average in the last minute, at the end: others disturb.
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn look() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let load = read("/proc/loadavg");
        Machine {
            // Not those that this process is bound to.
            // SAFETY: no pointers.
            cores: unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize,
            kernel: read("/proc/sys/kernel/osrelease"),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            load: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0),
        }
    }
}
