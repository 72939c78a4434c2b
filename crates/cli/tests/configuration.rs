//! The configuration file and the environment, as real commands see them.

mod common;

use common::{Place, finish};
use std::path::PathBuf;

fn file(place: &Place, text: &str) -> PathBuf {
    let path = place.path("../home/config.toml");
    std::fs::write(&path, text).expect("written");
    path.canonicalize().expect("there")
}

#[test]
fn a_pool_is_made_as_the_file_and_the_environment_say() {
    let place = Place::new();
    file(&place, "servers = 3\nmemory = '48M'\nsilence = '4s'\nrenew = '2s'\nconnections = 2\n");
    let mut up = place.command(&["up", "p", "--servers", "2"]);
    up.env("WEIR_MEMORY", "64M").env("WEIR_HEARTBEAT", "500ms");
    let done = finish(up.spawn().expect("weir starts"));
    assert_eq!(done.status, 0, "{}", done.stderr);
    let status = place.json(&["status", "p", "--json"]);
    let servers = status["pools"][0]["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2);
    assert_eq!(servers[0]["memory"], 64 << 20);
    // Servers are told the times, and whoever uses the pool reads them in its file.
    for (pid, line) in place.processes() {
        if place.servers().contains(&pid) {
            assert!(line.contains("--silence=4s") && line.contains("--heartbeat=500ms"), "{line}");
        }
    }
    let pool = std::fs::read(place.path("../home/pools/p/pool.json")).expect("pool.json");
    let pool: serde_json::Value = serde_json::from_slice(&pool).expect("JSON");
    assert_eq!(pool["connections"], 2);
    assert_eq!(pool["timing"]["silence_ms_max"], 4_000);
    assert_eq!(pool["timing"]["heartbeat_ms"], 500);
    assert_eq!(pool["timing"]["renew_ms"], 2_000);
    place.good(&["ls"]);
    place.good(&["down"]);
    place.nothing_left();
}

#[test]
fn what_is_wrong_is_named_before_anything_starts() {
    let place = Place::new();
    let path = file(&place, "servers = 2\nmemroy = '1G'\n");
    let path = path.to_str().expect("utf-8");
    place.bad(&["run", "true"], 2, &[path, "line 2", "`memroy`", "`memory`"]);
    place.bad(&["up"], 2, &["line 2"]);
    // What needs no settings goes on.
    place.good(&["status"]);
    place.good(&["run", "--help"]);
    file(&place, "silence = '1s'\n");
    place.bad(&["up"], 2, &["--silence 1s", "--heartbeat"]);
    file(&place, "");
    let mut run = place.command(&["run", "true"]);
    let done = finish(run.env("WEIR_SERVERS", "many").spawn().expect("weir starts"));
    assert_eq!(done.status, 2);
    assert!(done.stderr.contains("environment WEIR_SERVERS: 'many'"), "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let place = Place::new();
    // Root reads all files, but nobody a directory.
    std::fs::create_dir(place.path("../home/config.toml")).expect("made");
    place.bad(&["up"], 2, &["home/config.toml", "is a directory", "WEIR_CONFIG"]);
    let done = place.weir(&["doctor"]);
    assert_eq!(done.status, 1);
    assert!(done.stdout.contains("FAIL  configuration"), "{}", done.stdout);
    let mut up = place.command(&["up"]);
    let done = finish(up.env("WEIR_CONFIG", "none.toml").spawn().expect("weir starts"));
    assert_eq!(done.status, 2);
    assert!(done.stderr.contains("none.toml: no such file"), "{}", done.stderr);
    place.nothing_left();
}

#[test]
fn the_doctor_says_which_file_is_in_force() {
    let place = Place::new();
    let found = |place: &Place| {
        let text =
            finish(place.command(&["doctor"]).env("WEIR_MEMORY", "1G").spawn().expect("weir"));
        let line = text.stdout.lines().find(|line| line.contains("  configuration "));
        line.expect("finding").to_owned()
    };
    let none = found(&place);
    assert!(none.contains("none; it would be ") && none.contains("WEIR_MEMORY"), "{none}");
    let path = file(&place, "servers = 2\ncache = true\n");
    let line = found(&place);
    assert!(line.contains("config.toml sets servers, cache"), "{} in {line}", path.display());
}
