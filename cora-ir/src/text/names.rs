//! Names in text: quoting, suffixes that make them unique, variables in scope.

use crate::env::Env;
use crate::ids::{EntityId, ExprId, VarId};
use crate::types::{BinOp, Combiner, ScalarType, UnOp};
use rustc_hash::{FxHashMap, FxHashSet};

/// What variables are called in printed expressions.
///
/// Variables without an entry print under their own name, with a suffix (`%q#1`) where two different
/// ones of one expression have the same.
#[derive(Clone, Debug, Default)]
pub struct Names {
    map: FxHashMap<VarId, String>,
    taken: FxHashSet<String>,
}

impl Names {
    /// Unique names for all variables of `exprs`, in order of first occurrence: for messages that
    /// print several expressions about the same variables.
    pub fn of(env: &Env, exprs: &[ExprId]) -> Self {
        let mut names = Self::default();
        for &e in exprs {
            for v in env.pool.vars_of(e) {
                names.add(env, v);
            }
        }
        names
    }

    /// The variable's name, as it stands in text after the `%`.
    pub fn get(&self, v: VarId) -> Option<&str> {
        self.map.get(&v).map(String::as_str)
    }

    /// Gives `v` its own name, with a suffix if that is taken; keeps a name that it already has.
    pub fn add(&mut self, env: &Env, v: VarId) -> &str {
        if !self.map.contains_key(&v) {
            let name = self.choose(env, v);
            self.insert(v, name);
        }
        &self.map[&v]
    }

    /// A name for `v` that no variable has.
    pub(super) fn choose(&self, env: &Env, v: VarId) -> String {
        let base = env.vars.get(v).map_or("_", |i| i.name.as_str());
        unique(quote(base), |n| self.taken.contains(n))
    }

    /// Gives `v` the chosen `name`; returns the name that this hides.
    pub(super) fn insert(&mut self, v: VarId, name: String) -> Option<String> {
        self.taken.insert(name.clone());
        self.map.insert(v, name)
    }

    /// Undoes [`Names::insert`].
    pub(super) fn remove(&mut self, v: VarId, hidden: Option<String>) {
        let name = match hidden {
            Some(old) => self.map.insert(v, old),
            None => self.map.remove(&v),
        };
        if let Some(name) = name {
            self.taken.remove(&name);
        }
    }
}

/// `base`, or `base#1`, `base#2`, ...: the first that is not taken.
fn unique(base: String, taken: impl Fn(&str) -> bool) -> String {
    if !taken(&base) {
        return base;
    }
    (1u64..).map(|i| format!("{base}#{i}")).find(|n| !taken(n)).unwrap_or(base)
}

/// Text names of some entities of one kind: quoted where needed, made unique in order of declaration.
#[derive(Clone, Debug, Default)]
pub(super) struct EntityNames {
    names: Vec<Option<String>>,
}

impl EntityNames {
    pub(super) fn new<'a, I: EntityId>(
        entities: impl Iterator<Item = (I, &'a str)>,
        quote: fn(&str) -> String,
    ) -> Self {
        Self::by_index(entities.map(|(id, name)| (id.index(), name)), quote)
    }

    /// Names of the things at these positions, in the order in which they are declared.
    pub(super) fn by_index<'a>(things: impl Iterator<Item = (usize, &'a str)>, quote: fn(&str) -> String) -> Self {
        let (mut names, mut taken) = (Vec::new(), FxHashSet::default());
        for (index, base) in things {
            let name = unique(quote(base), |n| taken.contains(n));
            taken.insert(name.clone());
            if names.len() <= index {
                names.resize(index + 1, None);
            }
            names[index] = Some(name);
        }
        Self { names }
    }

    /// The name; an entity that does not exist is called by its number.
    pub(super) fn get<I: EntityId>(&self, id: I) -> String {
        self.at(id.index())
    }

    /// The name of the entity at `index`.
    pub(super) fn at(&self, index: usize) -> String {
        match self.names.get(index) {
            Some(Some(name)) => name.clone(),
            _ => format!("\"?{index}\""),
        }
    }
}

/// Words that mean something at the beginning of an operand or after one; a parameter that is called
/// so is printed in quotes.
pub(super) fn is_reserved(word: &str) -> bool {
    const WORDS: [&str; 12] =
        ["true", "false", "inf", "nan", "not", "and", "or", "if", "else", "select", "ramp", "splat"];
    WORDS.contains(&word)
        || matches!(word, "search" | "part")
        || ScalarType::from_name(word).is_some()
        || UnOp::ALL.iter().any(|o| o.name() == word)
        || BinOp::ALL.iter().any(|o| o.symbol() == word)
        || word.strip_prefix("reduce_").is_some_and(|c| combiner(c).is_some())
}

/// The combiner with that name.
pub(super) fn combiner(name: &str) -> Option<Combiner> {
    Combiner::ALL.into_iter().find(|c| c.name() == name)
}

/// The name as it is if it is a word, else in quotes.
pub(super) fn quote(name: &str) -> String {
    if is_word(name) { name.to_owned() } else { quoted(name) }
}

/// [`quote`] for places where reserved words have a meaning.
pub(super) fn quote_param(name: &str) -> String {
    if is_reserved(name) { quoted(name) } else { quote(name) }
}

/// Letters, digits and `_`, with single dots between them, not beginning with a digit.
fn is_word(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

fn quoted(name: &str) -> String {
    let mut out = String::from("\"");
    for c in name.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
