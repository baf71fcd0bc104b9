//! The device: its context, memory, and all handles.

use super::capture::Graph;
use super::code::Code;
use super::log::Log;
use super::module::{Function, Module};
use super::settings::Settings;
use super::stream::{Event, Stream};
use crate::memory::Memory;
use rustc_hash::FxHashMap;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::thread::ThreadId;

/// Handles begin here and go up by 16: none is an address of anything.
const FIRST_HANDLE: u64 = 0x1000;
/// Page-locked memory begins at pages.
const PAGE: usize = 4096;

/// All that is behind the entry points.
pub(super) struct State {
    pub settings: Settings,
    pub log: Log,
    started: bool,
    /// The device's context: its handle, and how often it is retained.
    context: Option<(u64, u32)>,
    /// The context that is current on each thread.
    current: FxHashMap<ThreadId, u64>,
    /// What a kernel's fault made of the context: the answer of all calls from then on.
    pub broken: Option<Code>,
    next: u64,
    pub memory: Memory,
    /// Page-locked memory by its first address, with its size. Freed in `free_host` and when the context goes.
    pinned: BTreeMap<usize, usize>,
    pub streams: BTreeMap<u64, Stream>,
    pub events: FxHashMap<u64, Event>,
    pub modules: FxHashMap<u64, Module>,
    pub functions: FxHashMap<u64, Function>,
    pub graphs: FxHashMap<u64, Graph>,
    pub launchable: FxHashMap<u64, Graph>,
}

impl State {
    pub(super) fn new(settings: Settings, log: Log) -> State {
        State {
            settings,
            log,
            started: false,
            context: None,
            current: FxHashMap::default(),
            broken: None,
            next: FIRST_HANDLE,
            memory: Memory::default(),
            pinned: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: FxHashMap::default(),
            modules: FxHashMap::default(),
            functions: FxHashMap::default(),
            graphs: FxHashMap::default(),
            launchable: FxHashMap::default(),
        }
    }

    pub(super) fn init(&mut self) -> Result<(), Code> {
        if self.settings.init != 0 {
            return Err(Code(self.settings.init));
        }
        self.started = true;
        Ok(())
    }

    /// Whether the driver has started.
    pub(super) fn started(&self) -> Result<(), Code> {
        if self.started { Ok(()) } else { Err(Code::NOT_INITIALIZED) }
    }

    /// Whether this thread has a context in which nothing has failed.
    pub(super) fn ready(&self) -> Result<(), Code> {
        self.started()?;
        let current = self.current.get(&std::thread::current().id());
        match self.context {
            Some((context, _)) if current == Some(&context) => self.broken.map_or(Ok(()), Err),
            _ => Err(Code::INVALID_CONTEXT),
        }
    }

    /// A number for something new.
    pub(super) fn handle(&mut self) -> u64 {
        self.next += 16;
        self.next
    }

    pub(super) fn device(&self, ordinal: i32) -> Result<i32, Code> {
        self.started()?;
        if (0..self.settings.devices).contains(&ordinal) { Ok(ordinal) } else { Err(Code::INVALID_DEVICE) }
    }

    pub(super) fn retain(&mut self, device: i32) -> Result<u64, Code> {
        self.device(device)?;
        let (context, count) = match self.context {
            Some(c) => c,
            None => (self.handle(), 0),
        };
        self.context = Some((context, count + 1));
        Ok(context)
    }

    /// The last release destroys the context and all in it.
    pub(super) fn release(&mut self, device: i32) -> Result<(), Code> {
        self.device(device)?;
        let (context, count) = self.context.ok_or(Code::INVALID_CONTEXT)?;
        if count > 1 {
            self.context = Some((context, count - 1));
            return Ok(());
        }
        let drained = self.drain_all();
        self.context = None;
        self.current.retain(|_, c| *c != context);
        let (left, pinned) = (self.memory.used(), self.pinned.len());
        if self.broken.is_none() && (left > 0 || pinned > 0) {
            self.log.line(&format!("leak {left} and {pinned} pinned"));
        }
        while let Some((&at, _)) = self.pinned.first_key_value() {
            self.free_pinned(at);
        }
        self.memory = Memory::default();
        self.streams.clear();
        self.events.clear();
        self.modules.clear();
        self.functions.clear();
        self.graphs.clear();
        self.launchable.clear();
        self.broken = None;
        drained
    }

    /// Makes a context current on this thread; 0 for none.
    pub(super) fn set_current(&mut self, context: u64) -> Result<(), Code> {
        self.started()?;
        let thread = std::thread::current().id();
        if context == 0 {
            self.current.remove(&thread);
            return Ok(());
        }
        if self.context.is_none_or(|c| c.0 != context) {
            return Err(Code::INVALID_CONTEXT);
        }
        self.current.insert(thread, context);
        Ok(())
    }

    pub(super) fn alloc(&mut self, bytes: u64) -> Result<u64, Code> {
        self.unsafe_in_capture()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let fits = self.memory.used().checked_add(bytes).is_some_and(|n| n <= self.settings.memory);
        let address = if fits { self.memory.allocate(bytes) } else { None };
        let address = address.ok_or(Code::OUT_OF_MEMORY)?;
        self.log.line(&format!("alloc {bytes}"));
        Ok(address)
    }

    /// Waits for all work, then frees.
    pub(super) fn free(&mut self, address: u64) -> Result<(), Code> {
        self.unsafe_in_capture()?;
        if address == 0 {
            return Ok(());
        }
        self.drain_all()?;
        let before = self.memory.used();
        if !self.memory.free(address) {
            return Err(Code::INVALID_VALUE);
        }
        self.log.line(&format!("free {}", before - self.memory.used()));
        Ok(())
    }

    pub(super) fn alloc_host(&mut self, bytes: usize) -> Result<usize, Code> {
        self.unsafe_in_capture()?;
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Code::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the layout is not of size zero.
        let at = unsafe { std::alloc::alloc(layout) };
        if at.is_null() {
            return Err(Code::OUT_OF_MEMORY);
        }
        // What it holds at first is not zeros, as little as on a device.
        // SAFETY: it was allocated with as many bytes just now.
        unsafe { at.write_bytes(0xFF, bytes) };
        let at = at.expose_provenance();
        self.pinned.insert(at, bytes);
        self.log.line(&format!("host_alloc {bytes}"));
        Ok(at)
    }

    /// Waits for all work, then frees page-locked memory.
    pub(super) fn free_host(&mut self, at: usize) -> Result<(), Code> {
        self.unsafe_in_capture()?;
        if !self.pinned.contains_key(&at) {
            return Err(Code::INVALID_VALUE);
        }
        self.drain_all()?;
        self.free_pinned(at);
        self.log.line("host_free");
        Ok(())
    }

    fn free_pinned(&mut self, at: usize) {
        let Some(bytes) = self.pinned.remove(&at) else { return };
        if let Ok(layout) = Layout::from_size_align(bytes, PAGE) {
            // SAFETY: it was in the table, so it was allocated with this layout, and is freed once.
            unsafe { std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(at), layout) };
        }
    }

    /// Whether these bytes are page-locked: an error if they only begin so.
    pub(super) fn is_pinned(&self, at: usize, bytes: usize) -> Result<bool, Code> {
        match self.pinned.range(..=at).next_back() {
            Some((&first, &size)) if at - first < size => {
                if bytes <= size - (at - first) {
                    Ok(true)
                } else {
                    Err(Code::INVALID_VALUE)
                }
            }
            _ => Ok(false),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        while let Some((&at, _)) = self.pinned.first_key_value() {
            self.free_pinned(at);
        }
    }
}
