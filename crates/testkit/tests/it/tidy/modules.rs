//! Which top-level module of a crate uses which, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, UseTree, Visibility};

use super::source::{Kind, Module, Target};
use super::tokens::{self, PathFrom};

/// Uses between the top-level modules of one crate. `lib` is the root itself, if others use it.
#[derive(Default, Clone, Debug)]
pub struct Uses {
    pub modules: BTreeSet<String>,
    /// User, used module, and one place of such a use.
    pub edges: BTreeMap<(String, String), String>,
}

impl Uses {
    pub fn of<'a>(targets: impl Iterator<Item = &'a Target>) -> Self {
        let mut uses = Self::default();
        for target in targets.filter(|target| target.root.kind != Kind::Test) {
            uses.add(target);
        }
        uses
    }

    fn add(&mut self, target: &Target) {
        let names = Names::of(target);
        self.modules.extend(names.modules.iter().cloned());
        for module in target.modules.iter().filter(|module| !module.test) {
            for PathFrom { names: path, line } in used_paths(module, &names) {
                let Some(used) = names.resolve(module, &path) else { continue };
                if used != module.top() {
                    self.modules.extend((used == "lib").then(|| used.clone()));
                    let edge = (module.top().to_owned(), used);
                    self.edges.entry(edge).or_insert_with(|| format!("{}:{line}", module.file));
                }
            }
        }
    }

    /// All modules that `from` uses, directly or through others.
    fn reached<'a>(&'a self, from: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![from];
        while let Some(at) = todo.pop() {
            let next = self.edges.keys().filter(|(user, _)| user == at).map(|(_, used)| &**used);
            todo.extend(next.filter(|used| reached.insert(*used)));
        }
        reached
    }

    /// Edges whose ends use each other: the edges inside strongly connected components.
    pub fn in_circles(&self) -> BTreeSet<(String, String)> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|(user, _)| (&**user, self.reached(user))).collect();
        let returns =
            |from: &str, to: &str| reached.get(from).is_some_and(|modules| modules.contains(to));
        self.edges.keys().filter(|(user, used)| returns(used, user)).cloned().collect()
    }

    /// Edges that lead upward in `order`, which begins with the lowest module.
    pub fn upward(&self, order: &[String]) -> BTreeSet<(String, String)> {
        let place = |name: &str| order.iter().position(|module| module == name);
        let is_upward = |(user, used): &&(String, String)| place(user) < place(used);
        self.edges.keys().filter(is_upward).cloned().collect()
    }
}

/// The names that the root of a crate declares or imports.
struct Names {
    modules: BTreeSet<String>,
    /// Imported names and the module that they come from; `None` for another crate.
    imports: BTreeMap<String, Option<String>>,
}

impl Names {
    fn of(target: &Target) -> Self {
        let production = || target.modules.iter().filter(|module| !module.test);
        let modules: BTreeSet<String> = production()
            .filter(|module| !module.path.is_empty())
            .map(|module| module.top().to_owned())
            .collect();
        let mut names = Self { modules, imports: BTreeMap::new() };
        let mut imported = Vec::new();
        for module in production() {
            let own = if module.path.is_empty() { "lib" } else { module.top() };
            for item in &module.items {
                match item {
                    Item::Use(item) if module.path.is_empty() => {
                        leaves(&item.tree, &mut Vec::new(), &mut imported);
                    }
                    Item::Macro(item) if item.attrs.iter().any(is_exported_macro) => {
                        let name = item.ident.as_ref().map(ToString::to_string);
                        let name = name.unwrap_or_default();
                        names.imports.insert(name, Some(own.to_owned()));
                    }
                    _ => {}
                }
            }
        }
        for (alias, path) in imported {
            let first = path.iter().find(|name| *name != "crate" && *name != "self");
            let module = first.filter(|first| names.modules.contains(*first)).cloned();
            names.imports.insert(alias, module);
        }
        names
    }

    /// The top-level module that `path` leads to from `module`, if it is in this crate.
    fn resolve(&self, module: &Module, path: &[String]) -> Option<String> {
        let mut base = if path[0] == "crate" { &[] } else { module.path.as_slice() };
        let mut rest = path;
        while let [first, behind @ ..] = rest {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => base = &base[..base.len().saturating_sub(1)],
                _ => break,
            }
            rest = behind;
        }
        if let Some(top) = base.first() {
            return Some(top.clone());
        }
        let name = rest.first()?;
        if self.modules.contains(name) {
            return Some(name.clone());
        }
        self.imports.get(name).cloned().unwrap_or_else(|| Some("lib".to_owned()))
    }
}

/// Paths in the code of a module. The root also uses modules without a prefix; its re-exports are
/// resolved where they are used.
fn used_paths(module: &Module, names: &Names) -> Vec<PathFrom> {
    let is_export = |item: &&Item| {
        matches!(
            item,
            Item::Use(item) if !matches!(item.vis, Visibility::Inherited),
        )
    };
    let is_root = module.path.is_empty();
    let items: Vec<&Item> =
        module.items.iter().filter(|item| !is_root || !is_export(item)).collect();
    let tokens = tokens::flatten(&items);
    let mut paths = tokens::paths(&tokens);
    if is_root {
        let bare = tokens.windows(3).filter(|window| {
            names.modules.contains(&window[0].text)
                && window[1].text == ":"
                && window[2].text == ":"
        });
        paths.extend(bare.map(|window| PathFrom {
            names: vec!["crate".to_owned(), window[0].text.clone()],
            line: window[0].line,
        }));
    }
    paths
}

fn is_exported_macro(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("macro_export")
}

/// The names that a `use` declaration brings in, each with its path; `*` stands for all names.
pub fn leaves(tree: &UseTree, prefix: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let with = |name: &syn::Ident| [prefix.as_slice(), &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            leaves(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            found.push((prefix.last().cloned().unwrap_or_default(), prefix.clone()));
        }
        UseTree::Name(name) => found.push((name.ident.to_string(), with(&name.ident))),
        UseTree::Rename(name) if name.ident == "self" => {
            found.push((name.rename.to_string(), prefix.clone()));
        }
        UseTree::Rename(name) => found.push((name.rename.to_string(), with(&name.ident))),
        UseTree::Glob(_) => found.push(("*".to_owned(), prefix.clone())),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| leaves(tree, prefix, found));
        }
    }
}
