//! Networks that reach IPv4 through IPv6 prefixes of their own (NAT64).
//!
//! Such a prefix looks like any public address, yet `prefix::10.0.0.1` ends at 10.0.0.1 behind the translator.
//! It is discovered as RFC 7050 says: `ipv4only.arpa` has two well-known IPv4 addresses and no IPv6 one, so an
//! IPv6 answer was synthesised from them and shows the prefix.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::resolve::Resolve;

/// The name that exists to be synthesised (RFC 7050 section 3).
const WELL_KNOWN_NAME: &str = "ipv4only.arpa";
/// Its addresses (RFC 7050 section 2.2).
const WELL_KNOWN_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];
/// Lengths a prefix may have (RFC 6052 section 2.2).
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
/// Synthesised answers that are looked at.
const ANSWERS_MAX: usize = 16;

/// A prefix under which a translator of this network reaches IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nat64Prefix {
    base: u128,
    /// One of [`LENGTHS`].
    length: u8,
}

impl Nat64Prefix {
    /// The prefix of this length that the address begins with; `None` for a length that RFC 6052 does not have.
    pub fn new(address: Ipv6Addr, length: u8) -> Option<Self> {
        LENGTHS.contains(&length).then(|| Self { base: address.to_bits() & mask(length), length })
    }

    /// The IPv4 address that the translator would reach for the address, if that lies under the prefix.
    pub(crate) fn embedded(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        (address.to_bits() & mask(self.length) == self.base).then(|| ipv4_at(address, self.length))
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX << (128 - u32::from(length))
}

/// The IPv4 address behind a prefix of the length. Byte 8 of the address is skipped, it is always zero
/// (RFC 6052 section 2.2).
fn ipv4_at(address: Ipv6Addr, length: u8) -> Ipv4Addr {
    let bytes = address.octets();
    let start = usize::from(length / 8);
    let mut after = bytes.iter().enumerate().skip(start).filter(|(place, _)| length == 96 || *place != 8);
    let mut next = || after.next().map_or(0, |(_, byte)| *byte);
    Ipv4Addr::from_octets([next(), next(), next(), next()])
}

/// Asks the resolver for the prefixes of this network. None where there is no NAT64, or no answer in time: an
/// installation that depends on it also names its prefixes in its settings.
pub async fn discover_nat64(resolver: &dyn Resolve, limit: Duration) -> Vec<Nat64Prefix> {
    let answer = tokio::time::timeout(limit, resolver.resolve(WELL_KNOWN_NAME)).await;
    let Ok(Ok(addresses)) = answer else { return Vec::new() };
    let mut prefixes = Vec::new();
    for address in addresses.into_iter().take(ANSWERS_MAX) {
        let IpAddr::V6(address) = address else { continue };
        let length =
            LENGTHS.into_iter().find(|length| WELL_KNOWN_ADDRESSES.contains(&ipv4_at(address, *length)));
        let found = length.and_then(|length| Nat64Prefix::new(address, length));
        prefixes.extend(found.filter(|prefix| !prefixes.contains(prefix)));
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::Resolving;

    #[derive(Debug)]
    struct Fixed(Vec<IpAddr>);

    impl Resolve for Fixed {
        fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
            assert_eq!(name, "ipv4only.arpa");
            Box::pin(async { Ok(self.0.clone()) })
        }
    }

    fn v6(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    /// The table of RFC 6052 section 2.4.
    #[test]
    fn ipv4_is_read_behind_prefixes_of_every_length() {
        for (address, length) in [
            ("2001:db8:c000:221::", 32),
            ("2001:db8:1c0:2:21::", 40),
            ("2001:db8:122:c000:2:2100::", 48),
            ("2001:db8:122:3c0:0:221::", 56),
            ("2001:db8:122:344:c0:2:2100::", 64),
            ("2001:db8:122:344::192.0.2.33", 96),
        ] {
            let prefix = Nat64Prefix::new(v6(address), length).expect("a length of the RFC");
            assert_eq!(prefix.embedded(v6(address)), Some(Ipv4Addr::new(192, 0, 2, 33)), "/{length}");
            assert_eq!(prefix.embedded(v6("2606:4700::1")), None);
        }
        assert_eq!(Nat64Prefix::new(v6("2001:db8::"), 33), None);
    }

    #[tokio::test]
    async fn prefixes_are_discovered_from_synthesised_answers() {
        let answers = ["192.0.0.170", "2a00:1:2:3::192.0.0.170", "2a00:1:2:3::192.0.0.171", "2606:4700::1"];
        let resolver = Fixed(answers.map(|text| text.parse().expect("an address")).to_vec());
        let found = discover_nat64(&resolver, Duration::from_secs(1)).await;
        assert_eq!(found, [Nat64Prefix::new(v6("2a00:1:2:3::"), 96).expect("a length of the RFC")]);
        let none = discover_nat64(&Fixed(vec![WELL_KNOWN_ADDRESSES[0].into()]), Duration::from_secs(1)).await;
        assert_eq!(none, []);
    }
}
