//! Signatures as text.

use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{Attribute, FnArg, Generics, Meta, Signature, Token};

/// Tokens without the spaces that `quote` puts around punctuation.
pub fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string().replace('\n', " ");
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" :", ":"),
        (" ,", ","),
        (" ;", ";"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("[ ", "["),
        (" ]", "]"),
        ("& ", "&"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        ("? ", "?"),
        ("# ", "#"),
        (",)", ")"),
        (",>", ">"),
        ("->", " ->"),
        ("  ->", " ->"),
        ("dyn(", "dyn ("),
        (">where", "> where"),
        (",(", ", ("),
        ("->(", "-> ("),
        ("=(", "= ("),
        (":(", ": ("),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// A function without `pub`, its body and `mut` of parameters.
pub fn signature(signature: &Signature) -> String {
    let mut signature = signature.clone();
    for input in &mut signature.inputs {
        match input {
            FnArg::Receiver(receiver) if receiver.reference.is_none() => receiver.mutability = None,
            FnArg::Typed(input) => {
                if let syn::Pat::Ident(pattern) = &mut *input.pat {
                    pattern.mutability = None;
                }
            }
            FnArg::Receiver(_) => {}
        }
        match input {
            FnArg::Receiver(receiver) => receiver.attrs.clear(),
            FnArg::Typed(input) => input.attrs.clear(),
        }
    }
    text(&signature)
}

/// Generic parameters with their bounds, and the `where` clause, each empty if there is none.
pub fn generics(generics: &Generics) -> (String, String) {
    let bounds = generics.where_clause.as_ref().map_or(String::new(), |c| format!(" {}", text(c)));
    (text(generics), bounds)
}

/// The attributes that belong to the public surface, each followed by a space.
pub fn attributes(attributes: &[Attribute]) -> String {
    let names = ["cfg", "derive", "non_exhaustive", "repr", "deprecated"];
    let of_surface = |attribute: &&Attribute| names.iter().any(|n| attribute.path().is_ident(n));
    attributes.iter().filter(of_surface).map(|attribute| text(attribute) + " ").collect()
}

/// Whether documentation leaves the item out.
pub fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("doc") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|parts| parts.iter().any(|part| part.path().is_ident("hidden"))),
        _ => false,
    })
}

/// The documentation.
pub fn docs(attributes: &[Attribute]) -> String {
    let mut docs = String::new();
    for attribute in attributes {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &pair.value
        {
            docs += &line.value();
            docs += "\n";
        }
    }
    docs
}
