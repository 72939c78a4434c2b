//! Pools: how to find one, connect to it, and make one of servers that have been started.

use crate::exit;
use crate::net::Net;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use weir_core::auth::{Role, Secret};
use weir_core::config::{STREAMS_PER_SERVER_MAX, Timing};
use weir_core::error::{Code, Error, Result};
use weir_core::fs::{Fs, FsOptions};
use weir_core::layout::{STRIPE_SIZE_MAX, STRIPE_SIZE_MIN};
use weir_core::session::Identity;
use weir_core::types::{ClientId, Incarnation, ServerIndex, TargetId};
use weir_core::wire::control::{
    ControlReply, ControlRequest, Description, Formation, PoolMap, ServerEntry, ServerStatus,
    TargetEntry,
};
use weir_core::wire::protocol;
use weir_net::Transport;

/// Bytes on one target before the next, where nobody says otherwise.
pub const STRIPE_SIZE_DEFAULT: u64 = 1 << 20;
/// How soon after an unlink its memory is free at the latest, while a client is idle.
const GARBAGE_DELAY: Duration = Duration::from_millis(100);

/// Where a pool is, and the proof that one may use it.
#[derive(Clone, Debug)]
pub struct PoolAddress {
    /// Its servers, `host:port`, in the order of the pool map.
    pub servers: Vec<String>,
    /// The content of its secret file.
    pub secret: Secret,
    /// As what to call.
    pub role: Role,
}

/// What `pool.json` must hold for a client; the rest of it is the launcher's.
#[derive(Debug, Serialize, Deserialize)]
struct PoolFile {
    servers: Vec<String>,
    connections: Option<usize>,
    #[serde(default)]
    timing: Timing,
}

fn read_file(directory: &Path, name: &str) -> Result<String> {
    let path = directory.join(name);
    std::fs::read_to_string(&path).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => Code::NotFound,
            std::io::ErrorKind::PermissionDenied => Code::AccessDenied,
            _ => Code::Invalid,
        };
        Error::because(code, error.to_string()).on("read", path.display())
    })
}

impl PoolFile {
    fn load(directory: &Path) -> Result<PoolFile> {
        serde_json::from_str(&read_file(directory, "pool.json")?).map_err(|error| {
            Error::because(Code::Invalid, error.to_string())
                .on("parse", directory.join("pool.json").display())
        })
    }
}

impl PoolAddress {
    /// Reads `pool.json` and `secret` in a pool's directory. A mount that speaks for several users
    /// sets `role` to [`Role::Mount`].
    pub fn load(directory: &Path) -> Result<PoolAddress> {
        let file = PoolFile::load(directory)?;
        let secret = Secret::parse(&read_file(directory, "secret")?)
            .map_err(|error| error.on("parse", directory.join("secret").display()))?;
        Ok(PoolAddress { servers: file.servers, secret, role: Role::Owner })
    }
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Streams to each server.
    pub connections: usize,
    /// How servers are reached.
    pub transport: Transport,
    /// Bytes of a contiguous read or write that go into one request.
    pub transfer_size: usize,
    /// Times of the protocol.
    pub timing: Timing,
    /// Whether a thread keeps the lease of what is open and frees what was unlinked. Who works on
    /// borrowed files alone needs none.
    pub keeps_lease: bool,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            connections: 1,
            transport: Transport::default(),
            transfer_size: FsOptions::default().transfer_size,
            timing: Timing::default(),
            keeps_lease: true,
        }
    }
}

impl ConnectOptions {
    /// As the pool in this directory was made to be used: its connections and its times. Clients
    /// that renew their leases later than the pool expects lose their open files.
    pub fn load(directory: &Path) -> Result<ConnectOptions> {
        let file = PoolFile::load(directory)?;
        let defaults = ConnectOptions::default();
        let connections = file.connections.unwrap_or(defaults.connections);
        Ok(ConnectOptions { connections, timing: file.timing, ..defaults })
    }
}

/// A pool, connected. Cheap to clone; may be used from several threads.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) fs: Fs<Net>,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::because(Code::Internal, format!("no random bytes: {error}")))?;
    Ok(bytes)
}

fn identity(secret: &Secret, role: Role) -> Result<Identity> {
    Ok(Identity {
        client: ClientId(u64::from_le_bytes(random()?)),
        stream: 0,
        role,
        secret: secret.for_role(role),
        server_name: String::new(),
    })
}

fn bare_map(addresses: &[String]) -> PoolMap {
    let server = |address: &String| ServerEntry { address: address.clone(), targets: Vec::new() };
    PoolMap {
        epoch: 0,
        pool: [0; 16],
        name: String::new(),
        owner_uid: 0,
        owner_gid: 0,
        servers: addresses.iter().map(server).collect(),
        metadata: vec![ServerIndex(0)],
        stripe_size: STRIPE_SIZE_DEFAULT,
        stripe_count: 0,
    }
}

/// Servers that are not known to be a pool: they can be asked about themselves.
fn strangers(addresses: &[String], secret: &Secret, options: &ConnectOptions) -> Result<Fs<Net>> {
    // Forming a pool is the owner's business, whoever mounts it later.
    let owner = identity(secret, Role::Owner)?;
    let net = net(&owner, addresses, 1, options)?;
    Ok(Fs::new(net, bare_map(addresses), options.of_fs()))
}

fn net(
    identity: &Identity,
    addresses: &[String],
    connections: usize,
    options: &ConnectOptions,
) -> Result<Net> {
    if addresses.is_empty() {
        return Err(Error::because(Code::Invalid, "no servers are named").on("connect to", "pool"));
    }
    Net::new(identity, addresses, connections, options.transport, &options.timing)
}

impl ConnectOptions {
    fn of_fs(&self) -> FsOptions {
        FsOptions { timing: self.timing.clone(), transfer_size: self.transfer_size }
    }
}

impl Pool {
    /// Connects: asks the servers for the pool map.
    pub fn connect(address: &PoolAddress, options: &ConnectOptions) -> Result<Pool> {
        if !(1..=STREAMS_PER_SERVER_MAX).contains(&options.connections) {
            let cause = format!("connections must be between 1 and {STREAMS_PER_SERVER_MAX}");
            return Err(Error::because(Code::Invalid, cause).on("connect to", "pool"));
        }
        let identity = identity(&address.secret, address.role)?;
        let asked = net(&identity, &address.servers, options.connections, options)?;
        let strangers = Fs::new(asked.clone(), bare_map(&address.servers), options.of_fs());
        let mut trouble = None;
        let map = (0..address.servers.len()).find_map(|index| {
            let ask = strangers.control(ServerIndex(index as u16), ControlRequest::Map);
            match strangers.rpc().run(ask) {
                Ok(ControlReply::Map(map)) => Some(*map),
                Ok(_) => None,
                Err(error) => {
                    trouble.get_or_insert(error.on("connect to", &address.servers[index]));
                    None
                }
            }
        });
        let Some(map) = map else {
            return Err(trouble.unwrap_or_else(|| protocol("no server knows the pool map")));
        };
        // The connection over which the map came is of use if these are the pool's servers, in its order.
        let same = map.servers.iter().map(|server| &server.address).eq(&address.servers);
        let net = match same {
            true => asked,
            false => {
                let servers = map.servers.iter().map(|server| server.address.clone());
                net(&identity, &servers.collect::<Vec<_>>(), options.connections, options)?
            }
        };
        let fs = Fs::new(net, map, options.of_fs());
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let inner = Arc::new(Inner { fs, ended: ended.clone() });
        if options.keeps_lease {
            exit::at_exit(&inner);
        }
        let renew = Duration::from_millis(options.timing.renew_ms);
        let weak = Arc::downgrade(&inner);
        if options.keeps_lease {
            std::thread::Builder::new()
                .name("weir-lease".to_owned())
                .spawn(move || housekeeping(&weak, &ended, renew))
                .map_err(|error| Error::because(Code::Internal, format!("no thread: {error}")))?;
        }
        Ok(Pool { inner })
    }

    /// Runs a future to its end on this thread, driving the network while it waits.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.inner.fs.rpc().run(future)
    }

    /// The pool's files.
    pub fn fs(&self) -> &Fs<Net> {
        &self.inner.fs
    }

    /// Who is in the pool.
    pub fn map(&self) -> &PoolMap {
        self.inner.fs.map()
    }

    /// Counters and fill of each server.
    pub fn status(&self) -> Vec<Result<ServerStatus>> {
        self.run(self.inner.fs.status())
    }

    /// Ends all servers in an orderly way. Gives what went wrong, by server.
    pub fn shutdown(&self) -> Vec<Result<()>> {
        (0..self.map().servers.len())
            .map(|index| {
                let server = ServerIndex(index as u16);
                self.run(self.inner.fs.control(server, ControlRequest::Shutdown)).map(drop)
            })
            .collect()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (ended, condition) = &*self.ended;
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        condition.notify_all();
        if self.fs.has_garbage() {
            // Best effort: what is not freed now, the metadata service asks another client for.
            let _ = self.fs.rpc().run(self.fs.collect_garbage());
        }
    }
}

/// Keeps the client's lease and frees what was unlinked, until the pool is dropped.
fn housekeeping(pool: &Weak<Inner>, ended: &(Mutex<bool>, Condvar), renew: Duration) {
    let (ended, condition) = ended;
    let mut since_renewal = Duration::ZERO;
    loop {
        let guard = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = condition.wait_timeout_while(guard, GARBAGE_DELAY, |ended| !*ended);
        let (guard, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if *guard {
            return;
        }
        drop(guard);
        let Some(inner) = pool.upgrade() else {
            return;
        };
        since_renewal += GARBAGE_DELAY;
        // Failures here are told by the requests that matter: a lost server fails those too.
        if since_renewal >= renew {
            since_renewal = Duration::ZERO;
            let _ = inner.fs.rpc().run(inner.fs.keep_alive());
        } else if inner.fs.has_garbage() {
            // Handles that were closed since the last request end now at the latest.
            let _ = inner.fs.rpc().run(inner.fs.collect_garbage());
        }
    }
}

/// What to make of servers that have been started.
#[derive(Clone, Debug)]
pub struct FormOptions {
    /// The pool's name.
    pub name: String,
    /// To whom it belongs.
    pub owner_uid: u32,
    /// The owner's primary group.
    pub owner_gid: u32,
    /// Bytes on one target before the next, where nobody says otherwise.
    pub stripe_size: u64,
    /// Targets of a file, where nobody says otherwise; 0: all.
    pub stripe_count: u32,
}

/// What a pool was formed with: who keeps it can form the same pool of the same servers again.
#[derive(Clone, Serialize, Deserialize)]
pub struct Formed {
    /// Who is in it.
    pub map: PoolMap,
    /// The key of capabilities: no less a secret than the pool's own.
    pub key: [u8; 32],
}

/// Makes servers into a pool: the first of them holds the metadata.
pub fn form(
    addresses: &[String],
    secret: &Secret,
    form: &FormOptions,
    options: &ConnectOptions,
) -> Result<Formed> {
    let stripe_ok = (STRIPE_SIZE_MIN..=STRIPE_SIZE_MAX).contains(&form.stripe_size)
        && form.stripe_size.is_multiple_of(STRIPE_SIZE_MIN);
    if !stripe_ok {
        return Err(Error::because(
            Code::Invalid,
            "stripe size must be a multiple of 4 KiB between 4 KiB and 1 GiB",
        )
        .on("form pool", &form.name));
    }
    let fs = strangers(addresses, secret, options)?;
    let mut servers = Vec::new();
    let mut next_target = 0;
    for (index, address) in addresses.iter().enumerate() {
        let targets = describe(&fs, index, address)?;
        let targets = targets
            .into_iter()
            .map(|(incarnation, memory)| {
                let id = TargetId(next_target);
                next_target += 1;
                TargetEntry { id, incarnation, memory }
            })
            .collect();
        servers.push(ServerEntry { address: address.clone(), targets });
    }
    let map = PoolMap {
        epoch: 1,
        pool: random()?,
        name: form.name.clone(),
        owner_uid: form.owner_uid,
        owner_gid: form.owner_gid,
        servers,
        metadata: vec![ServerIndex(0)],
        stripe_size: form.stripe_size,
        stripe_count: form.stripe_count,
    };
    let formed = Formed { map, key: random()? };
    for index in 0..addresses.len() {
        adopt(&fs, &formed, index)?;
    }
    Ok(formed)
}

/// Makes servers that came back into the pool that they were, at the addresses that they have now.
///
/// # Errors
/// [`Code::Invalid`] if a server is not the one that it was: its target has another incarnation.
pub fn form_again(
    addresses: &[String],
    secret: &Secret,
    formed: &Formed,
    options: &ConnectOptions,
) -> Result<Formed> {
    let mut formed = formed.clone();
    formed.map.epoch += 1;
    if addresses.len() != formed.map.servers.len() {
        let cause = format!("{} servers, of {}", addresses.len(), formed.map.servers.len());
        return Err(Error::because(Code::Invalid, cause).on("form pool", &formed.map.name));
    }
    let fs = strangers(addresses, secret, options)?;
    for (index, (address, entry)) in addresses.iter().zip(&mut formed.map.servers).enumerate() {
        check_back(&describe(&fs, index, address)?, entry, address)?;
        entry.address.clone_from(address);
    }
    for index in 0..addresses.len() {
        adopt(&fs, &formed, index)?;
    }
    Ok(formed)
}

/// Makes one server that came back, at the address that it had, part of its pool again, while the
/// others have gone on. Nothing changes for them and for clients: what the server has kept is served, and who
/// wrote what it has not kept is told at his next sync.
///
/// # Errors
/// As [`form_again`]; [`Code::Unsupported`] for one that holds names: handles and locks ended with it, and the
/// others' clients would not hear of that.
pub fn rejoin(
    index: usize,
    secret: &Secret,
    formed: &Formed,
    options: &ConnectOptions,
) -> Result<()> {
    let map = &formed.map;
    let Some(entry) = map.servers.get(index) else {
        let cause = format!("server {index}, of {}", map.servers.len());
        return Err(Error::because(Code::Invalid, cause).on("form pool", &map.name));
    };
    if map.metadata.contains(&ServerIndex(index as u16)) {
        let cause = "it holds the names: the pool comes back with it or not at all";
        return Err(Error::because(Code::Unsupported, cause).on("form pool with", &entry.address));
    }
    let addresses: Vec<_> = map.servers.iter().map(|server| server.address.clone()).collect();
    let fs = strangers(&addresses, secret, options)?;
    check_back(&describe(&fs, index, &entry.address)?, entry, &entry.address)?;
    adopt(&fs, formed, index)
}

fn check_back(targets: &[(Incarnation, u64)], entry: &ServerEntry, address: &str) -> Result<()> {
    let known: Vec<_> = entry.targets.iter().map(|it| (it.incarnation, it.memory)).collect();
    match targets == known {
        true => Ok(()),
        false => Err(Error::because(
            Code::Invalid,
            "its disks are not those that this server of the pool had, or its memory is another",
        )
        .on("form pool with", address)),
    }
}

/// Asks a server that belongs to no pool yet what it has.
fn describe(fs: &Fs<Net>, index: usize, address: &str) -> Result<Vec<(Incarnation, u64)>> {
    let ask = fs.control(ServerIndex(index as u16), ControlRequest::Describe);
    let reply = fs.rpc().run(ask).map_err(|error| error.on("form pool with", address))?;
    let ControlReply::Description(Description { targets, formed, .. }) = reply else {
        return Err(protocol(format!("answer of another kind: {reply:.60?}")));
    };
    if formed {
        let cause = "it belongs to a pool already; stop it and start it anew";
        return Err(Error::because(Code::Exists, cause).on("form pool with", address));
    }
    Ok(targets)
}

fn adopt(fs: &Fs<Net>, formed: &Formed, index: usize) -> Result<()> {
    let server = ServerIndex(index as u16);
    let connection = fs.rpc().connection_key(server).ok_or_else(|| {
        Error::because(Code::ServerLost, "connection broke").on("form pool", &formed.map.name)
    })?;
    let capability_key = connection.seal(&formed.key);
    let formation = Formation { map: formed.map.clone(), index: server, capability_key };
    let address = &formed.map.servers[index].address;
    fs.rpc()
        .run(fs.control(server, ControlRequest::Form(Box::new(formation))))
        .map(drop)
        .map_err(|error| error.on("form pool with", address))
}
