//! Parsers of the log's blocks.

use super::number;
use extant_format::Geometry;
use extant_format::jbd2::{
    BlockHeader, CommitBlock, DescriptorBuilder, FastCommitTag, FastCommitTags, JBD2_MAGIC,
    JournalIncompat, JournalSuperblock, RevokeRecords, Tag, Tags, escape, needs_escape, unescape,
};

pub(super) fn superblock(_: &Geometry, bytes: &[u8]) {
    let _ = JournalSuperblock::parse(bytes);
    let Ok(mut sb) = JournalSuperblock::parse_unverified(bytes) else { return };
    let _ = (sb.users().len(), sb.format(), sb.errno(), sb.unknown_incompat(), sb.is_v2());
    assert!(sb.log_end() <= sb.max_len(), "the log ends in the journal");
    assert!(
        sb.fast_commit_area().is_none_or(|area| area.end <= sb.max_len()),
        "so does the area of fast commits"
    );
    let sealed = sb.seal();
    let again = JournalSuperblock::parse_unverified(&sealed);
    assert!(again.is_ok_and(|again| again.encode() == sealed), "a superblock comes back");
}

pub(super) fn blocks(_: &Geometry, bytes: &[u8]) {
    let [form, bytes @ ..] = bytes else { return };
    let mut sb = JournalSuperblock::new(1024, 100, [1; 16]);
    sb.set_incompat(JournalIncompat::from_bits_retain(u32::from(*form) & 0x1F));
    let format = sb.format();
    let tags: Vec<Tag> = Tags::new(bytes, &format).collect();
    assert!(tags.len() <= bytes.len(), "a tag takes room");
    let header = BlockHeader::parse(bytes);
    let _ = RevokeRecords::parse(bytes, &format).map(|records| records.count());
    let _ =
        (format.verify_tail(bytes), CommitBlock::parse(bytes), CommitBlock::verify(bytes, &format));
    let mut again = vec![0; bytes.len().max(64)];
    if header.is_some() && !tags.is_empty() {
        let mut builder = DescriptorBuilder::new(&mut again, &format, number(bytes) as u32);
        let fit = tags.iter().take_while(|tag| builder.push(**tag)).count();
        builder.finish();
        let blocks = |tags: &[Tag]| tags.iter().map(|tag| tag.block).collect::<Vec<_>>();
        let read: Vec<Tag> = Tags::new(&again, &format).collect();
        assert_eq!(blocks(&read), blocks(&tags[..fit]), "tags come back");
    }
    fast_commits(bytes);
    let mut copy = bytes.to_vec();
    format.seal_tail(&mut copy);
    if copy.len() >= 4 && needs_escape(&copy) {
        escape(&mut copy);
        assert!(!needs_escape(&copy), "a block that is escaped");
        unescape(&mut copy);
        assert_eq!(copy[..4], JBD2_MAGIC.to_be_bytes());
    }
}

fn fast_commits(bytes: &[u8]) {
    let tags = FastCommitTags::new(bytes, 0);
    let mut count = 0;
    for tag in tags {
        count += 1;
        if let FastCommitTag::Create(_, _, name) = tag {
            assert!((1..=255).contains(&name.len()), "a name");
        }
    }
    assert!(count <= bytes.len(), "a record takes room");
}
