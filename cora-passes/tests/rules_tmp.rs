//! tmp
#[path = "rules/world.rs"]
mod world;
use cora_passes::simplify::*;
#[test]
fn t() {
    let mut w = world::World::new();
    let (b, be) = w.var("b"); let (i, ie) = w.var("i");
    let m = w.m;
    let len = w.call(w.lens, be);
    let facts = Facts::in_loops([(b, m), (i, len)]);
    let mut p = Prover::new();
    let row = w.call(w.p, be); let total = w.call(w.p, m);
    for k in 0..12 {
        let c = w.int(k - 10);
        let at = w.env.pool.add(row, ie);
        let at = w.env.pool.add(at, c);
        let g = w.env.pool.lt(at, total);
        let t = std::time::Instant::now();
        let v = p.ask_solver(&mut w.env, &facts, g);
        eprintln!("{k} {v:?} {:?}", t.elapsed());
    }
}
