//! A ragged program by hand: its description, and its run through the runtime.

use std::sync::Arc;

use cora_ir::env::{Param, Tensor, TensorDim, Uf};
use cora_ir::ids::EntityId;
use cora_ir::loops::LoopKind;
use cora_ir::storage::{Buffer, Kernel, Stmt, StorageModule, Table};
use cora_ir::{Expr, ExprId, Literal, Role as IrRole, ScalarType, Scope, TensorId, UfDef, UfId};
use cora_runtime::abi::{BufferKind, DType, Ix, Role, TableKind, TableWidth};
use cora_runtime::array::{RaggedArray, Shape};
use cora_runtime::exec::{Instance, Options};
use cora_runtime::pool::Pool;
use cora_runtime::prelude::Batch;

use super::{DescribeFault, program_desc};
use crate::compile::{CompileOptions, compile, to_llvm};
use crate::llvm::TargetSpec;

const F32: ScalarType = ScalarType::F32;

struct Program {
    m: StorageModule,
    lens: TensorId,
    row: TensorId,
}

impl Program {
    fn tensor(&mut self, name: &str, ty: ScalarType, role: IrRole, scope: Scope, dims: &[ExprId]) -> TensorId {
        let dim = |&extent| TensorDim::new(String::new(), extent);
        let dims = dims.iter().map(dim).collect();
        self.m.env.tensors.push(Tensor { role, scope, ..Tensor::temp(name, ty, dims) })
    }

    fn buffer(&mut self, tensor: TensorId, elems: ExprId, offset: Option<ExprId>) {
        self.m.buffers.push(Buffer { tensor, elems, offset });
    }

    fn table(
        &mut self,
        uf: UfId,
        ty: ScalarType,
        entries: ExprId,
        domain: Vec<ExprId>,
        body: Option<ExprId>,
    ) -> TensorId {
        let name = self.m.env.ufs[uf].name.clone();
        let tensor = self.tensor(&name, ty, IrRole::Temp, Scope::Global, &[]);
        self.m.tables.push(Table { uf, tensor, entries, domain, body });
        tensor
    }

    fn entry(&mut self, table: TensorId, at: ExprId) -> ExprId {
        self.m.env.pool.load(table, ScalarType::Index, [at])
    }
}

/// `W2[0] = W[0] + W[0]` once, then for each row `slot[i] = A[b, i] * W2[0]`, `O[b, i] = slot[i] + 1`, rows longest first.
/// The extent function `unused` is read by nothing.
fn program() -> Program {
    let m = StorageModule { name: "rows".into(), ..StorageModule::default() };
    let mut p = Program { m, lens: TensorId::from_index(0), row: TensorId::from_index(0) };
    let env = &mut p.m.env;
    let size = env.params.push(Param { name: "M".into(), lo: 0, hi: 1000 });
    let pool = &mut env.pool;
    let (zero, one, hundred, arg) = (pool.int(0), pool.int(1), pool.int(100), pool.arg(0));
    let size = pool.param(size);
    let extent = UfDef::Extent { lo: zero, hi: hundred };
    let lens = env.ufs.push(Uf { name: "lens".into(), domain: vec![size], def: extent.clone() });
    env.ufs.push(Uf { name: "unused".into(), domain: vec![size], def: extent });
    let len = env.pool.call(lens, [arg]);
    let row = env.uf("row", vec![size], UfDef::PrefixSum { body: len });
    let order = env.uf("order", vec![size], UfDef::SortDesc { key: len });
    let longest = env.uf("longest", vec![size], UfDef::Max { body: len });

    let entries = env.pool.add(size, one);
    p.lens = p.table(lens, ScalarType::I32, size, vec![size], None);
    let len_arg = p.entry(p.lens, arg);
    p.row = p.table(row, ScalarType::I64, entries, vec![size], Some(len_arg));
    let order = p.table(order, ScalarType::I32, size, vec![size], Some(len_arg));
    let longest = p.table(longest, ScalarType::I32, one, vec![size], Some(len_arg));

    // The dims still call the function: they are the user's view.
    let dims = [size, len];
    let a = p.tensor("A", F32, IrRole::Input, Scope::Global, &dims);
    let w = p.tensor("W", F32, IrRole::ConstInput, Scope::Global, &[]);
    let w2 = p.tensor("W2", F32, IrRole::Temp, Scope::Global, &[]);
    let slot = p.tensor("slot", F32, IrRole::Temp, Scope::Local, &[]);
    let acc = p.tensor("acc", F32, IrRole::Temp, Scope::Reg, &[]);
    let o = p.tensor("O", F32, IrRole::Output, Scope::Global, &dims);
    let (total, most) = (p.entry(p.row, size), p.entry(longest, zero));
    let arg1 = p.m.env.pool.arg(1);
    let start = p.entry(p.row, arg);
    let offset = p.m.env.pool.add(start, arg1);
    p.buffer(a, total, Some(offset));
    p.buffer(w, one, Some(zero));
    p.buffer(acc, one, None);
    p.buffer(w2, one, None);
    p.buffer(slot, most, None);
    p.buffer(o, total, Some(offset));

    let env = &mut p.m.env;
    let (vf, vb, vn, vi) = (env.new_var("f"), env.new_var("b"), env.new_var("n"), env.new_var("i"));
    let [f, b, n, i] = [vf, vb, vn, vi].map(|v| env.pool.var(v));
    let weight = env.load(w, [zero]);
    let doubled = env.pool.add(weight, weight);
    let store = |tensor, index, value| Stmt::Store { tensor, index, value, mask: None, rest: vec![] };
    p.m.kernels.push(Kernel { name: "prepare".into(), body: vec![store(w2, zero, doubled)] });

    let (outer, len, start) = (p.entry(order, f), p.entry(p.lens, b), p.entry(p.row, b));
    let env = &mut p.m.env;
    let at = env.pool.add(start, i);
    let (x, scale, old) = (env.load(a, [at]), env.load(w2, [zero]), env.load(slot, [i]));
    let (product, plus) = (env.pool.mul(x, scale), env.pool.lit(Literal::float(F32, 1.0)));
    let sum = env.pool.add(old, plus);
    let serial = |body| Stmt::For { var: vi, extent: len, kind: LoopKind::Serial, body };
    let rows = vec![
        Stmt::Let { var: vb, value: outer },
        serial(vec![store(slot, i, product)]),
        serial(vec![store(o, at, sum)]),
    ];
    let all = Stmt::For { var: vf, extent: n, kind: LoopKind::Parallel, body: rows };
    let body = vec![Stmt::Let { var: vn, value: size }, all];
    p.m.kernels.push(Kernel { name: "rows.main".into(), body });
    p
}

#[test]
fn describes_everything_the_runtime_needs() {
    let desc = program_desc(&program().m).unwrap();
    assert_eq!(desc.params.len(), 1);
    let tables: Vec<_> = desc.tables.iter().map(|t| (t.name.as_str(), t.width)).collect();
    let (narrow, wide) = (TableWidth::I32, TableWidth::I64);
    assert_eq!(tables, [("lens", narrow), ("row", wide), ("order", narrow), ("longest", narrow), ("unused", wide)]);
    let m = || Ix::Param(0);
    let len = || Ix::table(0, Ix::Arg(0));
    assert_eq!(desc.tables[1].kind, TableKind::PrefixSum { domain: vec![m()], value: len() });
    assert_eq!(desc.tables[2].kind, TableKind::SortDesc { domain: vec![m()], key: len() });
    assert_eq!(desc.tables[3].kind, TableKind::ReduceMax { domain: vec![m()], value: len() });
    let extents: Vec<_> = desc.extents.iter().map(|e| (e.name.as_str(), e.table, e.hi.clone())).collect();
    assert_eq!(extents, [("lens", 0, Ix::Const(100)), ("unused", 4, Ix::Const(100))]);
    let tensors: Vec<_> = desc.tensors.iter().map(|t| (t.name.as_str(), t.role, t.buffer, t.dims.len())).collect();
    assert_eq!(tensors, [("A", Role::Input, 0, 2), ("W", Role::ConstInput, 1, 0), ("O", Role::Output, 4, 2)]);
    assert_eq!(desc.tensors[0].dims[1].extent, len());
    assert_eq!(desc.tensors[0].offset, Ix::table(1, Ix::Arg(0)) + Ix::Arg(1));
    assert!(desc.tensors.iter().all(|t| t.dtype == DType::F32));
    let kinds: Vec<_> = desc.buffers.iter().map(|b| b.kind).collect();
    use BufferKind::{Input, Output, PerWorker, Temp};
    assert_eq!(kinds, [Input(0), Input(1), Temp, PerWorker, Output(2)]);
    let [main] = &desc.kernels[..] else { panic!() };
    assert_eq!((main.symbol.as_str(), main.trip.clone()), ("cora_rows_main", Some(m().max(0))));
    assert_eq!((&main.reads[..], &main.writes[..]), (&[0, 2, 3][..], &[3, 4][..]));
    let [setup] = &desc.setup_kernels[..] else { panic!() };
    assert_eq!((setup.symbol.as_str(), &setup.reads[..], &setup.writes[..]), ("cora_prepare", &[1][..], &[2][..]));
    assert_eq!(setup.trip, None);
}

#[test]
fn what_a_kernel_overwrites_is_not_setup() {
    let mut p = program();
    let again = p.m.kernels[0].body.clone();
    p.m.kernels[1].body.splice(0..0, again);
    assert_eq!(program_desc(&p.m).unwrap().setup_kernels.len(), 0);
    let mut p = program();
    let size = p.m.env.pool.lookup(&Expr::Param(p.m.env.params.ids().next().unwrap())).unwrap();
    let three = p.m.env.pool.int(3);
    let cond = p.m.env.pool.lt(three, size);
    let then = std::mem::take(&mut p.m.kernels[0].body);
    p.m.kernels[0].body.push(Stmt::If { cond, then, other: vec![] });
    assert_eq!(program_desc(&p.m).unwrap().setup_kernels.len(), 0, "what depends on a parameter");
}

#[test]
fn compiles_and_runs_through_the_runtime() {
    let p = program();
    let program = compile(&p.m, &TargetSpec::host(), &CompileOptions::default()).unwrap();
    let phases: Vec<_> = program.phases.iter().map(|p| p.name).collect();
    assert_eq!(phases, ["describe", "emit", "parse", "lower", "translate", "optimize", "object"]);
    let (llvm, _) = to_llvm(&p.m, &TargetSpec::host(), &CompileOptions::default()).unwrap();
    assert!(llvm.to_ir_string().contains("define void @cora_rows_main(ptr"));
    assert!(llvm.emit_asm().unwrap().contains("cora_rows_main:"));
    assert_eq!(&program.shared_library().unwrap()[..4], b"\x7FELF");
    let again = compile(&p.m, &TargetSpec::host(), &CompileOptions::default()).unwrap();
    assert!(again.object() == program.object() && again.desc() == program.desc());

    let kernels = Arc::new(program.jit().unwrap());
    let pool = Arc::new(Pool::new(2).unwrap());
    // SAFETY: code and description come from one module, which stays inside of its buffers.
    let instance = unsafe {
        Instance::new(Arc::new(program.into_parts().1), kernels, pool, Options { poison: true, ..Options::default() })
    };
    let mut instance = instance.unwrap();
    for lens in [vec![], vec![3, 0, 5, 1], vec![100; 40]] {
        let total: i64 = lens.iter().sum();
        let extents = vec![lens.clone(), vec![7; lens.len()]];
        instance.bind(&Batch { params: vec![lens.len() as i64], lengths: extents }).unwrap();
        let input: Vec<f32> = (0..total).map(|i| i as f32).collect();
        let array = RaggedArray::from_slice(DType::F32, instance.shape(0).unwrap(), &input).unwrap();
        instance.set_input(0, &array).unwrap();
        let weight = RaggedArray::from_slice(DType::F32, Shape::Dense(vec![]), &[1.5_f32]).unwrap();
        instance.set_input(1, &weight).unwrap();
        instance.run().unwrap();
        let output = instance.output(2).unwrap();
        let want: Vec<f32> = input.iter().map(|x| x * 3.0 + 1.0).collect();
        assert_eq!(output.as_slice::<f32>().unwrap(), want);
    }
}

#[test]
fn what_cannot_be_described_is_refused() {
    let fault = |edit: &dyn Fn(&mut Program)| {
        let mut p = program();
        edit(&mut p);
        program_desc(&p.m).unwrap_err().fault
    };
    assert_eq!(fault(&|p| p.m.buffers[0].offset = None), DescribeFault::NoLayout);
    assert_eq!(fault(&|p| p.m.buffers.truncate(5)), DescribeFault::NoLayout);
    assert_eq!(fault(&|p| p.m.tables[1].body = None), DescribeFault::Table);
    let float = fault(&|p| p.m.env.tensors[p.lens].ty = F32);
    assert_eq!(float, DescribeFault::Width(F32));
    assert!(matches!(fault(&|p| p.m.buffers[0].elems = p.m.env.pool.arg(3)), DescribeFault::Invalid(_)));
}
