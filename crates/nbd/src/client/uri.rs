//! NBD URIs: `nbd://host[:port]/export` and `nbd+unix:///export?socket=path`.

use device::Address;
use std::fmt::Write as _;
use std::str::FromStr;

/// The port when a URI names none.
pub const DEFAULT_PORT: u16 = 10809;

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The server.
    pub address: Address,
    /// The export's name; empty for the default export.
    pub export: String,
}

/// Why a text is not an NBD URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Not one of the schemes.
    #[error("not an NBD URI: {0}; hint: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Scheme(String),
    /// A scheme with TLS.
    #[error("no TLS here; hint: use nbd:// or nbd+unix://")]
    Tls,
    /// A port that is not one.
    #[error("bad port {0:?}")]
    Port(String),
    /// No host.
    #[error("no host; hint: nbd://HOST[:PORT]/EXPORT")]
    NoHost,
    /// No socket path.
    #[error("no socket; hint: nbd+unix:///EXPORT?socket=PATH")]
    NoSocket,
    /// A percent sign without two hexadecimal digits, or bytes that are no text.
    #[error("bad percent encoding in {0:?}")]
    Encoding(String),
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Err(UriError::Scheme(text.to_owned())) };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(path)?;
        let address = match scheme.to_ascii_lowercase().as_str() {
            "nbd" => tcp(authority)?,
            "nbd+unix" => {
                let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
                match socket {
                    Some(path) if !path.is_empty() => Address::Unix(decode(path)?.into()),
                    _ => return Err(UriError::NoSocket),
                }
            }
            "nbds" | "nbds+unix" => return Err(UriError::Tls),
            _ => return Err(UriError::Scheme(text.to_owned())),
        };
        Ok(Uri { address, export })
    }
}

fn tcp(authority: &str) -> Result<Address, UriError> {
    // A user name has no meaning without TLS.
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or(UriError::NoHost)?;
            (host, after.strip_prefix(':').unwrap_or(after))
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = match port {
        "" => DEFAULT_PORT,
        text => text.parse().ok().filter(|p| *p > 0).ok_or_else(|| UriError::Port(text.to_owned()))?,
    };
    let host = decode(host)?;
    if host.is_empty() { Err(UriError::NoHost) } else { Ok(Address::Tcp { host, port }) }
}

fn decode(text: &str) -> Result<String, UriError> {
    let bad = || UriError::Encoding(text.to_owned());
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
        let (high, low) = (digit()?, digit()?);
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).map_err(|_| bad())
}

fn encode(out: &mut String, text: &str, also: &str) {
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte);
        if plain {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::new();
        match &self.address {
            Address::Unix(path) => {
                out.push_str("nbd+unix:///");
                encode(&mut out, &self.export, "@");
                out.push_str("?socket=");
                encode(&mut out, &path.to_string_lossy(), "/");
            }
            Address::Tcp { host, port } => {
                out.push_str("nbd://");
                if host.contains(':') {
                    let _ = write!(out, "[{host}]:{port}/");
                } else {
                    let _ = write!(out, "{host}:{port}/");
                }
                encode(&mut out, &self.export, "@");
            }
        }
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Result<Uri, UriError> {
        Ok(Uri { address: Address::Tcp { host: host.into(), port }, export: export.into() })
    }

    #[test]
    fn uris_name_a_server_and_an_export() {
        assert_eq!("nbd://h/data".parse(), tcp("h", 10809, "data"));
        assert_eq!("NBD://h:1234".parse(), tcp("h", 1234, ""));
        assert_eq!("nbd://[::1]:99/a%20b@SPOT".parse(), tcp("::1", 99, "a b@SPOT"));
        assert_eq!("nbd://user@10.0.0.1/x".parse(), tcp("10.0.0.1", 10809, "x"));
        let unix = Uri { address: Address::Unix("/tmp/a b".into()), export: "data".into() };
        assert_eq!("nbd+unix:///data?socket=/tmp/a%20b".parse(), Ok(unix));
    }

    #[test]
    fn what_is_not_one_is_told() {
        let parse = |text: &str| text.parse::<Uri>().err();
        assert_eq!(parse("/dev/sda"), Some(UriError::Scheme("/dev/sda".into())));
        assert_eq!(parse("http://h/"), Some(UriError::Scheme("http://h/".into())));
        assert_eq!(parse("nbds://h/"), Some(UriError::Tls));
        assert_eq!(parse("nbd:///x"), Some(UriError::NoHost));
        assert_eq!(parse("nbd://h:0/x"), Some(UriError::Port("0".into())));
        assert_eq!(parse("nbd://h:x/x"), Some(UriError::Port("x".into())));
        assert_eq!(parse("nbd+unix:///x"), Some(UriError::NoSocket));
        assert_eq!(parse("nbd://h/%4"), Some(UriError::Encoding("%4".into())));
        assert_eq!(parse("nbd://h/%ff"), Some(UriError::Encoding("%ff".into())));
    }

    #[test]
    fn printing_and_parsing_agree() {
        for text in ["nbd://h:1/a%2Fb@c", "nbd+unix:///?socket=/run/x", "nbd://[::1]:10809/%25"] {
            let uri: Uri = text.parse().expect("well-formed");
            assert_eq!(uri.to_string(), text);
            assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }
}
