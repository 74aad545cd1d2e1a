//! Surfaces of small libraries made up for the tests.

use super::{Names, Surface};
use crate::tidy::source::{Files, Kind, Root, Workspace};

/// The surface of the crate `made`, beside the crate `base`.
fn surface(made: &str, base: &str) -> Surface {
    let library = |name: &str| Root {
        package: name.to_owned(),
        kind: Kind::Library,
        file: format!("crates/{name}/src/lib.rs"),
    };
    let roots = vec![library("made"), library("base")];
    let texts = [made, base].map(str::to_owned);
    let files: Files = roots.iter().map(|root| root.file.clone()).zip(texts).collect();
    Surface::of(&Names::of(&Workspace::new(files, roots).targets), "made")
}

const BASE: &str = "
    mod deep {
        /// D
        #[derive(Debug)]
        pub struct Node { pub number: u32, hidden: Secret }
        pub struct Secret;
        impl Node {
            pub fn secret(&self) -> Result<Secret, std::io::Error> { .. }
            #[doc(hidden)]
            pub fn shadow(&self) -> Secret { .. }
        }
        impl Iterator for Node { type Item = Option<u8>; }
    }
    pub use deep::Node;
";

#[test]
fn reexports_are_followed_into_the_crate_below() {
    let base = BASE.replace("{ .. }", "{ loop {} }");
    let found = surface("pub mod a { pub use base::Node; } pub use base::Node as Same;", &base);
    let expected = "\
made::Same: #[derive(Debug)] struct
    fn secret(&self) -> Result<Secret, std::io::Error>
    impl Iterator for Node
    impl Iterator for Node: Item = Option<u8>
    number: u32
made::a::Node: as made::Same
";
    assert_eq!(found.text(), expected);
    let unnamed: Vec<_> = found.unnamed.iter().collect();
    assert_eq!(unnamed, ["made::Same::secret: Secret of base is not exported"]);
    assert!(found.silent.contains("made::Same::secret"));
    assert!(found.exhaustive.contains("made::Same"));
}

#[test]
fn items_of_simple_macros_are_found() {
    let text = "
        macro_rules! number {
            ($(#[$mark:meta])* $name:ident, $inner:ty) => {
                $(#[$mark])* pub struct $name(pub $inner);
                impl From<$inner> for $name {}
            };
        }
        number!(/// D
            Block, u64);
        pub trait Known {}
        macro_rules! known { ($($kind:ty),*) => { $(impl Known for $kind {})* }; }
        known!(u8, str);
        bitflags! { #[derive(Debug)] pub struct Set: u32 { /// One.
            const ONE = 1; const TWO = 1 << 1; } }
    ";
    let expected = "\
made::Block: struct
    0: u64
    impl From<u64> for Block
made::Known: trait
    impl Known for str
    impl Known for u8
made::Set: #[derive(Debug)] struct
    const ONE: Set
    const TWO: Set
";
    assert_eq!(surface(text, "").text(), expected);
}

#[test]
fn changes_are_told_below_their_item() {
    let before = surface("pub enum E { A, B } pub fn f(x: u8) {}", "").text();
    let after = surface("pub enum E { A } pub fn f(x: u16) {}", "");
    assert!(after.differences(&after.text()).is_empty());
    let lines = after.differences(&before);
    assert_eq!(lines[..3], ["- made::E: B", "+ made::f: fn f(x: u16)", "- made::f: fn f(x: u8)"]);
    assert!(lines[3].contains("make surface"));
}

#[test]
fn a_private_trait_is_no_part_of_the_surface() {
    let text = "
        mod inner { pub trait Own {} }
        pub struct S<T> { x: T }
        impl<T: Clone> inner::Own for S<T> {}
        impl<T: Clone> S<T> { pub const fn get(mut self, (a, b): (T, T)) -> T { a } }
        #[non_exhaustive] pub enum E<'a> { A(&'a str), B { c: u8 } }
    ";
    let found = surface(text, "");
    let expected = "\
made::E: #[non_exhaustive] enum<'a>
    A
    A.0: &'a str
    B
    B.c: u8
made::S: struct<T>
    const fn get(self, (a, b): (T, T)) -> T
";
    assert_eq!(found.text(), expected);
    assert!(found.unnamed.is_empty() && found.exhaustive.is_empty(), "{found:?}");
}

#[test]
fn names_that_lead_nowhere_are_told() {
    let found = surface("pub use base::Gone; pub fn f(x: Lost) {}", "");
    let unnamed: Vec<_> = found.unnamed.iter().collect();
    assert_eq!(unnamed, ["made::Gone: leads nowhere", "made::f: Lost leads nowhere"]);
}
