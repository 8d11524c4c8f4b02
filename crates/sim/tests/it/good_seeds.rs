//! Goal: `cargo test -p sim` alone, and `make mutants` with it, run the simulator itself: seeds in which nothing may be found.
//! Method: the first seeds, one after the other on each of two threads. Many more: `flashcell sim --seeds A..B`.

use sim::harness::{Case, run_seed};

/// Of each thread: some ten seconds without optimisation.
const SEEDS: u64 = 20;

#[test]
fn the_first_seeds_hold() {
    let (mut even, mut odd) = (None, None);
    let first_broken = |from: u64| {
        let mut seeds = (0..SEEDS).map(|n| from + 2 * n);
        seeds.find_map(|seed| Some((seed, run_seed(Case::of_seed(seed), 0).broken?)))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| even = first_broken(0));
        odd = first_broken(1);
    });
    assert_eq!((even, odd), (None, None), "flashcell sim --seed N tells more");
}
