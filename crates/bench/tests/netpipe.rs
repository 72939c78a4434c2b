//! The benchmark itself, with real servers, over a few sizes and milliseconds.

use std::path::Path;
use std::process::{Command, Output};

fn netpipe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-netpipe"))
        .args(["--file-size", "24M", "--seconds", "0.002", "--repeats", "2"])
        .args(arguments)
        .output()
        .expect("it runs")
}

fn processes_with(word: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("proc").flatten();
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(word))
        .count()
}

#[test]
fn it_measures_pool_wire_and_files() {
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().display().to_string();
    let json = directory.path().join("result.json");
    let output = netpipe(&[
        "--sizes",
        "1,4K,100003,1M",
        "--servers",
        "2",
        "--connections",
        "2",
        "--window",
        "2",
        "--posix",
        &path,
        "--json",
        &json.display().to_string(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("of tcp") && text.contains("no mismatch"), "{text}");
    let result: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("json");
    let points = result["points"].as_array().expect("points");
    // Three modes at the sizes up to 64 KiB, two beyond.
    assert_eq!(points.len(), 2 * 3 + 2 * 2);
    for point in points {
        let figures = point["figures"].as_array().expect("figures");
        assert_eq!(figures.len(), 3, "{point}");
        for figure in figures {
            assert!(figure["value"]["median"].as_f64().expect("number") > 0.0, "{point}");
        }
    }
    assert!(result["verified"]["bytes"].as_u64().expect("number") > 24 << 20);
    // Nothing is left behind: no file but the result, no server.
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
    assert_eq!(processes_with(&path), 0);
}

#[test]
fn cache_invalidate_walks_over_the_file() {
    let output = netpipe(&["--sizes", "100,64K", "--cache-invalidate", "--pin", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(result["settings"]["cache_invalidate"], true);
}

#[test]
fn a_corrupted_byte_is_a_failure() {
    for target in ["pool", "tcp"] {
        let output = netpipe(&["--sizes", "100003", "--spoil", target]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("verify {target}: byte ")), "{said}");
    }
}

#[test]
fn bad_input_is_told() {
    for (arguments, part) in [
        (["--pool", "/nowhere"], "read /nowhere/pool.json: "),
        (["--posix", "/nowhere"], "create /nowhere/netpipe-"),
        (["--wire", "127.0.0.1:1,127.0.0.1:2"], "use --wire: 2 named, 1 needed"),
        (["--max", "64M"], "use --file-size: 24 MiB is too small"),
    ] {
        let sizes = if arguments[0] == "--max" { ["--modes", "write"] } else { ["--sizes", "4K"] };
        let output = netpipe(&[arguments, sizes].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{arguments:?}: {said}");
        assert!(!Path::new("/nowhere").exists());
    }
}
