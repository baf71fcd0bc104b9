//! Named workloads, length data sets, analytic formulas, measurements and the `cora-bench` command.
//!
//! [`datasets`] reads length files and cuts them into batches, [`analytic`] holds the paper's formulas,
//! [`tables`] the sizes of the tables that the compiler really builds; [`workload`] and [`measure`] time
//! example programs, [`peers`] other libraries on the same batch, [`peak`] the machine; [`suite`] is the paper's
//! experiments, [`report`] their figures and tables. [`cli`] is the command, with a module for each subcommand;
//! what they say goes to a [`console`](cora::console).
//!
//! What padding costs a layer of the paper's encoder, for four sequences:
//!
//! ```
//! let work = cora_bench::analytic::flops(&[17, 5, 64, 30]);
//! assert!(work.ideal <= work.real && work.real < 0.6 * work.dense, "{work:?}");
//! ```

pub mod accuracy;
pub mod analytic;
pub mod bench;
pub mod case;
pub mod cli;
pub mod csf;
pub mod datasets;
pub mod layer_work;
pub mod measure;
pub mod paper;
pub mod peak;
pub mod peers;
pub mod preludes;
pub mod record;
pub mod report;
pub mod suite;
pub mod svg;
pub mod tables;
pub mod targets;
pub mod workload;
