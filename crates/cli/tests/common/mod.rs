//! A directory of its own for each test: pools, mounts and files are within, and every process that
//! was started from it is known by its environment.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod native;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes nearly so long, on the slowest machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Place {
    directory: tempfile::TempDir,
}

pub(crate) struct Done {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Place {
        let directory = tempfile::tempdir().expect("tempdir");
        for name in ["home", "tmp", "work"] {
            std::fs::create_dir(directory.path().join(name)).expect("made");
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(directory.path().join("home"), mode).expect("private");
        Place { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("work").join(name)
    }

    /// Where `weir` keeps its pools.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("parents");
        }
        std::fs::write(&path, bytes).expect("written");
        path
    }

    /// An executable script.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.write(name, format!("#!/bin/sh\n{text}\n"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("executable");
        path
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        // What whoever runs the tests has set is not meant.
        let set = std::env::vars_os().map(|(name, _)| name);
        for name in set.filter(|name| name.to_string_lossy().starts_with("WEIR_")) {
            command.env_remove(name);
        }
        // Nor what it was told to ignore: the tests may run in the background, or under nohup.
        let listen = || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                // SAFETY: a system call with integers.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: nothing but system calls on integers.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, listen) };
        command
            .args(words)
            .current_dir(self.directory.path().join("work"))
            .env("WEIR_HOME", self.directory.path().join("home"))
            .env("TMPDIR", self.directory.path().join("tmp"))
            .env("NO_COLOR", "1")
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals of a test reach nobody else.
            .process_group(0);
        let heed_signals = || {
            // A shell that runs the tests in the background has these ignored, which is inherited.
            for number in [libc::SIGINT, libc::SIGQUIT] {
                // SAFETY: gives back the default.
                unsafe { libc::signal(number, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: nothing but system calls on integers.
        unsafe { command.pre_exec(heed_signals) };
        command
    }

    pub(crate) fn start(&self, words: &[&str]) -> Child {
        self.command(words).spawn().expect("weir starts")
    }

    pub(crate) fn weir(&self, words: &[&str]) -> Done {
        finish(self.start(words))
    }

    /// Runs it and wants success.
    pub(crate) fn good(&self, words: &[&str]) -> String {
        let done = self.weir(words);
        assert_eq!(done.status, 0, "weir {words:?}: {}{}", done.stdout, done.stderr);
        done.stdout
    }

    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.good(words)).expect("JSON")
    }

    /// Runs it and wants this status, and all of these words in what it says.
    pub(crate) fn bad(&self, words: &[&str], status: i32, said: &[&str]) -> String {
        let done = self.weir(words);
        assert_eq!(done.status, status, "weir {words:?}: {}{}", done.stdout, done.stderr);
        for part in said {
            assert!(done.stderr.contains(part), "weir {words:?}: no '{part}' in: {}", done.stderr);
        }
        assert!(done.stderr.starts_with("weir: "), "{}", done.stderr);
        done.stderr
    }

    /// Processes that were started from here and run still.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let mark = self.directory.path().join("home");
        let mark = mark.to_str().expect("utf-8").as_bytes().to_vec();
        let entries = std::fs::read_dir("/proc").expect("/proc");
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.windows(mark.len()).any(|window| window == mark)
            })
            .map(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                (pid, String::from_utf8_lossy(&line).replace('\0', " "))
            })
            .collect()
    }

    /// Server processes that were started from here.
    pub(crate) fn servers(&self) -> Vec<i32> {
        let mut found: Vec<i32> = self
            .processes()
            .into_iter()
            .filter(|(_, line)| line.contains(" server --tether"))
            .map(|(pid, _)| pid)
            .collect();
        found.sort();
        found
    }

    fn mounts(&self) -> Vec<String> {
        let mark = self.directory.path().to_str().expect("utf-8").to_owned();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        mounts.lines().filter(|line| line.contains(&mark)).map(str::to_owned).collect()
    }

    /// Waits until no process, mount, pool or directory is left.
    pub(crate) fn nothing_left(&self) {
        let list = |name: &str| -> Vec<PathBuf> {
            let directory = self.directory.path().join(name);
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let until = Instant::now() + Duration::from_secs(15);
        loop {
            let left = (self.processes(), self.mounts(), list("home/pools"), list("tmp"));
            if left.0.is_empty() && left.1.is_empty() && left.2.is_empty() && left.3.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // After a failure: these carry this test's directory in their environment, hence are ours.
        for (pid, _) in self.processes() {
            signal(pid, libc::SIGKILL);
        }
        for line in self.mounts() {
            if let Some(mount) = line.split(' ').nth(4) {
                let _ = Command::new("umount").args(["-l", mount]).stderr(Stdio::null()).status();
            }
        }
    }
}

pub(crate) fn signal(pid: i32, number: i32) {
    // SAFETY: a system call with two integers.
    unsafe { libc::kill(pid, number) };
}

/// Waits for a child; what it printed.
pub(crate) fn finish(mut child: Child) -> Done {
    let mut readers = Vec::new();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|pipe| Box::new(pipe) as _),
        child.stderr.take().map(|pipe| Box::new(pipe) as _),
    ];
    for pipe in pipes {
        readers.push(std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }));
    }
    let until = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().expect("waited") {
            break status;
        }
        if Instant::now() > until {
            child.kill().expect("killed");
            let texts: Vec<String> =
                readers.into_iter().map(|reader| reader.join().expect("read")).collect();
            panic!("weir does not end; it said {texts:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut texts = readers.into_iter().map(|reader| reader.join().expect("read"));
    Done {
        status: status.code().unwrap_or(-1),
        stdout: texts.next().unwrap_or_default(),
        stderr: texts.next().unwrap_or_default(),
    }
}

/// Waits until this file is there; what is in it.
pub(crate) fn wait_for_file(path: &Path) -> String {
    let until = Instant::now() + LIMIT;
    loop {
        if let Ok(text) = std::fs::read_to_string(path)
            && !text.is_empty()
        {
            return text;
        }
        assert!(Instant::now() < until, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that differ everywhere.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Anonymous and shared memory of a process: bytes.
pub(crate) fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let kib = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("field");
        line.split_whitespace().nth(1).expect("number").parse().expect("a number")
    };
    (kib("RssAnon:") + kib("RssShmem:")) * 1024
}
