//! Functions with their lengths and parameters, and the tests that functions and macros make.

use std::collections::BTreeSet;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Item, Signature};

#[derive(Clone, Debug)]
pub struct Function {
    pub file: String,
    pub name: String,
    /// From the signature to the end of the body.
    pub lines: u64,
    pub parameters: u64,
}

/// The functions among `items` of a file, at any depth.
pub fn functions(file: &str, items: &[Item]) -> Vec<Function> {
    let mut finder = Finder { file, found: Vec::new(), tests: BTreeSet::new() };
    items.iter().for_each(|item| finder.visit_item(item));
    finder.found
}

/// The names of functions with `#[test]`, and of those made by macros as `name = "…"`.
pub fn tests(items: &[Item]) -> BTreeSet<String> {
    let mut finder = Finder { file: "", found: Vec::new(), tests: BTreeSet::new() };
    items.iter().for_each(|item| finder.visit_item(item));
    finder.tests
}

struct Finder<'a> {
    file: &'a str,
    found: Vec<Function>,
    tests: BTreeSet<String>,
}

impl Finder<'_> {
    fn add(&mut self, signature: &Signature, body: &Block) {
        let first = signature.span().start().line;
        let last = body.brace_token.span.close().end().line;
        self.found.push(Function {
            file: self.file.to_owned(),
            name: signature.ident.to_string(),
            lines: (last - first + 1) as u64,
            parameters: signature.inputs.len() as u64,
        });
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("test")) {
            self.tests.insert(item.sig.ident.to_string());
        }
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let tokens = super::tokens::flatten(&[&call.tokens]);
        let made = tokens
            .windows(3)
            .filter(|window| window[1].text == "=" && window[2].text.starts_with('"'));
        self.tests.extend(made.map(|window| window[0].text.clone()));
        visit::visit_macro(self, call);
    }
}
