//! The authority of a group of cells: its key and certificate in a directory, and the certificates it makes.
//!
//! Keys are ECDSA P-256: every client knows it. Never signs what it did not make the key of, and never another authority.

use super::place::Keep;
use super::{TrustError, usage};
use crate::admin::{NAME_URI, ROLE_URI, Role};
use crate::tls::CA_CERTIFICATE;
use chrono::{DateTime, Datelike, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use std::path::Path;

/// The authority's key.
pub(super) const CA_KEY: &str = "ca.key";
/// The authority's name, which every certificate repeats.
const CA_NAME: &str = "ca.name";
/// Years an authority lasts.
const AUTHORITY_YEARS: i32 = 20;
/// Years a certificate lasts: until the next `flashcell trust`.
const CERTIFICATE_YEARS: i32 = 3;
/// Names in one certificate.
const NAMES_MAX: usize = 64;

pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// That of a directory, made when there is none; whether it was made.
    pub(super) fn open_or_make(dir: &Path) -> Result<(Authority, bool), TrustError> {
        let exists = |name: &str| dir.join(name).exists();
        if !exists(CA_KEY) {
            if exists(CA_CERTIFICATE) {
                let what = format!("{} has a certificate of an authority and not its key", dir.display());
                return Err(usage(what, "run this where the authority is, or name another directory with --trust"));
            }
            make(dir)?;
            return Authority::open(dir).map(|authority| (authority, true));
        }
        Authority::open(dir).map(|authority| (authority, false))
    }

    fn open(dir: &Path) -> Result<Authority, TrustError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(|error| TrustError::File { path, reason: error.to_string() })
        };
        let name = read(CA_NAME)?;
        let key = KeyPair::from_pem(&read(CA_KEY)?).map_err(|error| failed(name.trim(), error))?;
        let issuer = Issuer::new(authority_params(name.trim())?, key);
        Ok(Authority { issuer, certificate: read(CA_CERTIFICATE)? })
    }

    /// As PEM.
    pub(super) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate and key for a cell with these names and addresses.
    pub(super) fn cell(&self, names: &[String]) -> Result<(String, String), TrustError> {
        let subject = names.first().map_or("?", String::as_str);
        if names.len() > NAMES_MAX {
            return Err(usage(format!("{subject} has {} names", names.len()), "at most 64"));
        }
        let params = CertificateParams::new(names.to_vec()).map_err(|error| failed(subject, error))?;
        self.leaf(params, subject, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate and key for a client with a role.
    pub(super) fn client(&self, name: &str, role: &Role) -> Result<(String, String), TrustError> {
        let mut params = CertificateParams::default();
        for uri in [format!("{ROLE_URI}{role}"), format!("{NAME_URI}{name}")] {
            let uri = uri.try_into().map_err(|error| failed(name, error))?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        self.leaf(params, name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn leaf(
        &self,
        mut params: CertificateParams,
        subject: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String), TrustError> {
        let key = KeyPair::generate().map_err(|error| failed(subject, error))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        // No key usage: qemu wants key encipherment among it, which a key of this kind cannot have (RFC 8813 3). What a certificate is
        // for stands in the extended one.
        params.extended_key_usages = vec![usage];
        (params.not_before, params.not_after) = (date(-1, 0), date(0, CERTIFICATE_YEARS));
        let certificate = params.signed_by(&key, &self.issuer).map_err(|error| failed(subject, error))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

fn failed(subject: &str, error: impl ToString) -> TrustError {
    TrustError::Certificate { subject: subject.to_owned(), reason: error.to_string() }
}

/// Midnight of a day near today; clocks of hosts differ.
fn date(days: i64, years: i32) -> time::OffsetDateTime {
    let now: DateTime<Utc> = std::time::SystemTime::now().into();
    let day = now + chrono::Duration::days(days);
    // The 29th of February is not in every year.
    date_time_ymd(day.year() + years, day.month().try_into().unwrap_or(1), day.day().min(28).try_into().unwrap_or(1))
}

fn authority_params(name: &str) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(|error| failed(name, error))?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (date(-1, 0), date(0, AUTHORITY_YEARS));
    Ok(params)
}

fn make(dir: &Path) -> Result<(), TrustError> {
    let keep = Keep::open_or_make(dir)?;
    let salt = getrandom::u64().map_err(|error| failed("an authority", error))?;
    let name = format!("Flashcell authority {salt:016x}");
    let key = KeyPair::generate().map_err(|error| failed(&name, error))?;
    let certificate = authority_params(&name)?.self_signed(&key).map_err(|error| failed(&name, error))?;
    keep.write(CA_NAME, &name)?;
    keep.write(CA_CERTIFICATE, &certificate.pem())?;
    // Last: with it there, the authority is whole.
    keep.write(CA_KEY, &key.serialize_pem())
}
