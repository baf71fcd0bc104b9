//! Named workloads, length data sets, analytic formulas, peers and reports.
