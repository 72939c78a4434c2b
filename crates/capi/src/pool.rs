//! Connecting, and what is known of the pool as a whole.

use crate::abi::{ConnectOptions, WeirStatfs, read_growing};
use crate::engine::Engine;
use crate::{call, call_int, given, invalid, text, wanted};
use std::ffi::{OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_client::{Pool, PoolAddress};
use weir_core::config::{PAYLOAD_BYTES_MAX, STREAMS_PER_SERVER_MAX};
use weir_core::error::{Code, Error, Result};

/// Smallest `transfer_size`: bytes.
const TRANSFER_SIZE_MIN: u64 = 4096;
/// Bounds of `silence_ms`: milliseconds.
const SILENCE_MS: std::ops::RangeInclusive<u32> = 100..=3_600_000;

/// `weir_pool`.
pub(crate) struct WeirPool {
    engine: Arc<Engine>,
}

/// The engine behind a pool's handle.
///
/// # Safety
/// `pool` is NULL or a handle that has not been ended.
pub(crate) unsafe fn engine<'a>(pool: *const WeirPool) -> Result<&'a Arc<Engine>> {
    // SAFETY: the caller's promise.
    let engine = unsafe { &given(pool, "pool")?.engine };
    engine.pool()?;
    Ok(engine)
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The directory of the pool that is called so.
fn directory(pool: &OsStr) -> Result<PathBuf> {
    if pool.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(pool));
    }
    if pool.is_empty() || pool == "." || pool == ".." {
        return Err(invalid(format!("'{}' is no pool's name", pool.display())));
    }
    let home = set("WEIR_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".weir")))
        .ok_or_else(|| Error::because(Code::NotFound, "neither WEIR_HOME nor HOME is set"))?;
    Ok(home.join("pools").join(pool))
}

/// What a program asks for, over what the pool was made with.
fn translate(options: ConnectOptions, directory: &Path) -> Result<weir_client::ConnectOptions> {
    let mut translated = weir_client::ConnectOptions::load(directory)?;
    if options.connections != 0 {
        if options.connections as usize > STREAMS_PER_SERVER_MAX {
            return Err(invalid(format!("connections is above {STREAMS_PER_SERVER_MAX}")));
        }
        translated.connections = options.connections as usize;
    }
    if options.silence_ms != 0 {
        if !SILENCE_MS.contains(&options.silence_ms) {
            let (least, most) = (SILENCE_MS.start(), SILENCE_MS.end());
            return Err(invalid(format!("silence_ms is not between {least} and {most}")));
        }
        let silence_ms = u64::from(options.silence_ms);
        translated.timing.silence_ms_max = silence_ms;
        translated.timing.heartbeat_ms = translated.timing.heartbeat_ms.min(silence_ms / 4);
    }
    if options.transfer_size != 0 {
        if !(TRANSFER_SIZE_MIN..=PAYLOAD_BYTES_MAX as u64).contains(&options.transfer_size) {
            let bounds = format!("{TRANSFER_SIZE_MIN} and {PAYLOAD_BYTES_MAX}");
            return Err(invalid(format!("transfer_size is not between {bounds}")));
        }
        translated.transfer_size = options.transfer_size as usize;
    }
    Ok(translated)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_connect(
    pool: *const c_char,
    options: *const ConnectOptions,
    out: *mut *mut WeirPool,
) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let out = unsafe { wanted(out, "out") }?;
        *out = std::ptr::null_mut();
        let name = if pool.is_null() {
            set("WEIR_POOL").ok_or_else(|| {
                Error::because(Code::NotFound, "no pool is named, and WEIR_POOL is not set")
                    .on("connect to", "pool")
            })?
        } else {
            // SAFETY: as above.
            OsStr::from_bytes(unsafe { text(pool, "pool") }?).to_owned()
        };
        let connected = || {
            let options = if options.is_null() {
                ConnectOptions::default()
            } else {
                // SAFETY: as above.
                unsafe { read_growing(options, "options") }?
            };
            let directory = directory(&name)?;
            let options = translate(options, &directory)?;
            let address = PoolAddress::load(&directory)?;
            Engine::new(Pool::connect(&address, &options)?)
        };
        let engine = connected().map_err(|error| error.on("connect to pool", name.display()))?;
        *out = Box::into_raw(Box::new(WeirPool { engine }));
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_disconnect(pool: *mut WeirPool) -> c_int {
    call_int(|| {
        if !pool.is_null() {
            // In a child process the handle stays: its connections are the parent's.
            // SAFETY: the arguments are as weir.h demands.
            unsafe { engine(pool) }?;
            // SAFETY: made by `weir_connect`, and not used again.
            drop(unsafe { Box::from_raw(pool) });
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_statfs(pool: *mut WeirPool, out: *mut WeirStatfs) -> c_int {
    call_int(|| {
        // SAFETY: the arguments are as weir.h demands.
        let (engine, out) = unsafe { (engine(pool)?, wanted(out, "out")?) };
        let pool = engine.pool()?;
        let usage =
            engine.run(pool.fs().usage()).map_err(|error| error.on("statfs", &pool.map().name))?;
        *out = WeirStatfs {
            capacity: usage.capacity,
            used: usage.used,
            inodes: usage.inodes,
            metadata_capacity: usage.metadata_capacity,
            metadata_used: usage.metadata_used,
            servers: pool.map().servers.len() as u32,
            targets: pool.map().targets().count() as u32,
            reserved: [0; 4],
        };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn weir_describe(pool: *mut WeirPool, buffer: *mut c_char, size: usize) -> isize {
    call(|| {
        // SAFETY: the arguments are as weir.h demands.
        let map = unsafe { engine(pool) }?.pool()?.map();
        let servers: Vec<_> = map
            .servers
            .iter()
            .map(|server| {
                let targets: Vec<_> = server
                    .targets
                    .iter()
                    .map(|target| serde_json::json!({"id": target.id.0, "memory": target.memory}))
                    .collect();
                serde_json::json!({"address": server.address, "targets": targets})
            })
            .collect();
        let text = serde_json::json!({
            "name": map.name,
            "epoch": map.epoch,
            "stripe_size": map.stripe_size,
            "stripe_count": map.stripe_count,
            "servers": servers,
        })
        .to_string();
        if size > 0 {
            if buffer.is_null() {
                return Err(invalid("buffer is NULL"));
            }
            let shown = text.len().min(size - 1);
            // SAFETY: `size` bytes are valid for writes.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), shown);
                buffer.add(shown).write(0);
            }
        }
        Ok(text.len())
    })
}
