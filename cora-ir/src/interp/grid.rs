//! Grids: threads of a block, barriers, and the accesses between two barriers.
//!
//! Threads run one after the other. That gives the result of every order if no two threads access
//! one element between two barriers, one of them writing: such a pair is a race and an error, and so
//! is one of two blocks in the same kernel. Barriers stand outside thread loops, so that the state of
//! a thread at a barrier is its registers alone, which have an instance for each thread.
//!
//! A copy into shared memory arrives some time before its group has been waited for: its own thread may read the element
//! from then on, other threads after the next barrier.
//!
//! A box that the copy engine brings is there for every thread that has waited for its slot; until then nobody accesses its
//! elements, and the slot takes no other box. What threads accessed before, a barrier must separate from it; and one must
//! follow the wait before the slot takes another box: a thread that is late would wait for a phase that is long over.
//!
//! A tensor instruction that goes on beside its threads reads shared memory from when it begins until it has been waited
//! for: nobody writes there, and nobody uses its result. It sees what threads stored or copied before a fence and a
//! barrier.
//!
//! Iterations of a parallel loop are held to the same as blocks: nothing orders them.

use crate::ids::{EntityId, TensorId};
use crate::interp::banks::{Banks, SharedTraffic, Site};
use crate::interp::error::InterpError;
use crate::loops::Axis;
use rustc_hash::FxHashMap;

/// Who accesses: block, thread, and the number of barriers passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Who {
    block: u32,
    thread: u32,
    epoch: u32,
}

/// No single block or thread.
const MANY: u32 = u32::MAX;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Read,
    Write,
    /// A write that arrives later.
    Copy,
    /// A combination that nothing comes between, which is no race with another one.
    Atomic,
}

/// Copies of the block that runs.
#[derive(Debug, Default)]
struct Copies {
    /// The thread that copied an element, and the group.
    elements: FxHashMap<(u32, i64), (u32, u32)>,
    /// The group that copies join now.
    group: u32,
    /// Groups before this one have been waited for,
    arrived: u32,
    /// and those before this one are seen by all threads.
    seen: u32,
}

impl Copies {
    /// Whether an access now may come before a copy of the element arrives.
    fn on_its_way(&self, element: (u32, i64), thread: u32) -> bool {
        let late = |&(own, group): &(u32, u32)| group >= if own == thread { self.arrived } else { self.seen };
        self.elements.get(&element).is_some_and(late)
    }
}

/// What orders the accesses of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    /// All threads of a block meet.
    Barrier,
    /// Copies become a group.
    Commit,
    /// All groups of copies but so many have arrived.
    Wait(u32),
    /// A tile that goes on beside its threads begins to be computed.
    BeginTile,
    /// The interpreter has computed it; for the program it goes on.
    EndTile,
    /// What of [`crate::storage::Beside`].
    Fence,
    CommitTiles,
    WaitTiles(u32),
}

/// What happens to a slot that boxes fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotSync {
    /// A box of so many elements is asked for: the next ones that are stored there, from a multiple of `begin` on, in one
    /// of `slots` slots.
    Ask { elems: i64, begin: i64, slots: i64 },
    /// Each thread waits for the box.
    Await,
}

/// The boxes of one slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// How many were asked for,
    asked: u32,
    /// and how many of them are there.
    there: u32,
    /// Barriers before the last wait, if there was one.
    awaited: Option<u32>,
}

/// Boxes that the copy engine brings into the shared memory of the block that runs.
#[derive(Debug, Default)]
struct Boxes {
    slots: FxHashMap<(u32, i64), Slot>,
    /// The slot of an element, and the number of the box there that it is of.
    elements: FxHashMap<(u32, i64), (i64, u32)>,
    /// The slot that is being filled, and how many elements are missing.
    open: Option<((u32, i64), i64)>,
    /// The first of them lies at a multiple of so many.
    begin: Option<i64>,
}

impl Boxes {
    /// Whether the element is of a box that nobody has waited for.
    fn on_its_way(&self, element: (u32, i64)) -> bool {
        let late = |&(slot, number): &(i64, u32)| self.slots.get(&(element.0, slot)).is_some_and(|s| number > s.there);
        self.elements.get(&element).is_some_and(late)
    }

    /// Whether a store of this element is the engine's; it is one less to come.
    fn brings(&mut self, element: (u32, i64)) -> bool {
        let Some(((tensor, slot), left)) = &mut self.open else { return false };
        if *tensor != element.0 {
            return false;
        }
        let number = self.slots.get(&(*tensor, *slot)).map_or(0, |s| s.asked);
        self.elements.insert(element, (*slot, number));
        *left -= 1;
        if *left == 0 {
            self.open = None;
        }
        true
    }
}

/// Of the lanes that execute tiles together, the groups of tiles that they began and those that are done.
#[derive(Clone, Copy, Debug, Default)]
struct Groups {
    begun: u32,
    done: u32,
}

/// An element that a tile reads: the lanes that execute it, the group, the element, the thread that reads it here.
#[derive(Clone, Copy, Debug)]
struct Reading {
    lanes: u32,
    group: u32,
    element: (u32, i64),
    thread: u32,
}

/// Tiles of the block that runs which go on beside their threads.
#[derive(Debug, Default)]
struct Tiles {
    /// Whether one is being computed.
    now: bool,
    /// By the number of the first of the lanes.
    groups: FxHashMap<u32, Groups>,
    /// The elements of results that are not done.
    results: FxHashMap<(u32, i64), (u32, u32)>,
    /// The elements of shared memory that are read.
    reads: Vec<Reading>,
    /// How many readers an element has.
    readers: FxHashMap<(u32, i64), u32>,
    /// Fences so far,
    fences: u32,
    /// and those that came before the last barrier.
    seen: u32,
    /// How many fences there were when an element was stored,
    stored: FxHashMap<(u32, i64), u32>,
    /// and when a group of copies had arrived.
    arrived: Vec<u32>,
}

/// The last accesses to one element in this kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Element {
    write: Option<Who>,
    read: Option<Who>,
    atomic: Option<Who>,
}

/// The accesses of one kernel so far.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    elements: FxHashMap<(u32, i64), Element>,
    /// Tensors that threads share, each with whether blocks share it too.
    shared: Vec<Option<bool>>,
    /// What one block is called.
    other: &'static str,
    now: Who,
    coordinates: [u32; 3],
    /// Threads along x and along y of the kernel's blocks.
    threads: [u32; 2],
    /// Thread loops around.
    inside: u32,
    banks: Banks,
    copies: Copies,
    boxes: Boxes,
    tiles: Tiles,
    /// What the kernels before used.
    traffic: Vec<SharedTraffic>,
}

impl Shadow {
    /// `shared[t]`: whether the threads (`Some(false)`) or the blocks as well (`Some(true)`) share
    /// tensor `t`; `other` is what shares with a block, in words.
    pub fn new(shared: Vec<Option<bool>>, other: &'static str) -> Self {
        Self { shared, other, ..Self::default() }
    }

    /// A kernel begins, with so many threads along x and y in a block: what came before has happened.
    pub fn kernel(&mut self, threads: [u32; 2]) {
        self.threads = threads;
        self.elements.clear();
        self.now = Who { block: 0, thread: 0, epoch: self.now.epoch + 1 };
        self.coordinates = [0; 3];
        self.boxes = Boxes::default();
        self.tiles = Tiles::default();
    }

    /// A kernel has ended.
    pub fn end(&mut self, kernel: String) {
        let (accesses, passes) = self.banks.take();
        self.traffic.push(SharedTraffic { kernel, accesses, passes });
    }

    /// What the kernels used of shared memory.
    pub fn traffic(self) -> Vec<SharedTraffic> {
        self.traffic
    }

    /// A loop that is bound to `axis` begins.
    pub fn begin(&mut self, axis: Axis) {
        self.inside += u32::from(axis.is_thread());
    }

    /// Iteration `i` of a loop that is bound to `axis` begins.
    pub fn enter(&mut self, axis: Axis, i: i64) {
        if axis.is_thread() {
            self.coordinates[axis.dimension()] = i as u32;
            let [x, y, z] = self.coordinates;
            self.now.thread = x + 1024 * (y + 1024 * z);
        } else {
            self.now.block += 1;
            self.now.epoch += 1;
            self.copies = Copies::default();
            self.boxes = Boxes::default();
            self.tiles = Tiles::default();
        }
    }

    /// A loop that is bound to `axis` has ended.
    pub fn leave(&mut self, axis: Axis) {
        if axis.is_thread() {
            self.enter(axis, 0);
            self.inside -= 1;
            if self.inside == 0 {
                self.banks.close();
            }
        }
    }

    /// Threads are ordered.
    pub fn sync(&mut self, how: Sync) {
        match how {
            Sync::Barrier => {
                self.now.epoch += 1;
                self.copies.seen = self.copies.arrived;
                self.tiles.seen = self.tiles.fences;
            }
            Sync::Commit => self.copies.group += 1,
            Sync::Wait(pending) => {
                let arrived = self.copies.group.saturating_sub(pending);
                self.copies.arrived = self.copies.arrived.max(arrived);
                let fences = self.tiles.fences;
                let groups = (self.copies.arrived as usize).max(self.tiles.arrived.len());
                self.tiles.arrived.resize(groups, fences);
            }
            Sync::BeginTile => self.tiles.now = true,
            Sync::EndTile => self.tiles.now = false,
            Sync::Fence => self.tiles.fences += 1,
            Sync::CommitTiles => self.tiles.groups.entry(self.now.thread).or_default().begun += 1,
            Sync::WaitTiles(pending) => self.wait_tiles(pending),
        }
    }

    /// A slot of a tensor is to be filled, or to be there.
    ///
    /// # Errors
    /// [`InterpError::Slot`] where the slot cannot take a box, or none comes that could be waited for.
    pub fn slot(
        &mut self,
        (tensor, slot): (TensorId, i64),
        how: SlotSync,
        name: impl Fn() -> String,
    ) -> Result<(), InterpError> {
        let key = (tensor.index() as u32, slot);
        let wrong = |fact: &'static str| Err(InterpError::Slot { tensor: name(), slot, fact });
        if self.boxes.open.is_some() {
            return wrong("comes after a box of which elements are missing");
        }
        let s = self.boxes.slots.entry(key).or_default();
        match how {
            SlotSync::Ask { .. } if s.asked > s.there => wrong("is to take a box before the last one was waited for"),
            SlotSync::Ask { .. } if s.awaited == Some(self.now.epoch) => {
                wrong("is to take a box before a barrier has followed the wait for the last one")
            }
            SlotSync::Ask { slots, .. } if !(0..slots).contains(&slot) => {
                wrong("is to take a box, and there is no such slot")
            }
            SlotSync::Ask { elems, begin, .. } => {
                s.asked += 1;
                self.boxes.open = Some((key, elems)).filter(|_| elems > 0);
                self.boxes.begin = Some(begin);
                Ok(())
            }
            SlotSync::Await if s.asked == s.there => wrong("is waited for, and no box comes"),
            SlotSync::Await => {
                s.there = s.asked;
                s.awaited = Some(self.now.epoch);
                Ok(())
            }
        }
    }

    /// All groups of tiles of these lanes but the last `pending` are done.
    fn wait_tiles(&mut self, pending: u32) {
        let lanes = self.now.thread;
        let groups = self.tiles.groups.entry(lanes).or_default();
        groups.done = groups.done.max(groups.begun.saturating_sub(pending));
        let done = groups.done;
        self.tiles.results.retain(|_, &mut (own, group)| own != lanes || group >= done);
        let (over, on): (Vec<Reading>, Vec<Reading>) =
            std::mem::take(&mut self.tiles.reads).into_iter().partition(|r| r.lanes == lanes && r.group < done);
        self.tiles.reads = on;
        for r in over {
            if let Some(n) = self.tiles.readers.get_mut(&r.element) {
                *n -= 1;
            }
            // It may have been read as late as now. What wrote it meanwhile was found there.
            self.now.thread = r.thread;
            let _ = self.access(TensorId::from_index(r.element.0 as usize), r.element.1, How::Read);
        }
        self.now.thread = lanes;
    }

    /// An access while tiles go on, or of one of them.
    fn beside(&mut self, tensor: TensorId, at: i64, how: How, name: &dyn Fn() -> String) -> Result<(), InterpError> {
        let element = (tensor.index() as u32, at);
        let shared = self.shared.get(tensor.index()) == Some(&Some(false));
        let write = how != How::Read;
        let t = &mut self.tiles;
        if !t.now {
            let used = t.results.contains_key(&element) || (write && t.readers.get(&element).is_some_and(|&n| n > 0));
            if shared && write {
                t.stored.insert(element, t.fences);
            }
            return if used { Err(InterpError::InUse { tensor: name(), at, write }) } else { Ok(()) };
        }
        // The first of the lanes, all of which are threads along x.
        let lanes = self.now.thread - self.coordinates[0];
        let group = t.groups.entry(lanes).or_default().begun;
        if !shared {
            if write {
                t.results.insert(element, (lanes, group));
            }
            return Ok(());
        }
        let copied = self.copies.elements.get(&element).and_then(|c| t.arrived.get(c.1 as usize).copied());
        let fences = copied.max(t.stored.get(&element).copied());
        if fences.is_some_and(|n| n >= t.seen) {
            return Err(InterpError::NotFenced { tensor: name(), at });
        }
        t.reads.push(Reading { lanes, group, element, thread: self.now.thread });
        *t.readers.entry(element).or_default() += 1;
        Ok(())
    }

    /// Records an access; gives the other thread's or block's that it races with.
    fn access(&mut self, tensor: TensorId, at: i64, how: How) -> Option<&'static str> {
        let across_blocks = (*self.shared.get(tensor.index())?)?;
        let now = self.now;
        let e = self.elements.entry((tensor.index() as u32, at)).or_default();
        let conflict = |other: Option<Who>| match other {
            Some(o) if o.block != now.block => across_blocks.then_some(self.other),
            Some(o) if o.epoch == now.epoch && o.thread != now.thread => Some("another thread of the block"),
            _ => None,
        };
        let (write, read, atomic) = (conflict(e.write), conflict(e.read), conflict(e.atomic));
        let several = |before: Option<Who>| match before {
            Some(r) if across_blocks && r.block != now.block => Who { block: MANY, thread: MANY, ..now },
            Some(r) if r.block == now.block && r.epoch == now.epoch && r.thread != now.thread => {
                Who { thread: MANY, ..now }
            }
            _ => now,
        };
        match how {
            How::Write | How::Copy => {
                e.write = Some(now);
                write.or(read).or(atomic)
            }
            How::Read => {
                e.read = Some(several(e.read));
                write.or(atomic)
            }
            How::Atomic => {
                e.atomic = Some(several(e.atomic));
                write.or(read)
            }
        }
    }

    /// Records what an instruction accesses of a buffer that the threads of a block share, elements of `size` bytes.
    pub fn banks(&mut self, site: Site, elements: &[i64], size: i64) {
        // A tile that reads by itself reads whole blocks, each of which covers all banks once.
        // The copy engine writes whole lines.
        let of_engine = |t: TensorId| site.write && self.boxes.slots.keys().any(|k| k.0 == t.index() as u32);
        if self.shared.get(site.tensor.index()) == Some(&Some(false)) && !self.tiles.now && !of_engine(site.tensor) {
            let [x, y, z] = self.coordinates;
            let thread = x + self.threads[0] * (y + self.threads[1] * z);
            self.banks.access(thread, site, elements, size);
        }
    }

    /// Records an access to element `at` of `tensor`.
    ///
    /// # Errors
    /// [`InterpError::NotArrived`], [`InterpError::InUse`], [`InterpError::NotFenced`], [`InterpError::Slot`] or
    /// [`InterpError::Race`].
    pub fn check(&mut self, tensor: TensorId, at: i64, how: How, name: impl Fn() -> String) -> Result<(), InterpError> {
        let (element, write) = ((tensor.index() as u32, at), how != How::Read);
        if self.copies.on_its_way(element, self.now.thread) || self.boxes.on_its_way(element) {
            return Err(InterpError::NotArrived { tensor: name(), at, write });
        }
        self.beside(tensor, at, how, &name)?;
        let engine = how == How::Write && self.boxes.brings(element);
        if engine && self.boxes.begin.take().is_some_and(|n| at % n != 0) {
            let slot = self.boxes.elements.get(&element).map_or(0, |e| e.0);
            return Err(InterpError::Slot { tensor: name(), slot, fact: "takes a box that begins where none can" });
        }
        if how == How::Copy {
            self.copies.elements.insert(element, (self.now.thread, self.copies.group));
        }
        let race = self.access(tensor, at, how);
        if engine {
            // Waiting for the slot orders it before what comes later, and what it brings needs no fence.
            self.elements.entry(element).or_default().write = None;
            self.tiles.stored.remove(&element);
            self.copies.elements.remove(&element);
        } else if write {
            self.boxes.elements.remove(&element);
        }
        match race {
            None => Ok(()),
            Some(other) => Err(InterpError::Race { tensor: name(), at, write, other }),
        }
    }
}
