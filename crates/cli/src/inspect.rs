//! Looking at pools and what they hold: `status`, `df`, `ls`, `stat`, `layout`, `rm`.

use crate::args;
use crate::failure::{Failure, Outcome, print, tell};
use crate::kept::KeptFile;
use crate::pool::{Access, Store, path_in_pool};
use crate::size::show;
use crate::state::{PoolDirectory, Standing};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use weir_core::layout::{Layout, Redundancy};
use weir_core::types::{Attributes, FileKind, WallTime};
use weir_core::wire::meta::LayoutWish;

/// Requests to remove under way at once.
const REMOVALS: usize = 8;

fn print_json(value: &Value) -> Outcome<()> {
    print(format_args!("{value:#}\n"))
}

/// `weir status`.
pub(crate) fn status(options: &args::Status) -> Outcome<u8> {
    let directories = match &options.name {
        Some(name) => vec![PoolDirectory::chosen(Some(name))?],
        None => PoolDirectory::all()?,
    };
    let mut pools = Vec::new();
    let mut bad = false;
    for directory in directories {
        let (value, text, fine) = match pool_status(&directory) {
            Ok(found) => found,
            Err(failure) => (
                json!({ "name": directory.name(), "error": failure.text }),
                format!("{}: {failure}\n", directory.name()),
                false,
            ),
        };
        bad |= !fine;
        pools.push(value);
        if !options.json {
            print(text)?;
        }
    }
    if options.json {
        print_json(&json!({ "pools": pools }))?;
    } else if pools.is_empty() {
        print("no pool is up; 'weir up NAME' makes one\n")?;
    }
    Ok(u8::from(bad))
}

/// A pool's state as JSON and text, and whether all is well with it.
fn pool_status(directory: &PoolDirectory) -> Outcome<(Value, String, bool)> {
    let kept = KeptFile::is_in(&directory.path);
    if kept && !directory.path.join("pool.json").exists() {
        let name = directory.name();
        let text = format!("{name}: kept, and down; 'weir up {name}' brings it back\n");
        return Ok((json!({ "name": name, "state": "down", "kept": true }), text, true));
    }
    let file = directory.read()?;
    let standing = file.standing();
    if standing != Standing::Up {
        let (word, text) = match standing {
            Standing::Stale if kept => {
                ("stale", format!("its servers are gone; 'weir up {}' brings it back", file.name))
            }
            Standing::Forming => ("forming", "is being made".to_owned()),
            _ => {
                ("stale", format!("its servers are gone; 'weir down {}' clears it away", file.name))
            }
        };
        let value = json!({ "name": file.name, "state": word });
        return Ok((value, format!("{}: {text}\n", file.name), standing == Standing::Forming));
    }
    let store = Store::connect(&Access::new(&file, &directory.secret()?))?;
    let mut text = format!(
        "{}: {} servers, stripes of {}\n",
        file.name,
        file.servers.len(),
        show(store.map().stripe_size)
    );
    for mount in &file.mounts {
        text += &format!(
            "  mounted at {} by process {}\n",
            mount.directory.display(),
            mount.process.pid
        );
    }
    text += &format!(
        "  {:<3} {:<22} {:>8} {:>9} {:>9} {:>9} {:>10} {:>10} {:>6} {:>9}\n",
        "", "address", "pid", "up", "in use", "of", "sent", "stored", "conns", "cpu s"
    );
    let mut servers = Vec::new();
    let mut fine = true;
    for (index, status) in store.status().into_iter().enumerate() {
        match status {
            Ok(status) => {
                text += &format!(
                    "  {:<3} {:<22} {:>8} {:>8}s {:>9} {:>9} {:>10} {:>10} {:>6} {:>9.2}\n",
                    index,
                    status.address,
                    status.pid,
                    status.uptime_ms / 1000,
                    show(status.memory_used),
                    show(status.memory),
                    show(status.bytes_read),
                    show(status.bytes_written),
                    status.connections,
                    (status.cpu_user_us + status.cpu_system_us) as f64 / 1e6
                );
                for target in status.targets.iter().filter(|target| target.disk > 0) {
                    text += &format!(
                        "      target {}: {} of {} memory, {} dirty; disk {} of {}, {} under way, {} wait, {} read, {} written, {} errors{}\n",
                        target.id,
                        show(target.memory_used),
                        show(target.memory),
                        show(target.dirty),
                        show(target.disk_used),
                        show(target.disk),
                        target.disk_queued,
                        target.disk_waiting,
                        show(target.disk_bytes_read),
                        show(target.disk_bytes_written),
                        target.disk_errors,
                        if target.disk_failed {
                            "; DISK FAILED, not written to any more"
                        } else {
                            ""
                        }
                    );
                    if target.scrubbed > 0 || target.scrub_errors > 0 {
                        text += &format!(
                            "      target {}: {} verified, {} bad chunks\n",
                            target.id,
                            show(target.scrubbed),
                            target.scrub_errors
                        );
                    }
                }
                if !status.unfit.is_empty() {
                    let names: Vec<String> = status.unfit.iter().map(u32::to_string).collect();
                    text += &format!(
                        "      new files are not placed in target {}: disk errors\n",
                        names.join(", ")
                    );
                }
                servers.push(json!(status));
            }
            Err(error) => {
                fine = false;
                let address = &file.servers[index.min(file.servers.len() - 1)];
                text += &format!("  {index:<3} {address:<22} {}\n", error.cause);
                servers.push(json!({ "index": index, "address": address, "error": error.cause }));
            }
        }
    }
    let value = json!({
        "name": file.name, "state": if fine { "up" } else { "degraded" },
        "stripe_size": store.map().stripe_size, "stripe_count": store.map().stripe_count,
        "mounts": file.mounts, "servers": servers,
    });
    Ok((value, text, fine))
}

/// `weir df`.
pub(crate) fn df(options: &args::Df) -> Outcome<u8> {
    let store = Store::open(&options.which, None)?;
    let usage = store.usage()?;
    if options.json {
        print_json(&json!({
            "pool": store.map().name, "capacity": usage.capacity, "used": usage.used,
            "available": usage.capacity.saturating_sub(usage.used), "inodes": usage.inodes,
            "metadata_capacity": usage.metadata_capacity, "metadata_used": usage.metadata_used,
        }))?;
        return Ok(0);
    }
    let line = |name: &str, used: u64, capacity: u64| {
        let share = if capacity > 0 { 100.0 * used as f64 / capacity as f64 } else { 0.0 };
        format!(
            "{name:<20} {:>10} {:>10} {:>10} {share:>6.1}%\n",
            show(capacity),
            show(used),
            show(capacity.saturating_sub(used))
        )
    };
    let head = format!("{:<20} {:>10} {:>10} {:>10} {:>7}\n", "", "size", "used", "free", "used");
    let data = line(&store.map().name, usage.used, usage.capacity);
    let metadata = line("  metadata", usage.metadata_used, usage.metadata_capacity);
    print(format_args!("{head}{data}{metadata}  {} inodes\n", usage.inodes))?;
    Ok(0)
}

/// `weir ls`.
pub(crate) fn ls(options: &args::Ls) -> Outcome<u8> {
    let store = Store::open(&options.which, None)?;
    let mut names = Names::default();
    let mut listed = Vec::new();
    for text in &options.paths {
        let path = path_in_pool(text)?;
        let found = store.lookup(&path, true)?;
        let entries: Vec<(std::path::PathBuf, Attributes)> = if found.kind != FileKind::Directory {
            vec![(path.clone(), found)]
        } else if options.recursive {
            store.walk(&path)?
        } else {
            let entries = store.list(found.ino)?.into_iter();
            entries
                .map(|(entry, attributes)| (path.join(os_name(entry.name)), attributes))
                .collect()
        };
        let several = options.paths.len() > 1;
        let mut out = String::new();
        if several && !options.json {
            out += &format!("{}:\n", path.display());
        }
        for (entry, attributes) in entries {
            if options.json {
                listed.push(attributes_json(&store, &entry, &attributes)?);
                continue;
            }
            let shown = match options.recursive {
                true => entry.strip_prefix(&path).unwrap_or(&entry),
                false => Path::new(entry.file_name().unwrap_or(entry.as_os_str())),
            };
            let mark = if attributes.kind == FileKind::Directory { "/" } else { "" };
            if options.long {
                let target = link_text(&store, &attributes)?;
                out += &format!(
                    "{} {:>3} {:<8} {:<8} {:>14} {} {}{mark}{target}\n",
                    mode_text(&attributes),
                    attributes.nlink,
                    names.user(attributes.uid),
                    names.group(attributes.gid),
                    attributes.size,
                    time_text(attributes.mtime),
                    printable(shown)
                );
            } else {
                out += &format!("{}{mark}\n", printable(shown));
            }
        }
        print(out)?;
    }
    if options.json {
        print_json(&json!({ "entries": listed }))?;
    }
    Ok(0)
}

fn os_name(name: Vec<u8>) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(name)
}

/// A name that cannot command the terminal.
fn printable(path: &Path) -> String {
    path.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn link_text(store: &Store, attributes: &Attributes) -> Outcome<String> {
    if attributes.kind != FileKind::Symlink {
        return Ok(String::new());
    }
    let text = store.read_link(attributes.ino)?;
    Ok(format!(" -> {}", printable(Path::new(&os_name(text)))))
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

fn attributes_json(store: &Store, path: &Path, attributes: &Attributes) -> Outcome<Value> {
    let mut value = json!({
        "path": path.to_string_lossy(), "kind": kind_name(attributes.kind),
        "mode": format!("{:04o}", attributes.mode), "uid": attributes.uid, "gid": attributes.gid,
        "size": attributes.size, "links": attributes.nlink, "inode": attributes.ino.0,
        "mtime_ns": attributes.mtime.0, "ctime_ns": attributes.ctime.0, "atime_ns": attributes.atime.0,
    });
    if attributes.kind == FileKind::Symlink {
        let text = store.read_link(attributes.ino)?;
        value["target"] = json!(String::from_utf8_lossy(&text));
    }
    Ok(value)
}

/// `drwxr-xr-x`.
fn mode_text(attributes: &Attributes) -> String {
    let letter = match attributes.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut text = String::from(letter);
    for (shift, special, set, unset) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = attributes.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, attributes.mode & special != 0) {
            (true, true) => set,
            (false, true) => unset,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2026-11-20 10:37:20Z`: world time, as the pool's machines may disagree about any other.
fn time_text(time: WallTime) -> String {
    let seconds = time.0.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, so that leap days come last: H. Hinnant, "chrono-compatible low-level
    // date algorithms".
    let day = days + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Users and groups by name.
#[derive(Default)]
struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    fn user(&mut self, uid: u32) -> String {
        let name = self.users.entry(uid).or_insert_with(|| {
            let found = nix::unistd::User::from_uid(uid.into()).ok().flatten();
            found.map_or_else(|| uid.to_string(), |user| user.name)
        });
        name.clone()
    }

    fn group(&mut self, gid: u32) -> String {
        let name = self.groups.entry(gid).or_insert_with(|| {
            let found = nix::unistd::Group::from_gid(gid.into()).ok().flatten();
            found.map_or_else(|| gid.to_string(), |group| group.name)
        });
        name.clone()
    }
}

/// `weir stat`.
pub(crate) fn stat(options: &args::Stat) -> Outcome<u8> {
    let store = Store::open(&options.which, None)?;
    let mut names = Names::default();
    let mut all = Vec::new();
    for text in &options.paths {
        let path = path_in_pool(text)?;
        let found = store.lookup(&path, false)?;
        let (layout, wish) = match found.kind {
            FileKind::Regular | FileKind::Directory => store.layout(found.ino)?,
            _ => (None, LayoutWish::default()),
        };
        if options.json {
            let mut value = attributes_json(&store, &path, &found)?;
            value["layout"] = layout_json(layout.as_ref(), &wish);
            all.push(value);
            continue;
        }
        let target = link_text(&store, &found)?;
        print(format_args!(
            "{}{target}\n  {}, {} bytes, inode {}, {} links\n  {} {} {}\n  changed {}, written {}\n{}",
            printable(&path),
            kind_name(found.kind),
            found.size,
            found.ino.0,
            found.nlink,
            mode_text(&found),
            names.user(found.uid),
            names.group(found.gid),
            time_text(found.ctime),
            time_text(found.mtime),
            layout_text(&store, layout.as_ref(), &wish),
        ))?;
    }
    if options.json {
        print_json(&json!({ "entries": all }))?;
    }
    Ok(0)
}

fn layout_json(layout: Option<&Layout>, wish: &LayoutWish) -> Value {
    match layout {
        None => json!({ "stripe_size": wish.stripe_size, "stripe_count": wish.stripe_count }),
        Some(layout) => json!({
            "stripe_size": layout.stripe_size, "stripe_count": layout.stripe_count(),
            "generation": layout.generation,
            "redundancy": match layout.redundancy {
                Redundancy::None => "none".to_owned(),
                other => format!("{other:?}").to_lowercase(),
            },
            "targets": (0..layout.stripe_count()).map(|column| layout.member(column).target.0).collect::<Vec<_>>(),
        }),
    }
}

fn layout_text(store: &Store, layout: Option<&Layout>, wish: &LayoutWish) -> String {
    let Some(layout) = layout else {
        let size = match wish.stripe_size {
            Some(size) => show(size),
            None => format!("{} (the pool's)", show(store.map().stripe_size)),
        };
        let count = match wish.stripe_count {
            Some(0) => "all".to_owned(),
            Some(count) => count.to_string(),
            None => match store.map().stripe_count {
                0 => "all (the pool's)".to_owned(),
                count => format!("{count} (the pool's)"),
            },
        };
        return format!("  new files: stripes of {size} over {count} targets\n");
    };
    let mut text = format!("  stripes of {} over targets", show(layout.stripe_size));
    for column in 0..layout.stripe_count() {
        let target = layout.member(column).target;
        let address = store.map().find(target).map_or("gone", |(server, _)| {
            store.map().servers[usize::from(server.0)].address.as_str()
        });
        text += &format!(" {} ({address})", target.0);
    }
    text + "\n"
}

/// `weir layout`.
pub(crate) fn layout(options: &args::Layout) -> Outcome<u8> {
    let store = Store::open(&options.which, None)?;
    let mut all = Vec::new();
    for text in &options.paths {
        let path = path_in_pool(text)?;
        let found = store.lookup(&path, true)?;
        if !matches!(found.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Failure::say(format!(
                "layout {}: neither file nor directory",
                path.display()
            )));
        }
        let (mut layout, mut wish) = store.layout(found.ino)?;
        if options.stripe_size.is_some() || options.stripe_count.is_some() {
            wish.stripe_size = options.stripe_size.or(wish.stripe_size);
            wish.stripe_count = options.stripe_count.or(wish.stripe_count);
            (layout, wish) = store.set_layout(found.ino, wish).map_err(|error| {
                Failure::say(format!("set layout {}: {}", path.display(), error.cause))
            })?;
        }
        if options.json {
            let mut value = layout_json(layout.as_ref(), &wish);
            value["path"] = json!(path.to_string_lossy());
            all.push(value);
        } else {
            print(format_args!(
                "{}\n{}",
                printable(&path),
                layout_text(&store, layout.as_ref(), &wish)
            ))?;
        }
    }
    if options.json {
        print_json(&json!({ "layouts": all }))?;
    }
    Ok(0)
}

/// `weir rm`.
pub(crate) fn rm(options: &args::Rm) -> Outcome<u8> {
    let store = Store::open(&options.which, None)?;
    let mut failed = 0;
    for text in &options.paths {
        if let Err(failure) = remove(&store, text, options) {
            tell(failure);
            failed += 1;
        }
    }
    Ok(u8::from(failed > 0))
}

fn remove(store: &Store, text: &str, options: &args::Rm) -> Outcome<()> {
    let path = path_in_pool(text)?;
    let Some(found) = store.find(&path, false)? else {
        return match options.force {
            true => Ok(()),
            false => {
                Err(Failure::say(format!("remove {}: no such file or directory", path.display())))
            }
        };
    };
    if found.kind != FileKind::Directory {
        return Ok(store.remove(&path, found.kind)?);
    }
    if !options.recursive {
        return Err(Failure::say(format!(
            "remove {}: is a directory; remove it with -r",
            path.display()
        )));
    }
    // Files first, several at once; then directories, inner ones first.
    let (directories, files): (Vec<_>, Vec<_>) = store
        .walk(&path)?
        .into_iter()
        .partition(|(_, attributes)| attributes.kind == FileKind::Directory);
    let next = AtomicUsize::new(0);
    let trouble = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..REMOVALS.min(files.len()) {
            scope.spawn(|| {
                while let Some((path, attributes)) = files.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(error) = store.remove(path, attributes.kind)
                        && let Ok(mut trouble) = trouble.lock()
                    {
                        trouble.get_or_insert(error);
                    }
                }
            });
        }
    });
    if let Ok(Some(error)) = trouble.into_inner() {
        return Err(error.into());
    }
    for (path, attributes) in directories.iter().rev() {
        store.remove(path, attributes.kind)?;
    }
    if path != Path::new("/") {
        store.remove(&path, FileKind::Directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_out() {
        let text = |seconds: i64| time_text(WallTime(seconds * 1_000_000_000));
        assert_eq!(text(0), "1970-01-01 00:00:00Z");
        assert_eq!(text(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(text(1_795_171_040), "2026-11-20 10:37:20Z");
        assert_eq!(text(-1), "1969-12-31 23:59:59Z");
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        assert_eq!(printable(Path::new("a\u{1b}[2Jb\n")), "a?[2Jb?");
    }
}
