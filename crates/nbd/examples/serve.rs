//! Serve a file over NBD without a cache, for measuring the front end and for trying clients on it:
//! `cargo run --release -p nbd --example serve -- FILE SOCKET [THREADS]`. Prints `ready` and runs until it is killed.

#![expect(clippy::print_stdout, reason = "a program of its own")]

use device::real::{OpenOptions, Runtime, RuntimeConfig};
use device::{Address, Arena};
use nbd::{FrontEnd, FrontEndLimits};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, socket, rest @ ..] = &args[..] else { return Err("FILE SOCKET [THREADS]".into()) };
    let threads = rest.first().map_or(Ok(0), |text| text.parse())?;
    let (payloads, bounce) = (Arena::new(128 << 20), Arena::new(32 << 20));
    let arenas = vec![payloads.clone()];
    let runtime = Runtime::new(RuntimeConfig { threads, arenas, ..RuntimeConfig::default() })?;
    let disk = runtime.open(file, &OpenOptions::default())?;
    let world = runtime.world(1);
    let grid_disk = cell::GridDisk::new(cell::GridDiskParts {
        id: 1,
        name: "data".into(),
        size_bytes: disk.geometry().size_bytes,
        disk,
        arena: bounce,
        block_bytes: 16 << 10,
        alarm: Arc::default(),
        sequential_cutoff_bytes: cell::SEQUENTIAL_CUTOFF_BYTES,
        sabotage: None,
    });
    let cell = cell::Cell::of_grid_disks(vec![grid_disk], 1, world.clone());
    let front = FrontEnd::new(cell, world.clone(), payloads, FrontEndLimits::default());
    let (net, address) = (world.net.clone(), Address::Unix(socket.into()));
    let listener = runtime.block_on(async move { net.listen(&address).await })?;
    front.serve(listener);
    println!("ready {}", runtime.facts().join("; "));
    loop {
        std::thread::park();
    }
}
