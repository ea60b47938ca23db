//! TLS as a client: the system's trust store, TLS 1.2 or newer, HTTP/1.1 only.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig};
use rustls_platform_verifier::Verifier;
use url::Host;

/// Builds the one configuration of a client. `extra_roots` are trusted beside the system's store.
pub(crate) fn client_config(
    extra_roots: Vec<CertificateDer<'static>>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Verifier::new_with_extra_roots(extra_roots, Arc::clone(&provider))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous() // The name of every verifier that is not a plain root store; this one is the platform's.
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // One request at a time on a connection: an HTTP/2 connection could be shared between hosts, and its
    // flow control between endpoints.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The name a certificate must be for. `None` for a host that no certificate can name.
pub(crate) fn server_name(host: &Host<&str>) -> Option<ServerName<'static>> {
    match host {
        Host::Domain(name) => ServerName::try_from((*name).to_owned()).ok(),
        Host::Ipv4(address) => Some(ServerName::IpAddress((*address).into())),
        Host::Ipv6(address) => Some(ServerName::IpAddress((*address).into())),
    }
}

/// What went wrong, for people, without the names and times that the certificate holds.
pub(crate) fn reason(error: &rustls::Error) -> &'static str {
    use CertificateError as C;
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            C::Expired | C::ExpiredContext { .. } => "the receiver's certificate has expired",
            C::NotValidYet | C::NotValidYetContext { .. } => "the receiver's certificate is not valid yet",
            C::Revoked => "the receiver's certificate is revoked",
            C::UnknownIssuer => {
                "the receiver's certificate is not signed by a trusted authority (self-signed, or the chain is \
                 incomplete)"
            }
            C::NotValidForName | C::NotValidForNameContext { .. } => {
                "the receiver's certificate is for another host name"
            }
            _ => "the receiver's certificate is not valid",
        },
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired) => {
            "the receiver asks for a client certificate"
        }
        rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => {
            "the receiver offers no TLS version or cipher that is safe (TLS 1.2 or newer)"
        }
        rustls::Error::AlertReceived(_) => "the receiver refused the TLS handshake",
        rustls::Error::NoApplicationProtocol => "the receiver does not speak HTTP/1.1",
        rustls::Error::InvalidMessage(_) => "the receiver does not speak TLS on this port",
        _ => "the TLS handshake failed",
    }
}
