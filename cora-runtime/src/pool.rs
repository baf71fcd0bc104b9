//! A persistent pool of threads for fork-join loops.
//!
//! A job is published by one store; workers that are awake join it, and one that wakes late finds it closed, so a job
//! never waits for a sleeper. Iterations are claimed in chunks by one counter, and chunk borders depend on the trip
//! count and grain only: a loop whose chunks are independent gives the same bytes for any number of threads.

use crate::error::{Error, Result};
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The body of a loop: `(worker, lo, hi)`.
type Body<'a> = dyn Fn(usize, i64, i64) + Sync + 'a;

/// Most workers of a pool.
pub const MAX_THREADS: usize = 1024;

/// Turns of a waiting loop before the thread sleeps: some tens of microseconds.
const SPINS: u32 = 4000;

/// Bit of [`Shared::state`]: the job may be joined. The bits below count who is in it, those above are its number.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const JOB: u64 = 1 << 32;

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Job>,
    next: AtomicU64,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleep: Mutex<()>,
    /// Workers that sleep, or are about to.
    sleepers: AtomicUsize,
    wake: Condvar,
    /// Whether the caller sleeps, or is about to.
    caller_sleeps: AtomicBool,
    done: Condvar,
}

// SAFETY: `job` is written only by the holder of `Pool::running`, while the job is closed and nobody is inside, and
// read only by threads inside the job; `state` orders the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used under the same protocol, from whichever thread.
unsafe impl Send for Shared {}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    trip: i64,
    grain: i64,
    chunks: u64,
}

/// A persistent pool; the calling thread is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    running: Mutex<()>,
    threads: Vec<JoinHandle<()>>,
}

thread_local! {
    /// The pool that this thread is working for (0: none), and as which worker.
    static WORKING: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads` workers, at least one, the caller included.
    ///
    /// # Errors
    /// [`Error::ManyThreads`] more than [`MAX_THREADS`], [`Error::Threads`] the system's refusal.
    pub fn new(threads: usize) -> Result<Pool> {
        Pool::with_pinning(threads, false)
    }

    /// As [`Pool::new`]; with `pin`, worker `i` other than the caller stays on the `i`-th core (on Linux).
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_pinning(threads: usize, pin: bool) -> Result<Pool> {
        if threads > MAX_THREADS {
            return Err(Error::ManyThreads { want: threads, limit: MAX_THREADS });
        }
        let nothing: &'static Body<'static> = &|_, _, _| {};
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job { body: nothing, trip: 0, grain: 1, chunks: 0 }),
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleep: Mutex::new(()),
            sleepers: AtomicUsize::new(0),
            wake: Condvar::new(),
            caller_sleeps: AtomicBool::new(false),
            done: Condvar::new(),
        });
        // Dropping the pool stops the threads that did start.
        let mut pool = Pool { shared, running: Mutex::new(()), threads: Vec::new() };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("cora-{worker}"))
                .spawn(move || {
                    if pin {
                        pin_to(worker);
                    }
                    work(&shared, worker);
                })
                .map_err(Error::Threads)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `body(worker, lo, hi)` on ranges of at most `grain` iterations that together are `0..trip`, and returns
    /// when all are done. `worker` is below [`Pool::threads`], and no two calls at one time have the same.
    ///
    /// A call from inside a body of the same pool runs serially. A pool runs one caller's iterations at a time, others wait
    /// for their turn: a body must neither wait for another thread that calls the same pool, nor call it from inside another
    /// pool's body. A panic of `body` is passed on, after the others have finished their chunks.
    pub fn run(&self, trip: i64, grain: i64, body: &Body<'_>) {
        let grain = grain.max(1);
        if trip <= 0 {
            return;
        }
        let id = Arc::as_ptr(&self.shared) as usize;
        let (pool, worker) = WORKING.get();
        if pool == id {
            return run_serially(trip, grain, worker, body);
        }
        let running = lock(&self.running);
        if self.threads.is_empty() || trip <= grain {
            let outer = WORKING.replace((id, 0));
            let result = catch_unwind(AssertUnwindSafe(|| run_serially(trip, grain, 0, body)));
            WORKING.set(outer);
            drop(running);
            return result.unwrap_or_else(|payload| resume_unwind(payload));
        }
        let shared = &*self.shared;
        let chunks = (trip as u64).div_ceil(grain as u64);
        // SAFETY: only the lifetime changes. The pointer is used by threads inside the job only, and this call does
        // not return, or unwind, before the job is closed and everyone has left it.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let job = Job { body, trip, grain, chunks };
        shared.next.store(0, Relaxed);
        // SAFETY: the last job is closed and empty, and `running` keeps other callers out.
        unsafe { *shared.job.get() = job };
        let number = (shared.state.load(Relaxed) / JOB).wrapping_add(1) % JOB;
        shared.state.store((number * JOB) | OPEN, SeqCst);
        if shared.sleepers.load(SeqCst) > 0 {
            let _guard = lock(&shared.sleep);
            if chunks <= 2 { shared.wake.notify_one() } else { shared.wake.notify_all() }
        }
        let outer = WORKING.replace((id, 0));
        run_chunks(shared, job, 0);
        WORKING.set(outer);
        shared.state.fetch_and(!OPEN, SeqCst);
        shared.wait_until_empty();
        let panic = lock(&shared.panic).take();
        drop(running);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _guard = lock(&self.shared.sleep);
            self.shared.stop.store(true, SeqCst);
            self.shared.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of bodies; there is nothing to pass on.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wait_until_empty(&self) {
        for _ in 0..SPINS {
            if self.state.load(Acquire) & INSIDE == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.caller_sleeps.store(true, SeqCst);
        while self.state.load(SeqCst) & INSIDE != 0 {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// Waits for an open job other than number `last` and enters it; `None` when the pool stops.
    fn enter(&self, last: u64) -> Option<u64> {
        let mut spins = 0;
        let mut asleep: Option<MutexGuard<'_, ()>> = None;
        let entered = loop {
            if self.stop.load(Acquire) {
                break None;
            }
            let state = self.state.load(SeqCst);
            let number = state / JOB;
            if state & OPEN != 0 && number != last {
                // The acquiring exchange makes the job visible; it fails if the job was closed meanwhile.
                if self.state.compare_exchange_weak(state, state + 1, AcqRel, Relaxed).is_ok() {
                    break Some(number);
                }
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            // Announce, look again, then sleep: whoever opens a job looks at `sleepers` after opening it, and
            // notifies while holding the lock that is given up only by waiting.
            asleep = Some(match asleep {
                None => {
                    let guard = lock(&self.sleep);
                    self.sleepers.fetch_add(1, SeqCst);
                    guard
                }
                Some(guard) => self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner),
            });
        };
        if asleep.is_some() {
            self.sleepers.fetch_sub(1, SeqCst);
        }
        entered
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, SeqCst);
        if before & (INSIDE | OPEN) == 1 && self.caller_sleeps.load(SeqCst) {
            let _guard = lock(&self.sleep);
            self.done.notify_one();
        }
    }
}

fn work(shared: &Shared, worker: usize) {
    WORKING.set((std::ptr::from_ref(shared) as usize, worker));
    let mut last = 0;
    while let Some(number) = shared.enter(last) {
        last = number;
        // SAFETY: this thread is inside the job, so nobody writes it.
        let job = unsafe { *shared.job.get() };
        run_chunks(shared, job, worker);
        shared.leave();
    }
}

fn run_serially(trip: i64, grain: i64, worker: usize, body: &Body<'_>) {
    let mut lo = 0;
    while lo < trip {
        let hi = lo.saturating_add(grain).min(trip);
        body(worker, lo, hi);
        lo = hi;
    }
}

fn run_chunks(shared: &Shared, job: Job, worker: usize) {
    // SAFETY: the caller of `Pool::run` keeps the body alive while anyone is inside the job.
    let body = unsafe { &*job.body };
    let result = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let chunk = shared.next.fetch_add(1, Relaxed);
            if chunk >= job.chunks {
                break;
            }
            let lo = chunk as i64 * job.grain;
            body(worker, lo, lo.saturating_add(job.grain).min(job.trip));
        }
    }));
    if let Err(payload) = result {
        // No further chunks: the loop has failed.
        shared.next.store(job.chunks, Relaxed);
        lock(&shared.panic).get_or_insert(payload);
    }
}

#[cfg(target_os = "linux")]
fn pin_to(core: usize) {
    unsafe extern "C" {
        fn sched_setaffinity(pid: i32, size: usize, mask: *const u64) -> i32;
    }
    let mut mask = [0u64; 16];
    if let Some(word) = mask.get_mut(core / 64) {
        *word = 1 << (core % 64);
        // SAFETY: the mask is `size` bytes long and only read; 0 is the calling thread. A refusal is harmless.
        unsafe { sched_setaffinity(0, size_of_val(&mask), mask.as_ptr()) };
    }
}

#[cfg(not(target_os = "linux"))]
fn pin_to(_core: usize) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;

    fn covers(threads: usize, trip: i64, grain: i64) {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..20 {
            let seen: Vec<AtomicI64> = (0..trip).map(|_| AtomicI64::new(0)).collect();
            pool.run(trip, grain, &|worker, lo, hi| {
                assert!(worker < threads && lo < hi && hi <= trip);
                assert!(hi - lo <= grain.max(1));
                (lo..hi).for_each(|i| assert_eq!(seen[i as usize].fetch_add(1, SeqCst), 0));
            });
            assert!(seen.iter().all(|n| n.load(SeqCst) == 1));
        }
    }

    #[test]
    fn every_iteration_runs_once() {
        for threads in [1, 2, 5] {
            for (trip, grain) in [(0, 1), (1, 1), (7, 3), (100, 1), (100, 0), (64, 64), (65, 64)] {
                covers(threads, trip, grain);
            }
        }
    }

    #[test]
    fn many_short_jobs_and_sleeps() {
        let pool = Pool::new(3).unwrap();
        let total = AtomicI64::new(0);
        for job in 0..3000 {
            pool.run(8, 1, &|_, lo, hi| {
                total.fetch_add(hi - lo, SeqCst);
            });
            if job % 1000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        }
        assert_eq!(total.load(SeqCst), 24_000);
    }

    #[test]
    fn panics_pass_through_and_the_pool_survives() {
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let run = || pool.run(50, 1, &|_, lo, _| assert!(lo != 20, "boom"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let n = AtomicI64::new(0);
            pool.run(50, 1, &|_, lo, hi| {
                n.fetch_add(hi - lo, SeqCst);
            });
            assert_eq!(n.load(SeqCst), 50);
        }
    }

    #[test]
    fn nested_and_concurrent_calls() {
        let pool = Pool::new(2).unwrap();
        let n = AtomicI64::new(0);
        let add = |_: usize, lo, hi| {
            n.fetch_add(hi - lo, SeqCst);
        };
        pool.run(4, 1, &|_, _, _| pool.run(10, 1, &add));
        assert_eq!(n.load(SeqCst), 40);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| (0..100).for_each(|_| pool.run(10, 2, &add)));
            }
        });
        assert_eq!(n.load(SeqCst), 3040);
    }

    #[test]
    fn huge_trips_do_not_overflow() {
        let pool = Pool::new(2).unwrap();
        let n = AtomicI64::new(0);
        pool.run(i64::MAX, i64::MAX / 3, &|_, lo, hi| {
            n.fetch_add(hi - lo, SeqCst);
        });
        assert_eq!(n.load(SeqCst), i64::MAX);
        assert_eq!(Pool::with_pinning(2, true).unwrap().threads(), 2);
    }

    #[test]
    fn absurd_numbers_of_threads_are_refused() {
        for threads in [MAX_THREADS + 1, usize::MAX] {
            assert!(matches!(Pool::new(threads), Err(Error::ManyThreads { .. })));
        }
    }
}
