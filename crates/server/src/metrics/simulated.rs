//! Goal: many cells at once, some of them silent and some answering garbage, are read in little more than a time-out, and every bad
//! one is named. Method: simulated cells over TCP and real TLS, each a listener of its own behind a delay.
//!
//! With a hundred cells as a test; with a thousand as a bench: `bench/cells`.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::number::Number;
use super::*;
use crate::tls;
use crate::trust::{TrustOptions, trust};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What is between a cell and who asks, in each direction.
const DELAY: Duration = Duration::from_millis(10);
const METRICS: usize = 500;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Good,
    /// Takes connections and says nothing.
    Silent,
    /// Answers something that is no TLS.
    Noise,
    /// TLS, and then no metrics.
    Garbage,
}

/// An answer with so many metrics.
fn answer(name: usize) -> Vec<u8> {
    let rows: Vec<String> = (0..METRICS)
        .map(|i| {
            format!(
                r#"{{"name":"FC_IO_RQ_{:03}","metricObjectName":"FLASHCACHE","metricType":"Cumulative","metricValue":{}.5,"objectType":"FLASHCACHE","unit":"IO requests","collectionTime":1700000000000}}"#,
                i,
                name * 1000 + i
            )
        })
        .collect();
    let body = serde_json::json!({"results": [
        {"output": format!("[{{\"name\":\"exa1cel{name:04}\"}}]"), "error": null},
        {"output": format!("[{}]", rows.join(",\n")), "error": null},
    ]})
    .to_string();
    http(&body)
}

fn http(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, kind: Cell, name: usize) {
    let whole = answer(name);
    while let Ok((mut stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        // The handshake of TCP, one way and back.
        tokio::time::sleep(DELAY * 2).await;
        if kind == Cell::Silent {
            // Held until the other end has had enough.
            let mut byte = [0];
            while let Ok(1..) = stream.read(&mut byte).await {}
            continue;
        }
        if kind == Cell::Noise {
            let _ = stream.write_all(&[b'%'; 10_000]).await;
            continue;
        }
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        tokio::time::sleep(DELAY * 2).await;
        let mut request = vec![0; 64 << 10];
        let Ok(1..) = stream.read(&mut request).await else { continue };
        tokio::time::sleep(DELAY * 2).await;
        let garbage = http(r#"{"results":[{"output":"[]"},{"output":"[{\"name\":1}]"}]}"#);
        let _ = stream.write_all(if kind == Cell::Good { &whole } else { &garbage }).await;
        let _ = stream.shutdown().await;
    }
}

/// Read `count` cells, so many of them silent and so many answering garbage; the time it took.
fn read(count: usize, silent: usize, garbage: usize, timeout: Duration) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let cell = dir.path().join("cell");
    std::fs::create_dir(&cell).unwrap();
    std::fs::write(cell.join("cell.toml"), "").unwrap();
    let own = dir.path().join("own");
    let cells = vec![cell.display().to_string()];
    trust(&TrustOptions { cells, dir: Some(own.clone()), ..TrustOptions::default() }).unwrap();
    let acceptor = TlsAcceptor::from(tls::server(&cell.join("trust")).unwrap());

    // Bad ones anywhere, always the same.
    let kind = |index: usize| match index % (count / silent.max(1)) {
        3 if index / (count / silent) < silent => Cell::Silent,
        5 if index / (count / silent) < garbage => {
            if index.is_multiple_of(2) {
                Cell::Garbage
            } else {
                Cell::Noise
            }
        }
        _ => Cell::Good,
    };
    let (tell, told) = std::sync::mpsc::channel();
    let kinds: Vec<Cell> = (0..count).map(kind).collect();
    let serving = kinds.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let mut addresses = Vec::new();
            for (index, kind) in serving.into_iter().enumerate() {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                addresses.push(listener.local_addr().unwrap().to_string());
                tokio::spawn(self::serve(listener, acceptor.clone(), kind, index));
            }
            tell.send(addresses).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let hosts = told.recv().unwrap();

    let began = Instant::now();
    let (readings, failures) = gather_as(&own, &hosts, timeout);
    let options = MetricsOptions { stats: true, ..MetricsOptions::default() };
    let table = table::text(&options, &readings, None, Some(200));
    let took = began.elapsed();

    let bad: Vec<&String> =
        hosts.iter().zip(&kinds).filter(|(_, kind)| **kind != Cell::Good).map(|(host, _)| host).collect();
    assert_eq!(bad.len(), silent + garbage, "the bad ones are there");
    let named: Vec<&String> = failures.iter().map(|(host, _)| host).collect();
    assert_eq!(named, bad, "every bad one is named, and no other");
    assert_eq!(readings.len(), count - bad.len());
    assert!(readings.iter().all(|reading| reading.values.len() == METRICS));
    assert_eq!(table.lines().count(), METRICS + 2);
    // The sum of one metric over the good ones, digit for digit.
    let good = kinds.iter().enumerate().filter(|(_, kind)| **kind == Cell::Good);
    let tenths: usize = good.map(|(index, _)| index * 10_000 + 7 * 10 + 5).sum();
    let sum = format!("{}.{}", tenths / 10, tenths % 10);
    let row = table.lines().find(|line| line.starts_with("FC_IO_RQ_007 ")).unwrap();
    let shown = row.split_whitespace().nth(1).unwrap();
    assert_eq!(Number::parse(shown), Number::parse(&sum), "{row}");
    took
}

/// As with `FLASHCELL_TRUST` set; a variable of the process is not the test's to change.
fn gather_as(trust: &Path, hosts: &[String], timeout: Duration) -> (Vec<Reading>, gather::Failures) {
    let identity = tls::Identity::load(trust).map_err(|error| error.to_string());
    gather::gather_with(hosts, timeout, false, Some(identity))
}

#[test]
fn a_hundred_cells_some_silent_some_garbage() {
    let timeout = Duration::from_secs(2);
    let took = read(100, 2, 2, timeout);
    // A bound that only waiting one after the other breaks.
    assert!(took < timeout * 2 + Duration::from_secs(8), "{took:?}");
}

#[test]
#[ignore = "a bench: bench/cells"]
#[expect(clippy::print_stderr, reason = "the bench's line")]
fn a_thousand_cells() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    // Both ends are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let timeout = Duration::from_secs(2);
    for _ in 0..3 {
        let took = read(1000, 10, 10, timeout);
        let beyond = took.saturating_sub(timeout);
        eprintln!(
            "1000 cells, {METRICS} metrics each, TLS, {} ms away, 10 silent, 10 garbage: {:.2} s, {:.2} s beyond the time-out of {} s",
            DELAY.as_millis(),
            took.as_secs_f64(),
            beyond.as_secs_f64(),
            timeout.as_secs()
        );
        assert!(beyond < Duration::from_secs(3), "{took:?}");
    }
}
