//! Identification of a device's contents by the magic numbers of file systems, partition tables,
//! volumes, disk images and archives.
//!
//! The table need not be complete: it allows a program to name a foreign image, and to ask before
//! overwriting one.

use crate::{AlignedDevice, BlockDevice, partition};

/// The class of a signature, which determines the advice for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureKind {
    /// ext2, ext3 or ext4.
    Ext,
    /// Another file system.
    FileSystem,
    /// A partition table.
    PartitionTable,
    /// Swap space.
    Swap,
    /// An encrypted volume.
    Encrypted,
    /// A member of a volume group, an array or a cache.
    Volume,
    /// A virtual disk in its own format.
    DiskImage,
    /// A compressed file or an archive.
    Archive,
}

/// The identified contents of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its class.
    pub kind: SignatureKind,
    /// Its name with an article, as "an XFS file system".
    pub name: &'static str,
}

use SignatureKind::{Archive, DiskImage, Encrypted, Ext, FileSystem, PartitionTable, Swap, Volume};

/// The position of a magic number, in bytes from the beginning or before the end of the device.
enum Place {
    Begin(u64),
    End(u64),
}

use Place::{Begin, End};

/// Magic numbers in the order of the search, the more specific ones first.
const MAGICS: &[(SignatureKind, &str, &[u8], &[Place])] = &[
    (Ext, "an ext2, ext3 or ext4 file system", b"\x53\xef", &[Begin(1080)]),
    (FileSystem, "an XFS file system", b"XFSB", &[Begin(0)]),
    (FileSystem, "a btrfs file system", b"_BHRfS_M", &[Begin(65_600)]),
    (
        FileSystem,
        "a bcachefs file system or a bcache device",
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        &[Begin(4120)],
    ),
    (FileSystem, "an F2FS file system", b"\x10\x20\xf5\xf2", &[Begin(1024)]),
    (FileSystem, "a SquashFS file system", b"hsqs", &[Begin(0)]),
    (FileSystem, "a SquashFS file system", b"sqsh", &[Begin(0)]),
    (FileSystem, "an EROFS file system", b"\xe2\xe1\xf5\xe0", &[Begin(1024)]),
    (FileSystem, "a cramfs file system", b"\x45\x3d\xcd\x28", &[Begin(0), Begin(512)]),
    (FileSystem, "a cramfs file system", b"\x28\xcd\x3d\x45", &[Begin(0), Begin(512)]),
    (FileSystem, "a romfs file system", b"-rom1fs-", &[Begin(0)]),
    (FileSystem, "an NTFS file system", b"NTFS    ", &[Begin(3)]),
    (FileSystem, "an exFAT file system", b"EXFAT   ", &[Begin(3)]),
    (FileSystem, "a FAT file system", b"FAT32   ", &[Begin(82)]),
    (FileSystem, "a FAT file system", b"FAT16   ", &[Begin(54)]),
    (FileSystem, "a FAT file system", b"FAT12   ", &[Begin(54)]),
    (FileSystem, "a UDF file system", b"\0BEA01", &[Begin(32_768)]),
    (FileSystem, "an ISO 9660 file system", b"CD001", &[Begin(32_769)]),
    (FileSystem, "an HFS+ file system", b"H+\0\x04", &[Begin(1024)]),
    (FileSystem, "an HFS+ file system", b"HX\0\x05", &[Begin(1024)]),
    (FileSystem, "an APFS container", b"NXSB", &[Begin(32)]),
    (FileSystem, "a JFS file system", b"JFS1", &[Begin(32_768)]),
    (FileSystem, "a ReiserFS file system", b"ReIsErFs", &[Begin(65_588), Begin(8244)]),
    (FileSystem, "a ReiserFS file system", b"ReIsEr2Fs", &[Begin(65_588), Begin(8244)]),
    (FileSystem, "a ReiserFS file system", b"ReIsEr3Fs", &[Begin(65_588), Begin(8244)]),
    (FileSystem, "a Reiser4 file system", b"ReIsEr4", &[Begin(65_536)]),
    (FileSystem, "a NILFS2 file system", b"\x02\0\0\0\0\0\x34\x34", &[Begin(1024)]),
    (
        FileSystem,
        "an OCFS2 file system",
        b"OCFSV2",
        &[Begin(1024), Begin(2048), Begin(4096), Begin(8192)],
    ),
    (FileSystem, "a GFS2 file system", b"\x01\x16\x19\x70\0\0\0\x01", &[Begin(65_536)]),
    (FileSystem, "a UFS file system", b"\x54\x19\x01\0", &[Begin(9564)]),
    (FileSystem, "a UFS2 file system", b"\x19\x01\x54\x19", &[Begin(66_908)]),
    (FileSystem, "a Minix file system", b"\x7f\x13", &[Begin(1040)]),
    (FileSystem, "a Minix file system", b"\x8f\x13", &[Begin(1040)]),
    (FileSystem, "a Minix file system", b"\x68\x24", &[Begin(1040)]),
    (FileSystem, "a Minix file system", b"\x78\x24", &[Begin(1040)]),
    (FileSystem, "a Minix file system", b"\x5a\x4d", &[Begin(1048)]),
    (FileSystem, "a VMFS volume", b"\x0d\xd0\x01\xc0", &[Begin(1 << 20)]),
    (FileSystem, "a BlueStore device", b"bluestore block device", &[Begin(0)]),
    (
        Swap,
        "swap space",
        b"SWAPSPACE2",
        &[Begin(4086), Begin(8182), Begin(16_374), Begin(32_758), Begin(65_526)],
    ),
    (
        Swap,
        "swap space",
        b"SWAP-SPACE",
        &[Begin(4086), Begin(8182), Begin(16_374), Begin(32_758), Begin(65_526)],
    ),
    (
        Swap,
        "swap space with a suspended system",
        b"S1SUSPEND",
        &[Begin(4086), Begin(16_374), Begin(65_526)],
    ),
    (
        Swap,
        "swap space with a suspended system",
        b"S2SUSPEND",
        &[Begin(4086), Begin(16_374), Begin(65_526)],
    ),
    (
        Swap,
        "swap space with a suspended system",
        b"ULSUSPEND",
        &[Begin(4086), Begin(16_374), Begin(65_526)],
    ),
    (Encrypted, "a LUKS volume", b"LUKS\xba\xbe", &[Begin(0)]),
    (Encrypted, "a BitLocker volume", b"-FVE-FS-", &[Begin(3)]),
    (
        Volume,
        "an LVM physical volume",
        b"LABELONE",
        &[Begin(0), Begin(512), Begin(1024), Begin(1536)],
    ),
    (Volume, "a member of a Linux RAID array", b"\xfc\x4e\x2b\xa9", &[Begin(4096), Begin(0)]),
    (Volume, "a VDO volume", b"dmvdo001", &[Begin(0)]),
    (DiskImage, "a qcow2 disk image", b"QFI\xfb", &[Begin(0)]),
    (DiskImage, "a QED disk image", b"QED\0", &[Begin(0)]),
    (DiskImage, "a VMDK disk image", b"KDMV", &[Begin(0)]),
    (DiskImage, "a VMDK disk image", b"# Disk DescriptorFile", &[Begin(0)]),
    (DiskImage, "a VDI disk image", b"\x7f\x10\xda\xbe", &[Begin(64)]),
    (DiskImage, "a VHDX disk image", b"vhdxfile", &[Begin(0)]),
    (DiskImage, "a VHD disk image", b"conectix", &[Begin(0), End(512)]),
    (DiskImage, "a DMG disk image", b"koly", &[End(512)]),
    (DiskImage, "an Android sparse image", b"\x3a\xff\x26\xed", &[Begin(0)]),
    (Archive, "a gzip file", b"\x1f\x8b\x08", &[Begin(0)]),
    (Archive, "an xz file", b"\xfd7zXZ\0", &[Begin(0)]),
    (Archive, "a Zstandard file", b"\x28\xb5\x2f\xfd", &[Begin(0)]),
    (Archive, "a bzip2 file", b"1AY&SY", &[Begin(4)]),
    (Archive, "a ZIP archive", b"PK\x03\x04", &[Begin(0)]),
    (Archive, "a 7z archive", b"7z\xbc\xaf\x27\x1c", &[Begin(0)]),
    (Archive, "a tar archive", b"ustar", &[Begin(257)]),
    (PartitionTable, "a GPT partition table", b"EFI PART", &[Begin(512), Begin(4096)]),
    (PartitionTable, "an Apple partition map", b"PM\0\0", &[Begin(512)]),
];

/// RAID metadata at the end of the device: versions 0.90 and 1.0 are at the last multiple of 64 KiB
/// and 4 KiB that leaves at least this many bytes.
const RAID_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
const RAID_AT_END: [(u64, u64); 2] = [(64 << 10, 64 << 10), (4 << 10, 8 << 10)];

/// The uberblock ring of ZFS in the first label: blocks of 1 KiB, any of which may be the current
/// one.
const ZFS_RING: std::ops::Range<u64> = 128 << 10..256 << 10;
const ZFS_MAGICS: [&[u8]; 2] = [b"\x0c\xb1\xba\0\0\0\0\0", b"\0\0\0\0\0\xba\xb1\x0c"];

/// Longest magic number, in bytes.
const MAX_MAGIC: usize = 32;

/// Identifies the contents of a device. Returns `None` if they are unknown. Positions that cannot
/// be read match nothing.
///
/// Reads a few hundred KiB at most, whatever the contents.
pub fn identify(device: &dyn BlockDevice) -> Option<Signature> {
    let device = &AlignedDevice::new(device);
    let by_magic = MAGICS.iter().find(|(_, _, magic, places)| {
        places.iter().any(|place| match place {
            Begin(offset) => holds(device, *offset, magic),
            End(bytes) => {
                device.len().checked_sub(*bytes).is_some_and(|offset| holds(device, offset, magic))
            }
        })
    });
    match by_magic {
        Some((kind, name, ..)) => Some(Signature { kind: *kind, name }),
        None => identify_by_structure(device),
    }
}

/// Identifies contents by more than one magic number at a fixed position.
fn identify_by_structure(device: &dyn BlockDevice) -> Option<Signature> {
    if partition::has_table(device) {
        return Some(Signature { kind: PartitionTable, name: "an MBR partition table" });
    }
    let raid = RAID_AT_END.iter().any(|(unit, before)| {
        let end = device.len() / unit * unit;
        end.checked_sub(*before).is_some_and(|offset| holds(device, offset, RAID_MAGIC))
    });
    if raid {
        return Some(Signature { kind: Volume, name: "a member of a Linux RAID array" });
    }
    let zfs = || {
        ZFS_RING.step_by(1 << 10).any(|at| ZFS_MAGICS.iter().any(|magic| holds(device, at, magic)))
    };
    zfs().then_some(Signature { kind: FileSystem, name: "a ZFS pool" })
}

fn holds(device: &dyn BlockDevice, offset: u64, magic: &[u8]) -> bool {
    let mut found = [0; MAX_MAGIC];
    let Some(found) = found.get_mut(..magic.len()) else { return false };
    let end = offset.checked_add(found.len() as u64);
    end.is_some_and(|end| end <= device.len())
        && device.read_exact_at(found, offset).is_ok()
        && found == magic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_number_can_be_found() {
        for (kind, name, magic, places) in MAGICS {
            assert!(magic.len() <= MAX_MAGIC, "{name}");
            for place in *places {
                let device = crate::SparseDevice::new(2 << 20);
                let at = match place {
                    Begin(offset) => *offset,
                    End(bytes) => device.len() - bytes,
                };
                device.write_all_at(magic, at).unwrap();
                assert_eq!(
                    identify(&device),
                    Some(Signature { kind: *kind, name }),
                    "{name} at {at}"
                );
            }
        }
    }

    #[test]
    fn nothing_known_is_nothing() {
        assert_eq!(identify(&crate::SparseDevice::new(2 << 20)), None);
        assert_eq!(identify(&crate::SparseDevice::new(1)), None);
    }

    #[test]
    fn arrays_and_pools_are_found_by_their_structure() {
        for (at, magic, name) in [
            ((2 << 20) - (64 << 10), RAID_MAGIC, "a member of a Linux RAID array"),
            ((2 << 20) - (8 << 10), RAID_MAGIC, "a member of a Linux RAID array"),
            ((128 + 77) << 10, ZFS_MAGICS[0], "a ZFS pool"),
            ((128 + 77) << 10, ZFS_MAGICS[1], "a ZFS pool"),
        ] {
            let device = crate::SparseDevice::new(2 << 20);
            device.write_all_at(magic, at).unwrap();
            assert_eq!(identify(&device).map(|found| found.name), Some(name));
        }
    }
}
