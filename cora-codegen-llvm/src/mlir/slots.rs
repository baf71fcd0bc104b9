//! Where a kernel finds its buffers, tables and parameters, and under which symbols kernels are found.
//!
//! The program description and the generated code must agree on these numbers, so both take them from here.

use std::collections::BTreeSet;

use cora_ir::ids::EntityId;
use cora_ir::storage::{Buffer, StorageModule};
use cora_ir::{Scope, TensorId};

/// What a tensor of the storage dialect is to a kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Slot {
    /// `bufs[n]`.
    Buffer(usize),
    /// `tables[n]`.
    Table(usize),
    /// Registers: no memory outside the kernel.
    Registers,
    /// A block's shared memory.
    Shared,
}

/// The numbering of a module.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    of_tensor: Vec<Option<Slot>>,
    buffers: Vec<TensorId>,
    symbols: Vec<String>,
}

impl Slots {
    /// Numbers the buffers of `module` in their order, leaving out registers and the tensors of tables; tables and kernels
    /// keep their order.
    pub fn new(module: &StorageModule) -> Self {
        Self::numbered(module, false)
    }

    /// The same for a GPU, where what belongs to a thread or a block is no buffer of the program.
    pub fn grid(module: &StorageModule) -> Self {
        Self::numbered(module, true)
    }

    fn numbered(module: &StorageModule, grid: bool) -> Self {
        let mut slots = Self { of_tensor: vec![None; module.env.tensors.len()], ..Self::default() };
        for (n, table) in module.tables.iter().enumerate() {
            slots.of_tensor[table.tensor.index()] = Some(Slot::Table(n));
        }
        for &Buffer { tensor, .. } in &module.buffers {
            let slot = &mut slots.of_tensor[tensor.index()];
            if slot.is_some() {
                continue;
            }
            let scope = module.env.tensors[tensor].scope;
            if scope == Scope::Reg || (grid && scope == Scope::Local) {
                *slot = Some(Slot::Registers);
            } else if grid && scope == Scope::Shared {
                *slot = Some(Slot::Shared);
            } else {
                *slot = Some(Slot::Buffer(slots.buffers.len()));
                slots.buffers.push(tensor);
            }
        }
        let mut taken = BTreeSet::new();
        for kernel in &module.kernels {
            let base = symbol(&kernel.name);
            let mut name = base.clone();
            let mut n = 1;
            while !taken.insert(name.clone()) {
                name = format!("{base}_{n}");
                n += 1;
            }
            slots.symbols.push(name);
        }
        slots
    }

    /// What `tensor` is; nothing if it has no buffer.
    pub fn get(&self, tensor: TensorId) -> Option<Slot> {
        self.of_tensor.get(tensor.index()).copied().flatten()
    }

    /// The tensors of `bufs`, in order.
    pub fn buffers(&self) -> &[TensorId] {
        &self.buffers
    }

    /// The symbol of each kernel of the module.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }
}

/// A C identifier for a kernel's name. The prefix keeps a kernel called `exp` from being what `exp` calls.
fn symbol(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("cora_{clean}")
}
