//! `libweir.so` as programs use it: C programs of `tests/capi`, compiled against `include/weir.h`,
//! against servers in this process.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::mem::offset_of;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use weir::abi::{ConnectOptions, WeirDirent, WeirExtent, WeirLayout, WeirStat, WeirStatfs};
use weir_core::auth::Secret;
use weir_core::config::Timing;
use weir_server::{Server, ServerOptions};

const SERVERS: usize = 4;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let library = test.with_file_name("libweir.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

fn sources() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("tests/capi")).expect("tests/capi is there");
    let paths = entries.map(|entry| entry.expect("entry can be read").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "c")).collect()
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8(output.stdout).expect("output is text")
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"]);
    // What a program forgets to set is never right by chance.
    command.arg("-ftrivial-auto-var-init=pattern");
    command.arg("-I").arg(root().join("include"));
    command
}

/// A directory with the library as it is installed, and with what is compiled.
fn workshop() -> TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    for name in ["libweir.so", "libweir.so.0"] {
        symlink(library(), directory.path().join(name)).expect("symbolic link");
    }
    directory
}

fn compile(workshop: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = workshop.join(name);
    let mut command = compiler();
    command.args(flags).arg(root().join(format!("tests/capi/{name}.c")));
    command.arg("-L").arg(workshop).arg(format!("-Wl,-rpath,{}", workshop.display()));
    succeeds(command.args(["-lweir", "-pthread", "-o"]).arg(&program));
    program
}

struct TestPool {
    servers: Vec<Server>,
    home: TempDir,
}

impl TestPool {
    fn start() -> TestPool {
        let secret = Secret::from_bytes([5; 32]);
        let servers: Vec<_> = (0..SERVERS)
            .map(|_| {
                Server::start(ServerOptions {
                    listen: "127.0.0.1:0".to_owned(),
                    transport: weir_client::Transport::default(),
                    memory: vec![64 << 20],
                    disks: Vec::new(),
                    disk_engine: weir_server::Engine::Auto,
                    metadata_memory: 16 << 20,
                    metadata_dir: None,
                    secret: secret.clone(),
                    threads: 1,
                    timing: Timing::default(),
                })
                .expect("server starts")
            })
            .collect();
        let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
        let form = weir_client::FormOptions {
            name: "capi".to_owned(),
            owner_uid: 1000,
            owner_gid: 1000,
            stripe_size: 64 << 10,
            stripe_count: 0,
        };
        weir_client::form(&addresses, &secret, &form, &weir_client::ConnectOptions::default())
            .expect("pool forms");
        let home = tempfile::tempdir().expect("temporary directory");
        let quoted: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
        let pool = format!("{{\"servers\": [{}]}}", quoted.join(", "));
        let other = Secret::from_bytes([6; 32]);
        let known =
            [("capi", pool.as_str(), &secret), ("stolen", &pool, &other), ("torn", "{", &secret)];
        for (name, pool, secret) in known {
            let directory = home.path().join("pools").join(name);
            std::fs::create_dir_all(&directory).expect("directory");
            std::fs::write(directory.join("pool.json"), pool).expect("pool.json");
            let file = directory.join("secret");
            std::fs::write(&file, secret.to_text()).expect("secret");
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(file, private).expect("private secret");
        }
        TestPool { servers, home }
    }

    /// In the environment the pool is known by its name; its directory is the argument.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("WEIR_HOME", self.home.path()).env("WEIR_POOL", "capi");
        command.env("ASAN_OPTIONS", "detect_leaks=1");
        command
    }

    fn directory(&self) -> PathBuf {
        self.home.path().join("pools/capi")
    }
}

#[test]
fn files() {
    let (workshop, pool) = (workshop(), TestPool::start());
    let program = compile(workshop.path(), "files", &["-D_GNU_SOURCE"]);
    succeeds(pool.command(&program).arg(pool.directory()));
}

#[test]
fn names() {
    let (workshop, pool) = (workshop(), TestPool::start());
    succeeds(&mut pool.command(&compile(workshop.path(), "names", &[])));
}

#[test]
fn operations() {
    let (workshop, pool) = (workshop(), TestPool::start());
    succeeds(&mut pool.command(&compile(workshop.path(), "operations", &[])));
}

#[test]
fn lending() {
    let (workshop, pool) = (workshop(), TestPool::start());
    succeeds(&mut pool.command(&compile(workshop.path(), "lending", &[])));
}

/// Memory of the callers that is used after it was freed, or beyond its end, or leaks.
#[test]
fn under_address_sanitizer() {
    let (workshop, pool) = (workshop(), TestPool::start());
    for name in ["files", "operations"] {
        let flags = ["-D_GNU_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover"];
        let program = compile(workshop.path(), name, &flags);
        succeeds(pool.command(&program).arg(pool.directory()));
    }
}

#[test]
fn lost_servers() {
    let (workshop, mut pool) = (workshop(), TestPool::start());
    let program = compile(workshop.path(), "lost", &[]);
    let mut command = pool.command(&program);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("program starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("program speaks");
    assert_eq!(line, "ready\n");
    pool.servers.clear();
    child.stdin.take().expect("piped").write_all(b"\n").expect("program listens");
    let status = child.wait().expect("program ends");
    assert!(status.success(), "{status}");
}

#[test]
fn the_header_stands_alone() {
    let workshop = workshop();
    compile(workshop.path(), "header", &[]);
    let compiler = std::env::var_os("CXX").unwrap_or("c++".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        eprintln!("no C++ compiler here: the header was tried as C alone");
        return;
    }
    let mut command = Command::new(compiler);
    command.args(["-x", "c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
    succeeds(command.arg(root().join("include")).arg(root().join("tests/capi/header.c")));
}

/// The text between a fence of this kind and its end.
fn fenced(page: &str, kind: &str) -> String {
    let start = format!("```{kind}\n");
    let (_, rest) = page.split_once(&start).expect("page has such a part");
    rest.split_once("```").expect("which ends").0.to_owned()
}

/// What docs/c-api.md says is done as it says: installed, found by pkg-config, compiled, run.
#[test]
fn the_page_works() {
    let page = std::fs::read_to_string(root().join("docs/c-api.md")).expect("docs/c-api.md");
    let (prefix, pool) = (tempfile::tempdir().expect("temporary directory"), TestPool::start());
    let script: String = fenced(&page, "sh")
        .lines()
        .filter(|line| !line.starts_with("cargo "))
        .map(|line| line.replace("target/release/libweir.so", "\"$LIBRARY\"") + "\n")
        .collect();
    let mut shell = Command::new("bash");
    shell.args(["-euc", &script]).current_dir(root());
    succeeds(shell.env("PREFIX", prefix.path()).env("LIBRARY", library()));
    let pkg_config = prefix.path().join("lib/pkgconfig");
    let version = succeeds(
        Command::new("pkg-config")
            .args(["--modversion", "weir"])
            .env("PKG_CONFIG_PATH", &pkg_config),
    );
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));

    let program = prefix.path().join("program");
    std::fs::write(program.with_extension("c"), fenced(&page, "c")).expect("source");
    let mut shell = Command::new("bash");
    let compile =
        "cc -Wall -Wextra -Werror program.c $(pkg-config --cflags --libs weir) -o program";
    shell.args(["-euc", compile]).current_dir(prefix.path());
    succeeds(shell.env("PKG_CONFIG_PATH", &pkg_config));
    let mut run = pool.command(&program);
    assert_eq!(succeeds(run.env("LD_LIBRARY_PATH", prefix.path().join("lib"))), "8388608 bytes\n");
}

macro_rules! layout {
    ($text:ident, $c:literal, $rust:ty, $($field:ident),+) => {
        writeln!($text, "_Static_assert(sizeof({}) == {}, \"\");", $c, size_of::<$rust>()).unwrap();
        $(writeln!(
            $text,
            "_Static_assert(offsetof({}, {}) == {}, \"\");",
            $c, stringify!($field), offset_of!($rust, $field),
        )
        .unwrap();)+
    };
}

#[test]
fn structures_lie_in_memory_as_the_header_says() {
    let mut text = String::from("#include <weir.h>\n");
    layout!(
        text,
        "weir_connect_options",
        ConnectOptions,
        struct_size,
        connections,
        silence_ms,
        transfer_size
    );
    layout!(text, "weir_layout", WeirLayout, struct_size, stripe_size, stripe_count, reserved);
    layout!(text, "weir_extent", WeirExtent, offset, length);
    layout!(
        text,
        "struct weir_stat",
        WeirStat,
        ino,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        allocated,
        atime_ns,
        mtime_ns,
        ctime_ns,
        reserved
    );
    layout!(text, "struct weir_dirent", WeirDirent, ino, mode, name_length, name);
    layout!(
        text,
        "struct weir_statfs",
        WeirStatfs,
        capacity,
        used,
        inodes,
        metadata_capacity,
        metadata_used,
        servers,
        targets,
        reserved
    );
    let workshop = workshop();
    let source = workshop.path().join("layout.c");
    std::fs::write(&source, text).expect("source");
    succeeds(compiler().arg("-fsyntax-only").arg(source));
}

/// Functions that the header declares, each with whether a comment stands right before it.
fn declared() -> Vec<(String, bool)> {
    let header = std::fs::read_to_string(root().join("include/weir.h")).expect("weir.h");
    let mut functions = Vec::new();
    let mut documented = false;
    for line in header.lines() {
        let declaration = line.starts_with(|c: char| c.is_ascii_lowercase())
            && !line.starts_with("typedef")
            && !line.starts_with("struct weir_stat")
            && !line.starts_with("struct weir_dirent");
        if let Some(start) = line.find("weir_").filter(|_| declaration && line.contains('('))
            && let Some(length) = line[start..].find('(')
        {
            functions.push((line[start..start + length].to_owned(), documented));
        }
        documented = line.trim_end().ends_with("*/");
    }
    functions
}

#[test]
fn every_function_is_documented_exported_and_tested_and_nothing_else_is_exported() {
    let functions = declared();
    assert!(functions.len() > 40, "only {} declarations were found", functions.len());
    for (name, documented) in &functions {
        assert!(documented, "{name} has no comment");
    }
    let declared: BTreeSet<_> = functions.into_iter().map(|(name, _)| name).collect();
    let symbols = succeeds(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let exported: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, declared);
    let tests: String = sources()
        .iter()
        .map(|path| std::fs::read_to_string(path).expect("test can be read"))
        .collect();
    for name in &declared {
        assert!(tests.contains(&format!("{name}(")), "no program in tests/capi calls {name}");
    }
}

#[test]
fn the_library_is_named_by_its_abi_and_stays_loaded() {
    let dynamic = succeeds(Command::new("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("Library soname: [libweir.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}
