package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Privilege tells why a file runs with other privileges than its caller's.
type Privilege struct {
	SetUID, SetGID bool
	Capabilities   bool
}

// Any reports whether p has any privilege.
func (p Privilege) Any() bool { return p.SetUID || p.SetGID || p.Capabilities }

// Exceeds reports whether p has a privilege that q lacks.
func (p Privilege) Exceeds(q Privilege) bool {
	return p.SetUID && !q.SetUID || p.SetGID && !q.SetGID || p.Capabilities && !q.Capabilities
}

// PrivilegedFile describes a regular file or directory at one moment.
type PrivilegedFile struct {
	// Privilege of a directory is at most SetUID: set-group-ID is inherited there
	// and grants nothing.
	Privilege
	Dir bool
	// Inode and Changed (the change time, in ns) distinguish it from other files.
	Inode   uint64
	Changed int64
	// Sum is the content's SHA-256 in hex, or "" if it could not be read or is
	// larger than [MaxPrivilegedBytes].
	Sum string
}

// MaxPrivilegedBytes bounds the content that is hashed.
const MaxPrivilegedBytes = 64 << 20

const capabilityAttribute = "security.capability"

// Privileges reads and clears privileges of files below one directory. The host
// uses it for files that commands should not have been able to make.
type Privileges struct{ tree *tree }

// NewPrivileges returns the Privileges of dir, which the caller closes.
func NewPrivileges(dir *os.File) (*Privileges, error) {
	t, err := newTree(dir)
	if err != nil {
		return nil, err
	}
	return &Privileges{tree: t}, nil
}

// Read returns the privileges of the regular file or directory at path, which may
// not be a symlink. With withSum it also hashes the content of a privileged file.
func (p *Privileges) Read(path string, withSum bool) (f PrivilegedFile, err error) {
	err = p.withFile(path, func(fd int, held string) error {
		if f, err = readPrivileges(fd, held); err != nil || !withSum || !f.Any() || f.Dir {
			return err
		}
		f.Sum, err = sumOf(held)
		return err
	})
	return f, err
}

// Clear removes all privileges of the regular file or directory at path, if its
// inode is this one, and returns those that it had. It holds the file open, so that
// no other can take its place meanwhile.
func (p *Privileges) Clear(path string, inode uint64) (was Privilege, err error) {
	err = p.withFile(path, func(fd int, held string) error {
		f, err := readPrivileges(fd, held)
		if err != nil {
			return err
		}
		if f.Inode != inode {
			return errors.New("another file is in its place")
		}
		was = f.Privilege
		if f.Capabilities {
			if err := unix.Removexattr(held, capabilityAttribute); err != nil {
				return err
			}
		}
		if !f.SetUID && !f.SetGID {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		kept := uint32(0o1777)
		if f.Dir {
			kept = 0o3777
		}
		return unix.Fchmodat(unix.AT_FDCWD, held, st.Mode&kept, 0)
	})
	return was, err
}

// withFile calls use with an O_PATH descriptor of the file at path, and a /proc
// path for it.
func (p *Privileges) withFile(path string, use func(fd int, held string) error) error {
	fd, err := p.tree.openPath(path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return use(fd, fmt.Sprintf("/proc/self/fd/%d", fd))
}

func readPrivileges(fd int, held string) (PrivilegedFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return PrivilegedFile{}, err
	}
	f := PrivilegedFile{Inode: st.Ino, Changed: st.Ctim.Nano()}
	f.SetUID = st.Mode&unix.S_ISUID != 0
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		f.Dir = true
		return f, nil
	case unix.S_IFREG:
	default:
		return PrivilegedFile{}, errors.New("it is neither a regular file nor a directory")
	}
	f.SetGID = st.Mode&unix.S_ISGID != 0
	_, err := unix.Getxattr(held, capabilityAttribute, nil)
	f.Capabilities = err == nil
	return f, nil
}

func sumOf(held string) (string, error) {
	file, err := os.Open(held)
	if errors.Is(err, os.ErrPermission) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(file, MaxPrivilegedBytes+1))
	if err != nil || n > MaxPrivilegedBytes {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
