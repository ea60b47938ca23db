//! Randomness. The only place of the engine that draws it.

use rand::rngs::ThreadRng;

/// The process's generator: seeded by the system, reseeded while it runs. Jitter, ids and secrets all may
/// come from it.
#[expect(clippy::disallowed_methods, reason = "this module is where the generator comes from")]
pub(crate) fn rng() -> ThreadRng {
    rand::rng()
}

/// The ten random bytes of an id.
pub(crate) fn id_bytes() -> [u8; 10] {
    use rand::Rng;
    let mut bytes = [0; 10];
    rng().fill_bytes(&mut bytes);
    bytes
}
