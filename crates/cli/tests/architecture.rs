//! Who may import whom (ARCHITECTURE.md), read from `cargo metadata`.

use std::collections::BTreeMap;
use std::process::Command;

/// What each crate may use of the others, tests apart.
const ALLOWED: &[(&str, &[&str])] = &[
    ("weir-core", &[]),
    ("weir-net", &["weir-core"]),
    ("weir-server", &["weir-core", "weir-net"]),
    ("weir-client", &["weir-core", "weir-net"]),
    ("weir-capi", &["weir-core", "weir-client"]),
    ("weir-fuse", &["weir-core", "weir-client"]),
    ("weir-preload", &["weir-core", "weir-net", "weir-client"]),
    ("weir-bench", &["weir-core", "weir-net", "weir-client", "weir-server", "weir-fuse"]),
    ("weir-cli", &["weir-core", "weir-client", "weir-server", "weir-fuse", "weir-bench"]),
    ("weir-sim", &["weir-core"]),
];

fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let uses = package["dependencies"].as_array().expect("dependencies");
            let names = uses
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .map(|dependency| dependency["name"].as_str().expect("name").to_owned())
                .collect();
            (package["name"].as_str().expect("name").to_owned(), names)
        })
        .collect()
}

#[test]
fn crates_use_only_what_they_may() {
    let dependencies = dependencies();
    for (name, uses) in &dependencies {
        let allowed = ALLOWED.iter().find(|(known, _)| known == name);
        let Some((_, allowed)) = allowed else {
            panic!("{name} is not in ALLOWED nor, it may be, in ARCHITECTURE.md")
        };
        for used in uses.iter().filter(|used| used.starts_with("weir-")) {
            assert!(allowed.contains(&used.as_str()), "{name} must not use {used}");
        }
    }
    assert!(dependencies.len() >= 5, "cargo metadata saw too little");
}

#[test]
fn the_core_has_no_way_to_do_io() {
    let uses = &dependencies()["weir-core"];
    for used in uses {
        let pure = ["blake3", "crc-fast", "futures-util", "postcard", "serde"];
        assert!(pure.contains(&used.as_str()), "weir-core uses {used}: is that free of I/O?");
    }
}
