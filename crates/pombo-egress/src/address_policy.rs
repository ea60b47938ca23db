//! Which addresses, ports and names a delivery may go to.
//!
//! Two checks with one set of rules. [`AddressPolicy::check_url`] refuses at creation what the URL alone
//! shows and resolves nothing. [`AddressPolicy::check_address`] decides at connect, on every address the
//! name resolved to, and is the one that protects: names can change between the two.

mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use pombo_domain::endpoint::EndpointUrl;
use url::{Host, Url};

use crate::nat64::Nat64Prefix;
use table::{
    BAD_PORTS, IPV4_REFUSED, IPV6_GLOBAL, IPV6_OUTSIDE, IPV6_REFUSED, LOW_PORTS, METADATA, PRIVATE_V4,
    PRIVATE_V6, embedded_ipv4,
};

/// A block of addresses, with or without a port: `10.0.0.0/8:443`, `192.0.2.7`, `[fd00::/8]:8443`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetPort {
    /// The block.
    pub net: IpNet,
    /// The port; `None` = every port.
    pub port: Option<u16>,
}

/// Why a text is not a [`NetPort`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network: write 10.0.0.0/8:443, 192.0.2.7 or [fd00::/8]:443")]
pub struct NetPortError(String);

impl NetPort {
    fn contains(&self, address: IpAddr, port: u16) -> bool {
        self.net.contains(&address) && self.port.is_none_or(|own| own == port)
    }

    /// Whether the block is one single address.
    fn is_host(&self) -> bool {
        self.net.prefix_len() == self.net.max_prefix_len()
    }
}

impl FromStr for NetPort {
    type Err = NetPortError;

    fn from_str(text: &str) -> Result<Self, NetPortError> {
        let refuse = || NetPortError(text.to_owned());
        let (net, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((net, "")) => (net, None),
            Some((net, port)) => (net, Some(port.strip_prefix(':').ok_or_else(refuse)?)),
            // One colon parts the port from IPv4; several belong to IPv6 without a port.
            None => match text.split_once(':') {
                Some((net, port)) if !port.contains(':') => (net, Some(port)),
                _ => (text, None),
            },
        };
        let port = port.map(str::parse).transpose().map_err(|_| refuse())?;
        let net = net.parse::<IpNet>().or_else(|_| net.parse::<IpAddr>().map(IpNet::from));
        match (net, port) {
            (Err(_), _) | (_, Some(0)) => Err(refuse()),
            (Ok(net), port) => Ok(Self { net: net.trunc(), port }),
        }
    }
}

impl fmt::Display for NetPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.net, self.port) {
            (net, None) => net.fmt(f),
            (IpNet::V4(net), Some(port)) => write!(f, "{net}:{port}"),
            (IpNet::V6(net), Some(port)) => write!(f, "[{net}]:{port}"),
        }
    }
}

/// The rules of an installation. The default is the strict one: HTTPS to public addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// Plain `http://` is allowed too (`egress.allow_http`).
    pub allow_http: bool,
    /// Loopback and private networks are allowed, and names that look internal: the `--dev` switch. Metadata
    /// services stay refused.
    pub allow_private: bool,
    /// Targets allowed although a table refuses them (`egress.allow`). A metadata service needs a rule for
    /// that one address. With any rule here, internal-looking names are accepted and their addresses decide.
    pub allow: Vec<NetPort>,
    /// Targets refused although they are public; wins over everything else.
    pub deny: Vec<NetPort>,
    /// Prefixes under which this network reaches IPv4 (see [`crate::discover_nat64`]): what they carry is
    /// judged too.
    pub nat64: Vec<Nat64Prefix>,
}

/// Why an address is refused. Says nothing that a tenant may not read at creation, where the address is
/// their own text; after resolution it is kept to the operator's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A rule of the operator (`deny`).
    #[error("is refused by a rule of this installation")]
    Denied,
    /// A metadata service of a cloud.
    #[error("is a cloud metadata service")]
    Metadata,
    /// In a block that is not the public Internet.
    #[error("is in {0}")]
    Block(&'static str),
    /// It carries a refused IPv4 address inside.
    #[error("carries an IPv4 address that is in {0}")]
    Embedded(&'static str),
    /// The port.
    #[error("uses a port that webhooks are not sent to")]
    Port,
}

/// Why a URL cannot be an endpoint's here. Reads alone, after the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlRefusal {
    /// Plain HTTP.
    #[error("must begin with https:// (an operator can allow http:// with `egress.allow_http`)")]
    Http,
    /// A name that only means something inside a network.
    #[error(
        "must not name the internal host {0:?}: use a public name (an operator can allow internal targets with \
         `egress.allow`)"
    )]
    InternalName(String),
    /// A literal address that is refused.
    #[error("must not point to this address: it {0} (an operator can allow it with `egress.allow`)")]
    Address(Refusal),
    /// The port.
    #[error(
        "must not use port {0}: use 443, 80, 8443, 8080 or another port from 1024 up that belongs to no other \
         protocol (an operator can allow it with `egress.allow`)"
    )]
    Port(u16),
    /// The serialised form holds bytes that HTTP cannot carry.
    #[error("must hold only characters that HTTP can carry: percent-encode the others")]
    Unsendable,
}

impl AddressPolicy {
    /// What `--dev` uses: plain HTTP, and targets on this machine and in private networks.
    #[must_use]
    pub fn dev() -> Self {
        Self { allow_http: true, allow_private: true, ..Self::default() }
    }

    /// Refuses what the URL alone shows: scheme, port, internal names, literal addresses. Resolves nothing.
    ///
    /// # Errors
    /// The first reason, readable after the name of the field.
    pub fn check_url(&self, url: &EndpointUrl) -> Result<(), UrlRefusal> {
        self.check_target(url)?;
        path_of(url.url()).parse::<http::uri::PathAndQuery>().map(drop).map_err(|_| UrlRefusal::Unsendable)
    }

    /// As [`Self::check_url`], without the path, which the request line is made from anyway.
    pub(crate) fn check_target(&self, url: &EndpointUrl) -> Result<(), UrlRefusal> {
        if !self.allow_http && !url.is_https() {
            return Err(UrlRefusal::Http);
        }
        let url = url.url();
        let port = port_of(url);
        if !self.allows_some_address_on(port) {
            return Err(UrlRefusal::Port(port));
        }
        match url.host() {
            Some(Host::Domain(name)) if !self.allows_internal_names() && is_internal_name(name) => {
                Err(UrlRefusal::InternalName(name.to_owned()))
            }
            Some(Host::Domain(_)) => Ok(()),
            Some(Host::Ipv4(address)) => self.check_literal(address.into(), port),
            Some(Host::Ipv6(address)) => self.check_literal(address.into(), port),
            // The types rule it out: an `EndpointUrl` has a host. Refused rather than trusted.
            None => Err(UrlRefusal::Unsendable),
        }
    }

    fn check_literal(&self, address: IpAddr, port: u16) -> Result<(), UrlRefusal> {
        match self.check_address(address, port) {
            Ok(_) => Ok(()),
            Err(Refusal::Port) => Err(UrlRefusal::Port(port)),
            Err(refusal) => Err(UrlRefusal::Address(refusal)),
        }
    }

    /// Whether a connection may go to the address and port.
    ///
    /// # Errors
    /// The reason it may not.
    pub fn classify(&self, address: IpAddr, port: u16) -> Result<(), Refusal> {
        self.check_address(address, port).map(drop)
    }

    /// As [`Self::classify`], and gives what to connect to: the address in its canonical form, so that what
    /// was judged is what is used (`::ffff:192.0.2.1` is reached over IPv4).
    ///
    /// # Errors
    /// The reason it may not be reached.
    pub fn check_address(&self, address: IpAddr, port: u16) -> Result<SocketAddr, Refusal> {
        let address = address.to_canonical();
        let opens_port = |rule: &NetPort| rule.port.is_some() && rule.contains(address, port);
        if !is_usual_port(port) && !self.allow.iter().any(opens_port) {
            return Err(Refusal::Port);
        }
        self.check_blocks(address, port)?;
        Ok(SocketAddr::new(address, port))
    }

    fn check_blocks(&self, address: IpAddr, port: u16) -> Result<(), Refusal> {
        if self.deny.iter().any(|rule| rule.contains(address, port)) {
            return Err(Refusal::Denied);
        }
        let mut explicit = self.allow.iter().filter(|rule| rule.contains(address, port)).peekable();
        let is_allowed = explicit.peek().is_some();
        if METADATA.contains(&address) && !explicit.any(NetPort::is_host) {
            return Err(Refusal::Metadata);
        }
        match address {
            IpAddr::V4(_) if is_allowed => Ok(()),
            IpAddr::V4(v4) => self.check_ipv4(v4),
            IpAddr::V6(v6) => self.check_ipv6(v6, port, is_allowed),
        }
    }

    /// Whether a connection that ends at this very host is wanted.
    pub(crate) fn allows_this_host(&self, peer: SocketAddr) -> bool {
        self.allow_private || self.allow.iter().any(|rule| rule.contains(peer.ip(), peer.port()))
    }

    fn check_ipv4(&self, address: Ipv4Addr) -> Result<(), Refusal> {
        if self.allow_private && PRIVATE_V4.iter().any(|row| row.contains(address)) {
            return Ok(());
        }
        match IPV4_REFUSED.iter().find(|row| row.contains(address)) {
            Some(row) => Err(Refusal::Block(row.what)),
            None => Ok(()),
        }
    }

    /// An address that carries an IPv4 address is reachable only if that one is too: a translator on the
    /// way would otherwise be a way round the IPv4 rules. That holds inside an allowed block as well.
    fn check_ipv6(&self, address: Ipv6Addr, port: u16, is_allowed: bool) -> Result<(), Refusal> {
        let own_prefixes = self.nat64.iter().filter_map(|prefix| prefix.embedded(address));
        for inner in embedded_ipv4(address).into_iter().chain(own_prefixes) {
            self.check_blocks(inner.into(), port).map_err(|refusal| match refusal {
                Refusal::Block(what) => Refusal::Embedded(what),
                other => other,
            })?;
        }
        if is_allowed || (self.allow_private && PRIVATE_V6.iter().any(|row| row.contains(address))) {
            return Ok(());
        }
        let refused = if IPV6_GLOBAL.contains(address) { &IPV6_REFUSED[..] } else { &IPV6_OUTSIDE[..] };
        match refused.iter().find(|row| row.contains(address)) {
            Some(row) => Err(Refusal::Block(row.what)),
            None if IPV6_GLOBAL.contains(address) => Ok(()),
            None => Err(Refusal::Block("no part of the public Internet")),
        }
    }

    /// Names say little, addresses decide; the rule only spares people a late surprise. Where internal
    /// targets are allowed at all it would be in the way.
    fn allows_internal_names(&self) -> bool {
        self.allow_private || !self.allow.is_empty()
    }

    fn allows_some_address_on(&self, port: u16) -> bool {
        is_usual_port(port) || self.allow.iter().any(|rule| rule.port == Some(port))
    }
}

fn is_usual_port(port: u16) -> bool {
    if port < 1024 { LOW_PORTS.contains(&port) } else { !BAD_PORTS.contains(&port) }
}

/// Names that resolve only inside a network: `localhost`, `*.localhost`, `*.local`, `*.internal`, and names
/// of a single label. The URL's own parser has made them lower-case ASCII without a trailing dot.
fn is_internal_name(name: &str) -> bool {
    match name.rsplit_once('.') {
        None => true,
        Some((_, last)) => matches!(last, "localhost" | "local" | "internal"),
    }
}

/// The port of a parsed `http` or `https` URL.
pub(crate) fn port_of(url: &Url) -> u16 {
    // Both schemes have a default; 0 stands for "none" and is refused as a port.
    url.port_or_known_default().unwrap_or(0)
}

/// Path and query as they go into the request line.
pub(crate) fn path_of(url: &Url) -> &str {
    &url[url::Position::BeforePath..url::Position::AfterQuery]
}
