//! Whatever is asked wrongly: an error that names it and says what to do, the right status, and
//! nothing started.

mod common;

use common::Place;

#[test]
fn the_command_line_is_checked() {
    let place = Place::new();
    place.bad(&["frob"], 2, &["frob"]);
    place.bad(&["run", "--frob", "true"], 2, &["--frob"]);
    place.bad(&["run", "--memory", "lots", "true"], 2, &["--memory", "lots", "512M"]);
    place.bad(&["run", "--memory", "0", "true"], 2, &["--memory"]);
    place.bad(
        &["run", "--stripe-size", "5000", "true"],
        2,
        &["--stripe-size", "multiple of 4 KiB"],
    );
    place.bad(
        &["run", "--transport", "ucx", "true"],
        2,
        &["--transport", "not in this build", "tcp or auto"],
    );
    place.bad(&["run", "--transport", "shm", "true"], 2, &["--transport", "write auto or tcp"]);
    place.bad(&["run", "--transport", "pigeon", "true"], 2, &["no such transport"]);
    place.bad(&["run", "--servers", "0", "true"], 2, &["--servers"]);
    place.bad(&["run", "--name", "a/b", "true"], 2, &["--name"]);
    place.bad(&["run"], 2, &["COMMAND"]);
    place.bad(&["up", "..", "--memory", "32M"], 2, &["name"]);
    place.bad(&["run", "--report", "no/such/r.json", "true"], 2, &["--report", "no/such"]);
    place.nothing_left();
}

#[test]
fn help_has_examples() {
    let place = Place::new();
    for command in ["run", "up", "cp", "server"] {
        assert!(place.good(&[command, "--help"]).contains("Example"), "{command}");
    }
    assert!(place.good(&["--version"]).starts_with("weir "));
    // The hidden ones are for weir itself.
    place.bad(&["keep-run", "99"], 2, &["a part of weir itself"]);
}

#[test]
fn a_program_that_cannot_run_is_found_out_before_anything_starts() {
    let place = Place::new();
    place.bad(&["run", "no-such-program"], 127, &["no-such-program", "not found"]);
    place.bad(&["run", "./none"], 127, &["./none", "no such file"]);
    place.write("text", "hello");
    place.bad(&["run", "./text"], 126, &["./text", "not an executable"]);
    place.bad(&["run", "--", "/"], 126, &["not an executable"]);
    place.nothing_left();
}

#[test]
fn a_mount_point_must_be_an_empty_directory() {
    let place = Place::new();
    place.bad(&["run", "--mount", "none", "true"], 2, &["mount none", "no such directory"]);
    place.write("full/file", "x");
    place.bad(&["run", "--mount", "full", "true"], 2, &["mount full", "not empty"]);
    place.write("file", "x");
    place.bad(&["run", "--mount", "file", "true"], 2, &["mount file", "empty directory"]);
    place.nothing_left();
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused() {
    let place = Place::new();
    let said = ["reserve memory", "available", "--memory"];
    place.bad(&["run", "--memory", "900T", "true"], 1, &said);
    place.bad(&["up", "--servers", "3", "--memory", "900T"], 1, &said);
    place.write("secret", "0".repeat(64));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(place.path("secret"), mode).expect("private");
    place.bad(
        &["server", "--listen", "127.0.0.1:0", "--memory", "900T", "--secret", "secret"],
        1,
        &said,
    );
    place.nothing_left();
}

#[test]
fn a_secret_is_kept_from_others_and_has_64_digits() {
    let place = Place::new();
    let server = ["server", "--listen", "127.0.0.1:0", "--memory", "32M", "--secret", "secret"];
    place.bad(&server, 1, &["read secret secret", "no such file"]);
    place.write("secret", "0".repeat(64));
    let set = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(place.path("secret"), mode).expect("set");
    };
    set(0o644);
    place.bad(&server, 1, &["read secret secret", "chmod 600"]);
    place.write("secret", "0123");
    set(0o600);
    place.bad(&server, 1, &["64 hexadecimal digits"]);
}

#[test]
fn an_address_in_use_and_one_that_is_none_are_named() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("address").to_string();
    place.bad(
        &["run", "--servers", "1", "--memory", "32M", "--listen", &address, "true"],
        69,
        &["start server 0", &address],
    );
    place.bad(
        &["run", "--servers", "1", "--memory", "32M", "--listen", "nowhere", "true"],
        2,
        &["--listen nowhere", "host:port"],
    );
    place.nothing_left();
}

#[test]
fn staging_in_what_is_not_there_is_found_out_first() {
    let place = Place::new();
    place.bad(&["run", "--stage-in", "none", "true"], 66, &["stage in none", "no such file"]);
    place.bad(&["run", "--stage-in", "none:/x", "true"], 66, &["stage in none"]);
    place.bad(&["run", "--stage-out", "a[", "true"], 2, &["--stage-out a["]);
    place.write("kept/file", "x");
    place.bad(
        &["run", "--keep-on-failure=kept", "true"],
        2,
        &["--keep-on-failure kept", "not empty"],
    );
    place.nothing_left();
}

#[test]
fn hosts_files_are_checked() {
    let place = Place::new();
    place.bad(&["up", "--hosts", "none", "--ssh", "--memory", "32M"], 1, &["read hosts none"]);
    place.write("hosts", "node1\nno/de\n");
    place.bad(&["up", "--hosts", "hosts", "--ssh", "--memory", "32M"], 2, &["line 2", "no/de"]);
    place.write("hosts", "node1\n");
    place.bad(&["up", "--hosts", "hosts"], 2, &["--ssh", "--secret"]);
    place.bad(&["up", "--hosts", "hosts", "--ssh"], 2, &["--memory"]);
    place.bad(&["up", "--hosts", "hosts", "--servers", "2"], 2, &["--servers"]);
    place.bad(
        &["up", "--hosts", "hosts", "--ssh=false", "--memory", "32M"],
        69,
        &["start server 0"],
    );
    place.bad(
        &["up", "--hosts", "hosts", "--ssh=echo hello", "--memory", "32M"],
        69,
        &["start server 0", "hello"],
    );
    place.nothing_left();
}

#[test]
fn a_pool_that_is_not_there_is_named() {
    let place = Place::new();
    place.bad(&["ls"], 1, &["none is up", "weir up"]);
    place.bad(&["df", "--pool", "none"], 1, &["find pool none", "weir up none"]);
    place.bad(&["down", "none"], 1, &["end pool none"]);
    place.bad(&["cp", "a", "b"], 2, &["weir:/path"]);
    place.bad(&["umount", "."], 1, &["nothing is mounted"]);
    assert!(place.good(&["status"]).contains("no pool is up"));
}
