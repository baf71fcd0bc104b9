//! Modules, their kernels, and launches.

use super::code::Code;
use super::settings::Settings;
use super::state::State;
use super::stream::Work;
use crate::{exec, ptx};
use std::sync::Arc;

/// Shared memory that every kernel may have, in bytes; more of it where an attribute allows it.
const SHARED: u64 = 48 << 10;
/// Greatest numbers of blocks along x, y, z; of threads of a block along them; and of all its threads.
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MOST_THREADS: [u32; 3] = [1024, 1024, 64];
const MOST_THREADS_OF_A_BLOCK: u64 = 1024;

/// Loaded code.
pub(super) struct Module(Arc<ptx::Module>);

/// A kernel of a module.
pub(super) struct Function {
    module: u64,
    code: Arc<ptx::Module>,
    name: String,
    /// Bytes of each parameter.
    params: Vec<usize>,
    /// The threads of a block, if the code says them.
    threads: Option<[u32; 3]>,
    /// Shared memory that all its launches have, in bytes.
    fixed: u64,
    /// Dynamic shared memory that it was allowed, in bytes.
    allowed: Option<u32>,
}

/// A launch, with what the kernel takes.
#[derive(Clone)]
pub(super) struct Launch {
    pub function: u64,
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub shared: u32,
    pub params: Arc<[Vec<u8>]>,
}

/// Code that the driver refuses, and what its assembler says about it.
#[derive(Debug)]
pub(super) struct Refused {
    pub code: Code,
    pub log: String,
}

impl From<Code> for Refused {
    fn from(code: Code) -> Refused {
        Refused { code, log: String::new() }
    }
}

/// Reads the text for the device, as the driver's assembler would.
fn assemble(settings: &Settings, text: &str) -> Result<ptx::Module, Refused> {
    let refused = |code, line: u32, what: &str| {
        Err(Refused { code, log: format!("ptxas application ptx input, line {line}; {what}") })
    };
    if let Some((line, (major, minor))) = version(text) {
        let newest = settings.ptx_version();
        if (major, minor) > newest {
            let what = format!(
                "fatal   : Unsupported .version {major}.{minor}; current version is '{}.{}'",
                newest.0, newest.1
            );
            return refused(Code::UNSUPPORTED_PTX_VERSION, line, &what);
        }
    }
    let module = match ptx::Module::parse(text) {
        Ok(m) => m,
        Err(e) => return refused(Code::INVALID_PTX, e.line, &format!("error   : {}", e.what)),
    };
    if !settings.runs(module.target()) {
        let line = text.lines().position(|l| l.trim_start().starts_with(".target")).map_or(1, |n| n as u32 + 1);
        let what = "fatal   : SM version specified by .target is higher than default SM version assumed";
        return refused(Code::INVALID_PTX, line, what);
    }
    Ok(module)
}

/// The version that a text says it has, and the line of that, from 1.
fn version(text: &str) -> Option<(u32, (u32, u32))> {
    let lines = (1..).zip(text.lines());
    let (line, number) = lines.filter_map(|(n, l)| Some((n, l.trim_start().strip_prefix(".version")?))).next()?;
    let (major, minor) = number.trim().split_once('.')?;
    Some((line, (major.parse().ok()?, minor.parse().ok()?)))
}

impl State {
    /// Loads a module.
    ///
    /// # Errors
    /// [`Refused`], with the assembler's log.
    pub(super) fn load(&mut self, text: &str) -> Result<u64, Refused> {
        self.unsafe_in_capture()?;
        let module = assemble(&self.settings, text)?;
        self.log.line(&format!("load {}", module.target()));
        let handle = self.handle();
        self.modules.insert(handle, Module(Arc::new(module)));
        Ok(handle)
    }

    /// Waits for all work, then forgets a module and its kernels.
    pub(super) fn unload(&mut self, module: u64) -> Result<(), Code> {
        self.unsafe_in_capture()?;
        self.drain_all()?;
        self.modules.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        self.functions.retain(|_, f| f.module != module);
        self.log.line("unload");
        Ok(())
    }

    pub(super) fn function(&mut self, module: u64, name: &str) -> Result<u64, Code> {
        let code = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?.0.clone();
        let kernel = code.kernel(name).ok_or(Code::NOT_FOUND)?;
        let function = Function {
            module,
            name: kernel.name.clone(),
            params: kernel.params.iter().map(|p| p.bytes).collect(),
            threads: kernel.threads,
            fixed: kernel.shared.saturating_sub(ptx::SHARED_BEGIN),
            allowed: None,
            code: code.clone(),
        };
        let handle = self.handle();
        self.functions.insert(handle, function);
        Ok(handle)
    }

    /// Allows a kernel so much dynamic shared memory.
    pub(super) fn allow_shared(&mut self, function: u64, bytes: i32) -> Result<(), Code> {
        let most = u64::from(self.settings.most_shared());
        let function = self.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)?;
        let bytes = u32::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
        if function.fixed + u64::from(bytes) > most {
            return Err(Code::INVALID_VALUE);
        }
        function.allowed = Some(bytes);
        Ok(())
    }

    /// The bytes of each parameter of a kernel.
    pub(super) fn params(&self, function: u64) -> Result<Vec<usize>, Code> {
        Ok(self.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.params.clone())
    }

    pub(super) fn launch(&mut self, launch: Launch, stream: u64) -> Result<(), Code> {
        let f = self.functions.get(&launch.function).ok_or(Code::INVALID_HANDLE)?;
        let within = |n: [u32; 3], most: [u32; 3]| n.iter().zip(most).all(|(&n, most)| (1..=most).contains(&n));
        let threads: u64 = launch.threads.iter().map(|&n| u64::from(n)).product();
        let shared = match f.allowed {
            Some(allowed) => launch.shared <= allowed.max((SHARED.saturating_sub(f.fixed)) as u32),
            None => f.fixed + u64::from(launch.shared) <= SHARED,
        };
        let fits = within(launch.blocks, MOST_BLOCKS)
            && within(launch.threads, MOST_THREADS)
            && threads <= MOST_THREADS_OF_A_BLOCK
            && f.threads.is_none_or(|t| t == launch.threads)
            && f.params.len() == launch.params.len();
        if !fits || !shared {
            return Err(Code::INVALID_VALUE);
        }
        let ([bx, by, bz], [tx, ty, tz], shared) = (launch.blocks, launch.threads, launch.shared);
        let line = format!("launch {} {bx} {by} {bz} threads {tx} {ty} {tz} shared {shared}", f.name);
        self.put(stream, Work::Launch(launch))?;
        self.log.line(&line);
        Ok(())
    }

    /// Runs a kernel now.
    pub(super) fn run(&mut self, launch: &Launch) -> Result<(), Code> {
        // Of a graph, the module may be gone.
        let f = self.functions.get(&launch.function).ok_or(Code::LAUNCH_FAILED)?;
        let grid = exec::Grid { blocks: launch.blocks, threads: launch.threads, dynamic_shared: launch.shared };
        let mut work = self.settings.count.then(exec::Work::default);
        let done = exec::launch(&f.code, &f.name, grid, &launch.params, &mut self.memory, work.as_mut());
        if let Some(exec::Work { instructions, passes, sectors, distinct, products }) = work {
            let counts = format!("passes {passes} sectors {sectors} distinct {distinct} products {products}");
            self.log.line(&format!("work {} instructions {instructions} {counts}", f.name));
        }
        done.map_err(|fault| {
            let line = format!("kernel {}: {fault}", f.name);
            eprintln!("ptxsim: {line}");
            self.log.line(&line);
            answer(&fault)
        })
    }
}

/// What the driver says of a kernel's fault.
fn answer(fault: &exec::Fault) -> Code {
    if fault.is_address() { Code::ILLEGAL_ADDRESS } else { Code::LAUNCH_FAILED }
}
