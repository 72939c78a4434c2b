//! docs/wire.md tells the truth.

use weir_core::config;
use weir_core::wire::data::{IO_BYTES, RUN_BYTES, WITNESS_BYTES};
use weir_core::wire::{HEADER_BYTES, Kind};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire.md");
    std::fs::read_to_string(path).expect("docs/wire.md")
}

#[test]
fn every_kind_of_frame_is_described_with_its_number() {
    let page = page();
    for &kind in Kind::ALL {
        let sender = if kind as u8 >= 0x80 { "server" } else { "client" };
        let row = format!("| {kind:?} | {sender} | {} |", kind as u8);
        assert!(page.contains(&row), "docs/wire.md lacks the row {row}");
    }
}

#[test]
fn numbers_are_the_codes() {
    let page = page();
    let thousands = |n: usize| format!("{},{:03}", n / 1000, n % 1000);
    for text in [
        format!("# The wire format, version {}", config::WIRE_VERSION),
        format!("{HEADER_BYTES}– | body"),
        format!("{IO_BYTES} bytes, so that such a request is {} bytes", IO_BYTES + HEADER_BYTES),
        format!("runs of {RUN_BYTES} bytes"),
        format!("witness** is {WITNESS_BYTES} bytes"),
        format!("body length, at most {} KiB", config::BODY_BYTES_MAX / 1024),
        format!("payload length, at most {} MiB", config::PAYLOAD_BYTES_MAX >> 20),
        format!("the stream's {} slots", config::SLOTS_PER_STREAM_MAX),
        format!("up to\n{} extents", thousands(config::LIST_EXTENTS_MAX)),
    ] {
        assert!(page.contains(&text), "docs/wire.md lacks: {text}");
    }
}
