//! What one interpretation knows: the batch, checked, the functions tabulated so far, memory left.

use crate::env::{Env, UfDef};
use crate::expr::Expr;
use crate::ids::{EntityId, ExprId, TensorId, UfId};
use crate::interp::buffer::{Buffer, Held, Memory};
use crate::interp::error::{InterpError, Stage, Use};
use crate::interp::eval::{Bindings, Scalars};
use crate::interp::functions::{Functions, leading_args};
use crate::interp::grid::Shadow;
use crate::interp::levels::{LevelExtent, Levels};
use crate::interp::{Batch, Data, Options};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Which size of a tensor's dimensions is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// Valid positions.
    Extent,
    /// Stored positions.
    Storage,
}

/// The state shared by all nests of one run.
pub(crate) struct Context<'a> {
    pub env: &'a Env,
    pub batch: &'a Batch,
    pub functions: Functions,
    pub stage: Stage,
    /// In a grid: who accessed what since the last barrier.
    pub shadow: Option<Mutex<Shadow>>,
    /// How many tensors the program has; those from there on are the interpreter's own, and nobody's accesses.
    pub declared: usize,
    /// Whether an index left 64 bits somewhere.
    pub overflow: AtomicBool,
    used: usize,
    cap: usize,
}

impl<'a> Context<'a> {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`InterpError::MissingParam`], [`InterpError::Range`].
    pub fn new(env: &'a Env, batch: &'a Batch, options: &Options, stage: Stage) -> Result<Self, InterpError> {
        for (id, p) in env.params.iter() {
            let Some(&value) = batch.params.get(id.index()) else {
                return Err(InterpError::MissingParam { param: p.name.clone() });
            };
            if !(p.lo..=p.hi).contains(&value) {
                return Err(InterpError::Range { name: p.name.clone(), index: vec![], value, lo: p.lo, hi: p.hi });
            }
        }
        let functions = Functions::new(env.ufs.len());
        Ok(Self {
            env,
            batch,
            functions,
            stage,
            shadow: None,
            declared: usize::MAX,
            overflow: AtomicBool::new(false),
            used: 0,
            cap: options.max_bytes,
        })
    }

    pub fn unsupported(&self, what: impl Into<String>) -> InterpError {
        InterpError::Unsupported { stage: self.stage, what: what.into() }
    }

    pub fn tensor_name(&self, t: TensorId) -> String {
        self.env.tensors.get(t).map_or_else(|| "?".to_owned(), |t| t.name.clone())
    }

    /// How many more elements fit.
    pub fn room(&self) -> i64 {
        i64::try_from((self.cap - self.used) / 8).unwrap_or(i64::MAX)
    }

    /// Counts memory that is about to be taken.
    ///
    /// # Errors
    /// [`InterpError::TooLarge`] beyond the limit.
    pub fn charge(&mut self, what: impl FnOnce() -> String, bytes: usize) -> Result<(), InterpError> {
        if bytes > self.cap - self.used {
            return Err(InterpError::TooLarge { what: what(), limit: self.cap });
        }
        self.used += bytes;
        Ok(())
    }

    /// Counts memory that was given back.
    pub fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Tabulates every function that `e` calls.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub fn prepare(&mut self, e: ExprId) -> Result<(), InterpError> {
        let mut called = Vec::new();
        self.env.pool.walk(e, &mut |_, node| {
            if let Expr::Call(f, _) = node {
                called.push(*f);
            }
        });
        called.into_iter().try_for_each(|f| self.ready(f))
    }

    /// Tabulates `f` and what its definition calls.
    ///
    /// # Errors
    /// [`InterpError::Unsupported`] for an unknown function, or one that a later one defines; a table that cannot be
    /// built, or has no room.
    pub fn ready(&mut self, f: UfId) -> Result<(), InterpError> {
        if self.functions.is_ready(f) {
            return Ok(());
        }
        let Some(uf) = self.env.ufs.get(f) else { return Err(self.unsupported("a call of an unknown function")) };
        let mut needs: Vec<ExprId> = uf.domain.clone();
        needs.extend(uf.def.body());
        if let UfDef::Extent { lo, hi } = uf.def {
            needs.extend([lo, hi]);
        }
        for e in needs {
            let mut later = false;
            self.env.pool.walk(e, &mut |_, node| later |= matches!(node, Expr::Call(g, _) if *g >= f));
            if later {
                return Err(self.unsupported(format!("function `{}` is defined by a later one", uf.name)));
            }
            self.prepare(e)?;
        }
        if let UfDef::Search { sum } = uf.def {
            if sum >= f {
                return Err(self.unsupported(format!("function `{}` is defined by a later one", uf.name)));
            }
            self.ready(sum)?;
        }
        let limit = self.room();
        self.functions.build(f, self.env, &self.batch.params, self.batch, self.stage, limit)?;
        let bytes = self.functions.bytes(f);
        self.charge(|| uf.name.clone(), bytes)
    }

    /// An evaluator of single expressions.
    pub fn scalars<'c>(&'c self, memory: Option<&'c Memory<'c>>) -> Scalars<'c> {
        let (env, params, functions, stage) = (self.env, &self.batch.params, &self.functions, self.stage);
        Scalars { env, params, functions, memory, stage }
    }

    /// The value of an integer expression that must be defined.
    ///
    /// # Errors
    /// [`InterpError::Undefined`] if it is not defined; as [`Self::prepare`].
    pub fn size(&mut self, e: ExprId, memory: &Memory<'_>, name: &str) -> Result<i64, InterpError> {
        self.prepare(e)?;
        self.scalars(Some(memory)).int(e, &[], &[])?.ok_or_else(|| self.undefined_extent(name, &[]))
    }

    /// [`Self::size`] of what depends on a position, and on no memory.
    fn size_at(&mut self, e: ExprId, index: &[i64], name: &str) -> Result<i64, InterpError> {
        self.prepare(e)?;
        let none = Memory::default();
        self.scalars(Some(&none)).int(e, index, &[])?.ok_or_else(|| self.undefined_extent(name, index))
    }

    fn undefined_extent(&self, name: &str, index: &[i64]) -> InterpError {
        InterpError::Undefined {
            stage: self.stage,
            usage: Use::Extent,
            name: name.to_owned(),
            index: index.to_vec(),
            origin: None,
        }
    }

    /// Tabulates the functions in a tensor's sizes.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn prepare_tensor(&mut self, t: TensorId) -> Result<(), InterpError> {
        for d in &self.env.tensors[t].dims {
            self.prepare(d.extent)?;
            self.prepare(d.storage)?;
        }
        Ok(())
    }

    /// The level tables of a tensor whose functions are ready; its extents may read `tables`.
    ///
    /// # Errors
    /// [`InterpError::Undefined`] for a size without a value, [`InterpError::TooLarge`] or [`InterpError::NoMemory`].
    pub fn levels(
        &self,
        t: TensorId,
        size: Size,
        vars: &Bindings,
        rows: Option<&[i64]>,
        tables: Option<&Memory<'_>>,
    ) -> Result<Levels, InterpError> {
        let tensor = &self.env.tensors[t];
        let scalars = self.scalars(tables);
        let mut levels = Levels::scalar();
        for (d, dim) in tensor.dims.iter().enumerate() {
            let e = if size == Size::Extent { dim.extent } else { dim.storage };
            let mut at = |args: &[i64]| match scalars.int(e, args, vars)? {
                Some(n) => Ok(n),
                // Functions have no values there; in storage, nothing stands inside padding.
                None if size == Size::Storage && self.in_padding(t, args, &scalars, vars)? => Ok(0),
                None => Err(self.undefined_extent(&tensor.name, args)),
            };
            if let (0, Some(rows)) = (d, rows) {
                levels = Levels::kept(at(&[])?, rows);
                continue;
            }
            let depends = leading_args(self.env, e);
            levels.push(LevelExtent { at: &mut at, depends }, self.room())?.ok_or_else(|| self.too_large(t))?;
        }
        Ok(levels)
    }

    /// Whether one of a position's indices is beyond the extent of its dimension.
    fn in_padding(&self, t: TensorId, index: &[i64], at: &Scalars<'_>, vars: &Bindings) -> Result<bool, InterpError> {
        for (j, &i) in index.iter().enumerate() {
            match at.int(self.env.tensors[t].dims[j].extent, &index[..j], vars)? {
                Some(n) if i < n => {}
                Some(_) => return Ok(true),
                None => return Ok(false),
            }
        }
        Ok(false)
    }

    pub fn too_large(&self, t: TensorId) -> InterpError {
        InterpError::TooLarge { what: self.tensor_name(t), limit: self.cap }
    }

    /// A new tensor of undefined elements.
    ///
    /// # Errors
    /// [`InterpError::TooLarge`] or [`InterpError::NoMemory`].
    pub fn hold<'b>(&mut self, t: TensorId, levels: Levels) -> Result<Held<'b>, InterpError> {
        let len = usize::try_from(levels.total).unwrap_or(0);
        self.charge_levels(t, &levels)?;
        Ok(Held { buf: Buffer::undefined(self.env.tensors[t].ty, len)?, levels: Arc::new(levels) })
    }

    /// Counts the memory of a tensor with these levels.
    ///
    /// # Errors
    /// [`InterpError::TooLarge`] beyond the limit.
    pub fn charge_levels(&mut self, t: TensorId, levels: &Levels) -> Result<(), InterpError> {
        let bytes = held_bytes(levels);
        let name = self.tensor_name(t);
        self.charge(|| name, bytes)
    }

    /// The elements of an input, checked against its logical size and its declared range.
    ///
    /// # Errors
    /// [`InterpError::MissingInput`], [`InterpError::Count`], [`InterpError::Range`] or [`InterpError::Kind`].
    pub fn input(&mut self, t: TensorId, levels: &Levels) -> Result<Buffer<'a>, InterpError> {
        let (env, batch) = (self.env, self.batch);
        let tensor = &env.tensors[t];
        let Some(data) = batch.inputs.get(&t) else {
            return Err(InterpError::MissingInput { tensor: tensor.name.clone() });
        };
        if data.len() as i64 != levels.total {
            let expected = usize::try_from(levels.total).unwrap_or(usize::MAX);
            return Err(InterpError::Count { name: tensor.name.clone(), expected, found: data.len() });
        }
        let from_memory = |e| env.pool.any(e, &mut |n| matches!(n, Expr::Load { .. }));
        // Tables, which ranges are over in the storage dialect, do not exist yet; the batch is the one of the other stages.
        let range = tensor.range.filter(|&(lo, hi)| !from_memory(lo) && !from_memory(hi));
        if let (Some((lo, hi)), Data::I64(values)) = (range, data) {
            let by_position = tensor.range_by_position(&env.pool);
            let index_of = |at: usize| if by_position { levels.index_of(at as i64) } else { Vec::new() };
            let (mut known, mut ends) = (None, (0, 0));
            for (at, &value) in values.iter().enumerate() {
                let index = index_of(at);
                if known.as_ref() != Some(&index) {
                    ends = (self.size_at(lo, &index, &tensor.name)?, self.size_at(hi, &index, &tensor.name)?);
                    known = Some(index);
                }
                let (lo, hi) = ends;
                if !(lo..hi).contains(&value) {
                    let (name, index) = (tensor.name.clone(), levels.index_of(at as i64));
                    return Err(InterpError::Range { name, index, value, lo, hi: hi.saturating_sub(1) });
                }
            }
        }
        Buffer::borrowed(tensor.ty, data).ok_or_else(|| InterpError::Kind { tensor: tensor.name.clone() })
    }

    /// The error for an undefined element of a result.
    pub fn undefined_output(&self, t: TensorId, levels: &Levels, at: usize) -> InterpError {
        InterpError::Undefined {
            stage: self.stage,
            usage: Use::Output,
            name: self.tensor_name(t),
            index: levels.index_of(at as i64),
            origin: self.overflow.load(Ordering::Relaxed).then(|| OUTSIDE.to_owned()),
        }
    }
}

/// Where an undefined value comes from that was an index.
pub(crate) const OUTSIDE: &str = "an index outside 64 bits";

/// Bytes of a tensor and its tables.
pub(crate) fn held_bytes(levels: &Levels) -> usize {
    usize::try_from(levels.total).unwrap_or(usize::MAX).saturating_mul(8).saturating_add(levels.bytes())
}
