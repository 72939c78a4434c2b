//! Secrets, proofs and capabilities: keyed BLAKE3 throughout.
//!
//! A pool has a *secret* (who proves it is the pool's owner) and a *mount secret* (who proves that
//! is a trusted mount, which may speak for other users). Neither crosses the wire. The key of
//! capabilities is known to the metadata service and the targets alone.

use crate::error::{Code, Error, Result};
use crate::types::{ClientId, Ino, WallTime};
use serde::{Deserialize, Serialize};

/// A message authentication code.
pub type Mac = [u8; 32];

/// As what a client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The pool's owner.
    Owner,
    /// A mount that is trusted to say for whom it asks.
    Mount,
}

/// A pool's secret. Its debug form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What both sides' proofs speak about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// Who calls.
    pub client: ClientId,
    /// On which stream.
    pub stream: u16,
    /// As what.
    pub role: Role,
    /// The client's nonce.
    pub client_nonce: [u8; 32],
    /// The server's nonce.
    pub server_nonce: [u8; 32],
}

impl Secret {
    /// From 32 random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// From the text of a secret file: 64 hexadecimal digits, white space around them allowed.
    pub fn parse(text: &str) -> Result<Secret> {
        let text = text.trim();
        let bad = || Error::because(Code::Invalid, "a secret is 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Secret(bytes))
    }

    /// The text of a secret file.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The secret that a trusted mount proves instead: derived, so that one file holds both.
    /// The owner of the file can make it; who was handed the derived one cannot go back.
    pub fn for_role(&self, role: Role) -> Secret {
        match role {
            Role::Mount => self.clone(),
            Role::Owner => Secret(self.mac("weirpool owner secret", |_| ())),
        }
    }

    /// What a client answers to a challenge.
    pub fn client_proof(&self, transcript: &Transcript) -> Mac {
        self.mac("weirpool client proof", |hasher| transcript.hash(hasher))
    }

    /// What the server answers to the client's proof.
    pub fn server_proof(&self, transcript: &Transcript) -> Mac {
        self.mac("weirpool server proof", |hasher| transcript.hash(hasher))
    }

    /// The key of one connection, known to its two ends.
    pub fn connection_key(&self, transcript: &Transcript) -> ConnectionKey {
        ConnectionKey(self.mac("weirpool connection key", |hasher| transcript.hash(hasher)))
    }

    fn mac(&self, purpose: &str, feed: impl FnOnce(&mut blake3::Hasher)) -> Mac {
        keyed(&self.0, purpose, feed)
    }
}

impl Transcript {
    fn hash(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.client.0.to_le_bytes());
        hasher.update(&self.stream.to_le_bytes());
        hasher.update(&[self.role as u8]);
        hasher.update(&self.client_nonce);
        hasher.update(&self.server_nonce);
    }
}

fn keyed(key: &[u8; 32], purpose: &str, feed: impl FnOnce(&mut blake3::Hasher)) -> Mac {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&(purpose.len() as u64).to_le_bytes());
    hasher.update(purpose.as_bytes());
    feed(&mut hasher);
    *hasher.finalize().as_bytes()
}

/// Whether two codes are equal, in time that does not depend on where they differ.
pub fn mac_equal(left: &Mac, right: &Mac) -> bool {
    blake3::Hash::from_bytes(*left) == blake3::Hash::from_bytes(*right)
}

/// See [`Secret::connection_key`]. Its debug form does not show it.
#[derive(Clone)]
pub struct ConnectionKey(Mac);

impl std::fmt::Debug for ConnectionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionKey(..)")
    }
}

/// 32 bytes that only the other end of one connection can read, or change unnoticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    bytes: [u8; 32],
    mac: Mac,
}

impl ConnectionKey {
    /// Seals; at most once for each connection, since the pad is the same each time.
    pub fn seal(&self, plain: &[u8; 32]) -> Sealed {
        let bytes = self.pad(plain);
        Sealed {
            bytes,
            mac: keyed(&self.0, "weirpool seal", |hasher| {
                hasher.update(&bytes);
            }),
        }
    }

    /// Opens what the other end sealed.
    pub fn open(&self, sealed: &Sealed) -> Result<[u8; 32]> {
        let mac = keyed(&self.0, "weirpool seal", |hasher| {
            hasher.update(&sealed.bytes);
        });
        if !mac_equal(&mac, &sealed.mac) {
            return Err(Error::because(Code::Unauthenticated, "sealed bytes were changed"));
        }
        Ok(self.pad(&sealed.bytes))
    }

    fn pad(&self, bytes: &[u8; 32]) -> [u8; 32] {
        let pad = keyed(&self.0, "weirpool seal pad", |_| ());
        std::array::from_fn(|i| bytes[i] ^ pad[i])
    }
}

/// What a capability allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rights(pub u8);

impl Rights {
    /// To ask for sizes and times, and to stamp them.
    pub const STAT: Rights = Rights(1);
    /// To read.
    pub const READ: Rights = Rights(2);
    /// To write, truncate and punch.
    pub const WRITE: Rights = Rights(4);

    /// Both.
    pub fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether all of `other` is allowed.
    pub fn allow(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Leave to use a file's objects, signed by the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// Which file.
    pub ino: Ino,
    /// For what.
    pub rights: Rights,
    /// Layout generation that it was signed for.
    pub generation: u32,
    /// Pool map epoch that it was signed under.
    pub map_epoch: u32,
    /// Until when.
    pub expires: WallTime,
    /// Over all of the above.
    pub mac: Mac,
}

/// An order to free objects, signed by the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapOrder {
    /// Whose objects.
    pub inos: Vec<Ino>,
    /// Until when the order is good.
    pub expires: WallTime,
    /// Over all of the above.
    pub mac: Mac,
}

/// The key that the metadata service signs with and targets check with.
#[derive(Clone)]
pub struct CapabilityKey([u8; 32]);

impl CapabilityKey {
    /// From 32 random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> CapabilityKey {
        CapabilityKey(bytes)
    }

    /// Signs a capability.
    pub fn capability(
        &self,
        ino: Ino,
        rights: Rights,
        generation: u32,
        map_epoch: u32,
        expires: WallTime,
    ) -> Capability {
        let mut capability =
            Capability { ino, rights, generation, map_epoch, expires, mac: [0; 32] };
        capability.mac = self.mac_of(&capability);
        capability
    }

    /// Refuses a capability that is forged or expired.
    pub fn check(&self, capability: &Capability, now: WallTime) -> Result<()> {
        if !mac_equal(&self.mac_of(capability), &capability.mac) {
            return Err(Error::because(Code::NoCapability, "capability is not genuine"));
        }
        expiry(capability.expires, now)
    }

    /// Signs an order to free objects.
    pub fn reap_order(&self, inos: Vec<Ino>, expires: WallTime) -> ReapOrder {
        let mac = self.mac_of_order(&inos, expires);
        ReapOrder { inos, expires, mac }
    }

    /// Refuses an order that is forged or expired.
    pub fn check_order(&self, order: &ReapOrder, now: WallTime) -> Result<()> {
        if !mac_equal(&self.mac_of_order(&order.inos, order.expires), &order.mac) {
            return Err(Error::because(Code::NoCapability, "order to free objects is not genuine"));
        }
        expiry(order.expires, now)
    }

    fn mac_of(&self, capability: &Capability) -> Mac {
        keyed(&self.0, "weirpool capability", |hasher| {
            hasher.update(&capability.ino.0.to_le_bytes());
            hasher.update(&[capability.rights.0]);
            hasher.update(&capability.generation.to_le_bytes());
            hasher.update(&capability.map_epoch.to_le_bytes());
            hasher.update(&capability.expires.0.to_le_bytes());
        })
    }

    fn mac_of_order(&self, inos: &[Ino], expires: WallTime) -> Mac {
        keyed(&self.0, "weirpool reap order", |hasher| {
            hasher.update(&expires.0.to_le_bytes());
            for ino in inos {
                hasher.update(&ino.0.to_le_bytes());
            }
        })
    }
}

fn expiry(expires: WallTime, now: WallTime) -> Result<()> {
    if expires < now {
        return Err(Error::because(Code::NoCapability, "capability has expired"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        Transcript {
            client: ClientId(1),
            stream: 2,
            role: Role::Owner,
            client_nonce: [3; 32],
            server_nonce: [4; 32],
        }
    }

    #[test]
    fn proofs_depend_on_everything_said() {
        let secret = Secret::from_bytes([9; 32]);
        let proof = secret.client_proof(&transcript());
        assert_ne!(proof, secret.server_proof(&transcript()));
        assert_ne!(proof, Secret::from_bytes([8; 32]).client_proof(&transcript()));
        let changes: [fn(&mut Transcript); 5] = [
            |t| t.client = ClientId(7),
            |t| t.stream = 7,
            |t| t.role = Role::Mount,
            |t| t.client_nonce[31] = 7,
            |t| t.server_nonce[0] = 7,
        ];
        for change in changes {
            let mut changed = transcript();
            change(&mut changed);
            assert_ne!(proof, secret.client_proof(&changed));
        }
    }

    #[test]
    fn secret_files_parse_or_say_why() {
        let secret = Secret::from_bytes(std::array::from_fn(|i| i as u8));
        assert_eq!(Secret::parse(&format!("{}\n", secret.to_text())), Ok(secret));
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Secret::parse(bad).unwrap_err().code, Code::Invalid);
        }
    }

    #[test]
    fn a_changed_or_expired_capability_is_refused() {
        let key = CapabilityKey::from_bytes([1; 32]);
        let good = key.capability(Ino(5), Rights::READ, 1, 1, WallTime(100));
        assert!(key.check(&good, WallTime(100)).is_ok());
        assert!(key.check(&good, WallTime(101)).is_err());
        assert!(CapabilityKey::from_bytes([2; 32]).check(&good, WallTime(0)).is_err());
        let changes: [fn(&mut Capability); 5] = [
            |c| c.ino = Ino(6),
            |c| c.rights = Rights::WRITE,
            |c| c.generation = 2,
            |c| c.map_epoch = 2,
            |c| c.expires = WallTime(1 << 60),
        ];
        for change in changes {
            let mut changed = good.clone();
            change(&mut changed);
            assert!(key.check(&changed, WallTime(0)).is_err());
        }
        let order = key.reap_order(vec![Ino(5)], WallTime(100));
        assert!(key.check_order(&order, WallTime(1)).is_ok());
        let changed = ReapOrder { inos: vec![Ino(6)], ..order };
        assert!(key.check_order(&changed, WallTime(1)).is_err());
    }

    #[test]
    fn sealed_bytes_open_only_at_the_other_end() {
        let secret = Secret::from_bytes([9; 32]);
        let key = secret.connection_key(&transcript());
        let sealed = key.seal(&[42; 32]);
        assert_ne!(sealed.bytes, [42; 32]);
        assert_eq!(key.open(&sealed), Ok([42; 32]));
        let other = Transcript { stream: 3, ..transcript() };
        assert!(secret.connection_key(&other).open(&sealed).is_err());
    }
}
