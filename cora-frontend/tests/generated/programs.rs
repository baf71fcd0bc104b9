// Written by tests/builder.rs; set CORA_BLESS=1 to write it again.

/// The program `attnv`.
pub fn attnv() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("attnv");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let p = b.input("P", &[batch, h, q, k], ScalarType::F32);
    let v = b.input("V", &[batch, k, h, d], ScalarType::F32);
    let o = b.reduce("O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)) * v.at((batch, k, h, d)));
    b.output(o);
    b.finish()
}

/// The program `cross_attention`.
pub fn cross_attention() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("cross_attention");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let la = b.extent("la", &[batch], 0..=512);
    let q = b.dim("q", la.at([batch]));
    let lb = b.extent("lb", &[batch], 0..=512);
    let k = b.dim("k", lb.at([batch]));
    let q_2 = b.input("Q", &[batch, q, h, d], ScalarType::F32);
    let k_2 = b.input("K", &[batch, k, h, d], ScalarType::F32);
    let v = b.input("V", &[batch, k, h, d], ScalarType::F32);
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| q_2.at((batch, q, h, d)) * k_2.at((batch, k, h, d)));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    let p_m = b.reduce("P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| v_s.at((batch, h, q, k)));
    let p_e = b.compute("P.e", &[batch, h, q, k], |_| (v_s.at((batch, h, q, k)) - p_m.at((batch, h, q))).exp());
    let p_sum = b.reduce("P.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| p_e.at((batch, h, q, k)));
    let p = b.compute("P", &[batch, h, q, k], |_| p_e.at((batch, h, q, k)) / p_sum.at((batch, h, q)));
    let o = b.reduce("O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)) * v.at((batch, k, h, d)));
    b.output(o);
    b.finish()
}

/// The program `embedding_pool`.
pub fn embedding_pool() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("embedding_pool");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let t = b.dim("t", lens.at([batch]));
    let v = b.dim("v", 32000);
    let d = b.dim("d", 128);
    let ids = b.input("ids", &[batch, t], ScalarType::I32);
    b.range(ids, Value::from(0)..Value::from(32000));
    let e = b.const_input("E", &[v, d], ScalarType::F32);
    let y_sum = b.reduce("Y.sum", &[batch, d], Combiner::Sum, &[t], |_, _| e.at((ids.at((batch, t)), d)));
    let y = b.compute("Y", &[batch, d], |_| y_sum.at((batch, d)) / lens.at([batch]).max(1).cast(ScalarType::F32));
    b.output(y);
    b.finish()
}

/// The program `encoder6`.
pub fn encoder6() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("encoder6");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let c = b.dim("c", 3);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let dm = b.dim("dm", 512);
    let ff = b.dim("ff", 2048);
    let layer = b.dim("layer", 6);
    let x = b.input("X", &[batch, q, dm], ScalarType::F32);
    let wqkv = b.const_input("Wqkv", &[layer, dm, c, h, d], ScalarType::F32);
    let bqkv = b.const_input("Bqkv", &[layer, c, h, d], ScalarType::F32);
    let wo = b.const_input("Wo", &[layer, h, d, dm], ScalarType::F32);
    let bo = b.const_input("Bo", &[layer, dm], ScalarType::F32);
    let g1 = b.const_input("G1", &[layer, dm], ScalarType::F32);
    let e1 = b.const_input("E1", &[layer, dm], ScalarType::F32);
    let w1 = b.const_input("W1", &[layer, dm, ff], ScalarType::F32);
    let b1 = b.const_input("B1", &[layer, ff], ScalarType::F32);
    let w2 = b.const_input("W2", &[layer, ff, dm], ScalarType::F32);
    let b2 = b.const_input("B2", &[layer, dm], ScalarType::F32);
    let g2 = b.const_input("G2", &[layer, dm], ScalarType::F32);
    let e2 = b.const_input("E2", &[layer, dm], ScalarType::F32);
    let l0_qkv_sum = b.reduce("L0.QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| x.at((batch, q, dm)) * wqkv.at((0, dm, c, h, d)));
    let l0_qkv = b.compute("L0.QKV", &[batch, q, c, h, d], |_| bqkv.at((0, c, h, d)) + l0_qkv_sum.at((batch, q, c, h, d)));
    let l0_s_sum = b.reduce("L0.S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| l0_qkv.at((batch, q, 0, h, d)) * l0_qkv.at((batch, k, 1, h, d)));
    let l0_s = b.compute("L0.S", &[batch, h, q, k], |_| 0.125 * l0_s_sum.at((batch, h, q, k)));
    let l0_p_m = b.reduce("L0.P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| l0_s.at((batch, h, q, k)));
    let l0_p_e = b.compute("L0.P.e", &[batch, h, q, k], |_| (l0_s.at((batch, h, q, k)) - l0_p_m.at((batch, h, q))).exp());
    let l0_p_r_sum = b.reduce("L0.P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| l0_p_e.at((batch, h, q, k)));
    let l0_p_r = b.compute("L0.P.r", &[batch, h, q], |_| 1.0 / l0_p_r_sum.at((batch, h, q)));
    let l0_p = b.compute("L0.P", &[batch, h, q, k], |_| l0_p_e.at((batch, h, q, k)) * l0_p_r.at((batch, h, q)));
    let l0_o = b.reduce("L0.O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| l0_p.at((batch, h, q, k)) * l0_qkv.at((batch, k, 2, h, d)));
    let l0_a_sum = b.reduce("L0.A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| l0_o.at((batch, q, h, d)) * wo.at((0, h, d, dm)));
    let l0_a = b.compute("L0.A", &[batch, q, dm], |_| x.at((batch, q, dm)) + bo.at((0, dm)) + l0_a_sum.at((batch, q, dm)));
    let l0_n_mean = b.reduce("L0.N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l0_a.at((batch, q, dm)) / 512.0);
    let l0_n_var = b.reduce("L0.N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l0_a.at((batch, q, dm)) - l0_n_mean.at((batch, q))) * (l0_a.at((batch, q, dm)) - l0_n_mean.at((batch, q))) / 512.0);
    let l0_n = b.compute("L0.N", &[batch, q, dm], |_| (l0_a.at((batch, q, dm)) - l0_n_mean.at((batch, q))) * (l0_n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at((0, dm)) + e1.at((0, dm)));
    let l0_f_sum = b.reduce("L0.F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| l0_n.at((batch, q, dm)) * w1.at((0, dm, ff)));
    let l0_f = b.compute("L0.F", &[batch, q, ff], |_| (b1.at((0, ff)) + l0_f_sum.at((batch, q, ff))).max(0.0));
    let l0_r_sum = b.reduce("L0.R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| l0_f.at((batch, q, ff)) * w2.at((0, ff, dm)));
    let l0_r = b.compute("L0.R", &[batch, q, dm], |_| l0_n.at((batch, q, dm)) + b2.at((0, dm)) + l0_r_sum.at((batch, q, dm)));
    let l0_mean = b.reduce("L0.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l0_r.at((batch, q, dm)) / 512.0);
    let l0_var = b.reduce("L0.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l0_r.at((batch, q, dm)) - l0_mean.at((batch, q))) * (l0_r.at((batch, q, dm)) - l0_mean.at((batch, q))) / 512.0);
    let l0 = b.compute("L0", &[batch, q, dm], |_| (l0_r.at((batch, q, dm)) - l0_mean.at((batch, q))) * (l0_var.at((batch, q)) + 1e-5).rsqrt() * g2.at((0, dm)) + e2.at((0, dm)));
    let l1_qkv_sum = b.reduce("L1.QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| l0.at((batch, q, dm)) * wqkv.at((1, dm, c, h, d)));
    let l1_qkv = b.compute("L1.QKV", &[batch, q, c, h, d], |_| bqkv.at((1, c, h, d)) + l1_qkv_sum.at((batch, q, c, h, d)));
    let l1_s_sum = b.reduce("L1.S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| l1_qkv.at((batch, q, 0, h, d)) * l1_qkv.at((batch, k, 1, h, d)));
    let l1_s = b.compute("L1.S", &[batch, h, q, k], |_| 0.125 * l1_s_sum.at((batch, h, q, k)));
    let l1_p_m = b.reduce("L1.P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| l1_s.at((batch, h, q, k)));
    let l1_p_e = b.compute("L1.P.e", &[batch, h, q, k], |_| (l1_s.at((batch, h, q, k)) - l1_p_m.at((batch, h, q))).exp());
    let l1_p_r_sum = b.reduce("L1.P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| l1_p_e.at((batch, h, q, k)));
    let l1_p_r = b.compute("L1.P.r", &[batch, h, q], |_| 1.0 / l1_p_r_sum.at((batch, h, q)));
    let l1_p = b.compute("L1.P", &[batch, h, q, k], |_| l1_p_e.at((batch, h, q, k)) * l1_p_r.at((batch, h, q)));
    let l1_o = b.reduce("L1.O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| l1_p.at((batch, h, q, k)) * l1_qkv.at((batch, k, 2, h, d)));
    let l1_a_sum = b.reduce("L1.A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| l1_o.at((batch, q, h, d)) * wo.at((1, h, d, dm)));
    let l1_a = b.compute("L1.A", &[batch, q, dm], |_| l0.at((batch, q, dm)) + bo.at((1, dm)) + l1_a_sum.at((batch, q, dm)));
    let l1_n_mean = b.reduce("L1.N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l1_a.at((batch, q, dm)) / 512.0);
    let l1_n_var = b.reduce("L1.N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l1_a.at((batch, q, dm)) - l1_n_mean.at((batch, q))) * (l1_a.at((batch, q, dm)) - l1_n_mean.at((batch, q))) / 512.0);
    let l1_n = b.compute("L1.N", &[batch, q, dm], |_| (l1_a.at((batch, q, dm)) - l1_n_mean.at((batch, q))) * (l1_n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at((1, dm)) + e1.at((1, dm)));
    let l1_f_sum = b.reduce("L1.F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| l1_n.at((batch, q, dm)) * w1.at((1, dm, ff)));
    let l1_f = b.compute("L1.F", &[batch, q, ff], |_| (b1.at((1, ff)) + l1_f_sum.at((batch, q, ff))).max(0.0));
    let l1_r_sum = b.reduce("L1.R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| l1_f.at((batch, q, ff)) * w2.at((1, ff, dm)));
    let l1_r = b.compute("L1.R", &[batch, q, dm], |_| l1_n.at((batch, q, dm)) + b2.at((1, dm)) + l1_r_sum.at((batch, q, dm)));
    let l1_mean = b.reduce("L1.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l1_r.at((batch, q, dm)) / 512.0);
    let l1_var = b.reduce("L1.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l1_r.at((batch, q, dm)) - l1_mean.at((batch, q))) * (l1_r.at((batch, q, dm)) - l1_mean.at((batch, q))) / 512.0);
    let l1 = b.compute("L1", &[batch, q, dm], |_| (l1_r.at((batch, q, dm)) - l1_mean.at((batch, q))) * (l1_var.at((batch, q)) + 1e-5).rsqrt() * g2.at((1, dm)) + e2.at((1, dm)));
    let l2_qkv_sum = b.reduce("L2.QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| l1.at((batch, q, dm)) * wqkv.at((2, dm, c, h, d)));
    let l2_qkv = b.compute("L2.QKV", &[batch, q, c, h, d], |_| bqkv.at((2, c, h, d)) + l2_qkv_sum.at((batch, q, c, h, d)));
    let l2_s_sum = b.reduce("L2.S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| l2_qkv.at((batch, q, 0, h, d)) * l2_qkv.at((batch, k, 1, h, d)));
    let l2_s = b.compute("L2.S", &[batch, h, q, k], |_| 0.125 * l2_s_sum.at((batch, h, q, k)));
    let l2_p_m = b.reduce("L2.P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| l2_s.at((batch, h, q, k)));
    let l2_p_e = b.compute("L2.P.e", &[batch, h, q, k], |_| (l2_s.at((batch, h, q, k)) - l2_p_m.at((batch, h, q))).exp());
    let l2_p_r_sum = b.reduce("L2.P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| l2_p_e.at((batch, h, q, k)));
    let l2_p_r = b.compute("L2.P.r", &[batch, h, q], |_| 1.0 / l2_p_r_sum.at((batch, h, q)));
    let l2_p = b.compute("L2.P", &[batch, h, q, k], |_| l2_p_e.at((batch, h, q, k)) * l2_p_r.at((batch, h, q)));
    let l2_o = b.reduce("L2.O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| l2_p.at((batch, h, q, k)) * l2_qkv.at((batch, k, 2, h, d)));
    let l2_a_sum = b.reduce("L2.A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| l2_o.at((batch, q, h, d)) * wo.at((2, h, d, dm)));
    let l2_a = b.compute("L2.A", &[batch, q, dm], |_| l1.at((batch, q, dm)) + bo.at((2, dm)) + l2_a_sum.at((batch, q, dm)));
    let l2_n_mean = b.reduce("L2.N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l2_a.at((batch, q, dm)) / 512.0);
    let l2_n_var = b.reduce("L2.N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l2_a.at((batch, q, dm)) - l2_n_mean.at((batch, q))) * (l2_a.at((batch, q, dm)) - l2_n_mean.at((batch, q))) / 512.0);
    let l2_n = b.compute("L2.N", &[batch, q, dm], |_| (l2_a.at((batch, q, dm)) - l2_n_mean.at((batch, q))) * (l2_n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at((2, dm)) + e1.at((2, dm)));
    let l2_f_sum = b.reduce("L2.F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| l2_n.at((batch, q, dm)) * w1.at((2, dm, ff)));
    let l2_f = b.compute("L2.F", &[batch, q, ff], |_| (b1.at((2, ff)) + l2_f_sum.at((batch, q, ff))).max(0.0));
    let l2_r_sum = b.reduce("L2.R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| l2_f.at((batch, q, ff)) * w2.at((2, ff, dm)));
    let l2_r = b.compute("L2.R", &[batch, q, dm], |_| l2_n.at((batch, q, dm)) + b2.at((2, dm)) + l2_r_sum.at((batch, q, dm)));
    let l2_mean = b.reduce("L2.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l2_r.at((batch, q, dm)) / 512.0);
    let l2_var = b.reduce("L2.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l2_r.at((batch, q, dm)) - l2_mean.at((batch, q))) * (l2_r.at((batch, q, dm)) - l2_mean.at((batch, q))) / 512.0);
    let l2 = b.compute("L2", &[batch, q, dm], |_| (l2_r.at((batch, q, dm)) - l2_mean.at((batch, q))) * (l2_var.at((batch, q)) + 1e-5).rsqrt() * g2.at((2, dm)) + e2.at((2, dm)));
    let l3_qkv_sum = b.reduce("L3.QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| l2.at((batch, q, dm)) * wqkv.at((3, dm, c, h, d)));
    let l3_qkv = b.compute("L3.QKV", &[batch, q, c, h, d], |_| bqkv.at((3, c, h, d)) + l3_qkv_sum.at((batch, q, c, h, d)));
    let l3_s_sum = b.reduce("L3.S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| l3_qkv.at((batch, q, 0, h, d)) * l3_qkv.at((batch, k, 1, h, d)));
    let l3_s = b.compute("L3.S", &[batch, h, q, k], |_| 0.125 * l3_s_sum.at((batch, h, q, k)));
    let l3_p_m = b.reduce("L3.P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| l3_s.at((batch, h, q, k)));
    let l3_p_e = b.compute("L3.P.e", &[batch, h, q, k], |_| (l3_s.at((batch, h, q, k)) - l3_p_m.at((batch, h, q))).exp());
    let l3_p_r_sum = b.reduce("L3.P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| l3_p_e.at((batch, h, q, k)));
    let l3_p_r = b.compute("L3.P.r", &[batch, h, q], |_| 1.0 / l3_p_r_sum.at((batch, h, q)));
    let l3_p = b.compute("L3.P", &[batch, h, q, k], |_| l3_p_e.at((batch, h, q, k)) * l3_p_r.at((batch, h, q)));
    let l3_o = b.reduce("L3.O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| l3_p.at((batch, h, q, k)) * l3_qkv.at((batch, k, 2, h, d)));
    let l3_a_sum = b.reduce("L3.A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| l3_o.at((batch, q, h, d)) * wo.at((3, h, d, dm)));
    let l3_a = b.compute("L3.A", &[batch, q, dm], |_| l2.at((batch, q, dm)) + bo.at((3, dm)) + l3_a_sum.at((batch, q, dm)));
    let l3_n_mean = b.reduce("L3.N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l3_a.at((batch, q, dm)) / 512.0);
    let l3_n_var = b.reduce("L3.N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l3_a.at((batch, q, dm)) - l3_n_mean.at((batch, q))) * (l3_a.at((batch, q, dm)) - l3_n_mean.at((batch, q))) / 512.0);
    let l3_n = b.compute("L3.N", &[batch, q, dm], |_| (l3_a.at((batch, q, dm)) - l3_n_mean.at((batch, q))) * (l3_n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at((3, dm)) + e1.at((3, dm)));
    let l3_f_sum = b.reduce("L3.F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| l3_n.at((batch, q, dm)) * w1.at((3, dm, ff)));
    let l3_f = b.compute("L3.F", &[batch, q, ff], |_| (b1.at((3, ff)) + l3_f_sum.at((batch, q, ff))).max(0.0));
    let l3_r_sum = b.reduce("L3.R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| l3_f.at((batch, q, ff)) * w2.at((3, ff, dm)));
    let l3_r = b.compute("L3.R", &[batch, q, dm], |_| l3_n.at((batch, q, dm)) + b2.at((3, dm)) + l3_r_sum.at((batch, q, dm)));
    let l3_mean = b.reduce("L3.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l3_r.at((batch, q, dm)) / 512.0);
    let l3_var = b.reduce("L3.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l3_r.at((batch, q, dm)) - l3_mean.at((batch, q))) * (l3_r.at((batch, q, dm)) - l3_mean.at((batch, q))) / 512.0);
    let l3 = b.compute("L3", &[batch, q, dm], |_| (l3_r.at((batch, q, dm)) - l3_mean.at((batch, q))) * (l3_var.at((batch, q)) + 1e-5).rsqrt() * g2.at((3, dm)) + e2.at((3, dm)));
    let l4_qkv_sum = b.reduce("L4.QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| l3.at((batch, q, dm)) * wqkv.at((4, dm, c, h, d)));
    let l4_qkv = b.compute("L4.QKV", &[batch, q, c, h, d], |_| bqkv.at((4, c, h, d)) + l4_qkv_sum.at((batch, q, c, h, d)));
    let l4_s_sum = b.reduce("L4.S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| l4_qkv.at((batch, q, 0, h, d)) * l4_qkv.at((batch, k, 1, h, d)));
    let l4_s = b.compute("L4.S", &[batch, h, q, k], |_| 0.125 * l4_s_sum.at((batch, h, q, k)));
    let l4_p_m = b.reduce("L4.P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| l4_s.at((batch, h, q, k)));
    let l4_p_e = b.compute("L4.P.e", &[batch, h, q, k], |_| (l4_s.at((batch, h, q, k)) - l4_p_m.at((batch, h, q))).exp());
    let l4_p_r_sum = b.reduce("L4.P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| l4_p_e.at((batch, h, q, k)));
    let l4_p_r = b.compute("L4.P.r", &[batch, h, q], |_| 1.0 / l4_p_r_sum.at((batch, h, q)));
    let l4_p = b.compute("L4.P", &[batch, h, q, k], |_| l4_p_e.at((batch, h, q, k)) * l4_p_r.at((batch, h, q)));
    let l4_o = b.reduce("L4.O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| l4_p.at((batch, h, q, k)) * l4_qkv.at((batch, k, 2, h, d)));
    let l4_a_sum = b.reduce("L4.A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| l4_o.at((batch, q, h, d)) * wo.at((4, h, d, dm)));
    let l4_a = b.compute("L4.A", &[batch, q, dm], |_| l3.at((batch, q, dm)) + bo.at((4, dm)) + l4_a_sum.at((batch, q, dm)));
    let l4_n_mean = b.reduce("L4.N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l4_a.at((batch, q, dm)) / 512.0);
    let l4_n_var = b.reduce("L4.N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l4_a.at((batch, q, dm)) - l4_n_mean.at((batch, q))) * (l4_a.at((batch, q, dm)) - l4_n_mean.at((batch, q))) / 512.0);
    let l4_n = b.compute("L4.N", &[batch, q, dm], |_| (l4_a.at((batch, q, dm)) - l4_n_mean.at((batch, q))) * (l4_n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at((4, dm)) + e1.at((4, dm)));
    let l4_f_sum = b.reduce("L4.F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| l4_n.at((batch, q, dm)) * w1.at((4, dm, ff)));
    let l4_f = b.compute("L4.F", &[batch, q, ff], |_| (b1.at((4, ff)) + l4_f_sum.at((batch, q, ff))).max(0.0));
    let l4_r_sum = b.reduce("L4.R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| l4_f.at((batch, q, ff)) * w2.at((4, ff, dm)));
    let l4_r = b.compute("L4.R", &[batch, q, dm], |_| l4_n.at((batch, q, dm)) + b2.at((4, dm)) + l4_r_sum.at((batch, q, dm)));
    let l4_mean = b.reduce("L4.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l4_r.at((batch, q, dm)) / 512.0);
    let l4_var = b.reduce("L4.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l4_r.at((batch, q, dm)) - l4_mean.at((batch, q))) * (l4_r.at((batch, q, dm)) - l4_mean.at((batch, q))) / 512.0);
    let l4 = b.compute("L4", &[batch, q, dm], |_| (l4_r.at((batch, q, dm)) - l4_mean.at((batch, q))) * (l4_var.at((batch, q)) + 1e-5).rsqrt() * g2.at((4, dm)) + e2.at((4, dm)));
    let l5_qkv_sum = b.reduce("L5.QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| l4.at((batch, q, dm)) * wqkv.at((5, dm, c, h, d)));
    let l5_qkv = b.compute("L5.QKV", &[batch, q, c, h, d], |_| bqkv.at((5, c, h, d)) + l5_qkv_sum.at((batch, q, c, h, d)));
    let l5_s_sum = b.reduce("L5.S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| l5_qkv.at((batch, q, 0, h, d)) * l5_qkv.at((batch, k, 1, h, d)));
    let l5_s = b.compute("L5.S", &[batch, h, q, k], |_| 0.125 * l5_s_sum.at((batch, h, q, k)));
    let l5_p_m = b.reduce("L5.P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| l5_s.at((batch, h, q, k)));
    let l5_p_e = b.compute("L5.P.e", &[batch, h, q, k], |_| (l5_s.at((batch, h, q, k)) - l5_p_m.at((batch, h, q))).exp());
    let l5_p_r_sum = b.reduce("L5.P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| l5_p_e.at((batch, h, q, k)));
    let l5_p_r = b.compute("L5.P.r", &[batch, h, q], |_| 1.0 / l5_p_r_sum.at((batch, h, q)));
    let l5_p = b.compute("L5.P", &[batch, h, q, k], |_| l5_p_e.at((batch, h, q, k)) * l5_p_r.at((batch, h, q)));
    let l5_o = b.reduce("L5.O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| l5_p.at((batch, h, q, k)) * l5_qkv.at((batch, k, 2, h, d)));
    let l5_a_sum = b.reduce("L5.A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| l5_o.at((batch, q, h, d)) * wo.at((5, h, d, dm)));
    let l5_a = b.compute("L5.A", &[batch, q, dm], |_| l4.at((batch, q, dm)) + bo.at((5, dm)) + l5_a_sum.at((batch, q, dm)));
    let l5_n_mean = b.reduce("L5.N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l5_a.at((batch, q, dm)) / 512.0);
    let l5_n_var = b.reduce("L5.N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l5_a.at((batch, q, dm)) - l5_n_mean.at((batch, q))) * (l5_a.at((batch, q, dm)) - l5_n_mean.at((batch, q))) / 512.0);
    let l5_n = b.compute("L5.N", &[batch, q, dm], |_| (l5_a.at((batch, q, dm)) - l5_n_mean.at((batch, q))) * (l5_n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at((5, dm)) + e1.at((5, dm)));
    let l5_f_sum = b.reduce("L5.F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| l5_n.at((batch, q, dm)) * w1.at((5, dm, ff)));
    let l5_f = b.compute("L5.F", &[batch, q, ff], |_| (b1.at((5, ff)) + l5_f_sum.at((batch, q, ff))).max(0.0));
    let l5_r_sum = b.reduce("L5.R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| l5_f.at((batch, q, ff)) * w2.at((5, ff, dm)));
    let l5_r = b.compute("L5.R", &[batch, q, dm], |_| l5_n.at((batch, q, dm)) + b2.at((5, dm)) + l5_r_sum.at((batch, q, dm)));
    let l5_mean = b.reduce("L5.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| l5_r.at((batch, q, dm)) / 512.0);
    let l5_var = b.reduce("L5.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (l5_r.at((batch, q, dm)) - l5_mean.at((batch, q))) * (l5_r.at((batch, q, dm)) - l5_mean.at((batch, q))) / 512.0);
    let l5 = b.compute("L5", &[batch, q, dm], |_| (l5_r.at((batch, q, dm)) - l5_mean.at((batch, q))) * (l5_var.at((batch, q)) + 1e-5).rsqrt() * g2.at((5, dm)) + e2.at((5, dm)));
    b.output(l5);
    b.finish()
}

/// The program `encoder_layer`.
pub fn encoder_layer() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("encoder_layer");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let c = b.dim("c", 3);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let dm = b.dim("dm", 512);
    let ff = b.dim("ff", 2048);
    let x = b.input("X", &[batch, q, dm], ScalarType::F32);
    let wqkv = b.const_input("Wqkv", &[dm, c, h, d], ScalarType::F32);
    let bqkv = b.const_input("Bqkv", &[c, h, d], ScalarType::F32);
    let wo = b.const_input("Wo", &[h, d, dm], ScalarType::F32);
    let bo = b.const_input("Bo", &[dm], ScalarType::F32);
    let g1 = b.const_input("G1", &[dm], ScalarType::F32);
    let e1 = b.const_input("E1", &[dm], ScalarType::F32);
    let w1 = b.const_input("W1", &[dm, ff], ScalarType::F32);
    let b1 = b.const_input("B1", &[ff], ScalarType::F32);
    let w2 = b.const_input("W2", &[ff, dm], ScalarType::F32);
    let b2 = b.const_input("B2", &[dm], ScalarType::F32);
    let g2 = b.const_input("G2", &[dm], ScalarType::F32);
    let e2 = b.const_input("E2", &[dm], ScalarType::F32);
    let qkv_sum = b.reduce("QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| x.at((batch, q, dm)) * wqkv.at((dm, c, h, d)));
    let qkv = b.compute("QKV", &[batch, q, c, h, d], |_| bqkv.at((c, h, d)) + qkv_sum.at((batch, q, c, h, d)));
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| qkv.at((batch, q, 0, h, d)) * qkv.at((batch, k, 1, h, d)));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    let p_m = b.reduce("P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| v_s.at((batch, h, q, k)));
    let p_e = b.compute("P.e", &[batch, h, q, k], |_| (v_s.at((batch, h, q, k)) - p_m.at((batch, h, q))).exp());
    let p_r_sum = b.reduce("P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| p_e.at((batch, h, q, k)));
    let p_r = b.compute("P.r", &[batch, h, q], |_| 1.0 / p_r_sum.at((batch, h, q)));
    let p = b.compute("P", &[batch, h, q, k], |_| p_e.at((batch, h, q, k)) * p_r.at((batch, h, q)));
    let o = b.reduce("O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)) * qkv.at((batch, k, 2, h, d)));
    let a_sum = b.reduce("A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| o.at((batch, q, h, d)) * wo.at((h, d, dm)));
    let a = b.compute("A", &[batch, q, dm], |_| x.at((batch, q, dm)) + bo.at([dm]) + a_sum.at((batch, q, dm)));
    let n_mean = b.reduce("N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| a.at((batch, q, dm)) / 512.0);
    let n_var = b.reduce("N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (a.at((batch, q, dm)) - n_mean.at((batch, q))) * (a.at((batch, q, dm)) - n_mean.at((batch, q))) / 512.0);
    let n = b.compute("N", &[batch, q, dm], |_| (a.at((batch, q, dm)) - n_mean.at((batch, q))) * (n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at([dm]) + e1.at([dm]));
    let f_sum = b.reduce("F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| n.at((batch, q, dm)) * w1.at((dm, ff)));
    let f = b.compute("F", &[batch, q, ff], |_| (b1.at([ff]) + f_sum.at((batch, q, ff))).max(0.0));
    let r_sum = b.reduce("R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| f.at((batch, q, ff)) * w2.at((ff, dm)));
    let v_r = b.compute("R", &[batch, q, dm], |_| n.at((batch, q, dm)) + b2.at([dm]) + r_sum.at((batch, q, dm)));
    let y_mean = b.reduce("Y.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| v_r.at((batch, q, dm)) / 512.0);
    let y_var = b.reduce("Y.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (v_r.at((batch, q, dm)) - y_mean.at((batch, q))) * (v_r.at((batch, q, dm)) - y_mean.at((batch, q))) / 512.0);
    let y = b.compute("Y", &[batch, q, dm], |_| (v_r.at((batch, q, dm)) - y_mean.at((batch, q))) * (y_var.at((batch, q)) + 1e-5).rsqrt() * g2.at([dm]) + e2.at([dm]));
    b.output(y);
    b.finish()
}

/// The program `encoder_layer_bf16`.
pub fn encoder_layer_bf16() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("encoder_layer_bf16");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let c = b.dim("c", 3);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let dm = b.dim("dm", 512);
    let ff = b.dim("ff", 2048);
    let x = b.input("X", &[batch, q, dm], ScalarType::BF16);
    let wqkv = b.const_input("Wqkv", &[dm, c, h, d], ScalarType::BF16);
    let bqkv = b.const_input("Bqkv", &[c, h, d], ScalarType::F32);
    let wo = b.const_input("Wo", &[h, d, dm], ScalarType::BF16);
    let bo = b.const_input("Bo", &[dm], ScalarType::F32);
    let g1 = b.const_input("G1", &[dm], ScalarType::F32);
    let e1 = b.const_input("E1", &[dm], ScalarType::F32);
    let w1 = b.const_input("W1", &[dm, ff], ScalarType::BF16);
    let b1 = b.const_input("B1", &[ff], ScalarType::F32);
    let w2 = b.const_input("W2", &[ff, dm], ScalarType::BF16);
    let b2 = b.const_input("B2", &[dm], ScalarType::F32);
    let g2 = b.const_input("G2", &[dm], ScalarType::F32);
    let e2 = b.const_input("E2", &[dm], ScalarType::F32);
    let qkv_sum = b.reduce("QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| x.at((batch, q, dm)).cast(ScalarType::F32) * wqkv.at((dm, c, h, d)).cast(ScalarType::F32));
    let qkv = b.compute("QKV", &[batch, q, c, h, d], |_| (bqkv.at((c, h, d)) + qkv_sum.at((batch, q, c, h, d))).cast(ScalarType::BF16));
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| qkv.at((batch, q, 0, h, d)).cast(ScalarType::F32) * qkv.at((batch, k, 1, h, d)).cast(ScalarType::F32));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    let p_m = b.reduce("P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| v_s.at((batch, h, q, k)));
    let p_e = b.compute("P.e", &[batch, h, q, k], |_| (v_s.at((batch, h, q, k)) - p_m.at((batch, h, q))).exp());
    let p_r_sum = b.reduce("P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| p_e.at((batch, h, q, k)));
    let p_r = b.compute("P.r", &[batch, h, q], |_| 1.0 / p_r_sum.at((batch, h, q)));
    let p = b.compute("P", &[batch, h, q, k], |_| (p_e.at((batch, h, q, k)) * p_r.at((batch, h, q))).cast(ScalarType::BF16));
    let o_sum = b.reduce("O.sum", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)).cast(ScalarType::F32) * qkv.at((batch, k, 2, h, d)).cast(ScalarType::F32));
    let o = b.compute("O", &[batch, q, h, d], |_| o_sum.at((batch, q, h, d)).cast(ScalarType::BF16));
    let a_sum = b.reduce("A.sum", &[batch, q, dm], Combiner::Sum, &[h, d], |_, _| o.at((batch, q, h, d)).cast(ScalarType::F32) * wo.at((h, d, dm)).cast(ScalarType::F32));
    let a = b.compute("A", &[batch, q, dm], |_| x.at((batch, q, dm)).cast(ScalarType::F32) + bo.at([dm]) + a_sum.at((batch, q, dm)));
    let n_mean = b.reduce("N.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| a.at((batch, q, dm)) / 512.0);
    let n_var = b.reduce("N.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (a.at((batch, q, dm)) - n_mean.at((batch, q))) * (a.at((batch, q, dm)) - n_mean.at((batch, q))) / 512.0);
    let n = b.compute("N", &[batch, q, dm], |_| ((a.at((batch, q, dm)) - n_mean.at((batch, q))) * (n_var.at((batch, q)) + 1e-5).rsqrt() * g1.at([dm]) + e1.at([dm])).cast(ScalarType::BF16));
    let f_sum = b.reduce("F.sum", &[batch, q, ff], Combiner::Sum, &[dm], |_, _| n.at((batch, q, dm)).cast(ScalarType::F32) * w1.at((dm, ff)).cast(ScalarType::F32));
    let f = b.compute("F", &[batch, q, ff], |_| (b1.at([ff]) + f_sum.at((batch, q, ff))).max(0.0).cast(ScalarType::BF16));
    let r_sum = b.reduce("R.sum", &[batch, q, dm], Combiner::Sum, &[ff], |_, _| f.at((batch, q, ff)).cast(ScalarType::F32) * w2.at((ff, dm)).cast(ScalarType::F32));
    let v_r = b.compute("R", &[batch, q, dm], |_| n.at((batch, q, dm)).cast(ScalarType::F32) + b2.at([dm]) + r_sum.at((batch, q, dm)));
    let y_mean = b.reduce("Y.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| v_r.at((batch, q, dm)) / 512.0);
    let y_var = b.reduce("Y.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (v_r.at((batch, q, dm)) - y_mean.at((batch, q))) * (v_r.at((batch, q, dm)) - y_mean.at((batch, q))) / 512.0);
    let y = b.compute("Y", &[batch, q, dm], |_| ((v_r.at((batch, q, dm)) - y_mean.at((batch, q))) * (y_var.at((batch, q)) + 1e-5).rsqrt() * g2.at([dm]) + e2.at([dm])).cast(ScalarType::BF16));
    b.output(y);
    b.finish()
}

/// The program `gru`.
pub fn gru() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("gru");
    let m = b.param("M", 0..=512);
    let v_b = b.dim("b", m);
    let lens = b.extent("lens", &[v_b], 0..=512);
    let t = b.dim("t", lens.at([v_b]));
    let j = b.dim("j", 256);
    let k = b.dim("k", 256);
    let d = b.dim("d", 256);
    let x = b.input("X", &[v_b, t, d], ScalarType::F32);
    let wz = b.const_input("Wz", &[d, j], ScalarType::F32);
    let wr = b.const_input("Wr", &[d, j], ScalarType::F32);
    let wn = b.const_input("Wn", &[d, j], ScalarType::F32);
    let uz = b.const_input("Uz", &[k, j], ScalarType::F32);
    let ur = b.const_input("Ur", &[k, j], ScalarType::F32);
    let un = b.const_input("Un", &[k, j], ScalarType::F32);
    let az = b.reduce("Az", &[v_b, t, j], Combiner::Sum, &[d], |_, _| x.at((v_b, t, d)) * wz.at((d, j)));
    let ar = b.reduce("Ar", &[v_b, t, j], Combiner::Sum, &[d], |_, _| x.at((v_b, t, d)) * wr.at((d, j)));
    let an = b.reduce("An", &[v_b, t, j], Combiner::Sum, &[d], |_, _| x.at((v_b, t, d)) * wn.at((d, j)));
    let h = b.later("H", ScalarType::F32);
    let z_sum = b.reduce("z.sum", &[v_b, t, j], Combiner::Sum, &[k], |_, _| h.at((v_b, t - 1, k)).or_else(0.0) * uz.at((k, j)));
    let z = b.compute("z", &[v_b, t, j], |_| 1.0 / (1.0 + (-(az.at((v_b, t, j)) + z_sum.at((v_b, t, j)))).exp()));
    let r_sum = b.reduce("r.sum", &[v_b, t, j], Combiner::Sum, &[k], |_, _| h.at((v_b, t - 1, k)).or_else(0.0) * ur.at((k, j)));
    let v_r = b.compute("r", &[v_b, t, j], |_| 1.0 / (1.0 + (-(ar.at((v_b, t, j)) + r_sum.at((v_b, t, j)))).exp()));
    let n_sum = b.reduce("n.sum", &[v_b, t, j], Combiner::Sum, &[k], |_, _| h.at((v_b, t - 1, k)).or_else(0.0) * un.at((k, j)));
    let n = b.compute("n", &[v_b, t, j], |_| (an.at((v_b, t, j)) + v_r.at((v_b, t, j)) * n_sum.at((v_b, t, j))).tanh());
    let h_2 = b.compute("H", &[v_b, t, j], |_| (1.0 - z.at((v_b, t, j))) * n.at((v_b, t, j)) + z.at((v_b, t, j)) * h.at((v_b, t - 1, j)).or_else(0.0));
    b.output(h_2);
    b.finish()
}

/// The program `images`.
pub fn images() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("images");
    let v_b = b.param("B", 0..=1024);
    let v_b_2 = b.dim("b", v_b);
    let rows = b.extent("rows", &[v_b_2], 0..=2048);
    let v_r = b.dim("r", rows.at([v_b_2]));
    let cols = b.extent("cols", &[v_b_2], 0..=2048);
    let c = b.dim("c", cols.at([v_b_2]));
    let u = b.dim("u", 3);
    let v = b.dim("v", 3);
    let a = b.input("A", &[v_b_2, v_r, c], ScalarType::F32);
    let y_sum = b.reduce("Y.sum", &[v_b_2, v_r, c], Combiner::Sum, &[u, v], |_, _| a.at((v_b_2, v_r + u - 1, c + v - 1)).or_else(0.0));
    let y = b.compute("Y", &[v_b_2, v_r, c], |_| y_sum.at((v_b_2, v_r, c)) * 0.11111111);
    b.output(y);
    b.finish()
}

/// The program `layer_norm`.
pub fn layer_norm() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("layer_norm");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let dm = b.dim("dm", 512);
    let x = b.input("X", &[batch, q, dm], ScalarType::F32);
    let gamma = b.const_input("gamma", &[dm], ScalarType::F32);
    let beta = b.const_input("beta", &[dm], ScalarType::F32);
    let y_mean = b.reduce("Y.mean", &[batch, q], Combiner::Sum, &[dm], |_, _| x.at((batch, q, dm)) / 512.0);
    let y_var = b.reduce("Y.var", &[batch, q], Combiner::Sum, &[dm], |_, _| (x.at((batch, q, dm)) - y_mean.at((batch, q))) * (x.at((batch, q, dm)) - y_mean.at((batch, q))) / 512.0);
    let y = b.compute("Y", &[batch, q, dm], |_| (x.at((batch, q, dm)) - y_mean.at((batch, q))) * (y_var.at((batch, q)) + 1e-5).rsqrt() * gamma.at([dm]) + beta.at([dm]));
    b.output(y);
    b.finish()
}

/// The program `listing1`.
pub fn listing1() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("listing1");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let len = b.dim("len", lens.at([batch]));
    let a = b.input("A", &[batch, len.padded(4)], ScalarType::F32);
    let v_b = b.compute("B", &[batch, len.padded(4)], |_| 2.0 * a.at((batch, len)));
    b.output(v_b);
    b.finish()
}

/// The program `masked_sdpa`.
pub fn masked_sdpa() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("masked_sdpa");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", q + 1);
    let c = b.dim("c", 3);
    let qkv = b.input("QKV", &[batch, q, c, h, d], ScalarType::F32);
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| qkv.at((batch, q, 0, h, d)) * qkv.at((batch, k, 1, h, d)));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    let p_m = b.reduce("P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| v_s.at((batch, h, q, k)));
    let p_e = b.compute("P.e", &[batch, h, q, k], |_| (v_s.at((batch, h, q, k)) - p_m.at((batch, h, q))).exp());
    let p_sum = b.reduce("P.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| p_e.at((batch, h, q, k)));
    let p = b.compute("P", &[batch, h, q, k], |_| p_e.at((batch, h, q, k)) / p_sum.at((batch, h, q)));
    let o = b.reduce("O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)) * qkv.at((batch, k, 2, h, d)));
    b.output(o);
    b.finish()
}

/// The program `mha`.
pub fn mha() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("mha");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let c = b.dim("c", 3);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let dm = b.dim("dm", 512);
    let dn = b.dim("dn", 512);
    let x = b.input("X", &[batch, q, dm], ScalarType::F32);
    let wqkv = b.const_input("Wqkv", &[dm, c, h, d], ScalarType::F32);
    let bqkv = b.const_input("Bqkv", &[c, h, d], ScalarType::F32);
    let wo = b.const_input("Wo", &[h, d, dn], ScalarType::F32);
    let bo = b.const_input("Bo", &[dn], ScalarType::F32);
    let qkv_sum = b.reduce("QKV.sum", &[batch, q, c, h, d], Combiner::Sum, &[dm], |_, _| x.at((batch, q, dm)) * wqkv.at((dm, c, h, d)));
    let qkv = b.compute("QKV", &[batch, q, c, h, d], |_| bqkv.at((c, h, d)) + qkv_sum.at((batch, q, c, h, d)));
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| qkv.at((batch, q, 0, h, d)) * qkv.at((batch, k, 1, h, d)));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    let p_m = b.reduce("P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| v_s.at((batch, h, q, k)));
    let p_e = b.compute("P.e", &[batch, h, q, k], |_| (v_s.at((batch, h, q, k)) - p_m.at((batch, h, q))).exp());
    let p_r_sum = b.reduce("P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| p_e.at((batch, h, q, k)));
    let p_r = b.compute("P.r", &[batch, h, q], |_| 1.0 / p_r_sum.at((batch, h, q)));
    let p = b.compute("P", &[batch, h, q, k], |_| p_e.at((batch, h, q, k)) * p_r.at((batch, h, q)));
    let o = b.reduce("O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)) * qkv.at((batch, k, 2, h, d)));
    let y_sum = b.reduce("Y.sum", &[batch, q, dn], Combiner::Sum, &[h, d], |_, _| o.at((batch, q, h, d)) * wo.at((h, d, dn)));
    let y = b.compute("Y", &[batch, q, dn], |_| bo.at([dn]) + y_sum.at((batch, q, dn)));
    b.output(y);
    b.finish()
}

/// The program `moe`.
pub fn moe() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("moe");
    let e = b.param("E", 0..=256);
    let expert = b.dim("expert", e);
    let tokens = b.extent("tokens", &[expert], 0..=8192);
    let t = b.dim("t", tokens.at([expert]));
    let dm = b.dim("dm", 512);
    let ff = b.dim("ff", 1024);
    let x = b.input("X", &[expert, t, dm], ScalarType::F32);
    let w = b.const_input("W", &[expert, dm, ff], ScalarType::F32);
    let bias = b.const_input("bias", &[expert, ff], ScalarType::F32);
    let y_sum = b.reduce("Y.sum", &[expert, t, ff], Combiner::Sum, &[dm], |_, _| x.at((expert, t, dm)) * w.at((expert, dm, ff)));
    let y = b.compute("Y", &[expert, t, ff], |_| (bias.at((expert, ff)) + y_sum.at((expert, t, ff))).max(0.0));
    b.output(y);
    b.finish()
}

/// The program `nested`.
pub fn nested() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("nested");
    let docs = b.param("DOCS", 0..=1024);
    let doc = b.dim("doc", docs);
    let sents = b.extent("sents", &[doc], 0..=256);
    let sent = b.dim("sent", sents.at([doc]));
    let words = b.extent("words", &[doc, sent], 0..=256);
    let word = b.dim("word", words.at((doc, sent)));
    let d = b.dim("d", 64);
    let x = b.input("X", &[doc, sent, word, d], ScalarType::F32);
    let weight = b.input("weight", &[doc, sent, word], ScalarType::F32);
    let y = b.compute("Y", &[doc, sent, word, d], |_| weight.at((doc, sent, word)) * x.at((doc, sent, word, d)));
    let z = b.reduce("Z", &[doc, sent, d], Combiner::Sum, &[word], |_, _| y.at((doc, sent, word, d)));
    b.output(y);
    b.output(z);
    b.finish()
}

/// The program `projection_bf16`.
pub fn projection_bf16() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("projection_bf16");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", 512);
    let n = b.dim("n", 512);
    let x = b.input("X", &[batch, q, k], ScalarType::BF16);
    let w = b.const_input("W", &[k, n], ScalarType::BF16);
    let v_b = b.const_input("B", &[n], ScalarType::F32);
    let y_sum = b.reduce("Y.sum", &[batch, q, n], Combiner::Sum, &[k], |_, _| x.at((batch, q, k)).cast(ScalarType::F32) * w.at((k, n)).cast(ScalarType::F32));
    let y = b.compute("Y", &[batch, q, n], |_| v_b.at([n]) + y_sum.at((batch, q, n)));
    b.output(y);
    b.finish()
}

/// The program `projection_f16`.
pub fn projection_f16() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("projection_f16");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", 512);
    let n = b.dim("n", 512);
    let x = b.input("X", &[batch, q, k], ScalarType::F16);
    let w = b.const_input("W", &[k, n], ScalarType::F16);
    let v_b = b.const_input("B", &[n], ScalarType::F32);
    let y_sum = b.reduce("Y.sum", &[batch, q, n], Combiner::Sum, &[k], |_, _| x.at((batch, q, k)).cast(ScalarType::F32) * w.at((k, n)).cast(ScalarType::F32));
    let y = b.compute("Y", &[batch, q, n], |_| v_b.at([n]) + y_sum.at((batch, q, n)));
    b.output(y);
    b.finish()
}

/// The program `qkt`.
pub fn qkt() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("qkt");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let q_2 = b.input("Q", &[batch, q, h, d], ScalarType::F32);
    let k_2 = b.input("K", &[batch, k, h, d], ScalarType::F32);
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| q_2.at((batch, q, h, d)) * k_2.at((batch, k, h, d)));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    b.output(v_s);
    b.finish()
}

/// The program `ragged_softmax`.
pub fn ragged_softmax() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("ragged_softmax");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=4096);
    let k = b.dim("k", lens.at([batch]));
    let v_s = b.input("S", &[batch, k], ScalarType::F32);
    let p_m = b.reduce("P.m", &[batch], Combiner::Max, &[k], |_, _| v_s.at((batch, k)));
    let p_e = b.compute("P.e", &[batch, k], |_| (v_s.at((batch, k)) - p_m.at([batch])).exp());
    let p_sum = b.reduce("P.sum", &[batch], Combiner::Sum, &[k], |_, _| p_e.at((batch, k)));
    let p = b.compute("P", &[batch, k], |_| p_e.at((batch, k)) / p_sum.at([batch]));
    b.output(p);
    b.finish()
}

/// The program `row_statistics`.
pub fn row_statistics() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("row_statistics");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let lens = b.extent("lens", &[batch], 0..=4096);
    let k = b.dim("k", lens.at([batch]));
    let x = b.input("X", &[batch, k], ScalarType::F32);
    let online = b.commutative_combiner("online", [("m", ScalarType::F32, Value::from(f64::NEG_INFINITY)), ("s", ScalarType::F32, Value::from(0.0))], |l, r| [l[0].clone().max(r[0].clone()), select(l[0].clone().equals(f64::NEG_INFINITY), 0.0, l[1].clone() * (l[0].clone() - l[0].clone().max(r[0].clone())).exp()) + select(r[0].clone().equals(f64::NEG_INFINITY), 0.0, r[1].clone() * (r[0].clone() - l[0].clone().max(r[0].clone())).exp())]);
    let moments = b.commutative_combiner("moments", [("n", ScalarType::F32, Value::from(0.0)), ("mean", ScalarType::F32, Value::from(0.0)), ("m2", ScalarType::F32, Value::from(0.0))], |l, r| [l[0].clone() + r[0].clone(), l[1].clone() + (r[1].clone() - l[1].clone()) * select(Value::from(0.0).lt(l[0].clone() + r[0].clone()), r[0].clone() / (l[0].clone() + r[0].clone()), 0.0), l[2].clone() + r[2].clone() + (r[1].clone() - l[1].clone()) * (r[1].clone() - l[1].clone()) * l[0].clone() * select(Value::from(0.0).lt(l[0].clone() + r[0].clone()), r[0].clone() / (l[0].clone() + r[0].clone()), 0.0)]);
    let least = b.combiner("least", [("v", ScalarType::F32, Value::from(f64::INFINITY)), ("at", ScalarType::I64, Value::from(-1))], |l, r| [l[0].clone().min(r[0].clone()), select(r[0].clone().lt(l[0].clone()), r[1].clone(), l[1].clone())]);
    let row = b.reduce_tuples("row", &[batch], online, &[k], |_, _| [x.at((batch, k)), Value::from(1.0).cast(ScalarType::F32)]);
    let row_m = b.part(row, "m");
    let row_s = b.part(row, "s");
    let p = b.compute("P", &[batch, k], |_| (x.at((batch, k)) - row_m.at([batch])).exp() / row_s.at([batch]));
    let of = b.reduce_tuples("of", &[batch], moments, &[k], |_, _| [Value::from(1.0).cast(ScalarType::F32), x.at((batch, k)), Value::from(0.0).cast(ScalarType::F32)]);
    let of_n = b.part(of, "n");
    let of_mean = b.part(of, "mean");
    let of_m2 = b.part(of, "m2");
    let variance = b.compute("variance", &[batch], |_| of_m2.at([batch]) / of_n.at([batch]).max(1.0));
    let low = b.reduce_tuples("low", &[batch], least, &[k], |_, _| [x.at((batch, k)), Value::from(k).cast(ScalarType::I64)]);
    let low_v = b.part(low, "v");
    let low_at = b.part(low, "at");
    let of_mean_2 = b.compute("of.mean", &[batch], |_| of_mean.at([batch]));
    let low_v_2 = b.compute("low.v", &[batch], |_| low_v.at([batch]));
    let low_at_2 = b.compute("low.at", &[batch], |_| low_at.at([batch]));
    b.output(p);
    b.output(of_mean_2);
    b.output(variance);
    b.output(low_v_2);
    b.output(low_at_2);
    b.finish()
}

/// The program `sdpa`.
pub fn sdpa() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("sdpa");
    let m = b.param("M", 0..=4096);
    let batch = b.dim("batch", m);
    let h = b.dim("h", 8);
    let d = b.dim("d", 64);
    let lens = b.extent("lens", &[batch], 0..=512);
    let q = b.dim("q", lens.at([batch]));
    let k = b.dim("k", lens.at([batch]));
    let c = b.dim("c", 3);
    let qkv = b.input("QKV", &[batch, q, c, h, d], ScalarType::F32);
    let s_sum = b.reduce("S.sum", &[batch, h, q, k], Combiner::Sum, &[d], |_, _| qkv.at((batch, q, 0, h, d)) * qkv.at((batch, k, 1, h, d)));
    let v_s = b.compute("S", &[batch, h, q, k], |_| 0.125 * s_sum.at((batch, h, q, k)));
    let p_m = b.reduce("P.m", &[batch, h, q], Combiner::Max, &[k], |_, _| v_s.at((batch, h, q, k)));
    let p_e = b.compute("P.e", &[batch, h, q, k], |_| (v_s.at((batch, h, q, k)) - p_m.at((batch, h, q))).exp());
    let p_r_sum = b.reduce("P.r.sum", &[batch, h, q], Combiner::Sum, &[k], |_, _| p_e.at((batch, h, q, k)));
    let p_r = b.compute("P.r", &[batch, h, q], |_| 1.0 / p_r_sum.at((batch, h, q)));
    let p = b.compute("P", &[batch, h, q, k], |_| p_e.at((batch, h, q, k)) * p_r.at((batch, h, q)));
    let o = b.reduce("O", &[batch, q, h, d], Combiner::Sum, &[k], |_, _| p.at((batch, h, q, k)) * qkv.at((batch, k, 2, h, d)));
    b.output(o);
    b.finish()
}

/// The program `tradd`.
pub fn tradd() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("tradd");
    let n = b.param("N", 0..=8192);
    let i = b.dim("i", n);
    let j = b.dim("j", i + 1);
    let x = b.input("X", &[i, j], ScalarType::F32);
    let y = b.input("Y", &[i, j], ScalarType::F32);
    let c = b.compute("C", &[i, j], |_| x.at((i, j)) + y.at((i, j)));
    b.output(c);
    b.finish()
}

/// The program `trmm`.
pub fn trmm() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("trmm");
    let n = b.param("N", 0..=8192);
    let i = b.dim("i", n);
    let k = b.dim("k", i + 1);
    let n_2 = b.dim("n", n);
    let j = b.dim("j", n);
    let v_l = b.input("L", &[i, k], ScalarType::F32);
    let x = b.input("X", &[n_2, j], ScalarType::F32);
    let c = b.reduce("C", &[i, j], Combiner::Sum, &[k], |_, _| v_l.at((i, k)) * x.at((k, j)));
    b.output(c);
    b.finish()
}

/// The program `trmul`.
pub fn trmul() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("trmul");
    let n = b.param("N", 0..=8192);
    let i = b.dim("i", n);
    let j = b.dim("j", i + 1);
    let x = b.input("X", &[i, j], ScalarType::F32);
    let y = b.input("Y", &[i, j], ScalarType::F32);
    let c = b.compute("C", &[i, j], |_| x.at((i, j)) * y.at((i, j)));
    b.output(c);
    b.finish()
}

/// The program `vgemm`.
pub fn vgemm() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("vgemm");
    let v_b = b.param("B", 0..=512);
    let v_b_2 = b.dim("b", v_b);
    let ms = b.extent("ms", &[v_b_2], 0..=1408);
    let i = b.dim("i", ms.at([v_b_2]));
    let ns = b.extent("ns", &[v_b_2], 0..=1408);
    let j = b.dim("j", ns.at([v_b_2]));
    let ks = b.extent("ks", &[v_b_2], 0..=1408);
    let k = b.dim("k", ks.at([v_b_2]));
    let x = b.input("X", &[v_b_2, i, k], ScalarType::F32);
    let y = b.input("Y", &[v_b_2, k, j], ScalarType::F32);
    let c = b.reduce("C", &[v_b_2, i, j], Combiner::Sum, &[k], |_, _| x.at((v_b_2, i, k)) * y.at((v_b_2, k, j)));
    b.output(c);
    b.finish()
}

/// The program `vgemm_tf32`.
pub fn vgemm_tf32() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("vgemm_tf32");
    let v_b = b.param("B", 0..=512);
    let v_b_2 = b.dim("b", v_b);
    let ms = b.extent("ms", &[v_b_2], 0..=1408);
    let i = b.dim("i", ms.at([v_b_2]));
    let ns = b.extent("ns", &[v_b_2], 0..=1408);
    let j = b.dim("j", ns.at([v_b_2]));
    let ks = b.extent("ks", &[v_b_2], 0..=1408);
    let k = b.dim("k", ks.at([v_b_2]));
    let x = b.input("X", &[v_b_2, i, k], ScalarType::F32);
    let y = b.input("Y", &[v_b_2, k, j], ScalarType::F32);
    let c = b.reduce("C", &[v_b_2, i, j], Combiner::Sum, &[k], |_, _| x.at((v_b_2, i, k)).tf32() * y.at((v_b_2, k, j)).tf32());
    b.output(c);
    b.finish()
}

/// The program `steps`.
pub fn steps() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("steps");
    let i = b.dim("i", 64);
    let j = b.dim("j", 64);
    let a = b.input("A", &[i, j], ScalarType::F32);
    let s_x = b.compute("S.x", &[i, j], |_| a.at((i, j)).exp());
    let v_s = b.reduce("S", &[i], Combiner::Sum, &[j], |_, _| s_x.at((i, j)));
    b.output(v_s);
    b.schedule("cpu", |s| {
        s.split("S.i", 14, "o", "p", Tail::Mask);
        s.split("S.j", 8, "jo", "ji", Tail::Exact);
        s.fuse(&["S.o", "S.p"], "f", 14);
        s.reorder("S", &["f", "ji", "jo"]);
        s.vectorize("S.x.j", Some(16));
        s.vectorize("S.ji", None);
        s.unroll("S.ji");
        s.parallel("S.f");
        s.pad_loop("S.f", 2);
        s.text("pad_loop S.j to 4 * floordiv(f, 4) + 8");
        s.pad_dim("S", "i", 4);
        s.compute_at("S.x", "S.f");
        s.compute_inline("S.x");
        s.cache_write("S", "Sr", Scope::Reg, "S.f");
        s.cache_read("S", "A", "Al", Scope::Local, "S.f", &[LayoutDim::whole(1), LayoutDim::whole(0)]);
        s.cache_read("S", "S.x", "Xl", Scope::Global, "S.f", &[]);
        s.cache_read_setup("S", "A", None, "Ap", &[LayoutDim::div(1, 8), LayoutDim::whole(0), LayoutDim::modulo(1, 8)]);
        s.set_scope("Sr", Scope::Reg);
        s.relax("Sr.i");
    });
    b.finish()
}

/// The program `recurrences`.
pub fn recurrences() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("recurrences");
    let m = b.param("M", 0..=8);
    let v_b = b.dim("b", m);
    let n = b.extent("n", &[v_b], 0..=40);
    let t = b.dim("t", n.at([v_b]));
    let j = b.dim("j", 8);
    let k = b.dim("k", 8);
    let x = b.input("X", &[v_b, t, j], ScalarType::F32);
    let u = b.input("U", &[j, k], ScalarType::F64);
    let c = b.later("C", ScalarType::F32);
    let c_2 = b.compute("C", &[v_b, t, j], |_| x.at((v_b, t, j)) + 0.5 * c.at((v_b, t - 1, j)).or_else(1.0));
    let h = b.later("H", ScalarType::F64);
    let a_sum = b.reduce("A.sum", &[v_b, t, j], Combiner::Sum, &[k], |_, _| h.at((v_b, t - 1, k)).or_else(0.0) * u.at((j, k)));
    let a = b.compute("A", &[v_b, t, j], |_| x.at((v_b, t, j)).cast(ScalarType::F64) + a_sum.at((v_b, t, j)));
    let h_2 = b.compute("H", &[v_b, t, j], |_| a.at((v_b, t, j)).tanh() * c_2.at((v_b, t, j)).cast(ScalarType::F64) - h.at((v_b, t - 2, j)).when(Value::from(3).lt(t), 2.0));
    b.output(h_2);
    b.finish()
}

/// The program `numbers`.
pub fn numbers() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("numbers");
    let m = b.param("M", 0..=8);
    let v_b = b.dim("b", m);
    let lens = b.extent("lens", &[v_b], 0..=60);
    let i = b.dim("i", lens.at([v_b]));
    let j = b.dim("j", 2 * lens.at([v_b]) + 1);
    let x = b.input("X", &[v_b], ScalarType::F32);
    let z = b.input("Z", &[v_b, i], ScalarType::F64);
    let i_2 = b.input("I", &[v_b, i], ScalarType::I32);
    let e = b.compute("E", &[v_b], |_| (-0.5_f64 * x.at([v_b])).exp());
    let c = b.compute("C", &[v_b], |_| x.at([v_b]) / (1_i64 + m).cast(ScalarType::F32));
    let v = b.compute("V", &[v_b, i], |_| 2.0 - (1.0_f64 + z.at((v_b, i))).exp() * (1.0 - z.at((v_b, i))) / (1.0_f64 / z.at((v_b, i))).max(0.0));
    let v_s = b.compute("S", &[v_b, i], |_| ((3.5_f64 - z.at((v_b, i))) * 2.0).abs().sqrt() - (0.001_f64 * z.at((v_b, i))).max(-1.0 - z.at((v_b, i))));
    let k = b.compute("K", &[v_b, i], |_| (2_i64 * i_2.at((v_b, i))).cast(ScalarType::F64) + ((1_i64 - i_2.at((v_b, i))) * i_2.at((v_b, i))).cast(ScalarType::F64) + select((1_i64 + i_2.at((v_b, i))).lt(3).and(!(2_i64 - i_2.at((v_b, i))).equals(Value::from(i).cast(ScalarType::I32))), 0.5, z.at((v_b, i))));
    let n = b.compute("N", &[v_b, j], |_| (3_i64 * j - 1).cast(ScalarType::I64) + (5_i64 - Value::from(j).cast(ScalarType::I64)).min(7));
    b.output(e);
    b.output(c);
    b.output(v);
    b.output(v_s);
    b.output(k);
    b.output(n);
    b.finish()
}

/// The program `tuples`.
pub fn tuples() -> Result<Graph, Vec<Diagnostic>> {
    let mut b = ProgramBuilder::new("tuples");
    let i = b.dim("i", 8);
    let j = b.dim("j", 4);
    let a = b.input("A", &[i, j], ScalarType::F32);
    let d = b.input("D", &[i, j], ScalarType::F64);
    let greatest = b.combiner("greatest", [("v", ScalarType::F32, Value::from(-1000.0)), ("at", ScalarType::I64, Value::from(-1))], |l, r| [l[0].clone().max(r[0].clone()), select(l[0].clone().lt(r[0].clone()), r[1].clone(), l[1].clone())]);
    let greatest_1 = b.combiner("greatest_1", [("v", ScalarType::F64, Value::from(-1000.0)), ("at", ScalarType::I64, Value::from(-1))], |l, r| [l[0].clone().max(r[0].clone()), select(l[0].clone().lt(r[0].clone()), r[1].clone(), l[1].clone())]);
    let total = b.commutative_combiner("total", [("t", ScalarType::F32, Value::from(0.0))], |l, r| [l[0].clone() + r[0].clone()]);
    let g = b.reduce_tuples("G", &[i], greatest, &[j], |_, _| [a.at((i, j)), Value::from(j).cast(ScalarType::I64)]);
    let g_v = b.part(g, "v");
    let g_at = b.part(g, "at");
    let h = b.reduce_tuples("H", &[i], greatest_1, &[j], |_, _| [d.at((i, j)), Value::from(j).cast(ScalarType::I64) + g_at.at([i])]);
    let h_at = b.part(h, "at");
    let s_g = b.reduce_tuples("S.g", &[i], greatest, &[j], |_, _| [a.at((i, j)), Value::from(j).cast(ScalarType::I64)]);
    let s_g_v = b.part(s_g, "v");
    let v_s = b.compute("S", &[i, j], |_| s_g_v.at([i]) - a.at((i, j)));
    let t = b.reduce_tuples("T", &[], total, &[i, j], |_, _| [a.at((i, j))]);
    let t_t = b.part(t, "t");
    let g_v_2 = b.compute("G.v", &[i], |_| g_v.at([i]));
    let h_at_2 = b.compute("H.at", &[i], |_| h_at.at([i]));
    let t_t_2 = b.compute("T.t", &[], |_| t_t.at(()));
    b.output(g_v_2);
    b.output(h_at_2);
    b.output(v_s);
    b.output(t_t_2);
    b.finish()
}

/// Every program above.
pub const ALL: &[Build] = &[
    attnv,
    cross_attention,
    embedding_pool,
    encoder6,
    encoder_layer,
    encoder_layer_bf16,
    gru,
    images,
    layer_norm,
    listing1,
    masked_sdpa,
    mha,
    moe,
    nested,
    projection_bf16,
    projection_f16,
    qkt,
    ragged_softmax,
    row_statistics,
    sdpa,
    tradd,
    trmm,
    trmul,
    vgemm,
    vgemm_tf32,
    steps,
    recurrences,
    numbers,
    tuples,
];
