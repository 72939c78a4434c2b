//! Looking by those who keep what they find for a moment (see [`super::ways`]).

use super::txn::{attempt, peek};
use super::{MetaService, names, path};
use crate::config::CALM_ASKED_MIN;
use crate::error::{Code, Error, Result};
use crate::types::{ClientId, Credentials, FileKind, Ino, Now};
use crate::wire::meta::{MetaReply, Place, Record};

impl MetaService {
    pub(super) async fn lookup_way(
        &self,
        now: Now,
        (client, who): (ClientId, &Credentials),
        place: &Place,
        others: bool,
    ) -> Result<MetaReply> {
        let path = &place.path[..];
        if matches!(path, b"" | b"." | b"..") || path.contains(&b'/') {
            let cause = format!("'{}' is not a single name", path::show(path));
            return Err(Error::because(Code::Invalid, cause));
        }
        // Who may believe something is noted down before he looks: from then on nobody takes it away.
        let calm = self.ways.believe_all(client, 1, now.mono_ms);
        let look = async || match attempt!(self.look(now, who, place, false)) {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.code == Code::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let is_directory = |record: &Option<Record>| {
            record.as_ref().is_some_and(|record| record.attributes.kind == FileKind::Directory)
        };
        let stays_open = async || -> Result<bool> {
            Ok(path::stays_open(&peek(&*self.store, place.base).await?, who, others))
        };
        let mut record = look().await?;
        let mut name = (calm || is_directory(&record)) && stays_open().await?;
        if name && !calm {
            name = self.ways.believe(client, now.mono_ms);
            if name {
                record = look().await?;
                name = is_directory(&record) && stays_open().await?;
            }
        }
        if record.is_none() && !name {
            return Err(path::no_name(place.base, path));
        }
        Ok(looked(record, name, calm))
    }

    pub(super) async fn look_at(&self, now: Now, client: ClientId, ino: Ino) -> Result<MetaReply> {
        let calm = self.ways.believe_all(client, 1, now.mono_ms);
        let inode = peek(&*self.store, ino).await?;
        Ok(looked(Some(self.record(now, ino, &inode).await?), false, calm))
    }

    pub(super) async fn look_through(
        &self,
        now: Now,
        (client, who): (ClientId, &Credentials),
        ino: Ino,
        (after, limit): (&[u8], u32),
        others: bool,
    ) -> Result<MetaReply> {
        // Who lists a directory often looks at all that is in it.
        let calm = self.ways.believe_all(client, CALM_ASKED_MIN, now.mono_ms);
        let part = self.list(now, who, ino, after, limit, calm).await?;
        let names::Part { entries, records, end, directory } = part;
        let names = calm && path::stays_open(&directory, who, others);
        Ok(MetaReply::LookedThrough { entries, records, names, end })
    }
}

fn looked(record: Option<Record>, name: bool, calm: bool) -> MetaReply {
    let attributes = calm && record.as_ref().is_some_and(Record::is_at_rest);
    MetaReply::Looked { record, name, attributes }
}
