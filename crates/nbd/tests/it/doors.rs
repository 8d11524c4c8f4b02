//! Goal: at each door the clients that are let in have what is for them, for as long as it is, and not more places than are theirs.
//! Method: front ends in the virtual world, with doors at which everybody is the client a test is about.

use crate::raw::{NONE, Raw, bench_with};
use crate::world::*;
use device::*;
use nbd::FrontEndLimits;
use nbd::codec::*;
use nbd::server::{Client as NbdClient, Doorkeeper, Proof, Scope};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;

/// A door at which everybody is called `ann` and works for nobody.
struct Ann(Scope);

impl Doorkeeper for Ann {
    fn cut_off(&self, _: &dyn Conn, _: &str, _: &str) {}

    fn client_of(&self, _conn: &dyn Conn) -> NbdClient {
        let who = "user ann".to_owned();
        NbdClient { who, names: vec!["ann".to_owned()], scope: self.0, ..NbdClient::anybody() }
    }
    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        None
    }
    fn client_of_certificate(&self, _: &CertificateDer<'_>, _: &dyn Conn) -> Result<NbdClient, String> {
        unreachable!("there is no TLS at this door")
    }
    fn tls_failed(&self, _: &dyn Conn, _: &nbd::tls::TlsError) {}
}

#[test]
fn exports_are_for_whom_they_name() {
    let b = bench_with(3, &["open", "anns", "bobs"], 16 << 20, FrontEndLimits::default());
    b.cell.grid_disk("anns").unwrap().set_access("bob, ANN", true);
    b.cell.grid_disk("bobs").unwrap().set_access("bob", false);
    for (at, scope, want) in [
        ("a", Scope::Open, &["anns", "open"][..]),
        ("b", Scope::Named, &["anns"]),
        ("c", Scope::All, &["anns", "bobs", "open"]),
    ] {
        let (net, front, cell) = (b.w.net.clone(), b.front.clone(), b.cell.clone());
        b.w.executor.block_on(async move {
            front.serve_at(net.listen(&unix(at)).await.unwrap(), Arc::new(Ann(scope)));
            let mut raw = Raw(net.connect(&unix(at)).await.unwrap(), Vec::new());
            raw.take(18).await;
            raw.send(&[0, 0, 0, 3]).await;
            raw.option(ClientOption::List).await;
            let listed = raw.option_replies().await.into_iter().filter_map(|reply| match reply {
                OptionReply::Server { name, .. } => Some(name),
                _ => None,
            });
            let mut listed: Vec<String> = listed.collect();
            listed.sort();
            assert_eq!(listed, want, "{scope:?}");
            for name in ["anns", "bobs", "open", "bobs@ann"] {
                raw.option(ClientOption::Info { name: name.into(), requests: vec![] }).await;
                let reply = raw.option_replies().await.pop().unwrap();
                match reply {
                    OptionReply::Ack => assert!(want.contains(&name.split('@').next().unwrap()), "{scope:?} {name}"),
                    OptionReply::Error { kind: RepError::Unknown, message } => {
                        assert!(!want.contains(&name), "{scope:?} {name}");
                        // What is there for others and what is not there at all are one answer.
                        raw.option(ClientOption::Info { name: "nosuch".into(), requests: vec![] }).await;
                        let Some(OptionReply::Error { kind: RepError::Unknown, message: of_none }) =
                            raw.option_replies().await.pop()
                        else {
                            panic!("{scope:?}: an unknown name is refused")
                        };
                        assert_eq!(message.replace(name, ""), of_none.replace("nosuch", ""));
                        assert!(message.contains("hint:"), "{message}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            // Read-only: announced, and refused without harm to the stream.
            raw.option(ClientOption::Go { name: "anns".into(), requests: vec![] }).await;
            let replies = raw.option_replies().await;
            let OptionReply::Info(Info::Export { flags, .. }) = &replies[0] else { panic!("{replies:?}") };
            assert!(flags.contains(TransmissionFlags::READ_ONLY));
            raw.write(1, 0, &[7; 512], NONE).await;
            assert_eq!(raw.simple().await, (1, 1), "EPERM");
            raw.request(Command::Read, NONE, 2, 0, 512).await;
            assert_eq!((raw.simple().await, raw.take(512).await), ((0, 2), vec![0; 512]));
            // A client that was there when the grid disk became read-only.
            if scope != Scope::Named {
                let mut raw = Raw(net.connect(&unix(at)).await.unwrap(), Vec::new());
                raw.take(18).await;
                raw.go("open", false, &[]).await;
                cell.grid_disk("open").unwrap().set_access("", true);
                raw.request(Command::Trim, NONE, 1, 0, 4096).await;
                assert_eq!(raw.simple().await, (1, 1), "EPERM");
                cell.grid_disk("open").unwrap().set_access("", false);
                raw.write(2, 0, &[7; 512], NONE).await;
                assert_eq!(raw.simple().await, (0, 2));
                raw.request(Command::WriteZeroes, NONE, 3, 0, 512).await;
                assert_eq!(raw.simple().await, (0, 3));
            }
        });
    }
}

/// A door at which everybody comes from elsewhere without a certificate.
struct Unproven;

impl Doorkeeper for Unproven {
    fn cut_off(&self, _: &dyn Conn, _: &str, _: &str) {}

    fn client_of(&self, _conn: &dyn Conn) -> NbdClient {
        NbdClient { scope: Scope::Open, proof: Proof::Nothing, ..NbdClient::anybody() }
    }
    fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        None
    }
    fn client_of_certificate(&self, _: &CertificateDer<'_>, _: &dyn Conn) -> Result<NbdClient, String> {
        unreachable!("there is no TLS at this door")
    }
    fn tls_failed(&self, _: &dyn Conn, _: &nbd::tls::TlsError) {}
}

/// Goal: clients without a certificate have places of their own, and take no others'. Method: one more than they have, then the others.
#[test]
fn clients_without_a_certificate_have_a_quota() {
    let limits = FrontEndLimits { connections_max: 16, uncertified_max: 3, ..FrontEndLimits::default() };
    let b = bench_with(5, &["data"], 16 << 20, limits);
    let (net, front) = (b.w.net.clone(), b.front.clone());
    b.w.executor.block_on(async move {
        front.serve_at(net.listen(&unix("plain")).await.unwrap(), Arc::new(Unproven));
        front.serve_at(net.listen(&unix("ann")).await.unwrap(), Arc::new(Ann(Scope::Open)));
        let mut served = Vec::new();
        for n in 0..6 {
            let mut raw = Raw(net.connect(&unix("plain")).await.unwrap(), Vec::new());
            raw.take(18).await;
            let answer = raw.go("data", false, &[]).await.pop().unwrap();
            match answer {
                OptionReply::Ack => served.push(raw),
                OptionReply::Error { kind: RepError::Policy, message } => {
                    assert!(message.contains("serves 3 connections without a certificate"), "{message}");
                    assert!(n >= 3, "connection {n} is refused");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(served.len(), 3);
        // Another user and an administrator come in beside them; a place that is free again is given again.
        for (at, name) in [("ann", "a user"), ("nbd", "an administrator")] {
            let mut raw = Raw(net.connect(&unix(at)).await.unwrap(), Vec::new());
            raw.take(18).await;
            assert_eq!(raw.go("data", false, &[]).await.pop().unwrap(), OptionReply::Ack, "{name}");
        }
        let mut gone = served.pop().unwrap();
        gone.request(Command::Disconnect, NONE, 1, 0, 0).await;
        assert!(gone.ended().await);
        let mut raw = Raw(net.connect(&unix("plain")).await.unwrap(), Vec::new());
        raw.take(18).await;
        assert_eq!(raw.go("data", false, &[]).await.pop().unwrap(), OptionReply::Ack);
    });
}

/// Goal: a session ends when its client's leave is withdrawn, and what it has sent until then is done. Method: the list changes while
/// requests are under way; a client that reads no reply is closed.
#[test]
fn a_session_ends_when_its_leave_is_withdrawn() {
    let b = bench_with(9, &["data", "other"], 16 << 20, FrontEndLimits::default());
    b.cell.grid_disk("data").unwrap().set_access("ann", false);
    let (net, front, cell, clock) = (b.w.net.clone(), b.front.clone(), b.cell.clone(), b.w.clock.clone());
    b.w.executor.block_on(async move {
        front.serve_at(net.listen(&unix("ann")).await.unwrap(), Arc::new(Ann(Scope::Open)));
        let connect = async |name: &str| {
            let mut raw = Raw(net.connect(&unix("ann")).await.unwrap(), Vec::new());
            raw.take(18).await;
            assert_eq!(raw.go(name, false, &[]).await.pop().unwrap(), OptionReply::Ack);
            raw
        };
        let (mut ends, mut stays, deaf) = (connect("data").await, connect("other").await, connect("data").await);
        assert!(front.end_unless(|_| true).is_empty(), "everything holds");
        ends.write(1, 0, &[7; 512], NONE).await;
        assert_eq!(ends.simple().await, (0, 1));
        for cookie in 2..10 {
            ends.request(Command::Read, NONE, cookie, 0, 512).await;
        }
        for cookie in 0..2 {
            deaf.request(Command::Read, NONE, cookie, 0, 4 << 20).await;
        }
        clock.sleep(Duration::from_millis(100)).await;
        cell.grid_disk("data").unwrap().set_access("bob", false);
        let told = front.end_unless(|_| true);
        assert_eq!(told, vec![("user ann".to_owned(), "data".to_owned()); 2]);
        assert!(front.end_unless(|_| true).is_empty(), "told once");
        // The replies to what had been read come, then the end.
        for cookie in 2..10 {
            assert_eq!((ends.simple().await, ends.take(512).await), ((0, cookie), vec![7; 512]));
        }
        assert!(ends.ended().await);
        clock.sleep(Duration::from_secs(13)).await;
        assert_eq!(front.stats().connections_open, 1, "a client that reads nothing is closed");
        // A certificate that counts no more.
        stays.request(Command::Flush, NONE, 1, 0, 0).await;
        assert_eq!(stays.simple().await, (0, 1));
        assert_eq!(front.end_unless(|client| client.proof != Proof::User).len(), 1);
        assert!(stays.ended().await);
    });
}
