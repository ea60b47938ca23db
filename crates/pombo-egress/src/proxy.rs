//! An egress proxy of the operator: all connections go through its CONNECT.
//!
//! It is a setting and never comes from the environment. The address policy still judges every address here,
//! and CONNECT names the judged address, not the host: a proxy that resolved the name again could be led to
//! another one. (A proxy whose own rules go by host name cannot be used in this way.)

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use pombo_domain::attempt::AttemptClass;
use pombo_domain::secret::SecretText;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::{Position, Url};

use crate::address_policy::port_of;
use crate::connector::set_nodelay;
use crate::outcome::Failure;

/// Longest head of the proxy's answer.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Where the proxy is: `http://proxy.example:4750`.
#[derive(Clone, PartialEq)]
pub struct EgressProxy {
    host: String,
    port: u16,
    authorization: Option<SecretText>,
}

/// Why a text does not name a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// Not `http://host:port`.
    #[error("the egress proxy must be given as http://host:port, without user name and path")]
    Form,
    /// Not the value of a header.
    #[error("the authorization for the egress proxy must be visible ASCII, such as `Basic dXNlcjpwYXNz`")]
    Authorization,
}

impl EgressProxy {
    /// Sends this value as `Proxy-Authorization`.
    ///
    /// # Errors
    /// [`ProxyError::Authorization`] if it cannot be a header's value.
    pub fn with_authorization(mut self, value: SecretText) -> Result<Self, ProxyError> {
        let is_visible = value.expose().bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if !is_visible {
            return Err(ProxyError::Authorization);
        }
        self.authorization = Some(value);
        Ok(self)
    }

    /// A tunnel to the judged address. The caller bounds the time.
    pub(crate) async fn open(&self, judged: SocketAddr) -> Result<TcpStream, Failure> {
        // The operator's own address: found and reached the way the machine does, and not judged.
        let mut stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "The egress proxy cannot be reached");
            Failure::new(AttemptClass::Connect, "the egress proxy of this installation cannot be reached")
        })?;
        set_nodelay(&stream);
        let mut request = format!("CONNECT {judged} HTTP/1.1\r\nHost: {judged}\r\n");
        if let Some(value) = &self.authorization {
            request.push_str("Proxy-Authorization: ");
            request.push_str(value.expose());
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        let answer = async {
            stream.write_all(request.as_bytes()).await?;
            read_status(&mut stream).await
        };
        match answer.await {
            Ok(Some(200..=299)) => Ok(stream),
            Ok(status) => {
                tracing::warn!(?status, "The egress proxy refused a connection");
                Err(Failure::new(
                    AttemptClass::Connect,
                    "the egress proxy of this installation refused the connection",
                ))
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "The egress proxy broke off");
                Err(Failure::new(AttemptClass::Connect, "the egress proxy of this installation broke off"))
            }
        }
    }
}

/// The status of the proxy's answer, read to the end of its head and not a byte further: what follows belongs
/// to the target. `None` if it is no answer.
async fn read_status(stream: &mut TcpStream) -> std::io::Result<Option<u16>> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Ok(None);
        }
        head.push(stream.read_u8().await?);
    }
    let status = head.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    Ok(status.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| digits.parse().ok()))
}

impl FromStr for EgressProxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let url = Url::parse(text).map_err(|_| ProxyError::Form)?;
        let is_plain = url.scheme() == "http" && url.username().is_empty() && url.password().is_none();
        let has_path = !matches!(&url[Position::BeforePath..], "" | "/");
        match url.host_str() {
            Some(host) if is_plain && !has_path && port_of(&url) != 0 => Ok(Self {
                // Brackets belong to the URL, not to the address.
                host: host.trim_matches(['[', ']']).to_owned(),
                port: port_of(&url),
                authorization: None,
            }),
            _ => Err(ProxyError::Form),
        }
    }
}

impl fmt::Debug for EgressProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EgressProxy({}:{})", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_from_urls() {
        for (text, host, port) in [
            ("http://proxy.example:4750", "proxy.example", 4750),
            ("http://proxy.example/", "proxy.example", 80),
            ("http://[::1]:3128", "::1", 3128),
        ] {
            let proxy: EgressProxy = text.parse().expect(text);
            assert_eq!((proxy.host.as_str(), proxy.port), (host, port));
        }
        for text in [
            "",
            "proxy:4750",
            "https://proxy.example",
            "http://u:p@proxy.example",
            "http://a/x",
            "http://a:0",
        ] {
            assert_eq!(text.parse::<EgressProxy>(), Err(ProxyError::Form), "{text}");
        }
    }

    #[test]
    fn credentials_are_checked_and_not_printed() {
        let proxy: EgressProxy = "http://proxy.example:4750".parse().expect("a proxy");
        let injected = proxy.clone().with_authorization(SecretText::new("a\r\nb: c".to_owned()));
        assert_eq!(injected, Err(ProxyError::Authorization));
        let proxy = proxy.with_authorization(SecretText::new("Basic c2VjcmV0".to_owned())).expect("a value");
        assert_eq!(format!("{proxy:?}"), "EgressProxy(proxy.example:4750)");
    }
}
