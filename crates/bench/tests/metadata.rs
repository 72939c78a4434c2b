//! The benchmark itself, with real servers and processes, over a few files.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn metadata(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-metadata"));
    command.args(["--list", "1500", "--repeats", "2", "--processes", "1,3"]).args(arguments);
    command
}

fn fuse_works() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}

#[test]
fn it_measures_pool_mount_and_directory() {
    let directory = tempfile::tempdir().expect("tempdir");
    let (local, json) = (directory.path().join("local"), directory.path().join("result.json"));
    let (shown, temporary) = (json.display().to_string(), directory.path().join("tmp"));
    for directory in [&local, &temporary] {
        std::fs::create_dir(directory).expect("made");
    }
    let mut command = metadata(&["--files", "61", "--servers", "2", "--json", &shown, "--local"]);
    command.arg(&local).env("TMPDIR", &temporary);
    let targets: &[&str] = match fuse_works() {
        true => &["pool", "mount", "local"],
        false => {
            eprintln!("SKIPPED: /dev/fuse cannot be opened here: no mount was measured");
            &["pool", "local"]
        }
    };
    if targets.len() == 3 {
        command.arg("--mount");
    }
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("of TCP links") && text.contains("no difference"), "{text}");
    let result: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("json");
    let points = result["points"].as_array().expect("points");
    assert_eq!(points.len(), 2);
    for point in points {
        let figures = point["figures"].as_array().expect("figures");
        let rates = figures.iter().filter(|figure| figure["rate"]["median"].as_f64() > Some(0.0));
        assert_eq!(rates.count(), 3 + 3 * targets.len(), "{point}");
    }
    let listings = result["listings"].as_array().expect("listings");
    assert_eq!(listings.len(), 2 * targets.len());
    // Each turn, also the one that is not counted, verifies what was created; and each listing.
    let names = (2 * 3 * 61 + 2 * 2 * 1500) * targets.len() as u64;
    assert_eq!(result["verified"].as_u64(), Some(names));
    // Nothing is left behind.
    for directory in [&local, &temporary] {
        assert_eq!(std::fs::read_dir(directory).expect("listed").count(), 0);
    }
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(&temporary.display().to_string()), "{mounts}");
}

/// Waits until it is as it should be.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A terminal or timeout(1) tells all processes of the group: once, the mount's ended at that and did
/// not unmount.
#[test]
fn ending_the_group_leaves_no_mount() {
    if !fuse_works() {
        eprintln!("SKIPPED: /dev/fuse cannot be opened here");
        return;
    }
    let directory = tempfile::tempdir().expect("tempdir");
    let temporary = directory.path().display().to_string();
    let mounted = || std::fs::read_to_string("/proc/mounts").expect("mounts").contains(&temporary);
    let mut command = metadata(&["--files", "200000", "--mount"]);
    command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
    let mut benchmark = command.process_group(0).spawn().expect("it runs");
    soon("a mount", mounted);
    let group = format!("-{}", benchmark.id());
    let killed = Command::new("kill").args(["-TERM", "--", &group]).status().expect("kill");
    assert!(killed.success());
    assert!(!benchmark.wait().expect("waited for").success());
    let left = || std::fs::read_dir(&temporary).expect("listed").count();
    soon("no mount, and nothing else", || !mounted() && left() == 0);
}

#[test]
fn bad_input_is_told() {
    for (arguments, part) in [
        (["--pool", "/nowhere"], "read /nowhere/pool.json: "),
        (["--local", "/nowhere"], "mkdir /nowhere/weir-bench-"),
        (["--files", "2"], "use --files: 2 cannot be shared by 3 processes"),
    ] {
        let output = metadata(&arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{arguments:?}: {said}");
        assert!(!Path::new("/nowhere").exists());
    }
}
