//! Removes code that is compiled for tests only.

use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, ImplItem, Item, Meta, Stmt, Token, TraitItem, punctuated::Punctuated};

/// Removes items, statements and members that only tests have, at any depth.
pub fn cut_tests(items: &mut Vec<Item>) {
    items.retain(|item| !is_test_only(attributes(item)));
    items.iter_mut().for_each(|item| Cutter.visit_item_mut(item));
}

/// Whether attributes leave an item out of production code.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || match &attribute.meta {
                Meta::List(list) if list.path.is_ident("cfg") => list
                    .parse_args::<Meta>()
                    .is_ok_and(|condition| without_tests(&condition) == Some(false)),
                _ => false,
            }
    })
}

/// The value of a condition in production code, if it does not depend on other settings.
fn without_tests(condition: &Meta) -> Option<bool> {
    match condition {
        Meta::Path(path) if path.is_ident("test") || path.is_ident("doctest") => Some(false),
        Meta::List(list) => {
            let parts = list
                .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .unwrap_or_default();
            let mut values = parts.iter().map(without_tests);
            match () {
                () if list.path.is_ident("not") => values.next().flatten().map(|value| !value),
                () if list.path.is_ident("all") => {
                    values.any(|value| value == Some(false)).then_some(false)
                }
                () if list.path.is_ident("any") => {
                    values.all(|value| value == Some(false)).then_some(false)
                }
                () => None,
            }
        }
        _ => None,
    }
}

struct Cutter;

impl VisitMut for Cutter {
    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !is_test_only(attributes(item)));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|statement| match statement {
            Stmt::Local(local) => !is_test_only(&local.attrs),
            Stmt::Item(item) => !is_test_only(attributes(item)),
            Stmt::Macro(call) => !is_test_only(&call.attrs),
            Stmt::Expr(..) => true,
        });
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            ImplItem::Const(item) => !is_test_only(&item.attrs),
            ImplItem::Fn(item) => !is_test_only(&item.attrs),
            ImplItem::Type(item) => !is_test_only(&item.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }

    fn visit_item_trait_mut(&mut self, block: &mut syn::ItemTrait) {
        block.items.retain(|item| match item {
            TraitItem::Fn(item) => !is_test_only(&item.attrs),
            _ => true,
        });
        visit_mut::visit_item_trait_mut(self, block);
    }
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
