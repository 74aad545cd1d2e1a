//! Multiple mount protection.

use crate::finding::{Finding, FindingCode, FindingPlace, Findings};
use crate::volume::Volume;
use extant_format::Incompat;
use extant_format::mmp::Mmp;

/// Checks the block of multiple mount protection, if the file system has one.
pub fn check(volume: &Volume<'_>, findings: &mut Findings<'_>) {
    let geometry = &volume.reader.geometry;
    if !geometry.incompat(Incompat::MMP) {
        return;
    }
    let block = volume.superblock.mmp_block().0;
    let place = FindingPlace::default().block(block);
    if !volume.is_block(block) {
        findings.report(Finding::new(FindingCode::Mmp, place.field("block")));
        return;
    }
    let seed = geometry.metadata_csum.then_some(geometry.csum_seed);
    match volume.reader.block(block) {
        Some(bytes) => {
            if let Err(error) = Mmp::parse(&bytes, seed) {
                findings.report(Finding::corrupt(FindingCode::Mmp, place, &error));
            }
        }
        None => findings.report(Finding::new(FindingCode::Unreadable, place)),
    }
}
