//! The generator: known answers, forks by name, even draws.

use device::prng::Prng;

/// xoshiro256** seeded by SplitMix64(0), as computed by an independent implementation of both papers' code.
#[test]
fn known_answers() {
    let mut prng = Prng::new(0);
    let expected = [
        11_091_344_671_253_066_420,
        13_793_997_310_169_335_082,
        1_900_383_378_846_508_768,
        7_684_712_102_626_143_532,
        13_521_403_990_117_723_737,
    ];
    for value in expected {
        assert_eq!(prng.next_u64(), value);
    }
}

#[test]
fn forks_depend_on_seed_and_name_only() {
    let mut parent = Prng::new(7);
    let before = parent.fork("disk").next_u64();
    for _ in 0..10 {
        parent.next_u64();
    }
    assert_eq!(parent.fork("disk").next_u64(), before, "draws in between change nothing");
    assert_ne!(parent.fork("flash").next_u64(), before);
    assert_ne!(Prng::new(8).fork("disk").next_u64(), before);
    assert_ne!(parent.fork("disk").fork("disk").next_u64(), before);
}

#[test]
fn draws_are_even_and_within_bounds() {
    let mut prng = Prng::new(1);
    let mut counts = [0_u32; 10];
    for _ in 0..100_000 {
        counts[prng.below(10) as usize] += 1;
    }
    // Six standard deviations of a binomial (n = 100,000, p = 0.1) are 570.
    assert!(counts.iter().all(|c| c.abs_diff(10_000) < 570), "{counts:?}");
    let mut seen = [false; 5];
    for _ in 0..1000 {
        seen[(prng.between(3, 7) - 3) as usize] = true;
        assert!(prng.below(1) == 0);
    }
    assert!(seen.iter().all(|s| *s));
    assert!((0..100_000).filter(|_| prng.chance(1, 4)).count().abs_diff(25_000) < 830);
    assert!(!prng.chance(0, 4) && prng.chance(4, 4));
}

#[test]
fn fill_covers_every_length() {
    let mut prng = Prng::new(3);
    for len in 0..40 {
        let mut bytes = vec![0; len];
        let mut again = prng.clone();
        prng.fill(&mut bytes);
        let mut expected = Vec::new();
        while expected.len() < len {
            expected.extend(again.next_u64().to_le_bytes());
        }
        assert_eq!(bytes, expected[..len]);
    }
}
