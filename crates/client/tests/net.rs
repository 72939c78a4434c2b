//! What the network's driver makes of time.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::pin::pin;
use std::time::{Duration, Instant};
use weir_client::{Net, Transport};
use weir_core::auth::{Role, Secret};
use weir_core::config::{Timing, WIRE_VERSION};
use weir_core::error::Code;
use weir_core::fs::{Call, Rpc};
use weir_core::session::Identity;
use weir_core::types::{ClientId, ServerIndex};
use weir_core::wire::{Header, Kind};

fn net(listener: &TcpListener, timing: &Timing) -> Net {
    let identity = Identity {
        client: ClientId(1),
        stream: 0,
        role: Role::Owner,
        secret: Secret::from_bytes([1; 32]),
        server_name: String::new(),
    };
    let address = listener.local_addr().expect("address").to_string();
    Net::new(&identity, &[address], 1, Transport::Tcp, timing).expect("network")
}

fn question() -> Call {
    Call {
        kind: Kind::Control,
        body: vec![0],
        capability: None,
        once: false,
        source: Vec::new(),
        sink: Vec::new(),
        lane: 0,
    }
}

/// A program that computes between submitting and waiting must not find a healthy server lost for
/// want of having listened to it.
#[test]
fn silence_counts_only_while_somebody_listens() {
    // Takes connections, by its backlog, and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let timing = Timing { heartbeat_ms: 100, silence_ms_max: 600, ..Timing::default() };
    let net = net(&listener, &timing);
    // SAFETY: no memory is named.
    let mut call = pin!(unsafe { net.call(ServerIndex(0), question()) });
    let soon = || Some(Instant::now() + Duration::from_millis(100));
    assert!(net.run_until(call.as_mut(), soon()).is_none());
    std::thread::sleep(Duration::from_millis(1000));
    assert!(net.run_until(call.as_mut(), soon()).is_none(), "lost without having been listened to");
    let begin = Instant::now();
    let error = net.run(call).unwrap_err();
    assert_eq!(error.code, Code::ServerLost);
    assert!(begin.elapsed() < Duration::from_millis(2000));
}

#[test]
fn a_deadline_ends_the_wait_and_not_the_request() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let net = net(&listener, &Timing::default());
    // SAFETY: no memory is named.
    let mut call = pin!(unsafe { net.call(ServerIndex(0), question()) });
    let begin = Instant::now();
    for limit_ms in [0, 0, 30, 200] {
        let deadline = Instant::now() + Duration::from_millis(limit_ms);
        assert!(net.run_until(call.as_mut(), Some(deadline)).is_none());
        assert!(Instant::now() >= deadline);
    }
    assert!(begin.elapsed() < Duration::from_millis(2000));
    // Another request on the same stream, from another thread, while this one leads.
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| {
            // SAFETY: no memory is named.
            let call = pin!(unsafe { net.call(ServerIndex(0), question()) });
            net.run_until(call, Some(Instant::now() + Duration::from_millis(600))).is_none()
        });
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(100);
        assert!(net.run_until(call.as_mut(), Some(deadline)).is_none());
        assert!(begin.elapsed() < Duration::from_millis(400), "waited for the leader's end");
        assert!(leader.join().expect("leader"));
    });
}

/// A server of another version is not asked again and again until the deadline.
#[test]
fn another_version_is_an_error_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let timing = Timing { heartbeat_ms: 1_000, silence_ms_max: 20_000, ..Timing::default() };
    let net = net(&listener, &timing);
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        let mut header = Header::plain(Kind::Refused, 0).encode();
        header[0] = WIRE_VERSION + 1;
        stream.write_all(&header).expect("sent");
        // Stays open: it is the version that ends it.
        let _ = stream.read(&mut [0; 1024]);
        stream
    });
    let begin = Instant::now();
    // SAFETY: no memory is named.
    let error = net.run(unsafe { net.call(ServerIndex(0), question()) }).unwrap_err();
    assert_eq!(error.code, Code::Version);
    assert!(error.to_string().contains(&format!("version {}", WIRE_VERSION + 1)), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    drop(server.join().expect("server"));
}
