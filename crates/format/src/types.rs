//! Distinct types for block, group and inode numbers; file types; time stamps.

use std::fmt;

macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the plain number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// Returns the number as an index into memory.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                $name(value)
            }
        }

        impl From<$name> for $inner {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_type!(
    /// A physical block of the file system, counted in file-system blocks.
    BlockNr,
    u64
);
number_type!(
    /// A block of a file, counted from the file's start in file-system blocks.
    LogicalBlock,
    u32
);
number_type!(
    /// A block group.
    GroupNr,
    u32
);
number_type!(
    /// An inode number; the first inode is 1, 0 means none.
    InodeNr,
    u32
);

impl InodeNr {
    /// No inode.
    pub const NONE: InodeNr = InodeNr(0);
    /// The list of bad blocks.
    pub const BAD_BLOCKS: InodeNr = InodeNr(1);
    /// The root directory.
    pub const ROOT: InodeNr = InodeNr(2);
    /// The user quota file.
    pub const USER_QUOTA: InodeNr = InodeNr(3);
    /// The group quota file.
    pub const GROUP_QUOTA: InodeNr = InodeNr(4);
    /// The boot loader.
    pub const BOOT_LOADER: InodeNr = InodeNr(5);
    /// The undelete directory (never used).
    pub const UNDELETE: InodeNr = InodeNr(6);
    /// The inode that owns the descriptor blocks reserved for growing.
    pub const RESIZE: InodeNr = InodeNr(7);
    /// The internal journal.
    pub const JOURNAL: InodeNr = InodeNr(8);
    /// The exclude inode of snapshots (never merged).
    pub const EXCLUDE: InodeNr = InodeNr(9);
    /// The replica inode (never merged).
    pub const REPLICA: InodeNr = InodeNr(10);
    /// The first ordinary inode of revision 0, and the usual one of revision 1.
    pub const FIRST_ORDINARY: InodeNr = InodeNr(11);
}

/// The mask of the type bits in a mode.
pub const MODE_TYPE_MASK: u16 = 0xF000;
/// The mask of the permission bits in a mode, with set-id and sticky bits.
pub const MODE_PERM_MASK: u16 = 0x0FFF;
/// Set-user-ID bit of a mode.
pub const MODE_SETUID: u16 = 0x0800;
/// Set-group-ID bit of a mode.
pub const MODE_SETGID: u16 = 0x0400;
/// Sticky bit of a mode.
pub const MODE_STICKY: u16 = 0x0200;

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FileType {
    /// Unknown; the type in directories without the `filetype` feature.
    #[default]
    Unknown,
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl FileType {
    /// From the type byte of a directory entry; unknown bytes give [`FileType::Unknown`].
    pub const fn from_dir_byte(byte: u8) -> FileType {
        match byte {
            1 => FileType::Regular,
            2 => FileType::Directory,
            3 => FileType::CharDevice,
            4 => FileType::BlockDevice,
            5 => FileType::Fifo,
            6 => FileType::Socket,
            7 => FileType::Symlink,
            _ => FileType::Unknown,
        }
    }

    /// Returns the type byte of a directory entry.
    pub const fn to_dir_byte(self) -> u8 {
        match self {
            FileType::Unknown => 0,
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::CharDevice => 3,
            FileType::BlockDevice => 4,
            FileType::Fifo => 5,
            FileType::Socket => 6,
            FileType::Symlink => 7,
        }
    }

    /// From the type bits of a mode.
    pub const fn from_mode(mode: u16) -> FileType {
        match mode & MODE_TYPE_MASK {
            0x8000 => FileType::Regular,
            0x4000 => FileType::Directory,
            0x2000 => FileType::CharDevice,
            0x6000 => FileType::BlockDevice,
            0x1000 => FileType::Fifo,
            0xC000 => FileType::Socket,
            0xA000 => FileType::Symlink,
            _ => FileType::Unknown,
        }
    }

    /// Returns the type bits of a mode; 0 for [`FileType::Unknown`].
    pub const fn to_mode(self) -> u16 {
        match self {
            FileType::Unknown => 0,
            FileType::Regular => 0x8000,
            FileType::Directory => 0x4000,
            FileType::CharDevice => 0x2000,
            FileType::BlockDevice => 0x6000,
            FileType::Fifo => 0x1000,
            FileType::Socket => 0xC000,
            FileType::Symlink => 0xA000,
        }
    }

    /// Returns whether it is a character or block device.
    pub const fn is_device(self) -> bool {
        matches!(self, FileType::CharDevice | FileType::BlockDevice)
    }
}

/// A point in time: seconds since 1970 and nanoseconds within the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC, negative before.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

impl Timestamp {
    /// From seconds and nanoseconds.
    pub const fn new(sec: i64, nsec: u32) -> Timestamp {
        Timestamp { sec, nsec }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [FileType; 8] = [
        FileType::Unknown,
        FileType::Regular,
        FileType::Directory,
        FileType::CharDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
        FileType::Symlink,
    ];

    #[test]
    fn file_types_round_trip() {
        for ty in ALL {
            assert_eq!(FileType::from_dir_byte(ty.to_dir_byte()), ty);
            assert_eq!(FileType::from_mode(ty.to_mode() | 0o644), ty);
        }
        assert_eq!(FileType::from_dir_byte(0xDE), FileType::Unknown);
    }
}
