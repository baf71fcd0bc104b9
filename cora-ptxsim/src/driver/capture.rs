//! Captures of streams, and graphs of what was captured.

use super::code::Code;
use super::state::State;
use super::stream::Work;
use std::thread::ThreadId;

/// The work of a graph, in the order of the stream that it was captured from.
#[derive(Clone, Default)]
pub(super) struct Graph {
    work: Vec<Work>,
}

/// Which calls of which threads end a capture that is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Those of all threads.
    Global,
    /// Those of the thread that began it.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Mode {
    pub(super) fn new(mode: u32) -> Result<Mode, Code> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].get(mode as usize).copied().ok_or(Code::INVALID_VALUE)
    }
}

/// A capture that is under way.
pub(super) struct Capture {
    graph: Graph,
    mode: Mode,
    thread: ThreadId,
    /// Whether something was done that cannot be captured.
    broken: bool,
}

impl Capture {
    pub(super) fn put(&mut self, work: Work) -> Result<(), Code> {
        if self.broken {
            return Err(Code::CAPTURE_INVALIDATED);
        }
        self.graph.work.push(work);
        Ok(())
    }
}

impl State {
    pub(super) fn begin_capture(&mut self, stream: u64, mode: Mode) -> Result<(), Code> {
        let stream = self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        if stream.capture.is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let thread = std::thread::current().id();
        stream.capture = Some(Capture { graph: Graph::default(), mode, thread, broken: false });
        self.log.line("begin_capture");
        Ok(())
    }

    /// The graph of a capture, which is over whatever comes of it.
    pub(super) fn end_capture(&mut self, stream: u64) -> Result<u64, Code> {
        let stream = self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        let thread = std::thread::current().id();
        let wrong = |c: &Capture| c.mode != Mode::Relaxed && c.thread != thread;
        if stream.capture.as_ref().is_some_and(wrong) {
            return Err(Code::CAPTURE_WRONG_THREAD);
        }
        let capture = stream.capture.take().ok_or(Code::ILLEGAL_STATE)?;
        if capture.broken {
            return Err(Code::CAPTURE_INVALIDATED);
        }
        let handle = self.handle();
        self.log.line(&format!("end_capture {}", capture.graph.work.len()));
        self.graphs.insert(handle, capture.graph);
        Ok(handle)
    }

    /// Ends the capture of a stream where a call was made that cannot be captured.
    pub(super) fn refuse_in_capture(&mut self, stream: u64) -> Result<(), Code> {
        match &mut self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?.capture {
            Some(capture) => {
                capture.broken = true;
                Err(Code::CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Ends all captures that do not allow a call that may wait for the device.
    pub(super) fn unsafe_in_capture(&mut self) -> Result<(), Code> {
        let thread = std::thread::current().id();
        let mut ended = false;
        for capture in self.streams.values_mut().filter_map(|s| s.capture.as_mut()) {
            let ours = match capture.mode {
                Mode::Global => true,
                Mode::ThreadLocal => capture.thread == thread,
                Mode::Relaxed => false,
            };
            capture.broken |= ours;
            ended |= ours;
        }
        if ended { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    pub(super) fn instantiate(&mut self, graph: u64) -> Result<u64, Code> {
        let graph = self.graphs.get(&graph).ok_or(Code::INVALID_HANDLE)?.clone();
        let handle = self.handle();
        self.launchable.insert(handle, graph);
        Ok(handle)
    }

    pub(super) fn destroy_graph(&mut self, graph: u64) -> Result<(), Code> {
        self.graphs.remove(&graph).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    pub(super) fn destroy_launchable(&mut self, graph: u64) -> Result<(), Code> {
        self.launchable.remove(&graph).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    pub(super) fn launch_graph(&mut self, graph: u64, stream: u64) -> Result<(), Code> {
        let graph = self.launchable.get(&graph).ok_or(Code::INVALID_HANDLE)?.clone();
        self.refuse_in_capture(stream)?;
        self.log.line("graph_launch");
        graph.work.into_iter().try_for_each(|w| self.put(stream, w))
    }
}
