//! Streams: work in order, done when something waits for it; and events, which are points of streams.

use super::capture::Capture;
use super::code::Code;
use super::module::Launch;
use super::state::State;
use std::collections::VecDeque;
use std::time::Instant;

/// Work of a stream.
#[derive(Clone)]
pub(super) enum Work {
    /// To the device, from page-locked memory, which is read when the work is done.
    Send {
        to: u64,
        from: usize,
        bytes: usize,
    },
    /// To the device, from memory that was read at the call.
    Write {
        to: u64,
        data: Vec<u8>,
    },
    /// From the device to page-locked memory.
    Fetch {
        to: usize,
        from: u64,
        bytes: usize,
    },
    /// On the device.
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Fill {
        to: u64,
        bytes: u64,
        value: u8,
    },
    Launch(Launch),
    /// The time of an event's recording of this number.
    Record {
        event: u64,
        number: u64,
    },
}

/// Work that waits.
#[derive(Default)]
pub(super) struct Stream {
    pub queue: VecDeque<Work>,
    pub capture: Option<Capture>,
}

/// A point of a stream: the number of its last recording, and when that was passed.
#[derive(Default)]
pub(super) struct Event {
    timed: bool,
    recorded: Option<u64>,
    passed: Option<Instant>,
}

impl State {
    pub(super) fn create_stream(&mut self) -> u64 {
        let handle = self.handle();
        self.streams.insert(handle, Stream::default());
        handle
    }

    pub(super) fn destroy_stream(&mut self, stream: u64) -> Result<(), Code> {
        self.drain(stream)?;
        self.streams.remove(&stream).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// Puts work on a stream, or in the graph that it is captured for.
    pub(super) fn put(&mut self, stream: u64, work: Work) -> Result<(), Code> {
        let stream = self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        match &mut stream.capture {
            Some(capture) => capture.put(work),
            None => {
                stream.queue.push_back(work);
                Ok(())
            }
        }
    }

    /// Does what waits on a stream.
    pub(super) fn drain(&mut self, stream: u64) -> Result<(), Code> {
        loop {
            let queue = &mut self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?.queue;
            let Some(work) = queue.pop_front() else { return Ok(()) };
            if let Err(code) = self.work(work) {
                self.broken = Some(code);
                self.streams.values_mut().for_each(|s| s.queue.clear());
                return Err(code);
            }
        }
    }

    pub(super) fn drain_all(&mut self) -> Result<(), Code> {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        streams.into_iter().try_for_each(|s| self.drain(s))
    }

    fn work(&mut self, work: Work) -> Result<(), Code> {
        // Memory was there at the call; of a graph it may be gone.
        let gone = |_| Code::ILLEGAL_ADDRESS;
        match work {
            Work::Send { to, from, bytes } => {
                if self.is_pinned(from, bytes) != Ok(true) {
                    return Err(Code::ILLEGAL_ADDRESS);
                }
                let target = self.memory.bytes_mut(to, bytes as u64).map_err(gone)?;
                // SAFETY: the source is inside of page-locked memory that is not freed yet; the target is as long.
                unsafe {
                    std::ptr::copy_nonoverlapping(std::ptr::with_exposed_provenance(from), target.as_mut_ptr(), bytes);
                }
            }
            Work::Write { to, data } => {
                self.memory.bytes_mut(to, data.len() as u64).map_err(gone)?.copy_from_slice(&data);
            }
            Work::Fetch { to, from, bytes } => {
                if self.is_pinned(to, bytes) != Ok(true) {
                    return Err(Code::ILLEGAL_ADDRESS);
                }
                let source = self.memory.bytes(from, bytes as u64).map_err(gone)?;
                // SAFETY: the target is inside of page-locked memory that is not freed yet; the source is as long.
                unsafe {
                    std::ptr::copy_nonoverlapping(source.as_ptr(), std::ptr::with_exposed_provenance_mut(to), bytes);
                }
            }
            Work::Copy { to, from, bytes } => {
                let data = self.memory.bytes(from, bytes).map_err(gone)?.to_vec();
                self.memory.bytes_mut(to, bytes).map_err(gone)?.copy_from_slice(&data);
            }
            Work::Fill { to, bytes, value } => self.memory.bytes_mut(to, bytes).map_err(gone)?.fill(value),
            Work::Launch(launch) => self.run(&launch)?,
            Work::Record { event, number } => {
                if let Some(e) = self.events.get_mut(&event).filter(|e| e.recorded == Some(number)) {
                    e.passed = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    pub(super) fn synchronize(&mut self, stream: u64) -> Result<(), Code> {
        self.refuse_in_capture(stream)?;
        self.log.line("synchronize");
        self.drain(stream)
    }

    /// Whether memory of the device is allocated.
    pub(super) fn inside(&self, address: u64, bytes: u64) -> Result<(), Code> {
        self.memory.bytes(address, bytes).map(drop).map_err(|_| Code::INVALID_VALUE)
    }

    /// Copies to the device.
    ///
    /// # Safety
    /// `from` points to `bytes` bytes that can be read.
    pub(super) unsafe fn send(&mut self, to: u64, from: usize, bytes: usize, stream: u64) -> Result<(), Code> {
        self.inside(to, bytes as u64)?;
        if self.is_pinned(from, bytes)? {
            self.log.line(&format!("htod pinned {bytes}"));
            return self.put(stream, Work::Send { to, from, bytes });
        }
        self.refuse_in_capture(stream)?;
        let mut data = vec![0; bytes];
        let source: *const u8 = std::ptr::with_exposed_provenance(from);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, data.as_mut_ptr(), bytes) };
        self.log.line(&format!("htod pageable {bytes}"));
        self.put(stream, Work::Write { to, data })
    }

    /// Copies from the device; to memory that is not page-locked at once, after the stream's work.
    ///
    /// # Safety
    /// `to` points to `bytes` bytes that can be written.
    pub(super) unsafe fn fetch(&mut self, to: usize, from: u64, bytes: usize, stream: u64) -> Result<(), Code> {
        self.inside(from, bytes as u64)?;
        if self.is_pinned(to, bytes)? {
            self.log.line(&format!("dtoh pinned {bytes}"));
            return self.put(stream, Work::Fetch { to, from, bytes });
        }
        self.refuse_in_capture(stream)?;
        self.log.line(&format!("dtoh pageable {bytes}"));
        self.drain(stream)?;
        let source = self.memory.bytes(from, bytes as u64).map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), std::ptr::with_exposed_provenance_mut(to), bytes) };
        Ok(())
    }

    pub(super) fn copy(&mut self, to: u64, from: u64, bytes: u64, stream: u64) -> Result<(), Code> {
        self.inside(to, bytes)?;
        self.inside(from, bytes)?;
        self.put(stream, Work::Copy { to, from, bytes })?;
        self.log.line(&format!("dtod {bytes}"));
        Ok(())
    }

    pub(super) fn fill(&mut self, to: u64, value: u8, bytes: u64, stream: u64) -> Result<(), Code> {
        self.inside(to, bytes)?;
        self.put(stream, Work::Fill { to, bytes, value })?;
        self.log.line(&format!("memset {bytes}"));
        Ok(())
    }

    pub(super) fn create_event(&mut self, timed: bool) -> u64 {
        let handle = self.handle();
        self.events.insert(handle, Event { timed, ..Event::default() });
        handle
    }

    pub(super) fn destroy_event(&mut self, event: u64) -> Result<(), Code> {
        self.events.remove(&event).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// Records an event. In a capture it is a point of the graph, which has no time.
    pub(super) fn record(&mut self, event: u64, stream: u64) -> Result<(), Code> {
        let number = self.handle();
        let captures = self.streams.get(&stream).ok_or(Code::INVALID_HANDLE)?.capture.is_some();
        let e = self.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
        (e.recorded, e.passed) = (None, None);
        if captures {
            return Ok(());
        }
        e.recorded = Some(number);
        self.put(stream, Work::Record { event, number })
    }

    /// Milliseconds between two events, which both have passed.
    pub(super) fn elapsed(&self, start: u64, end: u64) -> Result<f32, Code> {
        let passed = |event: u64| {
            let recorded = |e: &&Event| e.timed && e.recorded.is_some();
            let event = self.events.get(&event).filter(recorded).ok_or(Code::INVALID_HANDLE)?;
            event.passed.ok_or(Code::NOT_READY)
        };
        let (start, end) = (passed(start)?, passed(end)?);
        Ok((end.saturating_duration_since(start).as_secs_f64() * 1e3) as f32)
    }
}
