//! Names of all libraries of the workspace: where a path leads.

use std::collections::BTreeMap;

use syn::{Item, UseTree, Visibility};

use super::macros::{expand, flags};
use crate::tidy::exports::name;
use crate::tidy::modules::leaves;
use crate::tidy::source::{Kind, Target};

/// A module, by crate (as paths spell it) and names below its root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub krate: String,
    pub path: Vec<String>,
}

impl Place {
    pub fn root(krate: &str) -> Place {
        Place { krate: krate.replace('-', "_"), path: Vec::new() }
    }

    pub fn child(&self, name: &str) -> Place {
        Place {
            krate: self.krate.clone(),
            path: [self.path.as_slice(), &[name.to_owned()]].concat(),
        }
    }
}

/// An item of a library of the workspace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Definition {
    pub place: Place,
    pub name: String,
}

/// The end of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Named {
    Item(Definition),
    Module(Place),
    /// In another crate, by its path.
    Outside(String),
}

/// A module's items, those made by simple macros included, and whether it is declared `pub`.
pub struct Scope {
    pub items: Vec<Item>,
    pub public: bool,
}

/// A public name of a module.
pub struct Exported {
    pub name: String,
    /// The attributes of the re-export.
    pub attrs: Vec<syn::Attribute>,
    pub end: Option<Named>,
}

pub struct Names {
    pub scopes: BTreeMap<Place, Scope>,
}

/// Names that need no import.
const PRELUDE: [&str; 41] = [
    "AsMut",
    "AsRef",
    "Box",
    "Clone",
    "Copy",
    "Debug",
    "Default",
    "Drop",
    "Eq",
    "Err",
    "Extend",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "Hash",
    "Into",
    "IntoIterator",
    "Iterator",
    "None",
    "Ok",
    "Option",
    "Ord",
    "PartialEq",
    "PartialOrd",
    "Result",
    "Send",
    "Sized",
    "Some",
    "String",
    "Sync",
    "ToOwned",
    "ToString",
    "TryFrom",
    "TryInto",
    "Unpin",
    "Vec",
    "bool",
    "char",
    "str",
    "DoubleEndedIterator",
];

const NUMBERS: [&str; 14] = [
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32",
    "f64",
];

impl Names {
    pub fn of(targets: &[Target]) -> Names {
        let mut scopes = BTreeMap::new();
        for target in targets.iter().filter(|target| target.root.kind == Kind::Library) {
            let krate = target.root.package.replace('-', "_");
            for module in target.modules.iter().filter(|module| !module.test) {
                let place = Place { krate: krate.clone(), path: module.path.clone() };
                let items = with_expansions(&module.items);
                scopes.insert(place, Scope { items, public: module.public });
            }
        }
        Names { scopes }
    }

    /// The item of a definition.
    pub fn item(&self, definition: &Definition) -> Option<&Item> {
        let items = self.scopes.get(&definition.place)?.items.iter();
        items.into_iter().find(|item| is_named(item, &definition.name))
    }

    /// Follows `path` from a module. `None` if it leads nowhere, as generic parameters do.
    pub fn resolve(&self, at: &Place, path: &[String]) -> Option<Named> {
        self.follow(at, path, 0)
    }

    fn follow(&self, at: &Place, path: &[String], depth: usize) -> Option<Named> {
        let (first, rest) = path.split_first()?;
        if depth > 16 {
            return None;
        }
        match first.as_str() {
            "crate" => return self.below(&Place::root(&at.krate), rest, depth),
            "self" => return self.below(at, rest, depth),
            "super" => {
                let mut parent = at.clone();
                parent.path.pop();
                return match rest.first().map(String::as_str) {
                    Some("super") => self.follow(&parent, rest, depth + 1),
                    _ => self.below(&parent, rest, depth),
                };
            }
            _ => {}
        }
        if let Some(found) = self.below(at, path, depth) {
            return Some(found);
        }
        let other = Place::root(first);
        if self.scopes.contains_key(&other) {
            return self.below(&other, rest, depth);
        }
        let is_known = PRELUDE.contains(&first.as_str())
            || NUMBERS.contains(&first.as_str())
            || ["std", "core", "alloc"].contains(&first.as_str());
        // A path of several names that begins with no module leads to another crate.
        (is_known || !rest.is_empty()).then(|| Named::Outside(path.join("::")))
    }

    /// Follows `path` among the names that a module has, private ones included.
    fn below(&self, at: &Place, path: &[String], depth: usize) -> Option<Named> {
        let Some((first, rest)) = path.split_first() else {
            return Some(Named::Module(at.clone()));
        };
        let child = at.child(first);
        if self.scopes.contains_key(&child) {
            return self.below(&child, rest, depth + 1);
        }
        let scope = self.scopes.get(at)?;
        if scope.items.iter().any(|item| is_named(item, first)) {
            let definition = Definition { place: at.clone(), name: first.clone() };
            return Some(Named::Item(definition));
        }
        let imports = scope.items.iter().filter_map(|item| match item {
            Item::Use(item) => Some(&item.tree),
            _ => None,
        });
        for (alias, to) in imports.flat_map(imported) {
            if alias == *first && to != path {
                let whole = [to.as_slice(), rest].concat();
                return self.follow(at, &whole, depth + 1);
            }
        }
        None
    }

    /// The public names of a module, each with its end: items, re-exports, modules.
    pub fn exported(&self, at: &Place) -> Vec<Exported> {
        let mut found = Vec::new();
        let Some(scope) = self.scopes.get(at) else { return found };
        for item in &scope.items {
            match item {
                Item::Use(item) if is_public(&item.vis) => {
                    for (alias, to) in imported(&item.tree) {
                        let (attrs, end) = (item.attrs.clone(), self.follow(at, &to, 0));
                        found.push(Exported { name: alias, attrs, end });
                    }
                }
                Item::Use(_) | Item::Impl(_) | Item::Macro(_) => {}
                item => {
                    if let (Some(own), true) = (name(item), is_public_item(item)) {
                        let definition = Definition { place: at.clone(), name: own.to_string() };
                        let end = Some(Named::Item(definition));
                        let name = own.to_string();
                        found.push(Exported { name, attrs: Vec::new(), end });
                    }
                }
            }
        }
        for (place, scope) in &self.scopes {
            let is_child = place.krate == at.krate
                && place.path.len() == at.path.len() + 1
                && place.path.starts_with(&at.path);
            if is_child && scope.public {
                let own = place.path.last().cloned().unwrap_or_default();
                let end = Some(Named::Module(place.clone()));
                found.push(Exported { name: own, attrs: Vec::new(), end });
            }
        }
        found
    }
}

fn imported(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    leaves(tree, &mut Vec::new(), &mut found);
    found
}

fn is_named(item: &Item, wanted: &str) -> bool {
    !matches!(item, Item::Macro(_)) && name(item).is_some_and(|own| own == wanted)
}

pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_public_item(item: &Item) -> bool {
    crate::tidy::exports::visibility(item).is_some_and(is_public)
}

/// The items of a module, and those of its macros.
fn with_expansions(items: &[Item]) -> Vec<Item> {
    let mut all = items.to_vec();
    for item in items {
        let Item::Macro(call) = item else { continue };
        let name = call.mac.path.get_ident();
        if name.is_some_and(|name| name == "bitflags") {
            all.extend(flags(&call.mac.tokens).unwrap_or_default());
            continue;
        }
        let rules = items.iter().find_map(|item| match item {
            Item::Macro(rules) if rules.ident.is_some() && rules.ident.as_ref() == name => {
                Some(&rules.mac.tokens)
            }
            _ => None,
        });
        let made = rules.and_then(|rules| expand(rules, &call.mac.tokens));
        all.extend(made.unwrap_or_default());
    }
    all
}
