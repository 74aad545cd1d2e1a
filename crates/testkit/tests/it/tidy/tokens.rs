//! Code as a flat list of tokens, the arguments of macros included and doc comments left out.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

#[derive(Clone, Debug)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

pub fn flatten<T: ToTokens>(items: &[T]) -> Vec<Token> {
    let mut tokens = Vec::new();
    items.iter().for_each(|item| push(item.to_token_stream(), &mut tokens));
    tokens
}

fn push(stream: TokenStream, tokens: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let line = tree.span().start().line;
        match &tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(Token { text: open.to_owned(), line });
                push(group.stream(), tokens);
                let line = group.span_close().start().line;
                tokens.push(Token { text: close.to_owned(), line });
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let inner =
                    trees.next_if(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == '!'));
                if trees.next_if(is_doc).is_none() {
                    tokens.push(Token { text: "#".to_owned(), line });
                    tokens.extend(inner.map(|_| Token { text: "!".to_owned(), line }));
                }
            }
            _ => tokens.push(Token { text: tree.to_string(), line }),
        }
    }
    tokens.retain(|token| !token.text.is_empty());
}

/// Whether a tree is `[doc …]`, the rest of an attribute.
fn is_doc(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else { return false };
    group.delimiter() == Delimiter::Bracket
        && group.stream().into_iter().next().is_some_and(|first| first.to_string() == "doc")
}

/// Positions where the texts of `tokens` continue with `wanted`.
pub fn positions<'a>(
    tokens: &'a [Token],
    wanted: &'a [&'a str],
) -> impl Iterator<Item = usize> + 'a {
    tokens
        .windows(wanted.len())
        .enumerate()
        .filter(move |(_, window)| {
            window.iter().zip(wanted).all(|(token, text)| token.text == *text)
        })
        .map(|(at, _)| at)
}

/// Counts the arguments of a call whose opening parenthesis is at `open`.
pub fn arguments(tokens: &[Token], open: usize) -> usize {
    let (mut depth, mut count, mut pending) = (0_usize, 0, false);
    for token in &tokens[open..] {
        match token.text.as_str() {
            "(" | "[" | "{" => {
                pending |= depth > 0;
                depth += 1;
            }
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            "," if depth == 1 => {
                count += usize::from(pending);
                pending = false;
            }
            _ => pending = true,
        }
    }
    count + usize::from(pending)
}

/// A path from the crate, the module or its parent, with the names of one leaf of a `use` group.
pub struct PathFrom {
    pub names: Vec<String>,
    pub line: usize,
}

/// Finds the paths that begin with `crate`, `self` or `super`, in `use` and in expressions.
pub fn paths(tokens: &[Token]) -> Vec<PathFrom> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts = matches!(tokens[at].text.as_str(), "crate" | "self" | "super");
        if starts && is_separator(tokens, at + 1) {
            at = follow(tokens, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

fn is_separator(tokens: &[Token], at: usize) -> bool {
    tokens.get(at..at + 2).is_some_and(|pair| pair.iter().all(|token| token.text == ":"))
}

/// Reads one path below `prefix` from `at`; returns the position behind it.
fn follow(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<PathFrom>) -> usize {
    let mut names = prefix.to_vec();
    let line = tokens[at].line;
    loop {
        names.push(tokens[at].text.clone());
        at += 1;
        if !is_separator(tokens, at) {
            break;
        }
        at += 2;
        let next = tokens.get(at).map_or("", |token| token.text.as_str());
        if next == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| token.text != "}") {
                at =
                    if tokens[at].text == "," { at + 1 } else { follow(tokens, at, &names, found) };
            }
            return at + 1;
        }
        if !next.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '*') {
            break;
        }
    }
    if !prefix.is_empty() && tokens.get(at).is_some_and(|token| token.text == "as") {
        at += 2;
    }
    found.push(PathFrom { names, line });
    at
}
