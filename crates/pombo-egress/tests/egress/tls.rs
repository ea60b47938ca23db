//! TLS: who is trusted, what is offered, what is said when it fails.

use std::sync::{Arc, OnceLock};

use pombo_domain::attempt::AttemptClass;
use pombo_egress::{EgressClient, EgressConfig, EgressError, Resolve};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::receiver::{OK, Peer, Receiver};
use crate::{ScriptedResolver, config, eventually, failure, response, send, url};

/// A certificate authority of the tests.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        // Its own name: every certificate made here without one is called the same.
        params.distinguished_name.push(DnType::CommonName, "Authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    })
}

impl Authority {
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    fn issue(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { chain: vec![certificate.der().clone()], key: key.serialize_der() }
    }
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

fn acceptor(identity: Identity, alpn: &[&[u8]]) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(identity.chain, PrivateKeyDer::Pkcs8(identity.key.into()))
        .expect("key and certificate belong together");
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// What a server learned from a handshake: server name and protocol.
type Greeting = (Option<String>, Option<Vec<u8>>);

/// Answers every request over TLS.
async fn tls_receiver(acceptor: TlsAcceptor) -> (Receiver, mpsc::UnboundedReceiver<Greeting>) {
    let (greetings, seen) = mpsc::unbounded_channel();
    let receiver =
        Receiver::start(move |peer| answer_over_tls(peer, acceptor.clone(), greetings.clone())).await;
    (receiver, seen)
}

async fn answer_over_tls(peer: Peer, acceptor: TlsAcceptor, greetings: mpsc::UnboundedSender<Greeting>) {
    let Ok(mut stream) = acceptor.accept(peer.stream).await else { return };
    let session = stream.get_ref().1;
    let greeting = (session.server_name().map(str::to_owned), session.alpn_protocol().map(<[u8]>::to_vec));
    greetings.send(greeting).expect("the test outlives its receiver");
    let mut buffer = [0; 4096];
    while matches!(stream.read(&mut buffer).await, Ok(read) if read > 0) {
        if stream.write_all(OK).await.is_err() {
            return;
        }
    }
}

fn trusting() -> EgressClient {
    let resolver = ScriptedResolver::to(&["127.0.0.1"]) as Arc<dyn Resolve>;
    EgressClient::new(EgressConfig { resolver, ..config() }).expect("a client")
}

#[tokio::test]
async fn a_certificate_of_an_extra_root_is_accepted_and_the_connection_kept() {
    let identity = authority().issue(&params("hooks.example"));
    let (receiver, mut greetings) = tls_receiver(acceptor(identity, &[b"h2", b"http/1.1"])).await;
    let client = trusting();
    let url = receiver.named("https", "hooks.example");
    let exchange = send(&client, &url).await;
    assert_eq!(response(&exchange).status, 200);
    let phases = exchange.phases;
    assert!(phases.dns.is_some() && phases.connect.is_some() && phases.tls.is_some());
    let greeting = greetings.recv().await.expect("a handshake");
    assert_eq!(
        greeting,
        (Some("hooks.example".to_owned()), Some(b"http/1.1".to_vec())),
        "server name, protocol"
    );
    eventually("the connection is kept", || client.idle_connections() == 1).await;
    let again = send(&client, &url).await;
    assert_eq!((response(&again).status, again.phases.tls, receiver.opened()), (200, None, 1));
}

#[tokio::test]
async fn a_self_signed_certificate_is_refused() {
    let key = KeyPair::generate().expect("a key");
    let certificate = params("hooks.example").self_signed(&key).expect("a certificate");
    let identity = Identity { chain: vec![certificate.der().clone()], key: key.serialize_der() };
    let (receiver, _) = tls_receiver(acceptor(identity, &[])).await;
    let exchange = send(&trusting(), &receiver.named("https", "hooks.example")).await;
    assert!(failure(&exchange, AttemptClass::Tls).contains("not signed by a trusted authority"));
    assert!(exchange.phases.tls.is_some());
    assert_eq!(exchange.phases.first_byte, None, "nothing was said");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_without_naming_it() {
    let identity = authority().issue(&params("secret-internal-name.example"));
    let (receiver, _) = tls_receiver(acceptor(identity, &[])).await;
    let exchange = send(&trusting(), &receiver.named("https", "hooks.example")).await;
    assert_eq!(failure(&exchange, AttemptClass::Tls), "the receiver's certificate is for another host name");
}

#[tokio::test]
async fn a_certificate_out_of_its_time_is_refused() {
    for ((from, to), reason) in [((2001, 2002), "has expired"), ((4000, 4001), "is not valid yet")] {
        let mut params = params("hooks.example");
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let (receiver, _) = tls_receiver(acceptor(authority().issue(&params), &[])).await;
        let exchange = send(&trusting(), &receiver.named("https", "hooks.example")).await;
        assert!(failure(&exchange, AttemptClass::Tls).contains(reason));
    }
}

#[tokio::test]
async fn a_literal_address_needs_a_certificate_for_that_address() {
    let (receiver, mut greetings) =
        tls_receiver(acceptor(authority().issue(&params("127.0.0.1")), &[])).await;
    let exchange = send(&trusting(), &url(format!("https://{}/", receiver.at))).await;
    assert_eq!(response(&exchange).status, 200);
    assert_eq!(greetings.recv().await.expect("a handshake").0, None, "an address is no server name");
    let (named, _) = tls_receiver(acceptor(authority().issue(&params("hooks.example")), &[])).await;
    failure(&send(&trusting(), &url(format!("https://{}/", named.at))).await, AttemptClass::Tls);
}

#[tokio::test]
async fn a_receiver_that_speaks_only_http_2_is_refused() {
    let identity = authority().issue(&params("hooks.example"));
    let (receiver, _) = tls_receiver(acceptor(identity, &[b"h2"])).await;
    failure(&send(&trusting(), &receiver.named("https", "hooks.example")).await, AttemptClass::Tls);
}

#[tokio::test]
async fn receivers_that_do_not_speak_tls_are_tls_failures() {
    let plain = Receiver::start(|mut peer| async move {
        peer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        peer.wait_for_close().await;
    })
    .await;
    let exchange = send(&trusting(), &plain.named("https", "hooks.example")).await;
    assert_eq!(failure(&exchange, AttemptClass::Tls), "the receiver does not speak TLS on this port");
    let closing = Receiver::start(|_| async {}).await;
    let exchange = send(&trusting(), &closing.named("https", "hooks.example")).await;
    assert!(failure(&exchange, AttemptClass::Tls).contains("during the TLS handshake"));
}

#[tokio::test]
async fn roots_are_read_from_pem() {
    let mut config = EgressConfig::default();
    assert_eq!(config.add_roots_pem(authority().0.pem().as_bytes()).expect("a certificate"), 1);
    assert_eq!(config.extra_roots, [authority().der()]);
    for text in ["", "not PEM", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
        assert!(matches!(config.add_roots_pem(text.as_bytes()), Err(EgressError::Pem)), "{text}");
    }
    config.extra_roots = vec![CertificateDer::from(vec![1, 2, 3])];
    assert!(matches!(EgressClient::new(config), Err(EgressError::Roots(_))));
}
