//! The handshake as a state machine: bytes in, bytes out, until an export is chosen.
//!
//! Never waits and never holds more than one option; the caller moves the bytes and sets the time-out.

use super::exports::{ExportInfo, Exports, NoExport};
use crate::codec::{
    CLIENT_FLAGS_BYTES, ClientFlags, ClientOption, CodecError, Info, OPTION_BYTES_MAX, OPTION_DRAIN_BYTES_MAX,
    OptionError, OptionHeader, OptionReply, RepError, TransmissionFlags, decode_client_flags, encode_export_name_reply,
    info, opt,
};
use crate::context::{ContextSet, Lineage};

/// Options one handshake may take: a client that sends more is not negotiating.
pub const OPTIONS_MAX: u32 = 4096;

/// What a handshake ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The export.
    pub export: ExportInfo,
    /// Its flags as announced on this connection.
    pub flags: TransmissionFlags,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// Meta contexts selected for this export.
    pub contexts: ContextSet,
    /// Whose connections it takes the place of.
    pub lineage: Option<Lineage>,
}

/// What to do after [`Negotiation::input`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again with more bytes than those left over.
    More,
    /// An option was answered: call again with the rest.
    Next,
    /// Requests follow.
    Chosen(Box<Chosen>),
    /// Send what there is to send, then start TLS and go on with [`Negotiation::secured`]. Bytes beyond those used came before
    /// TLS and must not count after it.
    StartTls,
    /// Send what there is to send, then close.
    Close,
}

/// What TLS is at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    /// There is none.
    Absent,
    /// It comes before everything else (the protocol's FORCEDTLS).
    Due,
    /// It is there.
    Present,
}

enum State {
    ClientFlags,
    Option,
    Drain { option: u32, left: u32 },
}

/// One connection's handshake, from the client's flags on.
pub struct Negotiation {
    state: State,
    security: Security,
    flags: ClientFlags,
    structured: bool,
    /// The last SET_META_CONTEXT: they hold for the export named with them.
    contexts: Option<(String, ContextSet, Option<Lineage>)>,
    options: u32,
}

impl Default for Negotiation {
    fn default() -> Negotiation {
        Negotiation::new()
    }
}

impl Negotiation {
    /// Most bytes the caller has to keep between calls: one option.
    pub const CARRY_BYTES_MAX: usize = OptionHeader::BYTES + OPTION_BYTES_MAX;

    /// A handshake whose greeting has been sent, at a door without TLS.
    #[must_use]
    pub fn new() -> Negotiation {
        Negotiation {
            state: State::ClientFlags,
            security: Security::Absent,
            flags: ClientFlags::NONE,
            structured: false,
            contexts: None,
            options: 0,
        }
    }

    /// A handshake whose greeting has been sent, at a door where TLS comes first: until then nothing but STARTTLS and ABORT is
    /// answered with more than NBD_REP_ERR_TLS_REQD, and no export is looked at.
    #[must_use]
    pub fn before_tls() -> Negotiation {
        Negotiation { security: Security::Due, ..Negotiation::new() }
    }

    /// How it goes on once TLS is there. Whatever was negotiated before anybody could have put there: it is forgotten, but for
    /// the client's flags, which are said once and decide about padding alone.
    #[must_use]
    pub fn secured(self) -> Negotiation {
        let Negotiation { flags, options, .. } = self;
        Negotiation { state: State::Option, security: Security::Present, flags, options, ..Negotiation::new() }
    }

    /// Take one step with `bytes`; replies are appended to `out`. Returns how many bytes were used.
    ///
    /// # Errors
    /// The bytes are not the protocol; close.
    pub fn input(
        &mut self,
        bytes: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), CodecError> {
        match self.state {
            State::ClientFlags => {
                let Some(head) = bytes.first_chunk::<CLIENT_FLAGS_BYTES>() else { return Ok((0, Step::More)) };
                self.flags = decode_client_flags(*head)?;
                self.state = State::Option;
                Ok((CLIENT_FLAGS_BYTES, Step::Next))
            }
            State::Drain { option, left } => {
                let take = bytes.len().min(left as usize);
                let left = left - take as u32;
                if left > 0 {
                    self.state = State::Drain { option, left };
                    return Ok((take, Step::More));
                }
                self.state = State::Option;
                let (kind, message) = match is_known(option) {
                    _ if self.is_tls_due(option) => TLS_FIRST,
                    true => (RepError::TooBig, "option data too long"),
                    false => (RepError::Unsup, "option not supported"),
                };
                OptionReply::error(kind, message).encode(option, out);
                Ok((take, Step::Next))
            }
            State::Option => {
                let Some(head) = bytes.first_chunk::<{ OptionHeader::BYTES }>() else { return Ok((0, Step::More)) };
                let header = OptionHeader::decode(head)?;
                if header.len > OPTION_DRAIN_BYTES_MAX {
                    let (len, max) = (u64::from(header.len), u64::from(OPTION_DRAIN_BYTES_MAX));
                    return Err(CodecError::TooLong { what: "option", len, max });
                }
                if header.len as usize > OPTION_BYTES_MAX {
                    if header.option == opt::EXPORT_NAME {
                        // It has no error reply.
                        return Ok((OptionHeader::BYTES, Step::Close));
                    }
                    if !self.one_more() {
                        return Ok((OptionHeader::BYTES, Step::Close));
                    }
                    self.state = State::Drain { option: header.option, left: header.len };
                    return Ok((OptionHeader::BYTES, Step::Next));
                }
                let end = OptionHeader::BYTES + header.len as usize;
                let Some(data) = bytes.get(OptionHeader::BYTES..end) else { return Ok((0, Step::More)) };
                if !self.one_more() {
                    return Ok((end, Step::Close));
                }
                Ok((end, self.option(header.option, data, exports, out)))
            }
        }
    }

    /// Count an option; false when there were too many.
    fn one_more(&mut self) -> bool {
        self.options += 1;
        self.options <= OPTIONS_MAX
    }

    /// Whether this option has to wait for TLS.
    fn is_tls_due(&self, option: u32) -> bool {
        self.security == Security::Due && !matches!(option, opt::STARTTLS | opt::ABORT)
    }

    fn option(&mut self, option: u32, data: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        if self.is_tls_due(option) {
            if option == opt::EXPORT_NAME {
                // It has no error reply.
                return Step::Close;
            }
            let (kind, message) = TLS_FIRST;
            OptionReply::error(kind, message).encode(option, out);
            return Step::Next;
        }
        let decoded = match ClientOption::decode(option, data) {
            Ok(decoded) => decoded,
            Err(_) if option == opt::EXPORT_NAME => return Step::Close,
            Err(error) => {
                let kind = match error {
                    OptionError::Invalid(_) => RepError::Invalid,
                    OptionError::TooBig(_) => RepError::TooBig,
                };
                OptionReply::error(kind, error.to_string()).encode(option, out);
                return Step::Next;
            }
        };
        match decoded {
            ClientOption::ExportName(name) => {
                let Ok(export) = exports.find(&name) else { return Step::Close };
                let chosen = self.choose(&name, export);
                let zeroes = !self.flags.contains(ClientFlags::NO_ZEROES);
                encode_export_name_reply(out, chosen.export.size_bytes, chosen.flags, zeroes);
                return Step::Chosen(Box::new(chosen));
            }
            ClientOption::Abort => {
                OptionReply::Ack.encode(option, out);
                return Step::Close;
            }
            ClientOption::List => {
                for (name, details) in exports.list() {
                    OptionReply::Server { name, details }.encode(option, out);
                }
                OptionReply::Ack.encode(option, out);
            }
            ClientOption::StartTls => {
                let (kind, message) = match self.security {
                    Security::Due => {
                        OptionReply::Ack.encode(option, out);
                        return Step::StartTls;
                    }
                    Security::Present => (RepError::Invalid, "TLS has been started already"),
                    Security::Absent => (RepError::Unsup, "there is no TLS at this address"),
                };
                OptionReply::error(kind, message).encode(option, out);
            }
            ClientOption::Info { name, requests } => {
                self.describe(option, &name, &requests, exports, out);
            }
            ClientOption::Go { name, requests } => {
                if let Some(export) = self.describe(option, &name, &requests, exports, out) {
                    return Step::Chosen(Box::new(self.choose(&name, export)));
                }
            }
            ClientOption::StructuredReply => {
                self.structured = true;
                OptionReply::Ack.encode(option, out);
            }
            ClientOption::ListMetaContext { name, queries } => {
                self.meta_context(option, name, &queries, true, exports, out);
            }
            ClientOption::SetMetaContext { name, queries } => {
                self.meta_context(option, name, &queries, false, exports, out);
            }
            ClientOption::ExtendedHeaders | ClientOption::Unknown(_) => {
                OptionReply::error(RepError::Unsup, "option not supported").encode(option, out);
            }
        }
        Step::Next
    }

    /// Answer INFO or GO.
    fn describe(
        &self,
        option: u32,
        name: &str,
        requests: &[u16],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Option<ExportInfo> {
        let export = match exports.find(name) {
            Ok(export) => export,
            Err(why) => {
                no_export(name, why, exports).encode(option, out);
                return None;
            }
        };
        let flags = self.flags_of(&export);
        let mut piece = |info| OptionReply::Info(info).encode(option, out);
        piece(Info::Export { size_bytes: export.size_bytes, flags });
        // Each at most once, however often it is asked for.
        if requests.contains(&info::NAME) {
            piece(Info::Name(export.name.clone()));
        }
        if requests.contains(&info::DESCRIPTION) {
            piece(Info::Description(export.description.clone()));
        }
        if requests.contains(&info::BLOCK_SIZE) {
            let (preferred, maximum) = (export.block_bytes_preferred, export.block_bytes_max);
            piece(Info::BlockSize { minimum: 1, preferred, maximum });
        }
        OptionReply::Ack.encode(option, out);
        Some(export)
    }

    fn meta_context(
        &mut self,
        option: u32,
        name: String,
        queries: &[String],
        listing: bool,
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) {
        if !listing {
            // A new set replaces the old one even when it fails.
            self.contexts = None;
        }
        if !self.structured {
            let message = "meta contexts need structured replies first";
            return OptionReply::error(RepError::Invalid, message).encode(option, out);
        }
        if let Err(why) = exports.find(&name) {
            return no_export(&name, why, exports).encode(option, out);
        }
        let stamp = exports.instance_stamp();
        let set = ContextSet::of_queries(queries, stamp, listing);
        for context in set.iter() {
            // Numbers mean nothing when listing.
            let id = if listing { 0 } else { context.id() };
            OptionReply::MetaContext { id, name: context.name(stamp) }.encode(option, out);
        }
        OptionReply::Ack.encode(option, out);
        if !listing {
            let lineage = queries.iter().find_map(|query| Lineage::parse(query));
            self.contexts = Some((name, set, lineage));
        }
    }

    fn flags_of(&self, export: &ExportInfo) -> TransmissionFlags {
        export.flags.with_if(TransmissionFlags::SEND_DF, self.structured)
    }

    fn choose(&self, name: &str, export: ExportInfo) -> Chosen {
        let (contexts, lineage) = match &self.contexts {
            Some((of, set, lineage)) if of == name => (*set, *lineage),
            _ => (ContextSet::default(), None),
        };
        Chosen { flags: self.flags_of(&export), structured: self.structured, contexts, lineage, export }
    }
}

/// What is answered before TLS.
const TLS_FIRST: (RepError, &str) = (
    RepError::TlsReqd,
    "TLS comes first here; hint: nbds://, with a certificate that `flashcell trust --client` makes",
);

/// Options that are answered with more than "not supported".
fn is_known(option: u32) -> bool {
    (opt::EXPORT_NAME..=opt::SET_META_CONTEXT).contains(&option) && option != 4
}

fn no_export(name: &str, why: NoExport, exports: &dyn Exports) -> OptionReply {
    match why {
        NoExport::NotForYou(message) => return OptionReply::error(RepError::Policy, message),
        NoExport::Inactive(name) => {
            let message = format!(
                "grid disk {name} is inactive: it was taken out of service; hint: ALTER GRIDDISK {name} ACTIVE"
            );
            return OptionReply::error(RepError::Policy, message);
        }
        NoExport::NoDefault(wanted) => {
            let message = format!(
                "the default export is grid disk {wanted}, which does not exist; hint: nbd.default in cell.toml"
            );
            return OptionReply::error(RepError::Unknown, message);
        }
        NoExport::Unknown => {}
    }
    // None that is not for this client.
    let names: Vec<String> = exports.list().into_iter().map(|(name, _)| name).take(16).collect();
    let message = match (name, names.is_empty()) {
        (_, true) => {
            "there is no grid disk here for this client; hint: a grid disk's availableTo names its clients".to_owned()
        }
        ("", _) => format!("no default export; hint: name one of {}", names.join(", ")),
        (name, _) => format!("no grid disk {name} for this client; hint: there is {}", names.join(", ")),
    };
    OptionReply::error(RepError::Unknown, message)
}
