//! The bare ping-pong: 64 bytes there, 64 bytes back, and nothing done about them. Over the transports'
//! own links, with event loops as the pool's servers have them: TCP, and shared memory; and over blocking
//! sockets with a thread for each connection, the least that a request and its answer can cost by TCP.

use crate::process::listen;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weir_core::config::Timing;
use weir_core::error::{Code, Error, Result};
use weir_core::wire::{self, HEADER_BYTES, Header, Kind};
use weir_net::shm::{self, ShmLink};
use weir_net::tcp::{self, TcpLink};
use weir_net::{Event, Link, NoPayload, Placement, Poller, Received, Sink, Transport};

/// Header and body: bytes.
const MESSAGE_BYTES: usize = 64;

type AnyLink = Box<dyn Link<NoPayload>>;

fn message() -> Vec<u8> {
    wire::frame(Header::plain(Kind::Meta, 0), &[0x55; MESSAGE_BYTES - HEADER_BYTES])
}

fn broken(error: io::Error) -> Error {
    Error::because(Code::ServerLost, error.to_string()).on("use", "ping-pong")
}

/// Whoever answers: a pair of listeners, the first with one beside it for shared memory.
pub(super) struct Echo {
    links: TcpListener,
    beside: UnixListener,
    sockets: TcpListener,
}

impl Echo {
    pub(super) fn listen() -> io::Result<Echo> {
        let links = listen()?;
        let address = links.local_addr()?;
        Ok(Echo { links, beside: shm::listen(address)?, sockets: listen()? })
    }

    /// Where: for links, and for blocking sockets.
    pub(super) fn addresses(&self) -> io::Result<(String, String)> {
        Ok((self.links.local_addr()?.to_string(), self.sockets.local_addr()?.to_string()))
    }

    /// Serves for ever, on threads of its own.
    pub(super) fn serve(self) -> io::Result<()> {
        let Echo { links, beside, sockets } = self;
        std::thread::spawn(move || {
            for stream in sockets.incoming().flatten() {
                std::thread::spawn(move || echo_blocking(stream));
            }
        });
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        let mut doors = Vec::new();
        for _ in 0..cores {
            let door =
                Arc::new(Door { poller: Poller::new(spin_max())?, arrivals: Mutex::default() });
            doors.push(door.clone());
            std::thread::spawn(move || echo_links(&door));
        }
        beside.set_nonblocking(false)?;
        let same = doors.clone();
        std::thread::spawn(move || {
            let streams = beside.incoming().flatten();
            let same = &same[..shm::loops(same.len())];
            deal(streams.flat_map(ShmLink::accepted).map(|link| Box::new(link) as _), same);
        });
        std::thread::spawn(move || {
            let streams = links.incoming().flatten();
            deal(streams.flat_map(TcpLink::new).map(|link| Box::new(link) as _), &doors);
        });
        Ok(())
    }
}

/// Hands connections to the event loops in turn.
fn deal(links: impl Iterator<Item = AnyLink>, doors: &[Arc<Door>]) {
    for (link, door) in links.zip(doors.iter().cycle()) {
        door.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        door.poller.wake();
    }
}

fn echo_blocking(mut stream: TcpStream) -> io::Result<()> {
    tcp::configure(&stream)?;
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&bytes)?;
    }
}

struct Door {
    poller: Poller,
    arrivals: Mutex<Vec<AnyLink>>,
}

/// One event loop. Connections that end stay in its list: they are few.
fn echo_links(door: &Door) -> io::Result<()> {
    let mut links: Vec<AnyLink> = Vec::new();
    let mut events: Vec<Event> = Vec::new();
    loop {
        door.poller.wait(&mut events, None)?;
        for event in &events {
            let link = &mut links[event.token as usize];
            let mut heads = Heads::default();
            match link.receive(&mut heads) {
                Ok((Received::Closed, _)) | Err(_) => {
                    door.poller.change(link.source(), event.token, false, false)?;
                    continue;
                }
                Ok(_) => {}
            }
            for _ in 0..heads.count {
                link.send(message(), None);
            }
            // A client that has gone meanwhile is seen by the next attempt to receive.
            let _ = link.flush();
        }
        let arrivals =
            std::mem::take(&mut *door.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        for link in arrivals {
            door.poller.add(link.source(), links.len() as u64, true, false)?;
            links.push(link);
        }
    }
}

/// Counts what comes in.
#[derive(Default)]
struct Heads {
    count: usize,
}

impl Sink for Heads {
    fn head(&mut self, _: Header, _: &[u8]) -> Result<Placement> {
        self.count += 1;
        Ok(Placement::Discard)
    }

    fn payload(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Both ends wait as the pool's own do.
fn spin_max() -> Duration {
    Duration::from_micros(Timing::default().spin_us)
}

/// One who asks, over a link.
pub(super) struct LinkClient {
    link: AnyLink,
    poller: Poller,
    events: Vec<Event>,
}

impl LinkClient {
    pub(super) fn connect(address: &str, transport: Transport) -> Result<LinkClient> {
        let address = tcp::resolve(address)?;
        let set_up = || {
            let link: AnyLink = transport.connect(address)?;
            let poller = Poller::of_client(spin_max())?;
            // Until it is connected.
            poller.add(link.source(), 0, false, true)?;
            let mut events = Vec::new();
            while events.is_empty() {
                poller.wait(&mut events, None)?;
            }
            link.connected()?;
            poller.change(link.source(), 0, true, false)?;
            Ok(LinkClient { link, poller, events })
        };
        set_up().map_err(broken)
    }

    /// Sends 64 bytes and waits for 64 bytes.
    pub(super) fn ping(&mut self) -> Result<()> {
        self.link.send(message(), None);
        self.link.flush().map_err(broken)?;
        loop {
            self.poller.wait(&mut self.events, None).map_err(broken)?;
            let mut heads = Heads::default();
            let (received, _) = self.link.receive(&mut heads)?;
            if heads.count > 0 {
                return Ok(());
            }
            if received == Received::Closed {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// One who asks, over a blocking socket.
pub(super) struct SocketClient {
    stream: TcpStream,
}

impl SocketClient {
    pub(super) fn connect(address: &str) -> Result<SocketClient> {
        let stream = tcp::dial(tcp::resolve(address)?).map_err(broken)?;
        Ok(SocketClient { stream })
    }

    /// Sends 64 bytes and waits for 64 bytes.
    pub(super) fn ping(&mut self) -> Result<()> {
        let mut bytes = [0x55; MESSAGE_BYTES];
        self.stream.write_all(&bytes).map_err(broken)?;
        self.stream.read_exact(&mut bytes).map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_answer_many_clients() {
        let echo = Echo::listen().expect("listens");
        let (links, sockets) = echo.addresses().expect("bound");
        echo.serve().expect("serves");
        assert_eq!(message().len(), MESSAGE_BYTES);
        let mut over_links: Vec<_> =
            [Transport::Tcp, Transport::Auto, Transport::Tcp, Transport::Auto]
                .map(|transport| LinkClient::connect(&links, transport).expect("connects"))
                .into();
        let mut over_sockets = SocketClient::connect(&sockets).expect("connects");
        for _ in 0..100 {
            for client in &mut over_links {
                client.ping().expect("answered");
            }
            over_sockets.ping().expect("answered");
        }
        // The others are served when one has gone.
        over_links.pop();
        for client in &mut over_links {
            client.ping().expect("answered");
        }
    }
}
