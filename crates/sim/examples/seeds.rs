//! `cargo run --release -p sim --example seeds A B [SABOTAGE]`: a line for each seed from A up to B.

#![expect(clippy::print_stdout, reason = "a program for people")]
#![expect(clippy::unwrap_used, reason = "a program for people")]

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (from, to): (u64, u64) = (arguments[0].parse().unwrap(), arguments[1].parse().unwrap());
    let named = |name: &String| flashcache::Sabotage::ALL.iter().find(|x| x.name() == name).copied();
    let sabotage = arguments.get(2).and_then(named);
    let log: usize = std::env::var("LOG").ok().and_then(|x| x.parse().ok()).unwrap_or(0);
    for seed in from..to {
        println!("{seed}: {}", sim::harness::smoke(seed, sabotage, log));
    }
}
