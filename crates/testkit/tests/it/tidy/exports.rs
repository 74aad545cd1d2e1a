//! The names that a library exports.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Attribute, Ident, Item, Visibility};

use super::cut::attributes;
use super::modules::leaves;
use super::source::{Module, Target};
use super::tokens;

/// Exported items by name; each is one definition, or a name of another crate.
#[derive(Default, Clone, Debug)]
pub struct Exports {
    /// Names defined in this crate, and whether each has documentation. Two modules may export one
    /// name.
    pub own: BTreeMap<(Vec<String>, String), bool>,
    /// Names re-exported from other crates.
    pub foreign: BTreeSet<String>,
}

impl Exports {
    pub fn of(target: &Target) -> Self {
        let production = target.modules.iter().filter(|module| !module.test);
        let modules = production.map(|module| (module.path.as_slice(), module)).collect();
        let mut search = Search { modules, seen: BTreeSet::new(), found: Self::default() };
        search.module(&[]);
        search.found
    }

    pub fn len(&self) -> u64 {
        (self.own.len() + self.foreign.len()) as u64
    }
}

struct Search<'a> {
    modules: BTreeMap<&'a [String], &'a Module>,
    seen: BTreeSet<Vec<String>>,
    found: Exports,
}

impl Search<'_> {
    /// Adds all that is public in the module at `path`.
    fn module(&mut self, path: &[String]) {
        let Some(module) = self.modules.get(path).copied() else { return };
        if !self.seen.insert(path.to_vec()) {
            return;
        }
        for item in &module.items {
            if let Item::Use(item) = item {
                let mut found = Vec::new();
                leaves(&item.tree, &mut Vec::new(), &mut found);
                let is_public = matches!(item.vis, Visibility::Public(_));
                for (alias, to) in found.into_iter().filter(|_| is_public) {
                    self.reexport(module, &alias, &to);
                }
            }
            for (name, documented) in definitions(item) {
                self.found.own.insert((path.to_vec(), name), documented);
            }
        }
        let nested: Vec<_> = self
            .modules
            .iter()
            .filter(|(other, module)| {
                module.public && other.len() == path.len() + 1 && other.starts_with(path)
            })
            .map(|(other, _)| other.to_vec())
            .collect();
        nested.iter().for_each(|path| self.module(path));
    }

    fn reexport(&mut self, module: &Module, alias: &str, to: &[String]) {
        match self.absolute(&module.path, to) {
            None => drop(self.found.foreign.insert(alias.to_owned())),
            Some(path) if self.modules.contains_key(path.as_slice()) => self.module(&path),
            Some(path) => self.item(&path, 0),
        }
    }

    /// Adds the item at `path`, through private re-exports if needed.
    fn item(&mut self, path: &[String], depth: usize) {
        let Some((name, parent)) = path.split_last() else { return };
        let Some(module) = self.modules.get(parent).copied() else { return };
        let all = module.items.iter().flat_map(defined);
        if let Some((_, documented)) = all.into_iter().find(|(own, _)| own == name) {
            self.found.own.insert((parent.to_vec(), name.clone()), documented);
            return;
        }
        let mut imports = Vec::new();
        for item in &module.items {
            if let Item::Use(item) = item {
                leaves(&item.tree, &mut Vec::new(), &mut imports);
            }
        }
        match imports.into_iter().find(|(alias, _)| alias == name) {
            Some((_, to)) if depth < 8 => match self.absolute(parent, &to) {
                Some(path) => self.item(&path, depth + 1),
                None => drop(self.found.foreign.insert(name.clone())),
            },
            // Made by a macro, or imported with all of its module.
            _ => drop(self.found.own.insert((parent.to_vec(), name.clone()), true)),
        }
    }

    /// A path from the root of the crate; `None` if it leads to another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut base = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => base.clear(),
            "self" | "super" => {}
            first => {
                let child = [module, &[first.to_owned()]].concat();
                return self
                    .modules
                    .contains_key(child.as_slice())
                    .then(|| [module, path].concat());
            }
        }
        while let [first, behind @ ..] = rest
            && matches!(first.as_str(), "crate" | "self" | "super")
        {
            if first == "super" {
                base.pop();
            }
            rest = behind;
        }
        Some([base.as_slice(), rest].concat())
    }
}

/// Public names that an item defines, with whether they have documentation.
fn definitions(item: &Item) -> Vec<(String, bool)> {
    let is_exported_macro = |item: &syn::ItemMacro| {
        item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
    };
    match item {
        Item::Macro(item) if item.ident.is_none() || is_exported_macro(item) => {}
        Item::Macro(_) => return Vec::new(),
        _ if !matches!(visibility(item), Some(Visibility::Public(_))) => return Vec::new(),
        _ => {}
    }
    defined(item)
}

/// Names that an item defines. Macros define those that stand behind `pub` in their arguments.
fn defined(item: &Item) -> Vec<(String, bool)> {
    let documented = attributes(item).iter().any(is_doc);
    match (name(item), item) {
        (Some(name), _) => vec![(name.to_string(), documented)],
        (None, Item::Macro(item)) => {
            let tokens = tokens::flatten(&[&item.mac.tokens]);
            let is_kind = |text: &str| {
                matches!(text, "struct" | "enum" | "fn" | "const" | "type" | "static" | "trait")
            };
            tokens
                .windows(3)
                .filter(|window| window[0].text == "pub" && is_kind(&window[1].text))
                .map(|window| (window[2].text.clone(), true))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn is_doc(attribute: &Attribute) -> bool {
    attribute.path().is_ident("doc")
}

pub fn name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

pub fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(item) => Some(&item.vis),
        Item::Enum(item) => Some(&item.vis),
        Item::Fn(item) => Some(&item.vis),
        Item::Static(item) => Some(&item.vis),
        Item::Struct(item) => Some(&item.vis),
        Item::Trait(item) => Some(&item.vis),
        Item::Type(item) => Some(&item.vis),
        Item::Union(item) => Some(&item.vis),
        _ => None,
    }
}
