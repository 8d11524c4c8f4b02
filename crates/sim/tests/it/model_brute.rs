//! The reference model against a machine that keeps every possible history.
//!
//! Goal: the model permits exactly the answers that some history explains. Method: one sector; the machine is the
//! literal definition, a set of states, each with the writes that took effect in their order, what of that is durable,
//! what may still happen, and what each read has had before it; every event forks or filters the set. All short
//! sequences of events are tried, and many random longer ones; each answer is judged by both.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::Prng;
use sim::model::{FlushId, Model, OpId, ReadId};
use std::collections::{BTreeMap, BTreeSet};

type Value = u64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// What took effect, oldest first, from what a cut can leave on: (operation, value).
    history: Vec<(u64, Value)>,
    /// Under way and not in effect: (operation, value).
    waiting: BTreeMap<u64, Value>,
    /// For each read under way, the values it may return.
    reads: BTreeMap<u64, BTreeSet<Value>>,
}

impl State {
    fn current(&self) -> Value {
        self.history.last().unwrap().1
    }

    fn durable_from(&mut self, covered: &BTreeSet<u64>) {
        if let Some(at) = self.history.iter().rposition(|(op, _)| covered.contains(op)) {
            self.history.drain(..at);
        }
    }
}

#[derive(Clone, Debug)]
struct Machine {
    states: BTreeSet<State>,
    acked: BTreeSet<u64>,
    flushes: BTreeMap<u64, BTreeSet<u64>>,
}

impl Machine {
    fn new() -> Machine {
        let first = State { history: vec![(0, 0)], waiting: BTreeMap::new(), reads: BTreeMap::new() };
        Machine { states: BTreeSet::from([first]), acked: BTreeSet::new(), flushes: BTreeMap::new() }
    }

    /// What is under way may happen at any moment.
    fn close(&mut self) {
        let mut todo: Vec<State> = self.states.iter().cloned().collect();
        while let Some(state) = todo.pop() {
            for (&op, &value) in &state.waiting {
                let mut next = state.clone();
                next.waiting.remove(&op);
                next.history.push((op, value));
                next.reads.values_mut().for_each(|seen| seen.extend([value]));
                if self.states.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
    }

    fn map(&mut self, mut f: impl FnMut(State) -> Option<State>) {
        self.states = std::mem::take(&mut self.states).into_iter().filter_map(&mut f).collect();
    }

    fn begin(&mut self, op: u64, value: Value) {
        self.map(|mut s| {
            s.waiting.insert(op, value);
            Some(s)
        });
        self.close();
    }

    fn ack(&mut self, op: u64, fua: bool, optional: bool) {
        self.acked.insert(op);
        self.map(|mut s| {
            if s.waiting.remove(&op).is_some() && !optional {
                return None;
            }
            if fua {
                s.durable_from(&BTreeSet::from([op]));
            }
            Some(s)
        });
    }

    fn fail(&mut self, op: u64) {
        self.map(|mut s| {
            s.waiting.remove(&op);
            Some(s)
        });
    }

    fn flush_begin(&mut self, flush: u64) {
        self.flushes.insert(flush, self.acked.clone());
    }

    fn flush_ack(&mut self, flush: u64) {
        let covered = self.flushes.remove(&flush).unwrap();
        self.map(|mut s| {
            s.durable_from(&covered);
            Some(s)
        });
    }

    fn read_begin(&mut self, read: u64) {
        self.map(|mut s| {
            s.reads.insert(read, BTreeSet::from([s.current()]));
            Some(s)
        });
        self.close();
    }

    fn permits(&self, read: u64, value: Value) -> bool {
        self.states.iter().any(|s| s.reads[&read].contains(&value))
    }

    fn read_end(&mut self, read: u64, value: Value) {
        self.map(|mut s| if s.reads.remove(&read)?.contains(&value) { Some(s) } else { None });
    }

    fn kill(&mut self) {
        self.flushes.clear();
        self.map(|mut s| {
            s.waiting.clear();
            s.reads.clear();
            Some(s)
        });
    }

    fn cut(&mut self) {
        self.kill();
        self.acked.clear();
        let before = std::mem::take(&mut self.states);
        for state in before {
            for &(op, value) in &state.history {
                self.states.insert(State { history: vec![(op, value)], ..state.clone() });
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Write {
        fua: bool,
    },
    Zeroes,
    Trim {
        fua: bool,
    },
    Ack(usize),
    Fail(usize),
    FlushBegin,
    FlushAck(usize),
    ReadBegin,
    /// Which read, and which of the values so far it returns.
    ReadEnd(usize, usize),
    Kill,
    Cut,
}

#[derive(Clone)]
struct Both {
    model: Model,
    machine: Machine,
    open: Vec<(OpId, bool, bool)>,
    flushes: Vec<FlushId>,
    next_flush: u64,
    flush_names: Vec<u64>,
    reads: Vec<(ReadId, u64)>,
    next_read: u64,
    /// Values written so far, 0 for zeroes, with the bytes.
    values: Vec<(Value, Vec<u8>)>,
    zeroes_twice: bool,
    log: Vec<Event>,
}

#[derive(Default)]
struct Tally {
    sequences: u64,
    judged: u64,
    permitted: u64,
    forbidden: u64,
    /// The model permits what no history explains: only where several versions are zeroes.
    lenient: u64,
}

impl Both {
    fn new() -> Both {
        Both {
            model: Model::new(1, 512),
            machine: Machine::new(),
            open: Vec::new(),
            flushes: Vec::new(),
            next_flush: 0,
            flush_names: Vec::new(),
            reads: Vec::new(),
            next_read: 0,
            values: vec![(0, vec![0; 512])],
            zeroes_twice: false,
            log: Vec::new(),
        }
    }

    /// What may come next, with at most `writes` operations and two reads and flushes at once.
    fn events(&self, writes: u64, zeroes: bool) -> Vec<Event> {
        let mut out = vec![Event::Kill, Event::Cut];
        if self.ops() < writes {
            out.extend([Event::Write { fua: false }, Event::Write { fua: true }]);
            if zeroes {
                out.extend([Event::Zeroes, Event::Trim { fua: false }, Event::Trim { fua: true }]);
            }
        }
        out.extend((0..self.open.len()).flat_map(|n| [Event::Ack(n), Event::Fail(n)]));
        if self.flushes.len() < 2 {
            out.push(Event::FlushBegin);
        }
        out.extend((0..self.flushes.len()).map(Event::FlushAck));
        if self.reads.len() < 2 {
            out.push(Event::ReadBegin);
        }
        for read in 0..self.reads.len() {
            out.extend((0..self.values.len()).map(|v| Event::ReadEnd(read, v)));
        }
        out
    }

    fn ops(&self) -> u64 {
        self.open.len() as u64 + self.log.iter().filter(|e| matches!(e, Event::Ack(_) | Event::Fail(_))).count() as u64
    }

    /// Do it on both sides; false when the answer was forbidden and the sequence ends.
    fn step(&mut self, event: Event, tally: &mut Tally) -> bool {
        self.log.push(event);
        match event {
            Event::Write { fua } => {
                let op = self.model.begin_write(0..512, fua);
                self.values.push((op.number(), self.model.bytes(op)));
                self.machine.begin(op.number(), op.number());
                self.open.push((op, fua, false));
            }
            Event::Zeroes | Event::Trim { .. } => {
                let trim = matches!(event, Event::Trim { .. });
                let fua = event == Event::Trim { fua: true };
                let op = if trim { self.model.begin_trim(0..512, fua) } else { self.model.begin_zeroes(0..512, fua) };
                self.machine.begin(op.number(), 0);
                self.open.push((op, fua, trim));
                self.zeroes_twice = true;
            }
            Event::Ack(n) => {
                let (op, fua, trim) = self.open.remove(n);
                self.model.ack(op);
                self.machine.ack(op.number(), fua, trim);
            }
            Event::Fail(n) => {
                let (op, ..) = self.open.remove(n);
                let _ = self.model.fail(op);
                self.machine.fail(op.number());
            }
            Event::FlushBegin => {
                self.flushes.push(self.model.flush_begin());
                self.flush_names.push(self.next_flush);
                self.machine.flush_begin(self.next_flush);
                self.next_flush += 1;
            }
            Event::FlushAck(n) => {
                self.model.flush_ack(self.flushes.remove(n));
                self.machine.flush_ack(self.flush_names.remove(n));
            }
            Event::ReadBegin => {
                self.reads.push((self.model.read_begin(0..512), self.next_read));
                self.machine.read_begin(self.next_read);
                self.next_read += 1;
            }
            Event::ReadEnd(n, v) => {
                let (id, name) = self.reads.remove(n);
                let (value, bytes) = self.values[v].clone();
                let told = self.model.check_read(id, &bytes);
                let permitted = self.machine.permits(name, value);
                tally.judged += 1;
                match (told, permitted) {
                    (Ok(()), true) => tally.permitted += 1,
                    (Err(_), false) => {
                        tally.forbidden += 1;
                        return false;
                    }
                    (Ok(()), false) if self.zeroes_twice => {
                        tally.lenient += 1;
                        return false;
                    }
                    (told, permitted) => panic!(
                        "value {value}: a history explains it: {permitted}; the model: {told:?}\n{:?}\n{:#?}",
                        self.log, self.machine.states
                    ),
                }
                self.machine.read_end(name, value);
            }
            Event::Kill | Event::Cut => {
                // What was under way ended undecided: keep the count of operations.
                self.log.extend(self.open.iter().map(|_| Event::Fail(0)));
                self.open.clear();
                self.flushes.clear();
                self.flush_names.clear();
                self.reads.clear();
                if event == Event::Kill {
                    self.model.process_kill();
                    self.machine.kill();
                } else {
                    self.model.power_cut();
                    self.machine.cut();
                }
            }
        }
        true
    }
}

fn every(both: &Both, depth: usize, tally: &mut Tally) {
    if depth == 0 {
        tally.sequences += 1;
        return;
    }
    for event in both.events(2, false) {
        let mut next = both.clone();
        if next.step(event, tally) {
            every(&next, depth - 1, tally);
        }
    }
}

#[test]
fn every_short_sequence_is_judged_alike() {
    let mut tally = Tally::default();
    every(&Both::new(), 6, &mut tally);
    assert!(tally.sequences > 50_000 && tally.forbidden > 500, "{} {}", tally.sequences, tally.forbidden);
}

/// The first write lies before the durable third only because the second lies between them.
#[test]
fn an_order_known_only_through_a_third_write_holds_across_a_cut() {
    let mut tally = Tally::default();
    let mut both = Both::new();
    let plain = Event::Write { fua: false };
    let durable = Event::Write { fua: true };
    let events = [plain, plain, Event::Ack(1), durable, Event::Ack(0), Event::ReadBegin, Event::ReadEnd(0, 2)];
    for event in events.into_iter().chain([Event::Ack(0), Event::Cut, Event::ReadBegin]) {
        assert!(both.step(event, &mut tally));
    }
    for value in 0..4 {
        assert_eq!(both.clone().step(Event::ReadEnd(0, value), &mut tally), value == 3, "value {value}");
    }
}

fn random(seeds: u64, zeroes: bool) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..seeds {
        let mut prng = Prng::new(seed).fork(if zeroes { "zeroes" } else { "data" });
        let mut both = Both::new();
        let steps = prng.between(8, 24);
        for _ in 0..steps {
            let events = both.events(5, zeroes);
            let mut event = events[prng.below(events.len() as u64) as usize];
            // Crashes are rare, and most answers are true ones: else every sequence ends soon.
            if matches!(event, Event::Kill | Event::Cut) && prng.chance(1, 2) {
                continue;
            }
            if let Event::ReadEnd(read, _) = event
                && prng.chance(3, 4)
            {
                let name = both.reads[read].1;
                let good: Vec<usize> =
                    (0..both.values.len()).filter(|&v| both.machine.permits(name, both.values[v].0)).collect();
                event = Event::ReadEnd(read, good[prng.below(good.len() as u64) as usize]);
            }
            if !both.step(event, &mut tally) {
                break;
            }
        }
        tally.sequences += 1;
    }
    tally
}

#[test]
fn random_sequences_are_judged_alike() {
    let tally = random(40_000, false);
    assert!(tally.permitted > 40_000 && tally.forbidden > 2_000, "{} {}", tally.permitted, tally.forbidden);
    assert_eq!(tally.lenient, 0);
}

#[test]
fn zeroes_and_trims_are_never_judged_too_hard_and_seldom_too_mildly() {
    let tally = random(20_000, true);
    assert!(tally.permitted > 10_000 && tally.forbidden > 300, "{} {}", tally.permitted, tally.forbidden);
    let mild = tally.lenient * 1000 / (tally.lenient + tally.forbidden);
    assert!(mild <= 40, "{} of {} forbidden answers pass", tally.lenient, tally.forbidden);
}
