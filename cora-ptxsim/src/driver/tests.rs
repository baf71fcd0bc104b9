use super::capture::Mode;
use super::code::Code;
use super::log::Log;
use super::module::Launch;
use super::settings::Settings;
use super::state::State;

const CODE: &str = "
.version 7.0
.target sm_80
.address_size 64

.visible .entry increment(
	.param .u64 increment_param_0
)
{
	.reg .b32 	%r<3>;
	.reg .b64 	%rd<2>;
	ld.param.b64 	%rd1, [increment_param_0];
	ld.global.b32 	%r1, [%rd1];
	add.s32 	%r2, %r1, 1;
	st.global.b32 	[%rd1], %r2;
	ret;
}

.visible .entry astray()
{
	.reg .b32 	%r<2>;
	.reg .b64 	%rd<2>;
	mov.b64 	%rd1, 64;
	mov.b32 	%r1, 0;
	st.global.b32 	[%rd1], %r1;
	ret;
}
";

/// A device with a context that is current, and a stream.
fn device(settings: &str) -> (State, u64) {
    let mut s = State::new(Settings::parse(settings).expect("known names"), Log::default());
    s.init().expect("the driver starts");
    let context = s.retain(0).expect("a device");
    s.set_current(context).expect("it is there");
    let stream = s.create_stream();
    (s, stream)
}

/// A launch of one thread.
fn one(function: u64, params: &[u64]) -> Launch {
    let params = params.iter().map(|p| p.to_le_bytes().to_vec()).collect();
    Launch { function, blocks: [1; 3], threads: [1; 3], shared: 0, params }
}

fn send(s: &mut State, to: u64, from: usize, bytes: usize, stream: u64) -> Result<(), Code> {
    // SAFETY: tests give page-locked memory, or bytes of their own that are as long.
    unsafe { s.send(to, from, bytes, stream) }
}

/// What 4 bytes of the device hold once the stream has been waited for.
fn word(s: &mut State, at: u64, stream: u64) -> Result<u32, Code> {
    let mut bytes = [0u8; 4];
    // SAFETY: there are 4 bytes.
    unsafe { s.fetch(bytes.as_mut_ptr().expose_provenance(), at, 4, stream) }?;
    Ok(u32::from_le_bytes(bytes))
}

/// Writes 4 bytes of page-locked memory as a program does.
fn write(at: usize, value: u32) {
    // SAFETY: tests give page-locked memory of at least 4 bytes.
    unsafe { std::ptr::with_exposed_provenance_mut::<u32>(at).write(value) };
}

#[test]
fn pinned_memory_is_read_late() {
    let (mut s, stream) = device("");
    let (to, pinned) = (s.alloc(64).expect("memory"), s.alloc_host(64).expect("memory"));
    write(pinned, 7);
    send(&mut s, to, pinned, 4, stream).expect("inside");
    write(pinned, 8);
    assert_eq!(word(&mut s, to, stream), Ok(8), "the host did not wait");
    write(pinned, 9);
    send(&mut s, to, pinned, 4, stream).expect("inside");
    s.synchronize(stream).expect("nothing fails");
    write(pinned, 10);
    assert_eq!(word(&mut s, to, stream), Ok(9));
    // Other memory is read at the call.
    let mut own = 11u32;
    let at = (&raw mut own).expose_provenance();
    send(&mut s, to, at, 4, stream).expect("inside");
    write(at, 12);
    assert_eq!((word(&mut s, to, stream), own), (Ok(11), 12));
    // To page-locked memory, bytes come when the host waits.
    // SAFETY: page-locked memory of 64 bytes.
    unsafe { s.fetch(pinned, to, 4, stream) }.expect("inside");
    // SAFETY: as above.
    let read = || unsafe { std::ptr::with_exposed_provenance::<u32>(pinned).read() };
    assert_eq!(read(), 10);
    s.free_host(pinned + 16).expect_err("that is not where it begins");
    s.synchronize(stream).expect("nothing fails");
    assert_eq!(read(), 11);
    s.free_host(pinned).expect("ours");
    assert_eq!(s.free_host(pinned), Err(Code::INVALID_VALUE));
}

#[test]
fn copies_stay_inside() {
    let (mut s, stream) = device("");
    let (to, pinned) = (s.alloc(64).expect("memory"), s.alloc_host(16).expect("memory"));
    assert_eq!(send(&mut s, to + 56, pinned, 16, stream), Err(Code::INVALID_VALUE));
    assert_eq!(send(&mut s, to, pinned + 8, 16, stream), Err(Code::INVALID_VALUE), "beyond what is page-locked");
    assert_eq!(s.fill(to, 0, 65, stream), Err(Code::INVALID_VALUE));
    assert_eq!(s.copy(to + 32, to, 33, stream), Err(Code::INVALID_VALUE));
    assert_eq!(s.fill(to, 0, 64, stream + 1), Err(Code::INVALID_HANDLE));
    assert_eq!(s.free(to + 256), Err(Code::INVALID_VALUE));
    s.free(to).expect("ours");
    assert_eq!(s.free(to), Err(Code::INVALID_VALUE));
    assert_eq!(s.fill(to, 0, 4, stream), Err(Code::INVALID_VALUE), "it is gone");
}

#[test]
fn memory_ends() {
    let (mut s, _) = device("memory=1000");
    let a = s.alloc(600).expect("memory");
    assert_eq!(s.alloc(401), Err(Code::OUT_OF_MEMORY));
    s.alloc(400).expect("memory");
    s.free(a).expect("ours");
    s.alloc(600).expect("memory again");
    assert_eq!((s.alloc(0), s.alloc(u64::MAX)), (Err(Code::INVALID_VALUE), Err(Code::OUT_OF_MEMORY)));
}

#[test]
fn launches_take_their_parameters_at_the_call() {
    let (mut s, stream) = device("");
    let module = s.load(CODE).expect("PTX");
    let f = s.function(module, "increment").expect("it is there");
    let at = s.alloc(4).expect("memory");
    s.fill(at, 0, 4, stream).expect("inside");
    for _ in 0..3 {
        s.launch(one(f, &[at]), stream).expect("a launch");
    }
    assert_eq!(word(&mut s, at, stream), Ok(3));
    assert_eq!(s.function(module, "decrement"), Err(Code::NOT_FOUND));
    let refused = [
        Launch { blocks: [0, 1, 1], ..one(f, &[at]) },
        Launch { blocks: [1, 65_536, 1], ..one(f, &[at]) },
        Launch { threads: [33, 32, 1], ..one(f, &[at]) },
        Launch { threads: [1, 1, 65], ..one(f, &[at]) },
        Launch { shared: (48 << 10) + 1, ..one(f, &[at]) },
        one(f, &[]),
    ];
    for launch in refused {
        assert_eq!(s.launch(launch, stream), Err(Code::INVALID_VALUE));
    }
    assert_eq!(s.launch(one(module, &[at]), stream), Err(Code::INVALID_HANDLE));
    s.allow_shared(f, 100 << 10).expect("the device has more");
    assert_eq!(s.allow_shared(f, 300 << 10), Err(Code::INVALID_VALUE));
    s.launch(Launch { shared: 100 << 10, ..one(f, &[at]) }, stream).expect("it is allowed");
    s.unload(module).expect("ours");
    assert_eq!(s.launch(one(f, &[at]), stream), Err(Code::INVALID_HANDLE));
    assert_eq!(s.log.lines.iter().filter(|l| l.starts_with("launch increment 1 1 1 threads 1 1 1 shared")).count(), 4);
}

#[test]
fn faults_stay() {
    let (mut s, stream) = device("");
    let module = s.load(CODE).expect("PTX");
    let f = s.function(module, "astray").expect("it is there");
    s.launch(one(f, &[]), stream).expect("nothing runs yet");
    assert_eq!(s.synchronize(stream), Err(Code::ILLEGAL_ADDRESS));
    assert_eq!(s.ready(), Err(Code::ILLEGAL_ADDRESS));
    assert!(s.log.lines.iter().any(|l| l.starts_with("kernel astray: ")), "{:?}", s.log.lines);
    // A new context knows nothing of it.
    s.release(0).expect("ours");
    assert_eq!(s.ready(), Err(Code::INVALID_CONTEXT));
    let context = s.retain(0).expect("a device");
    s.set_current(context).expect("it is there");
    assert_eq!(s.ready(), Ok(()));
}

#[test]
fn captures_are_played() {
    let (mut s, stream) = device("");
    let module = s.load(CODE).expect("PTX");
    let f = s.function(module, "increment").expect("it is there");
    let (at, pinned) = (s.alloc(4).expect("memory"), s.alloc_host(4).expect("memory"));
    s.fill(at, 0, 4, stream).expect("inside");
    s.begin_capture(stream, Mode::ThreadLocal).expect("none is under way");
    assert_eq!(s.begin_capture(stream, Mode::ThreadLocal), Err(Code::ILLEGAL_STATE));
    send(&mut s, at, pinned, 4, stream).expect("captured");
    s.launch(one(f, &[at]), stream).expect("captured");
    let graph = s.end_capture(stream).expect("whole");
    assert_eq!(word(&mut s, at, stream), Ok(0), "nothing has run");
    let launchable = s.instantiate(graph).expect("ours");
    s.destroy_graph(graph).expect("ours");
    for n in [5, 9] {
        write(pinned, n);
        s.launch_graph(launchable, stream).expect("ours");
        assert_eq!(word(&mut s, at, stream), Ok(n + 1));
    }
    s.destroy_launchable(launchable).expect("ours");
    assert_eq!(s.launch_graph(launchable, stream), Err(Code::INVALID_HANDLE));
    assert!(s.log.lines.iter().any(|l| l == "end_capture 2"), "{:?}", s.log.lines);
}

#[test]
fn what_waits_ends_a_capture() {
    type Call = fn(&mut State, u64) -> Result<(), Code>;
    let calls: [Call; 6] = [
        State::synchronize,
        |s, _| s.alloc(4).map(drop),
        |s, _| s.free(0),
        |s, _| s.load(CODE).map(drop).map_err(|e| e.code),
        |s, _| s.alloc_host(4).map(drop),
        |s, stream| word(s, 0x7f00_0000_0000, stream).map(drop),
    ];
    for call in calls {
        let (mut s, stream) = device("");
        let at = s.alloc(4).expect("memory");
        s.begin_capture(stream, Mode::ThreadLocal).expect("none is under way");
        assert_eq!(call(&mut s, stream), Err(Code::CAPTURE_UNSUPPORTED));
        assert_eq!(s.fill(at, 0, 4, stream), Err(Code::CAPTURE_INVALIDATED));
        assert_eq!(s.end_capture(stream), Err(Code::CAPTURE_INVALIDATED));
        assert_eq!(s.end_capture(stream), Err(Code::ILLEGAL_STATE));
        // It is over.
        call(&mut s, stream).expect("nothing is captured");
    }
    let (mut s, stream) = device("");
    s.begin_capture(stream, Mode::Relaxed).expect("none is under way");
    s.alloc(4).expect("a relaxed capture allows it");
    s.end_capture(stream).expect("whole");
}

#[test]
fn events_pass_when_work_is_done() {
    let (mut s, stream) = device("");
    let (a, b) = (s.create_event(true), s.create_event(true));
    assert_eq!(s.elapsed(a, b), Err(Code::INVALID_HANDLE), "they were not recorded");
    s.record(a, stream).expect("ours");
    s.record(b, stream).expect("ours");
    assert_eq!(s.elapsed(a, b), Err(Code::NOT_READY));
    s.synchronize(stream).expect("nothing fails");
    assert!(s.elapsed(a, b).is_ok_and(|ms| ms >= 0.0));
    let untimed = s.create_event(false);
    s.record(untimed, stream).expect("ours");
    s.synchronize(stream).expect("nothing fails");
    assert_eq!(s.elapsed(a, untimed), Err(Code::INVALID_HANDLE));
    s.destroy_event(a).expect("ours");
    assert_eq!(s.destroy_event(a), Err(Code::INVALID_HANDLE));
}

#[test]
fn code_is_refused_as_by_the_assembler() {
    let refused = |settings: &str, text: &str| device(settings).0.load(text).err().map(|r| (r.code, r.log));
    assert!(refused("arch=80", CODE).is_none());
    let (code, log) = refused("arch=70", CODE).expect("too old a device");
    assert!(code == Code::INVALID_PTX && log.contains("line 3; fatal") && log.contains(".target"), "{log}");
    let (code, log) = refused("version=10020", CODE).expect("too old a driver");
    assert!(code == Code::UNSUPPORTED_PTX_VERSION && log.contains("'6.2'"), "{log}");
    let (code, log) = refused("", &CODE.replace("add.s32", "bad.s32")).expect("no such instruction");
    assert!(code == Code::INVALID_PTX && log.contains("line "), "{log}");
}

#[test]
fn what_is_left_is_said() {
    let (mut s, _) = device("");
    s.retain(0).expect("a device");
    s.alloc(100).expect("memory");
    s.alloc_host(100).expect("memory");
    s.release(0).expect("twice retained");
    assert!(s.ready().is_ok() && !s.log.lines.iter().any(|l| l.starts_with("leak")));
    s.release(0).expect("the last");
    assert!(s.log.lines.iter().any(|l| l == "leak 100 and 1 pinned"), "{:?}", s.log.lines);
    assert_eq!(s.release(0), Err(Code::INVALID_CONTEXT));
}

#[test]
fn contexts_are_of_threads() {
    let (s, _) = device("");
    assert_eq!(std::thread::scope(|t| t.spawn(|| s.ready()).join()).ok(), Some(Err(Code::INVALID_CONTEXT)));
    let mut s = State::new(Settings::parse("init=803").expect("known"), Log::default());
    assert_eq!((s.init(), s.retain(0)), (Err(Code(803)), Err(Code::NOT_INITIALIZED)));
    let mut s = State::new(Settings::parse("devices=0").expect("known"), Log::default());
    assert_eq!((s.init(), s.device(0)), (Ok(()), Err(Code::INVALID_DEVICE)));
}
