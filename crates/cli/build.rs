//! Options of the linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") {
        // Each start of the program reads all relocations: half a megabyte of them without this.
        // The dynamic loader understands the short form from glibc 2.36 and musl 1.2.4 on.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
