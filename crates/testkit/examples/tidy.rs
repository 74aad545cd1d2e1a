//! Prints measurements of the repository; with `store`, stores those that fell in `tidy.toml`.

#[path = "../tests/it/tidy/mod.rs"]
mod tidy;

fn main() {
    let tidy = tidy::Tidy::read();
    if std::env::args().nth(1).as_deref() == Some("store") {
        tidy.store();
    }
    print!("{}", tidy.table());
    for (rule, violations) in tidy.violations() {
        violations.iter().for_each(|violation| println!("{rule}: {violation}"));
    }
}
