//! Names the shared library: programs ask for `libweir.so.0` at run time, by ABI version.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir.so.0");
    // A pool's thread may still be ending when a program that has disconnected calls dlclose().
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
