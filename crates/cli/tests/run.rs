//! `weir run`: what the program sees, what is told, and that nothing is left behind, whatever way it
//! ends.

mod common;

use common::{Place, finish, noise, signal, wait_for_file};
use std::time::{Duration, Instant};

const SMALL: [&str; 5] = ["run", "--servers", "2", "--memory", "64M"];

fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().chain(more).copied().collect()
}

/// Runs a shell script on a small pool.
fn shell(place: &Place, more: &[&str], script: &str) -> common::Done {
    let mut line = words(more);
    line.extend(["--", "sh", "-c", script]);
    place.weir(&line)
}

#[test]
fn the_program_finds_an_empty_directory_that_nobody_else_sees() {
    let place = Place::new();
    let script = r#"
        set -e
        test -z "$(ls -A "$WEIR_MOUNT")"
        echo hello >"$WEIR_MOUNT/file"
        mkdir "$WEIR_MOUNT/sub"
        mv "$WEIR_MOUNT/file" "$WEIR_MOUNT/sub/"
        cat "$WEIR_MOUNT/sub/file"
        echo "$WEIR_MOUNT" >mount; echo "$WEIR_POOL" >name; pwd -P >here; id -u >uid
        while ! test -e seen; do sleep 0.01; done
    "#;
    let mut line = words(&["--name", "mine"]);
    line.extend(["--", "sh", "-c", script]);
    let child = place.start(&line);
    wait_for_file(&place.path("uid"));
    let mount = wait_for_file(&place.path("mount"));
    assert_eq!(std::fs::read_dir(mount.trim()).expect("there").count(), 0, "seen from outside");
    assert_eq!(wait_for_file(&place.path("name")).trim(), "mine");
    // The pool itself can be used from outside.
    assert_eq!(place.good(&["ls", "-R", "--pool", "mine"]), "sub/\nsub/file\n");
    place.bad(
        &["run", "--name", "mine", "--memory", "64M", "true"],
        1,
        &["pool mine", "weir down mine"],
    );
    place.write("seen", "x");
    let done = finish(child);
    assert_eq!((done.status, done.stdout.as_str()), (0, "hello\n"), "{}", done.stderr);
    let here = place.path("").canonicalize().expect("there");
    assert_eq!(wait_for_file(&place.path("here")).trim(), here.to_str().expect("utf-8"));
    assert!(
        done.stderr.contains("1 file, 6 B, will vanish with the pool: /sub/file (6 B)"),
        "{}",
        done.stderr
    );
    place.nothing_left();
}

#[test]
fn its_exit_status_is_the_programs() {
    let place = Place::new();
    for (script, status) in
        [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)]
    {
        let done = shell(&place, &["--quiet"], script);
        assert_eq!((done.status, done.stderr.as_str()), (status, ""), "{script}");
    }
    // Found, executable, and yet not to be had: its interpreter is missing.
    let path = place.write("script", "#!/no/such/interpreter\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("executable");
    place.bad(&words(&["--", "./script"]), 127, &["start ./script"]);
    place.nothing_left();
}

#[test]
fn the_report_says_what_was_done() {
    let place = Place::new();
    let script = r#"
        dd if=/dev/zero of="$WEIR_MOUNT/data" bs=1M count=20 2>/dev/null
        cat "$WEIR_MOUNT/data" "$WEIR_MOUNT/data" >/dev/null
        exit 5
    "#;
    let done = shell(&place, &["--report", "report.json"], script);
    assert_eq!(done.status, 5, "{}", done.stderr);
    let size = 20 << 20;
    let text = std::fs::read_to_string(place.path("report.json")).expect("report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["exit_status"], 5);
    assert!(report["wall_s"].as_f64().expect("seconds") > 0.0);
    let servers = report["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2);
    let sum = |name: &str| {
        servers.iter().map(|server| server[name].as_u64().expect("number")).sum::<u64>()
    };
    assert_eq!(report["totals"]["bytes_read"], sum("bytes_read"));
    assert_eq!(sum("bytes_written"), size);
    // Nothing is cached: the servers were asked for every byte, twice.
    assert_eq!(sum("bytes_read"), 2 * size);
    let file = &report["files"][0];
    assert_eq!(file["path"], "/data", "{file}");
    assert_eq!(file["bytes_written"], size);
    assert_eq!(file["bytes_read"], 2 * size);
    assert_eq!(report["mount"]["bytes_read"], 2 * size);
    assert!(report["mount"]["read_s"].as_f64().expect("seconds") > 0.0);
    // How much of it was the system's the kernel guesses from what it found at its ticks.
    let program = &report["program"];
    let spent = |name: &str| program[name].as_f64().expect("seconds");
    assert!(spent("cpu_user_s") + spent("cpu_system_s") > 0.0, "{program}");
    assert_eq!(report["vanished"]["bytes"], size);
    for said in ["ended with status 5", "40 MiB", "20 MiB", "/data"] {
        assert!(done.stderr.contains(said), "no '{said}' in {}", done.stderr);
    }
    place.nothing_left();
}

#[test]
fn files_are_staged_in_and_out() {
    let place = Place::new();
    let data = noise(5_000_000);
    place.write("input/data", &data);
    place.write("one", "1");
    let script = r#"
        set -e
        cmp input/data "$WEIR_MOUNT/input/data"
        cmp one "$WEIR_MOUNT/deep/two"
        mkdir -p "$WEIR_MOUNT/out/more" "$WEIR_MOUNT/log"
        cp "$WEIR_MOUNT/input/data" "$WEIR_MOUNT/out/result"
        echo deep >"$WEIR_MOUNT/out/more/deep"
        echo log >"$WEIR_MOUNT/log/a"; echo no >"$WEIR_MOUNT/log/b"
    "#;
    let stage = [
        "--stage-in",
        "input",
        "--stage-in",
        "one:deep/two",
        "--stage-out",
        "out/*",
        "--stage-out",
        "log/a:logs",
    ];
    let done = shell(&place, &stage, script);
    assert_eq!(done.status, 0, "{}", done.stderr);
    assert_eq!(std::fs::read(place.path("out/result")).expect("staged out"), data);
    assert_eq!(std::fs::read_to_string(place.path("out/more/deep")).expect("staged out"), "deep\n");
    assert_eq!(std::fs::read_to_string(place.path("logs/a")).expect("staged out"), "log\n");
    assert!(!place.path("logs/b").exists());
    assert!(done.stderr.contains("3 files"), "{}", done.stderr);
    assert!(done.stderr.contains("/log/b (3 B)"), "{}", done.stderr);
    assert!(!done.stderr.contains("/out/result ("), "saved files do not vanish: {}", done.stderr);

    let done = shell(&place, &["--stage-out", "none/*"], "true");
    assert_eq!(done.status, 75, "{}", done.stderr);
    assert!(done.stderr.contains("stage out /none/*"), "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn after_a_failure_files_are_kept_if_wished() {
    let place = Place::new();
    let script = r#"mkdir "$WEIR_MOUNT/d"; echo saved >"$WEIR_MOUNT/d/f"; exit 9"#;
    let done = shell(&place, &["--keep-on-failure=kept", "--stage-out", "d/*"], script);
    assert_eq!(done.status, 9, "{}", done.stderr);
    assert_eq!(std::fs::read_to_string(place.path("kept/d/f")).expect("kept"), "saved\n");
    assert!(!place.path("d").exists(), "nothing is staged out after a failure");
    assert!(!done.stderr.contains("vanish"), "{}", done.stderr);
    let done = shell(&place, &["--keep-on-failure=unused"], "true");
    assert_eq!(done.status, 0);
    assert!(!place.path("unused").exists());
    place.nothing_left();
}

#[test]
fn a_full_pool_is_an_error_and_what_is_stored_stays() {
    let place = Place::new();
    let script = r#"
        echo first >"$WEIR_MOUNT/first"
        dd if=/dev/zero of="$WEIR_MOUNT/big" bs=1M count=500 2>said && exit 1
        grep -q "No space left" said || exit 2
        test "$(cat "$WEIR_MOUNT/first")" = first || exit 3
        rm "$WEIR_MOUNT/big"
        for try in 1 2 3 4 5 6 7 8 9 10; do
            dd if=/dev/zero of="$WEIR_MOUNT/again" bs=1M count=50 2>/dev/null && exit 0
            sleep 0.2
        done
        exit 4
    "#;
    let done = shell(&place, &[], script);
    assert_eq!(done.status, 0, "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn signals_reach_the_program() {
    let place = Place::new();
    for (number, name) in [(libc::SIGINT, "INT"), (libc::SIGTERM, "TERM"), (libc::SIGHUP, "HUP")] {
        let _ = std::fs::remove_file(place.path("ready"));
        let script = format!(
            "trap 'echo got {name}; exit 7' {name}; echo x >ready; while :; do sleep 0.05; done"
        );
        let mut line = words(&["--", "sh", "-c"]);
        line.push(&script);
        let child = place.start(&line);
        wait_for_file(&place.path("ready"));
        signal(child.id() as i32, number);
        let done = finish(child);
        assert_eq!((done.status, done.stdout), (7, format!("got {name}\n")), "{}", done.stderr);
        assert!(done.stderr.contains(&format!("SIG{name} came")), "{}", done.stderr);
        place.nothing_left();
    }
    // Without a handler it ends by the signal, its children with it.
    let _ = std::fs::remove_file(place.path("ready"));
    let child = place.start(&words(&["--", "sh", "-c", "sleep 60 & echo x >ready; sleep 60"]));
    wait_for_file(&place.path("ready"));
    signal(child.id() as i32, libc::SIGTERM);
    assert_eq!(finish(child).status, 128 + libc::SIGTERM);
    place.nothing_left();
}

#[test]
fn a_program_that_does_not_listen_is_ended_after_three_interrupts() {
    let place = Place::new();
    let child = place.start(&words(&[
        "--",
        "sh",
        "-c",
        "trap '' INT; echo x >ready; while :; do sleep 0.05; done",
    ]));
    wait_for_file(&place.path("ready"));
    for _ in 0..3 {
        signal(child.id() as i32, libc::SIGINT);
        std::thread::sleep(Duration::from_millis(100));
    }
    let done = finish(child);
    assert_eq!(done.status, 128 + libc::SIGKILL, "{}", done.stderr);
    assert!(done.stderr.contains("does not end when asked"), "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn whoever_is_killed_nothing_is_left() {
    let place = Place::new();
    // A program that would go on for ever, with a child in a session of its own and an open file.
    let script = r#"
        exec 3>"$WEIR_MOUNT/open"
        setsid sleep 60 &
        echo x >ready
        while :; do echo more >&3; sleep 0.05; done
    "#;
    for victim in ["run", "keep-run", "both", "program", "everyone"] {
        let _ = std::fs::remove_file(place.path("ready"));
        let mut line = words(&["--name", "victim"]);
        line.extend(["--", "sh", "-c", script]);
        let child = place.start(&line);
        wait_for_file(&place.path("ready"));
        let job = place.processes().into_iter().find(|(_, line)| line.contains(" keep-run "));
        let job = job.expect("a job").0;
        let program = place.processes().into_iter().find(|(_, line)| line.starts_with("sh -c"));
        let program = program.expect("a program").0;
        match victim {
            "run" => signal(child.id() as i32, libc::SIGKILL),
            "keep-run" => signal(job, libc::SIGKILL),
            "both" => {
                signal(child.id() as i32, libc::SIGKILL);
                signal(job, libc::SIGKILL);
            }
            "program" => signal(program, libc::SIGKILL),
            _ => {
                for server in place.servers() {
                    signal(server, libc::SIGKILL);
                }
                signal(child.id() as i32, libc::SIGKILL);
            }
        }
        if victim == "both" {
            // Orphans that left the program's session are beyond reach when both of those die that
            // watch over them.
            for (pid, line) in place.processes() {
                if line.starts_with("sleep 60") {
                    signal(pid, libc::SIGKILL);
                }
            }
        }
        let done = finish(child);
        match victim {
            "keep-run" => {
                assert_eq!(done.status, 74, "{}", done.stderr);
                assert!(done.stderr.contains("the program was ended"), "{}", done.stderr);
            }
            "program" => assert_eq!(done.status, 137, "{}", done.stderr),
            _ => assert_eq!(done.status, -1, "{}", done.stderr),
        }
        if victim == "both" {
            let until = Instant::now() + Duration::from_secs(10);
            while !place.processes().is_empty() {
                assert!(Instant::now() < until, "{:?}", place.processes());
                std::thread::sleep(Duration::from_millis(20));
            }
            place.good(&["down", "victim"]);
            assert_eq!(shell(&place, &["--name", "victim"], "true").status, 0);
        } else {
            place.nothing_left();
        }
    }
}

#[test]
fn what_the_program_leaves_running_is_ended() {
    let place = Place::new();
    let done = shell(&place, &[], "sleep 60 & setsid sleep 60 & exit 0");
    assert_eq!(done.status, 0, "{}", done.stderr);
    assert!(done.stderr.contains("ended 2 processes"), "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn a_server_killed_in_the_middle_is_told_and_is_a_failure() {
    let place = Place::new();
    let script = r#"
        dd if=/dev/urandom of="$WEIR_MOUNT/data" bs=1M count=16 2>/dev/null
        echo x >ready
        while ! test -e killed; do sleep 0.01; done
        cat "$WEIR_MOUNT/data" >/dev/null 2>said
        echo $? >read
        exit 0
    "#;
    let mut line = words(&["--report", "report.json", "--", "sh", "-c"]);
    line.push(script);
    let child = place.start(&line);
    wait_for_file(&place.path("ready"));
    // The second holds data alone, the first the names too.
    signal(place.servers()[1], libc::SIGKILL);
    place.write("killed", "x");
    let done = finish(child);
    assert_eq!(
        wait_for_file(&place.path("read")).trim(),
        "1",
        "the program read on: {}",
        done.stderr
    );
    let said = wait_for_file(&place.path("said"));
    assert!(said.contains("Input/output error"), "{said}");
    assert_eq!(done.status, 74, "{}", done.stderr);
    assert!(done.stderr.contains("server 1 ("), "{}", done.stderr);
    assert!(done.stderr.contains("signal 9"), "{}", done.stderr);
    let text = std::fs::read_to_string(place.path("report.json")).expect("report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["exit_status"], 74);
    assert_eq!(report["program"]["exit_status"], 0);
    assert_eq!(report["servers_lost"][0]["index"], 1);
    place.nothing_left();
}

#[test]
fn a_stated_mount_point_is_used_and_left_as_it_was() {
    let place = Place::new();
    std::fs::create_dir(place.path("here")).expect("made");
    let done = shell(
        &place,
        &["--mount", "here"],
        "echo x >here/f; cat here/f; test -e \"$WEIR_MOUNT/f\"",
    );
    assert_eq!((done.status, done.stdout.as_str()), (0, "x\n"), "{}", done.stderr);
    assert_eq!(std::fs::read_dir(place.path("here")).expect("there").count(), 0);
    place.nothing_left();
}

#[test]
fn commands_in_a_run_find_its_pool() {
    let place = Place::new();
    let weir = env!("CARGO_BIN_EXE_weir");
    let script = format!(
        r#"set -e; echo hi >"$WEIR_MOUNT/f"; {weir} ls weir:/; {weir} cp weir:/f weir:/g; cat "$WEIR_MOUNT/g""#
    );
    let done = shell(&place, &[], &script);
    assert_eq!((done.status, done.stdout.as_str()), (0, "f\nhi\n"), "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn several_runs_do_not_meet() {
    let place = Place::new();
    let script = r#"echo $$ >"$WEIR_MOUNT/f"; sleep 0.3; test "$(cat "$WEIR_MOUNT/f")" = $$ && test "$(ls "$WEIR_MOUNT")" = f"#;
    let line = words(&["--", "sh", "-c", script]);
    let children: Vec<_> = (0..3).map(|_| place.start(&line)).collect();
    for child in children {
        let done = finish(child);
        assert_eq!(done.status, 0, "{}", done.stderr);
    }
    place.nothing_left();
}

#[test]
fn a_pool_is_mounted_and_unmounted() {
    let place = Place::new();
    std::fs::create_dir(place.path("mnt")).expect("made");
    place.good(&["up", "a", "--servers", "2", "--memory", "64M"]);
    place.write("data", noise(3_000_000));
    place.good(&["cp", "data", "weir:/"]);
    place.good(&["mount", "mnt"]);
    assert_eq!(std::fs::read(place.path("mnt/data")).expect("read"), noise(3_000_000));
    std::fs::write(place.path("mnt/new"), "through the mount").expect("written");
    place.good(&["cp", "weir:/new", "back"]);
    assert_eq!(std::fs::read_to_string(place.path("back")).expect("read"), "through the mount");
    assert_eq!(
        place.json(&["status", "--json"])["pools"][0]["mounts"].as_array().expect("mounts").len(),
        1
    );
    place.bad(&["mount", "mnt"], 2, &["mnt", "not empty"]);
    place.good(&["umount", "mnt"]);
    assert_eq!(std::fs::read_dir(place.path("mnt")).expect("there").count(), 0);
    place.bad(&["umount", "mnt"], 1, &["nothing is mounted"]);

    // Somebody else takes it away, or it goes down with its pool.
    place.good(&["mount", "mnt"]);
    let status =
        std::process::Command::new("umount").arg(place.path("mnt")).status().expect("umount");
    assert!(status.success());
    let until = Instant::now() + Duration::from_secs(10);
    while place.processes().iter().any(|(_, line)| line.contains("keep-mount")) {
        assert!(Instant::now() < until, "the mount's process stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    place.good(&["mount", "mnt"]);
    place.good(&["down"]);
    place.nothing_left();

    place.good(&["up", "b", "--servers", "1", "--memory", "64M", "--mount", "mnt"]);
    std::fs::write(place.path("mnt/f"), "x").expect("written");
    place.good(&["down", "b"]);
    place.nothing_left();
}

#[test]
fn an_interrupt_before_the_program_starts_leaves_nothing() {
    let place = Place::new();
    let reach = place.script("reach", "exec sleep 60");
    place.write("hosts", "127.0.0.1\n");
    let ssh = format!("--ssh={}", reach.display());
    let child = place.start(&["run", "--hosts", "hosts", &ssh, "--memory", "64M", "true"]);
    let until = Instant::now() + Duration::from_secs(20);
    while place.processes().iter().all(|(_, line)| !line.contains("sleep 60")) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(child.id() as i32, libc::SIGINT);
    let done = finish(child);
    assert_eq!(done.status, 128 + libc::SIGINT, "{}", done.stderr);
    assert!(done.stderr.contains("SIGINT"), "{}", done.stderr);
    place.nothing_left();
}

/// Found by hand: in a user namespace the kernel let nobody write into the mount before somebody had
/// looked at it, as it took the directory for user 0's, whom that namespace does not know.
#[test]
fn a_user_without_privileges_stays_who_he_is() {
    let place = Place::new();
    // Inside, whoever runs this test is user 1234.
    let become_other = ["--user", "--map-user=1234", "--map-group=1234"];
    let mut probe = std::process::Command::new("unshare");
    let possible = probe.args(become_other).arg("true").status().is_ok_and(|done| done.success());
    assert!(possible, "no user namespaces here: 'weir doctor' says what to do");
    let script = r#"echo new >"$WEIR_MOUNT/f"; stat -c "%u:%g %n" "$WEIR_MOUNT/f"; id -u"#;
    let weir = place.command(&words(&["--name", "mine", "--quiet", "--", "sh", "-c", script]));
    let mut command = std::process::Command::new("unshare");
    command.args(become_other).arg(weir.get_program()).args(weir.get_args());
    for (name, value) in weir.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(place.path("")).stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let done = finish(command.spawn().expect("unshare"));
    assert_eq!(done.status, 0, "{}", done.stderr);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].starts_with("1234:1234 ") && lines[0].ends_with("/f"), "{}", done.stdout);
    assert_eq!(lines[1], "1234");
    place.nothing_left();
}

#[test]
fn a_stopped_server_is_an_error_in_time_and_the_run_ends() {
    let place = Place::new();
    let script = r#"
        dd if=/dev/urandom of="$WEIR_MOUNT/data" bs=1M count=8 2>/dev/null
        echo x >ready
        while ! test -e stopped; do sleep 0.01; done
        cat "$WEIR_MOUNT/data" >/dev/null 2>said && exit 1
        grep -q "Input/output error" said || exit 2
        exit 0
    "#;
    let mut line = words(&["--", "sh", "-c"]);
    line.push(script);
    let child = place.start(&line);
    wait_for_file(&place.path("ready"));
    signal(place.servers()[1], libc::SIGSTOP);
    place.write("stopped", "x");
    let done = finish(child);
    assert_eq!(done.status, 74, "{}", done.stderr);
    assert!(done.stderr.contains("server 1 ("), "{}", done.stderr);
    place.nothing_left();
}

/// The mount has the kernel send large writes from the memory in which they came. If one fails, some of it
/// may be on its way still, and must not become what another one brings.
#[test]
fn what_a_failed_write_left_under_way_is_not_another_ones() {
    let place = Place::new();
    let script = r#"
import os, time
block = 1 << 20
file = os.open(os.environ["WEIR_MOUNT"] + "/data", os.O_RDWR | os.O_CREAT)
def put(letter, index):
    assert os.pwrite(file, letter * block, index * block) == block
def wait(name):
    while not os.path.exists(name): time.sleep(0.01)
for index in 0, 1: put(b"o", index)
print("x", file=open("ready", "w"))
wait("stopped")
failed = []
for index in 0, 1:
    try: put(b"A", index)
    except OSError: failed.append(index)
assert len(failed) == 1, failed
for _ in range(8): put(b"B", 1 - failed[0])
print("x", file=open("written", "w"))
wait("resumed")
for _ in range(100):
    # What had been sent may arrive meanwhile, in whole requests.
    time.sleep(0.02)
    try: got = os.pread(file, block, failed[0] * block)
    except OSError: continue
    assert set(got) <= set(b"oA") and len(got) == block, set(got)
assert got
    "#;
    let mut line = words(&["--no-preload", "--", "python3", "-c"]);
    line.push(script);
    let child = place.start(&line);
    wait_for_file(&place.path("ready"));
    let stopped = place.servers()[1];
    signal(stopped, libc::SIGSTOP);
    place.write("stopped", "x");
    wait_for_file(&place.path("written"));
    signal(stopped, libc::SIGCONT);
    place.write("resumed", "x");
    let done = finish(child);
    // 74: the run tells of the server that was lost.
    assert!([0, 74].contains(&done.status), "{}", done.stderr);
    assert!(!done.stderr.contains("Error"), "{}", done.stderr);
    place.nothing_left();
}

/// Once, a run that was killed in its first tenth of a second left a directory that nobody removed.
#[test]
fn the_next_run_removes_what_killed_ones_left() {
    let place = Place::new();
    let pools = place.home().join("pools");
    let mount = place.home().with_file_name("tmp/weir-left/run-1");
    let made = |path: &std::path::Path| std::fs::create_dir_all(path).expect("made");
    // Killed while it was removing its directory; while it was making it; and before it mounted.
    made(&pools.join("run-2"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("host");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("boot");
    let (host, boot) = (host.trim(), boot.trim());
    let making = pools.join(format!(".making.1.999999999.{boot}.{host}"));
    made(&making);
    place.write(making.join("secret").to_str().expect("utf-8"), "x");
    made(&mount);
    made(&pools.join("run-1"));
    let file = serde_json::json!({
        "name": "run-1", "servers": [], "owns_servers": true, "processes": [], "mounts": [],
        "keeper": { "pid": 1, "start": 999_999_999, "boot": boot, "host": host },
        "made": [mount, mount.parent()], "connections": null,
    });
    place.write(pools.join("run-1/pool.json").to_str().expect("utf-8"), file.to_string());
    // Of another host nothing can be said.
    let foreign = pools.join(format!(".making.1.1.{boot}.not-{host}"));
    made(&foreign);
    assert_eq!(shell(&place, &["--quiet"], "true").status, 0);
    assert!(foreign.is_dir());
    std::fs::remove_dir(foreign).expect("removed");
    place.nothing_left();
    // And as it happens.
    for delay_ms in [5, 15, 30, 60, 100] {
        let child = place.start(&words(&["--", "sleep", "60"]));
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal(child.id() as i32, libc::SIGKILL);
        finish(child);
        let until = Instant::now() + Duration::from_secs(10);
        while !place.processes().is_empty() {
            assert!(Instant::now() < until, "{:?}", place.processes());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(shell(&place, &["--quiet"], "true").status, 0);
    place.nothing_left();
}
