//! What can go wrong in an interpreter: a batch that does not fit, a program that misbehaves.

use std::fmt;

/// The stage that was being interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Stage {
    /// The op graph.
    Graph,
    /// The loop dialect.
    Loop,
    /// The storage dialect.
    Storage,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Graph => "graph",
            Self::Loop => "loop",
            Self::Storage => "storage",
        })
    }
}

/// What an undefined value must not decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Use {
    /// A predicate, an `if`, a guard or a mask.
    Condition,
    /// An index of a load or store.
    Index,
    /// The trip count of a loop or the size of a dimension.
    Extent,
    /// An element of a result.
    Output,
    /// An entry that a function's definition needs.
    Function,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Condition => "a condition",
            Self::Index => "an index",
            Self::Extent => "an extent",
            Self::Output => "an output element",
            Self::Function => "a function value",
        })
    }
}

fn origin_note(origin: &Option<String>) -> String {
    origin.as_ref().map_or_else(String::new, |o| format!(" (undefined last: {o})"))
}

/// Why an interpreter stopped. The first group is about the batch, the second about the program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InterpError {
    /// The batch gives no value for a parameter.
    #[error("the batch has no value for parameter `{param}`")]
    MissingParam {
        /// Its name.
        param: String,
    },
    /// A parameter or an entry of an extent function is outside its declared range.
    #[error("`{name}`{index:?} is {value}, outside {lo}..={hi}")]
    Range {
        /// The parameter, extent function or index tensor.
        name: String,
        /// The arguments, or the position in an index tensor; empty for a parameter.
        index: Vec<i64>,
        /// The value.
        value: i64,
        /// Least legal value.
        lo: i64,
        /// Greatest legal value.
        hi: i64,
    },
    /// The batch gives no table for an extent function.
    #[error("the batch has no table for extent function `{function}`")]
    MissingExtent {
        /// Its name.
        function: String,
    },
    /// The batch gives no elements for an input.
    #[error("the batch has no elements for input `{tensor}`")]
    MissingInput {
        /// Its name.
        tensor: String,
    },
    /// A table or an input has the wrong number of entries.
    #[error("`{name}` has {found} entries, {expected} are needed")]
    Count {
        /// The extent function or input.
        name: String,
        /// How many the batch's sizes ask for.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// An input's elements are integers where floats are needed, or the other way round.
    #[error("the elements of input `{tensor}` are of the wrong kind (floats and integers mixed up)")]
    Kind {
        /// Its name.
        tensor: String,
    },
    /// More memory is needed than the options allow.
    #[error("`{what}` needs more memory than the limit of {limit} bytes")]
    TooLarge {
        /// The tensor, function or table.
        what: String,
        /// The limit.
        limit: usize,
    },
    /// The system gave less memory than the options allow.
    #[error("{bytes} bytes could not be allocated")]
    NoMemory {
        /// How much was asked for.
        bytes: usize,
    },
    /// An access outside a tensor's storage.
    #[error("{stage} stage: {} outside the storage of `{tensor}` at {index:?}", if *write { "write" } else { "read" })]
    OutOfBounds {
        /// Where it happened.
        stage: Stage,
        /// The tensor.
        tensor: String,
        /// The index (one flat offset in the storage stage).
        index: Vec<i64>,
        /// Whether it was a write.
        write: bool,
    },
    /// An undefined value (padding, an element never written, or an index outside 64 bits) decided something.
    #[error("{stage} stage: undefined value used as {usage} of `{name}` at {index:?}{}", origin_note(origin))]
    Undefined {
        /// Where it happened.
        stage: Stage,
        /// What it decided.
        usage: Use,
        /// The tensor or function concerned.
        name: String,
        /// The index, as far as known.
        index: Vec<i64>,
        /// What came to be undefined last, if it is known: an element that was read, or index arithmetic that left
        /// 64 bits.
        origin: Option<String>,
    },
    /// A prelude table does not hold what its definition says.
    #[error("table `{table}`: {what}")]
    Table {
        /// The table's tensor.
        table: String,
        /// What is wrong.
        what: String,
    },
    /// A grid that no GPU launches.
    #[error("storage stage: {found} blocks along {axis}, there are at most {most}")]
    Grid {
        /// The axis.
        axis: &'static str,
        /// How many iterations the loop has.
        found: i64,
        /// How many it may have.
        most: i64,
    },
    /// Two threads of a grid, or iterations of a parallel loop, access one element with no barrier between them, one of
    /// them writing.
    #[error("storage stage: race: {} element {at} of `{tensor}`, which {other} accesses at the same time", if *write { "write to" } else { "read of" })]
    Race {
        /// The tensor.
        tensor: String,
        /// The flat offset.
        at: i64,
        /// Whether the access that was found last writes.
        write: bool,
        /// Whose access it races with.
        other: &'static str,
    },
    /// An access to an element of shared memory to which a copy is on its way, which nobody has waited for.
    #[error("storage stage: {} element {at} of `{tensor}` before a copy to it has been waited for", if *write { "write to" } else { "read of" })]
    NotArrived {
        /// The tensor.
        tensor: String,
        /// The flat offset.
        at: i64,
        /// Whether the access writes.
        write: bool,
    },
    /// A tensor instruction reads an element of shared memory that a thread stored, which nothing makes it see.
    #[error(
        "storage stage: a tensor instruction reads element {at} of `{tensor}`, which no fence and barrier came after"
    )]
    NotFenced {
        /// The tensor.
        tensor: String,
        /// The flat offset.
        at: i64,
    },
    /// An access to what a tensor instruction is still using.
    #[error("storage stage: {} element {at} of `{tensor}` while a tensor instruction that uses it goes on", if *write { "write to" } else { "read of" })]
    InUse {
        /// The tensor.
        tensor: String,
        /// The flat offset.
        at: i64,
        /// Whether the access writes.
        write: bool,
    },
    /// A box is asked for, or waited for, where it must not be.
    #[error("storage stage: slot {slot} of `{tensor}` {fact}")]
    Slot {
        /// The tensor.
        tensor: String,
        /// The slot.
        slot: i64,
        /// What is wrong.
        fact: &'static str,
    },
    /// A construct that has no meaning at this stage.
    #[error("{stage} stage: {what}")]
    Unsupported {
        /// Where it was met.
        stage: Stage,
        /// What it is.
        what: String,
    },
}
