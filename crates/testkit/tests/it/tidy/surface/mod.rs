//! The public surface of a library: each item that can be named from it, with signatures.
//!
//! `names` follows re-exports into the other libraries of the workspace, so that the surface of
//! `extant` has the items that it takes from the crates below it. The text of that surface is in
//! `crates/extant/public-api.txt`. Not in it: implementations by macros with several arms, and
//! `Send` and `Sync`, which the compiler derives.

mod macros;
mod names;
mod print;
mod samples;

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;
use syn::{Attribute, Fields, Generics, ImplItem, Item, ReturnType, Signature, TraitItem, Type};

use super::exports::name;
use print::{attributes, docs, generics, is_hidden, signature, text};

pub use names::Names;
use names::{Definition, Named, Place, is_public};

/// The file with the surface of the public library.
pub const PAGE: &str = "crates/extant/public-api.txt";

/// The surface of one library.
#[derive(Default, Clone, Debug)]
pub struct Surface {
    /// Items with their members, in the order of their paths.
    sections: BTreeMap<String, Vec<String>>,
    /// Attributes of re-exports, by path.
    marks: BTreeMap<String, String>,
    /// Names that lead nowhere, and types of signatures that cannot be named from the library.
    pub unnamed: BTreeSet<String>,
    /// Functions that return a `Result` without a section `# Errors`.
    pub silent: BTreeSet<String>,
    /// Enums, and structs with public fields, that are not `non_exhaustive`.
    pub exhaustive: BTreeSet<String>,
}

impl Surface {
    pub fn of(names: &Names, package: &str) -> Surface {
        let mut walk = Walk { names, paths: BTreeMap::new(), surface: Surface::default() };
        let root = Place::root(package);
        walk.collect(&root, &root.krate, &mut Vec::new());
        let definitions: Vec<(Definition, String)> = walk
            .paths
            .iter()
            .map(|(definition, path)| (definition.clone(), path.clone()))
            .collect();
        definitions.iter().for_each(|(definition, path)| walk.describe(definition, path));
        for (place, scope) in &names.scopes {
            let blocks = scope.items.iter().filter_map(|item| match item {
                Item::Impl(block) if !is_hidden(&block.attrs) => Some(block),
                _ => None,
            });
            blocks.for_each(|block| walk.implementation(place, block));
        }
        walk.surface
    }

    /// One line for each item, and one indented for each member.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (path, lines) in &self.sections {
            let (head, members) = lines.split_first().map_or(("", &[][..]), |(h, m)| (h, m));
            let marks = self.marks.get(path).map_or("", String::as_str);
            text += &format!("{path}: {marks}{head}\n");
            let members: BTreeSet<&String> = members.iter().collect();
            members.iter().for_each(|member| text += &format!("    {member}\n"));
        }
        text
    }

    /// Lines of the surface that `stored` lacks, and lines of `stored` that are no more, each below
    /// its item.
    pub fn differences(&self, stored: &str) -> Vec<String> {
        let text = self.text();
        let (now, before) = (with_items(&text), with_items(stored));
        let gone = before.difference(&now).map(|(item, line)| (item, '-', line));
        let new = now.difference(&before).map(|(item, line)| (item, '+', line));
        let mut found: Vec<_> = gone.chain(new).collect();
        found.sort();
        let mut lines: Vec<String> =
            found.iter().map(|(item, sign, line)| format!("{sign} {item}: {line}")).collect();
        if !lines.is_empty() {
            lines.push(format!("`make surface` stores the surface in {PAGE}"));
        }
        lines
    }
}

/// The lines of a surface, each with its item.
fn with_items(text: &str) -> BTreeSet<(&str, &str)> {
    let mut item = "";
    let mut found = BTreeSet::new();
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(member) => found.insert((item, member)),
            None => {
                let (path, head) = line.split_once(": ").unwrap_or((line, ""));
                item = path;
                found.insert((path, head))
            }
        };
    }
    found
}

/// Stores the surface of the public library, and prints the changes.
#[test]
#[ignore = "changes the stored surface: `make surface`"]
fn store() {
    let tidy = super::Tidy::read();
    let (surface, stored) = tidy.surface();
    surface.differences(stored).iter().for_each(|line| println!("{line}"));
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::write(root.join(PAGE), surface.text()).expect("a writable file");
}

struct Walk<'a> {
    names: &'a Names,
    /// The exported definitions, each with its shortest path.
    paths: BTreeMap<Definition, String>,
    surface: Surface,
}

impl Walk<'_> {
    /// Collects the names that `place` exports as `prefix`.
    fn collect(&mut self, place: &Place, prefix: &str, above: &mut Vec<Place>) {
        if above.contains(place) {
            return;
        }
        above.push(place.clone());
        for exported in self.names.exported(place) {
            if is_hidden(&exported.attrs) {
                continue;
            }
            let path = format!("{prefix}::{}", exported.name);
            let marks = attributes(&exported.attrs);
            match exported.end {
                Some(Named::Module(module)) => self.collect(&module, &path, above),
                Some(Named::Outside(other)) => {
                    self.surface.sections.insert(path, vec![format!("{marks}use {other}")]);
                }
                Some(Named::Item(definition)) => {
                    self.surface.marks.insert(path.clone(), marks);
                    self.add(definition, path);
                }
                None => drop(self.surface.unnamed.insert(format!("{path}: leads nowhere"))),
            }
        }
        above.pop();
    }

    fn add(&mut self, definition: Definition, path: String) {
        let hidden = self
            .names
            .item(&definition)
            .is_some_and(|item| is_hidden(super::cut::attributes(item)));
        if hidden {
            return;
        }
        let rank = |path: &String| (path.matches("::").count(), path.clone());
        let other = match self.paths.get(&definition) {
            Some(known) if rank(known) <= rank(&path) => path,
            _ => match self.paths.insert(definition.clone(), path) {
                Some(replaced) => replaced,
                None => return,
            },
        };
        let main = self.paths[&definition].clone();
        if other != main {
            self.surface.sections.insert(other, vec![format!("as {main}")]);
        }
    }

    fn line(&mut self, path: &str, line: String) {
        self.surface.sections.entry(path.to_owned()).or_default().push(line);
    }

    fn describe(&mut self, definition: &Definition, path: &str) {
        let Some(item) = self.names.item(definition) else {
            self.surface.unnamed.insert(format!("{path}: has no item"));
            return;
        };
        let place = definition.place.clone();
        let marks = attributes(super::cut::attributes(item));
        match item {
            Item::Struct(item) => {
                let (parameters, bounds) = generics(&item.generics);
                self.line(path, format!("{marks}struct{parameters}{bounds}"));
                let public = self.fields(&place, path, "", (&item.fields, &item.generics));
                if public && !marks.contains("non_exhaustive") {
                    self.surface.exhaustive.insert(path.to_owned());
                }
                self.mentioned(&place, path, &item.generics, &item.generics);
            }
            Item::Enum(item) => {
                let (parameters, bounds) = generics(&item.generics);
                self.line(path, format!("{marks}enum{parameters}{bounds}"));
                for variant in item.variants.iter().filter(|variant| !is_hidden(&variant.attrs)) {
                    let value = variant.discriminant.as_ref();
                    let value =
                        value.map_or(String::new(), |(_, value)| format!(" = {}", text(value)));
                    self.line(
                        path,
                        format!("{}{}{value}", attributes(&variant.attrs), variant.ident),
                    );
                    let of = format!("{}.", variant.ident);
                    self.fields(&place, path, &of, (&variant.fields, &item.generics));
                }
                if !marks.contains("non_exhaustive") {
                    self.surface.exhaustive.insert(path.to_owned());
                }
            }
            Item::Trait(item) => self.describe_trait(&place, path, item, &marks),
            Item::Fn(item) => {
                self.line(path, format!("{marks}{}", signature(&item.sig)));
                self.function(&place, path, (&item.attrs, &item.sig), &Generics::default());
            }
            Item::Type(item) => {
                let (parameters, bounds) = generics(&item.generics);
                self.line(path, format!("{marks}type{parameters} = {}{bounds}", text(&item.ty)));
                self.mentioned(&place, path, &*item.ty, &item.generics);
            }
            Item::Const(item) => {
                self.line(path, format!("{marks}const {}", text(&item.ty)));
                self.mentioned(&place, path, &*item.ty, &item.generics);
            }
            Item::Static(item) => {
                self.line(path, format!("{marks}static {}", text(&item.ty)));
                self.mentioned(&place, path, &*item.ty, &Generics::default());
            }
            other => {
                let own = name(other).map(ToString::to_string).unwrap_or_default();
                self.surface.unnamed.insert(format!("{path}: {own} is of an unknown kind"));
            }
        }
    }

    /// Adds public fields, or all those of the variant `of`. Returns whether one has a name and is
    /// public.
    fn fields(
        &mut self,
        place: &Place,
        path: &str,
        of: &str,
        (fields, parameters): (&Fields, &Generics),
    ) -> bool {
        let (mut found, only_public) = (false, of.is_empty());
        for (at, field) in fields.iter().enumerate() {
            if only_public && !is_public(&field.vis) || is_hidden(&field.attrs) {
                continue;
            }
            found |= field.ident.is_some();
            let own = field.ident.as_ref().map_or(at.to_string(), ToString::to_string);
            self.line(path, format!("{of}{own}: {}", text(&field.ty)));
            self.mentioned(place, path, &field.ty, parameters);
        }
        found
    }

    fn describe_trait(&mut self, place: &Place, path: &str, item: &syn::ItemTrait, marks: &str) {
        let (parameters, bounds) = generics(&item.generics);
        let above = if item.supertraits.is_empty() {
            String::new()
        } else {
            format!(": {}", text(&item.supertraits))
        };
        self.line(path, format!("{marks}trait{parameters}{above}{bounds}"));
        item.supertraits
            .iter()
            .for_each(|bound| self.mentioned(place, path, bound, &item.generics));
        for member in &item.items {
            match member {
                TraitItem::Fn(member) if !is_hidden(&member.attrs) => {
                    let given = if member.default.is_some() { " (provided)" } else { "" };
                    self.line(path, format!("{}{given}", signature(&member.sig)));
                    let own = format!("{path}::{}", member.sig.ident);
                    self.function(place, &own, (&member.attrs, &member.sig), &item.generics);
                }
                TraitItem::Type(member) => {
                    self.line(path, text(member));
                    self.mentioned(place, path, member, &item.generics);
                }
                TraitItem::Const(member) => {
                    self.line(path, format!("const {}: {}", member.ident, text(&member.ty)));
                    self.mentioned(place, path, &member.ty, &item.generics);
                }
                _ => {}
            }
        }
    }

    /// Adds the public members of an `impl` of an exported type, and implementations of traits
    /// that callers know.
    fn implementation(&mut self, place: &Place, block: &syn::ItemImpl) {
        let own = self.end_of(place, &block.self_ty).and_then(|end| self.known(&end));
        let Some((_, of_trait, _)) = &block.trait_ else {
            if let Some(path) = own {
                block.items.iter().for_each(|member| self.member(place, &path, block, member));
            }
            return;
        };
        let mut mentions = Mentions::new(&block.generics);
        mentions.visit_path(of_trait);
        mentions.visit_type(&block.self_ty);
        let mut first = own;
        for path in mentions.paths {
            match self.names.resolve(place, &path) {
                Some(Named::Item(definition)) => match self.paths.get(&definition) {
                    Some(path) => first = first.or_else(|| Some(path.clone())),
                    // A trait or type of the libraries below, which callers cannot name.
                    None => return,
                },
                Some(_) => {}
                None => return,
            }
        }
        let Some(path) = first else { return };
        let (parameters, bounds) = generics(&block.generics);
        let head =
            format!("impl{parameters} {} for {}{bounds}", text(of_trait), text(&block.self_ty));
        self.line(&path, attributes(&block.attrs) + &head);
        for member in &block.items {
            if let ImplItem::Type(member) = member {
                self.line(&path, format!("{head}: {} = {}", member.ident, text(&member.ty)));
                self.mentioned(place, &path, &member.ty, &block.generics);
            }
        }
    }

    fn member(&mut self, place: &Place, path: &str, block: &syn::ItemImpl, member: &ImplItem) {
        let of = attributes(&block.attrs);
        match member {
            ImplItem::Fn(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                let marks = attributes(&item.attrs);
                self.line(path, format!("{of}{marks}{}", signature(&item.sig)));
                let own = format!("{path}::{}", item.sig.ident);
                self.function(place, &own, (&item.attrs, &item.sig), &block.generics);
            }
            ImplItem::Const(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                let marks = attributes(&item.attrs);
                self.line(path, format!("{of}{marks}const {}: {}", item.ident, text(&item.ty)));
                self.mentioned(place, path, &item.ty, &block.generics);
            }
            _ => {}
        }
    }

    fn function(
        &mut self,
        place: &Place,
        path: &str,
        (attrs, sig): (&[Attribute], &Signature),
        outer: &Generics,
    ) {
        let mut inner = Mentions::new(outer);
        inner.parameters(&sig.generics);
        inner.visit_signature(sig);
        self.check(place, path, inner.paths);
        if returns_result(sig) && !docs(attrs).contains("# Errors") {
            self.surface.silent.insert(path.to_owned());
        }
    }

    fn mentioned<T: Mentioning>(&mut self, place: &Place, path: &str, part: &T, of: &Generics) {
        let mut mentions = Mentions::new(of);
        part.visit_with(&mut mentions);
        self.check(place, path, mentions.paths);
    }

    /// Records the paths in a signature that callers cannot name. Traits that seal others need no
    /// name.
    fn check(&mut self, place: &Place, at: &str, paths: Vec<Vec<String>>) {
        for path in paths {
            let spelled = path.join("::");
            match self.names.resolve(place, &path) {
                Some(Named::Item(to)) if to.name == "Sealed" => {}
                Some(Named::Item(to)) if !self.paths.contains_key(&to) => {
                    let crate_ = &to.place.krate;
                    let problem = format!("{at}: {spelled} of {crate_} is not exported");
                    self.surface.unnamed.insert(problem);
                }
                Some(Named::Item(_) | Named::Outside(_)) => {}
                Some(Named::Module(_)) | None => {
                    self.surface.unnamed.insert(format!("{at}: {spelled} leads nowhere"));
                }
            }
        }
    }

    fn end_of(&self, place: &Place, kind: &Type) -> Option<Named> {
        let Type::Path(kind) = kind else { return None };
        self.names.resolve(place, &segments(&kind.path))
    }

    fn known(&self, end: &Named) -> Option<String> {
        match end {
            Named::Item(definition) => self.paths.get(definition).cloned(),
            _ => None,
        }
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn returns_result(signature: &Signature) -> bool {
    let ReturnType::Type(_, kind) = &signature.output else { return false };
    match &**kind {
        Type::Path(kind) => kind.path.segments.last().is_some_and(|last| last.ident == "Result"),
        _ => false,
    }
}

/// The paths of types and traits in a part of a signature, without generic parameters.
struct Mentions {
    parameters: BTreeSet<String>,
    paths: Vec<Vec<String>>,
}

impl Mentions {
    fn new(generics: &Generics) -> Mentions {
        let parameters = BTreeSet::from(["Self".to_owned()]);
        let mut mentions = Mentions { parameters, paths: Vec::new() };
        mentions.parameters(generics);
        mentions
    }

    fn parameters(&mut self, generics: &Generics) {
        let types = generics.type_params().map(|parameter| parameter.ident.to_string());
        self.parameters.extend(types);
        let values = generics.const_params().map(|parameter| parameter.ident.to_string());
        self.parameters.extend(values);
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = segments(path);
        if !self.parameters.contains(&names[0]) {
            self.paths.push(names);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
}

/// Parts of signatures.
trait Mentioning {
    fn visit_with(&self, mentions: &mut Mentions);
}

macro_rules! mentioning {
    ($($part:ty, $visit:ident;)*) => {$(
        impl Mentioning for $part {
            fn visit_with(&self, mentions: &mut Mentions) {
                mentions.$visit(self);
            }
        }
    )*};
}

mentioning! {
    Type, visit_type;
    Generics, visit_generics;
    syn::TypeParamBound, visit_type_param_bound;
    syn::TraitItemType, visit_trait_item_type;
}
