use super::*;

#[test]
fn checksum_follows_changes() {
    let mut sb = Superblock::empty();
    sb.set_features(Features { ro_compat: RoCompat::METADATA_CSUM, ..Features::default() });
    sb.set_checksum_type(CHECKSUM_TYPE_CRC32C);
    let bytes = sb.seal();
    assert!(Superblock::parse_unverified(&bytes).unwrap().verify_checksum().is_ok());
    sb.set_mnt_count(7);
    assert!(sb.verify_checksum().is_err());
}

#[test]
fn high_halves_need_the_feature() {
    let mut sb = Superblock::empty();
    sb.set_blocks_count(0x1_0000_0002);
    assert_eq!(sb.blocks_count(), 2);
    sb.set_features(Features { incompat: Incompat::BIT64, ..Features::default() });
    sb.set_blocks_count(0x1_0000_0002);
    assert_eq!(sb.blocks_count(), 0x1_0000_0002);
}

#[test]
fn times_have_forty_bits() {
    let mut sb = Superblock::empty();
    sb.set_mtime(0x12_3456_789A);
    assert_eq!(sb.mtime(), 0x12_3456_789A);
    sb.set_mtime(u64::MAX);
    assert_eq!(sb.mtime(), (1 << 40) - 1);
}

#[test]
fn errors_are_recorded_and_forgotten() {
    let mut sb = Superblock::empty();
    let first = ErrorRecord {
        time: 5,
        ino: 12u32.into(),
        func: "first".into(),
        line: 3,
        ..ErrorRecord::default()
    };
    let second = ErrorRecord { time: 6, block: 99u64.into(), errcode: 5, ..first.clone() };
    sb.record_error(&first);
    sb.record_error(&second);
    assert_eq!(sb.first_error(), Some(first));
    assert_eq!(sb.last_error(), Some(second));
    assert_eq!(sb.error_count(), 2);
    assert!(sb.state().contains(State::ERROR));
    sb.clear_errors();
    assert_eq!((sb.first_error(), sb.last_error(), sb.error_count()), (None, None, 0));
    assert_eq!(sb.state(), State::VALID);
}

#[test]
fn journal_backup_round_trips() {
    let mut sb = Superblock::empty();
    let mut backup = JournalBackup { i_block: [0; 60], size: 0x5_0000_1000 };
    backup.i_block[59] = 9;
    sb.set_journal_backup(Some(&backup));
    assert_eq!(sb.journal_backup(), Some(backup));
    sb.set_journal_backup(None);
    assert_eq!(sb.journal_backup(), None);
}

#[test]
fn default_mount_options_are_edited_by_name() {
    let old = DefaultMountOpts::ACL | DefaultMountOpts::JMODE_DATA;
    let names = |list: &'static str| old.edited(list).map(DefaultMountOpts::names);
    assert_eq!(names(""), Ok(vec!["acl", "journal_data"]));
    assert_eq!(names("^acl,-acl +debug"), Ok(vec!["debug", "journal_data"]));
    assert_eq!(names("journal_data_ordered"), Ok(vec!["acl", "journal_data_ordered"]));
    assert_eq!(names("Journal_Data_Writeback"), Ok(vec!["acl", "journal_data_writeback"]));
    assert_eq!(names("^journal_data_ordered"), Ok(vec!["acl"]));
    assert_eq!(names("debug,none"), Err("none"));
    assert_eq!(names("^^acl"), Err("^^acl"));
}
