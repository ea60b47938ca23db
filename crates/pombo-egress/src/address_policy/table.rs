//! The special blocks of the address space, one row each.
//!
//! Sources: the IANA special-purpose address registries for IPv4 and IPv6 (RFC 6890 and its updates), and
//! the documentation of the cloud providers for their metadata services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A block of addresses no delivery goes to, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row<A> {
    /// First address of the block.
    pub(super) base: A,
    /// Bits that an address must share with `base`.
    pub(super) bits: u8,
    /// What the block is, after "is in".
    pub(super) what: &'static str,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8, what: &'static str) -> Row<Ipv4Addr> {
    Row { base: Ipv4Addr::new(a, b, c, d), bits, what }
}

const fn v6(base: [u16; 8], bits: u8, what: &'static str) -> Row<Ipv6Addr> {
    Row { base: Ipv6Addr::from_segments(base), bits, what }
}

impl Row<Ipv4Addr> {
    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
        address.to_bits() & mask == self.base.to_bits()
    }
}

impl Row<Ipv6Addr> {
    pub(super) fn contains(&self, address: Ipv6Addr) -> bool {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
        address.to_bits() & mask == self.base.to_bits()
    }
}

/// IPv4 is a deny-list: everything outside these rows is the public Internet.
pub(super) const IPV4_REFUSED: [Row<Ipv4Addr>; 18] = [
    v4(0, 0, 0, 0, 8, "\"this network\" (0.0.0.0/8)"),
    v4(10, 0, 0, 0, 8, "a private network (10.0.0.0/8)"),
    v4(100, 64, 0, 0, 10, "the shared address space of carriers (100.64.0.0/10)"),
    v4(127, 0, 0, 0, 8, "loopback (127.0.0.0/8)"),
    v4(169, 254, 0, 0, 16, "link-local (169.254.0.0/16)"),
    v4(172, 16, 0, 0, 12, "a private network (172.16.0.0/12)"),
    v4(192, 0, 0, 0, 24, "IETF protocol assignments (192.0.0.0/24)"),
    v4(192, 0, 2, 0, 24, "documentation (192.0.2.0/24)"),
    v4(192, 31, 196, 0, 24, "AS112 (192.31.196.0/24)"),
    v4(192, 52, 193, 0, 24, "AMT (192.52.193.0/24)"),
    v4(192, 88, 99, 0, 24, "6to4 relays (192.88.99.0/24)"),
    v4(192, 168, 0, 0, 16, "a private network (192.168.0.0/16)"),
    v4(192, 175, 48, 0, 24, "AS112 (192.175.48.0/24)"),
    v4(198, 18, 0, 0, 15, "benchmarking (198.18.0.0/15)"),
    v4(198, 51, 100, 0, 24, "documentation (198.51.100.0/24)"),
    v4(203, 0, 113, 0, 24, "documentation (203.0.113.0/24)"),
    v4(224, 0, 0, 0, 4, "multicast (224.0.0.0/4)"),
    // Broadcast, 255.255.255.255, is its last address.
    v4(240, 0, 0, 0, 4, "reserved space and broadcast (240.0.0.0/4)"),
];

/// IPv6 is an allow-list: only global unicast may be reached, ...
pub(super) const IPV6_GLOBAL: Row<Ipv6Addr> =
    v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3, "global unicast (2000::/3)");

/// ... minus these rows.
pub(super) const IPV6_REFUSED: [Row<Ipv6Addr>; 9] = [
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, "Teredo (2001::/32)"),
    v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, "benchmarking (2001:2::/48)"),
    v6([0x2001, 3, 0, 0, 0, 0, 0, 0], 32, "AMT (2001:3::/32)"),
    v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28, "ORCHID (2001:10::/28)"),
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "IETF protocol assignments (2001::/23)"),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, "documentation (2001:db8::/32)"),
    v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, "6to4 (2002::/16)"),
    v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, "AS112 (2620:4f:8000::/48)"),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, "documentation (3fff::/20)"),
];

/// Names for what lies outside 2000::/3; everything else there is "not global unicast".
pub(super) const IPV6_OUTSIDE: [Row<Ipv6Addr>; 12] = [
    v6([0, 0, 0, 0, 0, 0, 0, 0], 128, "the unspecified address (::)"),
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128, "loopback (::1)"),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 96, "IPv4-compatible (::/96)"),
    v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96, "IPv4-translated (::ffff:0:0:0/96)"),
    v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, "NAT64 (64:ff9b::/96)"),
    v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, "local NAT64 (64:ff9b:1::/48)"),
    v6([0x100, 0, 0, 0, 0, 0, 0, 0], 48, "discard-only and dummy prefixes (100::/48)"),
    v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, "segment routing (5f00::/16)"),
    v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "a unique local network (fc00::/7)"),
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "link-local (fe80::/10)"),
    v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, "site-local (fec0::/10)"),
    v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, "multicast (ff00::/8)"),
];

/// Services that hand out a machine's credentials or configuration. Refused even where private networks
/// are allowed; only a rule for that one address (`/32`, `/128`) lets one through.
pub(super) const METADATA: [IpAddr; 9] = [
    // AWS, Azure, Google, DigitalOcean, Hetzner and others.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // AWS ECS task credentials, EKS pod identity.
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    // Alibaba Cloud, Oracle Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // Azure WireServer: a public address.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // AWS IMDS, EKS pod identity, Google.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// What `allow_private` opens: this machine and ordinary private networks, nothing else.
pub(super) const PRIVATE_V4: [Row<Ipv4Addr>; 4] = [
    v4(127, 0, 0, 0, 8, "loopback"),
    v4(10, 0, 0, 0, 8, "a private network"),
    v4(172, 16, 0, 0, 12, "a private network"),
    v4(192, 168, 0, 0, 16, "a private network"),
];

/// As [`PRIVATE_V4`].
pub(super) const PRIVATE_V6: [Row<Ipv6Addr>; 2] = [
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128, "loopback"),
    v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "a unique local network"),
];

/// Ports under 1024 that webhooks use.
pub(super) const LOW_PORTS: [u16; 2] = [80, 443];

/// Ports from 1024 up that speak something else than HTTP and would read meaning into a request: those of
/// the WHATWG fetch standard ("bad port"), and those of databases, caches and cluster control.
pub(super) const BAD_PORTS: [u16; 32] = [
    1719, 1720, 1723, 2049, 2375, 2379, 2380, 3306, 3659, 4045, 4190, 5060, 5061, 5432, 6000, 6379, 6380,
    6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 9042, 9092, 10080, 10250, 11211, 26379, 27017,
];

/// The IPv4 address that an IPv6 address carries by one of the transition schemes, if any.
pub(super) fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let low = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    match segments {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Teredo (RFC 4380 section 4): the client's address is stored inverted.
        [0x2001, 0, _, _, _, _, a, b] => Some(low(!a, !b)),
        // IPv4-compatible (RFC 4291 2.5.5.1) and translated (RFC 2765), mapped (RFC 4291 2.5.5.2), NAT64
        // (RFC 6052).
        [0, 0, 0, 0, 0 | 0xffff, 0, a, b]
        | [0, 0, 0, 0, 0, 0xffff, a, b]
        | [0x64, 0xff9b, 0, 0, 0, 0, a, b]
        // Local NAT64 (RFC 8215), of which the /96 form is the usual one; the block is refused as a whole.
        | [0x64, 0xff9b, 1, _, _, _, a, b]
        // 6to4 (RFC 3056).
        | [0x2002, a, b, _, _, _, _, _]
        // ISATAP (RFC 5214 section 6.1): interface id `0000:5efe` or `0200:5efe`, then the address.
        | [_, _, _, _, 0 | 0x200, 0x5efe, a, b] => Some(low(a, b)),
        _ => None,
    }
}
