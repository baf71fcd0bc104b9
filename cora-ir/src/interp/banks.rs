//! Bank conflicts in shared memory, predicted.
//!
//! Shared memory has 32 banks of 4 bytes. What the lanes of a warp access in one instruction takes as many passes as the
//! bank with most different words; lanes that read one word share it. Accesses of 8 bytes a lane go by half warps, those
//! of 16 bytes by quarters. An instruction is a load or a store of the storage dialect in one iteration of all serial
//! loops; vectors at addresses that are no multiples of their size go element by element.

use crate::ids::TensorId;
use rustc_hash::FxHashMap;

const BANKS: i64 = 32;
const WORD: i64 = 4;
const WARP: u32 = 32;

/// How a kernel uses shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SharedTraffic {
    /// The kernel's name.
    pub kernel: String,
    /// Passes over shared memory if there were no bank conflicts.
    pub accesses: u64,
    /// Passes with them.
    pub passes: u64,
}

impl SharedTraffic {
    /// Passes for each one that is needed: 1 without conflicts, 32 at worst.
    pub fn ratio(&self) -> f64 {
        if self.accesses == 0 { 1.0 } else { self.passes as f64 / self.accesses as f64 }
    }
}

/// An instruction of a warp: what is accessed where in the program, and the iteration of the loops around.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Site {
    pub tensor: TensorId,
    /// The instruction.
    pub at: usize,
    /// The iteration of all serial loops around.
    pub iteration: u64,
    pub write: bool,
}

/// What one lane accesses: bytes from an offset on.
type Lane = (u32, i64, i64);

/// The accesses of the warps of a block that run now.
#[derive(Debug, Default)]
pub(crate) struct Banks {
    open: FxHashMap<(u32, Site), Vec<Lane>>,
    accesses: u64,
    passes: u64,
}

impl Banks {
    /// Thread `thread` of a block accesses elements of `size` bytes, one after the other where they are a vector.
    pub fn access(&mut self, thread: u32, site: Site, elements: &[i64], size: i64) {
        let lanes = self.open.entry((thread / WARP, site)).or_default();
        let neighbours = elements.windows(2).all(|w| w[1] == w[0] + 1);
        let most = (16 / size).max(1) as usize;
        let n = most.min(elements.len()).max(1);
        let aligned = elements.first().is_some_and(|&first| first % n as i64 == 0);
        let whole = neighbours && aligned && n.is_power_of_two() && elements.len().is_multiple_of(n);
        let n = if whole { n } else { 1 };
        lanes.extend(elements.chunks(n).map(|c| (thread % WARP, c[0] * size, n as i64 * size)));
    }

    /// All threads have come to the end of what they do between two meetings.
    pub fn close(&mut self) {
        for (_, lanes) in self.open.drain() {
            let (accesses, passes) = passes(lanes);
            self.accesses += accesses;
            self.passes += passes;
        }
    }

    /// What was used so far; forgets it.
    pub fn take(&mut self) -> (u64, u64) {
        self.close();
        (std::mem::take(&mut self.accesses), std::mem::take(&mut self.passes))
    }
}

/// Passes without conflicts, and with them.
fn passes(lanes: Vec<Lane>) -> (u64, u64) {
    // A lane's n-th access goes with the n-th of the others.
    let mut rounds: Vec<Vec<Lane>> = Vec::new();
    let mut seen = [0usize; WARP as usize];
    for l in lanes {
        let n = &mut seen[l.0 as usize];
        if rounds.len() == *n {
            rounds.push(Vec::new());
        }
        rounds[*n].push(l);
        *n += 1;
    }
    let (mut accesses, mut all) = (0, 0);
    for round in rounds {
        let bytes = round.iter().map(|l| l.2).max().unwrap_or(WORD);
        let group = (WARP as i64 * WORD / bytes.max(WORD)).max(1) as u32;
        for first in (0..WARP).step_by(group as usize) {
            let mut words: Vec<i64> = round
                .iter()
                .filter(|l| (first..first + group).contains(&l.0))
                .flat_map(|l| l.1 / WORD..=(l.1 + l.2 - 1) / WORD)
                .collect();
            words.sort_unstable();
            words.dedup();
            let mut banks = [0u64; BANKS as usize];
            words.iter().for_each(|w| banks[w.rem_euclid(BANKS) as usize] += 1);
            let most = banks.into_iter().max().unwrap_or(0);
            accesses += u64::from(most > 0);
            all += most;
        }
    }
    (accesses, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::EntityId;

    /// The traffic of one instruction whose lane `l` accesses `n` elements of 4 bytes from `at(l)` on.
    fn one(at: impl Fn(i64) -> i64, n: i64) -> (u64, u64) {
        let mut b = Banks::default();
        let site = Site { tensor: TensorId::from_index(0), at: 0, iteration: 0, write: false };
        for l in 0..32 {
            let elements: Vec<i64> = (at(l)..at(l) + n).collect();
            b.access(l as u32, site, &elements, 4);
        }
        b.take()
    }

    #[test]
    fn words_of_one_bank_go_one_by_one() {
        assert_eq!(one(|l| l, 1), (1, 1));
        assert_eq!(one(|_| 7, 1), (1, 1), "one word for all");
        assert_eq!(one(|l| 2 * l, 1), (1, 2));
        assert_eq!(one(|l| 32 * l, 1), (1, 32));
        assert_eq!(one(|l| 33 * l, 1), (1, 1));
    }

    #[test]
    fn vectors_go_by_parts_of_a_warp() {
        assert_eq!(one(|l| 4 * l, 4), (4, 4));
        assert_eq!(one(|l| 8 * l, 4), (4, 8));
        assert_eq!(one(|l| 2 * l, 2), (2, 2));
        assert_eq!(one(|l| 3 * l, 3), (3, 3), "element by element");
    }
}
