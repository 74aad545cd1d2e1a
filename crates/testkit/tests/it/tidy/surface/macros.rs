//! Items made by simple macros: one arm, whose captures are separated by other tokens.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::Item;

type Captures = BTreeMap<String, Vec<TokenTree>>;

/// The items that `call` makes; `None` if `rules`, the body of its `macro_rules`, are not simple.
pub fn expand(rules: &TokenStream, call: &TokenStream) -> Option<Vec<Item>> {
    let rules: Vec<TokenTree> = rules.clone().into_iter().collect();
    let (TokenTree::Group(matcher), TokenTree::Group(body)) = (rules.first()?, rules.get(3)?)
    else {
        return None;
    };
    if rules.len() > 5 {
        return None;
    }
    let (matcher, body) = (trees(matcher), trees(body));
    let mut input: &[TokenTree] = &call.clone().into_iter().collect::<Vec<_>>();
    let (each, made) = match (repetition(&matcher), repetition(&body)) {
        (Some(each), Some(made)) if each.rest.is_empty() && made.rest.is_empty() => (each, made),
        _ => {
            let captures = matched(&matcher, None, &mut input)?;
            return parse(filled(&body, &captures)?);
        }
    };
    let mut items = Vec::new();
    while !input.is_empty() {
        let captures = matched(&each.inner, each.separator.as_deref(), &mut input)?;
        items.extend(parse(filled(&made.inner, &captures)?)?);
        if each.separator.is_some() {
            input = input.split_first().map_or(input, |(_, rest)| rest);
        }
    }
    Some(items)
}

fn parse(tokens: TokenStream) -> Option<Vec<Item>> {
    Some(syn::parse2::<syn::File>(tokens).ok()?.items)
}

fn trees(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

fn is_punct(tree: Option<&TokenTree>, c: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

/// `$(...)` with a separator or none, and `*` or `+`.
struct Repetition<'a> {
    inner: Vec<TokenTree>,
    separator: Option<String>,
    rest: &'a [TokenTree],
}

/// The repetition at the beginning.
fn repetition(at: &[TokenTree]) -> Option<Repetition<'_>> {
    let [dollar, TokenTree::Group(group), rest @ ..] = at else { return None };
    if !is_punct(Some(dollar), '$') || group.delimiter() != Delimiter::Parenthesis {
        return None;
    }
    let is_end = |tree: Option<&TokenTree>| is_punct(tree, '*') || is_punct(tree, '+');
    let (separator, rest) = match rest {
        [end, rest @ ..] if is_end(Some(end)) => (None, rest),
        [separator, end, rest @ ..] if is_end(Some(end)) => (Some(separator.to_string()), rest),
        _ => return None,
    };
    Some(Repetition { inner: trees(group), separator, rest })
}

/// Takes the captures of `matcher` from `input`, up to `end` at the most. Attributes before the
/// first capture are dropped.
fn matched(matcher: &[TokenTree], end: Option<&str>, input: &mut &[TokenTree]) -> Option<Captures> {
    let mut captures = Captures::new();
    let mut rest = matcher;
    if let Some(marks) = repetition(rest)
        && is_punct(marks.inner.first(), '#')
    {
        while let [hash, TokenTree::Group(_), others @ ..] = input
            && is_punct(Some(hash), '#')
        {
            *input = others;
        }
        rest = marks.rest;
    }
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if !is_punct(Some(first), '$') {
            let (token, others) = input.split_first()?;
            if token.to_string() != first.to_string() {
                return None;
            }
            *input = others;
            continue;
        }
        let [TokenTree::Ident(name), _, TokenTree::Ident(_), behind @ ..] = rest else {
            return None;
        };
        rest = behind;
        let stop = rest.first().map(ToString::to_string).or(end.map(str::to_owned));
        let len = input.iter().position(|tree| Some(tree.to_string()) == stop);
        let (taken, others) = input.split_at(len.unwrap_or(input.len()));
        captures.insert(name.to_string(), taken.to_vec());
        *input = others;
    }
    Some(captures)
}

/// `body` with captures in place of their names; repetitions, which hold attributes, are dropped.
fn filled(body: &[TokenTree], captures: &Captures) -> Option<TokenStream> {
    let mut made: Vec<TokenTree> = Vec::new();
    let mut rest = body;
    while let Some((first, behind)) = rest.split_first() {
        if let Some(marks) = repetition(rest) {
            rest = marks.rest;
            continue;
        }
        rest = behind;
        match first {
            TokenTree::Group(group) => {
                let inner = filled(&trees(group), captures)?;
                made.push(Group::new(group.delimiter(), inner).into());
            }
            dollar if is_punct(Some(dollar), '$') => {
                let (name, behind) = rest.split_first()?;
                made.extend(captures.get(&name.to_string())?.iter().cloned());
                rest = behind;
            }
            other => made.push(other.clone()),
        }
    }
    Some(made.into_iter().collect())
}

/// The structs of a call of `bitflags!`, whose bits are constants.
pub fn flags(call: &TokenStream) -> Option<Vec<Item>> {
    let mut items = Vec::new();
    let mut marks: Vec<TokenTree> = Vec::new();
    let mut rest: &[TokenTree] = &call.clone().into_iter().collect::<Vec<_>>();
    while let Some((first, behind)) = rest.split_first() {
        if let [
            TokenTree::Ident(kind),
            TokenTree::Ident(name),
            _,
            bits,
            TokenTree::Group(body),
            others @ ..,
        ] = rest
            && kind == "struct"
        {
            let made: TokenStream = marks.drain(..).collect();
            let bits = TokenStream::from(bits.clone());
            let constants = constants(name, body);
            items.extend(parse(quote::quote! {
                #made struct #name { bits: #bits }
                impl #name { #constants }
            })?);
            rest = others;
        } else {
            marks.push(first.clone());
            rest = behind;
        }
    }
    Some(items)
}

/// `const A = 1; ..` as public constants of the type.
fn constants(name: &proc_macro2::Ident, body: &Group) -> TokenStream {
    let mut made = TokenStream::new();
    let mut rest: &[TokenTree] = &trees(body);
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match (first, behind) {
            (TokenTree::Ident(word), [TokenTree::Ident(own), others @ ..]) if word == "const" => {
                made.extend(quote::quote! { pub const #own: #name = #name::#own; });
                let end = others.iter().position(|tree| is_punct(Some(tree), ';'));
                rest = &others[end.map_or(others.len(), |at| at + 1)..];
            }
            _ => made.extend([first.clone()]),
        }
    }
    made
}
