//! Goal: over TLS everything is as without, and nobody gets in who should not. Method: the front end on a real cell in the
//! virtual world, whose streams come in arbitrary cuts, against rustls as a client and against bytes written by hand.

use crate::raw::{Bench, NONE, Raw, SIZE, bench_with, pattern};
use crate::world::*;
use device::*;
use nbd::FrontEndLimits;
use nbd::codec::*;
use nbd::server::{Client as NbdClient, Doorkeeper, Proof, Scope};
use nbd::tls::{TlsConn, TlsError};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{CipherSuiteCommon, ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use rustls::{SupportedCipherSuite, Tls13CipherSuite};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A certificate and its key.
#[derive(Clone)]
struct Identity(CertificateDer<'static>, Vec<u8>);

impl Identity {
    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.1.clone()).unwrap()
    }
}

fn standard() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Keys that wear out after so many records; in life it is eight million.
fn short_lived(records: u64) -> Arc<CryptoProvider> {
    let base = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let common = CipherSuiteCommon {
        suite: base.common.suite,
        hash_provider: base.common.hash_provider,
        confidentiality_limit: records,
    };
    let (hkdf_provider, aead_alg) = (base.hkdf_provider, base.aead_alg);
    // For the rest of the process, as the interface wants it.
    let suite: &'static Tls13CipherSuite =
        Box::leak(Box::new(Tls13CipherSuite { common, hkdf_provider, aead_alg, quic: None }));
    let cipher_suites = vec![SupportedCipherSuite::Tls13(suite)];
    Arc::new(CryptoProvider { cipher_suites, ..rustls::crypto::ring::default_provider() })
}

/// An authority with a server and clients. Ed25519: signatures have one length, so a run depends on its seed alone.
struct Group {
    root: CertificateDer<'static>,
    server: Identity,
    sales: Identity,
    refused: Identity,
}

fn key() -> rcgen::KeyPair {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap()
}

fn group() -> Group {
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    let authority_key = key();
    let root = authority.self_signed(&authority_key).unwrap().der().clone();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let leaf = |names: &[&str], usage| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        let key = key();
        Identity(params.signed_by(&key, &issuer).unwrap().der().clone(), key.serialize_der())
    };
    let client = || leaf(&[], rcgen::ExtendedKeyUsagePurpose::ClientAuth);
    Group {
        server: leaf(&["cell"], rcgen::ExtendedKeyUsagePurpose::ServerAuth),
        sales: client(),
        refused: client(),
        root,
    }
}

impl Group {
    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        Arc::new(roots)
    }

    fn server_config(&self, provider: Arc<CryptoProvider>) -> Arc<ServerConfig> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider.clone()).build().unwrap();
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let chain = vec![self.server.0.clone()];
        Arc::new(config.with_client_cert_verifier(verifier).with_single_cert(chain, self.server.key()).unwrap())
    }

    fn client(
        &self,
        identity: Option<&Identity>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> ClientConnection {
        self.client_with(standard(), identity, version)
    }

    fn client_with(
        &self,
        provider: Arc<CryptoProvider>,
        identity: Option<&Identity>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> ClientConnection {
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = config.with_root_certificates(self.roots());
        let config = match identity {
            Some(it) => config.with_client_auth_cert(vec![it.0.clone()], it.key()).unwrap(),
            None => config.with_no_client_auth(),
        };
        ClientConnection::new(Arc::new(config), ServerName::try_from("cell").unwrap()).unwrap()
    }
}

/// Lets `sales` in as a database, refuses `refused`, remembers why TLS failed.
struct Door {
    config: Arc<ServerConfig>,
    sales: CertificateDer<'static>,
    failures: Mutex<Vec<String>>,
}

impl Doorkeeper for Door {
    fn client_of(&self, _: &dyn Conn) -> NbdClient {
        unreachable!("nobody is let in without TLS")
    }
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        Some(self.config.clone())
    }
    fn client_of_certificate(&self, certificate: &CertificateDer<'_>, _: &dyn Conn) -> Result<NbdClient, String> {
        if *certificate != self.sales {
            return Err("certificate old is revoked".to_owned());
        }
        let (who, names) = ("certificate sales".to_owned(), vec!["SALES".to_owned()]);
        let (proof, database) = (Proof::Certificate("sales".into()), Some("SALES".into()));
        Ok(NbdClient { who, names, scope: Scope::Named, proof, database, may_write: true })
    }
    fn cut_off(&self, _: &dyn Conn, _: &str, _: &str) {}

    fn tls_failed(&self, _: &dyn Conn, reason: &TlsError) {
        self.failures.lock().unwrap().push(reason.to_string());
    }
}

struct Fixture {
    b: Bench,
    group: Arc<Group>,
    door: Arc<Door>,
}

/// Tasks hold the world and the world its tasks: without an end, what one holds would stay.
impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (front, clock) = (self.b.front.clone(), self.b.w.clock.clone());
        self.b.w.executor.block_on(async move {
            front.stop().await;
            clock.sleep(Duration::from_secs(2)).await;
        });
    }
}

fn fixture(seed: u64) -> Fixture {
    fixture_with(seed, FrontEndLimits::default(), &standard())
}

fn fixture_with(seed: u64, limits: FrontEndLimits, provider: &Arc<CryptoProvider>) -> Fixture {
    let b = bench_with(seed, &["data", "theirs", "open"], 16 << 20, limits);
    b.cell.grid_disk("data").unwrap().set_access("SALES", false);
    b.cell.grid_disk("theirs").unwrap().set_access("HR", false);
    let group = Arc::new(group());
    let config = group.server_config(provider.clone());
    let door = Arc::new(Door { config, sales: group.sales.0.clone(), failures: Mutex::default() });
    let (net, front, keeper) = (b.w.net.clone(), b.front.clone(), door.clone());
    b.w.executor.block_on(async move { front.serve_at(net.listen(&unix("tls")).await.unwrap(), keeper) });
    Fixture { b, group, door }
}

/// Connected, greeted, flags said.
async fn connect(net: &Arc<TestNet>) -> Raw {
    let mut raw = Raw(net.connect(&unix("tls")).await.unwrap(), Vec::new());
    raw.take(18).await;
    raw.send(&[0, 0, 0, 3]).await;
    raw
}

/// As [`connect`], up to the answer to STARTTLS.
async fn start_tls(net: &Arc<TestNet>) -> Raw {
    let mut raw = connect(net).await;
    raw.option(ClientOption::StartTls).await;
    assert_eq!(raw.option_reply().await, OptionReply::Ack);
    raw
}

async fn secured(net: &Arc<TestNet>, tls: ClientConnection) -> Result<Raw, TlsError> {
    let raw = start_tls(net).await;
    Ok(Raw(Arc::new(TlsConn::start(raw.0, tls.into()).await?), Vec::new()))
}

async fn go(raw: &mut Raw, name: &str) -> OptionReply {
    raw.option(ClientOption::Go { name: name.into(), requests: vec![] }).await;
    raw.option_replies().await.pop().unwrap()
}

const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

#[test]
fn requests_of_every_length_go_both_ways() {
    for (seed, version) in (0..10).flat_map(|seed| VERSIONS.map(|version| (seed, version))) {
        let f = fixture(seed);
        let (net, group) = (f.b.w.net.clone(), f.group.clone());
        f.b.w.executor.block_on(async move {
            let mut raw = secured(&net, group.client(Some(&group.sales), version)).await.unwrap();
            assert_eq!(go(&mut raw, "data").await, OptionReply::Ack);
            for (cookie, offset, len) in [
                (1, 4096, 4096),
                (2, 12345, 777),
                (3, 1 << 20, 5 << 20),
                (4, 0, 1),
                (5, 0, 16384),
                (6, 7, 16385 + 65536),
            ] {
                raw.write_and_read_back(cookie, offset, len).await;
            }
            raw.request(Command::Disconnect, NONE, 9, 0, 0).await;
            assert!(raw.ended().await);
        });
        f.b.w.executor.settle();
        let stats = f.b.front.stats();
        assert_eq!((stats.tls, stats.tls_failed, stats.malformed, stats.writes, stats.reads), (1, 0, 0, 6, 6));
        assert_eq!(f.b.arena.free_bytes(), f.b.arena.size_bytes(), "all memory is back");
    }
}

/// Neither side reads before it has written: more than the pipes and buffers between them hold, both ways at once.
#[test]
fn two_sides_that_write_do_not_hold_each_other_up() {
    for seed in 0..5 {
        let f = fixture(seed);
        let (net, group) = (f.b.w.net.clone(), f.group.clone());
        f.b.w.executor.block_on(async move {
            let mut raw = secured(&net, group.client(Some(&group.sales), &rustls::version::TLS13)).await.unwrap();
            assert_eq!(go(&mut raw, "data").await, OptionReply::Ack);
            let writer = Raw(raw.0.clone(), Vec::new());
            let write = async {
                for cookie in 0..24 {
                    writer.request(Command::Read, NONE, 100 + cookie, 4 << 20, 1 << 20).await;
                    writer.write(cookie, 0, &pattern(1 << 20, cookie as u8), NONE).await;
                }
            };
            let read = async {
                for _ in 0..48 {
                    let (errno, cookie) = raw.simple().await;
                    assert_eq!(errno, 0);
                    if cookie >= 100 {
                        assert!(raw.take(1 << 20).await == vec![0; 1 << 20]);
                    }
                }
            };
            futures_util::future::join(write, read).await;
        });
        assert_eq!(f.b.front.stats().bytes_written, 24 << 20);
    }
}

#[test]
fn a_certificate_opens_what_names_its_database_and_no_tag_opens_more() {
    let f = fixture(1);
    let (net, group) = (f.b.w.net.clone(), f.group.clone());
    f.b.w.executor.block_on(async move {
        let mut raw = secured(&net, group.client(Some(&group.sales), &rustls::version::TLS13)).await.unwrap();
        raw.option(ClientOption::List).await;
        let listed = raw.option_replies().await;
        assert_eq!(listed.len(), 2, "one export and the end: {listed:?}");
        for name in ["theirs", "open", "theirs@SALES", "data@HR"] {
            let reply = go(&mut raw, name).await;
            let OptionReply::Error { kind, message } = &reply else { panic!("{name}: {reply:?}") };
            // Only of its own grid disk it is told more than of one that is not there.
            let (want, part) = match name {
                "data@HR" => (RepError::Policy, "certificate sales does not work for HR"),
                _ => (RepError::Unknown, "for this client"),
            };
            assert!(*kind == want && message.contains(part), "{name}: {reply:?}");
        }
        assert_eq!(go(&mut raw, "data@sales").await, OptionReply::Ack);
    });
}

#[test]
fn who_is_refused_is_told_why_and_sees_nothing() {
    let f = fixture(2);
    let (net, group) = (f.b.w.net.clone(), f.group.clone());
    f.b.w.executor.block_on(async move {
        let mut raw = secured(&net, group.client(Some(&group.refused), &rustls::version::TLS13)).await.unwrap();
        raw.option(ClientOption::List).await;
        assert_eq!(raw.option_replies().await, [OptionReply::Ack]);
        for name in ["data", "nosuch", ""] {
            let reply = go(&mut raw, name).await;
            assert_eq!(reply, OptionReply::error(RepError::Policy, "certificate old is revoked"), "{name}");
        }
        raw.option(ClientOption::ExportName("data".into())).await;
        assert!(raw.ended().await);
    });
}

#[test]
fn without_a_certificate_of_the_group_there_is_no_session() {
    let stranger = group();
    for version in VERSIONS {
        for (identity, alert) in [(None, "CertificateRequired"), (Some(stranger.sales.clone()), "")] {
            let f = fixture(3);
            let (net, group) = (f.b.w.net.clone(), f.group.clone());
            let error = f.b.w.executor.block_on(async move {
                let raw = match secured(&net, group.client(identity.as_ref(), version)).await {
                    Err(error) => return error.to_string(),
                    // With TLS 1.3 the client has done its part before it is judged.
                    Ok(raw) => raw,
                };
                raw.option(ClientOption::List).await;
                let (result, _) = raw.0.receive(Buf::zeroed(100)).await;
                result.unwrap_err().to_string()
            });
            assert!(error.contains("alert") && (version != VERSIONS[0] || error.contains(alert)), "{error}");
            // The client has gone: the session ends.
            let (net, executor) = (f.b.w.net.clone(), f.b.w.executor.clone());
            net.cut_all();
            executor.settle();
            let stats = f.b.front.stats();
            assert_eq!((stats.tls, stats.tls_failed, stats.connections_open), (0, 1, 0));
            assert_eq!(f.door.failures.lock().unwrap().len(), 1);
        }
    }
}

/// What is said in the clear behind STARTTLS is nobody's (CVE-2021-3716): it is neither answered nor taken into the session.
#[test]
fn bytes_between_starttls_and_its_answer_end_the_connection() {
    for (seed, behind) in
        (0..20).flat_map(|seed| [(seed, &b"\x16\x03\x01\x02\x00\x01"[..]), (seed, b"IHAVEOPT\0\0\0\x03\0\0\0\0")])
    {
        let f = fixture(seed);
        let net = f.b.w.net.clone();
        f.b.w.executor.block_on(async move {
            let mut raw = connect(&net).await;
            let mut bytes = Vec::new();
            ClientOption::StructuredReply.encode(&mut bytes);
            ClientOption::StartTls.encode(&mut bytes);
            bytes.extend_from_slice(behind);
            raw.send(&bytes).await;
            let mut said = Vec::new();
            loop {
                let (result, buf) = raw.0.receive(Buf::zeroed(4096)).await;
                match result {
                    Ok(count) if count > 0 => said.extend_from_slice(&buf[..count]),
                    _ => break,
                }
            }
            raw.1.clear();
            // At most the answers before it, an ACK to STARTTLS, and the protocol's dislike of what followed.
            assert!(said.len() <= 200 && !said.windows(4).any(|w| w == b"data"), "{said:?}");
        });
        f.b.w.executor.settle();
        let stats = f.b.front.stats();
        assert_eq!((stats.tls, stats.connections_open), (0, 0));
        // Cut before the bytes behind it, the stream goes on with what is no hello, or only the beginning of one.
        assert!(stats.malformed + stats.tls_failed + stats.timed_out >= 1);
    }
}

#[test]
fn silence_after_starttls_and_in_the_middle_of_a_hello_times_out() {
    let f = fixture(4);
    let (net, clock, front) = (f.b.w.net.clone(), f.b.w.clock.clone(), f.b.front.clone());
    f.b.w.executor.block_on(async move {
        let mut silent = start_tls(&net).await;
        let mut slow = start_tls(&net).await;
        slow.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
        clock.sleep(Duration::from_secs(40)).await;
        assert!(silent.ended().await && slow.ended().await);
        let stats = front.stats();
        assert_eq!((stats.timed_out, stats.tls, stats.connections_open), (2, 0, 0));
    });
}

/// Garbage in place of a hello, and records that were changed on their way: the connection ends, what was whole before is done,
/// nothing stays behind.
#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let mut prng = Prng::new(11);
    for seed in 0..30 {
        let f = fixture(seed);
        let mut garbage = vec![0; 1 + prng.below(40_000) as usize];
        prng.fill(&mut garbage);
        // Some look like a handshake record.
        if seed % 2 == 0 {
            let head = [0x16, 3, 1, prng.below(0x41) as u8, 0];
            let count = garbage.len().min(head.len());
            garbage[..count].copy_from_slice(&head[..count]);
        }
        let (net, group, clock) = (f.b.w.net.clone(), f.group.clone(), f.b.w.clock.clone());
        let flip = prng.below(60);
        f.b.w.executor.block_on(async move {
            let raw = start_tls(&net).await;
            let _ = raw.0.send(SharedBuf::from(garbage).into()).await;
            let mangled = Arc::new(Mangled(start_tls(&net).await.0, Mutex::new(flip)));
            if let Ok(tls) = TlsConn::start(mangled, group.client(Some(&group.sales), VERSIONS[0]).into()).await {
                let raw = Raw(Arc::new(tls), Vec::new());
                let mut bytes = Vec::new();
                ClientOption::Go { name: "data".into(), requests: vec![] }.encode(&mut bytes);
                if raw.0.send(SharedBuf::from(bytes).into()).await.is_ok() {
                    for _ in 0..60 {
                        let request =
                            Request { flags: NONE, command: Command::Write, cookie: Cookie(1), offset: 0, len: 4096 };
                        let bytes = [&request.encode()[..], &[7; 4096]].concat();
                        let _ = raw.0.send(SharedBuf::from(bytes).into()).await;
                    }
                }
            }
            clock.sleep(Duration::from_secs(200)).await;
            net.cut_all();
        });
        f.b.w.executor.settle();
        assert_eq!(f.b.front.stats().connections_open, 0);
        assert_eq!(f.b.arena.free_bytes(), f.b.arena.size_bytes(), "all memory is back");
        assert!(f.b.disk.content().len() == SIZE);
    }
}

/// Flips a bit in the send after so many.
struct Mangled(Arc<dyn Conn>, Mutex<u64>);

impl Conn for Mangled {
    fn receive(&self, buf: Buf) -> device::net::NetFuture<(Result<usize, NetError>, Buf)> {
        self.0.receive(buf)
    }
    fn send(&self, data: SharedBufs) -> device::net::NetFuture<Result<(), NetError>> {
        let mut left = self.1.lock().unwrap();
        *left = left.wrapping_sub(1);
        if *left == u64::MAX {
            let mut bytes = data.to_vec(0..data.len_bytes());
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            return self.0.send(SharedBuf::from(bytes).into());
        }
        self.0.send(data)
    }
    fn close(&self) {
        self.0.close();
    }
    fn hung_up(&self) -> device::net::NetFuture<()> {
        self.0.hung_up()
    }
    fn hang_up(&self) -> Option<HangUp> {
        self.0.hang_up()
    }
    fn peer(&self) -> String {
        self.0.peer()
    }
    fn credentials(&self) -> Option<Credentials> {
        None
    }
}

/// A write whose last record does not come is not received; those before it are done.
#[test]
fn a_cut_within_a_record_is_the_end() {
    for seed in 0..10 {
        let f = fixture(seed);
        let (net, group) = (f.b.w.net.clone(), f.group.clone());
        f.b.w.executor.block_on(async move {
            let mut raw = secured(&net, group.client(Some(&group.sales), VERSIONS[0])).await.unwrap();
            assert_eq!(go(&mut raw, "data").await, OptionReply::Ack);
            raw.write(1, 0, &pattern(8192, 1), NONE).await;
            let request = Request { flags: NONE, command: Command::Write, cookie: Cookie(2), offset: 0, len: 100_000 };
            raw.send(&[&request.encode()[..], &[9; 60_000]].concat()).await;
            assert_eq!(raw.simple().await, (0, 1));
            net.cut_all();
        });
        f.b.w.executor.settle();
        assert!(f.b.disk.content()[..8192] == pattern(8192, 1));
        assert_eq!(f.b.front.stats().connections_open, 0);
        assert_eq!(f.b.arena.free_bytes(), f.b.arena.size_bytes(), "all memory is back");
    }
}

/// Who reads nothing is told nothing: a stop does not wait for the farewell longer than it may take.
#[test]
fn a_stop_says_farewell() {
    let f = fixture(6);
    let (net, group, front) = (f.b.w.net.clone(), f.group.clone(), f.b.front.clone());
    f.b.w.executor.block_on(async move {
        let mut raw = secured(&net, group.client(Some(&group.sales), VERSIONS[0])).await.unwrap();
        assert_eq!(go(&mut raw, "data").await, OptionReply::Ack);
        raw.write(1, 0, &pattern(8192, 1), NONE).await;
        assert_eq!(raw.simple().await, (0, 1));
        let ended = async { assert!(raw.ended().await) };
        futures_util::future::join(front.stop(), ended).await;
        assert_eq!(front.stats().connections_open, 0);
    });
}

/// More strangers than may try at a time: both doors serve at once, and each new stranger costs the oldest one its place.
#[test]
fn strangers_do_not_take_the_places_of_clients() {
    let limits = FrontEndLimits { connections_max: 8, unproven_max: 2, ..FrontEndLimits::default() };
    let f = fixture_with(7, limits, &standard());
    let (net, group, front, clock) = (f.b.w.net.clone(), f.group.clone(), f.b.front.clone(), f.b.w.clock.clone());
    f.b.w.executor.block_on(async move {
        let mut proven = secured(&net, group.client(Some(&group.sales), VERSIONS[0])).await.unwrap();
        assert_eq!(go(&mut proven, "data").await, OptionReply::Ack);
        let mut strangers = Vec::new();
        for _ in 0..7 {
            strangers.push(net.connect(&unix("tls")).await.unwrap());
        }
        clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(front.stats().connections_open, 3, "a client that has shown a certificate is no stranger");
        for _ in 0..2 {
            let mut raw = Raw::connect(net.clone()).await;
            assert_eq!(raw.go("data", false, &[]).await.pop().unwrap(), OptionReply::Ack);
        }
        let mut late = secured(&net, group.client(Some(&group.sales), VERSIONS[0])).await.unwrap();
        assert_eq!(go(&mut late, "data").await, OptionReply::Ack);
        assert_eq!(front.stats().timed_out, 0, "it did not have to wait for their time-out");
        proven.request(Command::Flush, NONE, 1, 0, 0).await;
        assert_eq!(proven.simple().await, (0, 1));
    });
}

/// A connection outlives its keys: both sides renew theirs many times, in the middle of what they send.
#[test]
fn keys_are_renewed_within_a_connection() {
    for seed in 0..5 {
        let f = fixture_with(seed, FrontEndLimits::default(), &short_lived(29));
        let (net, group) = (f.b.w.net.clone(), f.group.clone());
        f.b.w.executor.block_on(async move {
            let tls = group.client_with(short_lived(23), Some(&group.sales), VERSIONS[0]);
            let mut raw = secured(&net, tls).await.unwrap();
            assert_eq!(go(&mut raw, "data").await, OptionReply::Ack);
            for cookie in 0..6 {
                raw.write_and_read_back(cookie, 0, 2 << 20).await;
            }
            raw.request(Command::Disconnect, NONE, 9, 0, 0).await;
            assert!(raw.ended().await);
        });
    }
}
