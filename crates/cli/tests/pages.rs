//! The generated pages in `docs` are those that the definitions give.
//! `WEIR_BLESS=1 cargo test -p weir-cli --test pages` writes them anew.

mod common;

use common::Place;
use std::path::Path;

#[test]
fn generated_pages_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let place = Place::new();
    place.good(&["pages", "."]);
    for name in ["commands.md", "configuration.md"] {
        let fresh = std::fs::read_to_string(place.path(name)).expect("generated");
        let path = docs.join(name);
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(&path, &fresh).expect("written");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let line = kept.lines().zip(fresh.lines()).position(|(old, new)| old != new);
        assert!(
            kept == fresh,
            "docs/{name} is old from line {}: run WEIR_BLESS=1 cargo test -p weir-cli --test pages",
            line.unwrap_or(kept.lines().count().min(fresh.lines().count())) + 1
        );
    }
}
