package workspace

// Privilege describes why a file runs with other privileges than its caller's.
type Privilege struct {
	// SetUID and SetGID are the mode's bits.
	SetUID, SetGID bool
	// Capabilities reports whether the file has capabilities (Linux).
	Capabilities bool
}

// Any reports whether there is any.
func (p Privilege) Any() bool { return p.SetUID || p.SetGID || p.Capabilities }

// Exceeds reports whether p has something that q has not.
func (p Privilege) Exceeds(q Privilege) bool {
	return p.SetUID && !q.SetUID || p.SetGID && !q.SetGID || p.Capabilities && !q.Capabilities
}

// PrivilegedFile describes a regular file or a directory at one moment.
type PrivilegedFile struct {
	// Privilege of a directory is at most SetUID: set-group-ID is inherited
	// there and grants nothing.
	Privilege
	// Dir reports whether it is a directory.
	Dir bool
	// Inode and Changed, the time of its last change, tell it from others.
	Inode   uint64
	Changed int64
	// Sum is the SHA-256 of its content; absent if it could not be read
	// or is larger than [MaxPrivilegedBytes].
	Sum string
}

// MaxPrivilegedBytes bounds the content of which a [PrivilegedFile] has the sum.
const MaxPrivilegedBytes = 64 << 20
