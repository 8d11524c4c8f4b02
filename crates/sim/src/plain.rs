//! A virtual world in which nothing goes wrong, for tests of what a cell does there and for experiments.
//!
//! Never injects a fault: the harness does that.

use crate::executor::{Executor, ExecutorConfig, Process};
use crate::net::{NetConfig, SimNet};
use crate::situations::Situations;
use device::World;

/// One process on one host, with its world.
pub fn process_of(executor: &Executor) -> (Process, World) {
    let process = executor.process("cell");
    let net = SimNet::new(NetConfig::plain(), &executor.handle(), &Situations::new());
    let world = process.world(net.host("cell", &process), "cell");
    (process, world)
}

/// Run `main` in a world of its own.
///
/// # Panics
/// When it does not end.
pub fn in_a_world<T>(main: impl AsyncFnOnce(Process, World) -> T) -> T {
    let executor = Executor::new(ExecutorConfig::plain(1));
    let (process, world) = process_of(&executor);
    executor.run(main(process, world)).unwrap_or_else(|stuck| panic!("{stuck}"))
}
