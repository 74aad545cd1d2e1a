//! The files of the workspace and the module tree of each target.
//!
//! The tree is grown from `mod` declarations, so that no module can be left out, and all files are
//! parsed with `syn`. Production code is the code of libraries and programs without items that are
//! compiled for tests only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{Expr, ExprLit, Item, Lit, Meta};

use super::cut::{attributes, cut_tests, is_test_only};
use super::dependencies::Dependencies;
use super::surface;

/// Texts by path, relative to the root of the workspace.
pub type Files = BTreeMap<String, String>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Library,
    Program,
    /// Integration tests and examples.
    Test,
}

/// The first file of a target.
#[derive(Clone, Debug)]
pub struct Root {
    pub package: String,
    pub kind: Kind,
    pub file: String,
}

pub struct Module {
    /// Names from the root of the crate, which itself has none.
    pub path: Vec<String>,
    pub file: String,
    /// Whether the declaration is `pub`.
    pub public: bool,
    pub test: bool,
    /// Items without nested modules; without tests, unless the module itself is one.
    pub items: Vec<Item>,
}

impl Module {
    /// The top-level module that this one belongs to.
    pub fn top(&self) -> &str {
        self.path.first().map_or("lib", String::as_str)
    }
}

pub struct Target {
    pub root: Root,
    pub modules: Vec<Module>,
}

pub struct Workspace {
    pub files: Files,
    pub parsed: BTreeMap<String, syn::File>,
    pub targets: Vec<Target>,
    /// Declared modules without a file, and files that no module tree reaches.
    pub lost: Vec<String>,
    pub dependencies: Dependencies,
}

impl Workspace {
    /// Reads the workspace that this crate belongs to.
    pub fn read() -> Self {
        let metadata = cargo_metadata::MetadataCommand::new()
            .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
            .exec()
            .expect("cargo describes the workspace");
        let base = metadata.workspace_root.as_std_path();
        let mut roots = Vec::new();
        for package in metadata.workspace_packages() {
            for target in &package.targets {
                let kind = match () {
                    () if target.is_lib() => Kind::Library,
                    () if target.is_test() || target.is_example() => Kind::Test,
                    () => Kind::Program,
                };
                let file = relative(base, target.src_path.as_std_path());
                roots.push(Root { package: package.name.to_string(), kind, file });
            }
        }
        let mut files = Files::new();
        read_texts(base, base, &mut files);
        Self { dependencies: Dependencies::of(&metadata), ..Self::new(files, roots) }
    }

    pub fn new(files: Files, roots: Vec<Root>) -> Self {
        let sources = files.iter().filter(|(path, _)| is_source(path));
        let parsed = sources
            .map(|(path, text)| {
                let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
                (path.clone(), file)
            })
            .collect();
        let (targets, lost) = (Vec::new(), Vec::new());
        let dependencies = Dependencies::default();
        let mut space = Self { files, parsed, targets, lost, dependencies };
        let mut reached = BTreeSet::new();
        for root in roots {
            let mut modules = Vec::new();
            let module = Module {
                path: Vec::new(),
                file: root.file.clone(),
                public: true,
                test: root.kind == Kind::Test,
                items: Vec::new(),
            };
            space.grow_file(module, parent(&root.file).to_owned(), &mut modules);
            reached.extend(modules.iter().map(|m| m.file.clone()));
            space.targets.push(Target { root, modules });
        }
        let unreached = space.parsed.keys().filter(|path| !reached.contains(*path));
        let unreached: Vec<_> =
            unreached.map(|path| format!("{path}: no module tree has this file")).collect();
        space.lost.extend(unreached);
        space
    }

    /// Adds `module` with the items of its file, as [`Self::grow`] does.
    fn grow_file(&mut self, mut module: Module, children: String, modules: &mut Vec<Module>) {
        let file = &module.file;
        let Some(parsed) = self.parsed.get(file).cloned() else {
            return self.lost.push(format!("{file}: the file of a module is missing"));
        };
        module.test |= is_test_only(&parsed.attrs);
        self.grow(module, children, parsed.items, modules);
    }

    /// Adds `module` with `items`, and the modules declared among them, whose files are in the
    /// folder `children`.
    fn grow(
        &mut self,
        mut module: Module,
        children: String,
        items: Vec<Item>,
        modules: &mut Vec<Module>,
    ) {
        let (path, file, test) = (module.path.clone(), module.file.clone(), module.test);
        let (nested, mut items): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| matches!(item, Item::Mod(_)));
        if !test {
            cut_tests(&mut items);
        }
        module.items = items;
        modules.push(module);
        for item in nested {
            let test = test || is_test_only(attributes(&item));
            let Item::Mod(item) = item else { continue };
            let name = item.ident.to_string();
            let public = matches!(item.vis, syn::Visibility::Public(_));
            let path = [path.as_slice(), std::slice::from_ref(&name)].concat();
            let folder = format!("{children}/{name}");
            if let Some((_, items)) = item.content {
                let module = Module { path, file: file.clone(), public, test, items: Vec::new() };
                self.grow(module, folder, items, modules);
                continue;
            }
            let (file, folder) = match path_attribute(&item.attrs) {
                Some(other) => {
                    let file = normal(&format!("{}/{other}", parent(&file)));
                    (file.clone(), parent(&file).to_owned())
                }
                None if self.files.contains_key(&format!("{folder}/mod.rs")) => {
                    (format!("{folder}/mod.rs"), folder)
                }
                None => (format!("{folder}.rs"), folder),
            };
            let module = Module { path, file, public, test, items: Vec::new() };
            self.grow_file(module, folder, modules);
        }
    }
}

/// Whether a file belongs to a crate of the workspace; `fuzz` is a workspace of its own.
fn is_source(path: &str) -> bool {
    path.ends_with(".rs") && path.starts_with("crates/")
}

fn parent(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `a/../b` as `b`.
pub fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

fn relative(base: &Path, path: &Path) -> String {
    path.strip_prefix(base).expect("inside the workspace").to_string_lossy().into_owned()
}

/// Reads all Rust and Markdown files, and the stored surface. Other files are listed without their
/// text, for links.
fn read_texts(base: &Path, folder: &Path, files: &mut Files) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && name != ".ci";
        // Cargo marks a folder only if it makes that itself.
        let is_built = path == base.join("target") || path.join("CACHEDIR.TAG").exists();
        if path.is_dir() && !hidden && !is_built {
            read_texts(base, &path, files);
        } else if path.is_file() {
            let file = relative(base, &path);
            let is_text = name.ends_with(".rs") || name.ends_with(".md") || file == surface::PAGE;
            let text = is_text.then(|| fs::read_to_string(&path).expect("a readable file"));
            files.insert(file, text.unwrap_or_default());
        }
    }
}
