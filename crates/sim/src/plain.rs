//! A virtual world in which nothing goes wrong, for tests of what a cell does there and for experiments.
//!
//! Never injects a fault: the harness does that.

use crate::executor::{Executor, ExecutorConfig, Process};
use crate::net::{NetConfig, SimNet};
use crate::situations::Situations;
use cell::{Cell, CellConfig, NewDevice};
use celldisk::Role;
use device::{Buf, Bufs, Device, SharedBufs, World};
use std::sync::Arc;

/// One process on one host, with its world.
pub fn process_of(executor: &Executor) -> (Process, World) {
    let process = executor.process("cell");
    let net = SimNet::new(NetConfig::plain(), &executor.handle(), &Situations::new());
    let world = process.world(net.host("cell", &process), "cell");
    (process, world)
}

/// Run `main`, which makes processes as it likes.
///
/// # Panics
/// When it does not end.
pub fn in_an_executor<T>(main: impl AsyncFnOnce(&Executor) -> T) -> T {
    let executor = Executor::new(ExecutorConfig::plain(1));
    executor.run(main(&executor)).unwrap_or_else(|stuck| panic!("{stuck}"))
}

/// Run `main` in a world of its own.
///
/// # Panics
/// When it does not end.
pub fn in_a_world<T>(main: impl AsyncFnOnce(Process, World) -> T) -> T {
    in_an_executor(async |executor| {
        let (process, world) = process_of(executor);
        main(process, world).await
    })
}

/// A new cell on these devices, each with its name and role, opened.
///
/// # Panics
/// When it cannot be made or opened.
pub async fn cell_on(devices: &[Device], names: &[(&str, Role)], config: CellConfig, world: &World) -> Arc<Cell> {
    let new = devices.iter().zip(names).map(|(device, &(name, role))| NewDevice::new(device.clone(), name, role));
    let made = Cell::create("cell", new.collect(), false, world).await;
    drop(made.unwrap_or_else(|error| panic!("create: {error}")));
    let opened = Cell::open(devices.to_vec(), config, world.clone()).await;
    opened.unwrap_or_else(|error| panic!("open: {error}")).0
}

/// `bytes` bytes of `fill`, as something to be written.
pub fn full_of(bytes: usize, fill: u8) -> SharedBufs {
    let mut buf = Buf::zeroed(bytes);
    buf.fill(fill);
    Bufs::from(buf).freeze()
}
