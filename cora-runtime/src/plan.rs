//! Places temporaries in one arena, so that those not live at the same time share memory.

/// A temporary: its size, and the first and last kernel that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// Beyond this many, memory is not shared: placing is quadratic.
const MAX_SHARED: usize = 1024;

/// Byte offsets, multiples of `align`, and the arena's size; `None` beyond 64 bits.
///
/// Greedy by size: each request, largest first, takes the lowest gap left by those placed that are live with it.
pub(crate) fn place(requests: &[Request], align: u64) -> Option<(Vec<u64>, u64)> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), i));
    let mut offsets = vec![0u64; requests.len()];
    let mut total = 0u64;
    let mut placed: Vec<usize> = Vec::new();
    for i in order {
        let r = requests[i];
        let mut at = 0u64;
        if requests.len() > MAX_SHARED {
            at = total;
        } else {
            let mut live: Vec<(u64, u64)> = Vec::new();
            for &j in &placed {
                let p = requests[j];
                if p.bytes > 0 && p.first <= r.last && r.first <= p.last {
                    live.push((offsets[j], offsets[j].checked_add(p.bytes)?.checked_next_multiple_of(align)?));
                }
            }
            live.sort_unstable();
            for (lo, hi) in live {
                if at.checked_add(r.bytes)? <= lo {
                    break;
                }
                at = at.max(hi);
            }
        }
        offsets[i] = at;
        total = total.max(at.checked_add(r.bytes)?.checked_next_multiple_of(align)?);
        placed.push(i);
    }
    Some((offsets, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(requests: &[(u64, usize, usize)], total: u64) {
        let requests: Vec<Request> =
            requests.iter().map(|&(bytes, first, last)| Request { bytes, first, last }).collect();
        let (offsets, got) = place(&requests, 64).unwrap();
        assert_eq!(got, total, "{offsets:?}");
        for (i, a) in requests.iter().enumerate() {
            assert!(offsets[i] % 64 == 0 && offsets[i] + a.bytes <= got);
            for (j, b) in requests.iter().enumerate().take(i) {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(!together || apart, "{i} and {j} overlap");
            }
        }
    }

    #[test]
    fn memory_is_shared_where_lives_are_apart() {
        check(&[], 0);
        check(&[(100, 0, 1), (100, 1, 2), (100, 2, 3)], 256);
        check(&[(100, 0, 1), (90, 2, 3), (300, 4, 5)], 320);
        check(&[(64, 0, 9), (64, 0, 9)], 128);
        check(&[(0, 0, 9), (64, 0, 9), (0, 0, 9)], 64);
        check(&[(640, 0, 0), (64, 0, 3), (128, 1, 2), (512, 1, 3)], 704);
        let many: Vec<_> = (0..2000).map(|i| (64, i, i)).collect();
        check(&many, 2000 * 64);
    }

    #[test]
    fn sizes_do_not_overflow() {
        let r = Request { bytes: u64::MAX - 10, first: 0, last: 0 };
        assert_eq!(place(&[r], 64), None);
        assert_eq!(place(&[Request { bytes: 1 << 63, ..r }, Request { bytes: 1 << 63, ..r }], 64), None);
    }
}
