//! The name under which programs find the shared library when they start.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libextant.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
