//! Servers in this process, and mounts of them.

use std::ffi::CString;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use weir_client::{ConnectOptions, FormOptions, Pool, PoolAddress, form};
use weir_core::auth::{Role, Secret};
use weir_core::config::Timing;
use weir_fuse::{MountOptions, Session};
use weir_server::{Server, ServerOptions};

/// Short enough for a test to wait for a dead server.
pub(crate) fn timing() -> Timing {
    Timing {
        heartbeat_ms: 200,
        silence_ms_max: 1_500,
        reconnect_ms: 50,
        busy_ms_max: 5_000,
        ..Timing::default()
    }
}

/// A pool of servers in this process.
pub(crate) struct TestPool {
    pub(crate) servers: Vec<Server>,
    address: PoolAddress,
    timing: Timing,
}

impl TestPool {
    pub(crate) fn new(servers: usize, memory: u64) -> TestPool {
        TestPool::with(servers, memory, timing(), str::to_owned)
    }

    /// `reached` says by which address clients reach a server.
    pub(crate) fn with(
        servers: usize,
        memory: u64,
        timing: Timing,
        reached: impl Fn(&str) -> String,
    ) -> TestPool {
        let secret = Secret::from_bytes([7; 32]);
        let start = |_| {
            Server::start(ServerOptions {
                listen: "127.0.0.1:0".to_owned(),
                transport: weir_client::Transport::default(),
                memory: vec![memory],
                disks: Vec::new(),
                disk_engine: weir_server::Engine::Auto,
                metadata_memory: 64 << 20,
                metadata_dir: None,
                secret: secret.clone(),
                threads: 1,
                timing: timing.clone(),
            })
            .expect("server starts")
        };
        let servers: Vec<Server> = (0..servers).map(start).collect();
        let addresses: Vec<_> = servers.iter().map(|s| reached(&s.address().to_string())).collect();
        let options = FormOptions {
            name: "test".to_owned(),
            // SAFETY: these calls do nothing but answer.
            owner_uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            owner_gid: unsafe { libc::getegid() },
            stripe_size: 64 * 1024,
            stripe_count: 0,
        };
        let connect = ConnectOptions { timing: timing.clone(), ..ConnectOptions::default() };
        form(&addresses, &secret, &options, &connect).expect("pool forms");
        let address = PoolAddress { servers: addresses, secret, role: Role::Mount };
        TestPool { servers, address, timing }
    }

    pub(crate) fn connect(&self) -> Pool {
        TestPool::connect_to(self.address.servers.clone(), self.timing.clone())
    }

    /// As another process does.
    pub(crate) fn connect_to(servers: Vec<String>, timing: Timing) -> Pool {
        let secret = Secret::from_bytes([7; 32]);
        let address = PoolAddress { servers, secret, role: Role::Mount };
        let options = ConnectOptions { timing, ..ConnectOptions::default() };
        Pool::connect(&address, &options).expect("pool connects")
    }

    pub(crate) fn mount(&self, options: &MountOptions) -> Mounted {
        let directory = tempfile::Builder::new().prefix("weir-fuse-").tempdir().expect("directory");
        let path = directory.path().to_owned();
        let session = weir_fuse::mount(self.connect(), &path, options).expect("mounts");
        Mounted { session: Some(session), directory: Some(directory), path }
    }
}

/// A mount; unmounted, and its directory removed, whatever way a test ends.
pub(crate) struct Mounted {
    pub(crate) session: Option<Session>,
    directory: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl Deref for Mounted {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Mounted {
    pub(crate) fn session(&self) -> &Session {
        self.session.as_ref().expect("not yet unmounted")
    }

    /// Unmounts in an orderly way and waits for the end.
    pub(crate) fn end(mut self) {
        let session = self.session.take().expect("not yet unmounted");
        let begun = Instant::now();
        // The kernel may still be letting go of files that were closed a moment ago.
        while let Err(error) = session.unmount() {
            assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
            std::thread::sleep(Duration::from_millis(20));
        }
        session.join().expect("ends well");
        let device = |path: &Path| std::fs::metadata(path).expect("is there").dev();
        assert_eq!(device(&self.path), device(self.path.parent().expect("has a parent")));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.session.take());
        if let Some(directory) = self.directory.take() {
            let _ = directory.close();
        }
    }
}

/// Says so and gives false where FUSE cannot be had.
pub(crate) fn fuse_works() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &device {
        static TOLD: Mutex<bool> = Mutex::new(false);
        let mut told = TOLD.lock().expect("not poisoned");
        if !*told {
            eprintln!("SKIPPED: /dev/fuse cannot be opened here ({error}): nothing was tested");
            *told = true;
        }
    }
    device.is_ok()
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64)
        .map(|at| {
            let word = (at / 8 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ seed.wrapping_mul(0xD1B5));
            (word >> (8 * (at % 8))) as u8
        })
        .collect()
}

/// Runs a test on mounts without and with caching.
pub(crate) fn on_mount(test: impl Fn(&Mounted)) {
    if !fuse_works() {
        return;
    }
    for caching in [false, true] {
        let pool = TestPool::new(3, 64 << 20);
        let options = MountOptions { caching, allow_other: is_root(), ..MountOptions::default() };
        let mount = pool.mount(&options);
        println!("caching: {caching}");
        test(&mount);
        mount.end();
    }
}

pub(crate) fn is_root() -> bool {
    // SAFETY: does nothing but answer.
    unsafe { libc::geteuid() == 0 }
}

pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("must fail").raw_os_error().expect("has an errno")
}
