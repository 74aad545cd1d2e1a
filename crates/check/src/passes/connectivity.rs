//! Paths from the root to each directory, and counts of links.

use super::directories::Dir;
use crate::facts::{Fact, Facts, InodeState};
use crate::finding::{Finding, FindingCode, FindingList, FindingPlace, Findings};
use crate::parallel::Workers;
use crate::volume::Volume;
use extant_format::inode::LINK_MAX;
use extant_format::{FileType, GroupNr, Inode, InodeFlags, InodeNr};
use std::collections::BTreeMap;

/// Checks that each directory has a parent, that `..` names it, and that the parents lead to the
/// root.
pub fn check_paths(dirs: &[Dir], findings: &mut Findings<'_>) {
    match dirs.binary_search_by_key(&InodeNr::ROOT, |dir| dir.ino) {
        Ok(_) => {}
        Err(_) => findings
            .report(Finding::new(FindingCode::RootInode, FindingPlace::inode(InodeNr::ROOT))),
    }
    for dir in dirs {
        let parent = if dir.ino == InodeNr::ROOT { Some(InodeNr::ROOT) } else { dir.parent };
        let place = FindingPlace::inode(dir.ino);
        let Some(parent) = parent else {
            findings.report(Finding::new(FindingCode::Unattached, place));
            continue;
        };
        if let Some(dot_dot) = dir.dot_dot.filter(|dot_dot| *dot_dot != parent) {
            let finding = Finding::new(FindingCode::DotEntries, place.field(".."));
            findings.report(finding.values(dot_dot.0, parent.0));
        }
    }
    for ino in circles(dirs) {
        findings.report(Finding::new(FindingCode::Disconnected, FindingPlace::inode(ino)));
    }
}

/// Returns one directory of each circle of parents.
fn circles(dirs: &[Dir]) -> Vec<InodeNr> {
    let mut round = vec![0u32; dirs.len()];
    let mut found = Vec::new();
    let at = |ino: InodeNr| dirs.binary_search_by_key(&ino, |dir| dir.ino).ok();
    for (start, number) in (0..dirs.len()).zip(1..) {
        let mut next = Some(start);
        while let Some(mark) = next.and_then(|next| round.get_mut(next)) {
            let dir = next.and_then(|next| dirs.get(next));
            if *mark != 0 {
                found.extend(dir.filter(|_| *mark == number).map(|dir| dir.ino));
                break;
            }
            *mark = number;
            next = dir.filter(|dir| dir.ino != InodeNr::ROOT).and_then(|dir| at(dir.parent?));
        }
    }
    found
}

/// Inodes with values: the references that they count, and those that were found.
#[derive(Clone, Copy)]
pub struct ValueCounts<'v> {
    pub stored: &'v BTreeMap<u32, u64>,
    pub found: &'v BTreeMap<u32, u64>,
}

/// Compares the counts of links with the names that were found.
pub fn check_links(
    volume: &Volume<'_>,
    workers: Workers<'_>,
    facts: &Facts,
    values: ValueCounts<'_>,
    findings: &mut Findings<'_>,
) {
    let work = |group: usize| {
        let mut list = FindingList::default();
        let group = GroupNr(group as u32);
        for (index, fact) in (0..).zip(facts.group(group)) {
            let ino = volume.reader.geometry.inode_at(group, index);
            check_fact(volume, ino, fact, values, &mut list);
        }
        list
    };
    workers.run(volume.groups.len(), work, |_, list| findings.report_all(list));
}

fn check_fact(
    volume: &Volume<'_>,
    ino: InodeNr,
    fact: &Fact,
    values: ValueCounts<'_>,
    list: &mut FindingList,
) {
    let place = FindingPlace::inode(ino);
    match fact.state {
        InodeState::Used => {}
        InodeState::Value => {
            let count = |map: &BTreeMap<u32, u64>| map.get(&ino.0).copied().unwrap_or(0);
            let (stored, found) = (count(values.stored), count(values.found));
            if stored != found {
                let place = place.field("references");
                list.push(Finding::new(FindingCode::XattrValue, place).values(stored, found));
            }
            return;
        }
        _ => return,
    }
    let names = fact.names();
    let is_dir = fact.kind == FileType::Directory;
    if names == 0 && !is_dir {
        list.add(FindingCode::Unattached, place);
        return;
    }
    let many = is_dir && volume.reader.geometry.has_dir_nlink() && names > LINK_MAX.into();
    let expected = if many { 1 } else { names };
    if u32::from(fact.links) != expected && !(is_dir && has_lost_count(volume, ino, fact)) {
        list.push(Finding::new(FindingCode::LinkCount, place).values(fact.links, expected));
    }
}

/// Returns whether a directory had too many subdirectories for its count once, whichever it has
/// now: the count then stays 1, which the kernel allows for directories with an index alone.
fn has_lost_count(volume: &Volume<'_>, ino: InodeNr, fact: &Fact) -> bool {
    let geometry = &volume.reader.geometry;
    let inode = || Inode::decode_unverified(&volume.slot(ino)?, geometry, ino).ok();
    fact.links == 1 && inode().is_some_and(|inode| inode.flags.contains(InodeFlags::INDEX))
}
