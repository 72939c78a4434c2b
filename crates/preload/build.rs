//! Names the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir_preload.so");
    // Its functions may be on some thread's stack at any time.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
