package images

// RootFS is a root filesystem that a backend can mount read-only. It is a
// value: nothing in it must be closed.
type RootFS struct {
	Reference Reference
	// Digest is "sha256:" and 64 hex digits that name the content. For host it
	// covers the layout and the versions that could be read, for rootfs the
	// tree's names, modes, sizes and times, but not every byte.
	Digest string
	// Dir is the directory of a rootfs reference; empty for host. Its entries
	// are mounted through Binds, so nothing is ever written to it.
	Dir string
	// Dirs, Symlinks, Files and Binds make up the root, in this order, over an
	// empty directory.
	Dirs     []Dir
	Symlinks []Symlink
	Files    []File
	Binds    []Bind
	// Masks are directories below a bind that the backend hides under an empty,
	// read-only tmpfs.
	Masks []string
	// Path lists the directories of the host's PATH that the image host has, in
	// order; a command's PATH begins with them.
	Path []string
	// Added are the names of the accounts that were put before the image's own in
	// /etc/passwd and /etc/group.
	Added []string
	// Config is the image's configuration, with the VOLUMEs resolved in the root; for
	// host it has the variables of its toolchains, for rootfs nothing.
	Config Config
	// Warnings are facts that a user should see, such as entries that were left out.
	Warnings []string
}

// Hostname is the host name of every sandbox. No sandbox gets the host's own name. Hosts
// is its /etc/hosts.
const (
	Hostname = "caisson"
	Hosts    = "127.0.0.1 localhost " + Hostname + "\n::1 localhost\n"
)

// Dir is a directory of the skeleton, owned by root.
type Dir struct {
	Path string // absolute in the container
	Mode uint32 // permission bits and sticky, such as 01777
}

// Symlink is a symbolic link of the skeleton.
type Symlink struct {
	Path   string // absolute in the container
	Target string
}

// File is a synthetic file of the skeleton, owned by root, mode 0644.
type File struct {
	Path    string // absolute in the container
	Content []byte
}

// Bind is a host directory or file that is bound read-only, not recursively.
type Bind struct {
	Source string // absolute on the host
	Path   string // absolute in the container; the skeleton holds its mount point
	IsDir  bool
}

// Account is a user, and a group of the same name, in /etc/passwd and /etc/group of a
// root file system.
type Account struct {
	Name     string // letters, digits, - and _
	UID, GID int
	Home     string // absolute in the container
}
