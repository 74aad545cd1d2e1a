//! Quota files, written anew from the usage that was found; limits stay.

use super::RepairError;
use super::directory::runs_of;
use super::draft::Round;
use crate::finding::{Finding, FindingCode as Code};
use crate::maps::{Run, Runs};
use crate::passes::quota::read_records;
use extant_format::InodeNr;
use extant_format::quota::{QuotaKind, QuotaRecord, new_file};
use std::collections::BTreeMap;

impl Round<'_> {
    /// Writes the quota files with findings.
    pub fn repair_quota(&self, found: &[Finding]) -> Result<(), RepairError> {
        let sb = &self.survey.volume.superblock;
        let files = [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()];
        for (kind, ino) in QuotaKind::ALL.into_iter().zip(files) {
            let wrong = |finding: &Finding| {
                matches!(finding.code, Code::QuotaFile | Code::QuotaUsage)
                    && finding.place.inode == Some(ino.0)
            };
            if found.iter().any(wrong) {
                self.write_quota(kind, ino)?;
            }
        }
        Ok(())
    }

    /// Writes a quota file with the usage that was found.
    pub fn write_quota(&self, kind: QuotaKind, ino: InodeNr) -> Result<(), RepairError> {
        let mut records: BTreeMap<u32, QuotaRecord> =
            read_records(&self.survey.volume, kind, ino).unwrap_or_default();
        for record in records.values_mut() {
            (record.space, record.inodes) = (0, 0);
        }
        for (id, (bytes, inodes)) in self.survey.inodes.usage.of(kind) {
            let record = records.entry(id).or_default();
            (record.id, record.space, record.inodes) = (id, bytes, inodes);
        }
        records.retain(|_, record| {
            !record.limits.is_none() || record.space != 0 || record.inodes != 0 || record.id == 0
        });
        let list: Vec<QuotaRecord> = records.into_values().collect();
        self.write_file(ino, &new_file(kind, &list))
    }

    /// Replaces the content of a file of the file system itself.
    fn write_file(&self, ino: InodeNr, content: &[u8]) -> Result<(), RepairError> {
        let inode = self.inode(ino)?;
        if !inode.is_regular() || inode.links == 0 {
            return Err(RepairError::Unsupported("a quota inode that is no file"));
        }
        let runs = Runs::of(&self.survey.volume.reader, ino, &inode);
        let mut blocks: Vec<u64> = runs.runs.iter().flat_map(Run::blocks).collect();
        let count = content.len().div_ceil(self.block_size());
        let grows = blocks.len() < count || runs.damaged;
        let ratio = self.geometry().cluster_ratio() as usize;
        while blocks.len() < count {
            // The blocks of a cluster belong to the same file.
            let joined = blocks.last().filter(|_| !blocks.len().is_multiple_of(ratio));
            blocks.push(match joined {
                Some(last) => last.saturating_add(1),
                None => self.allocate()?,
            });
        }
        for (n, nr) in blocks.iter().enumerate() {
            let start = n.saturating_mul(self.block_size());
            let rest = content.get(start..).unwrap_or(&[]);
            let mut bytes = vec![0; self.block_size()];
            bytes.iter_mut().zip(rest).for_each(|(byte, new)| *byte = *new);
            self.put(*nr, &bytes)?;
        }
        if grows {
            self.write_map(ino, &runs_of(&blocks))?;
        }
        let size = blocks.len().saturating_mul(self.block_size()) as u64;
        self.edit_inode(ino, |inode| inode.size = size)
    }
}
