//! `libweir_preload.so` as programs meet it: C programs of `tests/preload`, run with it in a mount of
//! a pool whose servers are in this process. Each of their cases runs in a process of its own and
//! checks, by what the library counts on the mount's board, who did the work.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_client::{ConnectOptions, FormOptions, Pool, PoolAddress, form};
use weir_core::auth::{Role, Secret};
use weir_core::config::Timing;
use weir_fuse::{MountOptions, Rule, Session};
use weir_server::{Server, ServerOptions};

/// Longest that a case may take, on a machine with much else to do.
const CASE_TIME_MAX: Duration = Duration::from_secs(60);

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/preload")
}

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let library = test.with_file_name("libweir_preload.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Says so and gives false where FUSE cannot be had.
fn fuse_works() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &device {
        eprintln!("SKIPPED: /dev/fuse cannot be opened here ({error}): nothing was tested");
    }
    device.is_ok()
}

/// Short enough for a test to wait for a dead server.
fn timing() -> Timing {
    Timing {
        heartbeat_ms: 200,
        silence_ms_max: 2_000,
        reconnect_ms: 50,
        busy_ms_max: 5_000,
        ..Timing::default()
    }
}

/// A pool, its mount, and a directory elsewhere. Fields are dropped in this order.
struct Ground {
    session: Option<Session>,
    servers: Vec<Server>,
    mount: PathBuf,
    /// The pool's directory.
    pool: PathBuf,
    /// What is compiled, and files of another file system.
    scratch: PathBuf,
    _home: TempDir,
}

impl Ground {
    fn new(timing: Timing) -> Ground {
        Ground::with_rules(timing, Vec::new())
    }

    fn with_rules(timing: Timing, rules: Vec<Rule>) -> Ground {
        let secret = Secret::from_bytes([9; 32]);
        let servers: Vec<_> = (0..2)
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
                    timing: timing.clone(),
                })
                .expect("server starts")
            })
            .collect();
        let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
        let home = tempfile::Builder::new().prefix("weir-preload-").tempdir().expect("directory");
        let owner = home.path().metadata().expect("is there");
        let form_options = FormOptions {
            name: "preload".to_owned(),
            owner_uid: owner.uid(),
            owner_gid: owner.gid(),
            stripe_size: 64 << 10,
            stripe_count: 0,
        };
        let options = ConnectOptions { timing: timing.clone(), ..ConnectOptions::default() };
        form(&addresses, &secret, &form_options, &options).expect("pool forms");
        let [mount, pool, scratch] = ["mount", "pool", "scratch"].map(|name| {
            let path = home.path().join(name);
            std::fs::create_dir(&path).expect("directory");
            path
        });
        let file =
            serde_json::json!({ "servers": addresses, "connections": null, "timing": timing });
        std::fs::write(pool.join("pool.json"), file.to_string()).expect("pool.json");
        std::fs::write(pool.join("secret"), secret.to_text()).expect("secret");
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(pool.join("secret"), private).expect("private secret");

        let address = PoolAddress { servers: addresses, secret, role: Role::Mount };
        let mounted = Pool::connect(&address, &options).expect("pool connects");
        let mount_options =
            MountOptions { pool_directory: Some(pool.clone()), rules, ..MountOptions::default() };
        let session = weir_fuse::mount(mounted, &mount, &mount_options).expect("mounts");
        Ground { session: Some(session), servers, mount, pool, scratch, _home: home }
    }

    /// All files have buffers of this many bytes.
    fn with_buffers(size: u64) -> Ground {
        let rule = Rule { pattern: "*".to_owned(), io_buffer: Some(size), ..Rule::default() };
        Ground::with_rules(timing(), vec![rule])
    }

    /// Reads and writes that programs did by themselves, as the mount counts them.
    fn direct(&self) -> u64 {
        let statistics = self.session.as_ref().expect("mounted").statistics();
        let count = |name| statistics.operations.get(name).map_or(0, |operation| operation.count);
        count("direct read") + count("direct write")
    }

    fn board(&self) -> PathBuf {
        let entries = std::fs::read_dir(&self.pool).expect("pool's directory");
        let mut paths = entries.map(|entry| entry.expect("entry can be read").path());
        let is_board = |path: &PathBuf| path.to_string_lossy().contains("/board-");
        paths.find(is_board).expect("the mount has made a board")
    }

    fn compile(&self, name: &str, flags: &[&str]) -> PathBuf {
        let source = sources().join(format!("{name}.c"));
        let product = self.scratch.join(format!("{name}{}", flags.concat()));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]);
        // What a program forgets to set is never right by chance.
        compiler.arg("-ftrivial-auto-var-init=pattern");
        let status = compiler.args(flags).arg(source).arg("-o").arg(&product).status();
        assert!(status.expect("compiler runs").success(), "{name}.c does not compile");
        product
    }

    /// As a user would run it with the library; `preloads` stand around ours, which is `*` there.
    fn command(&self, program: &Path, preloads: &[&str]) -> Command {
        let library = library();
        let library = library.to_str().expect("path is text");
        let preloads: Vec<_> =
            preloads.iter().map(|one| if *one == "*" { library } else { one }).collect();
        let mut command = Command::new(program);
        command.current_dir(&self.mount);
        command.env("LD_PRELOAD", preloads.join(" "));
        command.env("SCRATCH", &self.scratch).env("BOARD", self.board());
        command.env("LIBRARY", library);
        command
    }

    /// Runs all cases of a program, or those named. Gives what went wrong.
    fn run(&self, program: &Path, preloads: &[&str], only: &[&str]) -> String {
        let names = Command::new(program).output().expect("program names its cases");
        let names = String::from_utf8(names.stdout).expect("text");
        let mut wrong = String::new();
        for name in names.lines().filter(|name| only.is_empty() || only.contains(name)) {
            let before = self.direct();
            let begun = Instant::now();
            let (status, output) =
                bounded(self.command(program, preloads).arg(name), &self.scratch);
            let direct = self.direct() - before;
            println!("{name}: {status}, {direct} direct, {:?}", begun.elapsed());
            print!("{output}");
            if status != "exit status: 0" {
                let shown = program.file_name().unwrap_or_default().to_string_lossy();
                writeln!(wrong, "{shown} {name}: {status}\n{output}").expect("text");
            }
            self.clean();
        }
        wrong
    }

    /// Removes what a case has left in the mount.
    fn clean(&self) {
        for entry in std::fs::read_dir(&self.mount).expect("mount works") {
            let path = entry.expect("entry can be read").path();
            match path.symlink_metadata().expect("is there").is_dir() {
                true => std::fs::remove_dir_all(path).expect("directory goes"),
                false => std::fs::remove_file(path).expect("file goes"),
            }
        }
    }

    /// The whole of a program, without and with the compiler's checks of buffers.
    fn test(&self, name: &str) {
        let mut wrong = self.run(&self.compile(name, &[]), &["*"], &[]);
        let fortified = self.compile(name, &["-D_FORTIFY_SOURCE=2", "-O2"]);
        wrong += &self.run(&fortified, &["*"], &[]);
        assert!(wrong.is_empty(), "{wrong}");
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(self.session.take());
    }
}

/// Runs a command for at most [`CASE_TIME_MAX`], it and what it has started; gives how it ended
/// and what it said.
fn bounded(command: &mut Command, scratch: &Path) -> (String, String) {
    let path = scratch.join("output");
    let output = File::create(&path).expect("output");
    command
        .stdout(output.try_clone().expect("output"))
        .stderr(output)
        .stdin(std::process::Stdio::null());
    // A group of its own, so that its children can be ended with it.
    let mut child = command.process_group(0).spawn().expect("program starts");
    let status = wait(&mut child);
    let mut said = String::new();
    let read = File::open(&path).expect("output").read_to_string(&mut said);
    read.expect("output is text");
    (status.map_or("took too long".to_owned(), |status| status.to_string()), said)
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("child is ours") {
            None if begun.elapsed() > CASE_TIME_MAX => break None,
            None => std::thread::sleep(Duration::from_millis(3)),
            status => break status,
        }
    };
    if status.is_none() {
        // SAFETY: names the process group that this test made, whose leader is not yet reaped.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        child.wait().expect("child is ours");
    }
    status
}

#[test]
fn forms() {
    if fuse_works() {
        Ground::new(timing()).test("forms");
    }
}

#[test]
fn division() {
    if fuse_works() {
        Ground::new(timing()).test("division");
    }
}

#[test]
fn threads() {
    if fuse_works() {
        Ground::new(timing()).test("threads");
    }
}

#[test]
fn harmless() {
    if fuse_works() {
        Ground::new(timing()).test("harmless");
    }
}

#[test]
fn hands() {
    if fuse_works() {
        Ground::new(timing()).test("hands");
    }
}

#[test]
fn streams() {
    if fuse_works() {
        Ground::new(timing()).test("streams");
    }
}

/// A mount that was ended by force cannot tell programs what becomes of their descriptors.
#[test]
fn unmounted_by_force() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::new(timing());
    let program = ground.compile("company", &[]);
    let mut child = at_work(&ground, &program, "until_unmounted");
    let mount =
        std::ffi::CString::new(ground.mount.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a path, ended by a NUL; the mount is this test's own.
    if unsafe { libc::umount2(mount.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) } != 0 {
        eprintln!("SKIPPED: no leave to unmount by force");
        child.kill().expect("child is ours");
        child.wait().expect("child ends");
        return;
    }
    let session = ground.session.as_ref().expect("mounted");
    let begun = Instant::now();
    while !session.is_over() {
        assert!(begun.elapsed() < CASE_TIME_MAX, "the mount does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    File::create(ground.scratch.join("go")).expect("a file");
    let status = wait(&mut child).map(|status| status.to_string());
    assert_eq!(status.as_deref(), Some("exit status: 0"));
}

#[test]
fn maps() {
    if fuse_works() {
        Ground::new(timing()).test("maps");
    }
}

/// A program that runs by itself, once it has said that it is ready.
fn at_work(ground: &Ground, program: &Path, case: &str) -> Child {
    let ready = ground.scratch.join("ready");
    let _ = std::fs::remove_file(&ready);
    let child =
        ground.command(program, &["*"]).arg(case).process_group(0).spawn().expect("program starts");
    let begun = Instant::now();
    while !ready.exists() {
        assert!(begun.elapsed() < CASE_TIME_MAX, "{case} does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn jemalloc() -> Option<&'static str> {
    let places =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/lib64"];
    let found = places
        .iter()
        .map(|place| format!("{place}/libjemalloc.so.2"))
        .find(|path| Path::new(path).exists());
    if found.is_none() {
        eprintln!("SKIPPED: jemalloc is not installed here: not tried beside it");
    }
    found.map(|path| &*path.leak())
}

/// Beside other preloaded libraries, in any order.
#[test]
fn company() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::new(timing());
    let interposer = ground.compile("interposer", &["-shared", "-fPIC"]);
    let interposer = interposer.to_str().expect("path is text");
    let programs: Vec<_> = [
        ("company", &["by_library"][..]),
        ("forms", &["read_forms", "at_random"]),
        ("division", &["forked", "vforked", "bare_clone", "with_threads", "shells"]),
        ("threads", &["one_position", "cancelled", "signalled"]),
        ("harmless", &["errno_of_success", "numbers_of_others", "streams"]),
    ]
    .into_iter()
    .map(|(name, cases)| (ground.compile(name, &[]), cases))
    .collect();
    let mut orders = vec![vec![interposer, "*"], vec!["*", interposer]];
    if let Some(jemalloc) = jemalloc() {
        orders.extend([vec![jemalloc, "*"], vec!["*", jemalloc]]);
        orders.push(vec![jemalloc, interposer, "*"]);
    }
    let mut wrong = String::new();
    for order in orders {
        for (program, cases) in &programs {
            let found = ground.run(program, &order, cases);
            if !found.is_empty() {
                writeln!(wrong, "with {order:?}: {found}").expect("text");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Programs that have no library in them: all through the kernel.
#[test]
fn without_the_library() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::new(timing());
    let program = ground.compile("company", &["-static"]);
    assert_eq!(ground.run(&program, &["*"], &["once"]), "");
    let program = ground.compile("company", &[]);
    let mut command = ground.command(&program, &["*"]);
    command.env_remove("LD_PRELOAD").arg("once");
    let (status, output) = bounded(&mut command, &ground.scratch);
    assert_eq!(status, "exit status: 0", "{output}");
    assert_eq!(ground.direct(), 0);
}

/// Those who have no way to the servers, or to the secret, have the kernel's.
#[test]
fn pools_out_of_reach() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::new(timing());
    let program = ground.compile("company", &[]);
    let file = ground.pool.join("pool.json");
    let pool = std::fs::read_to_string(&file).expect("pool.json");
    // Nobody listens at the port of one who has just stopped.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = nobody.local_addr().expect("has an address").to_string();
    drop(nobody);
    let gone = serde_json::json!({ "servers": [address], "connections": null, "timing": timing() });
    let secret = ground.pool.join("secret");
    let known = std::fs::read_to_string(&secret).expect("secret");
    for pool in [&gone.to_string(), "{", "{}"] {
        std::fs::write(&file, pool).expect("pool.json");
        assert_eq!(ground.run(&program, &["*"], &["once"]), "", "{pool}");
    }
    std::fs::write(&file, pool).expect("pool.json");
    for other in [Secret::from_bytes([8; 32]).to_text(), "x".to_owned()] {
        std::fs::write(&secret, other).expect("secret");
        assert_eq!(ground.run(&program, &["*"], &["once"]), "");
    }
    std::fs::remove_file(&secret).expect("secret goes");
    assert_eq!(ground.run(&program, &["*"], &["once"]), "");
    assert_eq!(ground.direct(), 0);
    std::fs::write(&secret, known).expect("secret");
    assert_eq!(ground.run(&program, &["*"], &["by_library"]), "");
}

#[test]
fn leave_that_expires_is_renewed() {
    if fuse_works() {
        let ground = Ground::new(Timing { capability_ms: 300, ..timing() });
        let program = ground.compile("company", &[]);
        assert_eq!(ground.run(&program, &["*"], &["for_long"]), "");
    }
}

#[test]
fn killed_programs_leave_the_mount_sound() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::new(timing());
    let program = ground.compile("company", &[]);
    let mut other = at_work(&ground, &program, "for_ever");
    for _ in 0..3 {
        let mut child = at_work(&ground, &program, "for_ever");
        std::thread::sleep(Duration::from_millis(100));
        child.kill().expect("child is ours");
        child.wait().expect("child ends");
        let (status, output) =
            bounded(ground.command(&program, &["*"]).arg("by_library"), &ground.scratch);
        assert_eq!(status, "exit status: 0", "{output}");
    }
    let ended = other.try_wait().expect("child is ours");
    other.kill().expect("child is ours");
    other.wait().expect("child ends");
    assert_eq!(ended, None, "the other program was disturbed");
}

#[test]
fn lost_servers_are_an_error_and_soon() {
    if !fuse_works() {
        return;
    }
    let mut ground = Ground::new(timing());
    let program = ground.compile("company", &[]);
    let mut child = at_work(&ground, &program, "until_lost");
    ground.servers.clear();
    let status = wait(&mut child).map(|status| status.to_string());
    assert_eq!(status.as_deref(), Some("exit status: 0"));
}

/// Small requests in every order give the same with buffers, within one process.
#[test]
fn buffers() {
    if !fuse_works() {
        return;
    }
    for size in [4096, 128 << 10] {
        let ground = Ground::with_buffers(size);
        let cases =
            [("forms", "at_random"), ("forms", "rows"), ("streams", "streams_and_descriptors")];
        for (program, case) in cases {
            let program = ground.compile(program, &[]);
            let mut command = ground.command(&program, &["*"]);
            command.env("WEIR_IO_BUFFER", "yes").arg(case);
            let (status, output) = bounded(&mut command, &ground.scratch);
            assert_eq!(status, "exit status: 0", "buffers of {size} bytes, {case}: {output}");
        }
    }
}

/// What is written behind and read ahead while the program goes on.
#[test]
fn buffers_are_moved_while_the_program_goes_on() {
    if !fuse_works() {
        return;
    }
    let mut ground = Ground::with_buffers(128 << 10);
    let program = ground.compile("buffers", &[]);
    let run = |case: &str| {
        let mut command = ground.command(&program, &["*"]);
        let done = bounded(command.env("WEIR_IO_BUFFER", "yes").arg(case), &ground.scratch);
        ground.clean();
        done
    };
    for case in [
        "seen",
        "children",
        "given",
        "over",
        "cut",
        "changed",
        "overtaken",
        "long_after",
        "to_and_fro",
        "histories",
        "again",
        "pauses",
        "full",
    ] {
        let (status, output) = run(case);
        assert_eq!(status, "exit status: 0", "{case}: {output}");
    }
    let mut child = at_work(&ground, &program, "until_lost");
    ground.servers.clear();
    let status = wait(&mut child).map(|status| status.to_string());
    assert_eq!(status.as_deref(), Some("exit status: 0"));
}

/// A program that hears of others' work by a file of theirs once read what it had read ahead before.
#[test]
fn buffers_hide_nothing_from_who_opens_a_file() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::with_buffers(128 << 10);
    let program = ground.compile("company", &[]);
    let told = ground.mount.join("told");
    std::fs::write(&told, [b'a'; 1000]).expect("the mount works");
    let mut child = at_work(&ground, &program, "reads_ahead");
    std::fs::write(&told, [b'b'; 1000]).expect("the mount works");
    std::fs::write(ground.scratch.join("go"), []).expect("scratch space");
    let status = wait(&mut child).map(|status| status.to_string());
    assert_eq!(status.as_deref(), Some("exit status: 0"));
}

/// A program that waits for others' bytes by reading the same place again and again.
#[test]
fn buffers_hide_nothing_for_long() {
    if !fuse_works() {
        return;
    }
    let ground = Ground::with_buffers(128 << 10);
    let program = ground.compile("company", &[]);
    let told = ground.mount.join("told");
    std::fs::write(&told, [b'a'; 1000]).expect("the mount works");
    let mut child = at_work(&ground, &program, "looks_again");
    // Without making it anew: the file that the program has open is to change.
    let file = File::options().write(true).open(&told).expect("the mount works");
    file.write_all_at(&[b'b'; 1000], 0).expect("the mount works");
    let status = wait(&mut child).map(|status| status.to_string());
    assert_eq!(status.as_deref(), Some("exit status: 0"));
}
