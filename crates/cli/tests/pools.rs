//! Pools that stay: up, what can be done with them without a mount, down.

mod common;

use common::{Place, noise, signal};
use std::path::Path;
use std::time::{Duration, Instant};

fn up(place: &Place, name: &str, more: &[&str]) {
    let mut words = vec!["up", name, "--memory", "64M"];
    words.extend(more);
    place.good(&words);
}

/// Servers keep a little of the stated memory for themselves.
fn has_capacity(place: &Place, stated: u64) {
    let capacity = place.json(&["df", "--json"])["capacity"].as_u64().expect("number");
    assert!((stated * 8 / 10..=stated).contains(&capacity), "{capacity} of {stated}");
}

#[test]
fn a_pool_comes_up_and_goes_down() {
    let place = Place::new();
    up(&place, "a", &["--servers", "2"]);
    assert_eq!(place.servers().len(), 2);
    let status = place.json(&["status", "a", "--json"]);
    let pool = &status["pools"][0];
    assert_eq!(pool["name"], "a");
    assert_eq!(pool["state"], "up");
    assert_eq!(pool["servers"].as_array().expect("servers").len(), 2);
    assert_eq!(pool["servers"][1]["memory"], 64 << 20);
    has_capacity(&place, 2 * (64 << 20));

    place.bad(&["up", "a", "--memory", "64M"], 1, &["pool a", "weir down a"]);
    assert_eq!(place.servers().len(), 2, "the first is not disturbed");

    up(&place, "b", &["--servers", "1"]);
    place.bad(&["df"], 2, &["a, b", "--pool"]);
    place.good(&["df", "--pool", "b"]);
    assert_eq!(place.json(&["status", "--json"])["pools"].as_array().expect("pools").len(), 2);

    assert!(place.good(&["down", "b"]).contains("pool b is down"));
    assert!(place.good(&["down"]).contains("pool a is down"));
    place.nothing_left();
}

#[test]
fn pool_files_are_for_their_owner() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    up(&place, "a", &["--servers", "1"]);
    let directory = place.path("../home/pools/a");
    let mode = |path: &Path| path.metadata().expect("there").mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join("secret")), 0o600);
    let secret = std::fs::read_to_string(directory.join("secret")).expect("secret");
    assert_eq!(secret.trim().len(), 64);
    for (_, line) in place.processes() {
        assert!(!line.contains(secret.trim()), "the secret shows in a command line: {line}");
    }
    // A pool is known by its directory as well.
    place.good(&["df", "--pool", directory.to_str().expect("utf-8")]);
    // With another secret nothing can be had of it.
    std::fs::write(directory.join("secret"), format!("{}\n", "5".repeat(64))).expect("written");
    place.bad(&["ls"], 1, &["secret"]);
    place.good(&["down", "a"]);
    place.nothing_left();
}

#[test]
fn what_is_copied_comes_back_the_same() {
    let place = Place::new();
    up(&place, "a", &["--servers", "3"]);
    let big = noise(9_000_001);
    place.write("in/big", &big);
    place.write("in/empty", "");
    place.write("in/sub/small", "hello");
    for index in 0..50 {
        place.write(&format!("in/many/{index}"), format!("number {index}"));
    }
    std::os::unix::fs::symlink("sub/small", place.path("in/link")).expect("link");

    place.good(&["cp", "-r", "--verify", "in", "weir:/"]);
    let json = place.json(&["cp", "-r", "--json", "weir:/in", "out"]);
    assert_eq!(json["files"], 53);
    assert_eq!(std::fs::read(place.path("out/big")).expect("copied"), big);
    let same = std::process::Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([place.path("in"), place.path("out")])
        .status()
        .expect("diff");
    assert!(same.success());
    let link = std::fs::read_link(place.path("out/link")).expect("link");
    assert_eq!(link, Path::new("sub/small"));

    // Within the pool, onto itself, over an older one.
    place.good(&["cp", "weir:/in/big", "weir:/again"]);
    place.bad(&["cp", "weir:/again", "weir:/again"], 1, &["same file"]);
    place.write("small", "new");
    place.good(&["cp", "small", "weir:/again"]);
    assert_eq!(place.json(&["stat", "--json", "weir:/again"])["entries"][0]["size"], 3);
    // Sums are the servers' own.
    let totals: u64 = place.json(&["status", "--json"])["pools"][0]["servers"]
        .as_array()
        .expect("servers")
        .iter()
        .map(|server| server["bytes_written"].as_u64().expect("number"))
        .sum();
    assert!(totals >= 2 * big.len() as u64, "{totals}");

    place.good(&["rm", "-r", "weir:/in", "weir:/again"]);
    assert_eq!(place.good(&["ls"]), "");
    assert_eq!(place.json(&["df", "--json"])["used"], 0);
    place.good(&["down", "a"]);
    place.nothing_left();
}

#[test]
fn copies_that_fail_are_told_and_leave_nothing() {
    let place = Place::new();
    up(&place, "a", &["--servers", "1"]);
    place.bad(&["cp", "none", "weir:/"], 1, &["copy none", "no such file"]);
    place.bad(&["cp", "weir:/none", "."], 1, &["weir:/none", "no such file"]);
    place.write("dir/file", "x");
    place.bad(&["cp", "dir", "weir:/"], 1, &["copy dir", "-r"]);
    place.bad(&["cp", "dir/file", "dir/file", "weir:/none"], 2, &["weir:/none", "not a directory"]);

    // More than fits: the pool says so, and is as it was before.
    place.write("large", noise(80 << 20));
    place.write("fits", "x");
    place.bad(&["cp", "large", "weir:/"], 1, &["copy large", "pool is full", "no copy was left"]);
    place.good(&["cp", "fits", "weir:/"]);
    assert_eq!(place.good(&["ls"]), "fits\n");

    // A source that grows all the while it is copied is no success.
    let source = place.write("growing", noise(32 << 20));
    let mut file = std::fs::OpenOptions::new().append(true).open(&source).expect("opened");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::io::Write::write_all(&mut file, b"more").expect("grown");
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let done = place.weir(&["cp", "growing", "weir:/"]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(done.status, 1, "{}", done.stderr);
        assert!(done.stderr.contains("changed while it was copied"), "{}", done.stderr);
    });
    assert_eq!(place.good(&["ls"]), "fits\n");
    place.good(&["down", "a"]);
    place.nothing_left();
}

#[test]
fn layouts_are_set_and_shown() {
    let place = Place::new();
    up(&place, "a", &["--servers", "3", "--stripe-size", "256K"]);
    place.write("tree/deep/file", noise(100_000));
    place.good(&["cp", "-r", "tree", "weir:/"]);
    let layout = |path: &str| place.json(&["layout", "--json", path])["layouts"][0].clone();
    assert_eq!(layout("weir:/tree/deep/file")["stripe_size"], 256 << 10);
    assert_eq!(layout("weir:/tree/deep/file")["stripe_count"], 3);
    place.good(&["layout", "--stripe-size", "64K", "--stripe-count", "1", "weir:/tree"]);
    place.good(&["cp", "tree/deep/file", "weir:/tree/narrow"]);
    assert_eq!(layout("weir:/tree/narrow")["stripe_size"], 64 << 10);
    assert_eq!(layout("weir:/tree/narrow")["targets"].as_array().expect("targets").len(), 1);
    place.bad(
        &["layout", "--stripe-size", "1M", "weir:/tree/narrow"],
        1,
        &["set layout /tree/narrow"],
    );
    let listed = place.json(&["ls", "-R", "--json", "/tree"]);
    assert_eq!(listed["entries"].as_array().expect("entries").len(), 3);
    assert!(place.good(&["ls", "-l", "weir:/tree"]).contains("narrow"));
    place.bad(&["rm", "weir:/tree"], 1, &["remove /tree", "-r"]);
    place.bad(&["rm", "weir:/none"], 1, &["remove /none"]);
    place.good(&["rm", "-f", "weir:/none"]);
    place.good(&["down", "a"]);
    place.nothing_left();
}

#[test]
fn a_dead_server_shows_and_a_dead_keeper_leaves_a_stale_pool() {
    let place = Place::new();
    up(&place, "a", &["--servers", "2"]);
    let servers = place.servers();
    signal(servers[1], libc::SIGKILL);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let done = place.weir(&["status", "a", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        if json["pools"][0]["state"] == "degraded" {
            assert_eq!(done.status, 1);
            break;
        }
        assert!(Instant::now() < until, "{json}");
    }
    // Killed, it cannot end its servers: the pipe does.
    let keeper = place.processes().into_iter().find(|(_, line)| line.contains("keep-pool"));
    signal(keeper.expect("a keeper").0, libc::SIGKILL);
    while !place.servers().is_empty() {
        assert!(Instant::now() < until, "servers survive their keeper");
        std::thread::sleep(Duration::from_millis(20));
    }
    place.bad(&["ls", "--pool", "a"], 1, &["pool a", "weir down a"]);
    assert_eq!(place.weir(&["status"]).status, 1);
    // Another takes its place.
    let done = place.weir(&["up", "a", "--servers", "1", "--memory", "64M"]);
    assert_eq!(done.status, 0, "{}", done.stderr);
    assert!(done.stderr.contains("left behind"), "{}", done.stderr);
    place.good(&["ls"]);
    place.good(&["down"]);
    place.nothing_left();
}

fn write_secret(place: &Place) {
    let secret = place.write("secret", "ab".repeat(32));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secret, mode).expect("private");
}

/// Starts a server; what it said when it listened.
fn listening(place: &Place, words: &[&str]) -> (std::process::Child, serde_json::Value) {
    let mut server = place.start(words);
    let mut line = String::new();
    let output = server.stdout.take().expect("stdout");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("line");
    (server, serde_json::from_str(&line).expect("JSON"))
}

#[test]
fn servers_that_the_site_started_become_a_pool() {
    let place = Place::new();
    write_secret(&place);
    let words = ["server", "--listen", "127.0.0.1:0", "--memory", "64M", "--secret", "secret"];
    let mut hosts = String::from("# two\n");
    let mut servers = Vec::new();
    for _ in 0..2 {
        let (server, ready) = listening(&place, &words);
        assert_eq!(ready["pid"], server.id());
        hosts += &format!("{}\n", ready["address"].as_str().expect("address"));
        servers.push(server);
    }
    place.write("hosts", hosts);
    place.good(&["up", "site", "--hosts", "hosts", "--secret", "secret"]);
    place.write("file", noise(3 << 20));
    place.good(&["cp", "--verify", "file", "weir:/"]);
    has_capacity(&place, 2 * (64 << 20));
    place.good(&["down", "site"]);
    for server in servers {
        assert_eq!(common::finish(server).status, 0);
    }
    place.nothing_left();
}

#[test]
fn names_can_be_kept_in_a_directory() {
    let place = Place::new();
    place.write("file", noise(3 << 20));
    write_secret(&place);
    let words = ["server", "--listen", "127.0.0.1:0", "--memory", "64M", "--secret", "secret"];
    let words = [&words[..], &["--metadata-dir", "names"]].concat();
    let start = || {
        let (server, ready) = listening(&place, &words);
        place.write("hosts", ready["address"].as_str().expect("address"));
        server
    };
    let server = start();
    place.good(&["up", "site", "--hosts", "hosts", "--secret", "secret"]);
    place.good(&["cp", "--verify", "file", "weir:/"]);
    assert!(place.path("names/data.mdb").is_file());
    place.good(&["down", "site"]);
    assert_eq!(common::finish(server).status, 0);
    // Another life: the names are there, what they named went with the first server's memory.
    let server = start();
    place.good(&["up", "site", "--hosts", "hosts", "--secret", "secret"]);
    assert!(place.good(&["ls"]).contains("file"));
    place.bad(&["cp", "weir:/file", "back"], 1, &["weir:/file", "restarted"]);
    place.bad(&words, 1, &["names", "another server"]);
    place.good(&["down", "site"]);
    assert_eq!(common::finish(server).status, 0);
    place.nothing_left();
}

#[test]
fn a_host_is_reached_by_the_command_that_is_said() {
    let place = Place::new();
    // Stands in for ssh: drops the host, runs the rest.
    let reach = place.script("reach", "shift; exec \"$@\"");
    place.write("hosts", "127.0.0.1\nme@127.0.0.1\n");
    let ssh = format!("--ssh={}", reach.display());
    place.good(&["up", "far", "--hosts", "hosts", &ssh, "--memory", "64M"]);
    assert_eq!(place.json(&["status", "--json"])["pools"][0]["servers"][1]["memory"], 64 << 20);
    place.good(&["down"]);
    place.nothing_left();
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let place = Place::new();
    // A host that never answers.
    let reach = place.script("reach", "echo $$ >reached; exec sleep 60");
    place.write("hosts", "127.0.0.1\n");
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let _ = std::fs::remove_file(place.path("reached"));
        let ssh = format!("--ssh={}", reach.display());
        let child = place
            .command(&["up", "far", "--hosts", "hosts", &ssh, "--memory", "64M"])
            .spawn()
            .expect("starts");
        let pid = child.id() as i32;
        let until = Instant::now() + Duration::from_secs(20);
        while place.processes().iter().all(|(_, line)| !line.contains("sleep 60")) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(pid, number);
        let done = common::finish(child);
        if number != libc::SIGKILL {
            assert_eq!(done.status, 128 + number, "{}", done.stderr);
            place.nothing_left();
        } else {
            place.good(&["down", "far"]);
            place.nothing_left();
        }
    }
}

#[test]
fn a_server_ends_by_signal_and_by_its_tether() {
    let place = Place::new();
    for ending in ["term", "tether"] {
        let mut command = place.command(&[
            "server",
            "--listen",
            "127.0.0.1:0",
            "--memory",
            "64M",
            "--secret",
            "-",
            "--tether",
        ]);
        let mut server = command.stdin(std::process::Stdio::piped()).spawn().expect("starts");
        let mut stdin = server.stdin.take().expect("stdin");
        std::io::Write::write_all(&mut stdin, format!("{}\n", "7".repeat(64)).as_bytes())
            .expect("secret");
        let mut reader = std::io::BufReader::new(server.stdout.take().expect("stdout"));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut reader, &mut line).expect("line");
        assert!(line.contains("address"), "{line}");
        match ending {
            "term" => {
                signal(server.id() as i32, libc::SIGTERM);
                assert_eq!(common::finish(server).status, 0);
                drop(stdin);
            }
            _ => {
                drop(stdin);
                assert_eq!(common::finish(server).status, 0);
            }
        }
    }
    place.nothing_left();
}

#[test]
fn the_doctor_speaks_json() {
    let place = Place::new();
    let done = place.weir(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(done.status == 0, json["ok"] == true);
    let findings = json["findings"].as_array().expect("findings");
    let names: Vec<&str> = findings.iter().filter_map(|finding| finding["name"].as_str()).collect();
    for name in [
        "/dev/fuse",
        "fusermount3",
        "private mounts",
        "open files",
        "memory",
        "loopback network",
        "shared memory",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    for finding in findings {
        assert_eq!(finding["verdict"] == "ok", finding["advice"] == "", "{finding}");
    }
    place.nothing_left();
}

#[test]
fn manual_pages_and_completions_are_written() {
    let place = Place::new();
    place.good(&["man", "man1"]);
    let page = std::fs::read_to_string(place.path("man1/weir-run.1")).expect("page");
    assert!(page.contains("stage\\-in"), "{page}");
    assert!(!place.path("man1/weir-keep-run.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.good(&["completions", shell]).contains("stage-in"), "{shell}");
    }
}

#[test]
fn the_benchmark_is_a_command() {
    let place = Place::new();
    let json = place.json(&[
        "bench",
        "netpipe",
        "--sizes",
        "64K",
        "--modes",
        "read",
        "--seconds",
        "0.01",
        "--file-size",
        "16M",
        "--memory",
        "64M",
        "--json",
        "-",
    ]);
    assert!(json.is_object(), "{json}");
    place.nothing_left();
}

#[test]
fn a_mount_of_memory_is_measured_and_verified() {
    let place = Place::new();
    let temporary = place.path("temporary");
    std::fs::create_dir(&temporary).expect("a directory");
    let netpipe = |more: &[&str]| {
        let words = "bench netpipe --targets pool,mount --sizes 5000,1M --modes write,read --json - \
                     --seconds 0.01 --repeats 1 --file-size 32M --memory 96M";
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut command = place.command(&[&words, more].concat());
        let output = command.env("TMPDIR", &temporary).output().expect("runs");
        // The mount and its directory are gone, however it ended.
        assert_eq!(std::fs::read_dir(&temporary).expect("lists").count(), 0);
        output
    };
    let output = netpipe(&[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    let points = json["points"].as_array().expect("points");
    assert_eq!(points.len(), 4);
    for point in points {
        let mount = &point["figures"][1];
        assert_eq!(mount["target"], "mount", "{point}");
        assert_eq!(mount["share"]["of"], "pool", "{point}");
    }
    let output = netpipe(&["--spoil", "mount"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("verify mount: byte"), "{said}");
    place.nothing_left();
}
